/* A link around another one, for tests: slower, without buffers, or with a fault in one message.
 * With a delay or a bandwidth, every message follows a time stamp of its send (both sides are on
 * one machine). Without buffers, the receiver acknowledges each message on a lane of its own. */
#include <sched.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "gr/status.h"
#include "link/link.h"
#include "link/link_impl.h"

/* A pending message, on either side. Its parts are waited for in the order stamp, body, ack;
 * messages in the order in which they were begun. */
struct passage {
    struct passage *next;
    struct gr_request stamp, body, ack;
    int64_t sent_ns; /* the stamp */
    char ack_byte;
    char *buf; /* of a receive */
    size_t n, cap;
    int64_t arrives_ns;                    /* simulated arrival of a received body */
    bool stamped, flip, came, acked, done; /* stamped: the receive of the stamp has begun */
};

struct wrapper {
    struct gr_link base;
    struct gr_link *inner, *back; /* back: acknowledgements, or NULL */
    struct gr_link_opt opt;
    bool timed, sends;
    int64_t count;                 /* messages begun */
    struct passage *first, **last; /* begun and not yet waited for */
    int64_t free_ns;               /* when the simulated wire is free again */
    struct passage *ahead;         /* the next receive, whose stamp a probe has requested */
};

#define POLL INT64_MIN /* a deadline: do not wait at all */
#define NOT_YET (-1)

static int await(struct gr_link *l, struct gr_request *r, int64_t deadline_ns)
{
    if (deadline_ns == POLL && !l->api->done(l, r))
        return NOT_YET;
    return gr_link_wait(l, r, deadline_ns);
}

/* Time at which the simulated wire has carried a message of n bytes. */
static int64_t leaves_wire(const struct wrapper *w, int64_t sent_ns, size_t n)
{
    int64_t start = GR_MAX(sent_ns, w->free_ns);
    return w->opt.bytes_per_s ? start + (int64_t)((double)n * 1e9 / (double)w->opt.bytes_per_s)
                              : start;
}

static int sleep_until(struct wrapper *w, int64_t t, int64_t deadline_ns)
{
    int64_t start = gr_now_ns();
    for (int64_t now = start; now < t; now = gr_now_ns()) {
        int rc = gr_world_check(w->base.world);
        if (rc || deadline_ns == POLL)
            return rc ? rc : NOT_YET;
        if (now >= deadline_ns)
            return gr_link_late(&w->base, start);
        int64_t left = GR_MIN(t, deadline_ns) - now;
        if (left > 200000) /* sleeps take some 60 us too long */
            nanosleep(&(struct timespec){0, GR_MIN(left - 100000, 1000000)}, NULL);
        else
            sched_yield();
    }
    return 0;
}

/* ---- passages ---- */

static int finish_send(struct wrapper *w, struct passage *p, int64_t deadline_ns)
{
    int rc = await(w->inner, &p->stamp, deadline_ns);
    if (!rc)
        rc = await(w->inner, &p->body, deadline_ns);
    if (!rc && w->back)
        rc = await(w->back, &p->ack, deadline_ns);
    p->done = !rc;
    return rc;
}

static void body_came(struct wrapper *w, struct passage *p)
{
    p->came = true, p->n = p->body.n;
    if (p->flip && p->n && p->n <= p->cap)
        p->buf[p->n / 2] ^= 0x10;
    w->free_ns = leaves_wire(w, p->sent_ns, p->n);
    p->arrives_ns = w->free_ns + w->opt.delay_ns;
}

static int finish_recv(struct wrapper *w, struct passage *p, int64_t deadline_ns)
{
    int rc = 0;
    if (!p->came) {
        rc = await(w->inner, &p->stamp, deadline_ns);
        if (!rc)
            rc = await(w->inner, &p->body, deadline_ns);
        if (rc && rc != GR_E_INTERNAL) /* a message that is too long has arrived, too */
            return rc;
        body_came(w, p);
    }
    if (w->timed && (rc = sleep_until(w, p->arrives_ns, deadline_ns)) != 0)
        return rc;
    if (w->back && !p->acked) {
        if ((rc = gr_link_send(w->back, &p->ack_byte, 1, &p->ack)) != 0)
            return rc;
        p->acked = true;
    }
    if (w->back && (rc = await(w->back, &p->ack, deadline_ns)) != 0)
        return rc;
    p->done = true;
    return 0;
}

/* Finishes all messages begun up to p. */
static int finish(struct wrapper *w, const struct passage *p, int64_t deadline_ns)
{
    int rc = 0;
    for (struct passage *q = w->first; q && !rc; q = q == p ? NULL : q->next)
        if (!q->done)
            rc = w->sends ? finish_send(w, q, deadline_ns) : finish_recv(w, q, deadline_ns);
    return rc;
}

static struct passage *begin(struct wrapper *w, struct gr_request *r)
{
    struct passage *p = w->ahead ? w->ahead : gr_calloc(1, sizeof *p);
    *r = (struct gr_request){.impl = p};
    w->ahead = NULL;
    if (!p)
        return NULL;
    *w->last = p, w->last = &p->next;
    w->count++;
    return p;
}

static void end(struct wrapper *w, struct passage *p)
{
    struct passage **at = &w->first;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    if (!*at)
        w->last = at;
    gr_free(p);
}

