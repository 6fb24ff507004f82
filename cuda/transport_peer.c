/* A transport within a process: copies from device to device, or within one.
 *
 * Between two members lies a channel: a ring of pieces on the receiver's device. The sender's
 * stream waits until a piece is empty, copies there and records that it is full; the receiver's
 * waits for that, copies out and records that it is empty. Events are waited for on the devices. On
 * the host a side waits only until the other has queued what it would have its stream wait for, as
 * an event means what was recorded in it last: so no stream ever waits for something that is not
 * queued, and a device cannot hang by a member that is gone. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "cuda/nvtx.h"
#include "cuda/transport.h"
#include "gr/status.h"

#define SLICE_NS 10000000 /* longest sleep: nobody wakes a member when the world is lost */

/* The way from one member to another. */
struct channel {
    struct channel *next;
    int32_t from, to;
    bool gathers;                     /* between members of a group, not along the chain */
    cu_pointer ring;                  /* on the receiver's device; 0: it has not joined */
    cu_event full[GR_TRANSPORT_RING]; /* recorded by the sender; NULL: it has not joined */
    cu_event empty[GR_TRANSPORT_RING];
    uint64_t sent, taken; /* pieces that either side has queued */
    size_t bytes[GR_TRANSPORT_RING];
};

/* The state that the members of a transport share; freed with the last of them. */
struct hub {
    struct hub *next; /* in the table */
    struct gr_transport_ticket ticket;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    int32_t n_member, n_joined, n_user;
    struct gr_cuda_device **device; /* [n_member], held; NULL: not joined */
    bool *left;                     /* [n_member] */
    struct channel *channel;
    size_t piece_bytes;
    int32_t culprit; /* member that broke it, -1: none did */
    char why[512];
};

struct peer {
    struct gr_cuda_transport transport;
    struct hub *hub;
    struct channel *in, *out;             /* of the chain, or NULL */
    struct channel **part_in, **part_out; /* [n_group], NULL for itself */
};

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hub *table;

static struct peer *peer_of(struct gr_transport *n)
{
    return (struct peer *)(void *)n;
}

/* ---- tickets ---- */

/* Makes a ticket of the process, the time and a number; its prefix marks its kind. */
void gr_peer_ticket(struct gr_transport_ticket *t)
{
    static _Atomic uint64_t made;
    (void)snprintf(t->bytes, sizeof t->bytes, "gpurun peers %lld %lld %llu", (long long)getpid(),
                   (long long)gr_now_ns(), (unsigned long long)++made);
}

static int check_ticket(const struct gr_transport_ticket *t)
{
    char prefix[64];
    int n = snprintf(prefix, sizeof prefix, "gpurun peers %lld ", (long long)getpid());
    return strncmp(t->bytes, prefix, (size_t)n) == 0
               ? 0
               : gr_fail(GR_E_UNSUPPORTED, "copies between devices: the ticket was made by another "
                                           "process, where its memory cannot be reached");
}

/* ---- hubs ---- */

static void free_hub(struct hub *h)
{
    gr_free(h->device);
    gr_free(h->left);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    gr_free(h);
}

static struct hub *new_hub(const struct gr_transport_opt *o)
{
    pthread_condattr_t monotonic;
    struct hub *h = gr_calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->ticket = o->ticket;
    h->n_member = o->n_member, h->piece_bytes = o->piece_bytes;
    h->culprit = -1;
    h->device = gr_calloc((size_t)o->n_member, sizeof(struct gr_cuda_device *));
    h->left = gr_calloc((size_t)o->n_member, sizeof *h->left);
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (h->device && h->left)
        return h;
    free_hub(h);
    return NULL;
}

/* Finds the hub of this ticket, or makes it, and adds a user. */
static struct hub *take_hub(const struct gr_transport_opt *o)
{
    pthread_mutex_lock(&table_lock);
    struct hub *h = table;
    while (h && memcmp(&h->ticket, &o->ticket, sizeof h->ticket) != 0)
        h = h->next;
    if (!h && (h = new_hub(o))) {
        h->next = table;
        table = h;
    }
    if (h)
        h->n_user++;
    pthread_mutex_unlock(&table_lock);
    return h;
}

