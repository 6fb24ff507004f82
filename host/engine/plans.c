/* The plans of a session: built for a shape when it first comes up, kept while they are in use, and
 * run. */
#include <string.h>

#include "base/alloc.h"
#include "engine/session.h"
#include "gr/status.h"

static void drop_plan(struct gr_session *s, struct gr_cached_plan *c)
{
    if (!c->exec)
        return;
    s->backend->api->segment_free(s->backend, &c->exec);
    gr_plan_fini(&c->plan);
    *c = (struct gr_cached_plan){0};
}

void gr_plan_drop_all(struct gr_session *s)
{
    for (int i = 0; i < GR_N_PLAN; i++)
        drop_plan(s, &s->plan[i]);
}

/* All plans share one arena. It grows when a plan needs more; the others must be placed anew then.
 */
static int grow_arena(struct gr_session *s, size_t bytes)
{
    if (bytes <= s->arena_bytes)
        return 0;
    gr_plan_drop_all(s);
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

/* So do they share the step block, here and on the device. */
static int grow_step(struct gr_session *s, size_t bytes)
{
    if (bytes <= s->step_bytes)
        return 0;
    gr_plan_drop_all(s);
    if (s->step)
        s->backend->api->free(s->backend, s->step);
    gr_free(s->staging);
    bytes += bytes / 4; /* lists grow with the sequences */
    s->step_bytes = 0;
    s->step = s->env.step = s->backend->api->alloc(s->backend, bytes);
    s->staging = gr_calloc(bytes, 1);
    if (!s->step || !s->staging)
        return gr_fail(GR_E_NOMEM_HOST,
                       "not enough memory for a step: %.2f MiB needed; a smaller -ub takes less",
                       (double)bytes / 1048576);
    s->step_bytes = bytes;
    return 0;
}

static int build(struct gr_session *s, enum gr_plan_kind kind, const struct gr_step_shape *shape,
                 struct gr_plan *plan)
{
    switch (kind) {
    case GR_PLAN_SHIFT:
        return gr_graph_build_shift(plan, &s->env, shape);
    case GR_PLAN_COPY:
    case GR_PLAN_COPY_SWA:
        return gr_graph_build_copy(plan, &s->env, shape, kind == GR_PLAN_COPY_SWA);
    default:
        return gr_graph_build(plan, &s->env, shape);
    }
}

static int make_plan(struct gr_session *s, struct gr_cached_plan *c, enum gr_plan_kind kind,
                     const struct gr_step_shape *shape)
{
    struct gr_plan plan;
    int rc = grow_step(s, (size_t)gr_step_layout(shape).bytes);
    if (!rc)
        rc = build(s, kind, shape, &plan);
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
    c->plan = plan, c->kind = kind;
    return 0;
}

int gr_plan_for(struct gr_session *s, enum gr_plan_kind kind, const struct gr_step_shape *shape,
                struct gr_cached_plan **out)
{
    struct gr_cached_plan *oldest = &s->plan[0];
    for (int i = 0; i < GR_N_PLAN; i++) {
        struct gr_cached_plan *c = &s->plan[i];
        if (c->exec && c->kind == kind && memcmp(&c->plan.shape, shape, sizeof *shape) == 0) {
            c->used = ++s->n_use;
            return *out = c, 0;
        }
        if (c->used < oldest->used)
            oldest = c;
    }
    drop_plan(s, oldest);
    int rc = make_plan(s, oldest, kind, shape);
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

int gr_plan_run(struct gr_session *s, struct gr_cached_plan *c)
{
    const struct gr_backend_api *api = s->backend->api;
    int rc = api->upload(s->backend, s->step, s->staging, (size_t)c->plan.layout.bytes);
    return rc ? rc : api->segment_run(s->backend, c->exec, s->tap_fn ? on_tap : NULL, s);
}
