/* Steps: K-shifts and copies of cells before a batch, then micro-batches, each with a plan and a
 * step block. */
#include "engine/step.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "engine/lists.h"
#include "engine/observe.h"
#include "engine/plans.h"
#include "engine/session.h"
#include "engine/session_devices.h"
#include "engine/times.h"
#include "engine/vectors.h"
#include "gr/status.h"
#include "link/tp_group.h"

/* ---- profiler ranges ---- */

void gr_session_range(struct gr_session *s, enum gr_range range, int64_t payload)
{
    for (int32_t d = 0; d < s->n_device; d++) {
        struct gr_backend *b = s->device[d].backend;
        if (b->api->range_begin)
            b->api->range_begin(b, range, (uint64_t)payload);
    }
}

void gr_session_range_end(struct gr_session *s)
{
    for (int32_t d = s->n_device; d-- > 0;) {
        struct gr_backend *b = s->device[d].backend;
        if (b->api->range_end)
            b->api->range_end(b);
    }
}

/* ---- before a batch ---- */

/* Runs a plan without cancellation: a cancelled shift would be applied to its finished layers a
 * second time by the next one. */
static int run_whole(struct gr_session *s, struct gr_cached_plan *c)
{
    const struct gr_step_shape *shape = &c->plan.shape;
    gr_session_cancellable(s, false);
    gr_session_range(s, GR_RANGE_KV, (int64_t)shape->n_copy + shape->n_delta + shape->n_delta_swa);
    int rc = gr_plan_run(s, c, NULL), synced = gr_session_sync(s);
    gr_session_range_end(s);
    gr_session_cancellable(s, true);
    return rc ? rc : synced;
}

int gr_apply_shift(struct gr_session *s)
{
    struct gr_kv *full = s->cache.kv[GR_CACHE_FULL], *swa = s->cache.kv[GR_CACHE_SWA];
    struct gr_step_shape shape = {.n_pos = 1};
    struct gr_cached_plan *c;
    gr_lists_shape(s, &shape);
    uint64_t hash = s->cache.hash;
    if (!gr_cache_has_shift(&s->cache))
        return 0;
    if (s->rank_model->hp.rope.kind != GR_ROPE_NONE) {
        if (full && gr_kv_has_shift(full)) {
            shape.n_delta = gr_kv_n_kv(full);
            shape.n_delta_far = s->params.self_extend_n > 1 ? shape.n_delta : 0;
        }
        if (swa && gr_kv_has_shift(swa))
            shape.n_delta_swa = gr_kv_n_kv(swa);
        int rc = gr_plan_for(s, GR_PLAN_SHIFT, &shape, &c);
        if (rc)
            return rc;
        if (shape.n_delta)
            gr_kv_deltas(full, shape.n_delta, false, gr_staged(s, c, GR_STEP_DELTA));
        if (shape.n_delta_far)
            gr_kv_deltas(full, shape.n_delta_far, true, gr_staged(s, c, GR_STEP_DELTA_FAR));
        if (shape.n_delta_swa)
            gr_kv_deltas(swa, shape.n_delta_swa, false, gr_staged(s, c, GR_STEP_DELTA_SWA));
        rc = run_whole(s, c);
        if (rc)
            return rc;
    }
    gr_cache_shifted(&s->cache);
    return s->ranks ? s->ranks->broadcast(s, GR_BROADCAST_SHIFT, hash) : 0;
}

static int copy_rows(struct gr_session *s, enum gr_plan_kind kind, const struct gr_kv_moves *m,
                     uint32_t first, uint32_t n)
{
    struct gr_step_shape shape = {.n_copy = (int32_t)n};
    struct gr_cached_plan *c;
    gr_lists_shape(s, &shape);
    int rc = gr_plan_for(s, kind, &shape, &c);
    if (rc)
        return rc;
    memcpy(gr_staged(s, c, GR_STEP_COPY_SRC), m->src + first, n * sizeof *m->src);
    memcpy(gr_staged(s, c, GR_STEP_COPY_DST), m->dst + first, n * sizeof *m->dst);
    return run_whole(s, c);
}

