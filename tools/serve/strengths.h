/* Adapters (LoRA) of the model that is served, whose strengths requests choose. */
#ifndef GR_TOOLS_SERVE_STRENGTHS_H
#define GR_TOOLS_SERVE_STRENGTHS_H

#include <stdint.h>

#include "gpurun.h"

struct gr_fields;
struct gr_strengths;
struct gr_options;
struct gr_session;

/* Reads which there are from the flags. Returns an exit code, after printing the error. */
int gr_strengths_open(struct gr_strengths **out, const struct gr_options *o);
void gr_strengths_free(struct gr_strengths **l);
/* Finds out whether a session can change them; else they are fixed. Returns a status. */
int gr_strengths_fix(struct gr_strengths *l, struct gr_session *session);
/* Number of those that are not fixed. */
int32_t gr_strengths_n(const struct gr_strengths *l);
/* Reads field "lora" of a request; without it strengths are those of the server now. */
void gr_strengths_read(struct gr_strengths *l, struct gr_fields *f, float scale[GR_MAX_ADAPTER]);

#endif
