/* The CUDA driver API as one table of functions, opened at run time, so that the program starts on
 * any machine and needs no CUDA header; an emulated driver has the same symbols. Declarations are
 * our own, of the driver's binary interface (CUDA Driver API reference; 12.0 or newer is expected:
 * tensor maps and cuLaunchKernelEx). */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <stdbool.h>
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
       CU_INVALID_IMAGE = 200,
       CU_NO_BINARY_FOR_GPU = 209,
       CU_INVALID_PTX = 218,
       CU_UNSUPPORTED_PTX_VERSION = 222,
       CU_NOT_FOUND = 500,
       CU_NOT_READY = 600,
       CU_ILLEGAL_ADDRESS = 700,
       CU_PEER_ACCESS_ALREADY_ENABLED = 704,
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
       CU_ATTR_CC_MINOR = 76,
       CU_ATTR_SM_SMEM = 81,        /* a multiprocessor's */
       CU_ATTR_RESERVED_SMEM = 111, /* of each block, by the system */
       CU_ATTR_CLUSTERS = 120
};
enum {                          /* CUfunction_attribute */
       CU_FUNC_STATIC_SMEM = 1, /* bytes of __shared__ variables */
       CU_FUNC_PTX_VERSION = 5,
       CU_FUNC_MAX_DYNAMIC_SMEM = 8
};
#define CU_SMEM_UNASKED (48 << 10) /* bytes of any kernel, static and dynamic together */
enum { /* CUlaunchAttributeID: ..CLUSTER_DIMENSION, ..PROGRAMMATIC_STREAM_SERIALIZATION */
       CU_LAUNCH_CLUSTER = 4,
       CU_LAUNCH_PROGRAMMATIC = 6
};
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_NO_TIMING = 2, CU_CAPTURE_THREAD_LOCAL = 1 };

/* CUlaunchConfig with CUlaunchAttribute. */
struct cu_launch_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int value;
        unsigned cluster[3]; /* blocks */
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

/* The calls, for messages. */
enum gr_cuda_call {
#define FN(name, symbol, params) GR_CU_##name,
#include "cuda/driver.def"
#undef FN
    GR_N_CU
};

#define GR_CUDA_NEEDED 12000 /* 12.0, as cuDriverGetVersion counts */
#define GR_CUDA_EARLY 12030  /* graphs with launches that begin early */

/* Opens `library` (which stays open) and fills *cu. On failure the message is one line, and *broken
 * says whether there is a driver at all. */
int gr_cuda_load(struct gr_cuda_driver *cu, const char *library, bool *broken);

/* Version of the oldest driver that loads machine code and PTX of a toolkit's compiler (0: there is
 * no toolkit), which are those of a major version ("CUDA Compatibility"). And the NVIDIA driver
 * that CUDA of a version began with ("525"), "" when that is not known. */
int gr_cuda_needed(int toolkit);
const char *gr_cuda_driver_name(int version);
/* Checks that a driver of this version loads what that toolkit made: 0, or GR_E_DEVICE. */
int gr_cuda_check_toolkit(int driver, int toolkit);

/* The driver of this build (gr_cuda_build), loaded and asked for its devices once in a process, by
 * any thread. */
struct gr_cuda_state {
    struct gr_cuda_driver cu;
    int version; /* as cuDriverGetVersion counts, 0: not known */
    int n_device;
    bool broken;   /* without devices: something is there that does not work */
    char why[512]; /* without devices: one line */
};
const struct gr_cuda_state *gr_cuda_state(void);

/* 0 for a call that succeeded; otherwise its status, with the message "object: cuMemAlloc_v2 failed
 * with CUDA_ERROR_.. (text)". GR_E_DEVICE, or GR_E_NOMEM_DEV (GR_E_NOMEM_HOST for host memory). */
int gr_cuda_said(const struct gr_cuda_driver *cu, const char *object, enum gr_cuda_call call,
                 int result);

/* A call of x->cu, x->name being the object of a message. */
#define CU(x, call, ...) gr_cuda_said((x)->cu, (x)->name, GR_CU_##call, (x)->cu->call(__VA_ARGS__))

#ifdef __cplusplus
}
#endif
#endif
