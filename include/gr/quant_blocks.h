/* Layout of the quantised blocks as they stand in a GGUF file. All little-endian, no padding.
 * `gr_half` is IEEE binary16 kept as its bits. x is the value, q the stored integer.
 * Source of the layouts: github.com/ggml-org/ggml, src/ggml-common.h (facts of the file format). */
#ifndef GR_QUANT_BLOCKS_H
#define GR_QUANT_BLOCKS_H

#include <stdint.h>

#define GR_QK 32    /* elements of a simple block */
#define GR_QK_K 256 /* elements of a super-block ("K" types) */

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

#endif
