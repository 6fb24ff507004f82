/* Continuous batching: requests of many clients at one session, in one thread. Each step decodes a
 * token of every text that is being generated, and prompts, in pieces, with what is left of the
 * step. Requests with a common beginning share its cells and compute it once.
 *
 * Requests may be submitted and cancelled from any thread; gr_scheduler_step and gr_scheduler_run
 * are called from one. */
#ifndef GR_TOOLS_SCHEDULER_H
#define GR_TOOLS_SCHEDULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpurun.h"
#include "histogram.h"

struct gr_scheduler;

struct gr_scheduler_params {
    const struct gr_model *model;
    struct gr_session *session; /* empty, for the scheduler alone */
    int32_t n_seq;              /* sequences of the session */
    int32_t n_active;           /* most requests computed at once, at most n_seq */
    int32_t n_ctx;              /* most tokens of a request, prompt and answer */
    int32_t n_step;   /* most tokens of a step: n_batch of the session, at least n_active */
    int32_t n_ubatch; /* tokens of a micro-batch of the session, 0: any */
    int32_t n_flight; /* most steps at once: stages of the session, 0 or 1: one */
    int32_t n_queue;  /* most requests that wait */
    int64_t
        step_ns; /* time of a step that prompts may fill while other texts are generated, 0: any */
    int64_t first_ns; /* time without a first token after which a prompt may fill whole steps in
                         spite of that, 0: never */
    bool whole;       /* the model has recurrent states: sequences are shared whole */
    uint32_t n_kept;  /* most cells that conversations hold together, 0: any */
    bool owners;      /* there are several: one has half of that, and of the conversations */
    const char *cache_dir; /* folder where texts go that leave the cache, and from where they come
                              back (disk.h); NULL: none. Needs owners with lasting numbers */
    uint64_t cache_bytes;  /* of its files */
    int32_t cache_least;   /* tokens of such a text */
    int32_t n_adapter; /* of the model, whose strengths requests choose; 0: they are those of the
                          session */
    bool spare; /* the session has one more sequence, for gr_request.reuse, which has no effect
                   without. Not with recurrent states */
};

/* A token of an answer with its logarithmic probability among all tokens. */
struct gr_prob {
    int32_t id;
    float logprob;
};

/* A generated token. text [n]: what is certain now; it is often empty, and may belong to tokens
 * before. Valid during the call. */
struct gr_piece {
    int32_t id; /* -1: none, text that was held back until the end */
    const char *text;
    size_t n;
    float logprob;             /* with n_probs > 0 */
    const struct gr_prob *top; /* [n_top] the most likely tokens, the best first */
    int32_t n_top;
};

/* Reason for the end of an answer: a token that ends texts, a stop string, its length or that of
 * the context, cancelled, a failure. */
enum gr_finish {
    GR_FINISH_TOKEN,
    GR_FINISH_STRING,
    GR_FINISH_LENGTH,
    GR_FINISH_CANCELLED,
    GR_FINISH_FAILED
};
struct gr_result {
    enum gr_finish end;
    int32_t stop;                            /* index of the stop string; -1 */
    int status;                              /* of GR_FINISH_FAILED */
    const char *message;                     /* of GR_FINISH_FAILED */
    int32_t n_prompt, n_cached, n_generated; /* tokens; n_cached of the prompt were there */
    int32_t n_shifted;                       /* tokens that went by a context shift */
    int32_t n_conversation; /* tokens of its conversation's text from here on; -1: as before */
    int64_t queue_ns, prompt_ns, generate_ns; /* waiting; to the first token; from there on */
};

/* Called in the scheduler's thread, which they must not hold up. `result` is the last call of a
 * request. */
typedef void gr_piece_fn(const struct gr_piece *piece, void *user);
typedef void gr_result_fn(const struct gr_result *result, void *user);

