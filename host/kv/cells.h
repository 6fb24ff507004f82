/* Inside of host/kv: the representation of the cells and the few steps that keep it consistent.
 *
 * A cell knows its sequences (a set of bits), a sequence its cells: in the order in which tokens
 * list them, at all times. So a list is a copy, the smallest and the largest position are the ends,
 * a range of positions is a range of it, and work on one sequence never looks at another's cells.
 * gr_kv_check says what must hold. */
#ifndef GR_KV_CELLS_H
#define GR_KV_CELLS_H

#include "base/checked.h"
#include "kv/kv.h"

#define GR_KV_N_GONE 4
/* Positions, as ranges in ascending order that do not touch. A set of more ranges than fit closes
 * its smallest gaps: it then has positions too many, never too few. */
struct gr_kv_gone {
    uint32_t n;
    struct gr_kv_range r[GR_KV_N_GONE];
};

struct gr_kv_stream {
    uint32_t base;        /* its first cell */
    uint32_t n_used, end; /* cells that are used; one past the last of them, from base */
    uint32_t head, head0; /* where the next search begins, from base; and did at gr_kv_reserve */
};

struct gr_kv_seq {
    uint32_t *cell; /* [cap]: its cells are cell[first .. first + n), ordered */
    uint32_t first, n, cap;
    bool listed;   /* it was in the micro-batch that was listed last, its items from `at` on, .. */
    int32_t at;    /* .. */
    uint32_t same; /* .. of which the first ones are still these */
    struct gr_kv_gone gone, gone0; /* where cells may have been given up; that at gr_kv_reserve */
    bool held;                     /* it had cells at gr_kv_reserve */
};

/* What a cell is beside its sequences; a copy of a token has the same. */
struct gr_kv_mark {
    int32_t pos, delta, row, col; /* row and column relative to pos, so that they move with it */
    uint64_t age;
};

/* A cell that was given up by a sequence. */
struct gr_kv_given {
    uint32_t cell;
    int32_t seq;
    struct gr_kv_mark mark;
};

struct gr_kv {
    struct gr_kv_params p;
    uint32_t n_all;              /* cells of all streams */
    uint32_t n_set;              /* words of a cell's set of sequences */
    uint32_t n_used, n_shift;    /* cells that are used; cells whose delta is not 0 */
    struct gr_kv_stream *stream; /* [n_stream] */
    struct gr_kv_seq *seq;       /* [n_seq_max] */
    int32_t *pos, *delta;        /* [n_all] -1 and 0 in empty cells */
    int32_t *row, *col;          /* [n_all] as in gr_kv_mark; NULL without pos_2d */
    uint64_t *age, clock;        /* [n_all] when each cell's token was stored: 0, 1, .. */
    uint16_t *n_seq;             /* [n_all] sequences of each cell */
    uint64_t *set;               /* [n_all][n_set] bit set = the sequence is in the cell */
    uint32_t *used;              /* [(n_all + 31) / 32] bit set = the cell is used */
    uint32_t *scratch;           /* [n_cell] */

    bool busy;        /* between reserve and commit or abort */
    uint64_t clock0;  /* clock at gr_kv_reserve */
    uint32_t *placed; /* [cap_placed] cells given since then, in order */
    uint32_t n_placed, cap_placed;
    bool logging;              /* a dry run: what is given up can be brought back */
    struct gr_kv_given *given; /* [cap_given]; room for all before the run */
    uint32_t n_given, cap_given;

    int32_t *move_src, *move_dst; /* [cap_move] */
    uint32_t cap_move;
};

/* ---- asking ---- */

static inline bool gr_kv_has(const struct gr_kv *kv, uint32_t c, int32_t seq)
{
    return kv->set[(size_t)c * kv->n_set + (uint32_t)seq / 64] >> seq % 64 & 1;
}

static inline struct gr_kv_stream *gr_kv_stream(const struct gr_kv *kv, int32_t seq)
{
    return &kv->stream[kv->p.n_stream > 1 ? seq : 0];
}

static inline uint32_t gr_kv_free_cells(const struct gr_kv *kv, const struct gr_kv_stream *st)
{
    return kv->p.n_cell - st->n_used;
}

static inline uint32_t *gr_kv_items(const struct gr_kv_seq *q)
{
    return q->first ? q->cell + q->first : q->cell; /* NULL has no + 0 */
}

static inline int32_t gr_kv_max_pos(const struct gr_kv *kv, int32_t seq)
{
    const struct gr_kv_seq *q = &kv->seq[seq];
    return q->n ? kv->pos[gr_kv_items(q)[q->n - 1]] : -1;
}

/* The first sequence of token i of a micro-batch. */
static inline int32_t gr_kv_tok_seq(const struct gr_ubatch *ub, int32_t i)
{
    return ub->batch->seq[ub->batch->seq_at[ub->tok[i]]];
}

struct gr_kv_mark gr_kv_mark(const struct gr_kv *kv, uint32_t c);
/* That of token i of a micro-batch, with age 0. */
struct gr_kv_mark gr_kv_tok_mark(const struct gr_kv *kv, const struct gr_ubatch *ub, int32_t i);
/* The first cell of a stream at or after c (from its base) that is free, or used; n_cell when there
 * is none. */
uint32_t gr_kv_find(const struct gr_kv *kv, const struct gr_kv_stream *st, uint32_t c, bool used);
/* The next free cell at or after c, going on at 0; there must be one. */
uint32_t gr_kv_find_free(const struct gr_kv *kv, const struct gr_kv_stream *st, uint32_t c);

