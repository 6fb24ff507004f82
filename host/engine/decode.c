/* The step loop: check, split, reserve, shift, run each micro-batch, commit. */
#include <string.h>

#include "base/checked.h"
#include "cpu/cpu.h"
#include "engine/session.h"
#include "gr/status.h"

/* --- plans --- */

static void drop_plan(struct gr_session *s, struct gr_cached_plan *c)
{
    if (!c->exec)
        return;
    s->backend->api->segment_free(s->backend, &c->exec);
    gr_plan_fini(&c->plan);
    *c = (struct gr_cached_plan){0};
}

/* All plans share one arena. It grows when a plan needs more; the others must be placed anew then.
 */
static int grow_arena(struct gr_session *s, size_t bytes)
{
    if (bytes <= s->arena_bytes)
        return 0;
    for (int i = 0; i < GR_N_PLAN; i++)
        drop_plan(s, &s->plan[i]);
    if (s->arena)
        s->backend->api->free(s->backend, s->arena);
    s->arena_bytes = 0;
    s->arena = s->backend->api->alloc(s->backend, bytes);
    if (!s->arena)
        return gr_fail(GR_E_NOMEM_HOST,
                       "not enough memory for intermediate results: %.2f MiB needed; a smaller -ub "
                       "takes less",
                       (double)bytes / 1048576);
    s->arena_bytes = bytes;
    return 0;
}

/* So do they share the step block. */
static int grow_step(struct gr_session *s, const struct gr_step_shape *shape)
{
    size_t bytes = (size_t)gr_step_layout(shape).bytes;
    if (bytes <= s->step_bytes)
        return 0;
    for (int i = 0; i < GR_N_PLAN; i++)
        drop_plan(s, &s->plan[i]);
    if (s->step)
        s->backend->api->free(s->backend, s->step);
    gr_free(s->staging);
    s->step_bytes = 0;
    s->step = s->env.step = s->backend->api->alloc(s->backend, bytes);
    s->staging = s->step ? gr_calloc(bytes, 1) : NULL;
    if (!s->staging)
        return gr_fail(GR_E_NOMEM_HOST,
                       "not enough memory for a step: %.2f MiB needed; a smaller -ub takes less",
                       (double)bytes / 1048576);
    s->step_bytes = bytes;
    return 0;
}

static int make_plan(struct gr_session *s, struct gr_cached_plan *c,
                     const struct gr_step_shape *shape, bool shift)
{
    struct gr_plan plan;
    int rc =
        shift ? gr_graph_build_shift(&plan, &s->env, shape) : gr_graph_build(&plan, &s->env, shape);
    if (rc)
        return rc;
    rc = grow_arena(s, (size_t)plan.arena_bytes);
    if (!rc) {
        gr_plan_bind(&plan, s->arena);
        struct gr_segment seg = {plan.node.data, (int32_t)plan.node.n, plan.tap.data,
                                 (int32_t)plan.tap.n};
        rc = s->backend->api->segment_new(s->backend, &seg, &c->exec);
    }
    if (rc) {
        gr_plan_fini(&plan);
        c->exec = NULL;
        return rc;
    }
    c->plan = plan, c->shift = shift;
    return 0;
}

/* The plan for a shape: from the cache, or made in the place of the one not used for longest. */
static int plan_for(struct gr_session *s, const struct gr_step_shape *shape, bool shift,
                    struct gr_cached_plan **out)
{
    struct gr_cached_plan *oldest = &s->plan[0];
    for (int i = 0; i < GR_N_PLAN; i++) {
        struct gr_cached_plan *c = &s->plan[i];
        if (c->exec && c->shift == shift && memcmp(&c->plan.shape, shape, sizeof *shape) == 0) {
            c->used = ++s->n_use;
            return *out = c, 0;
        }
        if (c->used < oldest->used)
            oldest = c;
    }
    drop_plan(s, oldest);
    int rc = grow_step(s, shape);
    if (!rc)
        rc = make_plan(s, oldest, shape, shift);
    oldest->used = rc ? 0 : ++s->n_use;
    *out = oldest;
    return rc;
}

