#include "link/link.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "gpurun.h"
#include "link/link_impl.h"

/* Guards the text of a loss, which the first thread that notices one writes. */
static pthread_mutex_t loss = PTHREAD_MUTEX_INITIALIZER;

const char *gr_world_name(const struct gr_world *w, int32_t rank, char *buf, size_t n)
{
    if (rank < 0 || rank >= w->n_rank)
        snprintf(buf, n, "rank %d of %d", rank, w->n_rank);
    else
        snprintf(buf, n, "rank %d (%s, pid %d)", rank, w->ranks[rank].host, w->ranks[rank].pid);
    return buf;
}

void gr_world_lose(struct gr_world *w, int32_t rank, const char *reason)
{
    char name[128];
    gr_world_name(w, rank, name, sizeof name);
    pthread_mutex_lock(&loss);
    if (!atomic_load(&w->lost)) {
        snprintf(w->lost_text, sizeof w->lost_text, "%s: %s", name, reason);
        atomic_store(&w->lost, rank + 1);
    }
    pthread_mutex_unlock(&loss);
    w->api->wake(w);
}

void gr_world_copy_loss(struct gr_world *to, const struct gr_world *from)
{
    pthread_mutex_lock(&loss);
    if (!atomic_load(&to->lost)) {
        memcpy(to->lost_text, from->lost_text, sizeof to->lost_text);
        atomic_store(&to->lost, atomic_load(&from->lost));
    }
    pthread_mutex_unlock(&loss);
}

int gr_world_check(const struct gr_world *w)
{
    return atomic_load(&w->lost) ? gr_fail(GR_E_PEER_LOST, "%s", w->lost_text) : 0;
}

int32_t gr_world_rank(const struct gr_world *w)
{
    return w->rank;
}

int32_t gr_world_size(const struct gr_world *w)
{
    return w->n_rank;
}

int gr_world_link(struct gr_world *w, enum gr_lane lane, int32_t from, int32_t to,
                  struct gr_link **out)
{
    *out = NULL;
    int32_t other = from == w->rank ? to : from;
    if ((from != w->rank && to != w->rank) || from == to || other < 0 || other >= w->n_rank)
        return gr_fail(GR_E_INTERNAL, "link %d -> %d: asked for by rank %d of %d", from, to,
                       w->rank, w->n_rank);
    int rc = gr_world_check(w);
    if (!rc)
        rc = w->api->link(w, lane, from, to, out);
    if (!rc && lane == GR_LANE_DATA && w->wrap)
        rc = gr_link_wrap(out, w->wrap);
    if (rc)
        gr_link_close(out);
    return rc;
}

void gr_link_close(struct gr_link **l)
{
    if (*l)
        (*l)->api->close(l);
}

const char *gr_link_name(const struct gr_link *l, char *buf, size_t n)
{
    static const char *const lane[GR_N_LANE] = {"command", "result", "data", "tensor"};
    snprintf(buf, n, "%s%s link %d -> %d", lane[l->lane % GR_N_LANE],
             l->lane < GR_N_LANE ? "" : " acknowledgement", l->from, l->to);
    return buf;
}

int gr_link_late(const struct gr_link *l, int64_t since_ns)
{
    char name[128], link[64];
    return gr_fail(GR_E_PEER_LOST, "%s: no answer on the %s for %.2f s",
                   gr_world_name(l->world, gr_link_other(l), name, sizeof name),
                   gr_link_name(l, link, sizeof link), gr_seconds_since(since_ns));
}

int gr_link_too_long(const struct gr_link *l, size_t n, size_t cap)
{
    char link[64];
    return gr_fail(GR_E_INTERNAL, "%s: a message of %zu bytes came, at most %zu were expected",
                   gr_link_name(l, link, sizeof link), n, cap);
}
