/* Texts that are longer than the context. Self-Extend (Jin et al. 2024) of a request, as
 * gr_self_extend does it for sequence 0: once the positions of a window are there, n neighbours
 * become one, and what is behind moves down to them. Context shift: older tokens go. */
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

void gr_scheduler_shift(struct gr_scheduler *s, struct gr_text *t)
{
    int32_t done = s->prefixes.seq[t->seq].n, lo = t->request.shift.keep;
    int32_t n = t->request.shift.discard;
    const char *why;
    if (!t->request.shift.on || t->ended || done < s->p.n_ctx)
        return;
    lo = lo < s->p.n_ctx - 4 ? lo : s->p.n_ctx - 4;
    n = n > 0 ? n : (done - lo) / 2;
    n = n < done - lo - 1 ? n : done - lo - 1;
    if (lo < 0 || n < 1 || gr_prefixes_cut(&s->prefixes, t->seq, lo, lo + n, &why)) {
        gr_text_end(t, GR_FINISH_LENGTH, 0, NULL);
        return;
    }
    gr_text_cut(t, lo, n);
    t->n_past -= n;
}
