#include "cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cuda/build.h"
#include "gr/backend.h"
#include "gr/status.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the table */
static struct gr_cuda_device table[GR_CUDA_MAX_DEVICES];
static struct gr_cuda_device *looked_at; /* its context is kept by info; NULL: none is */

/* ---- what a build runs on ---- */

/* sm_XY runs on devices of the same major version that are not older; sm_XYa on exactly that one;
 * PTX of compute_XY is compiled by the driver for anything not older. CUDA C++ Programming Guide,
 * "Compute capabilities". */
bool gr_cuda_runs(const char *archs, int cc)
{
    for (const char *p = archs; (p = strchr(p, '_')); p++) {
        bool ptx = p - archs >= 7 && strncmp(p - 7, "compute", 7) == 0;
        char *end;
        int of = (int)strtol(p + 1, &end, 10);
        bool alone = *end == 'a';
        if (alone ? cc == of : cc >= of && (ptx || cc / 10 == of / 10))
            return true;
    }
    return false;
}

/* ---- facts ---- */

static int attribute(const struct gr_cuda_device *d, int which, int *value)
{
    return CU(d, device_attribute, value, which, d->handle);
}

static int read_facts(struct gr_cuda_device *d)
{
    int rc, major = 0, minor = 0, l2 = 0;
    if ((rc = attribute(d, CU_ATTR_CC_MAJOR, &major)) ||
        (rc = attribute(d, CU_ATTR_CC_MINOR, &minor)) ||
        (rc = attribute(d, CU_ATTR_N_SM, &d->facts.n_sm)) ||
        (rc = attribute(d, CU_ATTR_MAX_SMEM, &d->facts.smem_max)) ||
        (rc = attribute(d, CU_ATTR_SM_SMEM, &d->facts.smem_sm)) ||
        (rc = attribute(d, CU_ATTR_RESERVED_SMEM, &d->facts.smem_reserved)) ||
        (rc = attribute(d, CU_ATTR_CLUSTERS, &d->facts.clusters)) ||
        (rc = attribute(d, CU_ATTR_L2_BYTES, &l2)))
        return rc;
    d->facts.cc = major * 10 + minor;
    d->facts.l2_bytes = l2;
    return 0;
}

/* Reads the name, handle and facts of device i. */
static int describe(struct gr_cuda_device *d, int i)
{
    d->cu = &gr_cuda_state()->cu;
    (void)snprintf(d->name, sizeof d->name, "%s%d", gr_cuda_kind, i);
    int rc = CU(d, device_get, &d->handle, i);
    return rc ? rc : read_facts(d);
}

/* The kernels use instructions of 8.0 (cp.async, bf16), so nothing older can be built for. */
static int check_runs(const struct gr_cuda_device *d)
{
    int cc = d->facts.cc;
    if (gr_cuda_runs(gr_cuda_build.archs, cc))
        return 0;
    if (cc < 80)
        return gr_fail(GR_E_DEVICE, "%s: compute capability 8.0 or newer is needed, it has %d.%d",
                       d->name, cc / 10, cc % 10);
    return gr_fail(GR_E_DEVICE,
                   "%s: it has compute capability %d.%d, and this build has code for %s: build it "
                   "with -DGPURUN_CUDA_ARCHS=%d",
                   d->name, cc / 10, cc % 10, gr_cuda_build.archs, cc);
}

/* ---- contexts ---- */

int gr_cuda_visit(struct gr_cuda_visit *v, const struct gr_cuda_device *d)
{
    int rc = CU(d, context_get, &v->outside);
    if (rc || v->outside == d->context)
        return rc;
    rc = CU(d, context_set, d->context);
    v->cu = rc ? NULL : d->cu;
    return rc;
}

void gr_cuda_visit_end(struct gr_cuda_visit *v)
{
    if (v->cu)
        (void)v->cu->context_set(v->outside);
}

