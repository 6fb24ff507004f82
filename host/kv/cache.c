#include "kv/cache.h"

#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "kv/hash.h"

int gr_cache_init(struct gr_cache *cache, const struct gr_cache_params *p)
{
    int rc = 0;
    *cache = (struct gr_cache){.n_seq_max = p->n_seq_max, .encodes = p->encodes};
    for (int k = 0; k < GR_N_CACHE_KIND && !rc; k++)
        if (p->has[k]) {
            cache->pos_2d = p->kv[k].pos_2d;
            rc = gr_kv_new(&cache->kv[k], &p->kv[k]);
        }
    if (!rc && p->has_rs)
        rc = gr_rs_new(&cache->rs, &p->rs);
    return rc;
}

void gr_cache_fini(struct gr_cache *cache)
{
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        gr_kv_free(&cache->kv[k]);
    gr_rs_free(&cache->rs);
}

static int check_seq(const struct gr_cache *cache, int32_t seq)
{
    if (seq >= 0 && seq < (int32_t)cache->n_seq_max)
        return 0;
    return gr_fail(GR_E_INVALID, "sequence: 0 to %u expected, %d found", cache->n_seq_max - 1, seq);
}

/* ---- texts of an encoder ---- */

bool gr_cache_has_positions(const struct gr_cache *cache, enum gr_cache_kind kind)
{
    return cache->kv[kind] && !(cache->encodes && kind == GR_CACHE_SWA);
}

bool gr_cache_takes(const struct gr_cache *cache, enum gr_cache_kind kind)
{
    return cache->kv[kind] && gr_cache_has_positions(cache, kind) != cache->encoding;
}

/* Turns an operation on a range of positions into the one on an encoded text; false: no effect. */
static bool op_for_text(struct gr_kv_op *op)
{
    switch (op->kind) {
    case GR_KV_CP:
    case GR_KV_DUP:
        op->p0 = op->p1 = -1;
        return true;
    case GR_KV_RM:
        return op->p0 <= 0 && op->p1 < 0;
    default:
        return op->kind == GR_KV_KEEP;
    }
}

/* Turns an operation into the one for a kind of cache; false: no effect. */
static bool op_for(const struct gr_cache *cache, enum gr_cache_kind kind, const struct gr_kv_op *op,
                   struct gr_kv_op *own)
{
    *own = *op;
    return cache->kv[kind] && (gr_cache_has_positions(cache, kind) || op_for_text(own));
}

/* A sequence has one encoded text: a copy must not meet a different one. */
static int check_text(const struct gr_cache *cache, const struct gr_kv_op *op)
{
    const struct gr_kv *texts = cache->encodes ? cache->kv[GR_CACHE_SWA] : NULL;
    bool copies = op->kind == GR_KV_CP || op->kind == GR_KV_DUP;
    if (!texts || !copies || op->seq == op->dst || !gr_kv_seq_cells(texts, op->dst) ||
        gr_kv_seq_alike(texts, op->seq, op->dst))
        return 0;
    return gr_fail(GR_E_INVALID,
                   "sequence %d has an encoded text of its own, which cannot become that of "
                   "sequence %d beside its tokens; remove all of the sequence first",
                   op->dst, op->seq);
}

int gr_cache_can(struct gr_cache *cache, const struct gr_kv_op *op)
{
    int rc = check_seq(cache, op->kind == GR_KV_RM && op->seq < 0 ? 0 : op->seq);
    if (!rc && (op->kind == GR_KV_CP || op->kind == GR_KV_DUP))
        rc = check_seq(cache, op->dst);
    if (!rc)
        rc = check_text(cache, op);
    struct gr_kv_op own;
    for (int k = 0; k < GR_N_CACHE_KIND && !rc; k++)
        if (op_for(cache, k, op, &own))
            rc = gr_kv_can(cache->kv[k], &own);
    if (!rc && cache->rs)
        rc = gr_rs_can(cache->rs, op);
    return rc;
}

/* ---- what was decided ---- */

/* First word of each entry of the hash. */
enum entry { ENTRY_OP, ENTRY_CLEAR, ENTRY_PACK, ENTRY_SHIFTED, ENTRY_PLACED, ENTRY_EMPTIED };

