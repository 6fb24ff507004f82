/* The cells of an attention cache: which cell holds which position of which sequences. No K or V
 * data lives here.
 *
 * A cell is empty (pos -1, no sequence) or holds one token's position, the shift that its K still
 * needs (delta) and the set of sequences that see it. Positions of a sequence may repeat
 * (Self-Extend, images), so nothing is keyed by position. Cells lie in one pool that all sequences
 * share or, with streams, in one of equal size for each sequence: sequence s owns cells
 * [s * n_cell, (s + 1) * n_cell), and a cell then has one sequence.
 *
 * A batch is placed in steps: gr_kv_reserve finds out whether all of its micro-batches will find
 * cells, gr_kv_place gives cells to one after the other, gr_kv_commit keeps them when all is
 * computed, gr_kv_abort takes them back.
 *
 * With a window a sequence's cells that no later token can see are given up when room is needed, so
 * a pool of window + micro-batch cells a sequence lasts forever. At which positions cells were
 * given up stays known: operations after which a token would miss such a cell are refused. */
#ifndef GR_KV_KV_H
#define GR_KV_KV_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "batch/batch.h"
#include "kv/op.h"

struct gr_kv;

/* Positions, or items of a list, [lo, hi); none when lo >= hi. */
struct gr_kv_range {
    int32_t lo, hi;
};

struct gr_kv_params {
    uint32_t n_cell;    /* rows of a stream; n_stream * n_cell is 1 to 2^30 */
    uint32_t n_stream;  /* 1 = one pool; otherwise n_seq_max */
    uint32_t n_seq_max; /* 1 to GR_SEQ_MAX */
    uint32_t n_pad;  /* the used range is rounded up to this: 256; 32 in the compatibility tests */
    bool contiguous; /* a micro-batch takes neighbouring cells only (of a stream) */
    int32_t window;  /* > 0: a token sees only positions less than this behind its own .. */
    bool chunked;    /* .. or, of windows side by side, those of its own */
    int32_t group;   /* > 1: K is also kept by grouped position, floor(pos / group) */
    bool pos_2d;     /* cells have a row and a column beside their position (M-RoPE) */
};

/* GR_E_INVALID for a parameter out of range, n_pad not a multiple of 32 among them. */
int gr_kv_new(struct gr_kv **out, const struct gr_kv_params *p);
void gr_kv_free(struct gr_kv **kv);

/* ---- sequence operations ---- */

/* Whether an operation is possible; nothing changes. GR_E_INVALID for a sequence that does not
 * exist, a position that would exceed GR_POS_MAX, by < 1 in a division; GR_E_UNSUPPORTED when
 * cells that were given up would be missed; GR_E_KV_FULL when there is no room for copies;
 * GR_E_NOMEM_HOST; GR_E_INTERNAL between reserve and commit or abort. */
int gr_kv_can(struct gr_kv *kv, const struct gr_kv_op *op);
/* Does what gr_kv_can has just allowed. *moves: the copies that belong to it (n 0 = none); they go
 * before any pending shift, the new cells having the same. A range that is empty, an addition of 0
 * and a division by 1 change nothing at all. */
void gr_kv_do(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_moves *moves);
/* Whether a sequence that will have positions up to `end` could then do without the n positions
 * behind the first `keep` ones, those behind them moving down: not where its window would see cells
 * that are given up by then. GR_E_UNSUPPORTED. */
int gr_kv_can_shift(const struct gr_kv *kv, int32_t seq, int32_t keep, int32_t n, int32_t end);
void gr_kv_cells_clear(struct gr_kv *kv);
/* Moves cells down into the holes (of each stream) until the used ones are the first ones.
 * GR_E_NOMEM_HOST, but not right after gr_kv_can_pack was fine: nothing changed. */
int gr_kv_pack(struct gr_kv *kv, struct gr_kv_moves *moves);
int gr_kv_can_pack(struct gr_kv *kv);
int32_t gr_kv_cells_pos_min(const struct gr_kv *kv, int32_t seq);
int32_t gr_kv_cells_pos_max(const struct gr_kv *kv, int32_t seq);
/* One past that and past the rows and columns there: where a text goes on. 0 when it is empty. */
int32_t gr_kv_cells_pos_end(const struct gr_kv *kv, int32_t seq);
/* Cells a sequence has; those of them that other sequences see too. */
uint32_t gr_kv_seq_cells(const struct gr_kv *kv, int32_t seq);
uint32_t gr_kv_seq_shared(const struct gr_kv *kv, int32_t seq);
/* Whether two sequences have the same cells. */
bool gr_kv_seq_same(const struct gr_kv *kv, int32_t a, int32_t b);
/* The same, but cells may be copies of each other. */
bool gr_kv_seq_alike(const struct gr_kv *kv, int32_t a, int32_t b);
/* Whether the next token of a sequence would miss cells that were given up (after gr_kv_abort). */
bool gr_kv_incomplete(const struct gr_kv *kv, int32_t seq);

