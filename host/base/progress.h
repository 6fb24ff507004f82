/* Progress of a long call: the callback, and the numbers of the current pass. */
#ifndef GR_BASE_PROGRESS_H
#define GR_BASE_PROGRESS_H

#include "base/checked.h"
#include "gpurun.h"
#include "gr/status.h"

struct gr_progress {
    gr_progress_fn *fn; /* NULL: none */
    void *user;
    uint64_t done, total; /* total 0: no pass in progress */
};

/* Calls the callback; GR_E_CANCELLED when it returns false. */
static inline int gr_progress_report(const struct gr_progress *p)
{
    bool on = !p->fn || !p->total || p->fn(p->done, p->total, p->user);
    return on ? 0 : gr_fail(GR_E_CANCELLED, "cancelled");
}

/* Begins a pass of `total` units; a pass of 0 is not reported. */
static inline int gr_progress_begin(struct gr_progress *p, uint64_t total)
{
    p->done = 0, p->total = total;
    return gr_progress_report(p);
}

static inline int gr_progress_add(struct gr_progress *p, uint64_t n)
{
    p->done += GR_MIN(n, p->total - p->done);
    return gr_progress_report(p);
}

/* Ends the pass, reporting any remainder as done. */
static inline int gr_progress_end(struct gr_progress *p)
{
    int rc = p->done < p->total ? gr_progress_add(p, p->total) : 0;
    p->total = p->done = 0;
    return rc;
}

#endif
