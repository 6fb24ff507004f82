/* Parameters of struct gr_session_params (gpurun.h documents them), in its order. Defaults, ranges,
 * the command that opens a session on other ranks and the keys of session files are generated from
 * this list. */
#ifndef GR_SESSION_PARAMS_H
#define GR_SESSION_PARAMS_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "gpurun.h"

/* PARAM(X, Y, KIND, name, default, lowest, highest, whether a session file sets it as a number). X,
 * Y: passed through. */
#define GR_SESSION_PARAMS(PARAM, X, Y)                                                             \
    PARAM(X, Y, U32, n_ctx, 0, 0, 1 << 26, true)                                                   \
    PARAM(X, Y, U32, n_batch, 2048, 1, UINT32_MAX, true)                                           \
    PARAM(X, Y, U32, n_ubatch, 512, 1, UINT32_MAX, true)                                           \
    PARAM(X, Y, U32, n_seq_max, 1, 1, 256, true)                                                   \
    PARAM(X, Y, BOOL, kv_unified, true, 0, 1, true)                                                \
    PARAM(X, Y, BOOL, swa_full, false, 0, 1, true)                                                 \
    PARAM(X, Y, U32, n_rollback, 0, 0, 4095, true)                                                 \
    PARAM(X, Y, I32, n_threads, 0, INT32_MIN, INT32_MAX, false)                                    \
    PARAM(X, Y, I32, n_threads_batch, 0, INT32_MIN, INT32_MAX, false)                              \
    PARAM(X, Y, TYPE, type_k, 0, 0, 0, false)                                                      \
    PARAM(X, Y, TYPE, type_v, 0, 0, 0, false)                                                      \
    PARAM(X, Y, ENUM, rope_scaling, GR_SCALING_MODEL, 0, GR_SCALING_LONGROPE, false)               \
    PARAM(X, Y, F32, rope_freq_base, 0, 0, FLT_MAX, true)                                          \
    PARAM(X, Y, F32, rope_freq_scale, 0, 0, FLT_MAX, true)                                         \
    PARAM(X, Y, F32, yarn_ext_factor, NAN, 0, FLT_MAX, true)                                       \
    PARAM(X, Y, F32, yarn_attn_factor, NAN, 0, FLT_MAX, true)                                      \
    PARAM(X, Y, F32, yarn_beta_fast, NAN, 0, FLT_MAX, true)                                        \
    PARAM(X, Y, F32, yarn_beta_slow, NAN, 0, FLT_MAX, true)                                        \
    PARAM(X, Y, U32, yarn_orig_ctx, 0, 0, INT32_MAX, true)                                         \
    PARAM(X, Y, BOOL, kv_contiguous, false, 0, 1, false)                                           \
    PARAM(X, Y, I32, self_extend_n, 0, INT32_MIN, INT32_MAX, true)                                 \
    PARAM(X, Y, I32, self_extend_w, 0, INT32_MIN, INT32_MAX, true)                                 \
    PARAM(X, Y, BOOL, embeddings, false, 0, 1, true)                                               \
    PARAM(X, Y, ENUM, pooling, GR_POOLING_MODEL, 0, GR_POOLING_RANK, false)                        \
    PARAM(X, Y, SCALES, adapter_scale, NAN, -FLT_MAX, FLT_MAX, false)                              \
    PARAM(X, Y, BOOL, no_kv_offload, false, 0, 1, false)                                           \
    PARAM(X, Y, I32, offload_from, 0, INT32_MIN, INT32_MAX, false)                                 \
    PARAM(X, Y, BOOL, no_graphs, false, 0, 1, false)                                               \
    PARAM(X, Y, ENUM, nvtx, GR_NVTX_STEP, 0, GR_NVTX_LAYER, false)                                 \
    PARAM(X, Y, ENUM, matmul, GR_MATMUL_AUTO, 0, GR_MATMUL_CUBLAS, false)                          \
    PARAM(X, Y, BOOL, no_pdl, false, 0, 1, false)                                                  \
    PARAM(X, Y, BOOL, no_sm90, false, 0, 1, false)                                                 \
    PARAM(X, Y, BOOL, no_fuse, false, 0, 1, false)                                                 \
    PARAM(X, Y, BOOL, check_counters, false, 0, 1, false)                                          \
    PARAM(X, Y, BOOL, deterministic, false, 0, 1, true)

/* TYPE: name of a storage type, NULL by default; ENUM: 4 bytes; F32: NAN, the model's own value, is
 * in range too; SCALES: float[GR_MAX_ADAPTER] with the same default and range. */
enum gr_param_kind {
    GR_PARAM_U32,
    GR_PARAM_I32,
    GR_PARAM_BOOL,
    GR_PARAM_F32,
    GR_PARAM_ENUM,
    GR_PARAM_TYPE,
    GR_PARAM_SCALES
};

struct gr_session_param {
    const char *name;
    enum gr_param_kind kind;
    size_t offset;
    double def, lo, hi;
    bool in_file;
};

/* Initializer of struct gr_session_param[]. */
#define GR_SESSION_PARAM_ROW(X, Y, KIND, field, value, low, high, file)                            \
    {#field, GR_PARAM_##KIND, offsetof(struct gr_session_params, field), value, low, high, file},
#define GR_SESSION_PARAM_ROWS                                                                      \
    {                                                                                              \
        GR_SESSION_PARAMS(GR_SESSION_PARAM_ROW, , )                                                \
    }

/* Sets a number, or all of a SCALES; a TYPE stays as it is. */
static inline void gr_session_param_set(struct gr_session_params *p,
                                        const struct gr_session_param *q, double value)
{
    void *field = (char *)p + q->offset;
    if (q->kind == GR_PARAM_U32)
        *(uint32_t *)field = (uint32_t)value;
    else if (q->kind == GR_PARAM_I32 || q->kind == GR_PARAM_ENUM)
        *(int32_t *)field = (int32_t)value;
    else if (q->kind == GR_PARAM_BOOL)
        *(bool *)field = value != 0;
    else if (q->kind == GR_PARAM_F32)
        *(float *)field = (float)value;
    for (int i = 0; q->kind == GR_PARAM_SCALES && i < GR_MAX_ADAPTER; i++)
        ((float *)field)[i] = (float)value;
}

/* Returns the i-th number of a parameter; *n: how many it has, 0 for a TYPE. */
static inline double gr_session_param_get(const struct gr_session_params *p,
                                          const struct gr_session_param *q, int i, int *n)
{
    const void *field = (const char *)p + q->offset;
    *n = q->kind == GR_PARAM_SCALES ? GR_MAX_ADAPTER : q->kind != GR_PARAM_TYPE;
    switch (q->kind) {
    case GR_PARAM_U32:
        return *(const uint32_t *)field;
    case GR_PARAM_I32:
    case GR_PARAM_ENUM:
        return *(const int32_t *)field;
    case GR_PARAM_BOOL:
        return *(const bool *)field;
    case GR_PARAM_F32:
    case GR_PARAM_SCALES:
        return (double)((const float *)field)[i];
    case GR_PARAM_TYPE:
        break;
    }
    return 0;
}

#endif
