/* Units with quants in lane order, for products with few entries and 512-bit registers.
 *
 * A dot product of four columns ends in a 32-bit lane, which is then converted, scaled and added.
 * In lane order a lane of all four registers of quants belongs to one group of columns, so that
 * their integer sums are added before that: once for 256 columns. The activations are put in the
 * same order when they are quantised (int8_lanes.c). Groups of 32 columns have two lanes, groups of
 * 16 one.
 *
 * Registers in column order are transposed by eight shuffles. Types with nibbles or 2-bit fields
 * are shuffled before these are taken apart, as bytes hold columns of several registers. */
#ifndef GR_CPU_FAST_LANES_H
#define GR_CPU_FAST_LANES_H

#include "cpu/fast/unpack.h"

#ifdef GR_LEVEL_avx512

/* Returns the group of a lane. */
static inline int lane_group(uint32_t dtype, int lane)
{
    const int pair[8] = {0, 2, 1, 3, 4, 6, 5, 7}, i = lane / 4, k = lane % 4;
    if (unit_kind(dtype).group == 32)
        return pair[lane / 2];
    if (dtype == GR_Q2_K || dtype == GR_Q3_K || dtype == GR_Q6_K)
        return i / 2 * 8 + 2 * k + i % 2; /* a field has 32 columns of each half */
    return 4 * k + i;
}

/* Returns the first of the four columns of a unit at a lane of register k. */
static inline int lane_column(uint32_t dtype, int k, int lane)
{
    if (unit_kind(dtype).group == 32)
        return lane_group(dtype, lane) * 32 + k % 2 * 16 + k / 2 * 8 + lane % 2 * 4;
    return lane_group(dtype, lane) * 16 + k * 4;
}

/* Index registers, constant during some rows. */
struct lane_tables {
    vi group;      /* lane_group() */
    vi words[3];   /* blocks of 18 bytes: words of blocks 0 1 4 5 and 2 3 6 7, of factors */
    vi chunk[4];   /* 64-bit words of register k, of four chunks of 32 bytes */
    vi scale, min; /* bytes of lanes_factors_6(), extended to 32 bits */
};

GR_INLINE struct lane_tables lane_tables(uint32_t dtype)
{
#define WORDS(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
    const int16_t words[3][32] = {{WORDS(1), WORDS(10), WORDS(37), WORDS(46)},
                                  {WORDS(3), WORDS(12), WORDS(47), WORDS(56)},
                                  {0, 9, 18, 27, 36, 45, 54, 63}};
#undef WORDS
    struct lane_tables t;
    int32_t group[VL];
    for (int i = 0; i < VL; i++)
        group[i] = lane_group(dtype, i);
    t.group = vi_hold(vi_load(group));
    GR_UNROLL
    for (int k = 0; k < 3; k++)
        t.words[k] = vi_hold(vi_load(words[k]));
    GR_UNROLL
    for (int k = 0; k < 4; k++) {
        const int64_t at = k % 2 * 2 + k / 2,
                      chunk[8] = {at, 4 + at, at, 4 + at, 8 + at, 12 + at, 8 + at, 12 + at};
        t.chunk[k] = vi_hold(vi_load(chunk));
    }
    for (int i = 0; i < VL; i++) /* bytes 0 .. 3 and 8 .. 11; a negative index gives 0 */
        group[i] = (group[i] / 4 * 8 + group[i] % 4) | (int32_t)0x80808000;
    t.scale = vi_hold(vi_load(group));
    t.min = vi_hold(vi_xor(vi_load(group), vi_set(4)));
    return t;
}

/* Puts quants in column order into lane order. */
GR_INLINE void lanes_of_columns(int group, vi q[UNIT_Q])
{
    vi a[4];
    GR_UNROLL
    for (int k = 0; k < 4; k += 2) {
        if (group == 32) {
            a[k] = _mm512_unpacklo_epi64(q[k], q[k + 1]);
            a[k + 1] = _mm512_unpackhi_epi64(q[k], q[k + 1]);
        } else {
            a[k] = _mm512_unpacklo_epi32(q[k], q[k + 1]);
            a[k + 1] = _mm512_unpackhi_epi32(q[k], q[k + 1]);
        }
    }
    GR_UNROLL
    for (int k = 0; k < 2; k++) {
        if (group == 32) {
            q[2 * k] = _mm512_shuffle_i64x2(a[k], a[2 + k], 0x88);
            q[2 * k + 1] = _mm512_shuffle_i64x2(a[k], a[2 + k], 0xdd);
        } else {
            q[2 * k] = _mm512_unpacklo_epi64(a[k], a[2 + k]);
            q[2 * k + 1] = _mm512_unpackhi_epi64(a[k], a[2 + k]);
        }
    }
}

