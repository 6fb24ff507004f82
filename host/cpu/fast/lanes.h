/* Units whose quants lie in lane order: what few entries meet.
 *
 * A dot product of four columns ends in a lane of 32 bits, then it is converted, scaled and added:
 * three instructions beside one. In lane order the four quarters of two registers of quants are of
 * the same four groups, so that the integer sums of both are one before that; and nibbles need no
 * sorting, as a register of bytes holds low ones of some columns and high ones of others. The
 * activations are put in the same order when they are quantised (int8.c).
 *
 * Only with registers of 512 bits, and for types of about 4 bits with groups of 32 columns; with 8
 * bits memory is what takes the time. */
#ifndef GR_CPU_FAST_LANES_H
#define GR_CPU_FAST_LANES_H

#include "cpu/fast/unpack.h"

/* Whether a type has a lane order. */
GR_INLINE bool lane_order(uint32_t dtype)
{
#ifdef GR_LEVEL_avx512
    switch (dtype) {
    case GR_Q4_0:
    case GR_Q4_1:
    case GR_Q4_K:
    case GR_IQ4_NL:
    case GR_IQ4_XS:
    case GR_MXFP4:
        return true;
    default:
        return false;
    }
#else
    (void)dtype;
    return false;
#endif
}

/* Which 16 columns of a unit are in place i: quarter i % 4 of register i / 4. Blocks of 32 columns:
 * their first halves, then their second ones, four blocks at a time. Q4_K has 64 columns in 32
 * bytes. */
static inline int lane_piece(uint32_t dtype, int i)
{
    if (!lane_order(dtype))
        return i;
    return dtype == GR_Q4_K ? i / 4 + i % 4 * 4 : i / 8 * 8 + i % 4 * 2 + i / 4 % 2;
}

#ifdef GR_LEVEL_avx512
/* Index registers that stay where they are during a row. */
struct lane_tables {
    vi group[2]; /* of each lane of registers 2 k and 2 k + 1 */
    vi words[3]; /* blocks of 18 bytes: words of the bytes of blocks 0 .. 3, 4 .. 7, of factors */
};

GR_INLINE struct lane_tables lane_tables(uint32_t dtype)
{
#define WORDS(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
    const int16_t words[3][32] = {{WORDS(1), WORDS(10), WORDS(19), WORDS(28)},
                                  {WORDS(5), WORDS(14), WORDS(23), WORDS(56)},
                                  {0, 9, 18, 27, 36, 45, 54, 63}};
#undef WORDS
    const vi step = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    struct lane_tables t;
    GR_UNROLL
    for (int k = 0; k < 2; k++)
        t.group[k] =
            vi_hold(dtype == GR_Q4_K ? _mm512_add_epi32(_mm512_slli_epi32(step, 1), vi_set(k))
                                     : _mm512_add_epi32(step, vi_set(4 * k)));
    GR_UNROLL
    for (int k = 0; k < 3; k++)
        t.words[k] = vi_hold(vi_load(words[k]));
    return t;
}

/* 16 bytes each of four blocks. */
GR_INLINE vi quarters_at(const char *p, size_t size)
{
    __m256i a = _mm256_set_m128i(load16(p + size), load16(p));
    return join(a, _mm256_set_m128i(load16(p + 3 * size), load16(p + 2 * size)));
}

/* Bytes of nibbles of blocks 0 .. 3 and 4 .. 7, 16 bytes each. */
GR_INLINE void block_bytes(const char *p, size_t size, size_t at, vi out[2])
{
    if (size == 16)
        out[0] = vi_load(p + at), out[1] = vi_load(p + at + 64);
    else
        out[0] = quarters_at(p + at, size), out[1] = quarters_at(p + at + 4 * size, size);
}

/* The same of blocks of 18 bytes, and their factors: they are words, which one instruction gathers
 * from two registers. */
GR_INLINE void block_words(const char *p, const struct lane_tables *t, vi out[2], vf d[UNIT_D])
{
    vi low = vi_load(p), middle = vi_load(p + 64);
    out[0] = _mm512_permutex2var_epi16(low, t->words[0], middle);
    out[1] = _mm512_permutex2var_epi16(middle, t->words[1], vi_load(p + 80));
    vi halves = _mm512_permutex2var_epi16(low, t->words[2], middle);
    factors_32(_mm256_cvtph_ps(_mm512_castsi512_si128(halves)), d);
}

GR_INLINE vi low_nibbles(vi x)
{
    return _mm512_and_si512(x, _mm512_set1_epi8(15));
}

GR_INLINE vi high_nibbles(vi x)
{
    return low_nibbles(_mm512_srli_epi16(x, 4));
}

/* What codes of 4 bits name. */
GR_INLINE vi lane_values(uint32_t dtype, vi codes)
{
    const int8_t iq4[16] = {GR_IQ4_VALUES}, fp4[16] = {GR_FP4_VALUES};
    __m128i zero = _mm_set1_epi8((char)unit_kind(dtype).zero);
    if (dtype != GR_IQ4_NL && dtype != GR_IQ4_XS && dtype != GR_MXFP4)
        return codes;
    __m128i table = _mm_add_epi8(load16(dtype == GR_MXFP4 ? fp4 : iq4), zero);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

GR_INLINE void lanes_q4_K(const struct gr_q4_K *b, struct unit *u)
{
    vi x = vi_load(b->qs), y = vi_load(b->qs + 64);
    vi first = _mm512_shuffle_i64x2(x, y, 0x88), second = _mm512_shuffle_i64x2(x, y, 0xdd);
    u->q[0] = low_nibbles(first), u->q[1] = low_nibbles(second);
    u->q[2] = high_nibbles(first), u->q[3] = high_nibbles(second);
}

GR_INLINE void lanes_blocks(uint32_t dtype, const vi bytes[2], struct unit *u)
{
    GR_UNROLL
    for (int k = 0; k < 2; k++) {
        u->q[2 * k] = lane_values(dtype, low_nibbles(bytes[k]));
        u->q[2 * k + 1] = lane_values(dtype, high_nibbles(bytes[k]));
    }
}

/* A unit of a type that has a lane order. Factors are those of unpack(): its quants are not used,
 * and never made. */
GR_INLINE void unpack_lanes(uint32_t dtype, const char *p, const struct lane_tables *t,
                            struct unit *u)
{
    vi bytes[2];
    unpack(dtype, p, u);
    switch (dtype) {
    case GR_Q4_K:
        lanes_q4_K((const void *)p, u);
        break;
    case GR_Q4_0:
    case GR_IQ4_NL:
        block_words(p, t, bytes, u->d);
        lanes_blocks(dtype, bytes, u);
        break;
    case GR_Q4_1:
        block_bytes(p, 20, 4, bytes);
        lanes_blocks(dtype, bytes, u);
        break;
    case GR_MXFP4:
        block_bytes(p, 17, 1, bytes);
        lanes_blocks(dtype, bytes, u);
        break;
    default: /* GR_IQ4_XS */
        block_bytes(p, 16, 8, bytes);
        lanes_blocks(dtype, bytes, u);
    }
}
#endif

#endif
