/* A member of a transport, as far as both kinds have the same. */
#include <stdio.h>

#include "base/checked.h"
#include "base/clock.h"
#include "cuda/transport.h"
#include "gr/status.h"

static int check_options(const struct gr_transport_opt *o)
{
    bool member = o->n_member > 0 && o->member >= 0 && o->member < o->n_member;
    bool chain = o->from >= -1 && o->from < o->n_member && o->from != o->member && o->to >= -1 &&
                 o->to < o->n_member && o->to != o->member;
    bool group = o->n_group <= 1 ||
                 (o->first >= 0 && o->first <= o->member && o->n_group <= o->n_member - o->first &&
                  o->member - o->first < o->n_group);
    if (member && chain && group && o->piece_bytes)
        return 0;
    return gr_fail(
        GR_E_INVALID,
        "a transport: member %d of %d, from %d, to %d, group [%d, %d), pieces of %zu bytes: "
        "members are counted from 0, others than oneself are talked to, a group holds "
        "its members, and pieces have bytes",
        o->member, o->n_member, o->from, o->to, o->first, o->first + o->n_group, o->piece_bytes);
}

int gr_cuda_transport_init(struct gr_cuda_transport *n, struct gr_cuda_backend *c,
                           const struct gr_transport_opt *opt)
{
    int rc = check_options(opt);
    if (rc)
        return rc;
    n->base.suspect = -1;
    n->opt = *opt;
    n->cu = c->cu;
    n->name = c->name;
    n->device = gr_cuda_hold(c->device);
    return 0;
}

int gr_cuda_transport_enter(struct gr_cuda_transport *n, struct gr_backend *b,
                            struct gr_cuda_visit *v)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    if (n->failed)
        return gr_fail(n->failed, "%s", n->failed_text);
    if (c->device != n->device)
        return gr_fail(GR_E_INVALID,
                       "%s: it is not the device that member %d of a transport has joined "
                       "with, which is %s",
                       c->name, n->opt.member, n->name);
    return gr_cuda_enter(c, v);
}

int gr_cuda_transport_leave(struct gr_cuda_transport *n, int rc, int32_t suspect)
{
    if (rc && !n->failed) {
        n->failed = rc;
        n->base.suspect = suspect;
        (void)snprintf(n->failed_text, sizeof n->failed_text, "%s", gr_error());
    }
    return rc;
}

void gr_cuda_transport_end(struct gr_cuda_transport *n)
{
    if (n->failed)
        return;
    n->failed = GR_E_PEER_LOST;
    (void)snprintf(n->failed_text, sizeof n->failed_text, "%s: the transport was aborted", n->name);
}

int gr_cuda_transport_patience(const struct gr_cuda_transport *n, const char *what, int64_t since,
                               int64_t deadline_ns)
{
    int64_t now = gr_now_ns();
    if (n->opt.lost && atomic_load_explicit(n->opt.lost, memory_order_relaxed))
        return gr_fail(GR_E_PEER_LOST, "%s: waiting for %s was given up: a rank is lost", n->name,
                       what);
    if (now < deadline_ns)
        return 0;
    return gr_fail(GR_E_PEER_LOST, "%s: %s has not come for %.1f s", n->name, what,
                   (double)(now - since) * 1e-9);
}

size_t gr_cuda_spans_bytes(const struct gr_transport_span *span, int n_span)
{
    size_t bytes = 0;
    for (int i = 0; i < n_span; i++)
        bytes += span[i].bytes;
    return bytes;
}

cu_pointer gr_cuda_spans_next(struct gr_cuda_spans *s, size_t most, size_t *bytes)
{
    while (s->n_span && s->at == s->span->bytes) {
        s->span++, s->n_span--;
        s->at = 0;
    }
    if (!s->n_span)
        return *bytes = 0, 0;
    cu_pointer p = (cu_pointer)(uintptr_t)s->span->p + s->at;
    *bytes = GR_MIN(most, s->span->bytes - s->at);
    s->at += *bytes;
    return p;
}
