#include "ranks/boundary.h"

static struct gr_value value_at(const struct gr_plan *p, uint32_t v)
{
    return ((const struct gr_value *)p->value.data)[v];
}

size_t gr_boundary_bytes(const struct gr_plan *p, const struct gr_vec *values)
{
    const uint32_t *v = values->data;
    size_t n = 0;
    for (size_t i = 0; i < values->n; i++)
        n += (size_t)value_at(p, v[i]).bytes;
    return n;
}

int gr_boundary_in(struct gr_session *s, const struct gr_plan *p, const void *buf)
{
    const uint32_t *v = p->in.data;
    const char *at = buf;
    int rc = 0;
    for (size_t i = 0; i < p->in.n && !rc; i++) {
        struct gr_value value = value_at(p, v[i]);
        struct gr_session_device *d = &s->device[value.device];
        gr_session_mark_queued(d);
        rc =
            d->backend->api->upload(d->backend, gr_session_at(s, p, v[i]), at, (size_t)value.bytes);
        at += value.bytes;
    }
    return rc;
}

int gr_boundary_out(struct gr_session *s, const struct gr_plan *p, void *buf)
{
    const uint32_t *v = p->out.data;
    char *at = buf;
    int rc = 0;
    for (size_t i = 0; i < p->out.n && !rc; i++) {
        struct gr_value value = value_at(p, v[i]);
        struct gr_session_device *d = &s->device[value.device];
        rc = d->backend->api->download(d->backend, at, gr_session_at(s, p, v[i]),
                                       (size_t)value.bytes);
        at += value.bytes;
    }
    return rc;
}
