/* Unpacking of units of VL rows with rows as lanes. Words of four bytes of each row are transposed
 * as they are stored, then their fields are taken apart: nibbles take half the shuffles of
 * transposed quants, and scales are unpacked for all rows at once. The results are those of
 * unpack() for each row, to the bit. */
#ifndef GR_CPU_FAST_PANEL_H
#define GR_CPU_FAST_PANEL_H

#include "cpu/fast/unpack.h"

/* Returns whether a type is unpacked so. */
GR_INLINE bool panel_type(uint32_t dtype)
{
    switch (dtype) {
    case GR_Q4_0:
    case GR_Q4_1:
    case GR_Q8_0:
    case GR_Q2_K:
    case GR_Q3_K:
    case GR_Q4_K:
    case GR_Q5_K:
    case GR_Q6_K:
    case GR_IQ4_NL:
    case GR_IQ4_XS:
    case GR_MXFP4:
        return true;
    default:
        return false;
    }
}

/* A unit of VL rows: q [64][VL][4], d and m [256 / group][VL]; `off` is subtracted from each of q
 * of types with an offset. */
struct panel {
    uint8_t *q;
    float *d, *m;
    vi off;
};

/* VL rows, `stride` bytes apart; the unit of the first one is at p. */
struct panel_rows {
    const char *p;
    int64_t stride;
};

/* Stores the quants of columns [col, col + 4) of a unit. */
GR_INLINE void panel_put(const struct panel *p, uint32_t dtype, int col, vi q)
{
    vi_store(p->q + col * VL, unit_kind(dtype).zero ? vi_sub8(q, p->off) : q);
}

/* Bits [at, at + n) of each byte, moved to bit `to`. */
GR_INLINE vi panel_field(vi x, int at, int n, int to)
{
    return vi_and(vi_shift(x, to - at), vi_set8(((1 << n) - 1) << to));
}

/* out [n][VL] = the f16 at byte `at` of n blocks of `size` bytes of each row. */
GR_INLINE void panel_halves(const struct panel_rows *r, int n, int64_t size, int64_t at,
                            gr_half *out)
{
    for (int i = 0; i < VL; i++)
        GR_UNROLL
    for (int b = 0; b < n; b++)
        memcpy(out + b * VL + i, r->p + i * r->stride + b * size + at, sizeof *out);
}

/* Returns byte k of four, as f32. */
GR_INLINE vf panel_u8(vi x, int k)
{
    return vf_of_int(vi_and(vi_shift(x, -8 * k), vi_set(255)));
}

/* ---- blocks of 32 ---- */

/* Stores the factors of eight blocks, f16 at byte `at` of each; 14 more bytes exist behind each. */
GR_INLINE void panel_factors(const struct panel_rows *r, int64_t size, int64_t at, float *d)
{
    for (int b = 0; b < 8; b++) {
        vi x[4];
        vi_load_rows(r->p + b * size + at, r->stride, x);
        vf_store(d + b * VL, vf_low_half(x[0]));
    }
}

/* The same, unpacked row by row. */
GR_INLINE void panel_factors_of_rows(uint32_t dtype, const struct panel_rows *r, float *d)
{
    float of_row[VL][8];
    for (int i = 0; i < VL; i++) {
        struct unit u;
        unpack(dtype, r->p + i * r->stride,
               &u); /* quants are not used, and left out by compilers */
        vf_store_n(of_row[i], u.d[0], 8);
    }
    GR_UNROLL
    for (int b = 0; b < 8; b += 4) {
        vi four[4];
        vi_load_rows((const char *)of_row + b * 4, sizeof of_row[0], four);
        GR_UNROLL
        for (int k = 0; k < 4; k++)
            vi_store(d + (b + k) * VL, four[k]);
    }
}

/* Maps codes of nibbles to quants. */
GR_INLINE vi panel_values(uint32_t dtype, vi codes)
{
    const int8_t iq4[16] = {GR_IQ4_VALUES}, fp4[16] = {GR_FP4_VALUES};
    if (dtype != GR_IQ4_NL && dtype != GR_IQ4_XS && dtype != GR_MXFP4)
        return codes;
    __m128i zero = _mm_set1_epi8((char)unit_kind(dtype).zero);
    return vi_lookup(_mm_add_epi8(load16(dtype == GR_MXFP4 ? fp4 : iq4), zero), codes);
}

/* Eight blocks of `size` bytes with 16 bytes of nibbles at byte `at`: first the low ones. */
GR_INLINE void panel_nibbles(uint32_t dtype, const struct panel_rows *r, int64_t size, int64_t at,
                             const struct panel *p)
{
    for (int b = 0; b < 8; b++) {
        vi x[4];
        vi_load_rows(r->p + b * size + at, r->stride, x);
        GR_UNROLL
        for (int j = 0; j < 4; j++) {
            panel_put(p, dtype, 32 * b + 4 * j, panel_values(dtype, panel_field(x[j], 0, 4, 0)));
            panel_put(p, dtype, 32 * b + 16 + 4 * j,
                      panel_values(dtype, panel_field(x[j], 4, 4, 0)));
        }
    }
}