static void note(struct gr_cache *cache, enum entry entry, const void *p, size_t n)
{
    uint32_t begin = entry;
    cache->hash = gr_hash_bytes(cache->hash, &begin, sizeof begin);
    if (n)
        cache->hash = gr_hash_bytes(cache->hash, p, n);
}

static void note_moves(struct gr_cache *cache, const struct gr_kv_moves *m)
{
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (m[k].n) {
            cache->hash = gr_hash_bytes(cache->hash, m[k].src, m[k].n * sizeof *m->src);
            cache->hash = gr_hash_bytes(cache->hash, m[k].dst, m[k].n * sizeof *m->dst);
        }
}

static void note_placed(struct gr_cache *cache, const struct gr_ubatch *ub,
                        const struct gr_placed *at)
{
    size_t n_tok = (size_t)ub->n_tok, n_seq = (size_t)ub->n_seq;
    note(cache, ENTRY_PLACED, &ub->n_tok, sizeof ub->n_tok);
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (gr_cache_takes(cache, k))
            cache->hash = gr_hash_bytes(cache->hash, at->cells[k], n_tok * sizeof(int32_t));
    if (!cache->rs)
        return;
    cache->hash = gr_hash_bytes(cache->hash, at->src, n_seq * sizeof *at->src);
    cache->hash = gr_hash_bytes(cache->hash, at->dst, n_seq * sizeof *at->dst);
}

uint64_t gr_cache_table_hash(struct gr_cache *cache)
{
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (cache->kv[k])
            cache->hash = gr_kv_hash(cache->kv[k], cache->hash);
    if (cache->rs)
        cache->hash = gr_rs_hash(cache->rs, cache->hash);
    return cache->hash;
}

/* ---- operations ---- */

int gr_cache_op(struct gr_cache *cache, const struct gr_kv_op *op, struct gr_kv_moves *moves)
{
    memset(moves, 0, GR_N_CACHE_KIND * sizeof *moves);
    int rc = gr_cache_can(cache, op);
    if (!rc && cache->before_op)
        rc = cache->before_op(cache->user, op);
    if (rc)
        return rc;
    struct gr_kv_op own;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (op_for(cache, k, op, &own))
            gr_kv_do(cache->kv[k], &own, &moves[k]);
    if (cache->rs)
        gr_rs_do(cache->rs, op);
    note(cache, ENTRY_OP, op, sizeof *op);
    note_moves(cache, moves);
    return 0;
}

void gr_cache_clear(struct gr_cache *cache)
{
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (cache->kv[k])
            gr_kv_cells_clear(cache->kv[k]);
    if (cache->rs)
        gr_rs_clear(cache->rs);
    note(cache, ENTRY_CLEAR, NULL, 0);
}

int gr_cache_pack(struct gr_cache *cache, struct gr_kv_moves *moves)
{
    int rc = 0;
    memset(moves, 0, GR_N_CACHE_KIND * sizeof *moves);
    for (int k = 0; k < GR_N_CACHE_KIND && !rc; k++)
        if (cache->kv[k])
            rc = gr_kv_can_pack(cache->kv[k]);
    for (int k = 0; k < GR_N_CACHE_KIND && !rc; k++)
        if (cache->kv[k])
            rc = gr_kv_pack(cache->kv[k], &moves[k]);
    if (rc)
        return rc;
    note(cache, ENTRY_PACK, NULL, 0);
    note_moves(cache, moves);
    return 0;
}

int32_t gr_cache_pos_min(const struct gr_cache *cache, int32_t seq)
{
    int32_t min = -1;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (gr_cache_has_positions(cache, k))
            min = GR_MAX(min, gr_kv_cells_pos_min(cache->kv[k], seq));
    return cache->rs ? GR_MAX(min, gr_rs_pos_min(cache->rs, seq)) : min;
}

int32_t gr_cache_pos_max(const struct gr_cache *cache, int32_t seq)
{
    int32_t max = -1;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (gr_cache_has_positions(cache, k))
            max = GR_MAX(max, gr_kv_cells_pos_max(cache->kv[k], seq));
    return cache->rs ? GR_MAX(max, gr_rs_pos_max(cache->rs, seq)) : max;
}

