#include "engine/memory.h"

#include <inttypes.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "gr/planes.h"
#include "gr/status.h"

#define CELL_PAD 256 /* cells are allocated in blocks of this many */

static int cache_type(const char *name, const char *what, uint32_t *out)
{
    const struct gr_dtype_info *t = gr_dtype_find_name(name ? name : "f16");
    if (t && (t->id == GR_F32 || t->id == GR_F16 || t->id == GR_BF16 || gr_planes_are(t->id)))
        return *out = t->id, 0;
    return gr_fail(GR_E_INVALID, "cache type for %s: one of " GR_CACHE_TYPES " expected, %s found",
                   what, gr_quote(name, strlen(name)));
}

/* Returns whether a layer keeps keys and values of its own. */
static bool keeps_kv(const struct gr_hparams *hp, int il)
{
    return !hp->no_cache && hp->attn.n_head_kv[il] > 0 && hp->attn.kv_of[il] == il;
}

static int64_t row_bytes(uint32_t type, int64_t cols)
{
    return gr_planes_are(type) ? gr_planes_row(type, cols)
                               : (int64_t)gr_row_bytes(type, (uint64_t)cols);
}

bool gr_memory_tensor(const struct gr_memory *m, const struct gr_hparams *hp, int il,
                      enum gr_cache_tensor which, struct gr_ten *shape)
{
    int kind = hp->swa.layer[il] ? GR_CACHE_SWA : GR_CACHE_FULL;
    const struct gr_kv_params *kv = &m->cache.kv[kind];
    bool state = which == GR_T_CONV || which == GR_T_SSM, there;
    int64_t cols =
        hp->attn.n_head_kv[il] * (int64_t)(which == GR_T_V ? hp->attn.d_v : hp->attn.d_k);
    if (state)
        cols = which == GR_T_CONV ? hp->ssm.n_conv_state : hp->ssm.n_ssm_state;
    if (state)
        there = hp->ssm.layer[il] && cols > 0;
    else
        there = keeps_kv(hp, il) && !(which == GR_T_V && hp->mla.v_in_k) &&
                !(which == GR_T_K_FAR && kv->group <= 1);
    uint32_t type = state ? GR_F32 : which == GR_T_V ? m->type_v : m->type_k;
    *shape = (struct gr_ten){0};
    if (there)
        *shape = (struct gr_ten){.batch = 1,
                                 .rows = state ? m->n_row : (int64_t)kv->n_cell * kv->n_kv_pool,
                                 .cols = cols,
                                 .row_bytes = row_bytes(type, cols),
                                 .dtype = type,
                                 .planes = gr_planes_are(type)};
    return there;
}

/* Checks that heads consist of whole blocks of the cache's types. */
static int check_heads(const struct gr_memory *m, const struct gr_hparams *hp)
{
    const struct {
        uint32_t type;
        int32_t d;
    } h[] = {{m->type_k, hp->attn.d_k}, {hp->mla.v_in_k ? m->type_k : m->type_v, hp->attn.d_v}};
    for (unsigned i = 0; i < GR_COUNT(h); i++) {
        const struct gr_dtype_info *t = gr_dtype_find(h[i].type);
        if (h[i].d % (int32_t)t->block)
            return gr_fail(GR_E_INVALID,
                           "cache type %s stores blocks of %u numbers, which do not divide heads "
                           "of %d; use f16",
                           t->name, t->block, h[i].d);
    }
    return 0;
}

static int add_tensor(struct gr_memory *m, const struct gr_ten *t, uint64_t *sum)
{
    uint64_t bytes;
    if (!gr_mul(&bytes, (uint64_t)t->row_bytes, (uint64_t)t->rows) || !gr_add(sum, *sum, bytes) ||
        !gr_add(&m->total, m->total, bytes))
        return gr_fail(GR_E_TOO_LARGE, "a cache of %" PRId64 " cells is too large", t->rows);
    return 0;
}