GR_INLINE void panel_q8_0(const struct panel_rows *r, const struct panel *p)
{
    const vi flip = vi_set8(unit_kind(GR_Q8_0).zero);
    panel_factors(r, sizeof(struct gr_q8_0), 0, p->d);
    for (int b = 0; b < 16; b++) {
        vi x[4];
        vi_load_rows(r->p + b / 2 * 34 + 2 + b % 2 * 16, r->stride, x);
        GR_UNROLL
        for (int j = 0; j < 4; j++)
            panel_put(p, GR_Q8_0, 16 * b + 4 * j, vi_xor(x[j], flip));
    }
}

/* ---- super-blocks of 256 ---- */

/* d and m of Q4_K and Q5_K, as factors_6(). */
GR_INLINE void panel_factors_6(const struct panel_rows *r, const struct panel *p)
{
    vi x[4], s[2], m[2];
    vi_load_rows(r->p, r->stride, x);
    vf d = vf_low_half(x[0]), min = -vf_low_half(vi_shift(x[0], -16));
    s[0] = panel_field(x[1], 0, 6, 0), m[0] = panel_field(x[2], 0, 6, 0);
    s[1] = vi_or(panel_field(x[3], 0, 4, 0), panel_field(x[1], 6, 2, 4));
    m[1] = vi_or(panel_field(x[3], 4, 4, 0), panel_field(x[2], 6, 2, 4));
    GR_UNROLL
    for (int g = 0; g < 8; g++) {
        vf_store(p->d + g * VL, panel_u8(s[g / 4], g % 4) * d);
        vf_store(p->m + g * VL, panel_u8(m[g / 4], g % 4) * min);
    }
}

GR_INLINE void panel_q4_K(const struct panel_rows *r, const struct panel *p)
{
    panel_factors_6(r, p);
    for (int k = 0; k < 8; k++) {
        vi x[4];
        vi_load_rows(r->p + 16 + 16 * k, r->stride, x);
        GR_UNROLL
        for (int j = 0; j < 4; j++) {
            int col = k / 2 * 64 + k % 2 * 16 + 4 * j;
            panel_put(p, GR_Q4_K, col, panel_field(x[j], 0, 4, 0));
            panel_put(p, GR_Q4_K, col + 32, panel_field(x[j], 4, 4, 0));
        }
    }
}

GR_INLINE void panel_q5_K(const struct panel_rows *r, const struct panel *p)
{
    panel_factors_6(r, p);
    GR_UNROLL
    for (int half = 0; half < 2; half++) { /* 16 of 32 columns */
        vi high[4];
        vi_load_rows(r->p + 16 + 16 * half, r->stride, high);
        GR_UNROLL
        for (int k = 0; k < 4; k++) {
            vi x[4];
            vi_load_rows(r->p + 48 + 32 * k + 16 * half, r->stride, x);
            GR_UNROLL
            for (int j = 0; j < 4; j++)
                GR_UNROLL
            for (int n = 0; n < 2; n++)
                panel_put(
                    p, GR_Q5_K, 64 * k + 32 * n + 16 * half + 4 * j,
                    vi_or(panel_field(x[j], 4 * n, 4, 0), panel_field(high[j], 2 * k + n, 1, 4)));
        }
    }
}

/* Stores sixteen scales, s8, times d. */
GR_INLINE void panel_factors_16(const vi scales[4], vf d, float *out)
{
    GR_UNROLL
    for (int g = 0; g < 16; g++)
        vf_store(out + g * VL, vf_of_int(vi_s8_at(scales[g / 4], g % 4)) * d);
}

GR_INLINE void panel_q6_K(const struct panel_rows *r, const struct panel *p)
{
    gr_half half[VL];
    vi x[4];
    panel_halves(r, 1, 0, 208, half);
    vi_load_rows(r->p + 192, r->stride, x);
    panel_factors_16(x, vf_half(half), p->d);
    for (int k = 0; k < 4; k++) { /* 16 of 32 columns of each half */
        const char *from = r->p + k / 2 * 64 + k % 2 * 16;
        vi low[2][4], high[4];
        vi_load_rows(from, r->stride, low[0]);
        vi_load_rows(from + 32, r->stride, low[1]);
        vi_load_rows(r->p + 128 + 16 * k, r->stride, high);
        GR_UNROLL
        for (int j = 0; j < 4; j++)
            GR_UNROLL
        for (int n = 0; n < 4; n++)
            panel_put(p, GR_Q6_K, k / 2 * 128 + 32 * n + k % 2 * 16 + 4 * j,
                      vi_or(panel_field(low[n % 2][j], n / 2 * 4, 4, 0),
                            panel_field(high[j], 2 * n, 2, 4)));
    }
}

/* The scales of scales_q3_K() are at bytes 96 .. 107, d behind them; the last 16 bytes of a block
 * hold two more bytes before. */
