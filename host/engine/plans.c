/* The plans of a session: built when a shape first occurs, kept while in use, and run on the
 * session's devices. */
#include "engine/plans.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "engine/imatrix.h"
#include "engine/lists.h"
#include "engine/observe.h"
#include "engine/offload.h"
#include "engine/session.h"
#include "engine/session_devices.h"
#include "gr/status.h"
#include "link/tp_group.h"

/* ---- memory ---- */

static void drop_plan(struct gr_session *s, struct gr_cached_plan *c)
{
    const struct gr_plan_segment *seg = c->plan.segment.data;
    if (!c->exec)
        return;
    for (size_t i = 0; i < c->plan.segment.n; i++) {
        struct gr_backend *b = s->device[seg[i].device].backend;
        if (!seg[i].exchange)
            b->api->segment_free(b, &c->exec[i]);
    }
    gr_free(c->exec);
    gr_plan_fini(&c->plan);
    *c = (struct gr_cached_plan){0};
}

void gr_plan_drop_all(struct gr_session *s)
{
    for (int i = 0; i < GR_N_PLAN; i++)
        drop_plan(s, &s->plans.plan[i]);
}

/* Allocates memory that plans share on a device; on the CPU it is host memory that other devices
 * can copy from and to. */
static void *alloc_on(struct gr_session *s, int32_t d, size_t bytes)
{
    struct gr_backend *b = s->device[d].backend;
    return d ? b->api->alloc(b, bytes) : s->pin->api->host_alloc(s->pin, bytes);
}

static void free_on(struct gr_session *s, int32_t d, void *p)
{
    struct gr_backend *b = s->device[d].backend;
    if (p && d)
        b->api->free(b, p);
    else if (p)
        s->pin->api->host_free(s->pin, p);
}

/* Enlarges a piece of memory to at least `bytes`; its contents are lost and all plans dropped. */
static int grow(struct gr_session *s, int32_t d, void **piece, uint64_t *has, uint64_t bytes,
                const char *what)
{
    if (bytes <= *has)
        return 0;
    gr_plan_drop_all(s);
    free_on(s, d, *piece);
    *has = 0;
    *piece = alloc_on(s, d, bytes);
    if (!*piece && gr_error_status() == GR_E_DEVICE)
        return GR_E_DEVICE;
    if (!*piece)
        return gr_fail(d ? GR_E_NOMEM_DEV : GR_E_NOMEM_HOST,
                       "%s%snot enough memory for %s: %.2f MiB needed; a smaller -ub takes less",
                       d ? s->device[d].name : "", d ? ": " : "", what, (double)bytes / 1048576);
    *has = bytes;
    return 0;
}

static int grow_arena(struct gr_session *s, int32_t d, uint64_t bytes)
{
    struct gr_session_device *v = &s->device[d];
    return grow(s, d, &v->memory.arena, &v->has.arena, bytes, "intermediate results");
}

static int grow_step(struct gr_session *s, uint64_t bytes)
{
    int rc = 0;
    if (bytes > s->device[0].has.step)
        gr_lists_invalidate(s);
    for (int32_t d = 0; d < s->n_device && !rc; d++) {
        struct gr_session_device *v = &s->device[d];
        rc = grow(s, d, &v->memory.step, &v->has.step, bytes, "a step");
    }
    return rc;
}

/* ---- making ---- */

static int build(struct gr_session *s, enum gr_plan_kind kind, const struct gr_step_shape *shape,
                 struct gr_plan *plan)
{
    struct gr_graph_env env = gr_offload_env(s, shape);
    switch (kind) {
    case GR_PLAN_SHIFT:
        return gr_graph_build_shift(plan, &s->env, shape);
    case GR_PLAN_COPY:
    case GR_PLAN_COPY_SWA:
        return gr_graph_build_copy(plan, &s->env, shape, kind == GR_PLAN_COPY_SWA);
    case GR_PLAN_ENCODE:
        return gr_graph_build_encode(plan, &env, shape);
    default:
        return gr_graph_build(plan, &env, shape);
    }
}

/* Allocates a plan's memory, sets its addresses and makes its segments ready, c->exec. */
static int prepare(struct gr_session *s, struct gr_cached_plan *c)
{
    struct gr_plan_memory memory[GR_MAX_DEVICE] = {{0}};
    int rc = 0;
    for (int32_t d = 0; d < s->n_device && !rc; d++)
        rc = grow_arena(s, d, (uint64_t)c->plan.arena_bytes[d]);
    for (int32_t d = 0; d < s->n_device; d++)
        memory[d] = s->device[d].memory;
    c->exec = rc ? NULL : gr_calloc(c->plan.segment.n, sizeof *c->exec);
    if (!c->exec)
        return rc ? rc : GR_E_NOMEM_HOST;
    gr_plan_bind(&c->plan, memory);
    const struct gr_plan_segment *seg = c->plan.segment.data;
    for (size_t i = 0; i < c->plan.segment.n && !rc; i++) {
        struct gr_backend *b = s->device[seg[i].device].backend;
        if (!seg[i].exchange)
            rc = b->api->segment_new(b, &seg[i].run, &c->exec[i]);
    }
    return rc;
}

