/* A session: one cache, one backend, and the step loop. gpurun.h documents what callers see. */
#ifndef GR_ENGINE_SESSION_H
#define GR_ENGINE_SESSION_H

#include <stdatomic.h>

#include "batch/batch.h"
#include "gr/backend.h"
#include "graph/graph.h"
#include "kv/kv.h"
#include "model/model.h"

/* A plan that has been built, placed and prepared; the most recently used ones are kept. */
struct gr_cached_plan {
    struct gr_plan plan;
    void *exec; /* NULL = the slot is free */
    uint64_t used;
    bool shift;
};

#define GR_N_PLAN 12

struct gr_session {
    struct gr_model *model;
    struct gr_session_params params; /* all defaults filled in */
    struct gr_backend *backend;
    struct gr_kv *kv;
    uint32_t type_k, type_v;

    /* device memory */
    struct gr_ten *k_cache, *v_cache; /* [n_layer] */
    void *cache_memory, *step, *arena, *freq_memory;
    size_t step_bytes, arena_bytes;

    struct gr_graph_env env;
    struct gr_cached_plan plan[GR_N_PLAN];
    uint64_t n_use;

    /* the batch under way; reused */
    bool running;
    struct gr_full_batch batch;
    struct gr_ubatch *ub; /* [ceil(n_batch / n_ubatch)] */
    int32_t *cells;       /* [n_batch] */
    char *staging;        /* the step block on the host, [step_bytes] */

    /* results of the last batch */
    float *logits; /* [n_out, n_vocab] */
    size_t logits_cap;
    int32_t *out_row; /* [n_batch], row of logits or -1 */
    int32_t n_tok;    /* tokens of the last batch, 0 before the first */

    _Atomic int cancel;
    char *tap_name;
    gr_tensor_fn *tap_fn;
    void *tap_user;
};

/* Bytes of the K and V tensors of all layers; the one place where cache sizes are computed.
 * GR_E_INVALID when a head does not hold whole blocks of the type, GR_E_TOO_LARGE when their sum
 * overflows. */
int gr_cache_bytes(const struct gr_hparams *hp, uint32_t n_cell, uint32_t type_k, uint32_t type_v,
                   uint64_t *k, uint64_t *v);

#endif
