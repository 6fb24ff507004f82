/* The step block: everything that changes from step to step of one plan, in one contiguous piece
 * that one copy uploads.
 *
 * Its layout depends on the plan's shape alone. A plan refers to its arrays by struct gr_ten with
 * fixed addresses. */
#ifndef GR_STEP_H
#define GR_STEP_H

#include <stdint.h>

/* STEP(NAME, length in 32-bit items, meaning); n_tok, n_kv, n_out are the plan's shape; mask rows
 * are n_kv / 32 words. */
#define GR_STEP_ARRAYS(STEP)                                                                       \
    STEP(TOKENS, n_tok, "token ids")                                                               \
    STEP(POS, n_tok, "position of each token in its sequence")                                     \
    STEP(CELLS, n_tok, "cell that each token's K and V go to")                                     \
    STEP(OUT_ROWS, n_out, "rows of the micro-batch whose logits are wanted")                       \
    STEP(CELL_POS, n_kv, "position of each cell, -1 when empty")                                   \
    STEP(MASK, n_tok *(n_kv / 32), "visible cells of each token, a bit a cell")                    \
    STEP(MASK_SWA, n_swa *(n_kv / 32), "the same within the sliding window; n_swa = n_tok or 0")   \
    STEP(DELTA, n_delta, "shift of each cell; only in the K-shift plan")

enum gr_step_array {
#define STEP(NAME, length, meaning) GR_STEP_##NAME,
    GR_STEP_ARRAYS(STEP)
#undef STEP
        GR_N_STEP
};

/* Shape of a step: n_kv is a multiple of 32 (256 but in tests). */
struct gr_step_shape {
    int32_t n_tok, n_kv, n_out, n_swa, n_delta;
};

/* Byte offsets of the arrays (each aligned to 64) and the total. */
struct gr_step_layout {
    int64_t offset[GR_N_STEP];
    int64_t count[GR_N_STEP]; /* items */
    int64_t bytes;
};

static inline struct gr_step_layout gr_step_layout(const struct gr_step_shape *s)
{
    int64_t n_tok = s->n_tok, n_kv = s->n_kv, n_out = s->n_out, n_swa = s->n_swa,
            n_delta = s->n_delta;
    struct gr_step_layout l = {{0}, {0}, 0};
#define STEP(NAME, length, meaning)                                                                \
    l.offset[GR_STEP_##NAME] = l.bytes;                                                            \
    l.count[GR_STEP_##NAME] = (length);                                                            \
    l.bytes += ((length)*4 + 63) / 64 * 64;
    GR_STEP_ARRAYS(STEP)
#undef STEP
    return l;
}

#endif
