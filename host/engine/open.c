/* Opening and closing a session: parameters, the caches' shapes, constants, devices, buffers. */
#include "engine/open.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/rope.h"
#include "base/checked.h"
#include "base/cpus.h"
#include "base/log.h"
#include "cpu/cpu.h"
#include "engine/memory.h"
#include "engine/observe.h"
#include "engine/offload.h"
#include "engine/pending.h"
#include "engine/plans.h"
#include "engine/session.h"
#include "engine/session_devices.h"
#include "engine/times.h"
#include "engine/vectors.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "link/tp_group.h"
#include "model/shard.h"
#include "session_params.h"

static const struct gr_session_param params_list[] = GR_SESSION_PARAM_ROWS;

/* session_params.h lists every field of struct gr_session_params in its order. */
#define C_TYPE_U32(name) uint32_t name
#define C_TYPE_I32(name) int32_t name
#define C_TYPE_BOOL(name) bool name
#define C_TYPE_F32(name) float name
#define C_TYPE_ENUM(name) enum gr_nvtx name
#define C_TYPE_TYPE(name) const char *name
#define C_TYPE_SCALES(name) float name[GR_MAX_ADAPTER]
struct listed {
#define FIELD(X, Y, KIND, name, ...) C_TYPE_##KIND(name);
    GR_SESSION_PARAMS(FIELD, , )
#undef FIELD
};
#define SAME(X, Y, KIND, name, ...)                                                                \
    _Static_assert(offsetof(struct listed, name) == offsetof(struct gr_session_params, name),      \
                   "session_params.h lacks a field before " #name);
GR_SESSION_PARAMS(SAME, , )
#undef SAME
_Static_assert(sizeof(struct listed) == sizeof(struct gr_session_params),
               "session_params.h lacks the last field");

struct gr_session_params gr_session_params_default(void)
{
    struct gr_session_params p = {0};
    for (size_t i = 0; i < GR_COUNT(params_list); i++)
        gr_session_param_set(&p, &params_list[i], params_list[i].def);
    return p;
}

/* Refuses numbers out of the range of their parameter, and infinite ones. */
static int check_range(const struct gr_session_params *p, const struct gr_session_param *q)
{
    int n = 1;
    for (int i = 0; i < n; i++) {
        double value = gr_session_param_get(p, q, i, &n);
        if (!(value < q->lo || value > q->hi))
            continue;
        if (q->kind == GR_PARAM_SCALES)
            return gr_fail(GR_E_INVALID, "%s %d: a finite number expected, %g found", q->name, i,
                           value);
        if (q->kind == GR_PARAM_F32)
            return gr_fail(GR_E_INVALID, "%s: a number from %g on expected, %g found", q->name,
                           q->lo, value);
        return gr_fail(GR_E_INVALID, "%s: %.0f to %.0f expected, %.0f found", q->name, q->lo, q->hi,
                       value);
    }
    return 0;
}

void gr_session_fill_adapters(const struct gr_model *m, float scale[GR_MAX_ADAPTER])
{
    for (int32_t i = 0; i < GR_MAX_ADAPTER; i++) {
        if (i >= m->n_lora)
            scale[i] = 0;
        else if (isnan(scale[i]))
            scale[i] = m->lora_file[i].scale;
    }
}

/* Number of processors for this process: those of a machine divide its processors, unless the
 * launcher has bound each to its own. */
static int32_t own_processors(const struct gr_model *m)
{
    int32_t n = gr_cpu_processors(&m->cpu.decode);
    if (!m->world)
        return n;
    return gr_cpus_bound() ? n : GR_MAX(1, n / m->world->ranks[m->world->rank].n_local);
}

static int32_t most_ctx(const struct gr_hparams *hp)
{
    return hp->attn.n_ctx_dense ? GR_MIN(hp->n_ctx_train, hp->attn.n_ctx_dense) : hp->n_ctx_train;
}

/* Refuses contexts for which the model's attention would be sparse, which is not supported: with up
 * to n_ctx_dense tokens it is dense. */
static int check_dense(const struct gr_hparams *hp, const struct gr_session_params *p)
{
    uint32_t most = (uint32_t)hp->attn.n_ctx_dense;
    if (most == 0 || gr_memory_ctx_seq(p) <= most)
        return 0;
    return gr_fail(
        GR_E_UNSUPPORTED,
        "context of %u tokens: beyond %u the model chooses what a token sees, which this "
        "version cannot compute; a smaller --ctx-size",
        gr_memory_ctx_seq(p), most);
}

/* Settles what decides by the number of tokens where or how they are computed. */
static int fill_deterministic(struct gr_session_params *p)
{
    if (!p->deterministic)
        return 0;
    if (p->offload_from > 0)
        return gr_fail(GR_E_INVALID, "deterministic: not with op offload, which computes steps of "
                                     "few and of many tokens on different devices");
    if (p->matmul == GR_MATMUL_CUBLAS)
        return gr_fail(GR_E_INVALID, "deterministic: not with products by cuBLAS, whose sums "
                                     "depend on the number of tokens");
    p->offload_from = -1, p->matmul = GR_MATMUL_OWN;
    return 0;
}

int gr_session_fill(const struct gr_model *model, struct gr_session_params *p)
{
    if (model->vocab_only)
        return gr_fail(GR_E_INVALID, "the model was opened for its vocabulary only");
    if (p->n_ctx == 0)
        p->n_ctx = (uint32_t)most_ctx(&model->hp);
    int rc = 0;
    for (size_t i = 0; i < GR_COUNT(params_list) && !rc; i++)
        rc = check_range(p, &params_list[i]);
    if (!rc)
        rc = fill_deterministic(p);
    if (rc)
        return rc;
    p->n_ctx = gr_memory_ctx_seq(p) * (p->kv_unified ? 1 : p->n_seq_max);
    p->n_batch = GR_MIN(p->n_batch, p->n_ctx);
    p->n_ubatch = GR_MIN(p->n_ubatch, p->n_batch);
    rc = gr_vectors_fill(model, p);
    if (rc)
        return rc;
    p->n_threads = p->n_threads > 0 ? p->n_threads : own_processors(model);
    p->n_threads_batch = p->n_threads_batch > 0 ? p->n_threads_batch : p->n_threads;
    gr_session_fill_adapters(model, p->adapter_scale);
    return check_dense(&model->hp, p);
}

/* Makes the tensors of the caches, without memory. */
static int plan_cache(struct gr_session *s)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    size_t n = (size_t)hp->n_layer;
    int rc = gr_memory_plan(&s->memory, hp, &s->params);
    if (rc)
        return rc;
    s->tensors = gr_calloc(n * GR_N_CACHE_TENSOR, sizeof *s->tensors);
    if (!s->tensors)
        return GR_E_NOMEM_HOST;
    for (size_t i = 0; i < n * GR_N_CACHE_TENSOR; i++) {
        int32_t of = hp->attn.kv_of[i % n];
        size_t il = of >= 0 && of < (int32_t)(i % n) ? (size_t)of : i % n;
        gr_memory_tensor(&s->memory, hp, (int)il, (enum gr_cache_tensor)(i / n), &s->tensors[i]);
    }
    return gr_cache_init(&s->cache, &s->memory.cache);
}

