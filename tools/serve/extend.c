/* Self-Extend (Jin et al. 2024) of a request, as gr_self_extend does it for sequence 0: once the
 * positions of a window are there, n neighbours become one, and what is behind moves down to them.
 */
#include "gpurun.h"
#include "scheduler_impl.h"

int gr_scheduler_can_extend(const struct gr_scheduler *s, const struct gr_text *t)
{
    struct gr_self_extend se = {.n = t->request.extend_n, .w = t->request.extend_w};
    int32_t n_past = 0; /* nothing to merge: the check alone */
    return se.n > 1 ? gr_self_extend(s->p.session, &se, &n_past) : 0;
}

/* Merges the window that begins at t->merged, in the words of Self-Extend's authors: positions from
 * there on are raised by ib * bd, so that dividing them by n puts the window behind those before
 * it; then the later ones move down to it. */
static int merge(struct gr_session *session, struct gr_text *t)
{
    int64_t n = t->request.extend_n, w = t->request.extend_w, i = t->merged;
    int64_t ib = n * i / w, bd = w / n * (n - 1), dd = w / n - ib * bd - w;
    int64_t lo = i + ib * bd, hi = lo + w, end = t->n_past + ib * bd;
    if (end > INT32_MAX)
        return GR_E_INVALID;
    int rc = gr_kv_seq_add(session, t->seq, (int32_t)i, t->n_past, (int32_t)(ib * bd));
    if (!rc)
        rc = gr_kv_seq_div(session, t->seq, (int32_t)lo, (int32_t)hi, (int32_t)n);
    if (!rc)
        rc = gr_kv_seq_add(session, t->seq, (int32_t)hi, (int32_t)end, (int32_t)dd);
    t->n_past -= (int32_t)bd;
    t->merged += (int32_t)(w / n);
    return rc;
}

int gr_scheduler_extend(struct gr_scheduler *s, struct gr_text *t, int32_t *most)
{
    int64_t n = t->request.extend_n, w = t->request.extend_w;
    int rc = 0;
    while (n > 1 && !rc && t->n_past >= t->merged + w)
        rc = merge(s->p.session, t);
    if (n > 1 && *most > t->merged + w - t->n_past)
        *most = (int32_t)(t->merged + w - t->n_past);
    return rc;
}