static int sum_layers(struct gr_memory *m, const struct gr_hparams *hp)
{
    int rc = 0;
    for (int il = 0; il < hp->n_layer && !rc; il++) {
        int kind = hp->swa.layer[il] ? GR_CACHE_SWA : GR_CACHE_FULL;
        for (int w = 0; w < GR_N_CACHE_TENSOR && !rc; w++) {
            struct gr_ten t;
            uint64_t *sum = w < GR_T_CONV ? &m->bytes[kind][w] : &m->state_bytes;
            if (gr_memory_tensor(m, hp, il, (enum gr_cache_tensor)w, &t))
                rc = add_tensor(m, &t, sum);
        }
    }
    return rc;
}

/* Cells per pool of layers with a sliding window: enough for the window (of each sequence that
 * shares the pool) and a micro-batch; n_ctx_seq with swa_full or an encoder, or if that is less. */
static uint32_t window_cells(const struct gr_hparams *hp, const struct gr_session_params *p,
                             uint32_t n_ctx_seq)
{
    uint64_t n = (uint64_t)hp->swa.n_swa * (p->kv_unified ? p->n_seq_max : 1) + p->n_ubatch;
    n = GR_PAD(n, (uint64_t)CELL_PAD);
    return p->swa_full || hp->enc.n_layer || n > n_ctx_seq ? n_ctx_seq : (uint32_t)n;
}

uint32_t gr_memory_ctx_seq(const struct gr_session_params *p)
{
    uint32_t n_kv_pool = p->kv_unified ? 1 : p->n_seq_max;
    return GR_PAD((p->n_ctx + n_kv_pool - 1) / n_kv_pool, CELL_PAD);
}

static void plan_cells(struct gr_memory *m, const struct gr_hparams *hp,
                       const struct gr_session_params *p)
{
    uint32_t n_kv_pool = p->kv_unified ? 1 : p->n_seq_max;
    m->n_ctx_seq = gr_memory_ctx_seq(p);
    m->cache.n_seq_max = p->n_seq_max;
    for (int il = 0; il < hp->n_layer; il++) {
        m->n_layer[hp->swa.layer[il] ? GR_CACHE_SWA : GR_CACHE_FULL] += keeps_kv(hp, il);
        m->n_recurrent += hp->ssm.layer[il];
    }
    struct gr_kv_params kv = {.n_cell = m->n_ctx_seq,
                              .n_kv_pool = n_kv_pool,
                              .n_seq_max = p->n_seq_max,
                              .n_pad = CELL_PAD,
                              .contiguous = p->kv_contiguous,
                              .pos_2d = hp->rope.section[0] > 0};
    for (int k = 0; k < GR_N_CACHE_KIND; k++) {
        m->cache.has[k] = m->n_layer[k] > 0;
        m->cache.kv[k] = kv;
    }
    m->cache.kv[GR_CACHE_FULL].group = p->self_extend_n > 1 ? p->self_extend_n : 0;
    m->cache.kv[GR_CACHE_SWA].n_cell = window_cells(hp, p, m->n_ctx_seq);
    m->cache.kv[GR_CACHE_SWA].window = hp->swa.n_swa;
    m->cache.kv[GR_CACHE_SWA].chunked = hp->swa.chunked;
    m->cache.encodes = hp->enc.n_layer > 0;
    m->cache.has_rs = m->n_recurrent > 0;
    m->cache.rs = (struct gr_rs_params){p->n_seq_max, p->n_rollback};
    m->n_row = m->cache.has_rs ? gr_rs_n_row(&m->cache.rs) : 0;
}

static int check_group(const struct gr_hparams *hp, const struct gr_session_params *p)
{
    if (p->self_extend_n <= 1)
        return 0;
    if (p->self_extend_w < 1 || p->self_extend_w % p->self_extend_n)
        return gr_fail(GR_E_INVALID,
                       "Self-Extend: a window that is a multiple of the group factor expected, "
                       "window %d and factor %d found",
                       p->self_extend_w, p->self_extend_n);
    if (hp->rope.kind == GR_ROPE_NONE || hp->embd.n_learned_pos || hp->no_cache)
        return gr_fail(GR_E_UNSUPPORTED,
                       "Self-Extend: the model has no rotary positions that could be grouped");
    return 0;
}

