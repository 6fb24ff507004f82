// Arguments of engine.cu.
#ifndef TESTS_EMU_TEST_KERNELS_ENGINE_H
#define TESTS_EMU_TEST_KERNELS_ENGINE_H

#include "gr/kernel/tensor_map.h"

struct engine_args { // c [64, 64] = a [64, 64 n_tile] b [64, 64 n_tile]^T; f16, boxes of [64, 64]
    struct gr_tensor_map map_a, map_b;
    const uint16_t *a, *b; // the same matrices
    float *c;
    int n_tile;
};
// Faults of test_ring_<name>; `none` and one_of_warp, where one lane of each warp gives a stage
// back, are right.
#define ENGINE_FAULTS(F)                                                                           \
    F(none)                                                                                        \
    F(one_of_warp)                                                                                 \
    F(no_wait)                                                                                     \
    F(one_waits)                                                                                   \
    F(half_expected)                                                                               \
    F(read_early)                                                                                  \
    F(released_early)                                                                              \
    F(wrong_swizzle)                                                                               \
    F(misaligned_box)                                                                              \
    F(no_wgmma_fence)                                                                              \
    F(no_commit)                                                                                   \
    F(no_wgmma_wait)                                                                               \
    F(no_mbar_fence)                                                                               \
    F(no_mbar_sync)                                                                                \
    F(one_arrival)                                                                                 \
    F(many_arrivals)                                                                               \
    F(another_tile)

#endif
