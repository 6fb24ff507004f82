/* Units with quants in lane order, for products with few entries.
 *
 * A dot product of four columns ends in a 32-bit lane, which is then converted, scaled and added:
 * three more instructions. In lane order the four quarters of two registers of quants belong to the
 * same four groups, so that their integer sums are added before that; and nibbles need no
 * shuffling, since a register of bytes holds low nibbles of some columns and high nibbles of
 * others. The activations are put in the same order when they are quantised (int8.c). With groups
 * of 16 columns every register has groups of its own, and only the shuffling is saved.
 *
 * Only with 512-bit registers and for types of 2 to 6 bits; with 8 bits memory bandwidth is the
 * limit. */
#ifndef GR_CPU_FAST_LANES_H
#define GR_CPU_FAST_LANES_H

#include "cpu/fast/unpack.h"

/* Returns whether a type has a lane order. */
GR_INLINE bool lane_order(uint32_t dtype)
{
#ifdef GR_LEVEL_avx512
    switch (dtype) {
    case GR_Q4_0:
    case GR_Q4_1:
    case GR_Q5_0:
    case GR_Q5_1:
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
#else
    (void)dtype;
    return false;
#endif
}

/* Returns the number of registers of quants whose dot products share one integer sum. */
GR_INLINE int lane_both(uint32_t dtype)
{
    return lane_order(dtype) && unit_kind(dtype).group == 32 ? 2 : 1;
}

/* Returns which 16 columns of a unit are at place i: quarter i % 4 of register i / 4. Blocks of 32
 * columns: their first halves, then their second ones, four blocks at a time. Q4_K and Q5_K have 64
 * columns in 32 bytes; types with groups of 16 have 128 columns in 32 bytes of fields, 32 in each
 * field. */
static inline int lane_piece(uint32_t dtype, int i)
{
    int k = i / 4, quarter = i % 4;
    if (!lane_order(dtype))
        return i;
    if (unit_kind(dtype).group == 16)
        return quarter / 2 * 8 + 2 * k + quarter % 2;
    if (dtype == GR_Q4_K || dtype == GR_Q5_K)
        return quarter * 4 + k;
    return k / 2 * 8 + quarter * 2 + k % 2;
}

/* Returns whether a unit's d and m share one register, as steps and sums of x do: types with
 * minima. */
GR_INLINE bool lane_joined(uint32_t dtype)
{
    return lane_order(dtype) && unit_kind(dtype).min && unit_kind(dtype).group == 32;
}

/* Lane of the d of group g of a unit, and of its m: the order in which they are unpacked. */
static inline int lane_d(uint32_t dtype, int g)
{
    if (!lane_joined(dtype))
        return g;
    return dtype == GR_Q4_K || dtype == GR_Q5_K ? g + g / 4 * 4 : 2 * g;
}

static inline int lane_m(uint32_t dtype, int g)
{
    return lane_d(dtype, g) + (dtype == GR_Q4_K || dtype == GR_Q5_K ? 4 : 1);
}

#ifdef GR_LEVEL_avx512
/* Index registers, constant during a row. */
struct lane_tables {
    vi group[UNIT_Q]; /* lane of the d for each lane of sum k */
    vi halves;        /* selects d or dmin for each joined factor */
    vi words[3]; /* blocks of 18 bytes: words of the bytes of blocks 0 .. 3, 4 .. 7, of factors */
};

GR_INLINE struct lane_tables lane_tables(uint32_t dtype)
{
#define WORDS(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
    const int16_t words[3][32] = {{WORDS(1), WORDS(10), WORDS(19), WORDS(28)},
                                  {WORDS(5), WORDS(14), WORDS(23), WORDS(56)},
                                  {0, 9, 18, 27, 36, 45, 54, 63}};
#undef WORDS
    const int both = lane_both(dtype), n_sum = UNIT_Q / both;
    struct lane_tables t;
    GR_UNROLL
    for (int k = 0; k < n_sum; k++) {
        int32_t group[VL];
        for (int i = 0; i < VL; i++)
            group[i] = lane_d(dtype, lane_piece(dtype, 4 * both * k + i / 4) * 16 /
                                         unit_kind(dtype).group);
        t.group[k] = vi_hold(vi_load(group));
    }
    t.halves = vi_hold(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1));
    GR_UNROLL
    for (int k = 0; k < 3; k++)
        t.words[k] = vi_hold(vi_load(words[k]));
    return t;
}

/* Loads 16 bytes of each of four blocks. */
GR_INLINE vi quarters_at(const char *p, size_t size)
{
    __m256i a = _mm256_set_m128i(load16(p + size), load16(p));
    return join(a, _mm256_set_m128i(load16(p + 3 * size), load16(p + 2 * size)));
}

/* Loads the bytes of nibbles of blocks 0 .. 3 and 4 .. 7, 16 bytes each. */
GR_INLINE void block_bytes(const char *p, size_t size, size_t at, vi out[2])
{
    if (size == 16)
        out[0] = vi_load(p + at), out[1] = vi_load(p + at + 64);
    else
        out[0] = quarters_at(p + at, size), out[1] = quarters_at(p + at + 4 * size, size);
}

/* The same for blocks of 18 bytes, and their factors: both are 16-bit words, which one instruction
 * gathers from two registers. */
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