static int make_plan(struct gr_session *s, struct gr_cached_plan *c, enum gr_plan_kind kind,
                     const struct gr_step_shape *shape)
{
    struct gr_cached_plan new = {.kind = kind};
    memcpy(new.adapter_scale, s->params.adapter_scale, sizeof new.adapter_scale);
    int64_t bytes = gr_step_layout(shape).bytes;
    int rc = grow_step(s, (uint64_t)bytes);
    if (!rc)
        rc = build(s, kind, shape, &new.plan);
    if (rc)
        return rc;
    rc = prepare(s, &new);
    if (rc && new.exec)
        drop_plan(s, &new);
    else if (rc)
        gr_plan_fini(&new.plan);
    else
        *c = new;
    return rc;
}

static bool same_adapters(const struct gr_session *s, const struct gr_cached_plan *c)
{
    return !memcmp(c->adapter_scale, s->params.adapter_scale, sizeof c->adapter_scale);
}

int gr_plan_for(struct gr_session *s, enum gr_plan_kind kind, const struct gr_step_shape *shape,
                struct gr_cached_plan **out)
{
    struct gr_cached_plan *oldest = &s->plans.plan[0];
    bool computes = kind == GR_PLAN_STEP || kind == GR_PLAN_ENCODE; /* not moves of cells alone */
    int rc = gr_session_uploaded(s, -1); /* the step block is filled next */
    for (int i = 0; i < GR_N_PLAN && !rc; i++) {
        struct gr_cached_plan *c = &s->plans.plan[i];
        if (c->exec && c->kind == kind && memcmp(&c->plan.shape, shape, sizeof *shape) == 0 &&
            (!computes || same_adapters(s, c))) {
            c->used = ++s->plans.n_use;
            return *out = c, 0;
        }
        if (c->used < oldest->used)
            oldest = c;
    }
    if (rc)
        return rc;
    drop_plan(s, oldest);
    s->plans.n_made++;
    rc = make_plan(s, oldest, kind, shape);
    oldest->used = rc ? 0 : ++s->plans.n_use;
    *out = oldest;
    return rc;
}

/* ---- the largest plans ---- */

struct wanted {
    enum gr_plan_kind kind;
    struct gr_step_shape shape;
};

#define N_WANTED 10

static int32_t all_cells(const struct gr_session *s, int kind)
{
    return s->cache.kv[kind] ? (int32_t)gr_kv_n_cell(s->cache.kv[kind]) : 0;
}

static struct gr_step_shape step_shape(const struct gr_session *s, int32_t n_tok)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    struct gr_step_shape shape = {.n_tok = n_tok,
                                  .n_out = GR_MIN(n_tok, (int32_t)s->params.n_seq_max),
                                  .n_pos = hp->rope.section[0] > 0 ? 3 : 1,
                                  .n_full = n_tok,
                                  .n_far = s->params.self_extend_n > 1 ? n_tok : 0,
                                  .n_seq = s->cache.rs ? 1 : 0,
                                  .one_run = n_tok > GR_ATTN_FEW};
    if (s->pool == GR_POOL_MEAN)
        shape.n_pool = shape.n_out, shape.n_out = shape.n_pool_item = n_tok;
    if (s->cache.kv[GR_CACHE_SWA] || (hp->no_cache && gr_any_window(hp)))
        shape.n_swa = n_tok;
    gr_lists_shape(s, &shape);
    return shape;
}

/* Shape of a step of the encoder. */
static struct gr_step_shape encode_shape(const struct gr_session *s, int32_t n_tok)
{
    struct gr_step_shape shape = {.n_tok = n_tok,
                                  .n_pos = 1,
                                  .n_full = n_tok,
                                  .n_swa = n_tok,
                                  .one_run = n_tok > GR_ATTN_FEW};
    gr_lists_shape(s, &shape);
    return shape;
}

/* Lists the kinds and shapes of plans to reserve memory for. Shifts and copies of more than CELLS
 * cells take more memory when they occur. */
