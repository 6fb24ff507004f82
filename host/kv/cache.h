/* All caches of a session behind one interface: cells of the full-attention layers, cells of the
 * sliding-window layers, rows of recurrent states; each present if the model has such layers.
 * Metadata only.
 *
 * An operation is performed on all of them or on none. A batch that fails is removed from all of
 * them; where it has overwritten data that an earlier state needs (cells evicted from a window, a
 * recurrent state), the sequence is emptied in all of them and reported. */
#ifndef GR_KV_CACHE_H
#define GR_KV_CACHE_H

#include "kv/kv.h"
#include "kv/recurrent.h"

enum gr_cache_kind { GR_CACHE_FULL, GR_CACHE_SWA, GR_N_CACHE_KIND };

struct gr_cache_params {
    uint32_t n_seq_max;
    bool has[GR_N_CACHE_KIND], has_rs;
    bool encodes; /* GR_CACHE_SWA holds the output of an encoder, not the layers with a window */
    struct gr_kv_params kv[GR_N_CACHE_KIND];
    struct gr_rs_params rs;
};

struct gr_cache {
    uint32_t n_seq_max;
    bool pos_2d;
    /* With an encoder (encodes) GR_CACHE_SWA has the cells of encoded texts: batches are placed
     * there while `encoding`, otherwise in GR_CACHE_FULL. The positions of a sequence are those in
     * GR_CACHE_FULL; operations on some of them leave its encoded text alone, which is copied whole
     * and removed when the whole sequence is. */
    bool encodes, encoding;
    struct gr_kv *kv[GR_N_CACHE_KIND]; /* NULL: the model has no such layers */
    struct gr_rs *rs;
    /* Hash of all decisions so far: cells given to micro-batches, operations and their copies.
     * Equal on all ranks that run the session. */
    uint64_t hash;
    /* Called before a possible operation is performed, which is skipped when the call fails; NULL:
     * none. */
    int (*before_op)(void *user, const struct gr_kv_op *op);
    void *user;
};

/* Fills in *cache. gr_cache_fini must follow a failed gr_cache_init too, to free what it left. */
int gr_cache_init(struct gr_cache *cache, const struct gr_cache_params *p);
void gr_cache_fini(struct gr_cache *cache);

/* Returns 0 when all caches can perform an operation; changes nothing. */
int gr_cache_can(struct gr_cache *cache, const struct gr_kv_op *op);
/* Performs an operation, or fails and changes nothing. moves [GR_N_CACHE_KIND] receives the cells
 * whose data must be copied. */
int gr_cache_op(struct gr_cache *cache, const struct gr_kv_op *op, struct gr_kv_moves *moves);
void gr_cache_clear(struct gr_cache *cache);
/* gr_kv_pack on all caches, or on none with GR_E_NOMEM_HOST. */
int gr_cache_pack(struct gr_cache *cache, struct gr_kv_moves *moves);
/* Lowest position to which a sequence can be rolled back; its largest one. -1 when it is empty. */
int32_t gr_cache_pos_min(const struct gr_cache *cache, int32_t seq);
int32_t gr_cache_pos_max(const struct gr_cache *cache, int32_t seq);
/* Lowest position from which on the end of a sequence can be removed anywhere. */
int32_t gr_cache_cut_min(const struct gr_cache *cache, int32_t seq);
/* Returns whether a sequence has any tokens or an encoded text. */
bool gr_cache_has(const struct gr_cache *cache, int32_t seq);
/* Returns whether the next batch is placed in this kind of cache. */
bool gr_cache_takes(const struct gr_cache *cache, enum gr_cache_kind kind);
/* Returns whether a kind holds positions of sequences, rather than encoded texts. */
bool gr_cache_has_positions(const struct gr_cache *cache, enum gr_cache_kind kind);
/* Used cells that hold positions (of the cache with the most), or used rows when the model has
 * recurrent states only. */
uint32_t gr_cache_used(const struct gr_cache *cache);
bool gr_cache_has_shift(const struct gr_cache *cache);
void gr_cache_shifted(struct gr_cache *cache);

/* Fills in the limits that a batch is checked against, except n_vocab, n_batch and n_embd. Texts to
 * be encoded start anew, whatever their sequences contain. */
void gr_cache_limits(const struct gr_cache *cache, struct gr_batch_limits *limits);
/* Splits a batch as these caches need it; arguments and result as for gr_batch_split. */
int32_t gr_cache_split(const struct gr_cache *cache, const struct gr_full_batch *b,
                       int32_t n_ubatch, int32_t *tok, struct gr_ubatch *ub);

/* Places of a micro-batch: cells [n_tok] of each kind, rows [n_seq] of recurrent states to read
 * (src) and write (dst). The caller owns the arrays. */
struct gr_placed {
    int32_t *cells[GR_N_CACHE_KIND], *src, *dst;
};

int gr_cache_reserve(struct gr_cache *cache, const struct gr_ubatch *ub, int32_t n_ub);
void gr_cache_place(struct gr_cache *cache, const struct gr_ubatch *ub, const struct gr_placed *at);
void gr_cache_commit(struct gr_cache *cache);
/* emptied [n_seq_max] receives which sequences could not be kept; returns their number. */
int32_t gr_cache_abort(struct gr_cache *cache, bool *emptied);

/* Visibility without any cache: a token sees the tokens of its first sequence in its own
 * micro-batch, up to `behind` positions before it and `ahead` after it (INT32_MAX: all). list
 * [n_tok] receives token numbers in the order of positions, span [n_tok][3] as in gr_kv_fill. */
void gr_cache_fill_none(const struct gr_ubatch *ub, int32_t behind, int32_t ahead, int32_t *list,
                        int32_t *span);

/* Continues the hash of decisions with the present tables of cells, and returns it. */
uint64_t gr_cache_table_hash(struct gr_cache *cache);

void gr_cache_print(const struct gr_cache *cache, FILE *out);
int gr_cache_check(const struct gr_cache *cache);

#endif