/* Unpacks the nibbles of 128 bytes, each 32 of which hold 64 columns. */
GR_INLINE void lanes_64(const uint8_t *qs, struct unit *u)
{
    vi x = vi_hold(vi_load(qs)), y = vi_hold(vi_load(qs + 64));
    vi first = _mm512_shuffle_i64x2(x, y, 0x88), second = _mm512_shuffle_i64x2(x, y, 0xdd);
    u->q[0] = low_nibbles(first), u->q[1] = low_nibbles(second);
    u->q[2] = high_nibbles(first), u->q[3] = high_nibbles(second);
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

/* Bit i of byte j of qh is that of column 32 i + j: quarter c wants bits 2 c and 2 c + 1. They are
 * rotated to the position of the fifth bit, and the one above. */
GR_INLINE void lanes_q5_K(const struct gr_q5_K *b, struct unit *u)
{
    const vi turn = _mm512_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30);
    lanes_64(b->qs, u);
    GR_UNROLL
    for (int k = 0; k < 2; k++) {
        vi bits = _mm512_rolv_epi32(_mm512_broadcast_i32x4(load16(b->qh + 16 * k)), turn);
        u->q[k] = with_bits(u->q[k], bits, 16);
        u->q[2 + k] = with_bits(u->q[2 + k], moved(bits, -1), 16);
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

GR_INLINE void lanes_blocks(uint32_t dtype, const vi bytes[2], struct unit *u)
{
    GR_UNROLL
    for (int k = 0; k < 2; k++) {
        u->q[2 * k] = lane_values(dtype, low_nibbles(bytes[k]));
        u->q[2 * k + 1] = lane_values(dtype, high_nibbles(bytes[k]));
    }
}

/* Adds the fifth bits of blocks, 32 bits at byte `at` of each. */
GR_INLINE void lanes_fifth(const char *p, size_t size, size_t at, struct unit *u)
{
    const vi bit = _mm512_set1_epi8(16);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++) {
        const uint8_t *from = (const uint8_t *)p + (size_t)(k / 2) * 4 * size;
        __mmask64 set = (__mmask64)four_halves(from, size, at + (size_t)(k % 2) * 2);
        u->q[k] = _mm512_mask_add_epi8(u->q[k], set, u->q[k], bit);
    }
}

/* Scales and minima as in scales_6(), four of each alternately, times d and dmin. */
GR_INLINE vf joined_6(const void *halves, const uint8_t packed[12], const struct lane_tables *t)
{
    uint64_t ab;
    uint32_t c, both;
    memcpy(&ab, packed, 8), memcpy(&c, packed + 8, 4), memcpy(&both, halves, 4);
    uint64_t first = ab & 0x3f3f3f3f3f3f3f3f, second = ab >> 2 & 0x3030303030303030;
    second |= (c & 0x0f0f0f0f) | (uint64_t)(c & 0xf0f0f0f0) << 28;
    __m128i all = _mm_set_epi64x((long long)second, (long long)first);
    __m128 two = _mm_cvtph_ps(_mm_cvtsi32_si128((int)both));
    return vf_of_int(_mm512_cvtepu8_epi32(all)) *
           _mm512_permutexvar_ps(t->halves, _mm512_castps128_ps512(two));
}

/* Alternating d and m, the first bytes of eight blocks. */
GR_INLINE vf joined_halves(const char *p, size_t size)
{
    __m128i x[2];
    GR_UNROLL
    for (int k = 0; k < 2; k++, p += 4 * size)
        x[k] = _mm_setr_epi32((int)u32_at(p), (int)u32_at(p + size), (int)u32_at(p + 2 * size),
                              (int)u32_at(p + 3 * size));
    return _mm512_cvtph_ps(_mm256_set_m128i(x[1], x[0]));
}

/* acc + the minima in s, which holds the joined factors times steps and sums. */
GR_INLINE vf add_minima(uint32_t dtype, vf acc, vf s)
{
    if (dtype == GR_Q4_K || dtype == GR_Q5_K)
        return _mm512_mask_sub_ps(acc, 0xf0f0, acc, s);
    return _mm512_mask_add_ps(acc, 0xaaaa, acc, s);
}

/* Unpacks a unit of a type that has a lane order. Factors are joined, or those of unpack(), whose
 * unused results the compiler removes. */
GR_INLINE void unpack_lanes(uint32_t dtype, const char *p, const struct lane_tables *t,
                            struct unit *u)
{
    vi bytes[2];
    unpack(dtype, p, u);
    switch (dtype) {
    case GR_Q4_K:
        lanes_64(((const struct gr_q4_K *)(const void *)p)->qs, u);
        u->d[0] = joined_6(p, ((const struct gr_q4_K *)(const void *)p)->scales, t);
        break;
    case GR_Q5_K:
        lanes_q5_K((const void *)p, u);
        u->d[0] = joined_6(p, ((const struct gr_q5_K *)(const void *)p)->scales, t);
        break;
    case GR_Q6_K:
        lanes_q6_K((const void *)p, u);
        break;
    case GR_Q3_K:
        lanes_q3_K((const void *)p, u);
        break;
    case GR_Q2_K:
        lanes_fields(((const struct gr_q2_K *)(const void *)p)->qs, u);
        break;
    case GR_Q5_0:
        block_bytes(p, 22, 6, bytes);
        lanes_blocks(dtype, bytes, u);
        lanes_fifth(p, 22, 2, u);
        break;
    case GR_Q5_1:
        block_bytes(p, 24, 8, bytes);
        lanes_blocks(dtype, bytes, u);
        lanes_fifth(p, 24, 4, u);
        u->d[0] = joined_halves(p, 24);
        break;
    case GR_Q4_0:
    case GR_IQ4_NL:
        block_words(p, t, bytes, u->d);
        lanes_blocks(dtype, bytes, u);
        break;
    case GR_Q4_1:
        block_bytes(p, 20, 4, bytes);
        lanes_blocks(dtype, bytes, u);
        u->d[0] = joined_halves(p, 20);
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
