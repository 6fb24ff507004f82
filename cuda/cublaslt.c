#include "cuda/cublaslt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cuda/build.h"
#include "gr/status.h"

static const char *const symbol[GR_N_CUBLASLT] = {
#define FN(type, name, symbol, params) #symbol,
#include "cuda/cublaslt.def"
#undef FN
};

static void print_version(char *buf, size_t n, int version)
{
    (void)snprintf(buf, n, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* The first library that is there; NULL with a message. */
static void *open_first(const char *libraries)
{
    char name[256], first[256] = "";
    for (const char *at = libraries; *at;) {
        size_t n = strcspn(at, " ");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, at);
        void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (handle)
            return handle;
        if (!*first)
            (void)snprintf(first, sizeof first, "%s", dlerror());
        at += n + (at[n] == ' ');
    }
    (void)gr_fail(GR_E_UNSUPPORTED, "no cuBLASLt (%s); it is part of the CUDA toolkit (libcublas)",
                  first);
    return NULL;
}

int gr_cublaslt_load(struct gr_cublaslt *lt, const char *libraries, int *version)
{
    const char *missing = NULL;
    *version = 0;
    void *handle = open_first(libraries ? libraries : "");
    if (!handle)
        return GR_E_UNSUPPORTED;
        /* POSIX lets the object pointer that dlsym returns be stored this way */
#define FN(type, name, symbol, params)                                                             \
    *(void **)(void *)&lt->name = dlsym(handle, #symbol);                                          \
    if (!lt->name && !missing)                                                                     \
        missing = #symbol;
#include "cuda/cublaslt.def"
#undef FN
    if (missing)
        return gr_fail(GR_E_UNSUPPORTED, "%s is no whole cuBLASLt: it has no %s", libraries,
                       missing);
    int found = (int)lt->version();
    if (found < GR_CUBLASLT_NEEDED) {
        char is[32], needed[32];
        print_version(is, sizeof is, found);
        print_version(needed, sizeof needed, GR_CUBLASLT_NEEDED);
        return gr_fail(GR_E_UNSUPPORTED, "cuBLASLt is too old: it is %s, and %s or newer is needed",
                       is, needed);
    }
    *version = found;
    return 0;
}

static struct gr_cublaslt_state state;

static void start_once(void)
{
    char text[32];
    int version;
    if (gr_cublaslt_load(&state.lt, gr_cuda_build.cublaslt, &version)) {
        (void)snprintf(state.what, sizeof state.what, "%s", gr_error());
        return;
    }
    print_version(text, sizeof text, version);
    (void)snprintf(state.what, sizeof state.what, "cuBLASLt %s", text);
    state.version = version;
}

const struct gr_cublaslt_state *gr_cublaslt_state(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_once);
    return &state;
}

int gr_cublaslt_said(const struct gr_cublaslt *lt, const char *object, enum gr_cublaslt_call call,
                     int status)
{
    if (status == CUBLASLT_OK)
        return 0;
    const char *text = lt->status_text(status);
    int code = status == CUBLASLT_ALLOC_FAILED ? GR_E_NOMEM_HOST
               : status == CUBLASLT_NOT_SUPPORTED || status == CUBLASLT_INVALID_VALUE
                   ? GR_E_UNSUPPORTED
                   : GR_E_DEVICE;
    return gr_fail(code, "%s: %s: %s; --matmul own does without cuBLASLt", object, symbol[call],
                   text ? text : "an unknown error");
}
