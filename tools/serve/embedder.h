/* Vectors of texts: requests of many clients at a session of its own, in a thread of its own. Each
 * step computes whole texts of several requests, of each in turn, as many as it has room for. */
#ifndef GR_TOOLS_EMBEDDER_H
#define GR_TOOLS_EMBEDDER_H

#include <stdatomic.h>

#include "scheduler.h"
#include "tools/cli/vectors.h"

struct gr_embedder;

struct gr_embedder_params {
    struct gr_model *model;
    struct gr_session_params session;
    int32_t n_longest; /* most tokens of a text */
    int32_t n_step;    /* most tokens of a step, unless one text has more */
    int32_t n_queue;   /* most requests that wait or are computed */
    int64_t n_byte;    /* most bytes of the vectors of all requests; a single one may have more */
};

/* A request. It stays the caller's from gr_embedder_submit to the call of `end`, which may free it,
 * and which comes once after success. Calls come from the embedder's thread, which they hold up. */
struct gr_embedding {
    struct gr_ids *text; /* [n_text > 0] each of 1 to n_longest tokens */
    int32_t n_text;
    int64_t n_byte; /* of all its vectors, as they are kept */
    /* Receives the vector of a text, in any order; false: the request ends as failed, with
     * GR_E_CHECK. */
    bool (*vector)(struct gr_embedding *e, int32_t i, const float *x);
    void (*end)(struct gr_embedding *e, const struct gr_result *result);
    atomic_bool cancelled; /* set from any thread: it ends with the next step */
    /* The embedder's: */
    struct gr_embedding *next;
    int32_t n_begun, n_done;
    int64_t submitted, started; /* ns */
    int status;
};

/* Chooses the parameters by the options. 0 or an exit code, after printing the error. */
int gr_embedder_choose(struct gr_embedder_params *p, const struct gr_options *o,
                       struct gr_model *model);
/* Opens the session and starts the thread. Returns a status. */
int gr_embedder_new(struct gr_embedder **out, const struct gr_embedder_params *params);
/* Requests that have not ended end as cancelled. */
void gr_embedder_free(struct gr_embedder **e);

int32_t gr_embedder_longest(const struct gr_embedder *e);
/* Parts of the session that do not change may be read from any thread. */
const struct gr_vectors *gr_embedder_vectors(const struct gr_embedder *e);

/* Queues a request, from any thread. GR_E_TOO_LARGE: the queue is full; GR_E_CANCELLED:
 * gr_embedder_stop; the status of a device once it is lost. */
int gr_embedder_submit(struct gr_embedder *e, struct gr_embedding *request);
/* From any thread: no request is accepted any more. `now`: those there are end as cancelled. */
void gr_embedder_stop(struct gr_embedder *e, bool now);
/* Waits until all requests have ended, behind gr_embedder_stop. */
void gr_embedder_wait(struct gr_embedder *e);
/* Adds its figures to those of a scheduler, from any thread. */
void gr_embedder_add_stats(struct gr_embedder *e, struct gr_scheduler_stats *stats);

#endif
