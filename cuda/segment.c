/* Segments: noted launches, and the graph that replays them. */
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "cuda/nvtx.h"
#include "cuda/runtime.h"
#include "gr/status.h"

/* ---- making ---- */

size_t gr_cuda_segment_scratch(struct gr_backend *b, const struct gr_segment *s,
                               const struct gr_device_opt *opt)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct gr_cuda_need need = {0, 0};
    const struct gr_device_opt own = c->opt;
    c->opt = opt ? *opt : own;
    if (gr_cuda_enter(c, &v) == 0)
        (void)gr_cuda_measure(c, s->node, s->n_node, &need);
    c->opt = own;
    return need.derived + need.node;
}

static void drop_graph(struct gr_cuda_backend *c, struct gr_cuda_exec *e)
{
    if (e->graph)
        (void)c->cu->graph_exec_destroy(e->graph);
    e->graph = NULL;
    e->ran = false;
}

/* Notes a segment unless it is noted for the present scratch memory. `tapped`: each node has
 * launches of its own, as a tap shows tensors that a node behind might have changed. */
static int ready(struct gr_cuda_backend *c, struct gr_cuda_exec *e, bool tapped)
{
    size_t bytes = e->need.derived + e->need.node;
    bool alone = tapped || c->opt.no_fuse;
    int rc = bytes > c->scratch_bytes ? gr_cuda_scratch_grow(c, bytes) : 0;
    if (rc || (e->noted == c->scratch_turn && e->alone == alone))
        return rc;
    drop_graph(c, e);
    e->alone = alone;
    rc = gr_cuda_note(c, e);
    e->noted = rc ? 0 : c->scratch_turn;
    return rc;
}

static int copy_segment(struct gr_cuda_exec *e, const struct gr_segment *s)
{
    size_t n_node = (size_t)s->n_node, n_tap = (size_t)s->n_tap;
    e->node = gr_calloc(n_node, sizeof *e->node);
    e->tap = gr_calloc(n_tap, sizeof *e->tap);
    e->first = gr_calloc(n_node + 1, sizeof *e->first);
    if (!e->node || !e->tap || !e->first)
        return GR_E_NOMEM_HOST;
    if (n_node)
        memcpy(e->node, s->node, n_node * sizeof *e->node);
    if (n_tap)
        memcpy(e->tap, s->tap, n_tap * sizeof *e->tap);
    e->n_node = s->n_node, e->n_tap = s->n_tap;
    return 0;
}

int gr_cuda_segment_new(struct gr_backend *b, const struct gr_segment *s, void **exec)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct gr_cuda_exec *e = *exec = NULL;
    int rc = gr_cuda_enter(c, &v);
    if (rc)
        return rc;
    *exec = e = gr_calloc(1, sizeof *e);
    rc = e ? copy_segment(e, s) : GR_E_NOMEM_HOST;
    if (!rc)
        rc = gr_cuda_measure(c, e->node, e->n_node, &e->need);
    if (!rc)
        rc = ready(c, e, false);
    if (rc)
        gr_cuda_segment_free(b, exec);
    return rc;
}

void gr_cuda_segment_free(struct gr_backend *b, void **exec)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct gr_cuda_exec *e = *exec;
    if (!e)
        return;
    gr_cuda_settle(c, &v);
    drop_graph(c, e);
    gr_cuda_notes_fini(&e->notes);
    gr_free(e->node);
    gr_free(e->tap);
    gr_free(e->first);
    gr_free(e);
    *exec = NULL;
}

/* ---- running ---- */

static int launch_nodes(struct gr_cuda_backend *c, const struct gr_cuda_exec *e, int lo, int hi)
{
    return gr_cuda_launch_range(c, c->stream, &e->notes, (size_t)e->first[lo],
                                (size_t)e->first[hi]);
}

