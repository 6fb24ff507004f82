/* Prompts of requests: texts and tokens, and texts with a gap. */
#ifndef GR_TOOLS_PROMPTS_H
#define GR_TOOLS_PROMPTS_H

#include "generation.h"

/* Adds the prompts of field "prompt": a text, a list of tokens, or a list of these. */
void gr_prompts_read(struct gr_generation *g, struct gr_fields *f);
/* Adds a prompt that asks for what stands between two texts, by the tokens that the model has for
 * it; prefix, suffix: names of the fields. */
void gr_prompts_infill(struct gr_generation *g, struct gr_fields *f, const char *prefix,
                       const char *suffix);
/* Returns whether the model has such tokens. */
bool gr_prompts_can_infill(const struct gr_model *model);

#endif