/* ---- blocks of 32 ---- */

/* Loads d and m, the first bytes of eight blocks of `size` bytes, for each lane. */
GR_INLINE void lanes_pairs(const char *p, size_t size, const struct lane_tables *t, struct unit *u)
{
    const vi at = _mm512_add_epi32(t->group, t->group);
    __m128i x[2];
    GR_UNROLL
    for (int k = 0; k < 2; k++, p += 4 * size)
        x[k] = _mm_setr_epi32((int)u32_at(p), (int)u32_at(p + size), (int)u32_at(p + 2 * size),
                              (int)u32_at(p + 3 * size));
    vf both = _mm512_cvtph_ps(_mm256_set_m128i(x[1], x[0]));
    u->d[0] = _mm512_permutexvar_ps(at, both);
    u->m[0] = _mm512_permutexvar_ps(_mm512_add_epi32(at, vi_set(1)), both);
}

/* Loads 16 bytes of each of blocks 0, 1, 4 and 5. */
GR_INLINE vi quarters_at(const char *p, size_t size)
{
    __m256i a = _mm256_set_m128i(load16(p + size), load16(p));
    return join(a, _mm256_set_m128i(load16(p + 5 * size), load16(p + 4 * size)));
}

/* Loads the bytes of nibbles of blocks 0 1 4 5 and 2 3 6 7, 16 bytes each. */
GR_INLINE void block_bytes(const char *p, size_t size, size_t at, vi out[2])
{
    out[0] = quarters_at(p + at, size), out[1] = quarters_at(p + at + 2 * size, size);
}

/* The same for blocks of 18 bytes, and their factors: both are 16-bit words, which one instruction
 * gathers from two registers. */
GR_INLINE void block_words(const char *p, const struct lane_tables *t, vi out[2], vf d[UNIT_D])
{
    vi low = vi_load(p), high = vi_load(p + 64);
    out[0] = _mm512_permutex2var_epi16(low, t->words[0], high);
    out[1] = _mm512_permutex2var_epi16(vi_load(p + 32), t->words[1], vi_load(p + 80));
    vi halves = _mm512_permutex2var_epi16(low, t->words[2], high);
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

/* Maps 4-bit codes to values, offset by `zero`. */
GR_INLINE vi lane_values(uint32_t dtype, vi codes)
{
    const int8_t iq4[16] = {GR_IQ4_VALUES}, fp4[16] = {GR_FP4_VALUES};
    __m128i zero = _mm_set1_epi8((char)unit_kind(dtype).zero);
    if (dtype != GR_IQ4_NL && dtype != GR_IQ4_XS && dtype != GR_MXFP4)
        return codes;
    __m128i table = _mm_add_epi8(load16(dtype == GR_MXFP4 ? fp4 : iq4), zero);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

/* Picks the bytes of nibbles of four chunks of 32 bytes, the low ones of which are one group and
 * the high ones the next. */
GR_INLINE void lanes_chunks(const uint8_t *qs, const struct lane_tables *t, struct unit *u)
{
    vi x = vi_hold(vi_load(qs)), y = vi_hold(vi_load(qs + 64));
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        u->q[k] = _mm512_permutex2var_epi64(x, t->chunk[k], y);
}

/* Leaves the nibbles of odd groups in the upper four bits: see lane_step(). */
GR_INLINE void lanes_q4_K(const struct gr_q4_K *b, const struct lane_tables *t, struct unit *u)
{
    const long long low = 0x0f0f0f0f0f0f0f0f, high = ~low;
    const vi mask = _mm512_setr_epi64(low, low, high, high, low, low, high, high);
    lanes_chunks(b->qs, t, u);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        u->q[k] = _mm512_and_si512(u->q[k], mask);
}

/* Returns the factor of x's step in a lane: 1/16 where lanes_q4_K() leaves quants times 16. */
static inline float lane_step(uint32_t dtype, int lane)
{
    return dtype == GR_Q4_K && lane_group(dtype, lane) % 2 ? 0x1p-4f : 1;
}

/* d and m of Q4_K and Q5_K, as factors_6(), of units of four rows together. */
GR_INLINE void lanes_factors_6(const char *const w[4], const struct lane_tables *t,
                               struct unit u[4])
{
    const vi heads = join(_mm256_set_m128i(load16(w[1]), load16(w[0])),
                          _mm256_set_m128i(load16(w[3]), load16(w[2]))),
             first = _mm512_shuffle_epi32(heads, _MM_PERM_CBCB),
             last = _mm512_shuffle_epi32(heads, _MM_PERM_DDDD);
#define FOUR(a, b, c, d) _mm512_set4_epi32(d, c, b, a)
    /* scales 0 .. 3, minima 0 .. 3, scales 4 .. 7, minima 4 .. 7 */
    const vi six = _mm512_ternarylogic_epi32(
        _mm512_and_si512(_mm512_srlv_epi32(first, FOUR(0, 0, 2, 2)),
                         FOUR(0x3f3f3f3f, 0x3f3f3f3f, 0x30303030, 0x30303030)),
        _mm512_srlv_epi32(last, FOUR(0, 0, 0, 4)), FOUR(0, 0, 0x0f0f0f0f, 0x0f0f0f0f), 0xf8);
#undef FOUR
    const __m128i halves = _mm512_castsi512_si128(
        _mm512_permutexvar_epi32(_mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12)), heads));
    const __m256 sign = _mm256_setr_ps(0, -0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f);
    uint8_t bytes[4][16];
    float factor[4][2];
    vi_store(bytes, six);
    _mm256_storeu_ps(factor[0], _mm256_xor_ps(_mm256_cvtph_ps(halves), sign));
    __asm__("" : "+m"(bytes), "+m"(factor)); /* loads to all lanes are quicker than shuffles */
    GR_UNROLL
    for (int r = 0; r < 4; r++) {
        const vi row = _mm512_broadcast_i32x4(load16(bytes[r]));
        u[r].d[0] = vf_of_int(_mm512_shuffle_epi8(row, t->scale)) * vf_set(factor[r][0]);
        u[r].m[0] = vf_of_int(_mm512_shuffle_epi8(row, t->min)) * vf_set(factor[r][1]);
    }
}