int gr_run_moves(struct gr_session *s, const struct gr_kv_moves moves[GR_N_CACHE_KIND])
{
    enum { AT_ONCE = 4096 };
    int rc = 0;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        for (uint32_t i = 0; i < moves[k].n && !rc; i += AT_ONCE)
            rc = copy_rows(s, k == GR_CACHE_SWA ? GR_PLAN_COPY_SWA : GR_PLAN_COPY, &moves[k], i,
                           GR_MIN(AT_ONCE, moves[k].n - i));
    return rc;
}

/* ---- a micro-batch ---- */

static void gather(const struct gr_ubatch *ub, const int32_t *from, int32_t *to)
{
    for (int32_t i = 0; i < ub->n_tok; i++)
        to[i] = from[ub->tok[i]];
}

/* Fills in the tokens, or the input vectors in their place. */
static void fill_input(struct gr_session *s, const struct gr_cached_plan *c,
                       const struct gr_ubatch *ub)
{
    size_t n = (size_t)c->plan.shape.n_embd;
    float *to = gr_staged(s, c, GR_STEP_EMBD);
    gather(ub, ub->batch->token, gr_staged(s, c, GR_STEP_TOKENS));
    for (int32_t i = 0; n && i < ub->n_tok; i++)
        memcpy(to + (size_t)i * n, ub->batch->embd + (size_t)ub->tok[i] * n, n * sizeof *to);
}

/* Fills in the positions, and rows and columns for a model that has them (M-RoPE). */
static void fill_pos(struct gr_session *s, const struct gr_cached_plan *c,
                     const struct gr_ubatch *ub)
{
    const struct gr_full_batch *b = ub->batch;
    int32_t *pos = gr_staged(s, c, GR_STEP_POS);
    gather(ub, b->pos, pos);
    if (c->plan.shape.n_pos < 3)
        return;
    gather(ub, b->row, pos + ub->n_tok);
    gather(ub, b->col, pos + 2 * ub->n_tok);
}

/* Fills in the grouped positions of Self-Extend: floor(pos / n) for keys, and for queries w - w / n
 * more, so that a key w = self_extend_w behind is as far away as by the original positions. */
static void fill_far(struct gr_session *s, const struct gr_cached_plan *c,
                     const struct gr_ubatch *ub)
{
    int32_t n = s->params.self_extend_n, w = s->params.self_extend_w;
    int32_t *q = gr_staged(s, c, GR_STEP_FAR_Q), *k = gr_staged(s, c, GR_STEP_FAR_K);
    for (int32_t i = 0; i < c->plan.shape.n_far; i++) {
        k[i] = ub->batch->pos[ub->tok[i]] / n;
        q[i] = k[i] + (w - w / n);
    }
}

/* Fills in the parameters of each draw; edits and masks are those of the whole batch. */
static void fill_sampled(struct gr_session *s, const struct gr_cached_plan *c,
                         const struct gr_ubatch *ub, int32_t first_row)
{
    const struct gr_device_sampling *d = &s->sampled;
    memcpy(gr_staged(s, c, GR_STEP_SAMPLE), d->rows + first_row,
           (size_t)ub->n_out * sizeof *d->rows);
    if (d->edits.n)
        memcpy(gr_staged(s, c, GR_STEP_EDITS), d->edits.data,
               d->edits.n * sizeof(struct gr_sample_edit));
    if (d->masks.n)
        memcpy(gr_staged(s, c, GR_STEP_MASKS), d->masks.data, d->masks.n * sizeof(uint32_t));
}

