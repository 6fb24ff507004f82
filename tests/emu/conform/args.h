/* The argument struct of all kernels of the conformance suite. */
#ifndef TESTS_EMU_CONFORM_ARGS_H
#define TESTS_EMU_CONFORM_ARGS_H

#include "gr/kernel/tensor_map.h"

struct conform_args {
    struct gr_tensor_map map;
    const void *in;
    void *out;
    int32_t p[16]; /* parameters, named by each kernel */
};

/* Products: what p of the wgmma kernels holds. */
enum {
    CONFORM_STEPS,      /* products of 16 of k, one after another */
    CONFORM_ACCUMULATE, /* 1: the first one adds to d = conform_start(thread, i) */
    CONFORM_A_BYTES,    /* the image of a at the start of `in`; 0: registers, [step][thread][4] */
    CONFORM_A_LBO,
    CONFORM_A_SBO,
    CONFORM_A_SWIZZLE,
    CONFORM_A_STEP, /* bytes from one product's a to the next one's */
    CONFORM_B_BYTES,
    CONFORM_B_LBO,
    CONFORM_B_SBO,
    CONFORM_B_SWIZZLE,
    CONFORM_B_STEP
};

#endif
