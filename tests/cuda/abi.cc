// Compares cuda/driver.h and driver.def with <cuda.h>: every entry point's parameters one by one,
// structs by size and offset, enumerations by value. All of that at compile time; at run time it
// checks that the library given (a stub of the toolkit, or a driver) has every symbol.
#define __CUDA_API_VERSION_INTERNAL // declares every version, and no name stands for another
#include <cuda.h>
#include <cudaProfiler.h>

#include <cstddef>
#include <cstdio>
#include <dlfcn.h>
#include <type_traits>

// a name that both have
#define CU_STREAM_NON_BLOCKING OUR_STREAM_NON_BLOCKING
#include "cuda/driver.h"
#undef CU_STREAM_NON_BLOCKING
#include "tests/cuda/same_call.hpp"

STANDS_FOR(cu_context_st, CUctx_st)
STANDS_FOR(cu_module_st, CUmod_st)
STANDS_FOR(cu_function_st, CUfunc_st)
STANDS_FOR(cu_stream_st, CUstream_st)
STANDS_FOR(cu_event_st, CUevent_st)
STANDS_FOR(cu_graph_st, CUgraph_st)
STANDS_FOR(cu_graph_exec_st, CUgraphExec_st)
STANDS_FOR(cu_launch, CUlaunchConfig)
STANDS_FOR(void, CUtensorMap)
STANDS_FOR(uint64_t, unsigned long long)

#define FN(name, symbol, params)                                                                   \
    static_assert(same_call<int params, decltype(::symbol)>::value,                                \
                  #symbol " has other parameters");
#include "cuda/driver.def"
#undef FN

// --- values ---

#define VALUE(ours, theirs) static_assert((int)ours == (int)theirs, #ours " has another value");
VALUE(CU_OK, CUDA_SUCCESS)
VALUE(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE)
VALUE(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)
VALUE(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE)
VALUE(CU_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE)
VALUE(CU_INVALID_PTX, CUDA_ERROR_INVALID_PTX)
VALUE(CU_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
VALUE(CU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU)
VALUE(CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND)
VALUE(CU_NOT_READY, CUDA_ERROR_NOT_READY)
VALUE(CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS)
VALUE(CU_PEER_ACCESS_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
VALUE(CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED)
VALUE(CU_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
VALUE(CU_UNKNOWN, CUDA_ERROR_UNKNOWN)
VALUE(CU_ATTR_MAX_SMEM, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
VALUE(CU_ATTR_SM_SMEM, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)
VALUE(CU_ATTR_RESERVED_SMEM, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)
VALUE(CU_ATTR_N_SM, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
VALUE(CU_ATTR_CLOCK_KHZ, CU_DEVICE_ATTRIBUTE_CLOCK_RATE)
VALUE(CU_ATTR_MEMORY_KHZ, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
VALUE(CU_ATTR_MEMORY_BITS, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
VALUE(CU_ATTR_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
VALUE(CU_ATTR_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
VALUE(CU_ATTR_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
VALUE(CU_FUNC_STATIC_SMEM, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
VALUE(CU_FUNC_PTX_VERSION, CU_FUNC_ATTRIBUTE_PTX_VERSION)
VALUE(CU_LAUNCH_PROGRAMMATIC, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
VALUE(CU_FUNC_MAX_DYNAMIC_SMEM, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
VALUE(OUR_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
VALUE(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING)
VALUE(CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
// the emulated driver's names of errors
#define ERROR(number, name, text) VALUE(number, name)
#include "tests/emu/libcuda_errors.def"
#undef ERROR

// --- structs ---

#define OFFSET(ours, field, theirs, real)                                                          \
    static_assert(offsetof(ours, field) == offsetof(theirs, real), #field " lies elsewhere");
static_assert(sizeof(cu_launch) == sizeof(CUlaunchConfig), "CUlaunchConfig has another size");
OFFSET(cu_launch, grid, CUlaunchConfig, gridDimX)
OFFSET(cu_launch, grid[2], CUlaunchConfig, gridDimZ)
OFFSET(cu_launch, block, CUlaunchConfig, blockDimX)
OFFSET(cu_launch, block[2], CUlaunchConfig, blockDimZ)
OFFSET(cu_launch, smem, CUlaunchConfig, sharedMemBytes)
OFFSET(cu_launch, stream, CUlaunchConfig, hStream)
OFFSET(cu_launch, attribute, CUlaunchConfig, attrs)
OFFSET(cu_launch, n_attribute, CUlaunchConfig, numAttrs)
static_assert(sizeof(cu_launch_attribute) == sizeof(CUlaunchAttribute), "another size");
OFFSET(cu_launch_attribute, id, CUlaunchAttribute, id)
OFFSET(cu_launch_attribute, value, CUlaunchAttribute, value)
static_assert(sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) >= 64, "another tensor map");

int main(int argc, char **argv)
{
    static const char *const symbols[] = {
#define FN(name, symbol, params) #symbol,
#include "cuda/driver.def"
#undef FN
    };
    void *library = argc == 2 ? dlopen(argv[1], RTLD_LAZY) : nullptr;
    if (!library) {
        printf("skipped: no driver's library to look at (%s)\n",
               argc == 2 ? dlerror() : "none given");
        return 0;
    }
    int n_missing = 0;
    for (const char *s : symbols)
        if (!dlsym(library, s)) {
            printf("%s: %s is not there\n", argv[1], s);
            n_missing++;
        }
    return n_missing != 0;
}