static int acquire(struct gr_cuda_device *d, int i)
{
    int rc;
    if (d->n_user == 0) {
        if ((rc = describe(d, i)) || (rc = check_runs(d)))
            return rc;
        d->image = gr_calloc((size_t)gr_cuda_build.n_image, sizeof *d->image);
        if (!d->image)
            return GR_E_NOMEM_HOST;
        rc = CU(d, context_retain, &d->context, d->handle);
        if (rc) {
            gr_free(d->image);
            d->image = NULL;
            return rc;
        }
        pthread_mutex_init(&d->lock, NULL);
    }
    d->n_user++;
    return 0;
}

/* Unloads all modules. Errors do not matter: a lost context fails every call and is freed whole. */
static void unload(struct gr_cuda_device *d)
{
    GR_CUDA_VISIT(v);
    (void)gr_cuda_visit(&v, d);
    for (int i = 0; i < gr_cuda_build.n_image; i++) {
        if (d->image[i].module)
            (void)d->cu->module_unload(d->image[i].module);
        gr_vec_fini(&d->image[i].kernel);
    }
}

static void release(struct gr_cuda_device *d)
{
    if (--d->n_user > 0)
        return;
    unload(d);
    (void)d->cu->context_release(d->handle);
    gr_free(d->image);
    gr_arena_fini(&d->arena);
    pthread_mutex_destroy(&d->lock);
    *d = (struct gr_cuda_device){0};
}

static int check_index(int i)
{
    const struct gr_cuda_state *s = gr_cuda_state();
    if (s->n_device == 0)
        return gr_fail(GR_E_DEVICE, "%s", s->why);
    if (i < 0 || i >= GR_MIN(s->n_device, GR_CUDA_MAX_DEVICES))
        return gr_fail(GR_E_INVALID, "there is no device %s%d: the last one is %s%d", gr_cuda_kind,
                       i, gr_cuda_kind, GR_MIN(s->n_device, GR_CUDA_MAX_DEVICES) - 1);
    return 0;
}

int gr_cuda_acquire(struct gr_cuda_device **out, int i)
{
    *out = NULL;
    int rc = check_index(i);
    if (rc)
        return rc;
    pthread_mutex_lock(&lock);
    struct gr_cuda_device *d = &table[i];
    rc = acquire(d, i);
    pthread_mutex_unlock(&lock);
    *out = rc ? NULL : d;
    return rc;
}

struct gr_cuda_device *gr_cuda_hold(struct gr_cuda_device *d)
{
    pthread_mutex_lock(&lock);
    d->n_user++;
    pthread_mutex_unlock(&lock);
    return d;
}

void gr_cuda_release(struct gr_cuda_device **d)
{
    if (!*d)
        return;
    pthread_mutex_lock(&lock);
    release(*d);
    pthread_mutex_unlock(&lock);
    *d = NULL;
}

/* Keeps the context of the last device asked for: making one takes longer than the rest of opening
 * a device, and a caller that asks for free memory is likely to open the device next. */
static void keep(struct gr_cuda_device *d)
{
    pthread_mutex_lock(&lock);
    if (d->n_user > 1) { /* open, or kept already */
        release(d);
    } else {
        if (looked_at)
            release(looked_at);
        looked_at = d;
    }
    pthread_mutex_unlock(&lock);
}

