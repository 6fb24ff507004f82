/* The cells of an attention cache: which cell holds which position of which sequences. No K or V
 * data lives here.
 *
 * A cell is empty (pos -1, no sequence) or holds one token's position, the shift that its K still
 * needs (delta) and the set of sequences that see it. Positions of a sequence may repeat
 * (Self-Extend, images), so nothing is keyed by position. Cells lie in one pool that all sequences
 * share or, with separate pools, in one of equal size per sequence: sequence s owns cells [s *
 * n_cell, (s + 1) * n_cell), and a cell then has one sequence.
 *
 * A batch is placed in steps: gr_kv_reserve checks that all of its micro-batches will find cells,
 * gr_kv_place gives cells to one micro-batch after the other, gr_kv_commit keeps the cells when all
 * is computed, gr_kv_abort frees them again.
 *
 * With a sliding window, cells of a sequence that no later token can see are evicted when cells are
 * needed, so a text of any length takes window + micro-batch cells per sequence. The positions of
 * evicted cells are remembered: operations after which a token would miss such a cell are
 * refused. */
#ifndef GR_KV_KV_H
#define GR_KV_KV_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "batch/batch.h"
#include "kv/op.h"

struct gr_kv;

/* Positions, or items of a list, [lo, hi); empty when lo >= hi. */
struct gr_kv_range {
    int32_t lo, hi;
};

struct gr_kv_params {
    uint32_t n_cell;    /* rows of a pool; n_kv_pool * n_cell is 1 to 2^30 */
    uint32_t n_kv_pool; /* 1 = one pool; otherwise n_seq_max */
    uint32_t n_seq_max; /* 1 to GR_SEQ_MAX */
    uint32_t n_pad;     /* the used range is rounded up to it: 256; 32 in compatibility tests */
    bool contiguous;    /* a micro-batch takes neighbouring cells only (of a pool) */
    int32_t window;     /* > 0: a token sees no position this far or further behind its own */
    bool chunked;       /* windows lie side by side; a token sees nothing before its own chunk */
    int32_t group;      /* > 1: K is also kept by grouped position, floor(pos / group) */
    bool pos_2d;        /* cells have a row and a column in addition to their position (M-RoPE) */
};

/* GR_E_INVALID for a parameter out of range, including n_pad not a multiple of 32. */
int gr_kv_new(struct gr_kv **out, const struct gr_kv_params *p);
void gr_kv_free(struct gr_kv **kv);

/* ---- sequence operations ---- */

/* Returns 0 when an operation is possible; changes nothing. GR_E_INVALID for a sequence that does
 * not exist, a position that would exceed GR_POS_MAX, by < 1 in a division; GR_E_UNSUPPORTED when
 * evicted cells would be missed; GR_E_KV_FULL when there is no room for copies; GR_E_NOMEM_HOST;
 * GR_E_INTERNAL between reserve and commit or abort. */
int gr_kv_can(struct gr_kv *kv, const struct gr_kv_op *op);
/* Performs an operation that gr_kv_can has just allowed. *moves: the cells whose data must be
 * copied (n 0 = none), before any pending shift is applied, since the new cells have the same one.
 * An empty range, an addition of 0 and a division by 1 change nothing at all. */
void gr_kv_do(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_moves *moves);
/* Context shift: returns 0 when a sequence that has grown to positions [0, end) could then drop
 * positions [keep, keep + n) and move the later ones down by n; GR_E_UNSUPPORTED when its window
 * would see cells that are evicted by then. */
int gr_kv_can_shift(const struct gr_kv *kv, int32_t seq, int32_t keep, int32_t n, int32_t end);
void gr_kv_cells_clear(struct gr_kv *kv);
/* Compacts each pool: moves cells into holes until the used cells are the first ones.
 * GR_E_NOMEM_HOST, with nothing changed; never right after gr_kv_can_pack returned 0. */
int gr_kv_pack(struct gr_kv *kv, struct gr_kv_moves *moves);
int gr_kv_can_pack(struct gr_kv *kv);
int32_t gr_kv_cells_pos_min(const struct gr_kv *kv, int32_t seq);
int32_t gr_kv_cells_pos_max(const struct gr_kv *kv, int32_t seq);
/* Lowest position from which on the end of a sequence can be removed anywhere: the next token would
 * miss no cell of its window. */
int32_t gr_kv_cut_min(const struct gr_kv *kv, int32_t seq);
/* Position at which a text continues: one past gr_kv_cells_pos_max and past the rows and columns of
 * the cells there. 0 when the sequence is empty. */
int32_t gr_kv_cells_pos_end(const struct gr_kv *kv, int32_t seq);
/* Number of cells of a sequence; number of those that other sequences see too. */
uint32_t gr_kv_seq_cells(const struct gr_kv *kv, int32_t seq);
uint32_t gr_kv_seq_shared(const struct gr_kv *kv, int32_t seq);
/* Number of cells of a sequence whose K waits for a shift, by *lo to *hi. */
uint32_t gr_kv_seq_shifts(const struct gr_kv *kv, int32_t seq, int32_t *lo, int32_t *hi);
/* Returns whether two sequences have the same cells. */
bool gr_kv_seq_same(const struct gr_kv *kv, int32_t a, int32_t b);
/* Returns whether two sequences have the same cells or copies of each other's. */
bool gr_kv_seq_alike(const struct gr_kv *kv, int32_t a, int32_t b);
/* Returns whether the next token of a sequence would miss evicted cells (after gr_kv_abort). */
bool gr_kv_incomplete(const struct gr_kv *kv, int32_t seq);

