/* Tokens that devices sample. */
#ifndef GR_ENGINE_DEVICE_SAMPLING_H
#define GR_ENGINE_DEVICE_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "batch/batch.h"
#include "gpurun.h"
#include "gr/sample.h"

struct gr_session;

/* The device-side samplers of a session. */
struct gr_device_sampling {
    struct gr_sampler *sampler[GR_SEQ_MAX]; /* of each sequence, or NULL */
    struct gr_sample_row *rows;             /* [n_out] sampling parameters of each sampled row */
    size_t rows_cap;
};

/* Returns whether a device samples the tokens of all outputs of the batch. */
bool gr_device_sampling_all(const struct gr_session *s);
/* Allocate s->sampled.rows for n_out rows; fill it with the sampling parameters of the batch's
 * rows, in the order of the micro-batches. */
int gr_device_sampling_reserve(struct gr_session *s, int32_t n_out);
void gr_device_sampling_fill(struct gr_session *s, int32_t n_ub);
/* After a batch: commits (done) or undoes what sampling its tokens changed in the samplers. */
void gr_device_sampling_finish(struct gr_session *s, bool done);

#endif
