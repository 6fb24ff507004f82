/* All that a session keeps from step to step, behind one interface: cells of the layers that see
 * everything, cells of the layers with a window, rows of recurrent states - each there or not, as
 * the model has it. Metadata only.
 *
 * An operation either happens in all of them or in none. A batch that fails is taken back from all;
 * where it has overwritten what an earlier state needs (cells given up by a window, a recurrent
 * state), the sequence is emptied in all, and said to be. */
#ifndef GR_KV_CACHE_H
#define GR_KV_CACHE_H

#include "kv/kv.h"
#include "kv/recurrent.h"

enum gr_cache_kind { GR_CACHE_FULL, GR_CACHE_SWA, GR_N_CACHE_KIND };

struct gr_cache_params {
    uint32_t n_seq_max;
    bool has[GR_N_CACHE_KIND], has_rs;
    bool encodes; /* the second kind holds what an encoder gave, not what a window needs */
    struct gr_kv_params kv[GR_N_CACHE_KIND];
    struct gr_rs_params rs;
};

struct gr_cache {
    uint32_t n_seq_max;
    bool pos_2d;
    /* With an encoder (encodes) the second kind has the cells of its texts: batches are placed
     * there while `encoding`, otherwise in the first kind. The positions of a sequence are those of
     * the first kind, and what is done to some of them leaves its text alone, which is copied whole
     * and goes when all of the sequence goes. */
    bool encodes, encoding;
    struct gr_kv *kv[GR_N_CACHE_KIND]; /* NULL: the model has no such layers */
    struct gr_rs *rs;
    /* Of all that was decided so far: cells that were given to micro-batches, operations and their
     * copies. The same on every rank that runs the session. */
    uint64_t hash;
    /* Called before an operation that is possible is done, which is left undone when it fails;
     * NULL: nobody wants to know. */
    int (*tell)(void *user, const struct gr_kv_op *op);
    void *user;
};

/* *cache is filled in; gr_cache_fini also takes what a failed gr_cache_init left. */
int gr_cache_init(struct gr_cache *cache, const struct gr_cache_params *p);
void gr_cache_fini(struct gr_cache *cache);

/* Whether all of them can do an operation; nothing changes. */
int gr_cache_can(struct gr_cache *cache, const struct gr_kv_op *op);
/* Does an operation, or says why not and changes nothing. moves [GR_N_CACHE_KIND]: the copies of
 * cells that belong to it. */
int gr_cache_op(struct gr_cache *cache, const struct gr_kv_op *op, struct gr_kv_moves *moves);
void gr_cache_clear(struct gr_cache *cache);
/* gr_kv_pack on all of them, or on none: GR_E_NOMEM_HOST. */
int gr_cache_pack(struct gr_cache *cache, struct gr_kv_moves *moves);
/* What can be gone back to, and where a sequence ends; -1 when it is empty. */
int32_t gr_cache_pos_min(const struct gr_cache *cache, int32_t seq);
int32_t gr_cache_pos_max(const struct gr_cache *cache, int32_t seq);
/* Whether a sequence has anything, tokens or a text. */
bool gr_cache_has(const struct gr_cache *cache, int32_t seq);
/* Whether a kind takes a batch that comes now. */
bool gr_cache_takes(const struct gr_cache *cache, enum gr_cache_kind kind);
/* Whether a kind has the positions of sequences, not their encoded texts. */
bool gr_cache_has_positions(const struct gr_cache *cache, enum gr_cache_kind kind);
/* Cells in use for positions (of the cache that has the most), or rows of a model that has states
 * only. */
uint32_t gr_cache_used(const struct gr_cache *cache);
bool gr_cache_has_shift(const struct gr_cache *cache);
void gr_cache_shifted(struct gr_cache *cache);

/* Fills in what a batch is checked against, but for n_vocab and n_batch. Texts that are encoded
 * begin anew, whatever their sequences have. */
void gr_cache_limits(const struct gr_cache *cache, struct gr_batch_limits *limits);
/* Cuts a batch as these caches need it; as gr_batch_split. */
int32_t gr_cache_split(const struct gr_cache *cache, const struct gr_full_batch *b,
                       int32_t n_ubatch, int32_t *tok, struct gr_ubatch *ub);

/* Where a micro-batch goes: cells [n_tok] of each kind, rows [n_seq] of states. Room is the
 * caller's. */
struct gr_placed {
    int32_t *cells[GR_N_CACHE_KIND], *src, *dst;
};

int gr_cache_reserve(struct gr_cache *cache, const struct gr_ubatch *ub, int32_t n_ub);
void gr_cache_place(struct gr_cache *cache, const struct gr_ubatch *ub, const struct gr_placed *at);
void gr_cache_commit(struct gr_cache *cache);
/* emptied [n_seq_max] tells which sequences could not be kept; returns their number. */
int32_t gr_cache_abort(struct gr_cache *cache, bool *emptied);

/* Without any cache a token sees the tokens of its first sequence in its own micro-batch, as far as
 * `behind` positions before it and `ahead` after it (INT32_MAX: all): list [n_tok] of their numbers
 * in the order of positions, span [n_tok][3]. */
void gr_cache_fill_none(const struct gr_ubatch *ub, int32_t behind, int32_t ahead, int32_t *list,
                        int32_t *span);

/* Of all cells as they are now; the hash of decisions begins anew with it. */
uint64_t gr_cache_table_hash(struct gr_cache *cache);

void gr_cache_print(const struct gr_cache *cache, FILE *out);
int gr_cache_check(const struct gr_cache *cache);

#endif