static int find_wanted(const struct gr_session *s, struct wanted *w)
{
    enum { CELLS = 4096 };
    int32_t full = GR_MIN(all_cells(s, GR_CACHE_FULL), CELLS);
    int32_t swa = GR_MIN(all_cells(s, GR_CACHE_SWA), CELLS);
    int n = 0;
    w[n++] = (struct wanted){GR_PLAN_STEP, step_shape(s, (int32_t)s->params.n_ubatch)};
    if (s->cache.encodes)
        w[n++] = (struct wanted){GR_PLAN_ENCODE, encode_shape(s, (int32_t)s->params.n_ubatch)};
    if (s->offload.device && s->offload.from > 1) /* the largest one without offloaded weights */
        w[n++] = (struct wanted){GR_PLAN_STEP, step_shape(s, s->offload.from - 1)};
    if (s->offload.device && s->offload.from > 1 && s->cache.encodes)
        w[n++] = (struct wanted){GR_PLAN_ENCODE, encode_shape(s, s->offload.from - 1)};
    if (s->params.n_ubatch > GR_PLAN_FEW && s->cache.encodes)
        w[n++] = (struct wanted){GR_PLAN_ENCODE, encode_shape(s, GR_PLAN_FEW)};
    if (s->params.n_ubatch > GR_PLAN_FEW)
        w[n++] = (struct wanted){GR_PLAN_STEP, step_shape(s, GR_PLAN_FEW)};
    w[n++] = (struct wanted){GR_PLAN_STEP, step_shape(s, 1)};
    struct gr_step_shape shift = {.n_pos = 1, .n_delta = full, .n_delta_swa = swa}, copy = {0};
    shift.n_delta_far = s->params.self_extend_n > 1 ? full : 0;
    gr_lists_shape(s, &shift);
    gr_lists_shape(s, &copy);
    if ((full || swa) && s->rank_model->hp.rope.kind != GR_ROPE_NONE)
        w[n++] = (struct wanted){GR_PLAN_SHIFT, shift};
    copy.n_copy = full;
    if (full)
        w[n++] = (struct wanted){GR_PLAN_COPY, copy};
    copy.n_copy = swa;
    if (swa)
        w[n++] = (struct wanted){GR_PLAN_COPY_SWA, copy};
    return n;
}

static int measure_one(struct gr_session *s, struct gr_backend *const *backend,
                       const struct wanted *w, struct gr_memory_need need[GR_MAX_DEVICE])
{
    struct gr_plan plan;
    const struct gr_device_opt opt = gr_session_device_opt(s);
    struct gr_step_shape most = w->shape; /* with sampling, which a step may have as well */
    int rc = build(s, w->kind, &w->shape, &plan);
    if (rc)
        return rc;
    most.n_sample = most.n_out;
    const struct gr_plan_segment *seg = plan.segment.data;
    for (size_t i = 0; i < plan.segment.n; i++) {
        struct gr_backend *b = backend[seg[i].device];
        struct gr_memory_need *d = &need[seg[i].device];
        if (!seg[i].exchange)
            d->scratch = GR_MAX(d->scratch, b->api->segment_scratch(b, &seg[i].run, &opt));
    }
    for (int32_t d = 0; d < s->n_device; d++) {
        need[d].arena = GR_MAX(need[d].arena, (uint64_t)plan.arena_bytes[d]);
        need[d].step = GR_MAX(need[d].step, (uint64_t)gr_step_layout(&most).bytes);
    }
    gr_plan_fini(&plan);
    return 0;
}

int gr_plan_measure(struct gr_session *s, struct gr_backend *const *backend,
                    struct gr_memory_need need[GR_MAX_DEVICE])
{
    struct wanted w[N_WANTED];
    int n = find_wanted(s, w), rc = 0;
    for (int i = 0; i < n && !rc; i++)
        rc = measure_one(s, backend, &w[i], need);
    int32_t d = s->offload.device;
    if (!rc && d) {
        size_t bytes = backend[d]->api->offload_bytes(backend[d]);
        need[d].scratch += bytes, need[0].scratch += bytes;
    }
    return rc;
}

/* Refuses offloading, before anything is allocated, when its device lacks the memory. */
static int check_offload(const struct gr_session *s, const struct gr_memory_need *need)
{
    int32_t d = s->offload.device;
    struct gr_device_info info;
    if (!d)
        return 0;
    const struct gr_device_ref *f = &s->rank_model->devices.found[d - 1];
    uint64_t bytes = gr_memory_need_work(&need[d]);
    int rc = f->kind->info(f->index, &info);
    if (!rc && bytes > info.free_bytes)
        rc = gr_fail(GR_E_NOMEM_DEV, "%s: op offload needs %.1f MiB, %.1f MiB free", info.name,
                     (double)bytes / (1 << 20), (double)info.free_bytes / (1 << 20));
    return rc;
}

