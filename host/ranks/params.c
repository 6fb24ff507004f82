#include "ranks/params.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "gr/dtype.h"

/* The static name of a storage type, or NULL when there is no such type. */
static const char *type_named(const char *p, uint64_t n)
{
    char name[16] = "";
    if (!n || n >= sizeof name)
        return NULL;
    memcpy(name, p, (size_t)n);
    const struct gr_dtype_info *type = gr_dtype_find_name(name);
    return type ? type->name : NULL;
}

struct gr_session_params gr_order_open_params(const struct gr_order_open *o)
{
    struct gr_session_params p = {.n_ctx = o->n_ctx,
                                  .n_batch = o->n_batch,
                                  .n_ubatch = o->n_ubatch,
                                  .n_seq_max = o->n_seq_max,
                                  .kv_unified = o->kv_unified,
                                  .swa_full = o->swa_full,
                                  .n_rollback = o->n_rollback,
                                  .n_threads = o->n_threads,
                                  .n_threads_batch = o->n_threads_batch,
                                  .type_k = type_named(o->type_k.p, o->type_k.n),
                                  .type_v = type_named(o->type_v.p, o->type_v.n),
                                  .rope_scaling = (enum gr_rope_scaling)o->rope_scaling,
                                  .rope_freq_base = o->rope_freq_base,
                                  .rope_freq_scale = o->rope_freq_scale,
                                  .yarn_ext_factor = o->yarn_ext_factor,
                                  .yarn_attn_factor = o->yarn_attn_factor,
                                  .yarn_beta_fast = o->yarn_beta_fast,
                                  .yarn_beta_slow = o->yarn_beta_slow,
                                  .yarn_orig_ctx = o->yarn_orig_ctx,
                                  .kv_contiguous = o->kv_contiguous,
                                  .group_n = o->group_n,
                                  .group_w = o->group_w,
                                  .embeddings = o->embeddings,
                                  .pooling = (enum gr_pooling)o->pooling,
                                  .no_kv_offload = o->no_kv_offload,
                                  .offload_from = o->offload_from,
                                  .no_graphs = o->no_graphs,
                                  .nvtx = (enum gr_nvtx)GR_MIN(o->nvtx, GR_NVTX_LAYER),
                                  .no_pdl = o->no_pdl,
                                  .no_sm90 = o->no_sm90,
                                  .no_fuse = o->no_fuse,
                                  .check_counters = o->check_counters};
    for (uint64_t i = 0; i < GR_MAX_ADAPTER; i++)
        p.adapter_scale[i] = i < o->adapter_scale.n ? o->adapter_scale.p[i] : NAN;
    return p;
}

struct gr_order_open gr_order_open_of(const struct gr_session_params *p)
{
    return (struct gr_order_open){.n_ctx = p->n_ctx,
                                  .n_batch = p->n_batch,
                                  .n_ubatch = p->n_ubatch,
                                  .n_seq_max = p->n_seq_max,
                                  .kv_unified = p->kv_unified,
                                  .swa_full = p->swa_full,
                                  .n_rollback = p->n_rollback,
                                  .n_threads = p->n_threads,
                                  .n_threads_batch = p->n_threads_batch,
                                  .rope_scaling = (int32_t)p->rope_scaling,
                                  .rope_freq_base = p->rope_freq_base,
                                  .rope_freq_scale = p->rope_freq_scale,
                                  .yarn_ext_factor = p->yarn_ext_factor,
                                  .yarn_attn_factor = p->yarn_attn_factor,
                                  .yarn_beta_fast = p->yarn_beta_fast,
                                  .yarn_beta_slow = p->yarn_beta_slow,
                                  .yarn_orig_ctx = p->yarn_orig_ctx,
                                  .kv_contiguous = p->kv_contiguous,
                                  .group_n = p->group_n,
                                  .group_w = p->group_w,
                                  .embeddings = p->embeddings,
                                  .pooling = (int32_t)p->pooling,
                                  .no_kv_offload = p->no_kv_offload,
                                  .offload_from = p->offload_from,
                                  .no_graphs = p->no_graphs,
                                  .nvtx = (uint32_t)p->nvtx,
                                  .no_pdl = p->no_pdl,
                                  .no_sm90 = p->no_sm90,
                                  .no_fuse = p->no_fuse,
                                  .check_counters = p->check_counters,
                                  .adapter_scale = {p->adapter_scale, GR_MAX_ADAPTER},
                                  .type_k = {p->type_k, p->type_k ? strlen(p->type_k) : 0},
                                  .type_v = {p->type_v, p->type_v ? strlen(p->type_v) : 0}};
}