int32_t gr_cache_cut_min(const struct gr_cache *cache, int32_t seq)
{
    int32_t min = 0;
    if (seq < 0 || (uint32_t)seq >= cache->n_seq_max)
        return 0;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (gr_cache_has_positions(cache, k))
            min = GR_MAX(min, gr_kv_cut_min(cache->kv[k], seq));
    return cache->rs ? GR_MAX(min, gr_rs_pos_min(cache->rs, seq) + 1) : min;
}

bool gr_cache_has(const struct gr_cache *cache, int32_t seq)
{
    bool any = cache->rs && gr_rs_pos_max(cache->rs, seq) >= 0;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        any |= cache->kv[k] && gr_kv_seq_cells(cache->kv[k], seq) > 0;
    return any;
}

uint32_t gr_cache_used(const struct gr_cache *cache)
{
    uint32_t n = 0;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (gr_cache_has_positions(cache, k))
            n = GR_MAX(n, gr_kv_n_used(cache->kv[k]));
    return !n && cache->rs ? gr_rs_n_used(cache->rs) : n;
}

bool gr_cache_has_shift(const struct gr_cache *cache)
{
    bool any = false;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        any |= cache->kv[k] && gr_kv_has_shift(cache->kv[k]);
    return any;
}

void gr_cache_shifted(struct gr_cache *cache)
{
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (cache->kv[k])
            gr_kv_shifted(cache->kv[k]);
    note(cache, ENTRY_SHIFTED, NULL, 0);
}

/* ---- batches ---- */

static int32_t limit_pos_max(const void *p, int32_t seq)
{
    const struct gr_cache *cache = p;
    return cache->encoding ? -1 : gr_cache_pos_max(cache, seq);
}

static int32_t limit_pos_end(const void *p, int32_t seq)
{
    const struct gr_cache *cache = p;
    int32_t end = 0; /* all tokens that have rows and columns have cells with positions */
    for (int k = 0; k < GR_N_CACHE_KIND && !cache->encoding; k++)
        if (gr_cache_has_positions(cache, k))
            end = GR_MAX(end, gr_kv_cells_pos_end(cache->kv[k], seq));
    return end;
}

static bool limit_same(const void *p, int32_t a, int32_t b)
{
    const struct gr_cache *cache = p;
    bool same = !cache->rs || gr_rs_seq_same(cache->rs, a, b);
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        same = same && (!cache->kv[k] || gr_kv_seq_same(cache->kv[k], a, b));
    return same || cache->encoding;
}

void gr_cache_limits(const struct gr_cache *cache, struct gr_batch_limits *limits)
{
    limits->n_seq_max = (int32_t)cache->n_seq_max;
    limits->pos_2d = cache->pos_2d;
    limits->pos_max = limit_pos_max;
    limits->pos_end = limit_pos_end;
    limits->same = limit_same;
    limits->cache = cache;
}

int32_t gr_cache_split(const struct gr_cache *cache, const struct gr_full_batch *b,
                       int32_t n_ubatch, int32_t *tok, struct gr_ubatch *ub)
{
    if (!cache->rs)
        return gr_batch_split(b, GR_SPLIT_SIMPLE, n_ubatch, 0, tok, ub);
    return gr_batch_split(b, GR_SPLIT_EQUAL, n_ubatch, gr_rs_n_rollback(cache->rs), tok, ub);
}

int gr_cache_reserve(struct gr_cache *cache, const struct gr_ubatch *ub, int32_t n_ub)
{
    int rc = 0, k = 0;
    for (; k < GR_N_CACHE_KIND && !rc; k++)
        if (gr_cache_takes(cache, k))
            rc = gr_kv_reserve(cache->kv[k], ub, n_ub);
    if (!rc && cache->rs)
        rc = gr_rs_reserve(cache->rs, ub, n_ub);
    else if (rc)
        k--; /* the one that failed has nothing to undo */
    while (rc && k-- > 0)
        if (gr_cache_takes(cache, k))
            gr_kv_abort(cache->kv[k]);
    return rc;
}

void gr_cache_place(struct gr_cache *cache, const struct gr_ubatch *ub, const struct gr_placed *at)
{
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (gr_cache_takes(cache, k))
            gr_kv_place(cache->kv[k], ub, at->cells[k]);
    if (cache->rs)
        gr_rs_place(cache->rs, ub, at->src, at->dst);
    note_placed(cache, ub, at);
}

