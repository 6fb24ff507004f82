/* A session: its caches, its devices, and the step loop. gpurun.h documents what callers see. */
#ifndef GR_ENGINE_SESSION_H
#define GR_ENGINE_SESSION_H

#include <stdatomic.h>

#include "batch/batch.h"
#include "engine/imatrix.h"
#include "engine/memory.h"
#include "engine/ranks_hooks.h"
#include "engine/times.h"
#include "gr/backend.h"
#include "graph/graph.h"
#include "kv/cache.h"
#include "model/model.h"
#include "sample/sampler.h"

/* Pooling of a sequence's output rows: kept as they are, the first, the last, or their mean. */
enum gr_pool_how { GR_POOL_ROWS, GR_POOL_FIRST, GR_POOL_LAST, GR_POOL_MEAN };

enum gr_plan_kind { GR_PLAN_STEP, GR_PLAN_ENCODE, GR_PLAN_SHIFT, GR_PLAN_COPY, GR_PLAN_COPY_SWA };

/* A built, placed and prepared plan; a session keeps the most recently used ones. */
struct gr_cached_plan {
    struct gr_plan plan;
    void **exec;    /* [segments] as the backends made them; NULL = the slot is free */
    uint64_t used;  /* s->n_use at the last use */
    uint64_t n_run; /* since gr_session_plans was called last */
    enum gr_plan_kind kind;
};

#define GR_N_PLAN 12

/* Device memory that a session needs beside the weights, bytes. */
struct gr_need {
    uint64_t cache, arena, scratch, step, constants;
};

/* Everything but the cache. */
static inline uint64_t gr_need_work(const struct gr_need *n)
{
    return n->arena + n->scratch + n->step + n->constants;
}

/* The first GR_N_LIST arrays of the step block are kept from step to step. gr_stale: the bytes
 * [lo, hi) of the step block in which one of them has changed on the host. */
#define GR_N_LIST (GR_STEP_KEY_POS + 1)
struct gr_stale {
    int64_t lo, hi;
};

/* A session's resources on one device; device 0 is the CPU. */
struct gr_session_device {
    struct gr_backend *backend; /* with a command queue of its own on that device */
    char name[16];
    void *cache;
    struct gr_plan_memory memory;     /* arena, step block, constants */
    struct gr_need has;               /* bytes of cache and memory */
    struct gr_stale stale[GR_N_LIST]; /* changes of the host's lists not yet uploaded here */
    bool busy;                        /* queued work has not been waited for .. */
    bool pending;                     /* .. and may still read host memory passed to it */
    struct gr_session *session;       /* for the callback of its timer */
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

/* Results of a batch: rows of logits or vectors, or the sampled tokens. */
struct gr_flight {
    float *logits; /* [n_out, n_row] logits or vectors; with `draws` [n_out] i32 tokens instead */
    size_t logits_cap;
    int32_t *out_row;     /* [n_batch], a token's row of logits or -1 */
    int32_t *seq_row;     /* [n_seq_max], a sequence's row of results or -1 */
    int32_t n_tok, n_out; /* n_tok 0: no results */
    bool draws;           /* a device samples the tokens of all outputs of the batch */
    /* with several ranks */
    int status;       /* failure of an earlier stage, or 0 */
    int32_t n_begun;  /* micro-batches begun on this rank */
    int32_t n_ubatch; /* on rank 0: micro-batches whose results have not arrived yet */
    int32_t n_come;   /* rows that have arrived */
    struct gr_session *session;
    struct gr_flight *next; /* the flight whose results arrive after this one's */
};

#define GR_N_FLIGHT (GR_MAX_FLIGHT + 1) /* those in flight and the one that ended last */

struct gr_session {
    struct gr_model *model;
    struct gr_slice *slice;          /* the part of the model that this session runs */
    struct gr_session_params params; /* all defaults filled in */
    struct gr_cache cache;
    struct gr_memory memory; /* shapes and sizes of the caches' tensors */
    char model_hash[33];     /* for saved states; "" until first needed */