/* Waits for the first n events of a side of a channel. Errors do not matter: what a lost context
 * holds goes with it. */
static void settle_side(const struct gr_cuda_device *d, const cu_event event[GR_TRANSPORT_RING],
                        uint64_t n)
{
    GR_CUDA_VISIT(v);
    if (!d)
        return;
    (void)gr_cuda_visit(&v, d);
    for (int i = 0; i < GR_TRANSPORT_RING && (uint64_t)i < n; i++)
        if (event[i])
            (void)d->cu->event_sync(event[i]);
}

static void free_side(const struct gr_cuda_device *d, const cu_event event[GR_TRANSPORT_RING],
                      cu_pointer ring)
{
    GR_CUDA_VISIT(v);
    if (!d)
        return;
    (void)gr_cuda_visit(&v, d);
    for (int i = 0; i < GR_TRANSPORT_RING; i++)
        if (event[i])
            (void)d->cu->event_destroy(event[i]);
    if (ring)
        (void)d->cu->free(ring);
}

static void free_channel(struct hub *h, struct channel *ch)
{
    const struct gr_cuda_device *from = h->device[ch->from], *to = h->device[ch->to];
    settle_side(from, ch->full, ch->sent); /* queued work uses the ring */
    settle_side(to, ch->empty, ch->taken);
    free_side(from, ch->full, 0);
    free_side(to, ch->empty, ch->ring);
    gr_free(ch);
}

static void drop_hub(struct hub *h)
{
    pthread_mutex_lock(&table_lock);
    bool last = --h->n_user == 0;
    if (last)
        for (struct hub **at = &table; *at; at = &(*at)->next)
            if (*at == h) {
                *at = h->next;
                break;
            }
    pthread_mutex_unlock(&table_lock);
    if (!last)
        return;
    for (struct channel *ch = h->channel, *next; ch; ch = next) {
        next = ch->next;
        free_channel(h, ch);
    }
    for (int32_t i = 0; i < h->n_member; i++)
        gr_cuda_release(&h->device[i]);
    free_hub(h);
}

/* Breaks the transport for all members; the first reason counts. The lock is held. */
static void break_hub(struct hub *h, int32_t member, const char *why)
{
    if (h->culprit < 0) {
        h->culprit = member;
        (void)snprintf(h->why, sizeof h->why, "%s", why);
    }
    pthread_cond_broadcast(&h->changed);
}

/* Sleeps until something has changed; an error when there is nothing more to wait for. The lock is
 * held. `other`: the member that is waited for, -1 = all. */
static int sleep_on(struct peer *p, int32_t other, const char *what, int64_t since,
                    int64_t deadline_ns)
{
    struct hub *h = p->hub;
    if (h->culprit >= 0)
        return gr_fail(GR_E_PEER_LOST, "%s: member %d of the transport has ended it: %s",
                       p->transport.name, h->culprit, h->why);
    if (other >= 0 && h->left[other])
        return gr_fail(GR_E_PEER_LOST, "%s: member %d has left the transport; %s was waited for",
                       p->transport.name, other, what);
    int rc = gr_cuda_transport_patience(&p->transport, what, since, deadline_ns);
    if (rc)
        return rc;
    int64_t until = GR_MIN(gr_now_ns() + SLICE_NS, deadline_ns);
    const struct timespec t = {until / 1000000000, until % 1000000000};
    (void)pthread_cond_timedwait(&h->changed, &h->lock, &t);
    return 0;
}

/* ---- joining ---- */

/* Finds or makes a channel. The lock is held. */
static struct channel *channel_of(struct hub *h, int32_t from, int32_t to, bool gathers)
{
    struct channel *ch = h->channel;
    while (ch && (ch->from != from || ch->to != to || ch->gathers != gathers))
        ch = ch->next;
    if (!ch && (ch = gr_calloc(1, sizeof *ch))) {
        *ch = (struct channel){.next = h->channel, .from = from, .to = to, .gathers = gathers};
        h->channel = ch;
    }
    return ch;
}