/* x | (y & mask), bytewise. */
GR_INLINE vi with_bits(vi x, vi y, int mask)
{
    return _mm512_ternarylogic_epi32(x, y, _mm512_set1_epi8((char)mask), 0xf8); /* x | y & mask */
}

/* Shifts 16-bit words left, or right where `by` is negative; bits cross between neighbouring
 * bytes. */
GR_INLINE vi moved(vi x, int by)
{
    return by < 0 ? _mm512_srli_epi16(x, (unsigned)-by) : _mm512_slli_epi16(x, (unsigned)by);
}

/* Bit g of byte j of qh is that of column j of group g: it is rotated to the position of the fifth
 * bit. */
GR_INLINE void lanes_q5_K(const struct gr_q5_K *b, const struct lane_tables *t, struct unit *u)
{
    const vi turn = _mm512_setr_epi64(4, 2, 3, 1, 0, 62, 63, 61),
             down = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    lanes_chunks(b->qs, t, u);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++) {
        u->q[k] = low_nibbles(_mm512_srlv_epi64(u->q[k], down));
        vi bits = _mm512_broadcastq_epi64(load8(b->qh + 8 * (k % 2 * 2 + k / 2)));
        u->q[k] = with_bits(u->q[k], _mm512_rolv_epi64(bits, turn), 16);
    }
}

/* Unpacks the 2-bit fields of 64 bytes: 32 columns of each half in a register. */
GR_INLINE void lanes_fields(const uint8_t *qs, struct unit *u)
{
    vi x = vi_hold(vi_load(qs));
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        u->q[k] = _mm512_and_si512(moved(x, -2 * k), _mm512_set1_epi8(3));
}

/* Bit i of byte j of hmask is that of column 32 i + j. */
GR_INLINE void lanes_q3_K(const struct gr_q3_K *b, struct unit *u)
{
    const vi down = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    vi bits = vi_hold(_mm512_srlv_epi16(_mm512_broadcast_i64x4(load32(b->hmask)), down));
    lanes_fields(b->qs, u);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        u->q[k] = with_bits(u->q[k], moved(bits, 2 - k), 4);
}