/* Allocates the buffers for offloading weights. */
static int reserve_offload(struct gr_session *s)
{
    struct gr_backend *b = s->device[s->offload.device].backend;
    return s->offload.device ? b->api->offload(b, NULL, false, NULL, true) : 0;
}

static int reserve(struct gr_session *s)
{
    struct gr_backend *backend[GR_MAX_DEVICE] = {0};
    struct gr_memory_need need[GR_MAX_DEVICE] = {{0}};
    struct wanted w[N_WANTED];
    struct gr_cached_plan *c;
    int n = find_wanted(s, w);
    for (int32_t d = 0; d < s->n_device; d++)
        backend[d] = s->device[d].backend;
    int rc = gr_plan_measure(s, backend, need);
    if (!rc)
        rc = check_offload(s, need);
    for (int32_t d = 0; d < s->n_device && !rc; d++)
        rc = grow_arena(s, d, need[d].arena);
    if (!rc)
        rc = grow_step(s, need[0].step);
    if (!rc)
        rc = reserve_offload(s);
    for (int i = n; i-- > 0 && !rc;) /* the single token last: it is the one used next */
        rc = gr_plan_for(s, w[i].kind, &w[i].shape, &c);
    for (int32_t d = 0; d < s->n_device; d++)
        s->device[d].has.scratch = need[d].scratch;
    return rc;
}

int gr_plan_reserve(struct gr_session *s)
{
    int rc = reserve(s);
    bool can_do_without = rc == GR_E_NOMEM_DEV || rc == GR_E_NOMEM_HOST || rc == GR_E_UNSUPPORTED;
    if (!can_do_without || !s->offload.device)
        return rc;
    gr_log(GR_LOG_INFO, "%s; layers on the CPU compute prompts there", gr_error());
    struct gr_session_device *v = &s->device[s->offload.device];
    gr_plan_drop_all(s);
    v->backend->api->offload_end(v->backend);
    if (v->memory.arena)
        free_on(s, s->offload.device, v->memory.arena);
    v->memory.arena = NULL, v->has.arena = 0;
    gr_offload_end(s);
    return reserve(s);
}

/* ---- running ---- */

/* Uploads the step block to a device before its first segment of the plan. The upload is queued
 * after the device's work for the previous step, so nobody has to wait. */
static int send_step(struct gr_session *s, const struct gr_cached_plan *c, int32_t device)
{
    struct gr_session_device *v = &s->device[device];
    int64_t at = gr_step_lists(&c->plan.layout);
    gr_session_mark_queued(v);
    int rc = v->backend->api->upload(v->backend, (char *)v->memory.step + at,
                                     (const char *)s->device[0].memory.step + at,
                                     (size_t)(c->plan.layout.bytes - at));
    return rc ? rc : gr_lists_upload(s, device);
}

/* Copies bytes from a device to the CPU. They have arrived once a call with `last` returns. */
static int collect(struct gr_session *s, int32_t device, void *to, const void *from, size_t bytes,
                   bool last)
{
    struct gr_session_device *v = &s->device[device];
    v->busy = v->pending = !last;
    return last ? v->backend->api->download(v->backend, to, from, bytes)
                : v->backend->api->collect(v->backend, to, from, bytes);
}

/* Performs move i of a segment. Before the CPU's arena is written, uploads that read it must be
 * done; of several moves in a row from a device only the last one is waited for. */
static int move(struct gr_session *s, const struct gr_plan *p, const struct gr_plan_segment *seg,
                int32_t i)
{
    const struct gr_value *value = p->value.data;
    const struct gr_move *m = (const struct gr_move *)p->move.data + seg->move + i;
    int32_t src = value[m->src].device, dst = value[m->dst].device;
    void *from = gr_session_at(s, p, m->src), *to = gr_session_at(s, p, m->dst);
    size_t bytes = (size_t)value[m->src].bytes;
    if (dst) {
        gr_session_mark_queued(&s->device[dst]);
        return s->device[dst].backend->api->upload(s->device[dst].backend, to, from, bytes);
    }
    bool last = i + 1 == seg->n_move || value[m[1].src].device != src;
    int rc = gr_session_uploaded(s, src);
    return rc ? rc : collect(s, src, to, from, bytes, last);
}

