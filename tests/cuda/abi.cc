// Our declarations of the driver's binary interface against <cuda.h>: nothing here runs.
#define CU_STREAM_NON_BLOCKING OWN_STREAM_NON_BLOCKING
#include "cuda/driver.h"
#undef CU_STREAM_NON_BLOCKING

#include <cuda.h>
#include <cudaProfiler.h>

#include <cstddef>
#include <type_traits>

namespace
{
// Two types that are passed alike: pointers, or numbers of the same size.
template <class A, class B>
constexpr bool same_type = std::is_pointer<A>::value == std::is_pointer<B>::value &&
                           sizeof(A) == sizeof(B);

// Two functions that are called alike.
template <class F, class G> struct same_call {
    static constexpr bool value = false;
};
template <class R, class S, class... A, class... B> struct same_call<R (*)(A...), S (*)(B...)> {
    template <bool lengths, class dummy> struct all {
        static constexpr bool value = false;
    };
    template <class dummy> struct all<true, dummy> {
        static constexpr bool value = (same_type<A, B> && ...);
    };
    static constexpr bool value =
        sizeof(R) == sizeof(S) && all<sizeof...(A) == sizeof...(B), void>::value;
};
} // namespace

#define FN(name, symbol, params)                                                                   \
    static_assert(same_call<decltype(gr_cuda_driver::name), decltype(&::symbol)>::value, #symbol);
#include "cuda/driver.def"
#undef FN

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(CU_OK, CUDA_SUCCESS);
SAME(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME(CU_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME(CU_UNKNOWN, CUDA_ERROR_UNKNOWN);
SAME(CU_ATTR_MAX_SMEM, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(CU_ATTR_N_SM, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_ATTR_CLOCK_KHZ, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME(CU_ATTR_MEMORY_KHZ, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(CU_ATTR_MEMORY_BITS, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(CU_ATTR_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(CU_ATTR_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_ATTR_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_FUNC_MAX_DYNAMIC_SMEM, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(OWN_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);

#define SAME_FIELD(ours, field)                                                                    \
    static_assert(offsetof(cu_launch, ours) == offsetof(CUlaunchConfig, field), #field)
SAME_FIELD(grid, gridDimX);
SAME_FIELD(block, blockDimX);
SAME_FIELD(smem, sharedMemBytes);
SAME_FIELD(stream, hStream);
SAME_FIELD(attribute, attrs);
SAME_FIELD(n_attribute, numAttrs);
static_assert(sizeof(cu_launch) == sizeof(CUlaunchConfig), "CUlaunchConfig");
static_assert(sizeof(cu_launch_attribute) == sizeof(CUlaunchAttribute), "CUlaunchAttribute");
static_assert(offsetof(cu_launch_attribute, value) == offsetof(CUlaunchAttribute, value), "value");
