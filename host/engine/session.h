/* A session: its caches, its devices, and the step loop. gpurun.h documents what callers see. */
#ifndef GR_ENGINE_SESSION_H
#define GR_ENGINE_SESSION_H

#include <stdatomic.h>

#include "batch/batch.h"
#include "engine/memory.h"
#include "engine/times.h"
#include "engine/watch.h"
#include "gr/backend.h"
#include "graph/graph.h"
#include "kv/cache.h"
#include "link/link.h"
#include "model/model.h"
#include "sample/sampler.h"

/* What becomes of the wanted rows of a sequence: they stay, one stands for all, or their mean. */
enum gr_pool_how { GR_POOL_ROWS, GR_POOL_FIRST, GR_POOL_LAST, GR_POOL_MEAN };

enum gr_plan_kind { GR_PLAN_STEP, GR_PLAN_ENCODE, GR_PLAN_SHIFT, GR_PLAN_COPY, GR_PLAN_COPY_SWA };

/* A plan that has been built, placed and prepared; the most recently used ones are kept. */
struct gr_cached_plan {
    struct gr_plan plan;
    void **exec; /* of each part; NULL = the slot is free */
    uint64_t used;
    enum gr_plan_kind kind;
};

#define GR_N_PLAN 12

/* Device memory that a session needs beside the weights, bytes. */
struct gr_need {
    uint64_t cache, arena, scratch, step, constants;
};

/* All but the cache. */
static inline uint64_t gr_need_work(const struct gr_need *n)
{
    return n->arena + n->scratch + n->step + n->constants;
}

/* Arrays of the step block that stay from step to step, and what changed in one: bytes [lo, hi) of
 * the step block. */
#define GR_N_LIST (GR_STEP_KEY_POS + 1)
struct gr_stale {
    int64_t lo, hi;
};

/* What a session has on a device; number 0 is the CPU. */
struct gr_session_device {
    struct gr_backend *backend; /* a queue of its own on that device */
    char name[16];
    void *cache;
    struct gr_plan_memory memory;     /* arena, step block, constants */
    struct gr_need has;               /* bytes of these */
    struct gr_stale stale[GR_N_LIST]; /* of the lists of its step block, not yet as the host's */
    bool busy;                        /* has work queued that was not waited for .. */
    bool pending;                     /* .. which may still read host memory that was given to it */
    struct gr_session *session;       /* for its timer */
};

/* What happens around the plan of each micro-batch where stages follow each other: how values get
 * from one to the next. */
struct gr_flow {
    /* Before it runs, with the step block filled: its `in` comes (gr_boundary_in). */
    int (*in)(struct gr_session *s, const struct gr_plan *p, void *user);
    /* After it has run: its `out` goes on (gr_boundary_out). */
    int (*out)(struct gr_session *s, const struct gr_plan *p, void *user);
    void *user;
};

/* Values of a micro-batch on their way to the next stage. */
struct gr_departure {
    struct gr_frame_out out;
    void *buf; /* [cap] of s->pin's host memory */
    size_t cap;
};
#define GR_N_DEPARTURE 3

/* What a batch leaves: rows of logits, or the tokens that were drawn. */
struct gr_flight {
    float *logits; /* [n_out, n_row] logits or vectors; with `draws` tokens instead, [n_out] i32 */
    size_t logits_cap;
    int32_t *out_row;     /* [n_batch], row of logits or -1 */
    int32_t *seq_row;     /* [n_seq_max], row that stands for a sequence or -1 */
    int32_t n_tok, n_out; /* n_tok 0: there is nothing */
    bool draws;           /* all outputs of the batch belong to sequences whose tokens are drawn */
    /* with several ranks */
    int status;       /* that a stage before this one failed with */
    int32_t n_ubatch; /* results of micro-batches that are still to come, to rank 0 */
    int32_t n_come;   /* rows that have come */
    struct gr_session *session;
    struct gr_flight *next; /* whose results come after this one's */
};

#define GR_N_FLIGHT (GR_MAX_FLIGHT + 1) /* and the one that ended last */

