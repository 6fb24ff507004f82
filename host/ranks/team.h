/* The ranks that run the sessions of a model together: threads of this process, or processes.
 *
 * Control is replicated, data is distributed. Every rank has its own session for each session of
 * rank 0, with the same table of cells. Rank 0 belongs to the caller: it checks a call, decides,
 * sends a command (ranks/command.h) to all others and does its part. The other ranks serve: they
 * execute one command after the other. Their decisions follow from table and command alone, so the
 * tables stay equal. Each command and each frame of activations carries a hash of all decisions of
 * its sender (gr_cache); a rank whose own hash differs loses the team.
 *
 * Activations go from stage to stage, results from the last stage to rank 0. A failure of rank 0 in
 * its own part of a batch is passed down the stages after its micro-batches, and all ranks roll the
 * batch back. Any other failure loses the world (gr_world_lose): the team can then only be
 * closed. */
#ifndef GR_RANKS_TEAM_H
#define GR_RANKS_TEAM_H

#include <pthread.h>

#include "link/link.h"
#include "link/self_test.h"
#include "link/tp_group.h"
#include "ranks/command.h"

/* A frame and its body, kept until it has been sent. */
struct gr_message {
    struct gr_vec bytes;
    int32_t lo, hi;            /* receiving ranks [lo, hi); from a serving rank: rank 0 alone */
    struct gr_frame_out out[]; /* [n_rank] */
};

struct gr_pending_batch;
struct gr_model;
struct gr_rank_model;

struct gr_team {
    struct gr_model *model;
    struct gr_world *world;
    struct gr_rank_model *rank_model; /* of this rank */
    bool threads;                     /* the other ranks are threads of this process */
    /* On rank 0: to and from each rank. On the others: index 0, from and to rank 0. */
    struct gr_port command[GR_MAX_RANK], result[GR_MAX_RANK];
    struct gr_tp_group *tp_group;     /* of this rank's layers, or NULL; set when loaded */
    struct gr_port in, out;           /* from the previous stage, to the next; set when loaded */
    struct gr_path path;              /* of this rank's device; transport NULL: none */
    bool transport_in, transport_out; /* the transport carries the bodies of these frames */
    bool transport_gathers;           /* the transport exchanges the group's partial sums, too */
    struct gr_link_result *found;     /* test results of these links and of those of later stages */
    int n_found;
    struct gr_tp_group_result shared; /* test results of the group */
    struct gr_vec messages;           /* struct gr_message * */
    struct gr_vec sessions;           /* struct gr_session *, by their numbers; NULL = closed */
    struct gr_vec body;               /* of the message received last */
    uint64_t n_batch;                 /* batches sent or received so far */

    /* on rank 0 */
    pthread_mutex_t lock; /* held while a command is sent and rank 0 does its part; recursive */
    struct gr_pending_batch *first, *last; /* batches with outstanding results, in order */
    bool open, handshake_done, loaded, cells_logged;
    uint32_t transports[GR_MAX_RANK]; /* bits of the kinds that each rank could join */
    struct gr_worker_thread *workers; /* [n_rank] threads */
    int64_t *clock_ns;                /* [n_rank] offset from a rank's clock to rank 0's */
};

/* Values of a micro-batch being sent to the next stage. */
struct gr_send_buffer {
    struct gr_frame_out out;
    void *buf; /* [cap] host memory of the session's s->pin */
    size_t cap;
};
#define GR_N_SEND_BUFFER 3

/* State that a team keeps for a session: s->rank. */
struct gr_rank_session {
    struct gr_team *team;
    uint32_t id;                                         /* its number in the team */
    struct gr_send_buffer send_buffer[GR_N_SEND_BUFFER]; /* used in turn */
    uint64_t n_send;
    void *recv_buffer; /* [recv_cap] values received from the previous stage */
    size_t recv_cap;
    struct gr_vec span; /* struct gr_transport_span: parts of a transport's message */
    void *staging;      /* [staging_cap] device memory: values of the CPU sent by a transport */
    size_t staging_cap;
};

static inline bool gr_team_is_root(const struct gr_team *t)
{
    return t && t->world->rank == 0;
}

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

/* Deadline of a wait that begins now. */
int64_t gr_team_deadline(void);
/* After a failure that leaves ranks with different tables: marks `rank` as lost, with the message
 * of this thread's last failure, unless a rank is lost already. Returns GR_E_PEER_LOST. */
int gr_team_lose(struct gr_team *t, int32_t rank);
/* Returns 0, or GR_E_PEER_LOST; accepts NULL, as do the two below. */
int gr_team_check(const struct gr_team *t);
void gr_team_lock(struct gr_team *t);
void gr_team_unlock(struct gr_team *t);

/* Make and send a frame with a body to ranks [lo, hi): a command, or an answer to rank 0. */
struct gr_message *gr_message_new(struct gr_team *t, int32_t lo, int32_t hi);
int gr_message_send(struct gr_team *t, struct gr_message *m, const struct gr_frame *frame);
/* Receives the next frame of a port, its body into t->body. On failure `rank` is lost. */
int gr_team_receive(struct gr_team *t, struct gr_port *p, int32_t rank, struct gr_frame *frame);
/* Waits until the last messages have been sent. */
void gr_message_finish(struct gr_team *t);

#endif