void gr_cache_commit(struct gr_cache *cache)
{
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (gr_cache_takes(cache, k))
            gr_kv_commit(cache->kv[k]);
    if (cache->rs)
        gr_rs_commit(cache->rs);
}

static bool incomplete(const struct gr_cache *cache, int32_t seq)
{
    bool lost = cache->rs && gr_rs_incomplete(cache->rs, seq);
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        lost |= cache->kv[k] && gr_kv_incomplete(cache->kv[k], seq);
    return lost;
}

static void empty(struct gr_cache *cache, int32_t seq)
{
    struct gr_kv_op op = {.kind = GR_KV_RM, .seq = seq, .p0 = -1, .p1 = -1};
    struct gr_kv_moves none;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (cache->kv[k])
            gr_kv_do(cache->kv[k], &op, &none);
    if (cache->rs)
        gr_rs_do(cache->rs, &op);
}

int32_t gr_cache_abort(struct gr_cache *cache, bool *emptied)
{
    int32_t n = 0;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (gr_cache_takes(cache, k))
            gr_kv_abort(cache->kv[k]);
    if (cache->rs)
        gr_rs_abort(cache->rs);
    for (int32_t s = 0; s < (int32_t)cache->n_seq_max; s++) {
        emptied[s] = incomplete(cache, s);
        if (emptied[s])
            empty(cache, s);
        n += emptied[s];
    }
    if (n)
        note(cache, ENTRY_EMPTIED, emptied, cache->n_seq_max * sizeof *emptied);
    return n;
}

static int64_t pos_of(const struct gr_ubatch *ub, int32_t i)
{
    return ub->batch->pos[ub->tok[i]];
}

void gr_cache_fill_none(const struct gr_ubatch *ub, int32_t behind, int32_t ahead, int32_t *list,
                        int32_t *span)
{
    const struct gr_full_batch *b = ub->batch;
    /* Offset of each sequence's tokens in `list`, and the end of the last one. */
    int32_t at[GR_SEQ_MAX + 1] = {0}, next[GR_SEQ_MAX];
    for (int32_t i = 0; i < ub->n_tok; i++)
        at[b->seq[b->seq_at[ub->tok[i]]] + 1]++;
    for (int s = 0; s < GR_SEQ_MAX; s++) {
        at[s + 1] += at[s];
        next[s] = at[s];
    }
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t s = b->seq[b->seq_at[ub->tok[i]]];
        list[next[s]++] = i;
    }
    for (int s = 0; s < GR_SEQ_MAX; s++) /* a sequence's tokens come in the order of positions */
        for (int32_t k = at[s], lo = k, hi = k; k < at[s + 1]; k++) {
            int64_t pos = pos_of(ub, list[k]);
            while (pos_of(ub, list[lo]) < pos - behind)
                lo++;
            while (hi < at[s + 1] && pos_of(ub, list[hi]) <= pos + ahead)
                hi++;
            span[3 * list[k]] = span[3 * list[k] + 1] = lo;
            span[3 * list[k] + 2] = hi;
        }
}

/* ---- for people and tests ---- */

void gr_cache_print(const struct gr_cache *cache, FILE *out)
{
    const char *const names[] = {"cells", cache->encodes ? "cells of encoded texts"
                                                         : "cells of the layers with a window"};
    int n = (cache->kv[0] != NULL) + (cache->kv[1] != NULL) + (cache->rs != NULL);
    for (int k = 0; k < GR_N_CACHE_KIND; k++) {
        if (cache->kv[k] && n > 1)
            fprintf(out, "%s:\n", names[k]);
        if (cache->kv[k])
            gr_kv_print(cache->kv[k], out);
    }
    if (cache->rs && n > 1)
        fputs("recurrent states:\n", out);
    if (cache->rs)
        gr_rs_print(cache->rs, out);
    if (!n)
        fputs("the model keeps nothing from step to step\n", out);
}

int gr_cache_check(const struct gr_cache *cache)
{
    int rc = 0;
    for (int k = 0; k < GR_N_CACHE_KIND && !rc; k++)
        if (cache->kv[k])
            rc = gr_kv_check(cache->kv[k]);
    return !rc && cache->rs ? gr_rs_check(cache->rs) : rc;
}