static int make_events(struct peer *p, cu_event event[GR_TRANSPORT_RING])
{
    int rc = 0;
    for (int i = 0; i < GR_TRANSPORT_RING && !rc; i++)
        rc = CU(&p->transport, event_create, &event[i], CU_EVENT_NO_TIMING);
    return rc;
}

static int open_out(struct peer *p, int32_t to, bool gathers, struct channel **out)
{
    *out = channel_of(p->hub, p->transport.opt.member, to, gathers);
    return *out ? make_events(p, (*out)->full) : GR_E_NOMEM_HOST;
}

static int open_in(struct gr_cuda_backend *c, struct peer *p, int32_t from, bool gathers,
                   struct channel **in)
{
    struct channel *ch = *in = channel_of(p->hub, from, p->transport.opt.member, gathers);
    int rc = ch ? make_events(p, ch->empty) : GR_E_NOMEM_HOST;
    return rc ? rc : gr_cuda_alloc(c, GR_TRANSPORT_RING * p->hub->piece_bytes, &ch->ring);
}

/* Opens this member's sides of its channels. The lock is held. */
static int open_sides(struct gr_cuda_backend *c, struct peer *p)
{
    const struct gr_transport_opt *o = &p->transport.opt;
    int rc = 0;
    if (o->to >= 0)
        rc = open_out(p, o->to, false, &p->out);
    if (!rc && o->from >= 0)
        rc = open_in(c, p, o->from, false, &p->in);
    for (int32_t i = 0; i < o->n_group && o->n_group > 1 && !rc; i++) {
        if (o->first + i == o->member)
            continue;
        rc = open_out(p, o->first + i, true, &p->part_out[i]);
        if (!rc)
            rc = open_in(c, p, o->first + i, true, &p->part_in[i]);
    }
    return rc;
}

/* Enters a member into the hub and waits for the others. The lock is held. */
static int enroll(struct gr_cuda_backend *c, struct peer *p)
{
    struct hub *h = p->hub;
    const struct gr_transport_opt *o = &p->transport.opt;
    if (h->n_member != o->n_member || h->piece_bytes != o->piece_bytes || h->device[o->member])
        return gr_fail(GR_E_INTERNAL,
                       "%s: member %d of %d with pieces of %zu bytes: the others have %d with %zu, "
                       "or it is there already",
                       p->transport.name, o->member, o->n_member, o->piece_bytes, h->n_member,
                       h->piece_bytes);
    h->device[o->member] = gr_cuda_hold(p->transport.device);
    int rc = open_sides(c, p);
    if (rc)
        return rc;
    h->n_joined++;
    pthread_cond_broadcast(&h->changed);
    int64_t since = gr_now_ns();
    while (h->n_joined < h->n_member && !rc)
        rc = sleep_on(p, -1, "a member of the transport", since, o->deadline_ns);
    return rc;
}

/* Checks that the members agree on who sends to whom. The lock is held. */
static int check_sides(const struct peer *p)
{
    const struct channel *const chain[] = {p->in, p->out};
    for (int i = 0; i < 2; i++)
        if (chain[i] && (!chain[i]->ring || !chain[i]->full[0]))
            return gr_fail(GR_E_INTERNAL, "%s: from member %d to member %d: only one of them knows",
                           p->transport.name, chain[i]->from, chain[i]->to);
    for (int32_t i = 0; i < p->transport.opt.n_group && p->transport.opt.n_group > 1; i++)
        if (p->part_in[i] && (!p->part_in[i]->full[0] || !p->part_out[i]->ring))
            return gr_fail(GR_E_INTERNAL, "%s: members %d and %d are not in one group",
                           p->transport.name, p->transport.opt.member, p->transport.opt.first + i);
    return 0;
}

/* Gives this device access to the other's memory where the machine can do that; otherwise the
 * driver stages the copies. *direct becomes false where it does. */
