/* The plans of a session. */
#ifndef GR_ENGINE_PLANS_H
#define GR_ENGINE_PLANS_H

#include <stdint.h>

#include "gr/backend.h"
#include "gr/model_params.h"
#include "graph/plan.h"

struct gr_session;

enum gr_plan_kind { GR_PLAN_STEP, GR_PLAN_ENCODE, GR_PLAN_SHIFT, GR_PLAN_COPY, GR_PLAN_COPY_SWA };

/* A built, placed and prepared plan; a session keeps the most recently used ones. */
struct gr_cached_plan {
    struct gr_plan plan;
    void **exec;    /* [segments] as the backends made them; NULL = the slot is free */
    void *result;   /* where its only segment writes the result (segment_move); NULL: the arena */
    uint64_t used;  /* gr_plans.n_use at the last use */
    uint64_t n_run; /* since gr_session_plans was called last */
    enum gr_plan_kind kind;
    float adapter_scale[GR_MAX_ADAPTER]; /* that the plan was made with */
};

#define GR_N_PLAN 12

/* Device memory that a session needs beside the weights, bytes. */
struct gr_memory_need {
    uint64_t cache, arena, scratch, step, constants;
};

/* Everything but the cache. */
static inline uint64_t gr_memory_need_work(const struct gr_memory_need *n)
{
    return n->arena + n->scratch + n->step + n->constants;
}

/* The plans that a session keeps. */
struct gr_plans {
    struct gr_cached_plan plan[GR_N_PLAN];
    uint64_t n_use, n_made; /* uses of plans; plans built for them */
};

/* Returns the plan for a shape: a kept one, or a new one in place of the least recently used. The
 * host's step block may be filled afterwards: earlier uploads from it have finished. */
int gr_plan_for(struct gr_session *s, enum gr_plan_kind kind, const struct gr_step_shape *shape,
                struct gr_cached_plan **out);
/* Runs a plan with the staged step block and writes its result, if any, to `out` unless that is
 * NULL. Devices may still be computing on return (gr_session_sync), except after a failure. */
int gr_plan_run(struct gr_session *s, struct gr_cached_plan *c, void *out);
/* Drops all plans, because memory whose addresses they hold is about to change. */
void gr_plan_drop_all(struct gr_session *s);
/* Raises need[] to what the largest plans take on each device beside caches and constants. Builds
 * and drops plans and asks the backends; allocates no device memory. */
int gr_plan_measure(struct gr_session *s, struct gr_backend *const *backend,
                    struct gr_memory_need need[GR_MAX_DEVICE]);
/* Builds the largest plans with all their memory, so that later plans fit into it. */
int gr_plan_reserve(struct gr_session *s);

#endif
