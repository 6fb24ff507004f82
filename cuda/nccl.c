#include "cuda/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cuda/build.h"
#include "gr/status.h"

static const struct {
    const char *name;
    int since;
} symbol[GR_N_NCCL] = {
#define FN(type, name, symbol, since, params) {#symbol, since},
#include "cuda/nccl.def"
#undef FN
};

/* Versions in ncclGetVersion's form since 2.9: 22809 is 2.28.9. */
static void print_version(char *buf, size_t n, int version)
{
    (void)snprintf(buf, n, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static int too_old(const char *library, int version)
{
    char is[32], needed[32];
    print_version(is, sizeof is, version);
    print_version(needed, sizeof needed, GR_NCCL_NEEDED);
    return gr_fail(GR_E_UNSUPPORTED, "NCCL (%s) is too old: it is %s, and %s or newer is needed",
                   library, is, needed);
}

int gr_nccl_load(struct gr_nccl *nccl, const char *library, int *version)
{
    const char *missing = NULL;
    *version = 0;
    if (!library || !*library)
        return gr_fail(GR_E_UNSUPPORTED, "this build does without NCCL (GPURUN_NCCL=OFF)");
    /* Environment of NCCL: messages of a step are small, and over a network NCCL uses its protocol
     * for these only when it is told so before it starts. */
    (void)setenv("NCCL_ALLOC_P2P_NET_LL_BUFFERS", "1", 0);
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return gr_fail(GR_E_UNSUPPORTED, "no NCCL (%s)", dlerror());
        /* POSIX lets the object pointer that dlsym returns be stored this way */
#define FN(type, name, symbol, since, params)                                                      \
    *(void **)(void *)&nccl->name = dlsym(handle, #symbol);                                        \
    if (!nccl->name && !missing && (since) <= GR_NCCL_NEEDED)                                      \
        missing = #symbol;
#include "cuda/nccl.def"
#undef FN
    if (!nccl->version || nccl->version(version))
        return gr_fail(GR_E_UNSUPPORTED, "%s is no NCCL: it does not say its version", library);
    if (*version < GR_NCCL_NEEDED)
        return too_old(library, *version);
    return missing
               ? gr_fail(GR_E_UNSUPPORTED, "%s is no whole NCCL: it has no %s", library, missing)
               : 0;
}

static struct gr_nccl_state state;

static void start_once(void)
{
    char text[32];
    int version;
    if (gr_nccl_load(&state.nccl, gr_cuda_build.nccl, &version)) {
        (void)snprintf(state.what, sizeof state.what, "%s", gr_error());
        return;
    }
    print_version(text, sizeof text, version);
    (void)snprintf(state.what, sizeof state.what, "NCCL %s", text);
    state.version = version;
}

const struct gr_nccl_state *gr_nccl_state(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_once);
    return &state;
}

/* maxCTAs: a boundary's messages need no more blocks, and those are taken from the kernels. */
struct nccl_config gr_nccl_config(int version, const char *name)
{
    struct nccl_config c = {.size = sizeof c,
                            .magic = NCCL_CONFIG_MAGIC,
                            .version = 22700,
                            .blocking = 0,
                            .cga_cluster_size = NCCL_UNSET,
                            .min_ctas = 1,
                            .max_ctas = 4,
                            .split_share = 0,
                            .traffic_class = NCCL_UNSET,
                            .comm_name = name,
                            .collnet_enable = NCCL_UNSET,
                            .cta_policy = NCCL_UNSET,
                            .shrink_share = NCCL_UNSET,
                            .nvls_ctas = NCCL_UNSET};
    if (version < 22700) {
        c.size = offsetof(struct nccl_config, comm_name);
        c.version = 21700;
    }
    return c;
}

/* Advice on an error of NCCL. */
static const char *remedy(int result, const char *text)
{
    if (strstr(text, "Duplicate GPU"))
        return "; two ranks were given one GPU: give each rank a GPU of its own (--device, "
               "CUDA_VISIBLE_DEVICES); to try processes on one GPU all the same, give each another "
               "NCCL_HOSTID";
    switch (result) {
    case NCCL_UNHANDLED_CUDA:
        return "; NCCL could not use the GPU: see what nvidia-smi says, and NCCL_DEBUG=WARN what "
               "NCCL does";
    case NCCL_SYSTEM:
    case NCCL_INVALID_USAGE:
        return "; NCCL_DEBUG=WARN says more; NCCL_SOCKET_IFNAME names the network interface";
    case NCCL_REMOTE:
        return "; another rank or the network to it has failed";
    default:
        return "; NCCL_DEBUG=WARN says more";
    }
}

int gr_nccl_said(const struct gr_nccl *nccl, nccl_comm comm, const char *object,
                 enum gr_nccl_call call, int result)
{
    char last[512] = "";
    if (result == NCCL_OK || result == NCCL_IN_PROGRESS)
        return 0;
    const char *text = nccl->error_string(result), *more = nccl->last_error(comm);
    if (more)
        (void)snprintf(last, sizeof last, "%s", more);
    for (size_t n = strlen(last); n && (last[n - 1] == '\n' || last[n - 1] == ' '); n--)
        last[n - 1] = '\0';
    for (char *p; (p = strchr(last, '\n'));)
        *p = ' ';
    return gr_fail(result == NCCL_REMOTE ? GR_E_PEER_LOST : GR_E_DEVICE, "%s: %s: %s%s%s%s", object,
                   symbol[call].name, text ? text : "an unknown error", *last ? ": " : "", last,
                   remedy(result, last));
}