/* Weight with the RoPE frequency divisors: the model's own, or LongRoPE's short or long ones for
 * contexts up to or beyond the originally trained length, regardless of yarn_orig_ctx. */
static enum gr_slot rope_factors(const struct gr_session *s)
{
    bool is_long = s->memory.n_ctx_seq > (uint32_t)s->rank_model->hp.rope.n_ctx_orig;
    return gr_ten_is(&s->rank_model->weight[GR_W_ROPE_FREQS]) ? GR_W_ROPE_FREQS
           : is_long                                          ? GR_W_ROPE_LONG
                                                              : GR_W_ROPE_SHORT;
}

const char *gr_rope_factors_name(const struct gr_session *s)
{
    enum gr_slot slot = rope_factors(s);
    if (!gr_ten_is(&s->rank_model->weight[slot]))
        return "none";
    return slot == GR_W_ROPE_LONG ? "long" : slot == GR_W_ROPE_SHORT ? "short" : "the model's";
}

/* A tensor of one row within the constants, at a byte offset. */
static struct gr_ten constant(struct gr_session *s, size_t offset, int64_t n, uint32_t dtype)
{
    return (struct gr_ten){.data = (char *)s->device[0].memory.constants + offset,
                           .batch = 1,
                           .rows = 1,
                           .cols = n,
                           .row_bytes = (int64_t)gr_row_bytes(dtype, (uint64_t)n),
                           .offset = (int64_t)offset,
                           .value = GR_VALUE_CONST,
                           .dtype = dtype};
}

/* T5's bucket of a distance d: half of the buckets for either side, or all for the past. The first
 * half of these have one distance each, the others grow logarithmically up to
 * GR_REL_MAX_DISTANCE. */
