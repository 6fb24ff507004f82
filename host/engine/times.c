#include "engine/times.h"

#include "base/clock.h"

#define N_SPAN 4096 /* the newest spans are kept */

void gr_timing_init(struct gr_timing *p)
{
    p->span = gr_calloc(N_SPAN, sizeof *p->span);
}

void gr_timing_fini(struct gr_timing *p)
{
    gr_free(p->span);
    *p = (struct gr_timing){0};
}

int64_t gr_timing_add(struct gr_timing *p, enum gr_span what, int64_t start_ns)
{
    int64_t now = gr_now_ns();
    p->ns[what] += now - start_ns;
    if (p->span)
        p->span[p->n_span++ % N_SPAN] = (struct gr_timing_span){p->n_ubatch, what, start_ns, now};
    p->n_ubatch += what == GR_SPAN_TRANSFER;
    return now;
}

int gr_timing_list(struct gr_timing *p, struct gr_vec *out)
{
    uint64_t lo = p->n_span > N_SPAN ? p->n_span - N_SPAN : 0;
    int rc = 0;
    for (uint64_t i = lo; i < p->n_span && !rc; i++)
        rc = gr_vec_append(out, &p->span[i % N_SPAN], 1, sizeof *p->span);
    p->n_span = 0;
    return rc;
}