static int give_access(struct peer *p, int32_t to, bool *direct)
{
    const struct gr_cuda_device *own = p->transport.device, *other = p->hub->device[to];
    int can = 0, rc;
    if (own == other)
        return 0;
    if ((rc = CU(&p->transport, can_access, &can, own->handle, other->handle)))
        return rc;
    *direct = *direct && can;
    int result = can ? p->transport.cu->enable_access(other->context, 0) : CU_OK;
    return result == CU_PEER_ACCESS_ALREADY_ENABLED
               ? 0
               : gr_cuda_said(p->transport.cu, p->transport.name, GR_CU_enable_access, result);
}

static int connect_all(struct peer *p)
{
    const struct gr_transport_opt *o = &p->transport.opt;
    bool direct = true, alone = true;
    int rc = o->to >= 0 ? give_access(p, o->to, &direct) : 0;
    for (int32_t i = 0; i < o->n_group && o->n_group > 1 && !rc; i++)
        rc = give_access(p, o->first + i, &direct);
    for (int32_t i = 0; i < o->n_member; i++)
        alone = alone && p->hub->device[i] == p->transport.device;
    (void)snprintf(p->transport.base.via, sizeof p->transport.base.via, "%s",
                   alone    ? "copies within one device"
                   : direct ? "copies between devices"
                            : "copies between devices, staged by the driver");
    return rc;
}

/* ---- a piece ---- */

/* Copies between ring and span, in the order of the backend's work. */
static int copy(const struct gr_cuda_backend *c, const struct gr_cuda_device *to, cu_pointer dst,
                cu_pointer src, size_t bytes)
{
    return to == c->device
               ? CU(c, copy, dst, src, bytes, c->stream)
               : CU(c, copy_peer, dst, to->context, src, c->device->context, bytes, c->stream);
}

static int wait_room(struct peer *p, struct channel *ch, int64_t deadline_ns)
{
    int64_t since = gr_now_ns();
    int rc = 0;
    pthread_mutex_lock(&p->hub->lock);
    while (ch->sent - ch->taken >= GR_TRANSPORT_RING && !rc)
        rc = sleep_on(p, ch->to, "room for what is sent", since, deadline_ns);
    pthread_mutex_unlock(&p->hub->lock);
    return rc;
}

static int wait_piece(struct peer *p, struct channel *ch, size_t bytes, int64_t deadline_ns)
{
    int64_t since = gr_now_ns();
    int rc = 0;
    pthread_mutex_lock(&p->hub->lock);
    while (ch->sent == ch->taken && !rc)
        rc = sleep_on(p, ch->from, "what is received", since, deadline_ns);
    size_t came = ch->bytes[ch->taken % GR_TRANSPORT_RING];
    pthread_mutex_unlock(&p->hub->lock);
    if (!rc && came != bytes)
        rc = gr_fail(GR_E_INTERNAL, "%s: %zu bytes came from member %d, %zu were expected",
                     p->transport.name, came, ch->from, bytes);
    return rc;
}

/* Increments a counter and wakes the other side. */
static void count(struct peer *p, uint64_t *counter)
{
    pthread_mutex_lock(&p->hub->lock);
    ++*counter;
    pthread_cond_broadcast(&p->hub->changed);
    pthread_mutex_unlock(&p->hub->lock);
}

static int send_piece(struct gr_cuda_backend *c, struct peer *p, struct channel *ch,
                      struct gr_cuda_spans *s, size_t bytes, int64_t deadline_ns)
{
    int rc = wait_room(p, ch, deadline_ns);
    size_t i = ch->sent % GR_TRANSPORT_RING, n;
    if (!rc && ch->sent >= GR_TRANSPORT_RING)
        rc = CU(c, stream_wait, c->stream, ch->empty[i], 0);
    for (size_t at = 0; at < bytes && !rc; at += n) {
        cu_pointer src = gr_cuda_spans_next(s, bytes - at, &n);
        rc = copy(c, p->hub->device[ch->to], ch->ring + i * p->hub->piece_bytes + at, src, n);
    }
    if (!rc)
        rc = CU(c, event_record, ch->full[i], c->stream);
    if (rc)
        return rc;
    ch->bytes[i] = bytes;
    count(p, &ch->sent);
    return 0;
}

