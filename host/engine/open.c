/* Opening and closing a session: parameters, cache memory, backend, buffers. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "base/threads.h"
#include "cpu/cpu.h"
#include "engine/session.h"
#include "gr/dtype.h"
#include "gr/status.h"

#define CELL_PAD 256 /* the cache is whole blocks of this many cells */
#define MAX_CELLS (1u << 26)
#define MIB(bytes) ((double)(bytes) / 1048576)

struct gr_session_params gr_session_params_default(void)
{
    return (struct gr_session_params){.n_batch = 2048,
                                      .n_ubatch = 512,
                                      .n_seq_max = 1,
                                      .yarn_ext_factor = NAN,
                                      .yarn_attn_factor = NAN,
                                      .yarn_beta_fast = NAN,
                                      .yarn_beta_slow = NAN};
}

static int cache_type(const char *name, const char *what, uint32_t *out)
{
    static const uint32_t allowed[] = {GR_F32, GR_F16, GR_BF16, GR_Q8_0, GR_Q4_0};
    const struct gr_dtype_info *t = gr_dtype_find_name(name ? name : "f16");
    for (unsigned i = 0; t && i < GR_COUNT(allowed); i++)
        if (t->id == allowed[i])
            return *out = t->id, 0;
    return gr_fail(GR_E_INVALID,
                   "cache type for %s: f32, f16, bf16, q8_0 or q4_0 expected, %s found", what,
                   gr_quote(name, strlen(name)));
}

static int check_rope(const struct gr_session_params *p)
{
    const struct {
        const char *name;
        float value;
    } f[] = {{"rope_freq_base", p->rope_freq_base},     {"rope_freq_scale", p->rope_freq_scale},
             {"yarn_ext_factor", p->yarn_ext_factor},   {"yarn_beta_fast", p->yarn_beta_fast},
             {"yarn_attn_factor", p->yarn_attn_factor}, {"yarn_beta_slow", p->yarn_beta_slow}};
    if (p->rope_scaling < GR_SCALING_MODEL || p->rope_scaling > GR_SCALING_LONGROPE)
        return gr_fail(GR_E_INVALID, "unknown rope scaling %d", (int)p->rope_scaling);
    for (unsigned i = 0; i < GR_COUNT(f); i++)
        if (isinf(f[i].value) || f[i].value < 0)
            return gr_fail(GR_E_INVALID, "%s: a number from 0 on expected, %g found", f[i].name,
                           (double)f[i].value);
    if (p->yarn_orig_ctx > INT32_MAX)
        return gr_fail(GR_E_INVALID, "yarn_orig_ctx: at most %d expected, %u found", INT32_MAX,
                       p->yarn_orig_ctx);
    return 0;
}

static int check_params(struct gr_session *s)
{
    struct gr_session_params *p = &s->params;
    if (p->n_ctx == 0)
        p->n_ctx = (uint32_t)s->model->hp.n_ctx_train;
    if (p->n_ctx > MAX_CELLS)
        return gr_fail(GR_E_INVALID, "context of %u tokens: at most %u are possible", p->n_ctx,
                       MAX_CELLS);
    p->n_ctx = GR_PAD(p->n_ctx, CELL_PAD);
    if (p->n_seq_max < 1 || p->n_seq_max > GR_SEQ_MAX)
        return gr_fail(GR_E_INVALID, "%u sequences: 1 to %d are possible", p->n_seq_max,
                       GR_SEQ_MAX);
    if (p->n_batch < 1 || p->n_ubatch < 1)
        return gr_fail(GR_E_INVALID, "batch sizes of %u and %u tokens: at least 1 expected",
                       p->n_batch, p->n_ubatch);
    p->n_batch = GR_MIN(p->n_batch, p->n_ctx);
    p->n_ubatch = GR_MIN(p->n_ubatch, p->n_batch);
    p->n_threads = p->n_threads > 0 ? p->n_threads : gr_threads_online();
    p->n_threads_batch = p->n_threads_batch > 0 ? p->n_threads_batch : p->n_threads;
    int rc = check_rope(p);
    if (!rc)
        rc = cache_type(p->type_k, "K", &s->type_k);
    return rc ? rc : cache_type(p->type_v, "V", &s->type_v);
}

/* Adds the bytes of n_cell rows of n elements, in heads of d. */
static int rows_bytes(uint32_t type, int64_t n, int64_t d, uint32_t n_cell, uint64_t *sum)
{
    const struct gr_dtype_info *t = gr_dtype_find(type);
    if (d % t->block)
        return gr_fail(GR_E_INVALID,
                       "cache type %s stores blocks of %u numbers, which do not divide heads of "
                       "%" PRId64 "; use f16",
                       t->name, t->block, d);
    uint64_t bytes;
    if (!gr_mul(&bytes, gr_row_bytes(type, (uint64_t)n), (uint64_t)n_cell) ||
        !gr_add(sum, *sum, bytes))
        return gr_fail(GR_E_TOO_LARGE, "a cache of %u cells is too large", n_cell);
    return 0;
}