GR_INLINE void panel_q3_K(const struct panel_rows *r, const struct panel *p)
{
    vi x[4], s[4];
    vi_load_rows(r->p + 94, r->stride, x);
    vf d = vf_low_half(vi_shift(x[3], -16));
    GR_UNROLL
    for (int k = 0; k < 3; k++)
        x[k] = vi_or(vi_shift(x[k], -16), vi_shift(x[k + 1], 16));
    GR_UNROLL
    for (int k = 0; k < 4; k++)
        s[k] =
            vi_sub8(vi_or(panel_field(x[k % 2], k / 2 * 4, 4, 0), panel_field(x[2], 2 * k, 2, 4)),
                    vi_set8(32));
    panel_factors_16(s, d, p->d);
    GR_UNROLL
    for (int half = 0; half < 2; half++) { /* 16 of 32 columns */
        vi high[4];
        vi_load_rows(r->p + 16 * half, r->stride, high);
        GR_UNROLL
        for (int k = 0; k < 2; k++) {
            vi low[4];
            vi_load_rows(r->p + 32 + 32 * k + 16 * half, r->stride, low);
            GR_UNROLL
            for (int j = 0; j < 4; j++)
                GR_UNROLL
            for (int n = 0; n < 4; n++)
                panel_put(
                    p, GR_Q3_K, 128 * k + 32 * n + 16 * half + 4 * j,
                    vi_or(panel_field(low[j], 2 * n, 2, 0), panel_field(high[j], 4 * k + n, 1, 2)));
        }
    }
}

GR_INLINE void panel_q2_K(const struct panel_rows *r, const struct panel *p)
{
    gr_half half[2 * VL];
    vi x[4], s[4];
    panel_halves(r, 2, 2, 80, half);
    vi_load_rows(r->p, r->stride, x);
    GR_UNROLL
    for (int n = 0; n < 2; n++) {
        GR_UNROLL
        for (int k = 0; k < 4; k++)
            s[k] = panel_field(x[k], 4 * n, 4, 0);
        if (n)
            panel_factors_16(s, -vf_half(half + VL), p->m);
        else
            panel_factors_16(s, vf_half(half), p->d);
    }
    for (int k = 0; k < 4; k++) {
        vi_load_rows(r->p + 16 + 16 * k, r->stride, x);
        GR_UNROLL
        for (int j = 0; j < 4; j++)
            GR_UNROLL
        for (int n = 0; n < 4; n++)
            panel_put(p, GR_Q2_K, k / 2 * 128 + 32 * n + k % 2 * 16 + 4 * j,
                      panel_field(x[j], 2 * n, 2, 0));
    }
}

/* Scale g: nibble g of bytes 4 .. 7, bits 2 g and 2 g + 1 of bytes 2 and 3 above it. */
GR_INLINE void panel_iq4_xs(const struct panel_rows *r, const struct panel *p)
{
    vi x[4];
    vi_load_rows(r->p, r->stride, x);
    vf d = vf_low_half(x[0]);
    GR_UNROLL
    for (int g = 0; g < 8; g++) {
        vi low = vi_and(vi_shift(x[1], -4 * g), vi_set(15));
        vi high = vi_and(vi_shift(x[0], -12 - 2 * g), vi_set(48));
        vf_store(p->d + g * VL, (vf_of_int(vi_or(low, high)) - vf_set(32)) * d);
    }
    panel_nibbles(GR_IQ4_XS, r, 16, 8, p);
}

/* Unpacks a unit of each of VL rows. */
GR_INLINE void panel_unpack(uint32_t dtype, const struct panel_rows *r, const struct panel *p)
{
    switch (dtype) {
    case GR_Q4_1:
        panel_factors(r, sizeof(struct gr_q4_1), 2, p->m);
        panel_factors(r, sizeof(struct gr_q4_1), 0, p->d);
        panel_nibbles(dtype, r, sizeof(struct gr_q4_1), 4, p);
        break;
    case GR_Q4_0:
    case GR_IQ4_NL:
        panel_factors(r, sizeof(struct gr_q4_0), 0, p->d);
        panel_nibbles(dtype, r, sizeof(struct gr_q4_0), 2, p);
        break;
    case GR_MXFP4:
        panel_factors_of_rows(dtype, r, p->d);
        panel_nibbles(dtype, r, sizeof(struct gr_mxfp4), 1, p);
        break;
    case GR_Q8_0:
        panel_q8_0(r, p);
        break;
    case GR_Q2_K:
        panel_q2_K(r, p);
        break;
    case GR_Q3_K:
        panel_q3_K(r, p);
        break;
    case GR_Q4_K:
        panel_q4_K(r, p);
        break;
    case GR_Q5_K:
        panel_q5_K(r, p);
        break;
    case GR_Q6_K:
        panel_q6_K(r, p);
        break;
    case GR_IQ4_XS:
        panel_iq4_xs(r, p);
        break;
    default:
        break;
    }
}

#endif
