/* Strengths of adapters that change while a session is open. */
#include <math.h>
#include <string.h>

#include "engine/open.h"
#include "engine/plans.h"
#include "engine/session.h"
#include "gr/status.h"

/* Adapters with a strength other than 0, a bit each. */
static uint32_t used(const float scale[GR_MAX_ADAPTER])
{
    uint32_t bits = 0;
    for (int32_t i = 0; i < GR_MAX_ADAPTER; i++)
        bits |= (uint32_t)(scale[i] != 0) << i;
    return bits;
}

/* Reserves memory for steps of all these adapters at once, and so for those of some of them. */
static int reserve_all(struct gr_session *s, uint32_t bits)
{
    float *scale = s->params.adapter_scale, now[GR_MAX_ADAPTER];
    if (s->results.n_pending)
        return gr_fail(GR_E_INVALID,
                       "%d batches are pending: end them before adapters are used for the first "
                       "time",
                       s->results.n_pending);
    memcpy(now, scale, sizeof now);
    for (int32_t i = 0; i < GR_MAX_ADAPTER; i++)
        scale[i] = !(bits >> i & 1) ? 0 : now[i] != 0 ? now[i] : 1;
    int rc = gr_plan_reserve(s);
    memcpy(scale, now, sizeof now);
    return rc;
}

int gr_session_set_adapters(struct gr_session *s, const float scale[GR_MAX_ADAPTER])
{
    float new[GR_MAX_ADAPTER], old[GR_MAX_ADAPTER];
    memcpy(new, scale, sizeof new);
    memcpy(old, s->params.adapter_scale, sizeof old);
    gr_session_fill_adapters(s->model, new);
    for (int32_t i = 0; i < GR_MAX_ADAPTER; i++) {
        if (!isfinite(new[i]))
            return gr_fail(GR_E_INVALID, "adapter %d: a finite strength expected", i);
    }
    if (memcmp(new, old, sizeof new) == 0)
        return 0;
    if (s->running)
        return gr_fail(GR_E_INVALID, "a tap may not change the adapters of its batch");
    if (s->ranks || s->flow)
        return gr_fail(GR_E_UNSUPPORTED,
                       "the strengths of adapters cannot be changed with several ranks");
    memcpy(s->params.adapter_scale, new, sizeof new);
    s->adapters_reserved |= used(old);
    uint32_t all = s->adapters_reserved | used(new);
    int rc = all == s->adapters_reserved ? 0 : reserve_all(s, all);
    if (rc)
        memcpy(s->params.adapter_scale, old, sizeof old);
    else
        s->adapters_reserved = all;
    return rc;
}
