/* Layout of the quantised blocks as they stand in a GGUF file. All little-endian, no padding.
 * `gr_half` is IEEE binary16 kept as its bits. x is the value, q the stored integer.
 * Source of the layouts: github.com/ggml-org/ggml, src/ggml-common.h (facts of the file format). */
#ifndef GR_QUANT_BLOCKS_H
#define GR_QUANT_BLOCKS_H

#include <stdint.h>

#define GR_QK 32    /* elements of a simple block */
#define GR_QK_K 256 /* elements of a super-block ("K", "IQ" and "TQ" types) */

typedef uint16_t gr_half;
typedef uint16_t gr_bf16;

/* x = d * (q - 8); low nibbles are elements 0..15, high nibbles 16..31 */
struct gr_q4_0 {
    gr_half d;
    uint8_t qs[16];
};
/* x = d * q + m; nibbles as in q4_0 */
struct gr_q4_1 {
    gr_half d, m;
    uint8_t qs[16];
};
/* x = d * (q - 16); bit 4 of element i is bit i of qh */
struct gr_q5_0 {
    gr_half d;
    uint8_t qh[4];
    uint8_t qs[16];
};
/* x = d * q + m */
struct gr_q5_1 {
    gr_half d, m;
    uint8_t qh[4];
    uint8_t qs[16];
};
/* x = d * q */
struct gr_q8_0 {
    gr_half d;
    int8_t qs[32];
};

/* as q8_0 with s = d * sum of q: a type of activations, rare in files */
struct gr_q8_1 {
    gr_half d, s;
    int8_t qs[32];
};

/* 16 groups of 16: x = d * (scales & 15) * q - dmin * (scales >> 4), q of 2 bits */
struct gr_q2_K {
    uint8_t scales[16];
    uint8_t qs[64];
    gr_half d, dmin;
};
/* 16 groups of 16: x = d * (6-bit scale - 32) * (q - 4), q of 3 bits: two in qs, the high one in
 * hmask */
struct gr_q3_K {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    gr_half d;
};
/* 8 groups of 32: x = d * sc * q - dmin * m, sc and m of 6 bits packed into scales */
struct gr_q4_K {
    gr_half d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
};
/* as q4_K with the fifth bit in qh */
struct gr_q5_K {
    gr_half d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
};
/* 16 groups of 16: x = d * scale * (q - 32), q of 6 bits: four in ql, two in qh */
struct gr_q6_K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    gr_half d;
};
/* x = d * q, the only super-block with an f32 scale; sums[g] is the sum of the quants 16 g .. 16 g
 * + 15 */
struct gr_q8_K {
    float d;
    int8_t qs[256];
    int16_t sums[16];
};

/* x = d for bit 1, -d for bit 0; 128 elements, bits in order */
struct gr_q1_0 {
    gr_half d;
    uint8_t qs[16];
};
/* x = d * (q - 1); 64 elements of 2 bits in order */
struct gr_q2_0 {
    gr_half d;
    uint8_t qs[16];
};
/* x = d * (digit - 1). A byte b is a fraction b / 256 of five ternary digits, four in qh: digit k
 * is (b * 3^k mod 256) * 3 / 256. Digit k of the first 32 bytes are elements 32 k .. 32 k + 31, of
 * the next 16 bytes 160 + 16 k .., of qh 240 + 4 k .. */
struct gr_tq1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    gr_half d;
};
/* x = d * (q - 1), planes of 2 bits as in q2_K */
struct gr_tq2_0 {
    uint8_t qs[64];
    gr_half d;
};

/* x = d * GR_IQ4_VALUES[q], nibbles as in q4_0 */
struct gr_iq4_nl {
    gr_half d;
    uint8_t qs[16];
};
/* 8 groups of 32, each with nibbles as in q4_0: x = d * (scale - 32) * GR_IQ4_VALUES[q]; 4 bits of
 * scale g are nibble g of scales_l, 2 above them are bits 2 g of scales_h */
struct gr_iq4_xs {
    gr_half d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
};
#define GR_IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

/* x = 2^(e - 127) / 2 * GR_FP4_VALUES[q], nibbles as in q4_0 (OCP Microscaling Formats 1.0) */
struct gr_mxfp4 {
    uint8_t e;
    uint8_t qs[16];
};
/* 4 groups of 16, each with nibbles of 8 bytes: x = d / 2 * GR_FP4_VALUES[q], d a float of 4 bits
 * exponent (bias 7) and 3 bits mantissa without sign, where 127 counts as 0 and bit 7 is ignored
 */
struct gr_nvfp4 {
    uint8_t d[4];
    uint8_t qs[32];
};
/* twice the values of a float of 2 bits exponent and 1 bit mantissa */
#define GR_FP4_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Types whose elements are, 8 (IQ3: 4) at a time, points of a grid: gr/quant_grids.h. */

/* 8 groups of 32: x = d * (scale + 1/2) / 4 * grid * sign. index[g] are the four points of a group;
 * signs[g], a little-endian u32 in halves, has four times 7 bits of signs, the 8th of which is
 * their parity, and the scale in the upper 4 bits */
struct gr_iq2_xxs {
    gr_half d;
    struct {
        uint8_t index[4];
        uint16_t signs[2];
    } group[8];
};
/* 16 groups of 16: x = d * (scale + 1/2) / 4 * grid * sign; each of qs has 9 bits of index and 7 of
 * signs; scales are nibbles in order */
struct gr_iq2_xs {
    gr_half d;
    uint16_t qs[32];
    uint8_t scales[8];
};
/* as iq2_xs with 8 bits of signs for each point; 2 upper bits of index i are bits 2 i of qh */
struct gr_iq2_s {
    gr_half d;
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];
};
/* 8 groups of 32: x = d * (scale + 1/2) / 2 * grid * sign, eight points of 4 elements a group;
 * signs and scale as in iq2_xxs */
struct gr_iq3_xxs {
    gr_half d;
    uint8_t qs[64];
    uint16_t signs[16];
};
/* 8 groups of 32: x = d * (2 * scale + 1) * grid * sign; the 9th bit of index i is bit i of qh;
 * scales are nibbles in order */
struct gr_iq3_s {
    gr_half d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
};
/* 8 groups of 32: x = d * (2 * scale + 1) * (grid +- 1/8). qh: 3 upper bits of each of the four
 * indices, 3 bits of scale, 1 for minus */
struct gr_iq1_s {
    gr_half d;
    uint8_t qs[32];
    uint16_t qh[8];
};
/* 16 groups of 16: x = d * (2 * scale + 1) * (grid +- 1/8). Nibble i of qh: 3 upper bits of index i
 * and 1 for minus. scales: in each 12 bits of four scales, above them 4 bits of d, the lowest
 * first */
struct gr_iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];
    uint16_t scales[4];
};

#endif
