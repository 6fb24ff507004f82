#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "base/checked.h"
#include "cuda/build.h"
#include "gr/status.h"

static const char *const symbol[GR_N_CU] = {
#define FN(name, symbol, params) #symbol,
#include "cuda/driver.def"
#undef FN
};

/* ---- versions ---- */

#define MAJOR(version) ((version) / 1000)
#define MINOR(version) ((version) % 1000 / 10)

/* CUDA Toolkit Release Notes, "CUDA Toolkit and Minimum Required Driver Version". */
const char *gr_cuda_driver_name(int version)
{
    return version == 12000 ? "525" : version == 13000 ? "580" : "";
}

int gr_cuda_needed(int toolkit)
{
    return GR_MAX(GR_CUDA_NEEDED, MAJOR(toolkit) * 1000);
}

/* "13.0 or newer (NVIDIA driver 580)" */
static const char *or_newer(int version, char text[64])
{
    const char *name = gr_cuda_driver_name(version);
    (void)snprintf(text, 64, "%d.%d or newer%s%s%s", MAJOR(version), MINOR(version),
                   *name ? " (NVIDIA driver " : "", name, *name ? ")" : "");
    return text;
}

int gr_cuda_check_toolkit(int driver, int toolkit)
{
    char needed[64];
    int version = gr_cuda_needed(toolkit);
    if (driver >= version)
        return 0;
    return gr_fail(
        GR_E_DEVICE,
        "the CUDA driver is too old for this build: it is of CUDA %d.%d, and kernels "
        "made by nvcc %d.%d need %s; update the NVIDIA driver, install cuda-compat-%d-%d "
        "(data center GPUs), or build gpurun with nvcc %d",
        MAJOR(driver), MINOR(driver), MAJOR(toolkit), MINOR(toolkit), or_newer(version, needed),
        MAJOR(toolkit), MINOR(toolkit), MAJOR(driver));
}

/* ---- opening it ---- */

/* An error for a library whose entry points or version are too old for this build. */
static int too_old(const struct gr_cuda_driver *cu, const char *library, const char *missing)
{
    int version = 0;
    char needed[64];
    if (!cu->driver_version || cu->driver_version(&version))
        return gr_fail(GR_E_DEVICE, "%s is no CUDA driver: it has no %s", library,
                       missing ? missing : "version");
    return gr_fail(GR_E_DEVICE,
                   "the CUDA driver (%s) is too old: it is of CUDA %d.%d%s%s, and %s is needed; "
                   "update the NVIDIA driver",
                   library, MAJOR(version), MINOR(version), missing ? ", without " : "",
                   missing ? missing : "", or_newer(GR_CUDA_NEEDED, needed));
}

/* Advice on an error of the first calls. */
static const char *remedy(int result)
{
    switch (result) {
    case CU_SYSTEM_DRIVER_MISMATCH:
        return "the driver's library and kernel module differ in version: reboot, or load the "
               "module of the library's version";
    case CU_UNKNOWN:
        return "load nvidia_uvm (modprobe nvidia_uvm) and look at the rights of /dev/nvidia*";
    default:
        return "see what nvidia-smi says";
    }
}

static int unusable(const struct gr_cuda_driver *cu, enum gr_cuda_call call, int result)
{
    const char *name = NULL;
    (void)cu->error_name(result, &name);
    return gr_fail(GR_E_DEVICE, "the CUDA driver cannot be used: %s failed with %s; %s",
                   symbol[call], name ? name : "an unknown error", remedy(result));
}

int gr_cuda_load(struct gr_cuda_driver *cu, const char *library, bool *broken)
{
    const char *missing = NULL;
    int version = 0;
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    *broken = handle != NULL;
    if (!handle)
        return gr_fail(GR_E_DEVICE, "no CUDA driver (%s)", dlerror());
        /* POSIX lets the object pointer that dlsym returns be stored this way */
#define FN(name, symbol, params)                                                                   \
    *(void **)(void *)&cu->name = dlsym(handle, #symbol);                                          \
    if (!cu->name && !missing)                                                                     \
        missing = #symbol;
#include "cuda/driver.def"
#undef FN
    int result = missing ? CU_OK : cu->driver_version(&version);
    if (result)
        return unusable(cu, GR_CU_driver_version, result);
    return missing || version < GR_CUDA_NEEDED ? too_old(cu, library, missing) : 0;
}

static int start(struct gr_cuda_state *s)
{
    int rc = gr_cuda_load(&s->cu, gr_cuda_build.library, &s->broken);
    if (s->cu.driver_version && s->cu.driver_version(&s->version))
        s->version = 0;
    if (rc)
        return rc;
    enum gr_cuda_call call = GR_CU_init;
    int result = s->cu.init(0);
    if (result == CU_OK) {
        call = GR_CU_device_count;
        result = s->cu.device_count(&s->n_device);
    }
    s->broken = result != CU_OK && result != CU_NO_DEVICE;
    if (s->broken)
        return unusable(&s->cu, call, result);
    if (s->n_device == 0)
        return gr_fail(GR_E_DEVICE, "the CUDA driver finds no device");
    s->broken = gr_cuda_build.n_image == 0;
    if (s->broken)
        return gr_fail(GR_E_DEVICE,
                       "this build has no GPU kernels: build it with nvcc (-DGPURUN_CUDA=ON) to "
                       "use the %d device%s of this machine",
                       s->n_device, s->n_device == 1 ? "" : "s");
    rc = gr_cuda_check_toolkit(s->version, gr_cuda_build.toolkit);
    s->broken = rc != 0;
    return rc;
}

static struct gr_cuda_state state;

static void start_once(void)
{
    if (start(&state)) {
        state.n_device = 0;
        (void)snprintf(state.why, sizeof state.why, "%s", gr_error());
    }
}

const struct gr_cuda_state *gr_cuda_state(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_once);
    return &state;
}

int gr_cuda_said(const struct gr_cuda_driver *cu, const char *object, enum gr_cuda_call call,
                 int result)
{
    const char *name = NULL, *text = NULL;
    if (result == CU_OK)
        return 0;
    (void)cu->error_name(result, &name);
    (void)cu->error_string(result, &text);
    int status = result != CU_OUT_OF_MEMORY ? GR_E_DEVICE
                 : call == GR_CU_host_alloc ? GR_E_NOMEM_HOST
                                            : GR_E_NOMEM_DEV;
    return gr_fail(status, "%s: %s failed with %s (%s)", object, symbol[call],
                   name ? name : "an unknown error", text ? text : "no text");
}
