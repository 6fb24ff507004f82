/* Changes the number of cells of a session: a new session gets the contents of the old one and then
 * replaces it, so a failure on the way changes nothing. */
#include "engine/open.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "placement/fit.h"
#include "ranks/member.h"
#include "ranks/open.h"

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

int gr_session_resize(struct gr_session *s, uint32_t n_ctx)
{
    struct gr_session *other;
    struct gr_session_params p = s->params;
    if (s->running)
        return gr_fail(GR_E_INVALID, "a tap may not resize the session under its batch");
    if (s->results.n_pending)
        return gr_fail(GR_E_INVALID,
                       "%d batches are pending: end them before the session is resized",
                       s->results.n_pending);
    p.n_ctx = n_ctx;
    p.type_k = gr_dtype_name(s->memory.type_k), p.type_v = gr_dtype_name(s->memory.type_v);
    int rc = s->ranks ? gr_team_open_session(&other, s->rank->team, &p)
                      : gr_session_open_rank(&other, s->rank_model, &p);
    if (rc)
        return rc;
    rc = carry_over(s, other);
    if (!rc)
        rc = gr_session_exchange(s, other);
    if (!rc && s->ranks)
        gr_team_moved(s), gr_team_moved(other);
    gr_session_close(&other);
    return rc;
}
