/* The KV cache's metadata: which cell holds which position of which sequences. No K or V data lives
 * here.
 *
 * A cell is empty (pos -1, no sequence) or holds one token's position, the shift that its K still
 * needs (delta) and the set of sequences that see it. Positions of a sequence may repeat
 * (Self-Extend), so nothing is keyed by position. A batch is placed in three steps: gr_kv_reserve
 * finds cells for all of its micro-batches or changes nothing, gr_kv_commit keeps them when the
 * computation is done, gr_kv_abort gives them back. */
#ifndef GR_KV_KV_H
#define GR_KV_KV_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "batch/batch.h"

struct gr_kv;

struct gr_kv_params {
    uint32_t n_cell;    /* rows of the cache, 1 to 2^30 */
    uint32_t n_seq_max; /* 1 to GR_SEQ_MAX */
    uint32_t n_pad;  /* the used range is rounded up to this: 256; 32 in the compatibility tests */
    bool contiguous; /* a micro-batch takes neighbouring cells only */
};

/* GR_E_INVALID for a parameter out of range, n_pad not a multiple of 32 among them. */
int gr_kv_new(struct gr_kv **out, const struct gr_kv_params *p);
void gr_kv_free(struct gr_kv **kv);

/* Sequence operations with the meaning documented in gpurun.h; the session forwards to these.
 * GR_E_INVALID for a sequence that does not exist, a position that would exceed GR_POS_MAX, d < 1;
 * GR_E_INTERNAL between reserve and commit or abort. Nothing changed then. A range that is empty,
 * delta 0 and d 1 change nothing at all. */
int gr_kv_cells_rm(struct gr_kv *kv, int32_t seq, int32_t p0, int32_t p1);
int gr_kv_cells_cp(struct gr_kv *kv, int32_t src, int32_t dst, int32_t p0, int32_t p1);
int gr_kv_cells_keep(struct gr_kv *kv, int32_t seq);
int gr_kv_cells_add(struct gr_kv *kv, int32_t seq, int32_t p0, int32_t p1, int32_t delta);
int gr_kv_cells_div(struct gr_kv *kv, int32_t seq, int32_t p0, int32_t p1, int32_t d);
void gr_kv_cells_clear(struct gr_kv *kv);
int32_t gr_kv_cells_pos_min(const struct gr_kv *kv, int32_t seq);
int32_t gr_kv_cells_pos_max(const struct gr_kv *kv, int32_t seq);
/* Fills in what a batch is checked against, but for n_vocab and n_batch. */
void gr_kv_limits(const struct gr_kv *kv, struct gr_batch_limits *limits);

/* Finds a cell for every token of the n_ub micro-batches `ub` (neighbouring pieces of one batch)
 * and marks them used; cells[] (sum of n_tok items, in order) receives their numbers. The search
 * for each micro-batch starts at the head, which is behind the one before, or at 0 when the head is
 * more than twice the micro-batch beyond the number of used cells. GR_E_KV_FULL with tokens wanted,
 * cells free and the remedy, or GR_E_NOMEM_HOST; nothing changed then. */
int gr_kv_reserve(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_ub, int32_t *cells);
/* Keeps the reserved cells and moves the head behind the last one. */
void gr_kv_commit(struct gr_kv *kv);
/* Empties the reserved cells; the cache is as before gr_kv_reserve. */
void gr_kv_abort(struct gr_kv *kv);

/* Until commit or abort the cells of all micro-batches are marked, but those of later ones hold no
 * K and V yet. A causal mask hides them because they lie in the future; any other mask hides them
 * by name. So attention that is not causal sees all of a batch only when the batch is one
 * micro-batch. */

/* Cells that attention must look at: one past the last used cell, rounded up to n_pad, at most
 * n_cell, at least n_pad. */
int32_t gr_kv_n_kv(const struct gr_kv *kv);

/* What the tokens of a micro-batch see. Its list has, for each first sequence of its tokens (tokens
 * of several sequences have the same past), that sequence's cells in the order of their positions,
 * equal ones in the order in which they were stored; each token's span is a range of it. The order
 * depends neither on where cells lie nor on other sequences. */

/* Items of the list; GR_E_NOMEM_HOST. Good until the cells change. */
int gr_kv_list(struct gr_kv *kv, const struct gr_ubatch *ub, int64_t *n_list);
/* That, rounded up so that lists of many lengths share a plan. */
int64_t gr_kv_list_round(int64_t n_list);
/* list [n_list], span [n_tok][3]: lo, lo, hi; causal: no later positions; window > 0: no positions
 * further back than that. key_pos [n_list] receives the positions of the items, or is NULL. After
 * gr_kv_list. */
void gr_kv_fill(const struct gr_kv *kv, const struct gr_ubatch *ub, bool causal, int32_t window,
                int32_t *list, int32_t *span, int32_t *key_pos);

/* bits [ub->n_tok][(n_kv + 31) / 32]: bit j of a token's row is set when cell j is used, belongs to
 * the token's first sequence, is not in its future (causal), and, with window > 0, pos - cell pos <
 * window. n_kv <= n_cell; the bits past it in the last word are 0. */
void gr_kv_mask(const struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_kv, bool causal,
                int32_t window, uint32_t *bits);
/* The same as numbers, for tests and the padded-mask traces: 0 (or -|distance| with alibi) and
 * -INFINITY, rows padded with -INFINITY rows to a multiple of n_pad_row. */
void gr_kv_mask_dense(const struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_kv, bool causal,
                      int32_t window, bool alibi, int32_t n_pad_row, float *mask);

/* Whether any cell has a delta. gr_kv_deltas copies the delta of the first n_kv cells, 0 for empty
 * ones; behind gr_kv_n_kv there is none. gr_kv_shifted says that K was rotated by them: they are 0
 * again. */
bool gr_kv_has_shift(const struct gr_kv *kv);
void gr_kv_deltas(const struct gr_kv *kv, int32_t n_kv, int32_t *delta);
void gr_kv_shifted(struct gr_kv *kv);

/* One cell, for tests, dumps and state; i < n_cell. */
struct gr_cell {
    int32_t pos, delta;
    int32_t n_seq; /* sequences that see it */
    int32_t seq;   /* the lowest of them, -1 when empty */
};
struct gr_cell gr_kv_cell(const struct gr_kv *kv, uint32_t i);
bool gr_kv_cell_has(const struct gr_kv *kv, uint32_t i, int32_t seq);
uint32_t gr_kv_n_cell(const struct gr_kv *kv);
uint32_t gr_kv_n_used(const struct gr_kv *kv);
uint32_t gr_kv_head(const struct gr_kv *kv);

/* Prints a map of the cells (a character a cell: 0-9a-z sequence, # a later one, + shared, . free;
 * equal lines once), and per sequence its cells, positions and pending deltas. Readable at 8,192
 * cells, 80 columns wide. */
void gr_kv_print(const struct gr_kv *kv, FILE *out);

/* Walks every invariant; 0, or GR_E_INTERNAL naming the cell. Called after each mutation in debug
 * builds. */
int gr_kv_check(const struct gr_kv *kv);

#endif
