/* Epilogue of a launch of products: small operations that follow it.
 *
 * A launch's results may be cut into n_slice equal runs of columns, of each matrix the same. The
 * block that is the last to finish its part of a slice does that slice of the first n_sliced steps;
 * the block that is the last of all does the remaining steps as a whole. The result is written as
 * packed x by the block of the slice where slices are whole chunks, or by the last of all. It does
 * not depend on which block that is: each adds in the same order. */
#ifndef GR_KERNEL_EPILOGUE_H
#define GR_KERNEL_EPILOGUE_H

#include "gr/kernel/matmul.h"
#include "gr/op.h"

enum { GR_EPILOGUE_STEPS = 4, GR_EPILOGUE_SLICES = 64 };

struct gr_epilogue_step {
    uint32_t op; /* enum gr_op: NORM, GLU, EXPERT_SUM, KV_STORE, ROPE; aligned to 16 bytes where
                    they can be */
    union {
        struct gr_args_norm norm;
        struct gr_args_glu glu;
        struct gr_args_expert_sum expert_sum;
        struct gr_args_kv_store kv_store;
        struct gr_args_rope rope;
    } a;
};

struct gr_epilogue {
    uint32_t *count; /* [n_slice + 1]: tiles of a slice, and slices, that are done; zeros before
                        and after. NULL: no epilogue */
    uint32_t n_slice, n_work; /* n_work: tiles of a slice, of all products and items */
    uint32_t n_sliced, n_step;
    struct gr_epilogue_step step[GR_EPILOGUE_STEPS];
    struct gr_matmul_x_args packed_x; /* of the result, by lane; to.n = 0: none */
    uint32_t slice_chunks;            /* of packed x, of a slice; 0: the last block writes all */
};

/* Units of the columns of a tile that a warp of a product of few tokens fetches at once: a chunk,
 * or half of one where that is large. */
GR_PACK_FN int32_t gr_mv_slot_units(uint32_t dtype)
{
    return gr_pack_type(dtype).bits[0] == 16 ? 4 : 8;
}

/* Bytes of n of these units. Slot i of a tile begins at i times those of a whole one. */
GR_PACK_FN uint32_t gr_mv_slot_bytes(uint32_t dtype, int32_t n)
{
    return (uint32_t)gr_pack_chunk_bytes(dtype, n);
}

/* Up to three products in one launch for few tokens. Blocks share the tiles of n_item items of
 * each, in the order of the slices of `epilogue`; those of up to 8 tokens do what it says. */
struct gr_matmul_mv_args {
    struct gr_matmul_args part[GR_MATMUL_PARTS];
    int32_t n, n_item;
    int32_t n_slot;       /* of the ring of a warp, gr_mv_slot_bytes each */
    uint32_t copy_engine; /* it fills them; 0: cp.async does */
    struct gr_epilogue epilogue;
};

/* A product of few tokens with F32 weights (kernels/matmul_f32.cu). A matrix of few rows has its
 * columns divided among n_split blocks for each 8 tokens of a tile, whose sums `part` holds; the
 * last block of them adds these up. Where a ROUTE of the result is next, the last block of all
 * does it, after it has added up all tiles. */
struct gr_matmul_f32_args {
    struct gr_matmul_args m;
    struct gr_args_route route;
    uint32_t n_router; /* warps that share the tokens of ROUTE; 0: there is no ROUTE */
    uint32_t n_split;  /* 1: no parts */
    float *part;       /* [n_split][groups of 8 tokens][tiles of all items][8 tokens][16 rows] */
    uint32_t *count;   /* [groups * tiles] or, with ROUTE, [1]; zeros before and after */
};

#endif
