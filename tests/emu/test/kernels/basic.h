// Arguments of the kernels of this folder.
#ifndef TESTS_EMU_TEST_KERNELS_BASIC_H
#define TESTS_EMU_TEST_KERNELS_BASIC_H

#include <stdint.h>

struct scale_args {
    const float *x;
    float *y;
    uint32_t n;
    float factor;
};
struct sum_args { // a block a row
    const float *x;
    float *y;
    uint32_t n;
};
struct gemm_args { // c [m, n] = a [m, k] b [n, k]^T; f16, tiles of 64 x 64 x 32
    const uint16_t *a, *b;
    float *c;
    uint32_t m, n, k;
};
struct repeat_args {
    float *y; /* of each thread */
    uint32_t n;
};
struct fault_args {
    const float *x;
    float *y; /* n of each */
    uint32_t n;
    uint32_t *word;
};

#endif