/* ---- placing a batch ---- */

/* Whether the micro-batches (pieces of one batch, in this order) will all find cells; from here on
 * until commit or abort nothing else may change the cells. GR_E_KV_FULL with tokens wanted, cells
 * free and the remedy; GR_E_INVALID for a token of several sequences that have streams of their
 * own; GR_E_NOMEM_HOST. Nothing changed then. */
int gr_kv_reserve(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_ub);
/* Gives cells to the next micro-batch: cells[i] for its token i. The search starts at the head,
 * which is behind the micro-batch before, or at 0 when the head is more than twice the micro-batch
 * beyond the number of used cells. Cannot fail after gr_kv_reserve. */
void gr_kv_place(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t *cells);
void gr_kv_commit(struct gr_kv *kv);
/* Empties the cells placed since gr_kv_reserve. Without a window the cache is as before; with one,
 * ask gr_kv_incomplete: cells may have been given up to later tokens of the batch. */
void gr_kv_abort(struct gr_kv *kv);

/* ---- what tokens see ---- */

/* The list of a micro-batch has, for each first sequence of its tokens (tokens of several sequences
 * have the same past), that sequence's cells in the order of their positions (then row, column),
 * equal ones in the order in which they were stored; each token's span is a range of it. The order
 * depends neither on where cells lie nor on other sequences. Between sequences there are gaps. */

/* Items that lists need at most, gaps included, while sequences of one pool share no cells. */
int64_t gr_kv_list_room(const struct gr_kv_params *p);
/* Items that the list of a micro-batch needs. */
int64_t gr_kv_list(const struct gr_kv *kv, const struct gr_ubatch *ub);
/* list [gr_kv_list], span [n_tok][3]: lo, near, hi. causal: no later positions (nor, at the same
 * position, later rows and columns). The window is that of the cache. near: with `neighbours` > 0,
 * items less than that behind the token are near, the others far; otherwise near = lo. key_pos
 * [gr_kv_list] receives the positions of the items, or is NULL. kept: list and key_pos are as the
 * last call left them. Returns the items that were written; gaps are not. */
struct gr_kv_range gr_kv_fill(struct gr_kv *kv, const struct gr_ubatch *ub, bool causal,
                              int32_t neighbours, bool kept, int32_t *list, int32_t *span,
                              int32_t *key_pos);

/* Cells that are or have been used: one past the last used cell, rounded up to n_pad, at most all,
 * at least n_pad. */
int32_t gr_kv_n_kv(const struct gr_kv *kv);
/* The same as numbers, cell by cell from the definition, for tests and the padded-mask traces: 0
 * (or
 * -|distance| with alibi) and -INFINITY; rows of n_kv columns, padded with -INFINITY rows to a
 * multiple of n_pad_row. */
void gr_kv_mask_dense(const struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_kv, bool causal,
                      bool alibi, int32_t n_pad_row, float *mask);

/* ---- shifts ---- */

/* Whether any cell has a delta. gr_kv_deltas copies the delta of the first n_kv cells, 0 for empty
 * ones; behind gr_kv_n_kv there is none; `far`: of the grouped positions. gr_kv_shifted says that K
 * was rotated by them: they are 0 again. */
bool gr_kv_has_shift(const struct gr_kv *kv);
void gr_kv_deltas(const struct gr_kv *kv, int32_t n_kv, bool far, int32_t *delta);
void gr_kv_shifted(struct gr_kv *kv);

/* ---- questions ---- */

/* One cell, for tests, dumps and state; i < gr_kv_n_cell. */
struct gr_cell {
    int32_t pos, delta;
    int32_t row, col; /* M-RoPE's other positions, pos without */
    int32_t n_seq;    /* sequences that see it */
    int32_t seq;      /* the lowest of them, -1 when empty */
};
struct gr_cell gr_kv_cell(const struct gr_kv *kv, uint32_t i);
bool gr_kv_cell_has(const struct gr_kv *kv, uint32_t i, int32_t seq);
uint32_t gr_kv_n_cell(const struct gr_kv *kv); /* of all streams */
uint32_t gr_kv_n_used(const struct gr_kv *kv);
uint32_t gr_kv_head(const struct gr_kv *kv, uint32_t stream); /* in the stream */

/* Prints a map of the cells (a character a cell: 0-9a-z sequence, # a later one, + shared, . free;
 * equal lines once), and per sequence its cells, positions and pending deltas. Readable at 8,192
 * cells, 80 columns wide. */
void gr_kv_print(const struct gr_kv *kv, FILE *out);

/* Walks every invariant; 0, or GR_E_INTERNAL naming the cell. Called after each mutation in debug
 * builds. */
int gr_kv_check(const struct gr_kv *kv);

#endif
