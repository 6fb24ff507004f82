// Compares cuda/cublaslt.h and cublaslt.def with <cublasLt.h>: every entry point's parameters, the
// structures by offset, enumerations by value. All of that at compile time.
#include <cublasLt.h>

#include <cstddef>
#include <type_traits>

#include "cuda/cublaslt.h"
#include "tests/cuda/same_call.hpp"

STANDS_FOR(cublaslt_handle_st, cublasLtContext)
STANDS_FOR(cublaslt_desc_st, cublasLtMatmulDescOpaque_t)
STANDS_FOR(cublaslt_layout_st, cublasLtMatrixLayoutOpaque_t)
STANDS_FOR(cublaslt_preference_st, cublasLtMatmulPreferenceOpaque_t)
STANDS_FOR(cublaslt_algo, cublasLtMatmulAlgo_t)
STANDS_FOR(cublaslt_choice, cublasLtMatmulHeuristicResult_t)
STANDS_FOR(cu_stream_st, CUstream_st)
STANDS_FOR(int, cublasStatus_t)

#define FN(type, name, symbol, params)                                                             \
    static_assert(same_call<type params, decltype(::symbol)>::value,                               \
                  #symbol " has other parameters");
#include "cuda/cublaslt.def"
#undef FN

#define VALUE(ours, theirs) static_assert((int)ours == (int)theirs, #ours " has another value");
VALUE(CUBLASLT_OK, CUBLAS_STATUS_SUCCESS)
VALUE(CUBLASLT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED)
VALUE(CUBLASLT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED)
VALUE(CUBLASLT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE)
VALUE(CUBLASLT_EXECUTION_FAILED, CUBLAS_STATUS_EXECUTION_FAILED)
VALUE(CUBLASLT_INTERNAL, CUBLAS_STATUS_INTERNAL_ERROR)
VALUE(CUBLASLT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED)
VALUE(CUBLASLT_COMPUTE_F32, CUBLAS_COMPUTE_32F)
VALUE(CUBLASLT_F32, CUDA_R_32F)
VALUE(CUBLASLT_F16, CUDA_R_16F)
VALUE(CUBLASLT_BF16, CUDA_R_16BF)
VALUE(CUBLASLT_DESC_TRANS_A, CUBLASLT_MATMUL_DESC_TRANSA)
VALUE(CUBLASLT_DESC_TRANS_B, CUBLASLT_MATMUL_DESC_TRANSB)
VALUE(CUBLASLT_OP_N, CUBLAS_OP_N)
VALUE(CUBLASLT_OP_T, CUBLAS_OP_T)
VALUE(CUBLASLT_REDUCE_IN_PLACE, CUBLASLT_REDUCTION_SCHEME_INPLACE)
VALUE(CUBLASLT_REDUCE_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
VALUE(CUBLASLT_PREFER_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
VALUE(CUBLASLT_PREFER_REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
VALUE(CUBLASLT_PREFER_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
VALUE(CUBLASLT_PREFER_ALIGN_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)
VALUE(CUBLASLT_PREFER_ALIGN_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)
VALUE(CUBLASLT_PREFER_ALIGN_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)

#define OFFSET(ours, theirs)                                                                       \
    static_assert(offsetof(cublaslt_choice, ours) ==                                               \
                      offsetof(cublasLtMatmulHeuristicResult_t, theirs),                           \
                  #theirs " lies elsewhere");
OFFSET(algo, algo)
OFFSET(workspace_bytes, workspaceSize)
OFFSET(state, state)
OFFSET(waves, wavesCount)
static_assert(sizeof(cublaslt_algo) == sizeof(cublasLtMatmulAlgo_t), "another size");
static_assert(sizeof(cublaslt_choice) == sizeof(cublasLtMatmulHeuristicResult_t), "another size");

int main()
{
}