/* ---- single cells ---- */

/* Makes an empty cell used, by no sequence yet: the caller puts it into at least one. */
void gr_kv_cell_use(struct gr_kv *kv, uint32_t c, struct gr_kv_mark m);
/* The cell is in the sequence (in which it must not be) or no longer is, and is empty after the
 * last one; the sequence's order is the caller's. */
void gr_kv_cell_join(struct gr_kv *kv, uint32_t c, int32_t seq);
void gr_kv_cell_leave(struct gr_kv *kv, uint32_t c, int32_t seq);
/* Both, and the order. */
void gr_kv_cell_put(struct gr_kv *kv, uint32_t c, int32_t seq);
/* Takes a cell out of all its sequences and their orders. */
void gr_kv_cell_empty(struct gr_kv *kv, uint32_t c);
void gr_kv_set_delta(struct gr_kv *kv, uint32_t c, int32_t delta);

/* ---- the order of a sequence's cells: by position, row, column, age ---- */

/* Room for n cells; GR_E_NOMEM_HOST. */
int gr_kv_order_room(struct gr_kv_seq *q, uint32_t n);
/* With room: puts a cell where it belongs; puts it last. */
void gr_kv_order_put(struct gr_kv *kv, struct gr_kv_seq *q, uint32_t c);
void gr_kv_order_push(struct gr_kv_seq *q, uint32_t c);
void gr_kv_order_remove(struct gr_kv *kv, struct gr_kv_seq *q, uint32_t c);
/* Removes items [i, j). */
void gr_kv_order_cut(struct gr_kv_seq *q, uint32_t i, uint32_t j);
/* After any number of cells left the sequence, came last or got other positions: as it should be.
 */
void gr_kv_order_tidy(struct gr_kv *kv, int32_t seq);
/* The number of items before position pos; the number of those not behind (pos, row, col), row and
 * column relative to pos. */
uint32_t gr_kv_order_below(const struct gr_kv *kv, const struct gr_kv_seq *q, int64_t pos);
uint32_t gr_kv_order_until(const struct gr_kv *kv, const struct gr_kv_seq *q,
                           const struct gr_kv_mark *m);
/* Whether the sequence has a cell with the same position, row, column and age as cell c. */
bool gr_kv_order_twin(const struct gr_kv *kv, const struct gr_kv_seq *q, uint32_t c);
/* Whether cell a comes before cell b. */
bool gr_kv_order_less(const struct gr_kv *kv, uint32_t a, uint32_t b);

/* ---- windows ---- */

/* The lowest position that a token at `pos` sees; there is a window. */
int64_t gr_kv_first_seen(const struct gr_kv *kv, int64_t pos);
/* The lowest position that the next token of a sequence whose largest one is `max` sees. */
int64_t gr_kv_visible(const struct gr_kv *kv, int32_t max);
/* Gives up the oldest cell of a stream that no later token can see, but none in `spare` of sequence
 * spare_seq (-1: any); false when there is none. *at [n_seq_max]: where to go on looking, zeros at
 * first, for calls with nothing in between. */
bool gr_kv_give_up(struct gr_kv *kv, const struct gr_kv_stream *st, int32_t spare_seq,
                   struct gr_kv_range spare, uint32_t *at);
/* How many it could give up, `most` of them at most. */
uint32_t gr_kv_given_up_at_most(const struct gr_kv *kv, const struct gr_kv_stream *st,
                                int32_t spare_seq, struct gr_kv_range spare, uint32_t most);
/* GR_E_UNSUPPORTED when the sequence, with these positions gone and this largest one, would miss
 * cells. */
int gr_kv_window_check(const struct gr_kv *kv, int32_t seq, const struct gr_kv_gone *gone,
                       int32_t max);

static inline struct gr_kv_range gr_kv_meet(struct gr_kv_range a, struct gr_kv_range b)
{
    return (struct gr_kv_range){GR_MAX(a.lo, b.lo), GR_MIN(a.hi, b.hi)};
}

/* One position or range more. */
struct gr_kv_gone gr_kv_gone_with(const struct gr_kv_gone *gone, struct gr_kv_range more);
/* What an operation on positions r of a sequence makes of those gone in it; of those gone in
 * another one, where what is gone in both may have been a shared cell; of those gone in the
 * destination of a copy, which has left out `rest`. */
struct gr_kv_gone gr_kv_gone_after(const struct gr_kv_op *op, struct gr_kv_range r,
                                   const struct gr_kv_gone *gone);
struct gr_kv_gone gr_kv_gone_beside(const struct gr_kv_op *op, struct gr_kv_range r,
                                    const struct gr_kv_gone *gone, const struct gr_kv_gone *other);
struct gr_kv_gone gr_kv_gone_copied(struct gr_kv_range r, const struct gr_kv_gone *dst,
                                    const struct gr_kv_gone *src, struct gr_kv_range rest);
/* The smallest range that has all of them, {0, 0} for none. */
struct gr_kv_range gr_kv_gone_hull(const struct gr_kv_gone *gone);

/* ---- copies ---- */

/* gr_kv_can and gr_kv_do for operations that copy cells in [r.lo, r.hi). */
int gr_kv_copy_can(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_range r);
void gr_kv_copy_do(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_range r,
                   struct gr_kv_moves *moves);

#endif
