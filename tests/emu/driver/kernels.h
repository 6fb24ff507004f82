/* Arguments of kernels.cu. */
#ifndef TESTS_EMU_DRIVER_KERNELS_H
#define TESTS_EMU_DRIVER_KERNELS_H

#include <stdint.h>

struct test_add_args { /* dst[i] = src[i] + add for i < n */
    uint32_t *dst;
    const uint32_t *src;
    uint32_t n, add;
};

#endif
