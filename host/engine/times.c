#include "engine/times.h"

#include "base/clock.h"

#define N_SPAN 4096 /* the newest spans are kept */

void gr_timing_init(struct gr_timing *t)
{
    t->span = gr_calloc(N_SPAN, sizeof *t->span);
}

void gr_timing_fini(struct gr_timing *t)
{
    gr_free(t->span);
    *t = (struct gr_timing){0};
}

int64_t gr_timing_add(struct gr_timing *t, enum gr_span what, int64_t start_ns)
{
    int64_t now = gr_now_ns();
    t->ns[what] += now - start_ns;
    if (t->span)
        t->span[t->n_span++ % N_SPAN] = (struct gr_timing_span){t->n_ubatch, what, start_ns, now};
    t->n_ubatch += what == GR_SPAN_TRANSFER;
    return now;
}

int gr_timing_list(struct gr_timing *t, struct gr_vec *out)
{
    uint64_t lo = t->n_span > N_SPAN ? t->n_span - N_SPAN : 0;
    int rc = 0;
    for (uint64_t i = lo; i < t->n_span && !rc; i++)
        rc = gr_vec_append(out, &t->span[i % N_SPAN], 1, sizeof *t->span);
    t->n_span = 0;
    return rc;
}
