/* The text of a request: tokens, how the next one is picked, and what is told of it. */
#ifndef GR_TOOLS_SERVE_TEXT_H
#define GR_TOOLS_SERVE_TEXT_H

#include <stdatomic.h>

#include "scheduler.h"

struct gr_detok;

struct gr_text {
    uint64_t id;
    struct gr_request request; /* its prompt is not used */
    struct gr_detok *detok;
    int32_t *token; /* [n] prompt, then what was generated */
    int32_t n, capacity, n_prompt;
    int32_t seq;      /* -1: waits */
    int32_t n_cached; /* of the prompt, -1 before it began */
    atomic_bool cancelled;
    bool begun, ended;
    enum gr_finish end;
    int64_t submitted, started, first; /* times in ns */
    struct gr_text *next;              /* in the list it is in */
};

/* Copies a request. Returns a status; the request's objects belong to the text after success. */
int gr_text_new(struct gr_text **out, const struct gr_model *model, const struct gr_request *r);
void gr_text_free(struct gr_text **t);
/* Lets the sampler look at the prompt, once. Returns a status. */
int gr_text_begin(struct gr_text *t);
/* Picks the next token by its logits and passes it on; the text may have ended then. */
void gr_text_next(struct gr_text *t, const struct gr_model *model, int32_t n_vocab,
                  const float *logits, int32_t n_ctx);
/* Ends the text and says so, once. message: of GR_FINISH_FAILED. */
void gr_text_end(struct gr_text *t, enum gr_finish end, int status, const char *message);

int64_t gr_serve_now(void); /* monotonic, ns */

#endif
