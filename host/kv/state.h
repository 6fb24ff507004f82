/* What a saved state says of a cache: which cells there are (which rows of recurrent states), at
 * which positions, of which sequences. A block of 32-bit numbers; what the cells hold goes beside
 * it, item for item.
 *
 * Items are cells in the order in which their tokens were stored, without gaps and without a trace
 * of where they lay, so that any cache with room takes them: in one pool, sequences that shared
 * cells share them again; with streams each gets a copy. Pending shifts are not part of it: they
 * are applied before.
 *
 * Restoring is planned first - the block is checked, room is found, memory is taken - and then
 * done, which cannot fail. */
#ifndef GR_KV_STATE_H
#define GR_KV_STATE_H

#include "base/alloc.h"
#include "kv/kv.h"
#include "kv/recurrent.h"

/* A block: head, seq [n_seq], item [n_item], id [n_id]. */
struct gr_saved_head {
    uint32_t n_seq, n_item, n_id, zero;
};
/* Of cells: lo, hi = the positions where cells may have been given up. Of states: lo = the number
 * of rows in its chain, the newest first; hi = 0. */
struct gr_saved_seq {
    int32_t id, lo, hi;
};
/* age: 0, 1, .. of all that were stored at different times. n_seq: of them that see the cell, as
 * indices in seq, ascending, in id. Of states only pos; id holds the chains, as indices of items.
 */
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

/* An item and a cell it lies in or goes to. */
struct gr_kv_pair {
    int32_t item, cell;
};

/* Writes the block of a sequence (-1 = of all) to `block`, and to `pairs` its items' cells.
 * GR_E_NOMEM_HOST. */
int gr_kv_save(const struct gr_kv *kv, int32_t seq, struct gr_vec *block, struct gr_vec *pairs);
int gr_rs_save(const struct gr_rs *rs, int32_t seq, struct gr_vec *block, struct gr_vec *pairs);

/* A restore. Zero-initialise with {0}; gr_kv_load_fini frees. */
struct gr_kv_load {
    struct gr_saved saved;
    int32_t seq;             /* the sequence to fill, -1 = all */
    int32_t *work;           /* of cells: [n_seq] largest positions; of states: [n_item] rows */
    bool seen_only;          /* no room for what the next tokens do not see */
    struct gr_kv_pair *pair; /* [n_pair]; an item can have several or none */
    uint32_t n_pair;
};

/* Checks a block that outlives the restore, and finds room: for seq >= 0 the block of one sequence,
 * which takes the place of that one; otherwise all that the cache has is replaced. Nothing changes.
 * `name`: of the state, for messages. GR_E_CORRUPT when the block makes no sense, GR_E_INVALID for
 * a sequence that this cache does not have, GR_E_KV_FULL with cells needed and there, or
 * GR_E_NOMEM_HOST. */
int gr_kv_load_plan(struct gr_kv_load *l, struct gr_kv *kv, const char *name, const void *block,
                    size_t n, int32_t seq);
int gr_rs_load_plan(struct gr_kv_load *l, struct gr_rs *rs, const char *name, const void *block,
                    size_t n, int32_t seq);
/* Does it; nothing else may have changed the cache meanwhile. l->pair has where items go. */
void gr_kv_load_do(struct gr_kv_load *l, struct gr_kv *kv);
void gr_rs_load_do(struct gr_kv_load *l, struct gr_rs *rs);
void gr_kv_load_fini(struct gr_kv_load *l);

/* For both: puts a block together from seq, item and id; takes it apart and checks counts and ids
 * of sequences. */
int gr_saved_join(struct gr_vec *block, const struct gr_vec parts[3]);
int gr_saved_parse(struct gr_saved *out, const char *name, const void *block, size_t n, int32_t seq,
                   uint32_t n_seq_max);

#endif
