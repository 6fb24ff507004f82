/* Opening and closing a session of one rank. */
#ifndef GR_ENGINE_OPEN_H
#define GR_ENGINE_OPEN_H

#include "engine/session.h"

/* Fills in defaults that depend on the model and the machine, and checks all parameters except
 * those of the caches (gr_memory_plan). */
int gr_session_fill(const struct gr_model *model, struct gr_session_params *p);
/* Fails: sessions with `deterministic` that compute texts whole (gr_vectors_whole) have no layers
 * on a GPU, whose kernels are chosen by the number of tokens. */
int gr_session_refuse_whole(void);
/* Opens the session of one rank in two steps, the rank model's weights being loaded between them.
 * The first one makes a session without GPUs and cache memory: checked parameters, the caches'
 * shapes, the constants on the CPU. measure: it serves to measure only, and leaves the CPU's
 * threads as they are. Closed by gr_session_close, also after a failure. */
int gr_session_begin(struct gr_session **out, struct gr_rank_model *rank_model,
                     const struct gr_session_params *params, bool measure);
int gr_session_finish(struct gr_session *s);
/* Exchanges what two sessions have, except the tap, progress callback, timer, importance matrix and
 * samplers of device-side sampling, which belong to the handle. Pointers to the sessions must be
 * updated by their owners. */
int gr_session_exchange(struct gr_session *a, struct gr_session *b);

/* Replaces NAN by the adapters' own strengths, and those of no adapter by 0. */
void gr_session_fill_adapters(const struct gr_model *m, float scale[GR_MAX_ADAPTER]);

/* Returns which RoPE frequency divisors are in use: "none", "the model's", or LongRoPE's "short" or
 * "long". */
const char *gr_rope_factors_name(const struct gr_session *s);

#endif
