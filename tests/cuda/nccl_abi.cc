// Compares cuda/nccl.h and nccl.def with <nccl.h>: every entry point's parameters, the
// configuration by offset, enumerations by value. All of that at compile time.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "cuda/nccl.h"
#include "tests/cuda/same_call.hpp"

STANDS_FOR(nccl_comm_st, ncclComm)
STANDS_FOR(cu_stream_st, CUstream_st)
STANDS_FOR(nccl_id, ncclUniqueId)
STANDS_FOR(nccl_config, ncclConfig_t)
STANDS_FOR(int, ncclResult_t)

#define FN(type, name, symbol, since, params)                                                      \
    static_assert(same_call<type params, decltype(::symbol)>::value,                               \
                  #symbol " has other parameters");
#include "cuda/nccl.def"
#undef FN

#define VALUE(ours, theirs) static_assert((int)ours == (int)theirs, #ours " has another value");
VALUE(NCCL_OK, ncclSuccess)
VALUE(NCCL_UNHANDLED_CUDA, ncclUnhandledCudaError)
VALUE(NCCL_SYSTEM, ncclSystemError)
VALUE(NCCL_INTERNAL, ncclInternalError)
VALUE(NCCL_INVALID_ARGUMENT, ncclInvalidArgument)
VALUE(NCCL_INVALID_USAGE, ncclInvalidUsage)
VALUE(NCCL_REMOTE, ncclRemoteError)
VALUE(NCCL_IN_PROGRESS, ncclInProgress)
VALUE(NCCL_BYTES, ncclUint8)
VALUE(NCCL_UNSET, NCCL_CONFIG_UNDEF_INT)
static_assert(sizeof(nccl_id) == sizeof(ncclUniqueId), "another size of ids");

#define OFFSET(ours, theirs)                                                                       \
    static_assert(offsetof(nccl_config, ours) == offsetof(ncclConfig_t, theirs),                   \
                  #theirs " lies elsewhere");
OFFSET(size, size)
OFFSET(magic, magic)
OFFSET(version, version)
OFFSET(blocking, blocking)
OFFSET(cga_cluster_size, cgaClusterSize)
OFFSET(min_ctas, minCTAs)
OFFSET(max_ctas, maxCTAs)
OFFSET(net_name, netName)
OFFSET(split_share, splitShare)
OFFSET(traffic_class, trafficClass)
OFFSET(comm_name, commName)
OFFSET(collnet_enable, collnetEnable)
OFFSET(cta_policy, CTAPolicy)
OFFSET(shrink_share, shrinkShare)
OFFSET(nvls_ctas, nvlsCTAs)

int main()
{
    const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    return theirs.magic != NCCL_CONFIG_MAGIC;
}