    struct gr_session_device device[GR_MAX_DEVICE];
    int32_t n_device;
    struct gr_backend
        *pin; /* allocates the host memory of the step block, the CPU's arena and the logits */
    uint8_t cache_device[GR_MAX_LAYER]; /* device of the K and V that each layer attends to */
    struct gr_ten *tensors;             /* [5][n_layer]: k, v, k_far, conv_state, ssm_state */

    enum gr_pool_how pool;
    int32_t n_row; /* length of a row of results: of logits, or of a vector */

    struct gr_streamed streamed;        /* weights offloaded in steps of stream_from or more .. */
    int32_t stream_device, stream_from; /* .. tokens to this device; device 0: none */

    const struct gr_flow *flow; /* NULL: this session runs all stages */
    struct gr_graph_env env;
    struct gr_cached_plan plan[GR_N_PLAN];
    uint64_t n_use, n_made;          /* uses of plans; plans built for them */
    int32_t n_list[GR_N_CACHE_KIND]; /* enlarged capacity of the lists; 0: the initial one */
    bool lists_kept;                 /* the step block still holds the lists filled last */

    /* the batch being computed; buffers are reused */
    bool running;
    struct gr_flight *now; /* its results */
    struct gr_full_batch batch;
    struct gr_ubatch *ub;    /* [n_batch] */
    int32_t *tok;            /* [n_batch] */
    struct gr_placed placed; /* of the current micro-batch: cells [n_ubatch], states [n_seq_max] */
    void *placed_memory;

    struct gr_sampler *sampler[GR_SEQ_MAX]; /* device-side sampler of each sequence, or NULL */
    struct gr_sample_how *how; /* [n_out] sampling parameters of each row that is sampled */
    size_t how_cap;

    /* results: a ring of the batch that ended last and the n_flight ones begun after it */
    struct gr_flight flight[GR_N_FLIGHT];
    int32_t last, n_flight;

    /* with several ranks */
    const struct gr_ranks_hooks *ranks; /* NULL: this session runs alone */
    struct gr_rank_session *rank;       /* what host/ranks keeps for it */
    bool arriving;                      /* its devices wait for data from another rank */
    struct gr_spent spent;

