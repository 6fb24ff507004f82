/* Private to host/kv: the representation of the cells and the basic steps that keep it consistent.
 *
 * A cell has the set of its sequences (a bit set); a sequence has the array of its cells, always in
 * the order in which tokens list them. So writing a list is a copy, the smallest and the largest
 * position are at the ends, a range of positions is a range of the array, and work on one sequence
 * never touches the cells of another. gr_kv_check checks the invariants. */
#ifndef GR_KV_CELLS_H
#define GR_KV_CELLS_H

#include "base/checked.h"
#include "kv/kv.h"

#define GR_KV_N_EVICTED 4
/* The set of positions whose cells may have been evicted, as ascending ranges that do not touch.
 * When more ranges than fit are needed, the smallest gaps are closed: the set then has positions
 * too many, never too few. */
struct gr_kv_evicted {
    uint32_t n;
    struct gr_kv_range r[GR_KV_N_EVICTED];
};

struct gr_kv_pool {
    uint32_t base;        /* its first cell */
    uint32_t n_used, end; /* used cells; one past the last used one, from base */
    uint32_t head, head0; /* where the next search begins, from base; its value at gr_kv_reserve */
};

struct gr_kv_seq {
    uint32_t *cell; /* [cap]: the sequence's cells are cell[first .. first + n), in order */
    uint32_t first, n, cap;
    bool listed;                            /* in the micro-batch whose list was written last */
    int32_t at;                             /* offset of its items in that list */
    uint32_t same;                          /* leading items that this list still has unchanged */
    struct gr_kv_evicted evicted, evicted0; /* positions of evicted cells; value at gr_kv_reserve */
    bool held;                              /* the sequence had cells at gr_kv_reserve */
};

/* The data of a cell apart from its sequences; copies of a token's cell have the same. */
struct gr_kv_cell_meta {
    int32_t pos, delta, row, col; /* row and column relative to pos, so that they move with it */
    uint64_t age;
};

/* A cell that was evicted from a sequence. */
struct gr_kv_eviction {
    uint32_t cell;
    int32_t seq;
    struct gr_kv_cell_meta meta;
};

struct gr_kv {
    struct gr_kv_params p;
    uint32_t n_all;           /* cells of all pools */
    uint32_t n_set;           /* words of a cell's set of sequences */
    uint32_t n_used, n_shift; /* used cells; cells whose delta is not 0 */
    struct gr_kv_pool *pool;  /* [n_kv_pool] */
    struct gr_kv_seq *seq;    /* [n_seq_max] */
    int32_t *pos, *delta;     /* [n_all] -1 and 0 in empty cells */
    int32_t *row, *col;       /* [n_all] as in gr_kv_cell_meta; NULL without pos_2d */
    uint64_t *age, clock;     /* [n_all] when each cell's token was stored: 0, 1, .. */
    uint16_t *n_seq;          /* [n_all] sequences of each cell */
    uint64_t *set;            /* [n_all][n_set] bit set = the sequence is in the cell */
    uint32_t *used;           /* [(n_all + 31) / 32] bit set = the cell is used */
    uint32_t *scratch;        /* [n_cell] */

    bool busy;        /* between reserve and commit or abort */
    uint64_t clock0;  /* clock at gr_kv_reserve */
    uint32_t *placed; /* [cap_placed] cells given since then, in order */
    uint32_t n_placed, cap_placed;
    bool logging;                    /* dry run: evictions are logged, to be undone */
    struct gr_kv_eviction *eviction; /* [cap_eviction] allocated before the dry run */
    uint32_t n_eviction, cap_eviction;

    int32_t *move_src, *move_dst; /* [cap_move] */
    uint32_t cap_move;
};

/* ---- questions ---- */

static inline bool gr_kv_has(const struct gr_kv *kv, uint32_t c, int32_t seq)
{
    return kv->set[(size_t)c * kv->n_set + (uint32_t)seq / 64] >> seq % 64 & 1;
}

static inline struct gr_kv_pool *gr_kv_pool(const struct gr_kv *kv, int32_t seq)
{
    return &kv->pool[kv->p.n_kv_pool > 1 ? seq : 0];
}

static inline uint32_t gr_kv_free_cells(const struct gr_kv *kv, const struct gr_kv_pool *pool)
{
    return kv->p.n_cell - pool->n_used;
}

