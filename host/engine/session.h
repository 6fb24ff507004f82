/* A session: its caches, one backend, and the step loop. gpurun.h documents what callers see. */
#ifndef GR_ENGINE_SESSION_H
#define GR_ENGINE_SESSION_H

#include <stdatomic.h>

#include "batch/batch.h"
#include "engine/memory.h"
#include "gr/backend.h"
#include "graph/graph.h"
#include "kv/cache.h"
#include "model/model.h"

enum gr_plan_kind { GR_PLAN_STEP, GR_PLAN_SHIFT, GR_PLAN_COPY, GR_PLAN_COPY_SWA };

/* A plan that has been built, placed and prepared; the most recently used ones are kept. */
struct gr_cached_plan {
    struct gr_plan plan;
    void *exec; /* NULL = the slot is free */
    uint64_t used;
    enum gr_plan_kind kind;
};

#define GR_N_PLAN 12

struct gr_session {
    struct gr_model *model;
    struct gr_session_params params; /* all defaults filled in */
    struct gr_backend *backend;
    struct gr_cache cache;
    struct gr_memory memory; /* what the caches' tensors are */
    char model_hash[33];     /* for saved states; "" until it is asked for */

    /* device memory */
    struct gr_ten *tensors; /* [5][n_layer]: k, v, k_far, conv_state, ssm_state */
    void *cache_memory, *step, *arena, *freq_memory;
    size_t step_bytes, arena_bytes;

    struct gr_graph_env env;
    struct gr_cached_plan plan[GR_N_PLAN];
    uint64_t n_use;

    /* the batch under way; reused */
    bool running;
    struct gr_full_batch batch;
    struct gr_ubatch *ub;    /* [n_batch] */
    int32_t *tok;            /* [n_batch] */
    struct gr_placed placed; /* of the micro-batch under way: [n_ubatch], states [n_seq_max] */
    void *placed_memory;
    char *staging; /* the step block on the host, [step_bytes] */

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

/* The plan for a shape: from the cache, or made in the place of the one not used for longest. */
int gr_plan_for(struct gr_session *s, enum gr_plan_kind kind, const struct gr_step_shape *shape,
                struct gr_cached_plan **out);
/* Uploads the staged step block and runs. */
int gr_plan_run(struct gr_session *s, struct gr_cached_plan *c);
/* Drops all plans: their addresses are about to change. */
void gr_plan_drop_all(struct gr_session *s);
/* An array of the step block on the host. */
static inline void *gr_staged(struct gr_session *s, const struct gr_cached_plan *c,
                              enum gr_step_array a)
{
    return s->staging + c->plan.layout.offset[a];
}

/* Which of the model's frequency divisors the session uses: "none", "the model's", or LongRoPE's
 * "short" or "long". */
const char *gr_rope_factors_name(const struct gr_session *s);
/* Runs the copies that belong to an operation on the caches. */
int gr_run_moves(struct gr_session *s, const struct gr_kv_moves moves[GR_N_CACHE_KIND]);
/* Rotates the K of every cell that was moved, so that nothing is pending. */
int gr_apply_shift(struct gr_session *s);

#endif
