/* What a session uses of a sampler to have a device draw for it (gr/sample.h). */
#ifndef GR_SAMPLE_SAMPLER_H
#define GR_SAMPLE_SAMPLER_H

#include "gpurun.h"
#include "gr/sample.h"

/* Refuses a sampler whose chain SAMPLE has not: GR_E_UNSUPPORTED names what stands in the way; and
 * one of another vocabulary. */
int gr_sampler_can_draw(const struct gr_sampler *s, int32_t n_vocab);
/* How the next row is drawn: each call is one draw further. */
struct gr_sample_how gr_sampler_next(struct gr_sampler *s);
/* The draws of gr_sampler_next have been done, or have not: it goes on behind them, or where it
 * was. */
void gr_sampler_settle(struct gr_sampler *s, bool done);
/* What a draw has given: 0, or GR_E_CHECK as gr_sampler_pick says it. */
int gr_sampler_result(int32_t id);

#endif
