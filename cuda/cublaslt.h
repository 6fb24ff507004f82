/* cuBLASLt as one table of functions, opened at run time: nothing is linked, and a program starts
 * without it. The declarations follow its binary interface (cuBLAS's documentation, cublasLt.h
 * 13.1; the same since 12.0). Matrices are column-major there. */
#ifndef CUDA_CUBLASLT_H
#define CUDA_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/driver.h"

typedef struct cublaslt_handle_st *cublaslt_handle;
typedef struct cublaslt_desc_st *cublaslt_desc;
typedef struct cublaslt_layout_st *cublaslt_layout;
typedef struct cublaslt_preference_st *cublaslt_preference;

enum { /* cublasStatus_t */
       CUBLASLT_OK = 0,
       CUBLASLT_NOT_INITIALIZED = 1,
       CUBLASLT_ALLOC_FAILED = 3,
       CUBLASLT_INVALID_VALUE = 7,
       CUBLASLT_EXECUTION_FAILED = 13,
       CUBLASLT_INTERNAL = 14,
       CUBLASLT_NOT_SUPPORTED = 15
};
enum { CUBLASLT_COMPUTE_F32 = 68 };                                      /* cublasComputeType_t */
enum { CUBLASLT_F32 = 0, CUBLASLT_F16 = 2, CUBLASLT_BF16 = 14 };         /* cudaDataType */
enum { CUBLASLT_DESC_TRANS_A = 3, CUBLASLT_DESC_TRANS_B = 4 };           /* ..DescAttributes_t */
enum { CUBLASLT_OP_N = 0, CUBLASLT_OP_T = 1 };                           /* cublasOperation_t */
enum { CUBLASLT_REDUCE_IN_PLACE = 1, CUBLASLT_REDUCE_COMPUTE_TYPE = 2 }; /* ..ReductionScheme_t */
enum { /* cublasLtMatmulPreferenceAttributes_t */
       CUBLASLT_PREFER_WORKSPACE = 1,
       CUBLASLT_PREFER_REDUCTIONS = 3,
       CUBLASLT_PREFER_ALIGN_A = 5,
       CUBLASLT_PREFER_ALIGN_B = 6,
       CUBLASLT_PREFER_ALIGN_C = 7,
       CUBLASLT_PREFER_ALIGN_D = 8
};

struct cublaslt_algo {
    uint64_t data[8];
};

/* cublasLtMatmulHeuristicResult_t */
struct cublaslt_choice {
    struct cublaslt_algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

struct gr_cublaslt {
#define FN(type, name, symbol, params) type(*name) params;
#include "cuda/cublaslt.def"
#undef FN
};

enum gr_cublaslt_call {
#define FN(type, name, symbol, params) GR_CUBLASLT_##name,
#include "cuda/cublaslt.def"
#undef FN
    GR_N_CUBLASLT
};

#define GR_CUBLASLT_NEEDED 120000 /* 12.0, as the oldest driver is */

/* Opens the first of `libraries`, names with blanks between them, that is there (it stays open),
 * and fills *lt; *version as cuBLAS counts, 130100 is 13.1.0. On failure the message is one line.
 */
int gr_cublaslt_load(struct gr_cublaslt *lt, const char *libraries, int *version);

/* The library of this build (gr_cuda_build), loaded once in a process, by any thread. */
struct gr_cublaslt_state {
    struct gr_cublaslt lt;
    int version;    /* 0: it cannot be used */
    char what[512]; /* "cuBLASLt 13.1.0", or why not, in one line */
};
const struct gr_cublaslt_state *gr_cublaslt_state(void);

/* 0 for a call that succeeded; otherwise GR_E_NOMEM_HOST, GR_E_UNSUPPORTED or, when it may have
 * been the device, GR_E_DEVICE, with the message "object: cublasLtMatmul: text". */
int gr_cublaslt_said(const struct gr_cublaslt *lt, const char *object, enum gr_cublaslt_call call,
                     int status);

#endif
