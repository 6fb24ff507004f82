/* Conversion of rows of storage types to f32, by whole vectors: dst has room for n rounded up to
 * VL, padded with 0. */
#ifndef GR_CPU_FAST_ROWS_H
#define GR_CPU_FAST_ROWS_H

#include <string.h>

#include "cpu/fast/vec.h"
#include "gr/dtype.h"
#include "gr/planes.h"

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

/* A block of planes with records: x = d * q + m. */
GR_INLINE void load_record(uint32_t dtype, const uint8_t *codes, const uint8_t *record, float *dst)
{
    static const int8_t values[16] = {GR_IQ4_VALUES};
    bool five = dtype == GR_Q5_0 || dtype == GR_Q5_1;
    bool min = dtype == GR_Q4_1 || dtype == GR_Q5_1;
    gr_half d, m = 0;
    uint32_t high = 0;
    int8_t q[GR_QK];
    memcpy(&d, record, sizeof d);
    if (min)
        memcpy(&m, record + 2, sizeof m);
    if (five)
        memcpy(&high, record + (min ? 4 : 2), sizeof high);
    for (int k = 0; k < GR_QK; k++) {
        int code = k < GR_QK / 2 ? codes[k] & 15 : codes[k - GR_QK / 2] >> 4;
        code |= (int)(high >> k & 1) << 4;
        q[k] = (int8_t)(dtype == GR_IQ4_NL ? values[code] : dtype == GR_Q5_0 ? code - 16 : code);
    }
    vf dv = vf_set(half_to_f32(d)), mv = vf_set(half_to_f32(m));
    for (int k = 0; k < GR_QK; k += VL)
        vf_store(dst + k, min ? dv * vf_s8(q + k) + mv : dv * vf_s8(q + k));
}

GR_INLINE void load_records(uint32_t dtype, const uint8_t *codes, const uint8_t *record, int64_t n,
                            float *dst)
{
    for (int64_t i = 0; i < n; i += GR_QK, codes += GR_QK / 2, record += gr_planes_record(dtype))
        load_record(dtype, codes, record, dst + i);
}

/* Converts n columns of a cache of this type: src is the first one, `step` the first record of
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
    case GR_Q4_1:
    case GR_Q5_0:
    case GR_Q5_1:
    case GR_IQ4_NL:
        load_records(dtype, src, step, n, dst);
        break;
    default:
        load_f32(src, n, dst);
    }
}

#endif