struct gr_session {
    struct gr_model *model;
    struct gr_slice *slice;          /* of the model: what this session runs */
    struct gr_session_params params; /* all defaults filled in */
    struct gr_cache cache;
    struct gr_memory memory; /* what the caches' tensors are */
    char model_hash[33];     /* for saved states; "" until it is asked for */

    struct gr_session_device device[GR_MAX_DEVICE];
    int32_t n_device;
    struct gr_backend
        *pin; /* whose host memory the step block, the CPU's arena and the logits are in */
    uint8_t cache_device[GR_MAX_LAYER]; /* of what each layer attends to */
    struct gr_ten *tensors;             /* [5][n_layer]: k, v, k_far, conv_state, ssm_state */

    enum gr_pool_how pool;
    int32_t n_row; /* numbers in a row of results: logits, or of a vector */

    struct gr_streamed streamed;        /* of steps from stream_from tokens on .. */
    int32_t stream_device, stream_from; /* .. that this device computes; 0: no steps are */

    const struct gr_flow *flow; /* NULL: this session runs all stages */
    struct gr_graph_env env;
    struct gr_cached_plan plan[GR_N_PLAN];
    uint64_t n_use, n_made;          /* uses of plans; plans that had to be made for one */
    int32_t n_list[GR_N_CACHE_KIND]; /* more than lists have room for at first; 0: they do not */
    bool lists_kept;                 /* those of the step block are as they were filled last */

    /* the batch under way; reused */
    bool running;
    struct gr_flight *now; /* what it leaves */
    struct gr_full_batch batch;
    struct gr_ubatch *ub;    /* [n_batch] */
    int32_t *tok;            /* [n_batch] */
    struct gr_placed placed; /* of the micro-batch under way: [n_ubatch], states [n_seq_max] */
    void *placed_memory;

    struct gr_sampler *sampler[GR_SEQ_MAX]; /* that a device draws by, of each sequence, or NULL */
    struct gr_sample_how *how;              /* [n_out] of each row of the batch, when it is drawn */
    size_t how_cap;

    /* results: a ring of the batch that ended last and of n_flight that have begun behind it */
    struct gr_flight flight[GR_N_FLIGHT];
    int32_t last, n_flight;

    /* with several ranks */
    struct gr_team *team;                          /* NULL: this session runs alone */
    uint32_t id;                                   /* its number there */
    struct gr_departure departure[GR_N_DEPARTURE]; /* used in turn */
    uint64_t n_departure;
    struct gr_spent spent;
    void *arrival; /* [arrival_cap] what came from the stage before */
    size_t arrival_cap;
    bool arriving;      /* its devices wait for what comes by a transport */
    struct gr_vec span; /* struct gr_transport_span: of a message of a transport */
    void *relay;        /* [relay_cap] of the device: values of the CPU that go by a transport */
    size_t relay_cap;

    _Atomic int cancel;
    struct gr_progress progress; /* done: tokens of the batch in front of the micro-batch that runs,
                                    which has part_tok, 0: none runs */
    int32_t part_tok, part_node, all_node; /* nodes in front of the part that runs, and all */
    char *tap_name;
    struct gr_watch watch;
    gr_tensor_fn *tap_fn;
    void *tap_user;
    gr_sample_fn *time_fn;
    void *time_user;
    int64_t time_start, part_start; /* ns: of timing; of the part that runs, since then */
};

/* ---- open.c ---- */

/* gr_session_open, for what one rank has of its model. */
int gr_session_open_slice(struct gr_session **out, struct gr_slice *slice,
                          const struct gr_session_params *params);

/* ---- devices.c ---- */

/* Where tensors, layers and caches are, for a placement; no memory is touched. */
void gr_session_place(struct gr_session *s, const struct gr_weights *weights);
/* Bytes of the caches of each layer, cost [n_layer], if it were on this device. */
void gr_session_cache_by_layer(const struct gr_session *s, int32_t device,
                               struct gr_layer_cost *cost);