/* The end of node lo's layer; nodes of no layer may stand in it. */
static int layer_end(const struct gr_cuda_exec *e, int lo)
{
    int hi = lo + 1, layer = e->node[lo].layer;
    for (int i = hi; i < e->n_node && (e->node[i].layer < 0 || e->node[i].layer == layer); i++)
        if (e->node[i].layer == layer)
            hi = i + 1;
    return hi;
}

/* The end of the attention (or what stands in its place) of the layer [lo, hi): behind the first
 * matrix product after the tokens were mixed. lo: the layer has none. */
static int attention_end(const struct gr_cuda_exec *e, int lo, int hi)
{
    int end = lo;
    for (int i = lo; i < hi; i++)
        switch (e->node[i].op) {
        case GR_OP_ATTN:
        case GR_OP_SSM_CONV:
        case GR_OP_SSM_SCAN:
        case GR_OP_DELTA_RULE:
        case GR_OP_LINEAR_ATTN:
            end = -1;
            break;
        case GR_OP_MATMUL:
            end = end < 0 ? i + 1 : end;
            break;
        default:
            break;
        }
    return end < 0 ? hi : end;
}

static int launch_part(struct gr_cuda_backend *c, const struct gr_cuda_exec *e, enum gr_range range,
                       int lo, int hi)
{
    if (lo == hi)
        return 0;
    gr_nvtx_begin(range, (uint64_t)e->node[lo].layer);
    int rc = launch_nodes(c, e, lo, hi);
    gr_nvtx_end();
    return rc;
}

/* Queues every launch; layers are shown as ranges when that is wanted. */
static int launch_all(struct gr_cuda_backend *c, const struct gr_cuda_exec *e)
{
    if (c->opt.nvtx < 2)
        return launch_nodes(c, e, 0, e->n_node);
    int rc = 0;
    for (int lo = 0, hi; lo < e->n_node && !rc; lo = hi) {
        hi = layer_end(e, lo);
        if (e->node[lo].layer < 0) {
            rc = launch_nodes(c, e, lo, hi);
            continue;
        }
        int mid = attention_end(e, lo, hi);
        rc = launch_part(c, e, GR_RANGE_ATTN, lo, mid);
        if (!rc)
            rc = launch_part(c, e, GR_RANGE_FFN, mid, hi);
    }
    return rc;
}

static int capture(struct gr_cuda_backend *c, struct gr_cuda_exec *e)
{
    cu_graph graph = NULL;
    int rc = CU(c, capture_begin, c->stream, CU_CAPTURE_THREAD_LOCAL);
    if (rc)
        return rc;
    rc = launch_all(c, e);
    if (rc) /* ends what was begun; the first error is the one to tell */
        (void)c->cu->capture_end(c->stream, &graph);
    else
        rc = CU(c, capture_end, c->stream, &graph);
    if (!rc)
        rc = CU(c, graph_instantiate, &e->graph, graph, 0);
    if (graph)
        (void)c->cu->graph_destroy(graph);
    return rc;
}

/* Runs a segment. The first run launches one by one, as segments are often run just once; the
 * second makes the graph. When there can be none, launches go on one by one: a lost device says so
 * again. */
static int run_whole(struct gr_cuda_backend *c, struct gr_cuda_exec *e)
{
    if (e->ran && !e->graph && !e->no_graph && !c->opt.no_graphs) {
        if (c->opt.nvtx)
            gr_nvtx_begin(GR_RANGE_GRAPH, (uint64_t)e->n_node);
        int rc = capture(c, e);
        if (rc == GR_E_DEVICE && !c->no_early) {
            gr_log(GR_LOG_WARN, "%s; launches wait for the one in front from now on", gr_error());
            c->no_early = true;
            rc = capture(c, e);
        }
        if (c->opt.nvtx)
            gr_nvtx_end();
        e->no_graph = rc == GR_E_NOMEM_DEV || rc == GR_E_DEVICE;
        if (e->no_graph)
            gr_log(GR_LOG_WARN, "%s; these steps are launched kernel by kernel", gr_error());
        else if (rc)
            return rc;
    }
    e->ran = true;
    return e->graph ? CU(c, graph_launch, e->graph, c->stream) : launch_all(c, e);
}

