/* Pending batches: their results, and the reservation and rollback of cells. */
#ifndef GR_ENGINE_PENDING_H
#define GR_ENGINE_PENDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpurun.h"

struct gr_session;

/* Results of a batch: rows of logits or vectors, or the sampled tokens. */
struct gr_pending_batch {
    float *logits; /* [n_out, n_row] logits or vectors; with `sampled` [n_out] i32 tokens instead */
    size_t logits_cap;
    int32_t *out_row;     /* [n_batch], a token's row of logits or -1 */
    int32_t *seq_row;     /* [n_seq_max], a sequence's row of results or -1 */
    int32_t n_tok, n_out; /* n_tok 0: no results */
    bool sampled;         /* a device samples the tokens of all outputs of the batch */
    /* with several ranks */
    int status;         /* failure of rank 0 that was passed on, or 0 */
    int32_t n_begun;    /* micro-batches begun on this rank */
    int32_t n_ubatch;   /* on rank 0: micro-batches whose results have not arrived yet */
    int32_t n_received; /* rows that have arrived */
    struct gr_session *session;
    struct gr_pending_batch *next; /* the batch whose results arrive after this one's */
};

#define GR_N_PENDING (GR_MAX_PENDING + 1) /* the pending ones and the one that ended last */

/* The results of a session's batches: a ring of the batch that ended last and the n_pending ones
 * begun after it. */
struct gr_results {
    struct gr_pending_batch pending[GR_N_PENDING];
    int32_t last, n_pending;
};

/* Allocates memory for n_out rows of results, and for the row numbers of n_batch tokens and
 * n_seq_max sequences. */
int gr_pending_reserve(struct gr_session *s, struct gr_pending_batch *pending, int32_t n_out);
void gr_pending_fini(struct gr_session *s, struct gr_pending_batch *pending);
/* Checks a batch, splits it (s->ub) and reserves cells; a refused batch changes nothing. */
int gr_batch_reserve(struct gr_session *s, const struct gr_batch *batch,
                     struct gr_pending_batch *pending, int32_t *n_ub);
/* Begins the profiler range of the batch of s; gr_session_range_end ends it. */
void gr_batch_range(struct gr_session *s);
/* Removes a failed batch from the caches; the error message names the sequences emptied by that. */
void gr_batch_rollback(struct gr_session *s, int status);

#endif