/* ---- the link ---- */

static int wrap_send(struct gr_link *l, const void *buf, size_t n, struct gr_request *r)
{
    struct wrapper *w = (struct wrapper *)l;
    struct passage *p = begin(w, r);
    char name[64];
    if (!p)
        return GR_E_NOMEM_HOST;
    p->n = n;
    if (w->count == w->opt.fail_at)
        return gr_fail(GR_E_PEER_LOST, "%s: sending message %lld failed, as it was told to",
                       gr_link_name(l, name, sizeof name), (long long)w->count);
    p->done = w->count == w->opt.drop_at;
    if (p->done)
        return gr_world_check(l->world);
    p->sent_ns = gr_now_ns();
    int rc = 0;
    if (w->timed)
        rc = gr_link_send(w->inner, &p->sent_ns, sizeof p->sent_ns, &p->stamp);
    if (!rc)
        rc = gr_link_send(w->inner, buf, n, &p->body);
    if (!rc && w->back)
        rc = gr_link_recv(w->back, &p->ack_byte, 1, &p->ack);
    return rc;
}

static int ask_for_stamp(struct wrapper *w, struct passage *p)
{
    if (!w->timed || p->stamped)
        return 0;
    int rc = gr_link_recv(w->inner, &p->sent_ns, sizeof p->sent_ns, &p->stamp);
    p->stamped = !rc;
    return rc;
}

static int wrap_recv(struct gr_link *l, void *buf, size_t cap, struct gr_request *r)
{
    struct wrapper *w = (struct wrapper *)l;
    struct passage *p = begin(w, r);
    if (!p)
        return GR_E_NOMEM_HOST;
    p->buf = buf, p->cap = cap, p->flip = w->count == w->opt.flip_at;
    int rc = ask_for_stamp(w, p);
    return rc ? rc : gr_link_recv(w->inner, buf, cap, &p->body);
}

static int wrap_probe(struct gr_link *l, int64_t deadline_ns, size_t *n)
{
    struct wrapper *w = (struct wrapper *)l;
    if (!w->ahead && !(w->ahead = gr_calloc(1, sizeof *w->ahead)))
        return GR_E_NOMEM_HOST;
    struct passage *p = w->ahead;
    int rc = ask_for_stamp(w, p);
    if (!rc)
        rc = gr_link_wait(w->inner, &p->stamp, deadline_ns);
    if (!rc)
        rc = w->inner->api->probe(w->inner, deadline_ns, n);
    if (!rc && w->timed)
        rc = sleep_until(w, leaves_wire(w, p->sent_ns, *n) + w->opt.delay_ns, deadline_ns);
    return rc;
}

/* Waits for the parts of a message once more, without blocking: they belong to the inner links
 * until these waits have returned. */
static void abandon(struct wrapper *w, struct passage *p)
{
    (void)gr_link_wait(w->inner, &p->stamp, POLL);
    (void)gr_link_wait(w->inner, &p->body, POLL);
    if (w->back)
        (void)gr_link_wait(w->back, &p->ack, POLL);
}

static int wrap_wait(struct gr_link *l, struct gr_request *r, int64_t deadline_ns)
{
    struct wrapper *w = (struct wrapper *)l;
    struct passage *p = r->impl;
    int rc = p && !p->done ? finish(w, p, deadline_ns) : gr_world_check(l->world);
    if (!p || (rc && !atomic_load(&l->world->lost)))
        return rc;
    size_t n = p->n, cap = p->cap;
    if (rc)
        abandon(w, p);
    end(w, p);
    *r = (struct gr_request){.n = n};
    return !rc && !w->sends && n > cap ? gr_link_too_long(l, n, cap) : rc;
}

static bool wrap_done(struct gr_link *l, struct gr_request *r)
{
    struct wrapper *w = (struct wrapper *)l;
    struct passage *p = r->impl;
    return !p || p->done || finish(w, p, POLL) != NOT_YET;
}

static void wrap_close(struct gr_link **l)
{
    struct wrapper *w = (struct wrapper *)*l;
    gr_link_close(&w->inner);
    gr_link_close(&w->back);
    while (w->first)
        end(w, w->first);
    gr_free(w->ahead);
    gr_free(w);
    *l = NULL;
}

static const struct gr_link_api wrap_api = {"wrapped", wrap_send, wrap_recv, wrap_probe,
                                            wrap_wait, wrap_done, wrap_close};

int gr_link_wrap(struct gr_link **l, const struct gr_link_opt *opt)
{
    struct gr_link *inner = *l;
    struct gr_world *world = inner->world;
    struct wrapper *w = gr_calloc(1, sizeof *w);
    if (!w)
        return GR_E_NOMEM_HOST;
    int rc = 0;
    if (opt->sync)
        rc = world->api->link(world, inner->lane + GR_N_LANE, inner->to, inner->from, &w->back);
    if (rc) {
        gr_free(w);
        return rc;
    }
    w->base = *inner;
    w->base.api = &wrap_api;
    w->inner = inner, w->opt = *opt, w->last = &w->first;
    w->timed = opt->delay_ns || opt->bytes_per_s;
    w->sends = inner->from == world->rank;
    *l = &w->base;
    return 0;
}