/* Memory for the caches and constants by s->device[].has, and the constants' contents. */
int gr_session_alloc(struct gr_session *s);
/* Says how large this rank's caches are, a line for each place; rank 0 also says it of all. */
void gr_session_log_caches(const struct gr_session *s);
/* The device of a tensor of s->tensors; -1: it is of another stage, and has no memory here. */
int32_t gr_tensor_device(const struct gr_session *s, const struct gr_ten *t);
/* Before the host waits for a device that waits for another rank: until that has sent, or is lost.
 */
int gr_session_arrived(struct gr_session *s);
/* Waits until no device reads host memory any more, but for `except` (-1: none); what they compute
 * with it goes on. */
int gr_session_uploaded(struct gr_session *s, int32_t except);
/* Waits until nothing is queued anywhere. */
int gr_session_settle(struct gr_session *s);
/* Whether gr_decode ends when s->cancel is set. */
void gr_session_cancellable(struct gr_session *s, bool yes);

/* ---- decode.c ---- */

/* Gives a micro-batch its cells, and makes ready what computes it: the plan, with the step block
 * filled. first_row: of its logits among those of the batch. */
int gr_ubatch_ready(struct gr_session *s, const struct gr_flight *f, const struct gr_ubatch *ub,
                    int32_t first_row, struct gr_cached_plan **out);
/* Rotates the K of every cell that was moved, so that nothing is pending. */
int gr_apply_shift(struct gr_session *s);
/* Runs the copies that belong to an operation on the caches. */
int gr_run_moves(struct gr_session *s, const struct gr_kv_moves moves[GR_N_CACHE_KIND]);
/* What profilers show on all devices of the session. */
void gr_session_range(struct gr_session *s, enum gr_range range, int64_t payload);
void gr_session_range_end(struct gr_session *s);

/* ---- flight.c ---- */

/* Room for the results of a batch of n_tok tokens and n_out rows of logits. */
int gr_flight_room(struct gr_session *s, struct gr_flight *f, int32_t n_out);
void gr_flight_fini(struct gr_session *s, struct gr_flight *f);
/* Everything of a batch that can be refused, before anything changes: checks it, cuts it into
 * s->ub and finds cells. */
int gr_batch_reserve(struct gr_session *s, const struct gr_batch *batch, struct gr_flight *f,
                     int32_t *n_ub);
/* Shows profilers that the batch of s is computed; gr_session_range_end ends it. */
void gr_batch_range(struct gr_session *s);
/* Takes a failed batch back, and says in the message which sequences that has cost. */
void gr_batch_take_back(struct gr_session *s, int status);

/* ---- progress.c ---- */

/* Tells who waits that so many thousandths of a token of the micro-batch under way are done too. */
void gr_session_tell(struct gr_session *s, uint64_t part);

/* ---- sequences.c ---- */

/* Empties all cells, on all ranks. */
void gr_session_clear(struct gr_session *s);

/* ---- vectors.c ---- */

/* Fills in what sessions leave, or refuses it. */
int gr_vectors_fill(const struct gr_model *m, struct gr_session_params *p);
/* What s->params mean for plans and rows. */
void gr_vectors_init(struct gr_session *s);
/* Of a checked batch the tokens whose rows are needed. */
int gr_vectors_choose(struct gr_session *s, struct gr_flight *f);
/* Once tokens have rows (f->out_row): sequences have them too. Returns how many there are. */
int32_t gr_vectors_number(struct gr_session *s, struct gr_flight *f);
/* Rows of results of a micro-batch of the flight under way. */
int32_t gr_vectors_rows(const struct gr_session *s, const struct gr_ubatch *ub);
/* The rows of each sequence, in the order of their numbers. */
void gr_vectors_fill_step(const struct gr_session *s, const struct gr_ubatch *ub, int32_t *list,
                          int32_t *at);
/* What is left to do when all rows of a flight have come. */
void gr_vectors_settle(const struct gr_session *s, struct gr_flight *f);

/* ---- draw.c ---- */

/* Whether every token of the batch whose logits are wanted is drawn. */
bool gr_draw_all(const struct gr_session *s);
/* Room for s->how of n_out rows; how the rows of the batch are drawn, in their order. */
int gr_draw_room(struct gr_session *s, int32_t n_out);
void gr_draw_fill(struct gr_session *s, int32_t n_ub);
/* After a batch: its draws count, or they do not. */
void gr_draw_settle(struct gr_session *s, bool done);

