/* The ranks that run the sessions of a model together: threads of this process, or processes.
 *
 * How to think of it: control is replicated, data is distributed. Every rank has its own session
 * for each of rank 0's, with the same table of cells. Rank 0 is the user's: it checks a call and
 * decides, tells all others (an order, engine/order.h), and does its part. The others serve: they
 * do one order after the other. What they decide follows from the table and the order, so tables
 * stay equal; each order and each frame of activations has a hash of all that its sender has
 * decided (gr_cache), and who finds another one has lost the team.
 *
 * Activations go from stage to stage, results from the last stage to rank 0. A failure of rank 0 in
 * its own part of a batch goes down the stages behind its micro-batches, and all take the batch
 * back. Any other failure loses the world (gr_world_lose): the team can only be closed then. */
#ifndef GR_ENGINE_TEAM_H
#define GR_ENGINE_TEAM_H

#include <pthread.h>

#include "engine/group.h"
#include "engine/order.h"
#include "engine/session.h"
#include "link/check.h"
#include "link/link.h"

/* A frame with a body that is kept until it has been sent. */
struct gr_parcel {
    struct gr_vec bytes;
    int32_t lo, hi;            /* ranks it goes to; of a rank that serves: rank 0 */
    struct gr_frame_out out[]; /* [n_rank] */
};

struct gr_team {
    struct gr_model *model;
    struct gr_world *world;
    struct gr_slice *slice; /* of this rank */
    bool threads;           /* the other ranks are threads of this process */
    /* Of rank 0 to and from each rank; of others to and from rank 0, at its place. */
    struct gr_port order[GR_MAX_RANK], result[GR_MAX_RANK];
    struct gr_group *group; /* with whom this rank shares its layers, or NULL; once it is loaded */
    struct gr_port in, out; /* from the stage before, to the next; once it is loaded */
    struct gr_path path;    /* of this rank's device; transport NULL: none */
    bool transport_in, transport_out; /* bodies go that way */
    bool transport_group;             /* sums of the ranks that share layers, too */
    struct gr_link_found *found;      /* what was found of these links and of those behind them */
    int n_found;
    struct gr_group_found shared; /* and of the group */
    struct gr_vec parcels;        /* struct gr_parcel * */
    struct gr_vec sessions;       /* struct gr_session *, by their numbers; NULL = closed */
    struct gr_vec body;           /* of what came last */
    uint64_t n_batch;             /* told so far */

    /* of rank 0 */
    pthread_mutex_t lock; /* held while an order is told and rank 0 does its part; recursive */
    struct gr_flight *first, *last; /* whose results are still to come, in their order */
    bool open, met, loaded, mourned;
    uint32_t transports[GR_MAX_RANK]; /* bits of the kinds that each rank could join */
    struct gr_helper *helpers;        /* [n_rank] threads */
    int64_t *clock_ns;                /* [n_rank] what to add to a rank's times to have rank 0's */
};

static inline bool gr_team_leads(const struct gr_team *t)
{
    return t && t->world->rank == 0;
}

/* ---- team.c ---- */

/* Sets what teams of threads are made with from now on, for tests; NULL = nothing. */
struct gr_team_test {
    const struct gr_link_opt *wrap; /* of every link of the data lane */
    int64_t patience_ns;            /* for which a message is waited for; 0 = forever */
    int32_t spoil_rank;             /* decides otherwise at its k-th batch; 0 = nobody */
    uint64_t spoil_at;
    bool nccl; /* threads use NCCL, as processes do */
};
void gr_team_test(const struct gr_team_test *test);
const struct gr_team_test *gr_team_testing(void);

/* The team of a model, made at the first call; *out NULL: it runs alone. The lock of the model is
 * not held. */
int gr_team_of(struct gr_model *m, struct gr_team **out);
/* One rank's part in a world. */
int gr_team_new(struct gr_team **out, struct gr_model *m, struct gr_world *w,
                struct gr_slice *slice);
void gr_team_free(struct gr_team **t);
/* Data links, once the stages are known, tried at once: all ranks do it at the same time. */
int gr_team_link(struct gr_team *t);
/* When what is waited for now is late. */
int64_t gr_team_deadline(void);
/* Something went wrong that leaves ranks with different tables: `rank` is lost, with the message of
 * this thread's last failure, unless one is already. Returns GR_E_PEER_LOST. */
int gr_team_lose(struct gr_team *t, int32_t rank);
/* 0, or GR_E_PEER_LOST; NULL is fine, as for the two below. */
int gr_team_check(const struct gr_team *t);
void gr_team_lock(struct gr_team *t);
void gr_team_unlock(struct gr_team *t);

/* Sends a frame with a body to ranks [lo, hi): an order, or an answer to rank 0. */
struct gr_parcel *gr_parcel_new(struct gr_team *t, int32_t lo, int32_t hi);
int gr_parcel_send(struct gr_team *t, struct gr_parcel *p, const struct gr_frame *frame);
/* The next frame of a port and its body, in t->body. `rank` is lost when it does not come. */
int gr_team_receive(struct gr_team *t, struct gr_port *p, int32_t rank, struct gr_frame *frame);

/* ---- tell.c: of rank 0 ---- */

/* Tells all others an order about a session (NULL: none), before rank 0 does it. */
int gr_team_tell(struct gr_team *t, const struct gr_session *s, uint32_t kind, const void *order);
/* The same about a number of a session, which may not be there yet; rank 0's hash of decisions was
 * `hash` before. */
int gr_team_tell_all(struct gr_team *t, uint32_t id, uint32_t kind, const void *order,
                     uint64_t hash);