static inline uint32_t *gr_kv_items(const struct gr_kv_seq *q)
{
    return q->first ? q->cell + q->first : q->cell; /* cell may be NULL: nothing is added to it */
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

struct gr_kv_cell_meta gr_kv_cell_meta(const struct gr_kv *kv, uint32_t c);
/* Metadata of the cell that token i of a micro-batch will get, with age 0. */
struct gr_kv_cell_meta gr_kv_tok_meta(const struct gr_kv *kv, const struct gr_ubatch *ub,
                                      int32_t i);
/* The first cell of a pool at or after c (from its base) that is used, or with used = false free;
 * n_cell when there is none. */
uint32_t gr_kv_find(const struct gr_kv *kv, const struct gr_kv_pool *pool, uint32_t c, bool used);
/* The next free cell at or after c, wrapping around to 0; there must be one. */
uint32_t gr_kv_find_free(const struct gr_kv *kv, const struct gr_kv_pool *pool, uint32_t c);

/* ---- single cells ---- */

/* Marks an empty cell as used, with no sequence yet: the caller adds at least one. */
void gr_kv_cell_use(struct gr_kv *kv, uint32_t c, struct gr_kv_cell_meta m);
/* Adds a cell to a sequence that does not have it; removes it from a sequence, which empties the
 * cell when that was its last one. The caller updates the index of the sequence. */
void gr_kv_cell_join(struct gr_kv *kv, uint32_t c, int32_t seq);
void gr_kv_cell_leave(struct gr_kv *kv, uint32_t c, int32_t seq);
/* gr_kv_cell_join that also inserts the cell into the index of the sequence. */
void gr_kv_cell_put(struct gr_kv *kv, uint32_t c, int32_t seq);
/* Removes a cell from all its sequences and their indexes. */
void gr_kv_cell_empty(struct gr_kv *kv, uint32_t c);
void gr_kv_set_delta(struct gr_kv *kv, uint32_t c, int32_t delta);

/* ---- the index of a sequence: its cells by position, row, column, age ---- */

/* Allocates room for n cells in total; GR_E_NOMEM_HOST. */
int gr_kv_index_reserve(struct gr_kv_seq *q, uint32_t n);
/* Inserts a cell where it belongs; appends it. There must be room. */
void gr_kv_index_put(struct gr_kv *kv, struct gr_kv_seq *q, uint32_t c);
void gr_kv_index_push(struct gr_kv_seq *q, uint32_t c);
void gr_kv_index_remove(struct gr_kv *kv, struct gr_kv_seq *q, uint32_t c);
/* Removes items [i, j). */
void gr_kv_index_cut(struct gr_kv_seq *q, uint32_t i, uint32_t j);
/* Restores the order after any number of cells left, were appended or changed position. */
void gr_kv_index_sort(struct gr_kv *kv, int32_t seq);
/* Number of items before position pos; number of items at or before (pos, row, col), where row and
 * column are relative to pos. */
uint32_t gr_kv_index_below(const struct gr_kv *kv, const struct gr_kv_seq *q, int64_t pos);
uint32_t gr_kv_index_until(const struct gr_kv *kv, const struct gr_kv_seq *q,
                           const struct gr_kv_cell_meta *m);
/* Returns whether the sequence has a cell with the same position, row, column and age as cell c. */
bool gr_kv_index_has_copy(const struct gr_kv *kv, const struct gr_kv_seq *q, uint32_t c);
/* Returns whether cell a comes before cell b. */
bool gr_kv_index_less(const struct gr_kv *kv, uint32_t a, uint32_t b);

/* ---- windows ---- */

/* The lowest position that a token at `pos` sees. Only with a window. */
int64_t gr_kv_first_seen(const struct gr_kv *kv, int64_t pos);
/* The lowest position that the next token sees in a sequence whose largest position is `max`. */
int64_t gr_kv_visible(const struct gr_kv *kv, int32_t max);
/* Evicts the oldest cell of a pool that no later token can see; false when there is none. Cells of
 * sequence spare_seq at positions `spare` are kept (spare_seq -1: none are). at [n_seq_max]: where
 * the search continues; zeros at the first call, valid while nothing else changes the cells. */
bool gr_kv_evict(struct gr_kv *kv, const struct gr_kv_pool *pool, int32_t spare_seq,
                 struct gr_kv_range spare, uint32_t *at);
/* Number of cells that gr_kv_evict could evict, counted up to `most`. */
uint32_t gr_kv_n_evictable(const struct gr_kv *kv, const struct gr_kv_pool *pool, int32_t spare_seq,
                           struct gr_kv_range spare, uint32_t most);
/* GR_E_UNSUPPORTED when the next token of the sequence would miss cells, given these evicted
 * positions and this largest position. */
int gr_kv_window_check(const struct gr_kv *kv, int32_t seq, const struct gr_kv_evicted *evicted,
                       int32_t max);

static inline struct gr_kv_range gr_kv_intersect(struct gr_kv_range a, struct gr_kv_range b)
{
    return (struct gr_kv_range){GR_MAX(a.lo, b.lo), GR_MIN(a.hi, b.hi)};
}

/* The set with one more range. */
struct gr_kv_evicted gr_kv_evicted_with(const struct gr_kv_evicted *evicted,
                                        struct gr_kv_range more);
/* Evicted positions after an operation on positions r of a sequence: those of the sequence itself;
 * those of another sequence (positions evicted in both may have been one shared cell); those of the
 * destination of a copy that left out `rest`. */
struct gr_kv_evicted gr_kv_evicted_after(const struct gr_kv_op *op, struct gr_kv_range r,
                                         const struct gr_kv_evicted *evicted);
struct gr_kv_evicted gr_kv_evicted_beside(const struct gr_kv_op *op, struct gr_kv_range r,
                                          const struct gr_kv_evicted *evicted,
                                          const struct gr_kv_evicted *other);
struct gr_kv_evicted gr_kv_evicted_copied(struct gr_kv_range r, const struct gr_kv_evicted *dst,
                                          const struct gr_kv_evicted *src, struct gr_kv_range rest);
/* The smallest range that covers the set; {0, 0} when it is empty. */
struct gr_kv_range gr_kv_evicted_hull(const struct gr_kv_evicted *evicted);

/* ---- copies ---- */

/* gr_kv_can and gr_kv_do for operations that copy cells in [r.lo, r.hi). */
int gr_kv_copy_can(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_range r);
void gr_kv_copy_do(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_range r,
                   struct gr_kv_moves *moves);

#endif
