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

#define MAX_CELLS (1u << 26)
#define MIB(bytes) ((double)(bytes) / 1048576)

struct gr_session_params gr_session_params_default(void)
{
    return (struct gr_session_params){.n_batch = 2048,
                                      .n_ubatch = 512,
                                      .n_seq_max = 1,
                                      .kv_unified = true,
                                      .yarn_ext_factor = NAN,
                                      .yarn_attn_factor = NAN,
                                      .yarn_beta_fast = NAN,
                                      .yarn_beta_slow = NAN};
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

/* Fills in defaults and checks what does not depend on the caches. */
static int check_params(const struct gr_model *model, struct gr_session_params *p)
{
    if (model->vocab_only)
        return gr_fail(GR_E_INVALID, "the model was opened for its vocabulary only");
    if (p->n_ctx == 0)
        p->n_ctx = (uint32_t)model->hp.n_ctx_train;
    if (p->n_ctx > MAX_CELLS)
        return gr_fail(GR_E_INVALID, "context of %u tokens: at most %u are possible", p->n_ctx,
                       MAX_CELLS);
    if (p->n_seq_max < 1 || p->n_seq_max > GR_SEQ_MAX)
        return gr_fail(GR_E_INVALID, "%u sequences: 1 to %d are possible", p->n_seq_max,
                       GR_SEQ_MAX);
    p->n_ctx = gr_memory_ctx_seq(p) * (p->kv_unified ? 1 : p->n_seq_max);
    if (p->n_rollback > GR_RS_ROLLBACK_MAX)
        return gr_fail(GR_E_INVALID, "%u states to go back to: at most %d are possible",
                       p->n_rollback, GR_RS_ROLLBACK_MAX);
    if (p->n_batch < 1 || p->n_ubatch < 1)
        return gr_fail(GR_E_INVALID, "batch sizes of %u and %u tokens: at least 1 expected",
                       p->n_batch, p->n_ubatch);
    p->n_batch = GR_MIN(p->n_batch, p->n_ctx);
    p->n_ubatch = GR_MIN(p->n_ubatch, p->n_batch);
    p->n_threads = p->n_threads > 0 ? p->n_threads : gr_threads_online();
    p->n_threads_batch = p->n_threads_batch > 0 ? p->n_threads_batch : p->n_threads;
    return check_rope(p);
}

static int alloc_cache(struct gr_session *s)
{
    const struct gr_hparams *hp = &s->model->hp;
    int rc = gr_memory_plan(&s->memory, hp, &s->params);
    if (rc)
        return rc;
    size_t n = (size_t)hp->n_layer;
    s->tensors = gr_calloc(n * GR_N_CACHE_TENSOR, sizeof *s->tensors);
    if (!s->tensors)
        return GR_E_NOMEM_HOST;
    s->cache_memory = s->backend->api->alloc(s->backend, GR_MAX(s->memory.total, 1));
    if (!s->cache_memory)
        return gr_fail(
            GR_E_NOMEM_HOST,
            "not enough memory for a KV cache of %u cells: %.2f MiB needed; a smaller -c, "
            "or -ctk q8_0 -ctv q8_0, takes less",
            s->params.n_ctx, MIB(s->memory.total));
    char *at = s->cache_memory;
    for (size_t il = 0; il < n; il++)
        for (size_t w = 0; w < GR_N_CACHE_TENSOR; w++) {
            struct gr_ten *t = &s->tensors[w * n + il];
            if (gr_memory_tensor(&s->memory, hp, (int)il, (enum gr_cache_tensor)w, t)) {
                t->data = at;
                at += t->row_bytes * t->rows;
            }
        }
    for (size_t i = 0; i < n * GR_N_CACHE_TENSOR; i++) { /* layers that attend to another's */
        int32_t of = hp->kv_of[i % n];
        if (of >= 0 && of < (int32_t)(i % n))
            s->tensors[i] = s->tensors[i / n * n + (size_t)of];
    }
    gr_memory_log(&s->memory, s->backend->api->name);
    return gr_cache_init(&s->cache, &s->memory.cache);
}

/* The model's frequency divisors: its own, or LongRoPE's for contexts up to or beyond the length it
 * was first trained for, whatever yarn_orig_ctx says. */
static enum gr_slot rope_factors(const struct gr_session *s)
{
    bool is_long = s->memory.n_ctx_seq > (uint32_t)s->model->hp.n_ctx_orig;
    return gr_ten_is(&s->model->weight[GR_W_ROPE_FREQS]) ? GR_W_ROPE_FREQS
           : is_long                                     ? GR_W_ROPE_LONG
                                                         : GR_W_ROPE_SHORT;
}

const char *gr_rope_factors_name(const struct gr_session *s)
{
    enum gr_slot slot = rope_factors(s);
    if (!gr_ten_is(&s->model->weight[slot]))
        return "none";
    return slot == GR_W_ROPE_LONG ? "long" : slot == GR_W_ROPE_SHORT ? "short" : "the model's";
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
    const float *factors = s->model->weight[rope_factors(s)].data; /* NULL: there are none */
    const struct gr_backend_api *api = s->backend->api;
    size_t n = (size_t)hp->n_rot / 2, bytes = GR_PAD(n * 8, 256);
    double *freq = gr_calloc(n, sizeof *freq);
    s->freq_memory = api->alloc(s->backend, 3 * bytes);
    int rc = freq && s->freq_memory ? 0 : GR_E_NOMEM_HOST;
    for (int swa = 0; swa < 2 && !rc; swa++) {
        struct gr_rope_freqs *f = &s->env.rope[swa];
        char *at = (char *)s->freq_memory + (size_t)swa * bytes;
        gr_rope_freqs(&o, hp, swa, factors, freq, &f->mag);
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
    size_t n_ub = p->n_ubatch, n_seq = p->n_seq_max;
    s->ub = gr_calloc(p->n_batch, sizeof *s->ub);
    s->tok = gr_calloc(p->n_batch, sizeof *s->tok);
    s->out_row = gr_calloc(p->n_batch, sizeof *s->out_row);
    int32_t *placed = s->placed_memory = gr_calloc(2 * (n_ub + n_seq), sizeof *placed);
    if (!s->ub || !s->tok || !s->out_row || !placed)
        return GR_E_NOMEM_HOST;
    s->placed =
        (struct gr_placed){{placed, placed + n_ub}, placed + 2 * n_ub, placed + 2 * n_ub + n_seq};
    return 0;
}

static void fill_env(struct gr_session *s)
{
    const struct gr_ten *t = s->tensors;
    int32_t n = s->model->hp.n_layer;
    s->env.hp = &s->model->hp, s->env.arch = s->model->arch;
    s->env.weight = s->model->weight, s->env.bias = s->model->bias;
    s->env.k_cache = t + GR_T_K * n, s->env.v_cache = t + GR_T_V * n;
    s->env.k_far = t + GR_T_K_FAR * n;
    s->env.conv_state = t + GR_T_CONV * n, s->env.ssm_state = t + GR_T_SSM * n;
}

int gr_session_open(struct gr_session **out, struct gr_model *model,
                    const struct gr_session_params *params)
{
    *out = NULL;
    struct gr_session *s = gr_calloc(1, sizeof *s);
    if (!s)
        return GR_E_NOMEM_HOST;
    s->model = model;
    s->params = params ? *params : gr_session_params_default();
    uint32_t asked = s->params.n_ctx;
    int rc = check_params(model, &s->params);
    if (!rc && asked && s->params.n_ctx != asked)
        gr_log(GR_LOG_DEBUG, "context of %u cells rounded up to %u", asked, s->params.n_ctx);
    if (!rc)
        rc = gr_cpu_open(&s->backend, s->params.n_threads, s->params.n_threads_batch, GR_CPU_AUTO);
    if (!rc)
        s->backend->api->set_cancel(s->backend, &s->cancel);
    if (!rc)
        rc = alloc_cache(s);
    if (!rc)
        rc = make_rope(s);
    if (!rc)
        rc = alloc_buffers(s);
    if (!rc)
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
        gr_plan_drop_all(s);
        void *memory[] = {s->cache_memory, s->step, s->arena, s->freq_memory};
        for (unsigned i = 0; i < GR_COUNT(memory); i++)
            if (memory[i])
                api->free(s->backend, memory[i]);
        api->close(&s->backend);
    }
    gr_cache_fini(&s->cache);
    gr_batch_fini(&s->batch);
    gr_free(s->tensors);
    gr_free(s->ub);
    gr_free(s->tok);
    gr_free(s->placed_memory);
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

uint32_t gr_session_n_ctx_seq(const struct gr_session *s)
{
    return s->memory.n_ctx_seq;
}

int gr_session_size(const struct gr_model *model, const struct gr_session_params *params,
                    struct gr_session_size *size)
{
    struct gr_session_params p = params ? *params : gr_session_params_default();
    struct gr_memory m;
    *size = (struct gr_session_size){0};
    int rc = check_params(model, &p);
    if (!rc)
        rc = gr_memory_plan(&m, &model->hp, &p);
    if (rc)
        return rc;
    for (int k = 0; k < GR_N_CACHE_KIND; k++) {
        size->k += m.bytes[k][GR_T_K] + m.bytes[k][GR_T_K_FAR];
        size->v += m.bytes[k][GR_T_V];
    }
    size->state = m.state_bytes, size->total = m.total;
    size->n_stream = m.cache.kv[GR_CACHE_FULL].n_stream;
    size->n_cell = m.cache.has[GR_CACHE_FULL] ? m.cache.kv[GR_CACHE_FULL].n_cell : 0;
    size->n_cell_swa = m.cache.has[GR_CACHE_SWA] ? m.cache.kv[GR_CACHE_SWA].n_cell : 0;
    return 0;
}