static int32_t bucket_of(int32_t d, int32_t n_bucket, bool past)
{
    int32_t n = past ? n_bucket : n_bucket / 2, exact = n / 2;
    int32_t away = past ? GR_MAX(-d, 0) : abs(d), side = d > 0 && !past ? n : 0;
    if (away < exact || exact >= GR_REL_MAX_DISTANCE)
        return side + GR_MIN(away, n - 1);
    double wide = (double)(logf((float)away / (float)exact) * (float)(n - exact));
    int32_t at = (int32_t)floor(exact + wide / log((double)GR_REL_MAX_DISTANCE / exact));
    return side + GR_MIN(at, n - 1);
}

static int make_buckets(struct gr_session *s)
{
    enum { N = 2 * GR_REL_MAX_DISTANCE + 1 };
    struct gr_session_device *cpu = &s->device[0];
    cpu->memory.constants = cpu->backend->api->alloc(cpu->backend, 2 * N * sizeof(int32_t));
    if (!cpu->memory.constants)
        return GR_E_NOMEM_HOST;
    cpu->has.constants = 2 * N * sizeof(int32_t);
    int32_t *rows = cpu->memory.constants;
    for (int past = 0; past < 2; past++) {
        s->env.rel_rows[past] = constant(s, (size_t)past * N * sizeof *rows, N, GR_I32);
        for (int32_t i = 0; i < N; i++)
            rows[past * N + i] =
                bucket_of(i - GR_REL_MAX_DISTANCE, s->rank_model->hp.attn.n_bucket, past);
    }
    return 0;
}

/* Makes the constants: RoPE frequencies of full and of windowed layers and the sections of M-RoPE;
 * or the buckets of relative positions. */
static int make_constants(struct gr_session *s)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    struct gr_session_device *cpu = &s->device[0];
    struct gr_rope_opt o;
    if (hp->attn.n_bucket > 0)
        return make_buckets(s);
    if (hp->rope.kind == GR_ROPE_NONE)
        return 0;
    gr_rope_resolve(&o, hp, &s->params);
    const float *factors = s->rank_model->weight[rope_factors(s)].data; /* or NULL */
    size_t n = (size_t)hp->rope.n_rot / 2, n_swa = (size_t)hp->rope.n_rot_swa / 2;
    size_t bytes = GR_PAD(GR_MAX(n, n_swa) * 8, 256);
    cpu->memory.constants = cpu->backend->api->alloc(cpu->backend, 3 * bytes);
    if (!cpu->memory.constants)
        return GR_E_NOMEM_HOST;
    cpu->has.constants = 3 * bytes;
    for (int swa = 0; swa < 2; swa++) {
        struct gr_rope_freqs *f = &s->env.rope[swa];
        f->freq = constant(s, (size_t)swa * bytes, (int64_t)(swa ? n_swa : n), GR_F64);
        gr_rope_freqs(&o, hp, swa, factors, f->freq.data, &f->mag);
    }
    struct gr_ten section = constant(s, 2 * bytes, (int64_t)n, GR_I32);
    if (gr_rope_sections(hp, section.data))
        s->env.section = section;
    return 0;
}

static int alloc_buffers(struct gr_session *s)
{
    const struct gr_session_params *p = &s->params;
    size_t n_ub = p->n_ubatch, n_seq = p->n_seq_max;
    s->ub = gr_calloc(p->n_batch, sizeof *s->ub);
    s->tok = gr_calloc(p->n_batch, sizeof *s->tok);
    int32_t *placed = s->placed_memory = gr_calloc(2 * (n_ub + n_seq), sizeof *placed);
    if (!s->ub || !s->tok || !placed)
        return GR_E_NOMEM_HOST;
    s->placed =
        (struct gr_placed){{placed, placed + n_ub}, placed + 2 * n_ub, placed + 2 * n_ub + n_seq};
    return 0;
}

/* Use of the CPU by this rank: the ranks of one process divide its processors, and so do the
 * processes of a machine unless each is bound to its own. */
static struct gr_cpu_use use_of(const struct gr_rank_model *rm)
{
    const struct gr_model *m = rm->model;
    struct gr_cpu_use use = m->cpu;
    use.part = rm->rank, use.of = m->n_rank_model;
    if (m->world) {
        const struct gr_rank *own = &m->world->ranks[m->world->rank];
        bool bound = gr_cpus_bound();
        use.part = bound ? 0 : own->local, use.of = bound ? 1 : own->n_local;
    }
    return use;
}

