/* The step block: everything that changes from step to step of one plan, in one contiguous piece.
 *
 * Its layout depends on the plan's shape alone. A plan refers to its arrays by struct gr_ten with
 * fixed addresses. The lists of cells come first: they have room for the longest list of a
 * session, so that one plan serves any length, have the same addresses in all plans of the
 * session, and only changed items are uploaded. One copy uploads the arrays behind them. */
#ifndef GR_STEP_H
#define GR_STEP_H

#include <stdint.h>

/* Shape of a step. The arrays of caches come in pairs: for layers that see all positions, and for
 * those with a sliding window (_swa). */
struct gr_step_shape {
    int32_t n_tok, n_out;
    int32_t n_pos;              /* positions of a token: 1, or 3 with M-RoPE */
    int32_t n_full, n_swa;      /* n_tok or 0: tokens that each attention cache stores */
    int32_t n_list, n_list_swa; /* items that the lists have room for */
    int32_t n_alibi;            /* n_list or 0 */
    int32_t n_far;              /* n_tok or 0: with a second, grouped position */
    int32_t n_seq;              /* sequences of a micro-batch of equal ones; 0 without state */
    int32_t n_delta, n_delta_swa, n_delta_far; /* cells of a K-shift */
    int32_t n_copy;                            /* rows of a copy */
    int32_t n_sample;                          /* n_out or 0: tokens that the device draws */
    int32_t n_edit, n_mask,
        n_mask_word;             /* room for edits of their logits, and masks; words of one */
    int32_t n_pool, n_pool_item; /* sequences whose wanted rows are pooled into one, and the rows
                                    of all of them; 0: no pooling */
    int32_t n_embd;  /* length of the vectors given in place of tokens; 0: tokens are given */
    int32_t one_run; /* 1: more than GR_ATTN_FEW tokens, all of one sequence */
};

/* STEP(NAME, length in 32-bit items, meaning) */
#define GR_STEP_ARRAYS(STEP)                                                                       \
    STEP(LIST, n_list, "cells of the micro-batch's sequences, each in the order of positions")     \
    STEP(LIST_SWA, n_list_swa, "the same in the cache of the windowed layers")                     \
    STEP(KEY_POS, n_alibi, "position of each item of LIST")                                        \
    STEP(TOKENS, n_tok, "token ids")                                                               \
    STEP(POS, n_pos *n_tok, "[n_pos][n_tok] position of each token in its sequence: t, y, x")      \
    STEP(OUT_ROWS, n_out, "rows of the micro-batch whose logits are wanted")                       \
    STEP(CELLS, n_full, "cell that each token's K and V go to")                                    \
    STEP(CELLS_SWA, n_swa, "the same in the cache of the windowed layers")                         \
    STEP(SPAN, 3 * n_full, "lo, near, hi: the items of LIST that each token sees")                 \
    STEP(SPAN_SWA, 3 * n_swa, "lo, lo, hi: the items of LIST_SWA that each token sees")            \
    STEP(FAR_Q, n_far, "grouped position of each token as a query")                                \
    STEP(FAR_K, n_far, "grouped position of each token as a key")                                  \
    STEP(STATE_SRC, n_seq, "row that each sequence's recurrent state comes from, -1 = zeros")      \
    STEP(STATE_DST, n_seq, "row that its new state goes to")                                       \
    STEP(DELTA, n_delta, "shift of each cell; only in a K-shift plan")                             \
    STEP(DELTA_SWA, n_delta_swa, "the same in the cache of the windowed layers")                   \
    STEP(DELTA_FAR, n_delta_far, "shift of each cell's grouped position")                          \
    STEP(COPY_SRC, n_copy, "rows to copy; only in a copy plan")                                    \
    STEP(COPY_DST, n_copy, "and where to")                                                         \
    STEP(SAMPLE, 14 * n_sample, "struct gr_sample_row of each row of logits")                      \
    STEP(EDITS, 3 * n_edit, "struct gr_sample_edit: logits that rows change")                      \
    STEP(MASKS, n_mask *n_mask_word, "tokens that rows allow, a bit each")                         \
    STEP(POOL_LIST, n_pool_item, "wanted rows, one sequence's after another's")                    \
    STEP(POOL_AT, n_pool + (n_pool > 0), "where each sequence's items begin, and where all end")   \
    STEP(EMBD, n_embd *n_tok, "f32 [n_tok][n_embd] vectors in place of the tokens")

enum gr_step_array {
#define STEP(NAME, length, meaning) GR_STEP_##NAME,
    GR_STEP_ARRAYS(STEP)
#undef STEP
        GR_N_STEP
};

/* Byte offsets of the arrays (each aligned to 64) and the total. */
struct gr_step_layout {
    int64_t offset[GR_N_STEP];
    int64_t count[GR_N_STEP]; /* items */
    int64_t bytes;
};

/* Bytes of the lists. */
static inline int64_t gr_step_lists(const struct gr_step_layout *l)
{
    return l->offset[GR_STEP_KEY_POS + 1];
}

static inline struct gr_step_layout gr_step_layout(const struct gr_step_shape *s)
{
    int64_t n_tok = s->n_tok, n_out = s->n_out, n_pos = s->n_pos, n_full = s->n_full,
            n_swa = s->n_swa, n_list = s->n_list, n_list_swa = s->n_list_swa, n_alibi = s->n_alibi,
            n_far = s->n_far, n_seq = s->n_seq, n_delta = s->n_delta, n_delta_swa = s->n_delta_swa,
            n_delta_far = s->n_delta_far, n_copy = s->n_copy, n_sample = s->n_sample,
            n_edit = s->n_edit, n_mask = s->n_mask, n_mask_word = s->n_mask_word,
            n_pool = s->n_pool, n_pool_item = s->n_pool_item, n_embd = s->n_embd;
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
