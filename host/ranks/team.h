/* The ranks that run the sessions of a model together: threads of this process, or processes.
 *
 * Control is replicated, data is distributed. Every rank has its own session for each session of
 * rank 0, with the same table of cells. Rank 0 belongs to the caller: it checks a call, decides,
 * sends a command to all others (an order, ranks/command.h) and does its part. The other ranks
 * serve: they execute one order after the other. Their decisions follow from table and order alone,
 * so the tables stay equal. Each order and each frame of activations carries a hash of all
 * decisions of its sender (gr_cache); a rank whose own hash differs loses the team.
 *
 * Activations go from stage to stage, results from the last stage to rank 0. A failure of rank 0 in
 * its own part of a batch is passed down the stages after its micro-batches, and all ranks take the
 * batch back. Any other failure loses the world (gr_world_lose): the team can then only be closed.
 */
#ifndef GR_RANKS_TEAM_H
#define GR_RANKS_TEAM_H

#include <pthread.h>

#include "engine/session.h"
#include "link/check.h"
#include "link/group.h"
#include "link/link.h"
#include "ranks/command.h"

/* A frame and its body, kept until it has been sent. */
struct gr_parcel {
    struct gr_vec bytes;
    int32_t lo, hi;            /* receiving ranks [lo, hi); from a serving rank: rank 0 alone */
    struct gr_frame_out out[]; /* [n_rank] */
};

struct gr_team {
    struct gr_model *model;
    struct gr_world *world;
    struct gr_slice *slice; /* of this rank */
    bool threads;           /* the other ranks are threads of this process */
    /* On rank 0: to and from each rank. On the others: index 0, from and to rank 0. */
    struct gr_port order[GR_MAX_RANK], result[GR_MAX_RANK];
    struct gr_group *group; /* ranks that share this rank's layers, or NULL; set when loaded */
    struct gr_port in, out; /* from the previous stage, to the next; set when loaded */
    struct gr_path path;    /* of this rank's device; transport NULL: none */
    bool transport_in, transport_out; /* the transport carries the bodies of these frames */
    bool transport_group;             /* the transport exchanges the group's partial sums, too */
    struct gr_link_found *found;      /* test results of these links and of those of later stages */
    int n_found;
    struct gr_group_found shared; /* test results of the group */
    struct gr_vec parcels;        /* struct gr_parcel * */
    struct gr_vec sessions;       /* struct gr_session *, by their numbers; NULL = closed */
    struct gr_vec body;           /* of the message received last */
    uint64_t n_batch;             /* batches sent or received so far */

    /* on rank 0 */
    pthread_mutex_t lock; /* held while an order is sent and rank 0 does its part; recursive */
    struct gr_flight *first, *last; /* flights with outstanding results, in order */
    bool open, met, loaded, mourned;
    uint32_t transports[GR_MAX_RANK]; /* bits of the kinds that each rank could join */
    struct gr_helper *helpers;        /* [n_rank] threads */
    int64_t *clock_ns;                /* [n_rank] offset from a rank's clock to rank 0's */
};

static inline bool gr_team_leads(const struct gr_team *t)
{
    return t && t->world->rank == 0;
}

/* ---- team.c ---- */

/* Test settings of teams of threads that are made from now on; NULL = none. */
struct gr_team_test {
    const struct gr_link_opt *wrap; /* wrapper of every link of the data lane */
    int64_t patience_ns;            /* time limit for a message; 0 = none */
    int32_t spoil_rank;             /* its hash is made wrong at batch spoil_at; 0 = no rank */
    uint64_t spoil_at;
    bool nccl; /* threads use NCCL, as processes do */
};
void gr_team_test(const struct gr_team_test *test);
const struct gr_team_test *gr_team_testing(void);

/* Returns the team of a model, made at the first call; *out NULL: it has one rank only. The caller
 * must not hold the model's lock. */
int gr_team_of(struct gr_model *m, struct gr_team **out);
/* Makes one rank's team object of a world. */
int gr_team_new(struct gr_team **out, struct gr_model *m, struct gr_world *w,
                struct gr_slice *slice);