int gr_session_begin(struct gr_session **out, struct gr_rank_model *rank_model,
                     const struct gr_session_params *params, bool measure)
{
    const struct gr_cpu_use use = use_of(rank_model);
    struct gr_session *s = *out = gr_calloc(1, sizeof *s);
    if (!s)
        return GR_E_NOMEM_HOST;
    s->model = rank_model->model, s->rank_model = rank_model;
    s->params = params ? *params : gr_session_params_default();
    s->env.hp = &rank_model->hp, s->env.arch = rank_model->model->arch;
    s->env.share = rank_model->sharded ? &rank_model->sharded->share : NULL;
    s->env.transport = rank_model->tp_group && rank_model->tp_group->transport;
    uint32_t asked = s->params.n_ctx;
    int rc = gr_session_fill(s->model, &s->params);
    s->env.deterministic = s->params.deterministic;
    if (!rc && asked && s->params.n_ctx != asked)
        gr_log(GR_LOG_DEBUG, "context of %u cells rounded up to %u", asked, s->params.n_ctx);
    if (!rc)
        rc = gr_cpu_open_as(&s->device[0].backend, s->params.n_threads, s->params.n_threads_batch,
                            s->model->cpu_level, measure ? NULL : &use);
    if (rc)
        return rc;
    s->n_device = 1;
    s->pin = s->device[0].backend;
    snprintf(s->device[0].name, sizeof s->device[0].name, "%s", s->pin->api->name);
    gr_vectors_init(s);
    rc = plan_cache(s);
    return rc ? rc : make_constants(s);
}

/* Opens a backend with a command queue on each device of the placement. */
static int open_devices(struct gr_session *s)
{
    const struct gr_device_opt opt = gr_session_device_opt(s);
    int32_t n = s->rank_model->placed.place.n_device;
    int rc = 0;
    for (int32_t d = 1; d < n && !rc; d++) {
        const struct gr_device_ref *f = &s->rank_model->devices.found[d - 1];
        snprintf(s->device[d].name, sizeof s->device[d].name, "%s", f->info.name);
        rc = f->kind->open(&s->device[d].backend, f->index, &opt);
        s->n_device = rc ? d : d + 1;
    }
    if (rc)
        return rc;
    for (int32_t d = 0; d < n; d++)
        s->device[d].session = s;
    if (n > 1)
        s->pin = s->device[1].backend;
    gr_session_place(s, &s->rank_model->placed);
    for (size_t i = 0; i < (size_t)(s->rank_model->hp.n_layer + 1) * GR_N_SLOT; i++)
        if (gr_weights_device(&s->rank_model->placed, s->rank_model, i) == 0)
            gr_cpu_numa_move(s->device[0].backend, &s->rank_model->placed.weight[i]);
    gr_session_cancellable(s, true);
    return gr_offload_begin(s, &s->rank_model->placed);
}

int gr_session_refuse_whole(void)
{
    return gr_fail(GR_E_UNSUPPORTED,
                   "deterministic: not with layers on a GPU, as its kernels are chosen by the "
                   "number of tokens, and encoders and the mean of all tokens need texts whole; "
                   "-ngl 0 keeps all layers on the CPU");
}

/* Kernels of GPUs are chosen by the number of tokens: with `deterministic` they get one at a time.
 */
static int fill_steps(struct gr_session *s)
{
    const struct gr_placement *p = &s->rank_model->placed.place;
    if (!s->params.deterministic ||
        (p->n_device <= 1 && gr_place_n_gpu(p, s->rank_model->hp.n_layer) == 0))
        return 0;
    if (gr_vectors_whole(&s->model->hp, &s->params))
        return gr_session_refuse_whole();
    s->params.n_ubatch = 1;
    gr_log(GR_LOG_INFO, "deterministic: layers on a GPU compute one token at a time");
    return 0;
}

int gr_session_finish(struct gr_session *s)
{
    int rc = fill_steps(s);
    if (!rc)
        rc = open_devices(s);
    if (!rc)
        rc = gr_session_alloc(s);
    if (!rc)
        rc = alloc_buffers(s);
    if (!rc)
        rc = gr_pending_reserve(s, &s->results.pending[0],
                                (int32_t)GR_MIN(s->params.n_seq_max, s->params.n_batch));
    if (!rc)
        rc = gr_plan_reserve(s);
    if (rc)
        return rc;
    gr_log(GR_LOG_DEBUG, "CPU: instructions %s", gr_cpu_level_name(s->model->cpu_level));
    gr_session_log_caches(s);
    return 0;
}