/* ---- lists.c ---- */

/* The room of the session's lists, in the shape of any plan of it. */
void gr_lists_shape(const struct gr_session *s, struct gr_step_shape *shape);
/* Makes it enough for a micro-batch that has its cells: GR_E_TOO_LARGE. */
int gr_lists_room(struct gr_session *s, const struct gr_ubatch *ub);
/* Lists and spans of a micro-batch into the step block. */
void gr_lists_fill(struct gr_session *s, const struct gr_cached_plan *c,
                   const struct gr_ubatch *ub);
/* Uploads to device d what changed in the lists since that was done last. */
int gr_lists_send(struct gr_session *s, int32_t d);
/* The step block is a new one: nothing of the lists is there. */
void gr_lists_forget(struct gr_session *s);

/* ---- plans.c ---- */

/* The plan for a shape: from the cache, or made in the place of the one not used for longest. The
 * step block may be filled then: what ran before has its own. */
int gr_plan_for(struct gr_session *s, enum gr_plan_kind kind, const struct gr_step_shape *shape,
                struct gr_cached_plan **out);
/* Runs with the staged step block; the plan's result, if it has one, goes to `out` unless that is
 * NULL. Devices may still be at it then (gr_session_settle), unless it has failed. */
int gr_plan_run(struct gr_session *s, struct gr_cached_plan *c, void *out);
/* Drops all plans: their addresses are about to change. */
void gr_plan_drop_all(struct gr_session *s);
/* What the largest plans need, beside caches and constants, on each device. Plans are built and
 * dropped; backends are asked, memory is not touched. */
int gr_plan_measure(struct gr_session *s, struct gr_backend *const *backend,
                    struct gr_need need[GR_MAX_DEVICE]);
/* Makes them, with all memory that they need, so that later ones find theirs. */
int gr_plan_reserve(struct gr_session *s);
/* The address of a plan's value, on its device. */
static inline void *gr_session_at(const struct gr_session *s, const struct gr_plan *p, uint32_t v)
{
    const struct gr_value *value = (const struct gr_value *)p->value.data + v;
    return (char *)s->device[value->device].memory.arena + value->offset;
}
/* An array of the step block on the host. */
static inline void *gr_staged(struct gr_session *s, const struct gr_cached_plan *c,
                              enum gr_step_array a)
{
    return (char *)s->device[0].memory.step + c->plan.layout.offset[a];
}

/* Notes that a device is given work, with host memory that it reads. */
static inline void gr_session_gives(struct gr_session_device *v)
{
    v->busy = v->pending = true;
}

/* ---- stream.c ---- */

/* Which layers of the CPU run on a GPU in steps of many tokens, and of how many, for a placement
 * (after gr_session_place). No memory is touched. */
int gr_stream_begin(struct gr_session *s, const struct gr_weights *weights);
/* From now on none do. There are no plans any more. */
void gr_stream_end(struct gr_session *s);
/* What plans of a shape are built over. */
struct gr_graph_env gr_stream_env(const struct gr_session *s, const struct gr_step_shape *shape);
/* Asks for the weights whose time has come: that of part i, or -1, the plan's beginning. */
int gr_stream_ask(struct gr_session *s, const struct gr_plan *p, int32_t i);

/* ---- boundary.c ---- */

/* Bytes of a plan's `in` or `out`, one value after the other. */
size_t gr_boundary_bytes(const struct gr_plan *p, const struct gr_vec *values);
/* Takes a plan's `in` from so many bytes on the host. Memory of a device's host_alloc must not
 * change before the plan has run. */
int gr_boundary_in(struct gr_session *s, const struct gr_plan *p, const void *buf);
/* Puts a plan's `out` there. */
int gr_boundary_out(struct gr_session *s, const struct gr_plan *p, void *buf);

/* Which of the model's frequency divisors the session uses: "none", "the model's", or LongRoPE's
 * "short" or "long". */
const char *gr_rope_factors_name(const struct gr_session *s);

#endif
