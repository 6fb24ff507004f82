/* Tokens that devices sample. */
#ifndef GR_ENGINE_DEVICE_SAMPLING_H
#define GR_ENGINE_DEVICE_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "batch/batch.h"
#include "gpurun.h"
#include "gr/sample.h"
#include "gr/step.h"

struct gr_session;

/* The device-side samplers of a session. */
struct gr_device_sampling {
    struct gr_sampler *sampler[GR_SEQ_MAX]; /* of each sequence, or NULL */
    struct gr_sample_row *rows;             /* [n_out] sampling parameters of each sampled row */
    size_t rows_cap;
    struct gr_vec edits; /* struct gr_sample_edit of all rows of the batch */
    struct gr_vec masks; /* words of the rows' masks */
};

/* Returns whether a device samples the tokens of all outputs of the batch. It does not where a
 * sampler with penalties or a mask has several: what a token leaves for the next one is not known
 * before it is. */
bool gr_device_sampling_all(const struct gr_session *s);
/* Allocate s->sampled.rows for n_out rows; fill it, edits and masks with the sampling parameters of
 * the batch's rows, in the order of the micro-batches; copy those of another rank. */
int gr_device_sampling_reserve(struct gr_session *s, int32_t n_out);
int gr_device_sampling_fill(struct gr_session *s, int32_t n_ub);
int gr_device_sampling_copy(struct gr_session *s, const struct gr_sample_row *rows, size_t n_row,
                            const struct gr_sample_edit *edits, size_t n_edit,
                            const uint32_t *masks, size_t n_mask);
void gr_device_sampling_fini(struct gr_device_sampling *d);
/* Sets the room of a step for the edits and masks of the batch: powers of two, so that few plans
 * serve lists of all lengths. */
void gr_device_sampling_shape(const struct gr_session *s, struct gr_step_shape *shape);
/* After a batch: commits (done) or undoes what sampling its tokens changed in the samplers. */
void gr_device_sampling_finish(struct gr_session *s, bool done);

#endif