GR_INLINE void lanes_q6_K(const struct gr_q6_K *b, struct unit *u)
{
    vi x = vi_hold(vi_load(b->ql)), y = vi_hold(vi_load(b->ql + 64));
    vi high = vi_hold(vi_load(b->qh));
    vi even = _mm512_shuffle_i64x2(x, y, 0x44), odd = _mm512_shuffle_i64x2(x, y, 0xee);
    u->q[0] = low_nibbles(even), u->q[1] = low_nibbles(odd);
    u->q[2] = high_nibbles(even), u->q[3] = high_nibbles(odd);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        u->q[k] = with_bits(u->q[k], moved(high, 4 - 2 * k), 0x30);
}

/* Unpacks blocks without fifth bits. */
GR_INLINE void lanes_blocks(uint32_t dtype, const vi bytes[2], struct unit *u)
{
    vi half[2] = {_mm512_unpacklo_epi64(bytes[0], bytes[1]),
                  _mm512_unpackhi_epi64(bytes[0], bytes[1])};
    GR_UNROLL
    for (int k = 0; k < 2; k++) {
        u->q[2 * k] = lane_values(dtype, low_nibbles(half[k]));
        u->q[2 * k + 1] = lane_values(dtype, high_nibbles(half[k]));
    }
}

/* The same with fifth bits, 32 bits at byte `at` of each block. */
GR_INLINE void lanes_fifth(const char *p, size_t size, size_t at, const vi bytes[2], struct unit *u)
{
    const vi bit = _mm512_set1_epi8(16);
    vi q[2][2]; /* first and second halves of the blocks of bytes[k] */
    GR_UNROLL
    for (int k = 0; k < 2; k++)
        GR_UNROLL
    for (int half = 0; half < 2; half++) {
        const char *from = p + at + (size_t)k * 2 * size + (size_t)half * 2;
        uint64_t set = u16_at(from) | (uint64_t)u16_at(from + size) << 16 |
                       (uint64_t)u16_at(from + 4 * size) << 32 |
                       (uint64_t)u16_at(from + 5 * size) << 48;
        vi x = half ? high_nibbles(bytes[k]) : low_nibbles(bytes[k]);
        q[half][k] = _mm512_mask_add_epi8(x, (__mmask64)set, x, bit);
    }
    GR_UNROLL
    for (int half = 0; half < 2; half++) {
        u->q[half] = _mm512_unpacklo_epi64(q[half][0], q[half][1]);
        u->q[2 + half] = _mm512_unpackhi_epi64(q[half][0], q[half][1]);
    }
}

/* Unpacks the quants of a unit. */
GR_INLINE void lanes_quants(uint32_t dtype, const char *p, const struct lane_tables *t,
                            struct unit *u)
{
    vi bytes[2];
    switch (dtype) {
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
    case GR_IQ4_XS:
        block_bytes(p, 16, 8, bytes);
        lanes_blocks(dtype, bytes, u);
        break;
    case GR_Q5_0:
        block_bytes(p, 22, 6, bytes);
        lanes_fifth(p, 22, 2, bytes, u);
        break;
    case GR_Q5_1:
        block_bytes(p, 24, 8, bytes);
        lanes_fifth(p, 24, 4, bytes, u);
        break;
    case GR_Q4_K:
        lanes_q4_K((const void *)p, t, u);
        break;
    case GR_Q5_K:
        lanes_q5_K((const void *)p, t, u);
        break;
    case GR_Q2_K:
        lanes_fields(((const struct gr_q2_K *)(const void *)p)->qs, u);
        lanes_of_columns(16, u->q);
        break;
    case GR_Q3_K:
        lanes_q3_K((const void *)p, u);
        lanes_of_columns(16, u->q);
        break;
    case GR_Q6_K:
        lanes_q6_K((const void *)p, u);
        lanes_of_columns(16, u->q);
        break;
    default:
        lanes_of_columns(unit_kind(dtype).group, u->q);
    }
}

/* Unpacks a unit in lane order, with the factors of each lane but those of lanes_factors_6(). What
 * unpack() leaves unused is removed by compilers. */
GR_INLINE void unpack_lanes(uint32_t dtype, const char *p, const struct lane_tables *t,
                            struct unit *u)
{
    unpack(dtype, p, u);
    lanes_quants(dtype, p, t, u);
    if (dtype == GR_Q4_1 || dtype == GR_Q5_1) {
        lanes_pairs(p, unit_bytes(dtype) / 8, t, u);
        return;
    }
    u->d[0] = _mm512_permutexvar_ps(t->group, u->d[0]);
    if (unit_kind(dtype).min)
        u->m[0] = _mm512_permutexvar_ps(t->group, u->m[0]);
}
#endif

#endif