/* The same of what rank 0 does not take back any more: the team is lost when it cannot be told. */
int gr_team_tell_done(struct gr_team *t, uint32_t id, uint32_t kind, const void *order,
                      uint64_t hash);
/* Tells ranks [lo, hi) alone. */
int gr_team_tell_some(struct gr_team *t, int32_t lo, int32_t hi, const struct gr_session *s,
                      uint32_t kind, const void *order);
/* The answer of a rank to an order; results of batches that come before it are taken. Arrays point
 * into t->body. */
int gr_team_answer(struct gr_team *t, int32_t rank, uint32_t kind, void *answer);
/* The answers of all others to an order that can go wrong: the failure that says most, with the
 * rank's name. */
int gr_team_all_done(struct gr_team *t);
/* Whether a failure is rather to be told than another, or 0: one that has only missed another rank
 * (GR_E_PEER_LOST) says less than what kept that rank away. */
bool gr_team_says_more(int status, int than);
/* A batch that was reserved. */
int gr_tell_batch(struct gr_session *s, const struct gr_flight *f, bool pos_2d);
/* The results of a flight, which has begun, come after those of all others. */
void gr_team_expect(struct gr_team *t, struct gr_flight *f);
/* Waits for the results of a flight, and of those before it; NULL: of all. */
int gr_team_collect(struct gr_team *t, const struct gr_flight *f);

/* ---- load.c: of rank 0 ---- */

/* Compares what the ranks are, once, so that they can be asked (gr_place_survey). */
int gr_team_meet(struct gr_team *t);
/* And places the layers and has everyone load; nothing when that was done.
 */
int gr_team_load(struct gr_team *t, const struct gr_session_params *params);
/* Parameters as an order; and back, with names of types that are none left out. */
struct gr_order_open gr_order_open_of(const struct gr_session_params *p);
struct gr_session_params gr_order_open_params(const struct gr_order_open *o);
/* Makes of the threads that are asked for those of this rank. */
void gr_team_share_threads(const struct gr_team *t, struct gr_session_params *p);
/* A session on all ranks. */
int gr_team_open(struct gr_session **out, struct gr_team *t,
                 const struct gr_session_params *params);
/* The session gets its number. */
void gr_team_adopt(struct gr_session *s, struct gr_team *t, uint32_t id);
/* No longer one; s itself is the caller's to close. */
void gr_team_close(struct gr_session *s);

/* ---- serve.c: of the others ---- */

/* Does what rank 0 tells until the model is closed (0), or a rank is lost. */
int gr_team_serve(struct gr_team *t);
/* What this rank is, for comparing, and what it has: an answer in t's parcels. */
int gr_team_describe(struct gr_team *t, struct gr_vec *text, struct gr_order_rank *rank);
/* Loads this rank's layers. */
int gr_team_take(struct gr_team *t, const struct gr_order_load *load);

/* ---- times.c ---- */

/* Order TIMES, in the team's body. */
int gr_spent_answer(struct gr_session *s);
/* Asks what the clocks of other processes say. */
int gr_team_set_clocks(struct gr_team *t);

/* ---- state.c ---- */

/* An order RESTORE, in the team's body. */
int gr_state_take_cells(struct gr_session *s);

/* ---- rows.c ---- */

/* Bytes of a row of tensor number `tensor`, of the model whatever a shard has of it. */
size_t gr_rows_bytes(const struct gr_session *s, uint32_t tensor);
/* Gets (or puts) rows of tensor number `tensor` of s->tensors, those of n cells one behind the
 * other, wherever the tensor is. */
int gr_rows_move(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n, char *rows,
                 bool get);
/* Orders GET and PUT, in the team's body. */
int gr_rows_answer(struct gr_session *s);
int gr_rows_take(struct gr_session *s);

/* ---- transport.c ---- */

enum gr_transport_kind gr_team_transport_kind(const struct gr_team *t);
/* Bits of the kinds of transports that this rank could join. */
uint32_t gr_team_transports(const struct gr_team *t);
/* Of rank 0: which ranks [n_rank] join a transport when layers are so; false: it is of no use. */
bool gr_team_choose_transport(const struct gr_team *t, const struct gr_placement *p,
                              uint8_t *member);
int gr_team_transport_ticket(const struct gr_team *t, struct gr_transport_ticket *ticket);
/* Joins the transport of an order, or leaves the one there is. */
int gr_team_join(struct gr_team *t, const struct gr_order_join *o);
void gr_team_part(struct gr_team *t);
/* The boundary of a plan by the transport: what this rank needs, and what it gives. */
int gr_transport_take(struct gr_session *s, const struct gr_plan *p);
int gr_transport_give(struct gr_session *s, const struct gr_plan *p);
void gr_transport_fini(struct gr_session *s);

/* ---- stage.c ---- */

/* How values go from a rank to the next. */
extern const struct gr_flow gr_stage_flow;
/* Runs this rank's part of the micro-batches of a flight: what they need comes from the stage
 * before, what they give goes to the next, or to rank 0. f->status: a failure of rank 0 that came.
 */
int gr_stage_run(struct gr_session *s, struct gr_flight *f, int32_t n_ub);
/* What a rank is lost for that has decided otherwise than rank 0. */
#define GR_TEAM_DIFFERS "its cells are not those of rank 0 any more"
/* Puts what the cells of a session are into the log, for people who look for what went wrong. */
void gr_stage_log_cells(const struct gr_session *s);
/* GR_E_INTERNAL when this rank has decided otherwise than the one whose hash this is; its cells are
 * in the log then. */
int gr_stage_compare(struct gr_session *s, uint64_t hash);
/* Waits until nothing of the session is on its way to the next stage, and frees. */
void gr_stage_fini(struct gr_session *s);

#endif