static void fill_step(struct gr_session *s, const struct gr_cached_plan *c,
                      const struct gr_ubatch *ub, int32_t first_row)
{
    int32_t *rows = gr_staged(s, c, GR_STEP_OUT_ROWS);
    size_t n_seq = (size_t)c->plan.shape.n_seq * sizeof(int32_t);
    fill_input(s, c, ub);
    fill_pos(s, c, ub);
    for (int32_t i = 0; i < ub->n_tok; i++)
        if (ub->batch->logits[ub->tok[i]])
            *rows++ = i;
    if (c->plan.shape.n_sample)
        fill_sampled(s, c, ub, first_row);
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (gr_cache_takes(&s->cache, k))
            memcpy(gr_staged(s, c, k == GR_CACHE_FULL ? GR_STEP_CELLS : GR_STEP_CELLS_SWA),
                   s->placed.cells[k], (size_t)ub->n_tok * sizeof(int32_t));
    gr_lists_fill(s, c, ub);
    if (c->plan.shape.n_far)
        fill_far(s, c, ub);
    if (c->plan.shape.n_pool)
        gr_vectors_fill_step(s, ub, gr_staged(s, c, GR_STEP_POOL_LIST),
                             gr_staged(s, c, GR_STEP_POOL_AT));
    memcpy(gr_staged(s, c, GR_STEP_STATE_SRC), s->placed.src, n_seq);
    memcpy(gr_staged(s, c, GR_STEP_STATE_DST), s->placed.dst, n_seq);
}

/* True when all tokens, more than GR_ATTN_FEW, are of one sequence. */
static bool one_run(const struct gr_ubatch *ub)
{
    const struct gr_full_batch *b = ub->batch;
    int32_t same = 0;
    while (same < ub->n_tok && b->seq[b->seq_at[ub->tok[same]]] == b->seq[b->seq_at[ub->tok[0]]])
        same++;
    return same == ub->n_tok && same > GR_ATTN_FEW;
}

static int shape_of(struct gr_session *s, const struct gr_ubatch *ub, bool sampled,
                    struct gr_step_shape *shape)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    const struct gr_cache *cache = &s->cache;
    *shape = (struct gr_step_shape){.n_tok = ub->n_tok,
                                    .n_out = ub->n_out,
                                    .n_pos = hp->rope.section[0] > 0 ? 3 : 1,
                                    .n_full = ub->n_tok,
                                    .n_far = s->params.self_extend_n > 1 ? ub->n_tok : 0,
                                    .n_seq = cache->rs ? ub->n_seq : 0,
                                    .n_sample = sampled ? ub->n_out : 0,
                                    .n_embd = ub->batch->embd ? hp->n_embd : 0,
                                    .one_run = one_run(ub)};
    if (sampled)
        gr_device_sampling_shape(s, shape);
    if (cache->kv[GR_CACHE_SWA] || (hp->no_cache && gr_any_window(hp)))
        shape->n_swa = ub->n_tok;
    if (s->pool == GR_POOL_MEAN) {
        shape->n_pool = gr_vectors_rows(s, ub);
        for (int32_t i = 0; i < ub->n_tok; i++)
            shape->n_pool_item += ub->batch->n_seq[ub->tok[i]];
    }
    int rc = gr_lists_reserve(s, ub);
    gr_lists_shape(s, shape);
    return rc;
}

int gr_ubatch_prepare(struct gr_session *s, const struct gr_pending_batch *pending,
                      const struct gr_ubatch *ub, int32_t first_row, struct gr_cached_plan **out)
{
    struct gr_step_shape shape;
    int32_t n_list[GR_N_CACHE_KIND];
    memcpy(n_list, s->lists.room, sizeof n_list);
    gr_cache_place(&s->cache, ub, &s->placed);
    int rc = shape_of(s, ub, pending->sampled, &shape);
    if (!rc)
        rc = gr_plan_for(s, s->cache.encoding ? GR_PLAN_ENCODE : GR_PLAN_STEP, &shape, out);
    if (!rc)
        fill_step(s, *out, ub, first_row);
    else /* no memory for longer lists: later micro-batches may not need them */
        memcpy(s->lists.room, n_list, sizeof n_list);
    return rc;
}