/* ---- taps ---- */

static int cancelled(const struct gr_cuda_backend *c)
{
    if (c->cancel && atomic_load_explicit(c->cancel, memory_order_relaxed))
        return gr_fail(GR_E_CANCELLED, "cancelled");
    return 0;
}

/* Copies a tap's tensor, gaps between its rows included, to the host and passes it to fn. */
static int tell_tap(struct gr_cuda_backend *c, const struct gr_tap *tap, gr_tap_fn *fn, void *user)
{
    struct gr_ten t = tap->ten;
    size_t rows = (size_t)(t.batch * t.rows), row = gr_row_bytes(t.dtype, (uint64_t)t.cols);
    size_t bytes = rows ? (rows - 1) * (size_t)t.row_bytes + row : 0;
    void *host = gr_calloc(bytes, 1);
    if (!host)
        return GR_E_NOMEM_HOST;
    int rc = bytes ? CU(c, copy_out, host, (cu_pointer)(uintptr_t)t.data, bytes, c->stream) : 0;
    if (!rc)
        rc = CU(c, stream_sync, c->stream);
    t.data = host;
    if (!rc)
        fn(tap, &t, user);
    gr_free(host);
    return rc;
}

static int run_tapped(struct gr_cuda_backend *c, struct gr_cuda_exec *e, gr_tap_fn *fn, void *user)
{
    size_t done = 0;
    int rc = 0;
    for (int i = 0; i < e->n_tap && !rc; i++) {
        size_t to = (size_t)e->first[e->tap[i].node + 1];
        rc = gr_cuda_launch_range(c, c->stream, &e->notes, done, to);
        done = to;
        if (!rc)
            rc = tell_tap(c, &e->tap[i], fn, user);
        if (!rc)
            rc = cancelled(c);
    }
    return rc ? rc : gr_cuda_launch_range(c, c->stream, &e->notes, done, e->notes.launch.n);
}

/* Checks that every counter is zero again behind a segment; waits for it. */
static int check_counters(struct gr_cuda_backend *c, const struct gr_cuda_exec *e)
{
    uint32_t count[GR_LAUNCH_COUNTERS];
    const struct gr_node *first = e->node, *last = e->node + e->n_node - 1;
    int rc = CU(c, copy_out, count, c->counters, sizeof count, c->stream);
    if (!rc)
        rc = CU(c, stream_sync, c->stream);
    for (int i = 0; i < GR_LAUNCH_COUNTERS && !rc; i++)
        if (count[i])
            rc = gr_fail(GR_E_INTERNAL,
                         "%s: expected counters that are zero behind %s (layer %d) to %s (layer "
                         "%d), found %u in number %d: a kernel has left it",
                         c->name, gr_op_info(first->op)->name, (int)first->layer,
                         gr_op_info(last->op)->name, (int)last->layer, count[i], i);
    return rc;
}

int gr_cuda_segment_run(struct gr_backend *b, void *exec, gr_tap_fn *tap_fn, void *user)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct gr_cuda_exec *e = exec;
    int rc = gr_cuda_enter(c, &v);
    if (rc || (rc = cancelled(c)))
        return rc;
    rc = ready(c, e, tap_fn != NULL);
    if (!rc && c->time_fn)
        rc = gr_cuda_events_init(c, (size_t)e->n_node + 1);
    if (rc) /* nothing was queued yet */
        return rc;
    rc = tap_fn       ? run_tapped(c, e, tap_fn, user)
         : c->time_fn ? gr_cuda_run_timed(c, e)
                      : run_whole(c, e);
    if (!rc && c->opt.check_counters && e->n_node)
        rc = check_counters(c, e);
    return gr_cuda_leave(c, rc);
}