struct gr_request {
    const int32_t *prompt; /* [n_prompt] at least one, with the context's length at most */
    int32_t n_prompt;
    int32_t n_predict; /* most tokens of the answer; < 0: up to the context's length; 0: none */
    struct gr_sampler *sampler;
    struct gr_grammar_state *grammar; /* NULL: none */
    struct gr_stop *stop;             /* NULL: none */
    /* Self-Extend: once a window of extend_w positions is there, each extend_n of them become one,
     * so that texts longer than those of the training are read; no cells are shared then. Others
     * than multiples of extend_n, and models that cannot do it, fail. extend_n <= 1: off. */
    int32_t extend_n, extend_w;
    /* Context shift: when the context is full, discard tokens behind the first keep of them go (0:
     * half of those), as by gr_context_shift, and the answer goes on, up to n_predict; where that
     * is not possible then, it ends with its length. */
    struct {
        bool on;
        int32_t keep, discard;
    } shift;
    /* A part of the prompt of so many tokens or more that stands elsewhere in a text of the owner
     * in the cache is not computed: its cells are copied, and their keys turned to their new
     * positions. They have seen the text that was before them there, so results differ. 0: off. */
    int32_t reuse;
    bool special;       /* names of control tokens are part of the text */
    int32_t n_probs;    /* likely tokens listed for each token; 0: no probabilities */
    int64_t most_ns;    /* time of the request, waiting included: an answer that has begun ends
                           with its length then, another request fails as cancelled; 0: any */
    int64_t predict_ns; /* time from the first token on, after which an answer of more than a line
                           ends with its length; 0: any */
    int32_t priority;   /* larger: first */
    uint64_t owner;     /* prefixes are shared within an owner, who has a fair part */
    uint64_t conversation; /* whose text the prompt follows; 0: none */
    const float *adapters; /* [GR_MAX_ADAPTER] strengths, with n_adapter; NULL: all are 0. Steps
                              have texts of the same strengths, in turn; others share no cells */
    int32_t slot; /* 0: none; the owner's slot that has the text when it has ended (gr_slot_call) */
    gr_piece_fn *prompt_piece; /* NULL: none; receives each token of the prompt but the first, with
                                  its probability and no text; the whole prompt is computed then */
    gr_piece_fn *piece;
    gr_result_fn *result;
    void *user;
};
#define GR_MAX_PROBS 20

/* Returns a status, after printing the error. */
int gr_scheduler_new(struct gr_scheduler **out, const struct gr_scheduler_params *params);
/* Requests that have not ended end as cancelled; texts go to cache_dir. */
void gr_scheduler_free(struct gr_scheduler **s);

/* Queues a request; sampler, grammar and stop belong to the scheduler after success. *id: for
 * gr_scheduler_cancel. GR_E_INVALID: prompt empty or too long, n_probs out of range,
 * Self-Extend's factors, prompt_piece, Self-Extend or context shift with a conversation, or context
 * shift with Self-Extend or without a length; GR_E_TOO_LARGE: the
 * queue is full; GR_E_CANCELLED: gr_scheduler_stop; that of gr_scheduler_status once it is not 0.
 * No callback is called on failure. */
int gr_scheduler_submit(struct gr_scheduler *s, const struct gr_request *request, uint64_t *id);
/* Ends a request with the next step; none when it has ended. */
void gr_scheduler_cancel(struct gr_scheduler *s, uint64_t id);

/* Runs one step. Returns false when there was nothing to do. */
bool gr_scheduler_step(struct gr_scheduler *s);
/* Runs steps until gr_scheduler_stop, and then those of the requests that have begun or wait; or
 * until gr_scheduler_status is not 0. */
void gr_scheduler_run(struct gr_scheduler *s);
/* From any thread: GR_E_DEVICE or GR_E_PEER_LOST once a device or a rank is lost, which is for
 * good: all requests have ended as failed then, and none is accepted. 0: none is. */
int gr_scheduler_status(struct gr_scheduler *s);
/* From any thread: no request is accepted any more (GR_E_CANCELLED). `now`: those there are end as
 * cancelled. */
void gr_scheduler_stop(struct gr_scheduler *s, bool now);

/* A step has tokens of prompts, of answers, or both. */
enum gr_phase { GR_PHASE_PROMPT, GR_PHASE_DECODE, GR_PHASE_MIXED, GR_N_PHASE };

/* Sums since the start, and what there is now; from any thread. */
struct gr_scheduler_stats {
    int32_t n_active, n_waiting;
    uint32_t n_cell, n_used; /* cells in all; used, by texts that have ended too */
    int64_t n_step, step_ns; /* steps, and their time */
    struct gr_histogram step_seconds[GR_N_PHASE], step_tokens;
    struct { /* the last step: tokens of prompts, of answers */
        int32_t n_prompt, n_answer;
        int64_t ns;
    } last;
    int64_t n_prompt, n_cached, n_generated; /* tokens; n_cached were not computed */
    int64_t n_moved;                         /* of those, by gr_request.reuse */
    int64_t n_request, n_cancelled, n_failed, n_preempted;
    int32_t n_file;                         /* of cache_dir, for this model */
    uint64_t file_bytes;                    /* of all files there */
    int64_t n_saved, n_restored, n_damaged; /* files since the start */
    int64_t n_unsaved;                      /* texts that the disk was too slow for */
};
struct gr_scheduler_stats gr_scheduler_stats(struct gr_scheduler *s);

