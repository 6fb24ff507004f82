/* Conversion of rows of storage types to f32, by whole vectors: dst has room for n rounded up to
 * VL, padded with 0. */
#ifndef GR_CPU_FAST_ROWS_H
#define GR_CPU_FAST_ROWS_H

#include <string.h>

#include "cpu/fast/vec.h"
#include "gr/dtype.h"

GR_INLINE void load_f32(const float *src, int64_t n, float *dst)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(dst + i, vf_load(src + i));
    if (i < n)
        vf_store(dst + i, vf_load_n(src + i, n - i));
}

/* The last elements of a row are read through a buffer, so that nothing beyond the row is
 * accessed. */
GR_INLINE void load_f16(const gr_half *src, int64_t n, float *dst)
{
    gr_half tail[VL] = {0};
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(dst + i, vf_half(src + i));
    if (i == n)
        return;
    memcpy(tail, src + i, (size_t)(n - i) * sizeof *src);
    vf_store(dst + i, vf_half(tail));
}

GR_INLINE void load_bf16(const gr_bf16 *src, int64_t n, float *dst)
{
    gr_bf16 tail[VL] = {0};
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(dst + i, vf_bf16(src + i));
    if (i == n)
        return;
    memcpy(tail, src + i, (size_t)(n - i) * sizeof *src);
    vf_store(dst + i, vf_bf16(tail));
}

/* Planes. */
GR_INLINE void load_q8_0(const int8_t *codes, const gr_half *step, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i += GR_QK) {
        vf d = vf_set(half_to_f32(*step++));
        for (int k = 0; k < GR_QK; k += VL)
            vf_store(dst + i + k, d * vf_s8(codes + i + k));
    }
}

GR_INLINE void load_q4_0(const uint8_t *codes, const gr_half *step, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i += GR_QK, codes += GR_QK / 2) {
        vf d = vf_set(half_to_f32(*step++));
        int8_t q[GR_QK];
        for (int k = 0; k < GR_QK / 2; k++) {
            q[k] = (int8_t)((codes[k] & 15) - 8);
            q[k + GR_QK / 2] = (int8_t)((codes[k] >> 4) - 8);
        }
        for (int k = 0; k < GR_QK; k += VL)
            vf_store(dst + i + k, d * vf_s8(q + k));
    }
}

/* Converts n columns of a cache of this type: src is the first one, `step` the first step of
 * planes. */
GR_INLINE void row_to_f32(uint32_t dtype, const void *src, const void *step, int64_t n, float *dst)
{
    switch (dtype) {
    case GR_F16:
        load_f16(src, n, dst);
        break;
    case GR_BF16:
        load_bf16(src, n, dst);
        break;
    case GR_Q8_0:
        load_q8_0(src, step, n, dst);
        break;
    case GR_Q4_0:
        load_q4_0(src, step, n, dst);
        break;
    default:
        load_f32(src, n, dst);
    }
}

#endif
