/* Progress reports of a batch. */
#include "engine/session.h"

void gr_session_tell(struct gr_session *s, uint64_t part)
{
    const struct gr_progress *p = &s->progress;
    if (p->fn && !p->fn(1000 * p->done + part, 1000 * (uint64_t)s->batch.n_tok, p->user))
        atomic_store(&s->cancel, 1);
}

/* Reports the finished share of a plan's nodes, all of equal weight; nothing for plans of shifts
 * and copies. */
static void on_node(int32_t n_node, void *user)
{
    struct gr_session *s = user;
    uint64_t part = 1000 * (uint64_t)s->part_tok, n = (uint64_t)s->segment_node + (uint64_t)n_node;
    if (part)
        gr_session_tell(s, part * n / (uint64_t)s->all_node);
}

void gr_session_progress(struct gr_session *s, gr_progress_fn *fn, void *user)
{
    struct gr_backend *cpu = s->device[0].backend;
    s->progress.fn = fn, s->progress.user = user;
    cpu->api->set_watch(cpu, fn ? on_node : NULL, s);
}
