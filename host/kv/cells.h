/* Inside of host/kv: the representation of the cells and the few moves that keep it consistent.
 *
 * Membership is stored by sequence, one bit a cell: a mask row is then mostly a copy of such a
 * bitset, and work on one sequence never looks at another's cells. Counts, the used range and each
 * sequence's smallest and largest position are kept up to date by every operation, so asking for
 * them costs nothing. gr_kv_check says what must hold. */
#ifndef GR_KV_CELLS_H
#define GR_KV_CELLS_H

#include "kv/kv.h"

struct gr_kv_seq {
    uint32_t n;       /* cells */
    int32_t min, max; /* positions, -1 when n is 0 */
};

/* A sequence's cells by position and age; worked out when asked for, kept while tokens are only
 * appended. */
struct gr_kv_order {
    uint32_t *cell; /* [cap] */
    uint32_t n, cap;
    bool valid;
};

struct gr_kv {
    struct gr_kv_params p;
    uint32_t n_word;           /* words of a bitset of cells */
    uint32_t n_used, n_shift;  /* cells that are used; cells whose delta is not 0 */
    uint32_t end;              /* one past the last used cell */
    uint32_t head;             /* where the next search begins, < n_cell */
    int32_t *pos, *delta;      /* [n_word * 32], -1 and 0 in empty cells and behind the last one */
    uint16_t *n_seq;           /* [n_cell] sequences of each cell */
    uint32_t *used;            /* [n_word] bit set = the cell is used */
    uint32_t *member;          /* [n_seq_max][n_word] bit set = the sequence is in the cell */
    struct gr_kv_seq *seq;     /* [n_seq_max] */
    struct gr_kv_order *order; /* [n_seq_max] */
    uint64_t *age, clock;      /* [n_cell] when each cell was taken: 0, 1, .. */
    uint32_t *reserved;        /* [cap_reserved] cells of the batch under way, in batch order */
    uint32_t n_reserved, cap_reserved, reserved_head;
    int32_t reserved_first; /* index in its batch of the first token reserved */
};

static inline uint32_t *gr_kv_row(const struct gr_kv *kv, int32_t seq)
{
    return kv->member + (size_t)seq * kv->n_word;
}

static inline bool gr_kv_has(const struct gr_kv *kv, uint32_t c, int32_t seq)
{
    return gr_kv_row(kv, seq)[c / 32] >> c % 32 & 1;
}

/* Words of a bitset that can hold a used cell. */
static inline uint32_t gr_kv_words(const struct gr_kv *kv)
{
    return (kv->end + 31) / 32;
}

/* Makes an empty cell used by no sequence yet: the caller puts it into at least one. */
void gr_kv_cell_use(struct gr_kv *kv, uint32_t c, int32_t pos);
/* Puts a used cell into a sequence (which it must not be in); the sequence's summary follows. */
void gr_kv_cell_put(struct gr_kv *kv, uint32_t c, int32_t seq);
/* Tells the order of a sequence of a cell that comes to it: it stays valid when the cell is last.
 */
void gr_kv_order_put(struct gr_kv *kv, uint32_t c, int32_t seq);
/* Takes a cell out of a sequence (which it must be in) and empties it after the last one; the
 * summaries of the sequence and the used range are stale until gr_kv_refresh. */
void gr_kv_cell_drop(struct gr_kv *kv, uint32_t c, int32_t seq);
/* Takes a cell out of all its sequences, as gr_kv_cell_drop. */
void gr_kv_cell_empty(struct gr_kv *kv, uint32_t c);
/* Works the summary of a sequence (-1 = of all) and the used range out again. */
void gr_kv_refresh(struct gr_kv *kv, int32_t seq);

#endif