void gr_team_free(struct gr_team **t);
/* Opens the data links and tests them, once the stages are known. Collective. */
int gr_team_link(struct gr_team *t);
/* Deadline of a wait that begins now. */
int64_t gr_team_deadline(void);
/* After a failure that leaves ranks with different tables: marks `rank` as lost, with the message
 * of this thread's last failure, unless a rank is lost already. Returns GR_E_PEER_LOST. */
int gr_team_lose(struct gr_team *t, int32_t rank);
/* Returns 0, or GR_E_PEER_LOST; accepts NULL, as do the two below. */
int gr_team_check(const struct gr_team *t);
void gr_team_lock(struct gr_team *t);
void gr_team_unlock(struct gr_team *t);

/* Make and send a frame with a body to ranks [lo, hi): an order, or an answer to rank 0. */
struct gr_parcel *gr_parcel_new(struct gr_team *t, int32_t lo, int32_t hi);
int gr_parcel_send(struct gr_team *t, struct gr_parcel *p, const struct gr_frame *frame);
/* Receives the next frame of a port, its body into t->body. On failure `rank` is lost. */
int gr_team_receive(struct gr_team *t, struct gr_port *p, int32_t rank, struct gr_frame *frame);

/* ---- broadcast.c: of rank 0 ---- */

/* Sends an order about a session (NULL: none) to all others, before rank 0 executes it. */
int gr_team_tell(struct gr_team *t, const struct gr_session *s, uint32_t kind, const void *order);
/* The same for the session numbered id, which need not exist yet. hash: rank 0's hash of decisions
 * before the order. */
int gr_team_tell_all(struct gr_team *t, uint32_t id, uint32_t kind, const void *order,
                     uint64_t hash);
/* The same for an order that rank 0 cannot take back: the team is lost when it cannot be sent. */
int gr_team_tell_done(struct gr_team *t, uint32_t id, uint32_t kind, const void *order,
                      uint64_t hash);
/* Sends an order to ranks [lo, hi) only. */
int gr_team_tell_some(struct gr_team *t, int32_t lo, int32_t hi, const struct gr_session *s,
                      uint32_t kind, const void *order);
/* Receives a rank's answer to an order, after collecting the results of batches sent before it. Its
 * arrays point into t->body. */
int gr_team_answer(struct gr_team *t, int32_t rank, uint32_t kind, void *answer);
/* Receives the answers of all others to an order that can fail. Returns the most informative
 * failure (gr_team_says_more), with the rank's name in the message. */
int gr_team_all_done(struct gr_team *t);
/* Returns whether a failure is more informative than another, or than 0: GR_E_PEER_LOST, a missing
 * rank, is less so than the reason why that rank is missing. */
bool gr_team_says_more(int status, int than);
/* Sends a reserved batch to all others. pos_2d: with rows and columns. */
int gr_tell_batch(struct gr_session *s, const struct gr_flight *f, bool pos_2d);
/* Appends a begun flight to those whose results are outstanding. */
void gr_team_expect(struct gr_team *t, struct gr_flight *f);
/* Waits for the results of a flight and of all earlier ones; NULL: of all flights. */
int gr_team_collect(struct gr_team *t, const struct gr_flight *f);

/* ---- open.c: of rank 0 ---- */

/* Compares program, model and parameters of all ranks, once; then they can be surveyed
 * (gr_place_survey). */
int gr_team_meet(struct gr_team *t);
/* Meets, places the layers and has all ranks load theirs; does nothing once that is done. */
int gr_team_load(struct gr_team *t, const struct gr_session_params *params);
/* Convert session parameters to an order and back; unknown type names become NULL. */
struct gr_order_open gr_order_open_of(const struct gr_session_params *p);
struct gr_session_params gr_order_open_params(const struct gr_order_open *o);
/* Sets the numbers of CPU threads to this rank's share. */
void gr_team_share_threads(const struct gr_team *t, struct gr_session_params *p);
/* Opens a session on all ranks. */
int gr_team_open(struct gr_session **out, struct gr_team *t,
                 const struct gr_session_params *params);
