/* Errors, steps and memory of a render. */
#include <stdarg.h>
#include <stdio.h>

#include "base/checked.h"
#include "chat/run.h"
#include "chat/source.h"
#include "gr/status.h"

bool gr_render_ok(const struct gr_render *r)
{
    return !r->rc;
}

int64_t gr_render_now(const struct gr_render *r)
{
    return r->now;
}

bool gr_render_enter(struct gr_render *r)
{
    if (r->n_making == GR_VALUE_MAX_DEPTH)
        gr_render_fail(r, "iterators are nested deeper than %u", GR_VALUE_MAX_DEPTH);
    r->n_making += !r->rc;
    return !r->rc;
}

void gr_render_leave(struct gr_render *r)
{
    r->n_making--;
}

struct gr_val gr_render_fail(struct gr_render *r, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    if (r->rc)
        return gr_none();
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    for (char *c = what; *c; c++)
        *c = (unsigned char)*c < ' ' || *c == 127 ? ' ' : *c;
    r->rc = gr_source_fail(r->prog->source, r->prog->code[r->pc].at, "%s", what);
    return gr_none();
}

void gr_render_raise(struct gr_render *r, const char *p, size_t n)
{
    char what[1500];
    size_t k = GR_MIN(n, sizeof what - 1);
    if (r->rc)
        return;
    for (size_t i = 0; i < k; i++)
        what[i] = (unsigned char)p[i] < ' ' || p[i] == 127 ? ' ' : p[i];
    while (k < n && k && (p[k] & 0xc0) == 0x80)
        k--;
    what[k] = 0;
    r->rc = gr_fail(GR_E_TEMPLATE, "%s", what);
}

bool gr_render_step(struct gr_render *r, uint64_t n)
{
    r->steps += n;
    if (r->steps > GR_RENDER_MAX_STEPS)
        gr_render_fail(r, "the template takes more than %u steps", GR_RENDER_MAX_STEPS);
    return !r->rc;
}

void *gr_render_alloc(struct gr_render *r, size_t n, size_t size)
{
    size_t bytes;
    if (r->rc)
        return NULL;
    if (!gr_mul(&bytes, n, size) || bytes > GR_RENDER_MAX_MEMORY ||
        r->mem.total + bytes > GR_RENDER_MAX_MEMORY) {
        gr_render_fail(r, "the template takes more than %u MiB of memory",
                       GR_RENDER_MAX_MEMORY >> 20);
        return NULL;
    }
    void *p = gr_arena_alloc(&r->mem, bytes);
    if (!p)
        r->rc = GR_E_NOMEM_HOST;
    return p;
}