static void close_device(struct gr_session *s, int32_t d)
{
    struct gr_session_device *v = &s->device[d];
    void *own[] = {v->cache, v->memory.constants, d ? v->memory.arena : NULL,
                   d ? v->memory.step : NULL};
    for (unsigned i = 0; i < GR_COUNT(own); i++)
        if (own[i])
            v->backend->api->free(v->backend, own[i]);
}

void gr_session_close(struct gr_session **session)
{
    struct gr_session *s = session ? *session : NULL;
    if (!s)
        return;
    if (s->ranks)
        s->ranks->close(s);
    if (s->n_device > 0) {
        (void)gr_session_sync(s);
        gr_plan_drop_all(s);
        void *pinned[] = {s->device[0].memory.arena, s->device[0].memory.step};
        for (unsigned i = 0; i < GR_COUNT(pinned); i++)
            if (pinned[i])
                s->pin->api->host_free(s->pin, pinned[i]);
        for (int i = 0; i < GR_N_PENDING; i++)
            gr_pending_fini(s, &s->results.pending[i]);
    }
    for (int32_t d = s->n_device; d-- > 0;) {
        close_device(s, d);
        s->device[d].backend->api->close(&s->device[d].backend);
    }
    gr_cache_fini(&s->cache);
    gr_batch_fini(&s->batch);
    gr_offload_end(s);
    gr_free(s->tensors);
    gr_free(s->ub);
    gr_free(s->tok);
    gr_free(s->placed_memory);
    gr_device_sampling_fini(&s->sampled);
    gr_timing_fini(&s->timing);
    gr_observers_fini(&s->observers);
    gr_free(s);
    *session = NULL;
}

/* Updates pointers to the session and into it. */
static void update(struct gr_session *s)
{
    for (int32_t d = 0; d < s->n_device; d++)
        s->device[d].session = s;
    s->env.cache_device = s->cache_device, s->env.lora_scale = s->params.adapter_scale;
    gr_session_cancellable(s, true);
}

int gr_session_exchange(struct gr_session *a, struct gr_session *b)
{
    struct gr_session *t = gr_calloc(1, sizeof *t);
    if (!t)
        return GR_E_NOMEM_HOST;
    memcpy(t, a, sizeof *t), memcpy(a, b, sizeof *t), memcpy(b, t, sizeof *t);
    struct gr_observers *to = &a->observers, *from = &b->observers;
    const struct gr_observers *own = &t->observers;
    to->tap_name = own->tap_name, to->tap_fn = own->tap_fn, to->tap_user = own->tap_user;
    to->imatrix = own->imatrix, from->imatrix = (struct gr_imatrix_collector){0};
    from->tap_name = NULL, from->tap_fn = NULL, from->time_fn = NULL;
    memcpy(a->sampled.sampler, t->sampled.sampler, sizeof a->sampled.sampler);
    update(a), update(b);
    gr_session_progress(a, own->progress.fn, own->progress.user);
    gr_session_progress(b, NULL, NULL);
    int rc = own->time_fn ? gr_session_time(a, own->time_fn, own->time_user) : 0;
    to->time_start = own->time_start;
    gr_free(t);
    return rc;
}

uint32_t gr_session_n_ctx(const struct gr_session *s)
{
    return s->params.n_ctx;
}

uint32_t gr_session_n_ctx_seq(const struct gr_session *s)
{
    return s->memory.n_ctx_seq;
}

uint32_t gr_session_n_batch(const struct gr_session *s)
{
    return s->params.n_batch;
}

struct gr_model *gr_session_model(const struct gr_session *s)
{
    return s->model;
}

int gr_session_size(const struct gr_model *model, const struct gr_session_params *params,
                    struct gr_session_size *size)
{
    struct gr_session_params p = params ? *params : gr_session_params_default();
    struct gr_memory m;
    *size = (struct gr_session_size){0};
    int rc = gr_session_fill(model, &p);
    if (!rc)
        rc = gr_memory_plan(&m, &model->hp, &p);
    if (rc)
        return rc;
    for (int k = 0; k < GR_N_CACHE_KIND; k++) {
        size->k += m.bytes[k][GR_T_K] + m.bytes[k][GR_T_K_FAR];
        size->v += m.bytes[k][GR_T_V];
    }
    size->state = m.state_bytes, size->total = m.total;
    size->n_kv_pool = m.cache.kv[GR_CACHE_FULL].n_kv_pool;
    size->n_cell = m.cache.has[GR_CACHE_FULL] ? m.cache.kv[GR_CACHE_FULL].n_cell : 0;
    size->n_cell_swa = m.cache.has[GR_CACHE_SWA] ? m.cache.kv[GR_CACHE_SWA].n_cell : 0;
    return 0;
}