int gr_cache_bytes(const struct gr_hparams *hp, uint32_t n_cell, uint32_t type_k, uint32_t type_v,
                   uint64_t *k, uint64_t *v)
{
    int rc = 0;
    *k = *v = 0;
    for (int il = 0; il < hp->n_layer && !rc; il++) {
        rc = rows_bytes(type_k, gr_dim_value(hp, GR_D_K, il), hp->d_k, n_cell, k);
        if (!rc)
            rc = rows_bytes(type_v, gr_dim_value(hp, GR_D_V, il), hp->d_v, n_cell, v);
    }
    uint64_t both;
    if (!rc && !gr_add(&both, *k, *v))
        rc = gr_fail(GR_E_TOO_LARGE, "a cache of %u cells is too large", n_cell);
    return rc;
}

static char *place(struct gr_ten *t, char *at, uint32_t type, int64_t cols, uint32_t n_cell)
{
    *t = (struct gr_ten){.data = at,
                         .batch = 1,
                         .rows = n_cell,
                         .cols = cols,
                         .row_bytes = (int64_t)gr_row_bytes(type, (uint64_t)cols),
                         .dtype = type};
    return at + t->row_bytes * n_cell;
}

static void log_cache(const struct gr_session *s, uint64_t k, uint64_t v)
{
    gr_log(GR_LOG_DEBUG, "%10s KV buffer size = %8.2f MiB", s->backend->api->name, MIB(k + v));
    gr_log(
        GR_LOG_DEBUG,
        "size = %7.2f MiB (%6u cells, %3d layers, %2u/%u seqs), K (%s): %7.2f MiB, V (%s): %7.2f "
        "MiB",
        MIB(k + v), s->params.n_ctx, s->model->hp.n_layer, s->params.n_seq_max, s->params.n_seq_max,
        gr_dtype_name(s->type_k), MIB(k), gr_dtype_name(s->type_v), MIB(v));
}

static int alloc_cache(struct gr_session *s)
{
    const struct gr_hparams *hp = &s->model->hp;
    uint32_t n = s->params.n_ctx;
    uint64_t k, v;
    int rc = gr_cache_bytes(hp, n, s->type_k, s->type_v, &k, &v);
    if (rc)
        return rc;
    s->k_cache = gr_calloc((size_t)hp->n_layer, sizeof *s->k_cache);
    s->v_cache = gr_calloc((size_t)hp->n_layer, sizeof *s->v_cache);
    if (!s->k_cache || !s->v_cache)
        return GR_E_NOMEM_HOST;
    s->cache_memory = s->backend->api->alloc(s->backend, k + v);
    if (!s->cache_memory)
        return gr_fail(
            GR_E_NOMEM_HOST,
            "not enough memory for a KV cache of %u cells: %.2f MiB needed; a smaller -c, "
            "or -ctk q8_0 -ctv q8_0, takes less",
            n, MIB(k + v));
    char *at = s->cache_memory;
    for (int il = 0; il < hp->n_layer; il++) {
        at = place(&s->k_cache[il], at, s->type_k, gr_dim_value(hp, GR_D_K, il), n);
        at = place(&s->v_cache[il], at, s->type_v, gr_dim_value(hp, GR_D_V, il), n);
    }
    log_cache(s, k, v);
    struct gr_kv_params kp = {n, s->params.n_seq_max, CELL_PAD, s->params.kv_contiguous};
    return gr_kv_new(&s->kv, &kp);
}

/* The model's frequency divisors: its own, or LongRoPE's for contexts up to or beyond the original
 * length. */
static const float *rope_factors(const struct gr_session *s, const struct gr_rope_opt *o)
{
    const struct gr_ten *w = s->model->weight;
    bool is_long = s->params.n_ctx > (uint32_t)o->n_ctx_orig;
    const struct gr_ten *f = gr_ten_is(&w[GR_W_ROPE_FREQS]) ? &w[GR_W_ROPE_FREQS]
                             : is_long                      ? &w[GR_W_ROPE_LONG]
                                                            : &w[GR_W_ROPE_SHORT];
    return gr_ten_is(f) ? f->data : NULL;
}