static int run_segment(struct gr_session *s, struct gr_cached_plan *c, size_t i)
{
    const struct gr_plan_segment *seg = (const struct gr_plan_segment *)c->plan.segment.data + i;
    const struct gr_node *node = c->plan.node.data;
    struct gr_session_device *v = &s->device[seg->device];
    bool first = seg->device && gr_plan_segment_before(&c->plan, (int32_t)i) < 0;
    int rc = gr_offload_request(s, &c->plan, (int32_t)i);
    if (!rc && first)
        rc = send_step(s, c, seg->device);
    for (int32_t k = 0; k < seg->n_move && !rc; k++)
        rc = move(s, &c->plan, seg, k);
    if (!rc && seg->device == 0)
        rc = gr_session_uploaded(s, -1);
    if (rc)
        return rc;
    v->busy = seg->device > 0;
    if (seg->n_offload && (rc = v->backend->api->offload_wait(v->backend)))
        return rc;
    if (seg->exchange && seg->device)
        s->receiving = true;
    if (seg->exchange)
        return gr_tp_group_exchange(s->rank_model->tp_group, v->backend,
                                    &node[seg->node].a.exchange, seg->device);
    gr_tap_fn *tap = gr_observe_segment(s, seg->node, (int32_t)c->plan.node.n);
    rc = v->backend->api->segment_run(v->backend, c->exec[i], tap, s);
    return rc ? rc : gr_imatrix_collector_status(&s->observers.imatrix);
}

static int fetch_result(struct gr_session *s, struct gr_cached_plan *c, void *out)
{
    const struct gr_ten *r = &c->plan.result;
    const struct gr_value *value = gr_plan_find(&c->plan, r);
    struct gr_session_device *v = &s->device[value->device];
    int rc = gr_session_wait_received(s);
    if (rc)
        return rc;
    v->busy = v->pending = false;
    return v->backend->api->download(v->backend, out, r->data, (size_t)(r->rows * r->row_bytes));
}

/* Has a plan of one segment write its result to `out` (NULL: to the arena); false when it has to be
 * copied there. */
static bool move_result(struct gr_session *s, struct gr_cached_plan *c, void *out)
{
    const struct gr_ten *r = &c->plan.result;
    const struct gr_value *value = gr_plan_find(&c->plan, r);
    const struct gr_plan_segment *seg = c->plan.segment.data;
    struct gr_backend *b = s->device[0].backend;
    if (!value || value->device || c->plan.segment.n != 1 || seg->exchange ||
        !b->api->segment_move || r->offset || value->bytes != GR_PAD(r->rows * r->row_bytes, 256))
        return false;
    if (out != c->result)
        b->api->segment_move(b, c->exec[0], r->value,
                             out ? out : gr_session_at(s, &c->plan, r->value));
    c->result = out;
    return true;
}

int gr_plan_run(struct gr_session *s, struct gr_cached_plan *c, void *out)
{
    int rc = gr_offload_request(s, &c->plan, -1);
    bool moved = move_result(s, c, out);
    c->n_run++;
    for (size_t i = 0; i < c->plan.segment.n && !rc; i++)
        rc = run_segment(s, c, i);
    if (!rc && out && !moved && gr_ten_is(&c->plan.result))
        rc = fetch_result(s, c, out);
    if (rc && c->plan.offload.n) /* uploads that no segment has waited for may still be running */
        s->device[s->offload.device].busy = true;
    if (rc)
        (void)gr_session_sync(s);
    return rc;
}

/* ---- printing ---- */

/* Returns the plan used longest ago of those that have run since they were printed, or NULL. */
static struct gr_cached_plan *next_unprinted(struct gr_session *s)
{
    struct gr_cached_plan *next = NULL;
    for (struct gr_cached_plan *c = s->plans.plan; c < s->plans.plan + GR_N_PLAN; c++)
        if (c->n_run && (!next || c->used < next->used))
            next = c;
    return next;
}

void gr_session_plans(struct gr_session *s, FILE *out)
{
    static const char *const kind[] = {[GR_PLAN_STEP] = "a micro-batch",
                                       [GR_PLAN_ENCODE] = "a micro-batch of the encoder",
                                       [GR_PLAN_SHIFT] = "a K-shift",
                                       [GR_PLAN_COPY] = "a copy of cells",
                                       [GR_PLAN_COPY_SWA] = "a copy of cells with a window"};
    const char *device[GR_MAX_DEVICE] = {NULL};
    for (int32_t d = 0; d < s->n_device; d++)
        device[d] = s->device[d].name;
    for (struct gr_cached_plan *c; (c = next_unprinted(s)); c->n_run = 0) {
        fprintf(out, "plan of %s, run %" PRIu64 " time%s: ", kind[c->kind], c->n_run,
                c->n_run == 1 ? "" : "s");
        gr_plan_print(&c->plan, device, out);
    }
}