static int recv_piece(struct gr_cuda_backend *c, struct peer *p, struct channel *ch,
                      struct gr_cuda_spans *s, size_t bytes, int64_t deadline_ns)
{
    int rc = wait_piece(p, ch, bytes, deadline_ns);
    size_t i = ch->taken % GR_TRANSPORT_RING, n;
    if (!rc)
        rc = CU(c, stream_wait, c->stream, ch->full[i], 0);
    for (size_t at = 0; at < bytes && !rc; at += n) {
        cu_pointer dst = gr_cuda_spans_next(s, bytes - at, &n);
        rc = copy(c, c->device, dst, ch->ring + i * p->hub->piece_bytes + at, n);
    }
    if (!rc)
        rc = CU(c, event_record, ch->empty[i], c->stream);
    if (!rc)
        count(p, &ch->taken);
    return rc;
}

/* ---- the table's entries ---- */

/* Ends a call: a failure ends the transport for all members, after a wait for what was queued,
 * which may use a ring. */
static int finish(struct gr_cuda_backend *c, struct peer *p, int rc, int32_t other)
{
    GR_CUDA_VISIT(v);
    if (!rc)
        return 0;
    if (rc != GR_E_PEER_LOST)
        other = -1;
    pthread_mutex_lock(&p->hub->lock);
    break_hub(p->hub, other < 0 ? p->transport.opt.member : other, gr_error());
    if (rc == GR_E_PEER_LOST)
        other = p->hub->culprit;
    pthread_mutex_unlock(&p->hub->lock);
    gr_cuda_settle(c, &v);
    return gr_cuda_transport_leave(&p->transport, gr_cuda_leave(c, rc), other);
}

typedef int piece_fn(struct gr_cuda_backend *c, struct peer *p, struct channel *ch,
                     struct gr_cuda_spans *s, size_t bytes, int64_t deadline_ns);

/* Sends or receives a message in pieces. */
static int pass(struct gr_transport *n, struct gr_backend *b, bool sends,
                const struct gr_transport_span *span, int n_span, int64_t deadline_ns)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct peer *p = peer_of(n);
    struct channel *ch = sends ? p->out : p->in;
    struct gr_cuda_spans s = {span, n_span, 0};
    size_t left = gr_cuda_spans_bytes(span, n_span), bytes;
    piece_fn *piece = sends ? send_piece : recv_piece;
    int rc = gr_cuda_transport_enter(&p->transport, b, &v);
    if (rc)
        return rc;
    if (!ch)
        return gr_fail(GR_E_INVALID, "%s: member %d has nobody to %s", p->transport.name,
                       p->transport.opt.member, sends ? "send to" : "receive from");
    if (c->opt.nvtx)
        gr_nvtx_begin(sends ? GR_RANGE_SEND : GR_RANGE_RECV, left);
    for (; left && !rc; left -= bytes) {
        bytes = GR_MIN(left, p->hub->piece_bytes);
        rc = piece(c, p, ch, &s, bytes, deadline_ns);
    }
    if (c->opt.nvtx)
        gr_nvtx_end();
    return finish(c, p, rc, sends ? ch->to : ch->from);
}

static int peer_send(struct gr_transport *n, struct gr_backend *b,
                     const struct gr_transport_span *span, int n_span, int64_t deadline_ns)
{
    return pass(n, b, true, span, n_span, deadline_ns);
}

static int peer_recv(struct gr_transport *n, struct gr_backend *b,
                     const struct gr_transport_span *span, int n_span, int64_t deadline_ns)
{
    return pass(n, b, false, span, n_span, deadline_ns);
}

/* Gathers bytes [at, at + bytes) of each member's part. */
static int gather_piece(struct gr_cuda_backend *c, struct peer *p, char *all, size_t part,
                        size_t at, size_t bytes, int64_t deadline_ns, int32_t *other)
{
    const struct gr_transport_opt *o = &p->transport.opt;
    int rc = 0;
    for (int32_t i = 0; i < 2 * o->n_group && !rc; i++) {
        int32_t with = i % o->n_group, of = i < o->n_group ? o->member - o->first : with;
        struct channel *ch = (i < o->n_group ? p->part_out : p->part_in)[with];
        const struct gr_transport_span span = {all + (size_t)of * part + at, bytes};
        struct gr_cuda_spans s = {&span, 1, 0};
        if (!ch)
            continue;
        *other = o->first + with;
        rc = (i < o->n_group ? send_piece : recv_piece)(c, p, ch, &s, bytes, deadline_ns);
    }
    return rc;
}