static void on_tap(const char *name, int layer, const struct gr_ten *t, void *user)
{
    struct gr_session *s = user;
    if (!s->tap_fn || (s->tap_name[0] && strcmp(s->tap_name, name) != 0))
        return; /* or switched off by the tap before */
    float *rows = gr_calloc((size_t)(t->rows * t->cols), sizeof *rows);
    for (int64_t r = 0; rows && r < t->rows; r++)
        memcpy(rows + r * t->cols, gr_ten_row(t, 0, r), (size_t)t->cols * 4);
    if (rows)
        s->tap_fn(name, layer, rows, t->rows, t->cols, s->tap_user);
    gr_free(rows);
}

/* Uploads the staged step block and runs. */
static int run_plan(struct gr_session *s, struct gr_cached_plan *c)
{
    const struct gr_backend_api *api = s->backend->api;
    int rc = api->upload(s->backend, s->step, s->staging, (size_t)c->plan.layout.bytes);
    return rc ? rc : api->segment_run(s->backend, c->exec, s->tap_fn ? on_tap : NULL, s);
}

static void *staged(struct gr_session *s, const struct gr_cached_plan *c, enum gr_step_array a)
{
    return s->staging + c->plan.layout.offset[a];
}

/* --- K-shift --- */

/* Rotates the K of every cell that was moved, before anything reads it. Not to be cancelled half
 * way: the layers done would be rotated again by the next one. */
static int apply_shift(struct gr_session *s)
{
    if (!gr_kv_has_shift(s->kv))
        return 0;
    if (s->model->hp.rope != GR_ROPE_NONE) {
        int32_t n_kv = gr_kv_n_kv(s->kv);
        struct gr_step_shape shape = {
            .n_pos = 1, .n_delta = n_kv, .n_delta_swa = s->model->hp.n_swa ? n_kv : 0};
        struct gr_cached_plan *c;
        int rc = plan_for(s, &shape, true, &c);
        if (!rc) {
            gr_kv_deltas(s->kv, shape.n_delta, staged(s, c, GR_STEP_DELTA));
            gr_kv_deltas(s->kv, shape.n_delta_swa, staged(s, c, GR_STEP_DELTA_SWA));
            gr_cpu_set_cancel(s->backend, NULL);
            rc = run_plan(s, c);
            gr_cpu_set_cancel(s->backend, &s->cancel);
        }
        if (rc)
            return rc;
    }
    gr_kv_shifted(s->kv);
    return 0;
}

/* --- a micro-batch --- */

static void fill_step(struct gr_session *s, const struct gr_cached_plan *c,
                      const struct gr_ubatch *ub)
{
    const struct gr_full_batch *b = ub->batch;
    size_t n = (size_t)ub->n_tok * 4;
    int32_t *rows = staged(s, c, GR_STEP_OUT_ROWS);
    memcpy(staged(s, c, GR_STEP_TOKENS), b->token + ub->first, n);
    memcpy(staged(s, c, GR_STEP_POS), b->pos + ub->first, n);
    memcpy(staged(s, c, GR_STEP_CELLS), s->cells + ub->first, n);
    for (int32_t i = 0; i < ub->n_tok; i++)
        if (b->logits[ub->first + i])
            *rows++ = i;
    gr_kv_fill(s->kv, ub, true, 0, staged(s, c, GR_STEP_LIST), staged(s, c, GR_STEP_SPAN),
               c->plan.shape.n_alibi ? staged(s, c, GR_STEP_KEY_POS) : NULL);
    if (c->plan.shape.n_swa) {
        memcpy(staged(s, c, GR_STEP_CELLS_SWA), s->cells + ub->first, n);
        gr_kv_fill(s->kv, ub, true, s->model->hp.n_swa, staged(s, c, GR_STEP_LIST_SWA),
                   staged(s, c, GR_STEP_SPAN_SWA), NULL);
    }
}

