/* The lists of cells in the step block. Their capacity is that of all sequences, so a plan does not
 * depend on their length and can be kept as long as the session. They are kept from step to step,
 * on host and devices: for a continued sequence only its new cells are written and uploaded. */
#include "engine/lists.h"

#include <string.h>

#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"

/* ---- capacity ---- */

/* Initial capacity: the cells of the cache; without a cache, and for an encoder, at least the
 * tokens of a micro-batch, which are listed then. */
static int64_t initial_capacity(const struct gr_session *s, int kind)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    bool own = hp->no_cache && (kind == GR_CACHE_FULL || gr_any_window(hp));
    int64_t cells = s->cache.kv[kind] ? gr_kv_list_capacity(&s->memory.cache.kv[kind]) : 0;
    return (own || s->cache.encodes) ? GR_MAX(cells, (int64_t)s->params.n_ubatch) : cells;
}

static int64_t capacity_of(const struct gr_session *s, int kind)
{
    return GR_MAX(GR_MIN(initial_capacity(s, kind), INT32_MAX / 4), s->lists.room[kind]);
}

void gr_lists_shape(const struct gr_session *s, struct gr_step_shape *shape)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    shape->n_list = (int32_t)capacity_of(s, GR_CACHE_FULL);
    shape->n_list_swa = (int32_t)capacity_of(s, GR_CACHE_SWA);
    shape->n_alibi = (hp->attn.max_alibi > 0 || hp->attn.n_bucket > 0) ? shape->n_list : 0;
}

/* Sequences that share cells may together list more cells than the cache has; the capacity is
 * doubled, so that this happens seldom. */
int gr_lists_reserve(struct gr_session *s, const struct gr_ubatch *ub)
{
    for (int k = 0; k < GR_N_CACHE_KIND && !s->cache.encoding; k++) {
        const struct gr_kv *kv = s->cache.kv[k];
        int64_t capacity = capacity_of(s, k), need = kv ? gr_kv_list(kv, ub) : 0;
        if (need <= capacity)
            continue;
        if (need > INT32_MAX / 4)
            return gr_fail(GR_E_TOO_LARGE,
                           "a micro-batch whose sequences have %lld cells is too large",
                           (long long)need);
        s->lists.room[k] = (int32_t)GR_MIN(GR_MAX(need, 2 * capacity), INT32_MAX / 4);
        gr_lists_invalidate(s);
    }
    return 0;
}

/* ---- contents ---- */

static void mark(struct gr_session *s, const struct gr_cached_plan *c, enum gr_step_array a,
                 struct gr_kv_range r)
{
    for (int32_t d = 1; d < s->n_device && r.lo < r.hi; d++) {
        struct gr_dirty_range *t = &s->device[d].dirty[a];
        int64_t lo = c->plan.layout.offset[a] + 4 * (int64_t)r.lo, hi = lo + 4 * (r.hi - r.lo);
        *t = t->lo < t->hi ? (struct gr_dirty_range){GR_MIN(t->lo, lo), GR_MAX(t->hi, hi)}
                           : (struct gr_dirty_range){lo, hi};
    }
}

void gr_lists_invalidate(struct gr_session *s)
{
    s->lists.kept = false;
    for (int32_t d = 0; d < s->n_device; d++)
        memset(s->device[d].dirty, 0, sizeof s->device[d].dirty);
}

static const struct {
    enum gr_step_array list, span;
} array_of[GR_N_CACHE_KIND] = {{GR_STEP_LIST, GR_STEP_SPAN}, {GR_STEP_LIST_SWA, GR_STEP_SPAN_SWA}};

static int32_t *key_pos_of(struct gr_session *s, const struct gr_cached_plan *c)
{
    return c->plan.shape.n_alibi ? gr_staged(s, c, GR_STEP_KEY_POS) : NULL;
}

/* Lists the tokens of the micro-batch itself, for attention without a cache and for an encoder.
 * Windows limit how far a token sees back, and ahead where they have two sides. */
static void fill_own(struct gr_session *s, const struct gr_cached_plan *c,
                     const struct gr_ubatch *ub)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    int32_t *list = gr_staged(s, c, GR_STEP_LIST), *key_pos = key_pos_of(s, c);
    int32_t behind = hp->swa.both ? hp->swa.n_swa / 2 : hp->swa.n_swa - 1;
    const struct gr_kv_range all = {0, ub->n_tok};
    gr_cache_fill_none(ub, INT32_MAX, INT32_MAX, list, gr_staged(s, c, GR_STEP_SPAN));
    mark(s, c, GR_STEP_LIST, all);
    for (int32_t i = 0; key_pos && i < ub->n_tok; i++)
        key_pos[i] = ub->batch->pos[ub->tok[list[i]]];
    if (key_pos)
        mark(s, c, GR_STEP_KEY_POS, all);
    if (!hp->no_cache || !c->plan.shape.n_list_swa)
        return;
    gr_cache_fill_none(ub, behind, hp->swa.both ? behind : INT32_MAX,
                       gr_staged(s, c, GR_STEP_LIST_SWA), gr_staged(s, c, GR_STEP_SPAN_SWA));
    mark(s, c, GR_STEP_LIST_SWA, all);
}

void gr_lists_fill(struct gr_session *s, const struct gr_cached_plan *c, const struct gr_ubatch *ub)
{
    const struct gr_cache *cache = &s->cache;
    bool own = s->rank_model->hp.no_cache || cache->encoding;
    if (own)
        fill_own(s, c, ub);
    for (int k = 0; k < GR_N_CACHE_KIND && !own; k++) {
        bool full = k == GR_CACHE_FULL;
        if (!cache->kv[k])
            continue;
        int32_t *key_pos = full ? key_pos_of(s, c) : NULL;
        struct gr_kv_range r = gr_kv_fill(cache->kv[k], ub, gr_cache_has_positions(cache, k),
                                          full && c->plan.shape.n_far ? s->params.self_extend_w : 0,
                                          s->lists.kept, gr_staged(s, c, array_of[k].list),
                                          gr_staged(s, c, array_of[k].span), key_pos);
        mark(s, c, array_of[k].list, r);
        if (key_pos)
            mark(s, c, GR_STEP_KEY_POS, r);
    }
    s->lists.kept = !own;
}

int gr_lists_upload(struct gr_session *s, int32_t d)
{
    struct gr_session_device *v = &s->device[d];
    int rc = 0;
    for (int a = 0; a < GR_N_LIST && !rc; a++) {
        struct gr_dirty_range *t = &v->dirty[a];
        if (t->lo == t->hi)
            continue;
        rc = v->backend->api->upload(v->backend, (char *)v->memory.step + t->lo,
                                     (const char *)s->device[0].memory.step + t->lo,
                                     (size_t)(t->hi - t->lo));
        if (!rc)
            *t = (struct gr_dirty_range){0, 0};
    }
    return rc;
}
