/* Changes the number of cells of a session: a new session gets the contents of the old one and then
 * replaces it, so a failure on the way changes nothing. */
#include <string.h>

#include "base/alloc.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "ranks/team.h"

static int carry_over(struct gr_session *from, struct gr_session *to)
{
    void *data;
    size_t n;
    if (!gr_kv_used(from))
        return 0;
    int rc = gr_state_save(from, -1, NULL, 0, &data, &n);
    if (!rc)
        rc = gr_state_load(to, -1, data, n, NULL, NULL);
    gr_state_free(data);
    return rc;
}

/* Updates pointers to the session and into it. */
static void rewire(struct gr_session *s)
{
    for (int32_t d = 0; d < s->n_device; d++)
        s->device[d].session = s;
    s->env.cache_device = s->cache_device;
    if (s->team)
        gr_team_adopt(s, s->team, s->id);
    gr_session_cancellable(s, true);
}

/* Exchanges two sessions, except the tap, the timer and the samplers of device-side sampling, which
 * belong to the handle. */
static int exchange(struct gr_session *a, struct gr_session *b)
{
    struct gr_session *t = gr_calloc(1, sizeof *t);
    if (!t)
        return GR_E_NOMEM_HOST;
    memcpy(t, a, sizeof *t), memcpy(a, b, sizeof *t), memcpy(b, t, sizeof *t);
    a->tap_name = t->tap_name, a->tap_fn = t->tap_fn, a->tap_user = t->tap_user;
    a->watch = t->watch, b->watch = (struct gr_watch){0};
    b->tap_name = NULL, b->tap_fn = NULL, b->time_fn = NULL;
    memcpy(a->sampler, t->sampler, sizeof a->sampler);
    rewire(a), rewire(b);
    int rc = t->time_fn ? gr_session_time(a, t->time_fn, t->time_user) : 0;
    a->time_start = t->time_start;
    gr_free(t);
    return rc;
}

int gr_session_resize(struct gr_session *s, uint32_t n_ctx)
{
    struct gr_session *other;
    struct gr_session_params p = s->params;
    if (s->running)
        return gr_fail(GR_E_INVALID, "a tap may not resize the session under its batch");
    if (s->n_flight)
        return gr_fail(GR_E_INVALID,
                       "%d batches are in flight: end them before the session is "
                       "resized",
                       s->n_flight);
    p.n_ctx = n_ctx;
    p.type_k = gr_dtype_name(s->memory.type_k), p.type_v = gr_dtype_name(s->memory.type_v);
    int rc =
        s->team ? gr_team_open(&other, s->team, &p) : gr_session_open_slice(&other, s->slice, &p);
    if (rc)
        return rc;
    rc = carry_over(s, other);
    if (!rc)
        rc = exchange(s, other);
    gr_session_close(&other);
    return rc;
}
