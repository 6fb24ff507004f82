// Whether cuda/nccl.h and nccl.def say what <nccl.h> says: every entry point's parameters, the
// configuration by offset, enumerations by value. All of that when this is compiled.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "cuda/nccl.h"

// Types that stand for one another though their names differ.
template <class Ours, class Theirs> struct stands_for : std::is_same<Ours, Theirs> {
};
#define STANDS_FOR(ours, theirs)                                                                   \
    template <> struct stands_for<ours, theirs> : std::true_type {                                 \
    };
STANDS_FOR(nccl_comm_st, ncclComm)
STANDS_FOR(cu_stream_st, CUstream_st)
STANDS_FOR(nccl_id, ncclUniqueId)
STANDS_FOR(nccl_config, ncclConfig_t)
STANDS_FOR(int, ncclResult_t)

// Passed the same way: enumerations as integers, pointers to what is the same.
template <class Ours, class Theirs> constexpr bool same()
{
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
        using O = std::remove_pointer_t<Ours>;
        using T = std::remove_pointer_t<Theirs>;
        return std::is_const_v<O> == std::is_const_v<T> &&
               same<std::remove_const_t<O>, std::remove_const_t<T>>();
    } else if constexpr (std::is_integral_v<Ours> && std::is_enum_v<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs);
    } else {
        return stands_for<Ours, Theirs>::value;
    }
}

template <class Ours, class Theirs> struct same_call : std::false_type {
};
template <class R, class... P, class S, class... Q>
struct same_call<R(P...), S(Q...)>
    : std::bool_constant<same<R, S>() && std::conjunction_v<std::bool_constant<same<P, Q>()>...>> {
};

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
