/* The CUDA driver API as one table of functions, opened at run time, so that the program starts on
 * any machine and needs no CUDA header; an emulated driver has the same symbols. Declarations are
 * our own, of the driver's binary interface (CUDA Driver API reference; 12.0 or newer is expected:
 * tensor maps and cuLaunchKernelEx). */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int cu_device;
typedef struct cu_context_st *cu_context;
typedef struct cu_module_st *cu_module;
typedef struct cu_function_st *cu_function;
typedef struct cu_stream_st *cu_stream;
typedef struct cu_event_st *cu_event;
typedef struct cu_graph_st *cu_graph;
typedef struct cu_graph_exec_st *cu_graph_exec;
typedef unsigned long long cu_pointer;

enum { /* CUresult */
       CU_OK = 0,
       CU_INVALID_VALUE = 1,
       CU_OUT_OF_MEMORY = 2,
       CU_NO_DEVICE = 100,
       CU_NO_BINARY_FOR_GPU = 209,
       CU_NOT_FOUND = 500,
       CU_NOT_READY = 600,
       CU_ILLEGAL_ADDRESS = 700,
       CU_LAUNCH_FAILED = 719,
       CU_SYSTEM_DRIVER_MISMATCH = 803,
       CU_UNKNOWN = 999
};
enum {                        /* CUdevice_attribute */
       CU_ATTR_MAX_SMEM = 97, /* a block's, opted in */
       CU_ATTR_N_SM = 16,
       CU_ATTR_CLOCK_KHZ = 13,
       CU_ATTR_MEMORY_KHZ = 36,
       CU_ATTR_MEMORY_BITS = 37,
       CU_ATTR_L2_BYTES = 38,
       CU_ATTR_CC_MAJOR = 75,
       CU_ATTR_CC_MINOR = 76
};
enum { CU_FUNC_MAX_DYNAMIC_SMEM = 8 }; /* CUfunction_attribute */
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_NO_TIMING = 2, CU_CAPTURE_THREAD_LOCAL = 1 };

/* CUlaunchConfig with CUlaunchAttribute; one attribute at most is used here. */
struct cu_launch_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int value;
    } value;
};
struct cu_launch {
    unsigned grid[3], block[3], smem;
    cu_stream stream;
    struct cu_launch_attribute *attribute;
    unsigned n_attribute;
};

struct gr_cuda_driver {
#define FN(name, symbol, params) int(*name) params;
#include "cuda/driver.def"
#undef FN
};

#ifdef __cplusplus
}
#endif
#endif