/* ---- placing a batch ---- */

/* Checks that the micro-batches (parts of one batch, in this order) will all find cells; until
 * commit or abort nothing but gr_kv_place may change the cells. On failure nothing has changed:
 * GR_E_KV_FULL with tokens wanted, cells free and the remedy; GR_E_INVALID for a token of several
 * sequences when sequences have pools of their own; GR_E_NOMEM_HOST. */
int gr_kv_reserve(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_ub);
/* Gives cells to the next micro-batch: cells[i] for its token i. The search starts at the head,
 * which is behind the previous micro-batch, or at 0 when the head is beyond the number of used
 * cells by more than twice the micro-batch. Cannot fail after gr_kv_reserve. */
void gr_kv_place(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t *cells);
void gr_kv_commit(struct gr_kv *kv);
/* Frees the cells placed since gr_kv_reserve. Without a window the cache is as before; with one,
 * cells may have been evicted for later tokens of the batch: ask gr_kv_incomplete. */
void gr_kv_abort(struct gr_kv *kv);

/* ---- what tokens see ---- */

/* The list of a micro-batch contains, for each sequence that is the first one of a token (all
 * sequences of a token have the same past), the cells of that sequence in the order of their
 * positions (then row, column, order of storing); the span of a token is a range of the list. The
 * order depends neither on where cells lie nor on other sequences. Between sequences there are
 * gaps. */

/* Upper bound of the items of a list, gaps included, while sequences of one pool share no cells. */
int64_t gr_kv_list_capacity(const struct gr_kv_params *p);
/* Number of items in the list of a micro-batch, gaps included. */
int64_t gr_kv_list(const struct gr_kv *kv, const struct gr_ubatch *ub);
/* Fills list [gr_kv_list] and span [n_tok][3]: lo, near, hi of each token's range, limited by the
 * cache's window. causal: excludes later positions (and, at the same position, later rows and
 * columns). neighbours > 0: items less than that many positions behind the token are [near, hi),
 * the others [lo, near); otherwise near = lo. key_pos [gr_kv_list] receives the positions of the
 * items; may be NULL. kept: list and key_pos still have what the last call left, and only changes
 * are written. Returns the range of items that were written; gaps are not. */
struct gr_kv_range gr_kv_fill(struct gr_kv *kv, const struct gr_ubatch *ub, bool causal,
                              int32_t neighbours, bool kept, int32_t *list, int32_t *span,
                              int32_t *key_pos);

/* Number of leading cells that include all used ones: one past the last used cell, rounded up to
 * n_pad; at least n_pad, at most all. */
int32_t gr_kv_n_kv(const struct gr_kv *kv);
/* The same visibility as a dense mask, cell by cell from the definition, for tests and the
 * padded-mask traces: 0 (with alibi -|distance|) where visible, -INFINITY elsewhere; rows of n_kv
 * columns, padded with -INFINITY rows to a multiple of n_pad_row. */
void gr_kv_mask_dense(const struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_kv, bool causal,
                      bool alibi, int32_t n_pad_row, float *mask);

/* ---- shifts ---- */

/* gr_kv_has_shift: whether any cell has a delta. gr_kv_deltas copies the deltas of the first n_kv
 * cells, 0 for empty ones; cells from gr_kv_n_kv on have none. `far`: deltas of the grouped
 * positions. gr_kv_shifted resets all deltas to 0 after K was rotated by them. */
bool gr_kv_has_shift(const struct gr_kv *kv);
void gr_kv_deltas(const struct gr_kv *kv, int32_t n_kv, bool far, int32_t *delta);
void gr_kv_shifted(struct gr_kv *kv);

/* ---- questions ---- */

/* A cell, for tests, dumps and saved states. */
struct gr_cell {
    int32_t pos, delta;
    int32_t row, col; /* M-RoPE's other positions; pos without M-RoPE */
    int32_t n_seq;    /* sequences that see it */
    int32_t seq;      /* the lowest of them, -1 when empty */
};
struct gr_cell gr_kv_cell(const struct gr_kv *kv, uint32_t i);
bool gr_kv_cell_has(const struct gr_kv *kv, uint32_t i, int32_t seq);
uint32_t gr_kv_n_cell(const struct gr_kv *kv); /* of all pools */
uint32_t gr_kv_n_used(const struct gr_kv *kv);
uint32_t gr_kv_head(const struct gr_kv *kv, uint32_t pool); /* in the pool */

/* Prints a map of the cells, one character per cell (0-9a-z sequence, # a later one, + shared, .
 * free; equal lines once), and for each sequence its cells, positions and pending deltas. 80
 * columns wide, readable at 8,192 cells. */
void gr_kv_print(const struct gr_kv *kv, FILE *out);

/* Checks every invariant: 0, or GR_E_INTERNAL naming the cell. Called after each mutation in debug
 * builds. */
int gr_kv_check(const struct gr_kv *kv);

#endif