    _Atomic int cancel;
    struct gr_progress progress; /* done: tokens of the batch before the current micro-batch, which
                                    has part_tok tokens (0: none is running) */
    int32_t part_tok;
    int32_t segment_node, all_node; /* nodes before the current segment, and of the plan */
    char *tap_name;
    struct gr_watch watch;
    gr_tensor_fn *tap_fn;
    void *tap_user;
    gr_sample_fn *time_fn;
    void *time_user;
    int64_t time_start, segment_start; /* ns: start of timing; of the current segment, relative to
                                          it */
};

/* ---- open.c ---- */

/* Fills in defaults that depend on the model and the machine, and checks all parameters except
 * those of the caches (gr_memory_plan). */
int gr_session_fill(const struct gr_model *model, struct gr_session_params *p);
/* Opens the session of one rank in two steps, the slice's weights being loaded between them. The
 * first one makes a session without GPUs and cache memory: checked parameters, the caches' shapes,
 * the constants on the CPU. measure: it serves to measure only, and leaves the CPU's threads as
 * they are. Closed by gr_session_close, also after a failure. */
int gr_session_begin(struct gr_session **out, struct gr_slice *slice,
                     const struct gr_session_params *params, bool measure);
int gr_session_finish(struct gr_session *s);
/* Exchanges what two sessions have, except the tap, the timer and the samplers of device-side
 * sampling, which belong to the handle. Pointers to them must be updated by their owners. */
int gr_session_exchange(struct gr_session *a, struct gr_session *b);

/* ---- devices.c ---- */

/* Sets the devices of tensors, layers and caches for a placement; allocates nothing. */
void gr_session_place(struct gr_session *s, const struct gr_weights *weights);
/* Sets cost[il].cache, [n_layer], to the cache bytes of each layer if it were on this device. */
void gr_session_cache_by_layer(const struct gr_session *s, int32_t device,
                               struct gr_layer_cost *cost);
/* Allocates caches and constants by s->device[].has, and uploads the constants. */
int gr_session_alloc(struct gr_session *s);
/* Logs the size of this rank's caches on each device; rank 0 also logs that of the whole model's.
 */
void gr_session_log_caches(const struct gr_session *s);
/* Returns the device of a tensor of s->tensors; -1: it belongs to another stage. */
int32_t gr_tensor_device(const struct gr_session *s, const struct gr_ten *t);
/* Waits until the data that devices await from another rank has arrived; GR_E_PEER_LOST. Called
 * before the host waits for such a device. */
int gr_session_arrived(struct gr_session *s);
/* Waits until all uploads have finished reading host memory, except those to device `except` (-1:
 * none); computation on the devices continues. */
int gr_session_uploaded(struct gr_session *s, int32_t except);
/* Waits until all queued work of all devices is done. */
int gr_session_settle(struct gr_session *s);
/* Sets whether devices stop within a plan when s->cancel is set; ranks that share layers never do.
 */
void gr_session_cancellable(struct gr_session *s, bool yes);

/* ---- step.c ---- */

/* Assigns cells to a micro-batch, gets its plan and fills the step block. first_row: the first of
 * its rows of logits among those of the batch. */
int gr_ubatch_ready(struct gr_session *s, const struct gr_flight *f, const struct gr_ubatch *ub,
                    int32_t first_row, struct gr_cached_plan **out);
/* Runs this rank's part of a reserved batch: its micro-batches, one after the other, until a
 * failure, or until f->status has that of an earlier stage. */
int gr_batch_run(struct gr_session *s, struct gr_flight *f, int32_t n_ub);
/* Applies all pending K-shifts: rotates the K of every cell whose position has changed. */
int gr_apply_shift(struct gr_session *s);
/* Runs the copies of K and V that an operation on the caches needs. */
int gr_run_moves(struct gr_session *s, const struct gr_kv_moves moves[GR_N_CACHE_KIND]);
/* Begin and end a profiler range on all devices of the session. */
void gr_session_range(struct gr_session *s, enum gr_range range, int64_t payload);
void gr_session_range_end(struct gr_session *s);

/* ---- pending.c ---- */

/* Allocates room for n_out rows of results and for the row numbers of n_batch tokens. */
int gr_flight_room(struct gr_session *s, struct gr_flight *f, int32_t n_out);
void gr_flight_fini(struct gr_session *s, struct gr_flight *f);
/* Checks a batch, splits it into micro-batches (s->ub) and reserves cells; a refused batch changes
 * nothing. */
int gr_batch_reserve(struct gr_session *s, const struct gr_batch *batch, struct gr_flight *f,
                     int32_t *n_ub);
/* Begins the profiler range of the batch of s; gr_session_range_end ends it. */
void gr_batch_range(struct gr_session *s);
/* Removes a failed batch from the caches; the error message names the sequences emptied by that. */
void gr_batch_take_back(struct gr_session *s, int status);

/* ---- progress.c ---- */

/* Reports progress: s->progress.done tokens and `part` thousandths of a token of the current
 * micro-batch. */
void gr_session_tell(struct gr_session *s, uint64_t part);

/* ---- sequences.c ---- */

/* Empties all cells, on all ranks. */
void gr_session_clear(struct gr_session *s);

/* ---- vectors.c ---- */

/* Fills in the defaults of embeddings and pooling, or refuses them. */
int gr_vectors_fill(const struct gr_model *m, struct gr_session_params *p);
/* Sets s->pool, s->n_row and the outputs of plans (s->env) from s->params. */
void gr_vectors_init(struct gr_session *s);
/* Marks the tokens of a checked batch whose output rows pooling needs. */
int gr_vectors_choose(struct gr_session *s, struct gr_flight *f);
/* Assigns result rows to sequences once tokens have theirs (f->out_row). Returns the number of
 * result rows. */
int32_t gr_vectors_number(struct gr_session *s, struct gr_flight *f);
/* Number of result rows of a micro-batch of the current flight. */
int32_t gr_vectors_rows(const struct gr_session *s, const struct gr_ubatch *ub);
/* Fills the arrays of mean pooling: list, the tokens of each sequence in the order of sequence
 * ids; at, the start of each sequence in it, and its end. */
void gr_vectors_fill_step(const struct gr_session *s, const struct gr_ubatch *ub, int32_t *list,
                          int32_t *at);
/* Finishes a flight whose rows have all arrived: softmax of a classifier's scores, if it has one.
 */
void gr_vectors_settle(const struct gr_session *s, struct gr_flight *f);

/* ---- draw.c ---- */

/* Returns whether a device samples the tokens of all outputs of the batch. */
bool gr_draw_all(const struct gr_session *s);
/* Allocates s->how for n_out rows; fills it with the sampling parameters of the batch's rows, in
 * their order. */
int gr_draw_room(struct gr_session *s, int32_t n_out);
void gr_draw_fill(struct gr_session *s, int32_t n_ub);
/* After a batch: commits (done) or undoes the samplers' state for its draws. */
void gr_draw_settle(struct gr_session *s, bool done);

/* ---- lists.c ---- */

/* Sets the capacities of the session's lists, the same in the shape of each of its plans. */
void gr_lists_shape(const struct gr_session *s, struct gr_step_shape *shape);
/* Enlarges these capacities for a micro-batch whose cells are assigned. GR_E_TOO_LARGE. */
int gr_lists_room(struct gr_session *s, const struct gr_ubatch *ub);
/* Writes lists and spans of a micro-batch into the step block. */
void gr_lists_fill(struct gr_session *s, const struct gr_cached_plan *c,
                   const struct gr_ubatch *ub);
/* Uploads to device d the changes of the lists since its last upload. */
int gr_lists_send(struct gr_session *s, int32_t d);
/* Marks the lists as absent from the step block, for instance because it is a new one. */
void gr_lists_forget(struct gr_session *s);

/* ---- plans.c ---- */

/* Returns the plan for a shape: a kept one, or a new one in place of the least recently used. The
 * host's step block may be filled afterwards: earlier uploads from it have finished. */
int gr_plan_for(struct gr_session *s, enum gr_plan_kind kind, const struct gr_step_shape *shape,
                struct gr_cached_plan **out);
/* Runs a plan with the staged step block and writes its result, if any, to `out` unless that is
 * NULL. Devices may still be computing on return (gr_session_settle), except after a failure. */
int gr_plan_run(struct gr_session *s, struct gr_cached_plan *c, void *out);
/* Drops all plans, because memory whose addresses they hold is about to change. */
void gr_plan_drop_all(struct gr_session *s);
/* Raises need[] to what the largest plans take on each device beside caches and constants. Builds
 * and drops plans and asks the backends; allocates no device memory. */
int gr_plan_measure(struct gr_session *s, struct gr_backend *const *backend,
                    struct gr_need need[GR_MAX_DEVICE]);
/* Builds the largest plans with all their memory, so that later plans fit into it. */
int gr_plan_reserve(struct gr_session *s);
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
static inline void gr_session_gives(struct gr_session_device *v)
{
    v->busy = v->pending = true;
}

/* ---- offload.c ---- */

/* Chooses, for a placement, the CPU layers whose weights are offloaded to a GPU in steps of many
 * tokens, and from how many tokens on (after gr_session_place). Allocates no device memory. */
int gr_stream_begin(struct gr_session *s, const struct gr_weights *weights);
/* Ends this. Plans made with it must have been dropped. */
void gr_stream_end(struct gr_session *s);
/* Returns the weights and devices that plans of a shape are built with. */
struct gr_graph_env gr_stream_env(const struct gr_session *s, const struct gr_step_shape *shape);
/* Requests the weights whose upload is due before segment i; -1: at the plan's beginning. */
int gr_stream_ask(struct gr_session *s, const struct gr_plan *p, int32_t i);

/* Names the RoPE frequency divisors in use: "none", "the model's", or LongRoPE's "short" or "long".
 */
const char *gr_rope_factors_name(const struct gr_session *s);

#endif