/* The table of M-RoPE's sections, where there are any, at `at`. */
static int make_sections(struct gr_session *s, char *at)
{
    const struct gr_hparams *hp = &s->model->hp;
    int64_t n = hp->n_rot / 2;
    int32_t *section = gr_calloc((size_t)n, sizeof *section);
    int rc = section ? 0 : GR_E_NOMEM_HOST;
    if (!rc && gr_rope_sections(hp, section)) {
        rc = s->backend->api->upload(s->backend, at, section, (size_t)n * 4);
        s->env.section = (struct gr_ten){
            .data = at, .batch = 1, .rows = 1, .cols = n, .row_bytes = n * 4, .dtype = GR_I32};
    }
    gr_free(section);
    return rc;
}

static int make_rope(struct gr_session *s)
{
    const struct gr_hparams *hp = &s->model->hp;
    if (hp->rope == GR_ROPE_NONE)
        return 0;
    struct gr_rope_opt o;
    gr_rope_resolve(&o, hp, &s->params);
    const struct gr_backend_api *api = s->backend->api;
    size_t n = (size_t)hp->n_rot / 2, bytes = GR_PAD(n * 8, 256);
    double *freq = gr_calloc(n, sizeof *freq);
    s->freq_memory = api->alloc(s->backend, 3 * bytes);
    int rc = freq && s->freq_memory ? 0 : GR_E_NOMEM_HOST;
    for (int swa = 0; swa < 2 && !rc; swa++) {
        struct gr_rope_freqs *f = &s->env.rope[swa];
        char *at = (char *)s->freq_memory + (size_t)swa * bytes;
        gr_rope_freqs(&o, hp, swa, rope_factors(s, &o), freq, &f->mag);
        rc = api->upload(s->backend, at, freq, n * 8);
        f->freq = (struct gr_ten){.data = at,
                                  .batch = 1,
                                  .rows = 1,
                                  .cols = (int64_t)n,
                                  .row_bytes = (int64_t)n * 8,
                                  .dtype = GR_F64};
    }
    gr_free(freq);
    return rc ? rc : make_sections(s, (char *)s->freq_memory + 2 * bytes);
}

static int alloc_buffers(struct gr_session *s)
{
    const struct gr_session_params *p = &s->params;
    s->ub = gr_calloc((p->n_batch + p->n_ubatch - 1) / p->n_ubatch, sizeof *s->ub);
    s->cells = gr_calloc(p->n_batch, sizeof *s->cells);
    s->out_row = gr_calloc(p->n_batch, sizeof *s->out_row);
    return s->ub && s->cells && s->out_row ? 0 : GR_E_NOMEM_HOST;
}

static void fill_env(struct gr_session *s)
{
    s->env.hp = &s->model->hp, s->env.arch = s->model->arch;
    s->env.weight = s->model->weight, s->env.bias = s->model->bias;
    s->env.k_cache = s->k_cache, s->env.v_cache = s->v_cache;
}

int gr_session_open(struct gr_session **out, struct gr_model *model,
                    const struct gr_session_params *params)
{
    *out = NULL;
    if (model->vocab_only)
        return gr_fail(GR_E_INVALID, "the model was opened for its vocabulary only");
    struct gr_session *s = gr_calloc(1, sizeof *s);
    if (!s)
        return GR_E_NOMEM_HOST;
    s->model = model;
    s->params = params ? *params : gr_session_params_default();
    int rc = check_params(s);
    if (!rc)
        rc = gr_cpu_open(&s->backend, s->params.n_threads, s->params.n_threads_batch, GR_CPU_AUTO);
    if (!rc)
        gr_cpu_set_cancel(s->backend, &s->cancel);
    if (!rc)
        rc = alloc_cache(s);
    if (!rc)
        rc = make_rope(s);
    if (!rc)
        rc = alloc_buffers(s);
    fill_env(s);
    if (rc)
        gr_session_close(&s);
    *out = s;
    return rc;
}

void gr_session_close(struct gr_session **session)
{
    struct gr_session *s = *session;
    if (!s)
        return;
    if (s->backend) {
        const struct gr_backend_api *api = s->backend->api;
        for (int i = 0; i < GR_N_PLAN; i++)
            if (s->plan[i].exec) {
                api->segment_free(s->backend, &s->plan[i].exec);
                gr_plan_fini(&s->plan[i].plan);
            }
        void *memory[] = {s->cache_memory, s->step, s->arena, s->freq_memory};
        for (unsigned i = 0; i < GR_COUNT(memory); i++)
            if (memory[i])
                api->free(s->backend, memory[i]);
        api->close(&s->backend);
    }
    gr_kv_free(&s->kv);
    gr_batch_fini(&s->batch);
    gr_free(s->k_cache);
    gr_free(s->v_cache);
    gr_free(s->ub);
    gr_free(s->cells);
    gr_free(s->staging);
    gr_free(s->logits);
    gr_free(s->out_row);
    gr_free(s->tap_name);
    gr_free(s);
    *session = NULL;
}

uint32_t gr_session_n_ctx(const struct gr_session *s)
{
    return s->params.n_ctx;
}