int gr_memory_plan(struct gr_memory *m, const struct gr_hparams *hp,
                   const struct gr_session_params *p)
{
    *m = (struct gr_memory){0};
    int rc = cache_type(p->type_k, "K", &m->type_k);
    if (!rc)
        rc = cache_type(p->type_v, "V", &m->type_v);
    if (!rc)
        rc = check_group(hp, p);
    if (rc)
        return rc;
    plan_cells(m, hp, p);
    if (m->cache.has[GR_CACHE_FULL] || m->cache.has[GR_CACHE_SWA])
        rc = check_heads(m, hp);
    return rc ? rc : sum_layers(m, hp);
}

static void log_kind(const struct gr_memory *m, int kind, const char *what)
{
    const struct gr_kv_params *kv = &m->cache.kv[kind];
    const uint64_t *b = m->bytes[kind];
    uint64_t k = b[GR_T_K] + b[GR_T_K_FAR];
    gr_log(GR_LOG_DEBUG,
           "%ssize = %7.2f MiB (%6u cells, %3d layers, %2u/%u seqs), K (%s): %7.2f MiB, V (%s): "
           "%7.2f MiB",
           what, gr_to_mib(k + b[GR_T_V]), kv->n_cell, m->n_layer[kind],
           kv->n_kv_pool == 1 ? kv->n_seq_max : kv->n_kv_pool, kv->n_kv_pool,
           gr_dtype_name(m->type_k), gr_to_mib(k), gr_dtype_name(m->type_v), gr_to_mib(b[GR_T_V]));
}

void gr_memory_log(const struct gr_memory *m)
{
    uint64_t k = 0, v = 0;
    for (int kind = 0; kind < GR_N_CACHE_KIND; kind++) {
        k += m->bytes[kind][GR_T_K] + m->bytes[kind][GR_T_K_FAR];
        v += m->bytes[kind][GR_T_V];
    }
    gr_log(GR_LOG_DEBUG, "KV self size  = %7.2f MiB, K (%s): %7.2f MiB, V (%s): %7.2f MiB",
           gr_to_mib(k + v), gr_dtype_name(m->type_k), gr_to_mib(k), gr_dtype_name(m->type_v),
           gr_to_mib(v));
    if (m->cache.has[GR_CACHE_FULL])
        log_kind(m, GR_CACHE_FULL, "");
    if (m->cache.has[GR_CACHE_SWA])
        log_kind(m, GR_CACHE_SWA, "window: ");
    if (m->cache.has_rs)
        gr_log(GR_LOG_DEBUG, "states: size = %7.2f MiB (%6u rows, %3d layers, %2u seqs), f32",
               gr_to_mib(m->state_bytes), m->n_row, m->n_recurrent, m->cache.n_seq_max);
}

void gr_memory_log_part(const struct gr_memory *part, const char *where)
{
    for (int kind = 0; kind < GR_N_CACHE_KIND; kind++) {
        const uint64_t *b = part->bytes[kind];
        uint64_t k = b[GR_T_K] + b[GR_T_K_FAR], v = b[GR_T_V];
        if (part->n_layer[kind])
            gr_log(GR_LOG_DEBUG,
                   "%10s KV buffer size = %8.2f MiB (%6u cells, %3d layers%s), K (%s): %7.2f MiB, "
                   "V (%s): %7.2f MiB",
                   where, gr_to_mib(k + v), part->cache.kv[kind].n_cell, part->n_layer[kind],
                   kind == GR_CACHE_SWA ? " with a window" : "", gr_dtype_name(part->type_k),
                   gr_to_mib(k), gr_dtype_name(part->type_v), gr_to_mib(v));
    }
    if (part->n_recurrent)
        gr_log(GR_LOG_DEBUG, "%10s RS buffer size = %8.2f MiB (%6u rows, %3d layers), f32", where,
               gr_to_mib(part->state_bytes), part->n_row, part->n_recurrent);
}