/* Runs one micro-batch; its logits go to rows [first_row, first_row + n_out). */
static int run_ubatch(struct gr_session *s, const struct gr_ubatch *ub, int32_t first_row)
{
    const struct gr_hparams *hp = &s->model->hp;
    int64_t n_list;
    int rc = gr_kv_list(s->kv, ub, &n_list);
    if (rc)
        return rc;
    n_list = gr_kv_list_round(n_list);
    if (n_list > INT32_MAX)
        return gr_fail(GR_E_TOO_LARGE, "a micro-batch whose sequences have %lld cells is too large",
                       (long long)n_list);
    struct gr_step_shape shape = {.n_tok = ub->n_tok,
                                  .n_out = ub->n_out,
                                  .n_pos = 1,
                                  .n_full = ub->n_tok,
                                  .n_swa = hp->n_swa ? ub->n_tok : 0,
                                  .n_list = (int32_t)n_list,
                                  .n_list_swa = hp->n_swa ? (int32_t)n_list : 0,
                                  .n_alibi = hp->max_alibi > 0 ? (int32_t)n_list : 0};
    struct gr_cached_plan *c;
    rc = plan_for(s, &shape, false, &c);
    if (rc)
        return rc;
    fill_step(s, c, ub);
    rc = run_plan(s, c);
    if (rc || !ub->n_out)
        return rc;
    const struct gr_ten *r = &c->plan.result;
    return s->backend->api->download(s->backend, s->logits + (size_t)first_row * (size_t)r->cols,
                                     r->data, (size_t)(r->rows * r->row_bytes));
}

/* Room for the logits of the batch, and where each token's are. */
static int prepare_output(struct gr_session *s)
{
    size_t need = (size_t)s->batch.n_out * (size_t)s->model->hp.n_vocab;
    if (need > s->logits_cap) {
        gr_free(s->logits);
        s->logits_cap = 0;
        s->logits = gr_realloc(NULL, need, sizeof(float));
        if (!s->logits)
            return GR_E_NOMEM_HOST;
        s->logits_cap = need;
    }
    for (int32_t i = 0, row = 0; i < s->batch.n_tok; i++)
        s->out_row[i] = s->batch.logits[i] ? row++ : -1;
    return 0;
}

static int run_batch(struct gr_session *s, int32_t n_ub)
{
    int rc = apply_shift(s);
    for (int32_t i = 0, row = 0; i < n_ub && !rc; i++) {
        rc = run_ubatch(s, &s->ub[i], row);
        row += s->ub[i].n_out;
    }
    return rc;
}

int gr_decode(struct gr_session *s, const struct gr_batch *batch)
{
    struct gr_batch_limits limits = {.n_vocab = s->model->hp.n_vocab,
                                     .n_batch = (int32_t)s->params.n_batch};
    if (s->running)
        return gr_fail(GR_E_INVALID, "gr_decode was called inside another one, by a tap");
    gr_kv_limits(s->kv, &limits);
    int rc = gr_batch_check(&s->batch, batch, &limits);
    if (rc)
        return rc;
    s->n_tok = 0;
    atomic_store(&s->cancel, 0);
    rc = prepare_output(s);
    if (rc)
        return rc;
    int32_t n_ub = gr_batch_split(&s->batch, (int32_t)s->params.n_ubatch, s->ub);
    rc = gr_kv_reserve(s->kv, s->ub, n_ub, s->cells);
    if (rc)
        return rc;
    s->running = true;
    rc = run_batch(s, n_ub);
    s->running = false;
    if (rc) {
        gr_kv_abort(s->kv);
        return rc;
    }
    gr_kv_commit(s->kv);
    s->n_tok = s->batch.n_tok;
    return 0;
}

const float *gr_logits(const struct gr_session *s, int32_t i)
{
    i = i < 0 ? s->n_tok + i : i;
    if (i < 0 || i >= s->n_tok || s->out_row[i] < 0)
        return NULL;
    return s->logits + (size_t)s->out_row[i] * (size_t)s->model->hp.n_vocab;
}

void gr_session_cancel(struct gr_session *s)
{
    atomic_store(&s->cancel, 1);
}

int gr_session_tap(struct gr_session *s, const char *name, gr_tensor_fn *fn, void *user)
{
    char *copy = gr_strndup(name ? name : "", name ? strlen(name) : 0);
    if (!copy)
        return GR_E_NOMEM_HOST;
    gr_free(s->tap_name);
    s->tap_name = copy, s->tap_fn = fn, s->tap_user = user;
    return 0;
}