void gr_cuda_take_over(struct gr_cuda_device *d)
{
    pthread_mutex_lock(&lock);
    if (looked_at == d) {
        looked_at = NULL;
        release(d);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- kernels ---- */

/* The image whose name is the longest that fits behind "gr_"; -1 when none does. */
static int find_image(const char *kernel)
{
    int best = -1;
    size_t length = 0;
    for (int i = 0; i < gr_cuda_build.n_image; i++) {
        size_t n = strlen(gr_cuda_build.image[i].name);
        if (strncmp(kernel, "gr_", 3) == 0 && n > length &&
            strncmp(kernel + 3, gr_cuda_build.image[i].name, n) == 0 &&
            (kernel[3 + n] == '_' || kernel[3 + n] == '\0'))
            best = i, length = n;
    }
    return best;
}

/* An error for code made by a toolkit that is newer than the driver. */
static int too_new(const struct gr_cuda_device *d, const char *image, int result)
{
    const char *name = NULL;
    int driver = gr_cuda_state()->version, toolkit = gr_cuda_build.toolkit;
    (void)d->cu->error_name(result, &name);
    return gr_fail(GR_E_DEVICE,
                   "%s: the kernels of %s.cu, made by nvcc %d.%d, cannot be loaded by the driver, "
                   "which is of CUDA %d.%d (%s): update the NVIDIA driver, or build gpurun with an "
                   "nvcc that is no newer, and for this device (-DGPURUN_CUDA_ARCHS)",
                   d->name, image, toolkit / 1000, toolkit % 1000 / 10, driver / 1000,
                   driver % 1000 / 10, name ? name : "an unknown error");
}

static int load_image(struct gr_cuda_device *d, int i)
{
    struct gr_cuda_image *image = &d->image[i];
    if (image->module || image->absent)
        return 0;
    int result = d->cu->module_load(&image->module, gr_cuda_build.image[i].data);
    image->absent = result == CU_NO_BINARY_FOR_GPU;
    switch (result) {
    case CU_NO_BINARY_FOR_GPU:
        return 0;
    case CU_INVALID_IMAGE:
    case CU_INVALID_PTX:
    case CU_UNSUPPORTED_PTX_VERSION:
        return too_new(d, gr_cuda_build.image[i].name, result);
    default:
        return gr_cuda_said(d->cu, d->name, GR_CU_module_load, result);
    }
}

/* Reads a kernel's attributes. `early`: code for 9.0 and later has the instruction that waits for
 * the launch in front (kernels/ptx.cuh); PTX of 8.0 has not, whatever device it is compiled for. */
static int read_kernel(const struct gr_cuda_device *d, struct gr_cuda_kernel *k)
{
    int fixed = 0, smem = 0, ptx = 0, driver = 0;
    int rc = CU(d, function_attribute, &fixed, CU_FUNC_STATIC_SMEM, k->function);
    if (!rc)
        rc = CU(d, function_attribute, &smem, CU_FUNC_MAX_DYNAMIC_SMEM, k->function);
    if (!rc)
        rc = CU(d, function_attribute, &ptx, CU_FUNC_PTX_VERSION, k->function);
    if (!rc)
        rc = CU(d, driver_version, &driver);
    k->fixed = (uint32_t)fixed;
    k->smem = (uint32_t)GR_MAX(0, GR_MIN(smem, CU_SMEM_UNASKED - fixed));
    k->early = ptx >= 90 && driver >= GR_CUDA_EARLY;
    return rc;
}

static int load_kernel(struct gr_cuda_device *d, struct gr_cuda_image *image, const char *name,
                       struct gr_cuda_kernel **out)
{
    cu_function function;
    int result = d->cu->module_function(&function, image->module, name);
    if (result == CU_NOT_FOUND)
        return 0;
    int rc = gr_cuda_said(d->cu, d->name, GR_CU_module_function, result);
    if (rc)
        return rc;
    struct gr_cuda_kernel *k = gr_arena_alloc(&d->arena, sizeof *k);
    if (!k || !(k->name = gr_arena_strndup(&d->arena, name, strlen(name))))
        return GR_E_NOMEM_HOST;
    k->function = function;
    if ((rc = read_kernel(d, k)))
        return rc;
    *out = k;
    return gr_vec_append(&image->kernel, out, 1, sizeof(struct gr_cuda_kernel *));
}

static int find_kernel(struct gr_cuda_device *d, int i, const char *name,
                       struct gr_cuda_kernel **out)
{
    int rc = load_image(d, i);
    if (rc || d->image[i].absent)
        return rc;
    struct gr_cuda_kernel **k = d->image[i].kernel.data;
    for (size_t j = 0; j < d->image[i].kernel.n; j++)
        if (strcmp(k[j]->name, name) == 0)
            return *out = k[j], 0;
    return load_kernel(d, &d->image[i], name, out);
}

static bool of_sm90(int image)
{
    static const char end[] = "_sm90";
    const char *name = gr_cuda_build.image[image].name;
    size_t n = strlen(name), m = sizeof end - 1;
    return n > m && !strcmp(name + n - m, end);
}

int gr_cuda_kernel(struct gr_cuda_device *d, const char *name, bool no_sm90,
                   struct gr_cuda_kernel **out)
{
    int image = find_image(name);
    *out = NULL;
    if (image < 0 || (no_sm90 && of_sm90(image)))
        return 0;
    pthread_mutex_lock(&d->lock);
    int rc = find_kernel(d, image, name, out);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

int gr_cuda_kernel_smem(struct gr_cuda_device *d, struct gr_cuda_kernel *k, uint32_t smem)
{
    int rc = 0;
    pthread_mutex_lock(&d->lock);
    if (smem > k->smem) {
        rc = CU(d, function_set, k->function, CU_FUNC_MAX_DYNAMIC_SMEM, (int)smem);
        if (!rc)
            k->smem = smem;
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

/* ---- facts about devices that need not be open ---- */

static int ask_free(const struct gr_cuda_device *d, size_t *bytes)
{
    size_t total = 0;
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_visit(&v, d);
    return rc ? rc : CU(d, mem_info, bytes, &total);
}

/* Reads free memory, which needs a context. */
static int read_free(int i, struct gr_device_info *info)
{
    struct gr_cuda_device *d;
    size_t bytes = 0;
    int rc = gr_cuda_acquire(&d, i);
    if (!rc)
        rc = ask_free(d, &bytes);
    info->free_bytes = bytes;
    if (rc)
        gr_cuda_release(&d);
    else
        keep(d);
    return rc;
}

static int read_info(struct gr_cuda_device *d, struct gr_device_info *info)
{
    size_t total = 0;
    int khz = 0, bits = 0, rc;
    if ((rc = CU(d, device_name, info->description, sizeof info->description, d->handle)) ||
        (rc = CU(d, device_bus_id, info->bus_id, sizeof info->bus_id, d->handle)) ||
        (rc = CU(d, device_total, &total, d->handle)) ||
        (rc = attribute(d, CU_ATTR_MEMORY_KHZ, &khz)) ||
        (rc = attribute(d, CU_ATTR_MEMORY_BITS, &bits)))
        return rc;
    info->total_bytes = total;
    info->cc = d->facts.cc;
    info->n_sm = d->facts.n_sm;
    info->bytes_per_s = (uint64_t)khz * 1000 * 2 * (uint64_t)bits / 8; /* double data rate */
    return 0;
}

int gr_cuda_device_info(int i, struct gr_device_info *info)
{
    static char unusable[GR_CUDA_MAX_DEVICES][256];
    struct gr_cuda_device d = {0};
    *info = (struct gr_device_info){0};
    int rc = check_index(i);
    if (rc || (rc = describe(&d, i)) || (rc = read_info(&d, info)))
        return rc;
    memcpy(info->name, d.name, sizeof info->name);
    if (check_runs(&d) || read_free(i, info)) {
        const char *why = gr_error(); /* begins with "CUDA0: ", which the caller knows */
        size_t n = strlen(d.name);
        pthread_mutex_lock(&lock);
        (void)snprintf(unusable[i], sizeof unusable[i], "%s",
                       strncmp(why, d.name, n) == 0 && why[n] == ':' ? why + n + 2 : why);
        pthread_mutex_unlock(&lock);
        info->unusable = unusable[i];
    }
    return 0;
}
