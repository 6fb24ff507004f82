/* Interface between sessions and samplers for draws on a device (gr/sample.h). */
#ifndef GR_SAMPLE_SAMPLER_H
#define GR_SAMPLE_SAMPLER_H

#include <stdbool.h>

#include "gpurun.h"
#include "gr/sample.h"

/* Returns 0 when the operation SAMPLE can draw for this sampler: otherwise GR_E_UNSUPPORTED names
 * the option that prevents it, or GR_E_INVALID a sampler of another vocabulary. */
int gr_sampler_fits_device(const struct gr_sampler *s, int32_t n_vocab);
/* Parameters of the next draw, without edits and mask; each call advances by one draw. */
struct gr_sample_row gr_sampler_next(struct gr_sampler *s);
/* Lists the logits that bias and penalties change at the next draw; returns their number. Valid
 * until the sampler's next call. */
int32_t gr_sampler_edits(struct gr_sampler *s, const struct gr_sample_edit **edits);
/* Limits draws to the tokens whose bits are set (gr_sample_allowed), which the caller keeps and may
 * change between draws; NULL: no longer. */
void gr_sampler_set_mask(struct gr_sampler *s, const uint32_t *allowed);
/* *mask: the tokens of the next draw, by that mask and the grammar (NULL: all); valid until the
 * sampler's next call. Fails as gr_grammar_allowed does. */
int gr_sampler_mask(struct gr_sampler *s, const uint32_t **mask);
/* Returns whether the caller must accept a draw before the device makes the next one: penalties,
 * DRY, a mask or a grammar depend on it. */
bool gr_sampler_looks_back(const struct gr_sampler *s);
/* Ends the draws of gr_sampler_next: with `done` the random numbers they used are consumed,
 * otherwise the sampler is as before them. */
void gr_sampler_finish(struct gr_sampler *s, bool done);
/* Status of a draw's result id: 0, or GR_E_CHECK with the message of gr_sampler_pick. */
int gr_sampler_result(int32_t id);

#endif
