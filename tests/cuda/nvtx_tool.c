/* A profiler, as NVTX loads one (NVTX_INJECTION64_PATH): writes down what it is told, a line each.
 */
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCuda.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static char log_text[16384];
static size_t log_length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *nvtx_tool_log(void)
{
    return log_text;
}

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&lock);
    int n = vsnprintf(log_text + log_length, sizeof log_text - log_length, format, args);
    if (n > 0 && log_length + (size_t)n < sizeof log_text)
        log_length += (size_t)n;
    pthread_mutex_unlock(&lock);
    va_end(args);
}

/* Names are their own handles. */
static nvtxDomainHandle_t domain_create(const char *name)
{
    return (nvtxDomainHandle_t)(void *)(uintptr_t)name;
}

static nvtxStringHandle_t register_string(nvtxDomainHandle_t domain, const char *text)
{
    (void)domain;
    return (nvtxStringHandle_t)(void *)(uintptr_t)text;
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    tell("push %s:%s %llu\n", (const char *)(void *)domain,
         (const char *)(void *)event->message.registered,
         (unsigned long long)event->payload.ullValue);
    return 0;
}

static int pop(nvtxDomainHandle_t domain)
{
    tell("pop %s\n", (const char *)(void *)domain);
    return 0;
}

static void name_thread(uint32_t id, const char *name)
{
    tell("thread %s%s\n", name, id ? "" : " without an id");
}

static void name_stream(CUstream stream, const char *name)
{
    tell("stream %s%s\n", name, stream ? "" : " without a stream");
}

static int put(const NvtxExportTableCallbacks *callbacks, NvtxCallbackModule module, uint32_t id,
               NvtxFunctionPointer function)
{
    NvtxFunctionTable table = NULL;
    unsigned n = 0;
    if (!callbacks->GetModuleFunctionTable(module, &table, &n) || id >= n)
        return 0;
    *table[id] = function;
    return 1;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
    const NvtxExportTableCallbacks *c = get(NVTX_ETID_CALLBACKS);
#define PUT(module, id, function)                                                                  \
    put(c, NVTX_CB_MODULE_##module, NVTX_CBID_##module##_##id, (NvtxFunctionPointer)function)
    return c && PUT(CORE2, DomainCreateA, domain_create) &&
           PUT(CORE2, DomainRegisterStringA, register_string) &&
           PUT(CORE2, DomainRangePushEx, push) && PUT(CORE2, DomainRangePop, pop) &&
           PUT(CORE, NameOsThreadA, name_thread) && PUT(CUDA, NameCuStreamA, name_stream);
#undef PUT
}