/* Adds a session to the team, with number id. */
void gr_team_adopt(struct gr_session *s, struct gr_team *t, uint32_t id);
/* Removes a session from the team, from rank 0 on all ranks; the caller closes s itself. */
void gr_team_close(struct gr_session *s);

/* ---- worker.c: of the others ---- */

/* Executes rank 0's orders until the model is closed (returns 0) or a rank is lost. */
int gr_team_serve(struct gr_team *t);
/* Describes this rank for comparison: *rank, whose facts point into *text, the caller's to free. */
int gr_team_describe(struct gr_team *t, struct gr_vec *text, struct gr_order_rank *rank);
/* Loads this rank's layers. */
int gr_team_take(struct gr_team *t, const struct gr_order_load *load);

/* ---- times.c ---- */

/* Answers the order TIMES in the team's body. */
int gr_spent_answer(struct gr_session *s);
/* Measures the clock offsets of other processes. */
int gr_team_set_clocks(struct gr_team *t);

/* ---- state.c ---- */

/* Executes the order RESTORE in the team's body. */
int gr_state_take_cells(struct gr_session *s);

/* ---- cache_rows.c ---- */

/* Bytes of a whole row of tensor number `tensor`, even where a shard holds only part of it. */
size_t gr_rows_bytes(const struct gr_session *s, uint32_t tensor);
/* Reads (get) or writes the rows of n cells of tensor number `tensor` of s->tensors, on whichever
 * rank it is. rows: packed, in the order of `cell`. */
int gr_rows_move(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n, char *rows,
                 bool get);
/* Execute the orders GET and PUT in the team's body. */
int gr_rows_answer(struct gr_session *s);
int gr_rows_take(struct gr_session *s);

/* ---- transport.c ---- */

enum gr_transport_kind gr_team_transport_kind(const struct gr_team *t);
/* Bits of the kinds of transports that this rank could join. */
uint32_t gr_team_transports(const struct gr_team *t);
/* On rank 0: sets which ranks, member [n_rank], join a transport for a placement. Returns false
 * where none is of use: it would connect no two ranks, or a test has wrapped the links. */
bool gr_team_choose_transport(const struct gr_team *t, const struct gr_placement *p,
                              uint8_t *member);
int gr_team_transport_ticket(const struct gr_team *t, struct gr_transport_ticket *ticket);
/* Leaves the current transport, if any, and joins the one of the order, if it names members. */
int gr_team_join(struct gr_team *t, const struct gr_order_join *o);
void gr_team_part(struct gr_team *t);
/* Receive a plan's `in`, and send its `out`, by the transport. */
int gr_transport_take(struct gr_session *s, const struct gr_plan *p);
int gr_transport_give(struct gr_session *s, const struct gr_plan *p);
void gr_transport_fini(struct gr_session *s);

/* ---- pipeline.c ---- */

/* Passes values between the ranks of consecutive stages. */
extern const struct gr_flow gr_stage_flow;
/* Runs this rank's stage for the micro-batches of a flight: receives inputs from the previous
 * stage, sends outputs to the next one, or results to rank 0. f->status: the failure of rank 0, if
 * one was passed on. */
int gr_stage_run(struct gr_session *s, struct gr_flight *f, int32_t n_ub);
/* Reason for which a rank is lost whose decisions differ from rank 0's. */
#define GR_TEAM_DIFFERS "its cells are not those of rank 0 any more"
/* Logs the cells of a session, for debugging. */
void gr_stage_log_cells(const struct gr_session *s);
/* Returns GR_E_INTERNAL, and logs the cells, when this rank's hash of decisions differs from
 * `hash`. */
int gr_stage_compare(struct gr_session *s, uint64_t hash);
/* Waits until all messages of the session to the next stage have been sent, and frees buffers. */
void gr_stage_fini(struct gr_session *s);

#endif
