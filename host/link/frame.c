#include "link/link.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "gr/status.h"
#include "link/link_impl.h"

/* Checksum of a body, never 0, which means that there is none. */
static uint32_t sum_of(const void *body, size_t n)
{
    uint32_t sum = (uint32_t)XXH3_64bits(body, n);
    return sum ? sum : 1;
}

int gr_frame_send(struct gr_port *p, struct gr_frame_out *o, const void *body)
{
    struct gr_frame *f = &o->frame;
    f->seq = ++p->seq;
    f->sum = p->sum && body && f->n ? sum_of(body, f->n) : 0;
    int rc = gr_link_send(p->link, f, sizeof *f, &o->head);
    if (!rc && body && f->n)
        rc = gr_link_send(p->link, body, f->n, &o->body);
    return rc;
}

int gr_frame_sent(struct gr_port *p, struct gr_frame_out *o, int64_t deadline_ns)
{
    int doing = gr_world_pause(p->link->world);
    int rc = gr_link_wait(p->link, &o->head, deadline_ns);
    if (!rc)
        rc = gr_link_wait(p->link, &o->body, deadline_ns);
    gr_world_resume(p->link->world, doing);
    return rc;
}

bool gr_frame_is_sent(struct gr_port *p, struct gr_frame_out *o)
{
    return p->link->api->done(p->link, &o->head) && p->link->api->done(p->link, &o->body);
}

/* Receives one message of a known length. */
static int receive(struct gr_port *p, void *buf, size_t n, const char *what, int64_t deadline_ns)
{
    char name[64];
    struct gr_request r = {0};
    size_t came;
    int rc = p->link->api->probe(p->link, deadline_ns, &came);
    if (!rc && came != n)
        return gr_fail(GR_E_PEER_LOST,
                       "%s: %s %llu has %zu bytes, %zu were expected: a message was lost on the "
                       "way, or the programs of the two sides differ",
                       gr_link_name(p->link, name, sizeof name), what, (unsigned long long)p->seq,
                       came, n);
    if (!rc)
        rc = gr_link_recv(p->link, buf, n, &r);
    return rc ? rc : gr_link_wait(p->link, &r, deadline_ns);
}

static int take(struct gr_port *p, void *buf, size_t n, const char *what, int64_t deadline_ns)
{
    int doing = gr_world_pause(p->link->world);
    int rc = receive(p, buf, n, what, deadline_ns);
    gr_world_resume(p->link->world, doing);
    return rc;
}

int gr_frame_recv(struct gr_port *p, struct gr_frame *f, int64_t deadline_ns)
{
    char name[64];
    int rc = take(p, f, sizeof *f, "the frame after", deadline_ns);
    if (rc)
        return rc;
    if (f->seq != p->seq + 1)
        return gr_fail(GR_E_PEER_LOST,
                       "%s: frame %llu came, %llu was expected: a message was lost on the way",
                       gr_link_name(p->link, name, sizeof name), (unsigned long long)f->seq,
                       (unsigned long long)p->seq + 1);
    p->seq++;
    return 0;
}

int gr_frame_body(struct gr_port *p, const struct gr_frame *f, void *buf, size_t cap,
                  int64_t deadline_ns)
{
    char name[64];
    if (f->n > cap)
        return gr_link_too_long(p->link, f->n, cap);
    int rc = f->n ? take(p, buf, f->n, "the body of frame", deadline_ns) : 0;
    if (rc || !f->sum || f->sum == sum_of(buf, f->n))
        return rc;
    return gr_fail(GR_E_PEER_LOST,
                   "%s: the body of frame %llu (%llu bytes) has changed on the way: its checksum "
                   "is wrong",
                   gr_link_name(p->link, name, sizeof name), (unsigned long long)f->seq,
                   (unsigned long long)f->n);
}
