/* The metadata of a cache in a saved state: which cells (or rows of recurrent states) at which
 * positions of which sequences. A block of 32-bit numbers; the data of the cells is stored beside
 * it, item for item.
 *
 * Items are cells in the order in which their tokens were stored, without gaps and without their
 * cell numbers, so that any cache with room can restore them: in one pool, sequences that shared
 * cells share them again; with separate pools each gets a copy. Pending shifts are not saved: they
 * are applied before.
 *
 * A restore is planned first (the block is checked, room is found, memory is allocated) and then
 * performed, which cannot fail. */
#ifndef GR_KV_STATE_H
#define GR_KV_STATE_H

#include "base/alloc.h"
#include "kv/kv.h"
#include "kv/recurrent.h"

/* Header of a block, which is: head, seq [n_seq], item [n_item], id [n_id]. zero: 0. */
struct gr_saved_head {
    uint32_t n_seq, n_item, n_id, zero;
};
/* Cells: [lo, hi) = positions where cells may have been evicted. Recurrent states: lo = number of
 * rows in the sequence's chain, newest first; hi = 0. */
struct gr_saved_seq {
    int32_t id, lo, hi;
};
/* age: 0, 1, .., equal for cells stored at the same time. n_seq: number of sequences that see the
 * cell; their indices in seq, ascending, are in id. Recurrent states use only pos, and id holds the
 * chains, as indices of items. */
struct gr_saved_item {
    int32_t pos, row, col;
    uint32_t age, n_seq;
};

struct gr_saved {
    struct gr_saved_head head;
    const struct gr_saved_seq *seq;
    const struct gr_saved_item *item;
    const int32_t *id;
};

/* An item and the cell (or row) that it is saved from or restored to. */
struct gr_kv_pair {
    int32_t item, cell;
};

/* Appends the block of a sequence (-1: of all) to `block`, and the cell of each item to `pairs`.
 * GR_E_NOMEM_HOST. */
int gr_kv_save(const struct gr_kv *kv, int32_t seq, struct gr_vec *block, struct gr_vec *pairs);
int gr_rs_save(const struct gr_rs *rs, int32_t seq, struct gr_vec *block, struct gr_vec *pairs);

/* A restore. Zero-initialise with {0}; gr_kv_load_fini frees. */
struct gr_kv_load {
    struct gr_saved saved;
    int32_t seq;             /* the sequence to fill, -1 = all */
    int32_t *work;           /* cells: [n_seq] largest positions; recurrent states: [n_item] rows */
    bool seen_only;          /* restore only cells that the next tokens see, for lack of room */
    struct gr_kv_pair *pair; /* [n_pair]; an item can have several cells or none */
    uint32_t n_pair;
};

/* Checks a block, which must outlive the restore, and finds room; changes nothing. seq >= 0: the
 * block of one sequence, which replaces that one; otherwise everything in the cache is replaced.
 * `name`: of the state, for messages. GR_E_CORRUPT for a damaged block, GR_E_INVALID for a sequence
 * that this cache does not have, GR_E_KV_FULL with cells needed and free, or GR_E_NOMEM_HOST. */
int gr_kv_load_plan(struct gr_kv_load *l, struct gr_kv *kv, const char *name, const void *block,
                    size_t n, int32_t seq);
int gr_rs_load_plan(struct gr_kv_load *l, struct gr_rs *rs, const char *name, const void *block,
                    size_t n, int32_t seq);
/* Performs the planned restore; nothing else may have changed the cache since. l->pair receives
 * where items go. */
void gr_kv_load_do(struct gr_kv_load *l, struct gr_kv *kv);
void gr_rs_load_do(struct gr_kv_load *l, struct gr_rs *rs);
void gr_kv_load_fini(struct gr_kv_load *l);

/* For cells and recurrent states: appends a block made of seq, item and id (`parts`) to `block`;
 * parses a block and checks its counts and sequence ids. */
int gr_saved_join(struct gr_vec *block, const struct gr_vec parts[3]);
int gr_saved_parse(struct gr_saved *out, const char *name, const void *block, size_t n, int32_t seq,
                   uint32_t n_seq_max);

#endif
