/* The text of a request: tokens, how the next one is picked, and what is told of it. */
#ifndef GR_TOOLS_SERVE_TEXT_H
#define GR_TOOLS_SERVE_TEXT_H

#include <stdatomic.h>

#include "prefixes.h"
#include "scheduler.h"

struct gr_chunk;
struct gr_detok;
struct gr_conversation;
struct gr_disk_job;

struct gr_text {
    uint64_t id;
    struct gr_request request; /* its prompt is not used */
    struct gr_detok *detok;
    int32_t *token; /* [n] prompt, then what was generated */
    int32_t n, capacity;
    int32_t n_prompt;  /* n - n_prompt were generated: below 0 when more than the prompt has gone */
    int32_t n_shifted; /* tokens that went by context shifts */
    int32_t seq;       /* -1: waits */
    int32_t n_cached;  /* of the prompt, -1 before it began */
    int32_t n_past;    /* position of the next token in the cache */
    int32_t merged;    /* Self-Extend: first position of the next window */
    int32_t told;      /* token of the prompt whose probability is passed on next; n_prompt: none */
    struct gr_conversation *conversation; /* NULL: none */
    struct gr_chunk *chunk;               /* [n_chunk] to be moved, the first ones done (reuse.c) */
    int32_t n_chunk, next_chunk;
    bool again; /* it was preempted */
    struct gr_prefix_key key;
    int64_t turn;               /* last time that its adapters had a step */
    struct gr_disk_job *read;   /* of a file with more of it than the cache; NULL: none */
    int32_t n_restored, n_file; /* tokens of it that the text begins with, and all */
    bool tried;                 /* a file was read for it */
    int64_t deferred;           /* round of admission that it lets pass */
    atomic_bool cancelled;
    bool begun, ended;
    bool lines; /* a line of the answer has ended */
    enum gr_finish end;
    int status;                        /* of its result */
    int64_t submitted, started, first; /* times in ns */
    /* While it waits: texts of one owner and priority are a line, the oldest first. */
    struct gr_text *next;
    struct gr_text *last, *next_line; /* of the first one of a line */
    /* Under the scheduler's lock: */
    int32_t at; /* in the list of all */
    struct gr_request_view view;
};

/* Copies a request. Returns a status; the request's objects belong to the text after success. */
int gr_text_new(struct gr_text **out, const struct gr_model *model, const struct gr_request *r);
void gr_text_free(struct gr_text **t);
/* Puts token [n] before the prompt of a text that has not begun; GR_E_NOMEM_HOST. */
int gr_text_follow(struct gr_text *t, const int32_t *token, int32_t n);
/* Lets the sampler look at the prompt, once. Returns a status. */
int gr_text_begin(struct gr_text *t);
/* Returns whether probabilities of the prompt are still to be passed on. */
bool gr_text_tells_prompt(const struct gr_text *t);
/* Returns the length of the longest beginning that need not be computed. */
int32_t gr_text_may_share(const struct gr_text *t);
/* Removes n tokens from lo on, of a text that is being generated. */
void gr_text_cut(struct gr_text *t, int32_t lo, int32_t n);
/* Returns whether logits of the i-th token are wanted. */
bool gr_text_wants(const struct gr_text *t, int32_t i);
/* Returns whether anything has to be computed at all. */
bool gr_text_is_computed(const struct gr_text *t);
/* Passes the probability of the next token of the prompt on, by the logits of the one before. */
void gr_text_prompt(struct gr_text *t, int32_t n_vocab, const float *logits);
/* Picks the next token by its logits and passes it on; the text may have ended then. */
void gr_text_next(struct gr_text *t, const struct gr_model *model, int32_t n_vocab,
                  const float *logits, int32_t n_ctx);
/* Returns when the time of a request is over; INT64_MAX: never. */
int64_t gr_text_deadline(const struct gr_text *t);
/* Ends a text that has no time left at `now`, and returns whether it did. */
bool gr_text_end_late(struct gr_text *t, int64_t now);
/* Ends the text and says so, once. message: of GR_FINISH_FAILED. */
void gr_text_end(struct gr_text *t, enum gr_finish end, int status, const char *message);

int64_t gr_serve_now(void); /* monotonic, ns */
/* Returns why a call of this thread, its last one that failed, has failed: the library's message,
 * or the meaning of a status that is not the library's. */
const char *gr_failure_text(int status);

#endif