/* ---- running ---- */

/* Lets the ranks that share layers agree before they run them: all of them do, or none. */
static int agree(struct gr_session *s, int rc)
{
    char why[800];
    struct gr_tp_group *group = s->rank_model->tp_group;
    bool serves = s->ranks && s->rank_model->rank > 0;
    if (!rc && !s->now->status && atomic_load(&s->cancel))
        rc = gr_fail(GR_E_CANCELLED, "cancelled");
    if (rc && serves) /* only rank 0 can have a batch rolled back */
        return gr_tp_group_lose(group);
    snprintf(why, sizeof why, "%s", rc ? gr_error_message() : "");
    int doing = gr_world_pause(group->world);
    int status = gr_tp_group_agree(group, rc ? rc : s->now->status);
    gr_world_resume(group->world, doing);
    int lost = gr_world_check(group->world);
    if (lost)
        return lost;
    if (rc)
        return gr_fail(rc, "%s", why);
    s->now->status = status;
    return s->ranks && !serves ? status : 0;
}

/* Runs the plan of a micro-batch and passes on what it gives. */
static int run_plan(struct gr_session *s, const struct gr_ubatch *ub, struct gr_cached_plan *c,
                    int32_t first_row)
{
    int64_t start = gr_now_ns();
    const struct gr_pending_batch *pending = s->now;
    size_t row = pending->sampled ? 1 : (size_t)s->n_row; /* a token id has the size of a logit */
    size_t n_out = (size_t)gr_vectors_rows(s, ub);
    float *out = pending->logits ? pending->logits + (size_t)first_row * row : NULL;
    s->observers.ubatch_tok = ub->n_tok;
    int rc = gr_plan_run(s, c, n_out ? out : NULL);
    s->observers.ubatch_tok = 0;
    if (!rc && s->flow) /* the next micro-batch reuses the memory of the input */
        rc = gr_session_sync(s);
    start = gr_timing_add(&s->timing, GR_SPAN_BUSY, start);
    if (!rc && s->flow)
        rc = s->flow->out(s, &c->plan, out, n_out * row * sizeof *out, s->flow->user);
    gr_timing_add(&s->timing, GR_SPAN_TRANSFER, start);
    return rc && s->rank_model->tp_group ? gr_tp_group_lose(s->rank_model->tp_group) : rc;
}

/* Runs a micro-batch; its logits, or sampled tokens, are rows [first_row, first_row + n_out). */
static int run_ubatch(struct gr_session *s, const struct gr_ubatch *ub, int32_t first_row)
{
    struct gr_cached_plan *c;
    int64_t start = gr_now_ns();
    int rc = gr_ubatch_prepare(s, s->now, ub, first_row, &c);
    start = gr_timing_add(&s->timing, GR_SPAN_BUSY, start);
    if (!rc && s->flow)
        rc = s->flow->in(s, &c->plan, s->flow->user);
    if (s->rank_model->tp_group)
        rc = agree(s, rc);
    gr_timing_add(&s->timing, GR_SPAN_WAIT, start);
    return rc || s->now->status ? rc : run_plan(s, ub, c, first_row);
}

int gr_batch_run(struct gr_session *s, struct gr_pending_batch *pending, int32_t n_ub)
{
    int32_t row = 0;
    int rc = 0;
    s->now = pending;
    s->observers.progress.done = 0;
    for (pending->n_begun = 0; pending->n_begun < n_ub && !rc && !pending->status;
         pending->n_begun++) {
        const struct gr_ubatch *ub = &s->ub[pending->n_begun];
        gr_session_report_progress(s, 0);
        rc = run_ubatch(s, ub, row);
        row += gr_vectors_rows(s, ub);
        s->observers.progress.done += (uint64_t)ub->n_tok;
    }
    int synced = s->flow ? 0 : gr_session_sync(s);
    rc = rc ? rc : synced;
    if (!rc && !pending->status)
        gr_session_report_progress(s, 0);
    return rc;
}
