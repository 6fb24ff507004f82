/* The clock of the device around every node. An event stands between each two nodes, so what is
 * measured includes the launch's own time: little next to kernels that are worth measuring. */
#include "base/alloc.h"
#include "cuda/runtime.h"
#include "gr/status.h"

int gr_cuda_events_init(struct gr_cuda_backend *c, size_t n)
{
    while (c->event.n < n) {
        cu_event *event = gr_vec_push(&c->event, sizeof *event);
        if (!event)
            return GR_E_NOMEM_HOST;
        int rc = CU(c, event_create, event, 0);
        if (rc)
            return c->event.n--, rc;
    }
    return 0;
}

void gr_cuda_events_fini(struct gr_cuda_backend *c)
{
    const cu_event *event = c->event.data;
    for (size_t i = 0; i < c->event.n; i++)
        (void)c->cu->event_destroy(event[i]);
    gr_vec_fini(&c->event);
}

static int launch_timed(struct gr_cuda_backend *c, const struct gr_cuda_exec *e)
{
    const cu_event *event = c->event.data;
    int rc = CU(c, event_record, event[0], c->stream);
    for (int i = 0; i < e->n_node && !rc; i++) {
        rc = gr_cuda_launch_range(c, c->stream, &e->notes, (size_t)e->first[i],
                                  (size_t)e->first[i + 1]);
        if (!rc)
            rc = CU(c, event_record, event[i + 1], c->stream);
    }
    return rc ? rc : CU(c, event_sync, event[e->n_node]);
}

/* Reads the nanoseconds between two events. */
static int between(struct gr_cuda_backend *c, cu_event from, cu_event to, int64_t *ns)
{
    float ms = 0;
    int rc = CU(c, event_time, &ms, from, to);
    *ns = (int64_t)((double)ms * 1e6);
    return rc;
}

/* Adds the bytes that a node moves; what attention sees is known on the device only. */
static int bytes_of(struct gr_cuda_backend *c, const struct gr_node *n, int64_t *bytes)
{
    const struct gr_ten *span = &n->a.attn.span;
    if (n->op != GR_OP_ATTN)
        return *bytes += gr_node_bytes(n), 0;
    size_t size = (size_t)(span->rows * span->row_bytes);
    int32_t *host = gr_calloc(size, 1);
    int rc = host ? CU(c, copy_out, host, (cu_pointer)(uintptr_t)span->data, size, c->stream)
                  : GR_E_NOMEM_HOST;
    if (!rc)
        rc = CU(c, stream_sync, c->stream);
    if (!rc)
        *bytes += gr_attn_bytes(n, host);
    gr_free(host);
    return rc;
}

/* The name that the time of launches [lo, hi) goes by: a library's product, or the last kernel. */
static const char *name_of(const struct gr_cuda_launch *launch, int32_t lo, int32_t hi)
{
    for (int32_t i = lo; i < hi; i++)
        if (launch[i].plan)
            return "cublasLtMatmul";
    return launch[hi - 1].kernel->name;
}

static int tell(struct gr_cuda_backend *c, const struct gr_cuda_exec *e, int i)
{
    const struct gr_cuda_launch *launch = e->notes.launch.data;
    const struct gr_node *n = &e->node[i];
    const cu_event *event = c->event.data;
    struct gr_op_time t = {.op = n->op, .layer = n->layer};
    int rc = 0;
    if (e->first[i + 1] > e->first[i]) {
        t.kernel = name_of(launch, e->first[i], e->first[i + 1]);
        rc = bytes_of(c, n, &t.bytes);
        for (int k = i + 1; k < e->n_node && e->first[k + 1] == e->first[k] && !rc; k++)
            rc = bytes_of(c, &e->node[k], &t.bytes);
    }
    if (!rc)
        rc = between(c, event[0], event[i], &t.start_ns);
    if (!rc)
        rc = between(c, event[i], event[i + 1], &t.ns);
    if (!rc)
        c->time_fn(&t, c->time_user);
    return rc;
}

int gr_cuda_run_timed(struct gr_cuda_backend *c, const struct gr_cuda_exec *e)
{
    int rc = launch_timed(c, e);
    for (int i = 0; i < e->n_node && !rc; i++)
        rc = tell(c, e, i);
    return rc;
}
