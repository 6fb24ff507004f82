/* The context that the parts of a backend work in: the beginning and the end of a call, memory of
 * the device and staging memory. */
#include <stdio.h>

#include "base/checked.h"
#include "cuda/runtime.h"
#include "gr/status.h"

#define MIB (1024.0 * 1024.0)

int gr_cuda_enter(struct gr_cuda_backend *c, struct gr_cuda_visit *v)
{
    if (c->lost)
        return gr_fail(c->lost, "%s", c->lost_text);
    return gr_cuda_leave(c, gr_cuda_visit(v, c->device));
}

int gr_cuda_leave(struct gr_cuda_backend *c, int rc)
{
    if (rc == GR_E_DEVICE && !c->lost) {
        c->lost = rc;
        (void)snprintf(c->lost_text, sizeof c->lost_text, "%s", gr_error());
    }
    return rc;
}

/* ---- device memory ---- */

static int no_memory(struct gr_cuda_backend *c, size_t bytes)
{
    size_t free_bytes = 0, total = 0;
    if (c->cu->mem_info(&free_bytes, &total))
        return gr_fail(GR_E_NOMEM_DEV, "%s: out of memory: %.1f MiB asked for", c->name,
                       (double)bytes / MIB);
    return gr_fail(GR_E_NOMEM_DEV, "%s: out of memory: %.1f MiB asked for, %.1f of %.1f free",
                   c->name, (double)bytes / MIB, (double)free_bytes / MIB, (double)total / MIB);
}

int gr_cuda_alloc(struct gr_cuda_backend *c, size_t bytes, cu_pointer *p)
{
    int result = c->cu->alloc(p, GR_MAX(bytes, 1)); /* aligned to 256 or more by the driver */
    return result == CU_OUT_OF_MEMORY ? no_memory(c, bytes)
                                      : gr_cuda_said(c->cu, c->name, GR_CU_alloc, result);
}

int gr_cuda_scratch_grow(struct gr_cuda_backend *c, size_t bytes)
{
    int rc = CU(c, stream_sync, c->stream);
    if (!rc && c->scratch)
        rc = CU(c, free, c->scratch);
    if (rc)
        return rc;
    c->scratch = 0, c->scratch_bytes = 0;
    c->scratch_turn++;
    rc = gr_cuda_alloc(c, bytes, &c->scratch);
    if (!rc)
        c->scratch_bytes = bytes;
    return rc;
}

void gr_cuda_scratch_free(struct gr_cuda_backend *c)
{
    if (c->scratch)
        (void)c->cu->free(c->scratch);
    c->scratch = 0, c->scratch_bytes = 0;
    c->scratch_turn++;
}

/* ---- staging ---- */

int gr_cuda_ring_new(struct gr_cuda_backend *c, struct gr_cuda_ring *r, cu_stream stream, int n,
                     size_t slot_bytes)
{
    void *host = NULL;
    *r = (struct gr_cuda_ring){.slot_bytes = slot_bytes, .n = n};
    int rc = CU(c, host_alloc, &host, (size_t)n * slot_bytes, 0);
    r->host = host;
    for (int i = 0; i < n && !rc; i++)
        if (!(rc = CU(c, event_create, &r->copied[i], CU_EVENT_NO_TIMING)))
            rc = CU(c, event_record, r->copied[i], stream);
    return rc;
}

void gr_cuda_ring_free(struct gr_cuda_backend *c, struct gr_cuda_ring *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->copied[i])
            (void)c->cu->event_destroy(r->copied[i]);
    if (r->host)
        (void)c->cu->host_free(r->host);
    *r = (struct gr_cuda_ring){0};
}

int gr_cuda_ring_next(struct gr_cuda_backend *c, struct gr_cuda_ring *r, int *slot, char **host)
{
    *slot = r->next;
    *host = r->host + (size_t)r->next * r->slot_bytes;
    r->next = (r->next + 1) % r->n;
    return CU(c, event_sync, r->copied[*slot]);
}
