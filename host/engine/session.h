/* A session: its caches, its devices, and the step loop. gpurun.h documents what callers see. Each
 * part is declared by the file that owns it. */
#ifndef GR_ENGINE_SESSION_H
#define GR_ENGINE_SESSION_H

#include <stdatomic.h>

#include "batch/batch.h"
#include "engine/device_sampling.h"
#include "engine/lists.h"
#include "engine/memory.h"
#include "engine/observe.h"
#include "engine/offload.h"
#include "engine/pending.h"
#include "engine/plans.h"
#include "engine/ranks_hooks.h"
#include "engine/times.h"
#include "gr/backend.h"
#include "graph/graph.h"
#include "kv/cache.h"
#include "model/model.h"
#include "sample/sampler.h"

/* Pooling of a sequence's output rows: kept as they are, the first, the last, or their mean. */
enum gr_pool_kind { GR_POOL_ROWS, GR_POOL_FIRST, GR_POOL_LAST, GR_POOL_MEAN };

/* A session's resources on one device; device 0 is the CPU. */
struct gr_session_device {
    struct gr_backend *backend; /* with a command queue of its own on that device */
    char name[16];
    void *cache;
    struct gr_plan_memory memory;           /* arena, step block, constants */
    struct gr_memory_need has;              /* bytes of cache and memory */
    struct gr_dirty_range dirty[GR_N_LIST]; /* changes of the host's lists not yet uploaded here */
    bool busy;                              /* queued work has not been waited for .. */
    bool pending;                           /* .. and may still read host memory passed to it */
    struct gr_session *session;             /* for the callback of its timer */
};

/* Callbacks around the plan of each micro-batch that pass values between pipeline stages. */
struct gr_flow {
    /* Before the plan runs, with the step block filled: receives its `in` (gr_boundary_in). */
    int (*in)(struct gr_session *s, const struct gr_plan *p, void *user);
    /* After the plan has run: sends its `out` to the next stage (gr_boundary_out). rows: the
     * results of the micro-batch, n bytes; 0 except in the last stage. */
    int (*out)(struct gr_session *s, const struct gr_plan *p, const void *rows, size_t n,
               void *user);
    void *user;
};

struct gr_session {
    struct gr_model *model;
    struct gr_rank_model *rank_model; /* the part of the model that this session runs */
    struct gr_session_params params;  /* all defaults filled in */
    struct gr_cache cache;
    struct gr_memory memory;               /* shapes and sizes of the caches' tensors */
    char model_hash[33];                   /* for saved states; "" until first needed */
    char adapter_hash[GR_MAX_ADAPTER][33]; /* likewise */

    struct gr_session_device device[GR_MAX_DEVICE];
    int32_t n_device;
    /* allocates the host memory of the step block, the CPU's arena and the logits */
    struct gr_backend *pin;
    uint8_t cache_device[GR_MAX_LAYER]; /* device of the K and V that each layer attends to */
    struct gr_ten *tensors;             /* [5][n_layer]: k, v, k_far, conv_state, ssm_state */

    enum gr_pool_kind pool;
    int32_t n_row; /* length of a row of results: of logits, or of a vector */

    const struct gr_flow *flow; /* NULL: this session runs all stages */
    struct gr_graph_env env;
    struct gr_offloading offload;
    struct gr_plans plans;
    uint32_t adapters_reserved; /* plans have memory for all of these at once; bits (adapters.c) */
    struct gr_lists lists;

    /* the batch being computed; buffers are reused */
    bool running;
    struct gr_pending_batch *now; /* its results */
    struct gr_full_batch batch;
    struct gr_ubatch *ub;    /* [n_batch] */
    int32_t *tok;            /* [n_batch] */
    struct gr_placed placed; /* of the current micro-batch: cells [n_ubatch], states [n_seq_max] */
    void *placed_memory;

    struct gr_device_sampling sampled;
    struct gr_results results;

    /* with several ranks */
    const struct gr_ranks_hooks *ranks; /* NULL: this session runs alone */
    struct gr_rank_session *rank;       /* what host/ranks keeps for it */
    bool receiving;                     /* its devices wait for data from another rank */
    struct gr_timing timing;

    _Atomic int cancel;
    struct gr_observers observers;
};

/* The address of a plan's value, on its device. */
static inline void *gr_session_at(const struct gr_session *s, const struct gr_plan *p, uint32_t v)
{
    const struct gr_value *value = (const struct gr_value *)p->value.data + v;
    return (char *)s->device[value->device].memory.arena + value->offset;
}
/* Returns an array of the host's step block. */
static inline void *gr_staged(struct gr_session *s, const struct gr_cached_plan *c,
                              enum gr_step_array a)
{
    return (char *)s->device[0].memory.step + c->plan.layout.offset[a];
}

/* Marks a device as busy with work that reads host memory. */
static inline void gr_session_mark_queued(struct gr_session_device *v)
{
    v->busy = v->pending = true;
}

#endif