static int peer_gather(struct gr_transport *n, struct gr_backend *b, void *all, size_t bytes,
                       int64_t deadline_ns)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct peer *p = peer_of(n);
    int32_t other = -1;
    int rc = gr_cuda_transport_enter(&p->transport, b, &v);
    if (rc || p->transport.opt.n_group <= 1)
        return rc;
    if (c->opt.nvtx)
        gr_nvtx_begin(GR_RANGE_EXCHANGE, bytes * (size_t)p->transport.opt.n_group);
    for (size_t at = 0; at < bytes && !rc; at += p->hub->piece_bytes)
        rc = gather_piece(c, p, all, bytes, at, GR_MIN(p->hub->piece_bytes, bytes - at),
                          deadline_ns, &other);
    if (c->opt.nvtx)
        gr_nvtx_end();
    return finish(c, p, rc, other);
}

/* Does not wait: all that a stream waits for is queued. */
static int peer_wait(struct gr_transport *n, int64_t deadline_ns)
{
    const struct gr_cuda_transport *transport = gr_cuda_transport_of(n);
    (void)deadline_ns;
    return transport->failed ? gr_fail(transport->failed, "%s", transport->failed_text) : 0;
}

static void peer_abort(struct gr_transport *n)
{
    struct peer *p = peer_of(n);
    pthread_mutex_lock(&p->hub->lock);
    break_hub(p->hub, p->transport.opt.member, "aborted");
    pthread_mutex_unlock(&p->hub->lock);
    gr_cuda_transport_end(&p->transport);
}

static void peer_leave(struct gr_transport **n)
{
    struct peer *p = *n ? peer_of(*n) : NULL;
    if (!p)
        return;
    if (p->hub) {
        pthread_mutex_lock(&p->hub->lock);
        p->hub->left[p->transport.opt.member] = true;
        pthread_cond_broadcast(&p->hub->changed);
        pthread_mutex_unlock(&p->hub->lock);
        drop_hub(p->hub);
    }
    gr_cuda_release(&p->transport.device);
    gr_free(p->part_in);
    gr_free(p->part_out);
    gr_free(p);
    *n = NULL;
}

static const struct gr_transport_api api = {
    .name = "peer",
    .send = peer_send,
    .recv = peer_recv,
    .gather = peer_gather,
    .wait = peer_wait,
    .abort = peer_abort,
    .leave = peer_leave,
};

static int join(struct gr_cuda_backend *c, struct peer *p)
{
    size_t n = (size_t)GR_MAX(p->transport.opt.n_group, 1);
    int rc = check_ticket(&p->transport.opt.ticket);
    if (rc)
        return rc;
    p->part_in = gr_calloc(n, sizeof(struct channel *));
    p->part_out = gr_calloc(n, sizeof(struct channel *));
    p->hub = p->part_in && p->part_out ? take_hub(&p->transport.opt) : NULL;
    if (!p->hub)
        return GR_E_NOMEM_HOST;
    pthread_mutex_lock(&p->hub->lock);
    rc = enroll(c, p);
    if (!rc)
        rc = check_sides(p);
    if (!rc)
        rc = connect_all(p);
    if (rc)
        break_hub(p->hub, p->transport.opt.member, gr_error());
    pthread_mutex_unlock(&p->hub->lock);
    return rc;
}

int gr_peer_join(struct gr_cuda_backend *c, const struct gr_transport_opt *opt,
                 struct gr_transport **out)
{
    struct peer *p = gr_calloc(1, sizeof *p);
    if (!p)
        return GR_E_NOMEM_HOST;
    *out = &p->transport.base;
    p->transport.base.api = &api;
    int rc = gr_cuda_transport_init(&p->transport, c, opt);
    if (!rc)
        rc = join(c, p);
    if (rc)
        peer_leave(out);
    return rc;
}