/* A request that waits or is computed, as it was after the last step. */
enum gr_request_state { GR_REQUEST_WAITING, GR_REQUEST_PROMPT, GR_REQUEST_ANSWER };
struct gr_request_view {
    uint64_t id, owner;
    enum gr_request_state state;
    int32_t n_prompt, n_cached, n_done; /* tokens; n_done: of the prompt, in the cache */
    int32_t n_generated;
};
/* Stores at most n of them, in any order; returns how many there are. From any thread. */
int32_t gr_scheduler_list(struct gr_scheduler *s, struct gr_request_view *view, int32_t n);

/* A sequence of the session. */
struct gr_sequence_view {
    bool busy; /* belongs to a text that goes on */
    struct gr_kv_count cells;
};
/* Stores at most n sequences, by their ids, as they were when this was last called, and asks for
 * them anew; returns how many there are, 0 for the first time. From any thread. */
int32_t gr_scheduler_look(struct gr_scheduler *s, struct gr_sequence_view *view, int32_t n);

/* ---- conversations: texts whose cells stay until they are closed ---- */

/* A conversation belongs to its owner. A request that names it (gr_request.conversation) continues
 * its text: the prompt follows what is there, and the answer stays. One request at a time; others
 * fail with GR_E_INVALID, as those do that name none of the owner's. What a failed step has lost is
 * computed again from the tokens. There are at most n_seq - n_active. A prompt for whose cells
 * those of n_kept do not suffice fails with GR_E_KV_FULL, and an answer ends where they are used
 * up. */
enum gr_conversation_op {
    GR_CONVERSATION_OPEN,  /* a new, empty one */
    GR_CONVERSATION_FORK,  /* a new one with the same text, whose cells both share */
    GR_CONVERSATION_CUT,   /* removes tokens [lo, hi): those behind move up, their keys turned */
    GR_CONVERSATION_BACK,  /* removes all tokens from lo on */
    GR_CONVERSATION_CLOSE, /* its text may be evicted from here on */
};

struct gr_conversation_result {
    uint64_t id;     /* the new one, or the one named */
    int32_t n_token; /* of its text now */
    /* GR_E_INVALID: no such one, one with a request, or positions beyond its text;
     * GR_E_UNSUPPORTED: the model's cache cannot do it (recurrent states, learned positions,
     * windows that have dropped cells); GR_E_KV_FULL: no conversation or cell is left, of n_kept or
     * of what one owner may have; GR_E_CANCELLED:
     * the scheduler has ended. Nothing has changed then. */
    int status;
    const char *message; /* of a status other than 0 */
};
typedef void gr_conversation_fn(const struct gr_conversation_result *result, void *user);

struct gr_conversation_call {
    enum gr_conversation_op op;
    uint64_t owner, id; /* id: not of OPEN */
    int32_t lo, hi;
    gr_conversation_fn *done; /* called once, in the scheduler's thread, between two steps */
    void *user;
};
/* From any thread, after the call or request before it about this conversation has ended.
 * GR_E_NOMEM_HOST, or that of gr_scheduler_submit when it accepts no more; `done` is not called
 * then. */
int gr_scheduler_call(struct gr_scheduler *s, const struct gr_conversation_call *call);

/* ---- slots: names for texts, which are saved and restored by them ---- */

/* A slot of an owner is the last text that ended with it (gr_request.slot), or was restored to it.
 * Its cells are part of the cache as those of all other texts, and may have left it. */
enum gr_slot_op {
    GR_SLOT_SAVE,    /* gives its text, where the cache has all of it */
    GR_SLOT_RESTORE, /* puts what was saved into the cache, where requests find it */
    GR_SLOT_ERASE,   /* removes its text from the cache, unless another one goes on from it; a file
                        of it in cache_dir stays */
};

struct gr_slot_result {
    int32_t n_token; /* that were saved, restored, erased */
    void *data;      /* [n] of SAVE: a state of one sequence (gr_state_save); by gr_state_free */
    size_t n;
    /* GR_E_INVALID: SAVE: the cache has not all of a text; RESTORE: a state of another model, with
     * other parameters, or of another owner; GR_E_KV_FULL: no sequence or cell is left; or that of
     * gr_state_save or gr_state_load. Nothing has changed then but what was idle in the cache. */
    int status;
    const char *message; /* of a status other than 0 */
};
typedef void gr_slot_fn(const struct gr_slot_result *result, void *user);

struct gr_slot_call {
    enum gr_slot_op op;
    uint64_t owner;
    int32_t slot;     /* from 1 on */
    const void *data; /* [n] of RESTORE, until `done` */
    size_t n;
    const float *adapters; /* of RESTORE, likewise; as in gr_request */
    gr_slot_fn *done;      /* called once, in the scheduler's thread, between two steps */
    void *user;
};
/* From any thread; as gr_scheduler_call. */
int gr_scheduler_slot(struct gr_scheduler *s, const struct gr_slot_call *call);

#endif
