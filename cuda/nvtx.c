#include "cuda/nvtx.h"

#ifdef GR_NVTX
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCuda.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Range names are fixed, so that a profiler's tables add them up; what differs is the payload. */
static const char *const range_name[GR_N_RANGE] = {
    [GR_RANGE_LOAD] = "load",
    [GR_RANGE_PREFILL] = "step/prefill",
    [GR_RANGE_DECODE] = "step/decode",
    [GR_RANGE_SAMPLE] = "sample",
    [GR_RANGE_KV] = "kv",
    [GR_RANGE_GRAPH] = "graph",
    [GR_RANGE_ATTN] = "layer/attn",
    [GR_RANGE_FFN] = "layer/ffn",
    [GR_RANGE_SEND] = "transport/send",
    [GR_RANGE_RECV] = "transport/recv",
    [GR_RANGE_EXCHANGE] = "transport/exchange",
};
static nvtxDomainHandle_t domain;
static nvtxStringHandle_t registered[GR_N_RANGE];

static void create_domain(void)
{
    domain = nvtxDomainCreateA("gpurun");
    for (int i = 0; i < GR_N_RANGE; i++)
        registered[i] = nvtxDomainRegisterStringA(domain, range_name[i]);
}

void gr_nvtx_begin(enum gr_range range, uint64_t payload)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    nvtxEventAttributes_t event = {.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
                                   .messageType = NVTX_MESSAGE_TYPE_REGISTERED};
    pthread_once(&once, create_domain);
    event.payload.ullValue = payload;
    event.message.registered = registered[range];
    (void)nvtxDomainRangePushEx(domain, &event);
}

void gr_nvtx_end(void)
{
    (void)nvtxDomainRangePop(domain);
}

void gr_nvtx_name_stream(void *stream, const char *name)
{
    nvtxNameCuStreamA(stream, name);
}

void gr_nvtx_name_thread(const char *name)
{
    nvtxNameOsThreadA((uint32_t)syscall(SYS_gettid), name);
}
#else
void gr_nvtx_begin(enum gr_range range, uint64_t payload)
{
    (void)range, (void)payload;
}

void gr_nvtx_end(void)
{
}

void gr_nvtx_name_stream(void *stream, const char *name)
{
    (void)stream, (void)name;
}

void gr_nvtx_name_thread(const char *name)
{
    (void)name;
}
#endif
