/* Parameters of a sampler: their checks, and the chain that they describe. */
#ifndef GR_SAMPLE_PARAMS_H
#define GR_SAMPLE_PARAMS_H

#include <stdbool.h>

#include "gpurun.h"

enum gr_sampler_kind {
#define SAMPLER(KIND, ...) GR_SAMPLER_##KIND,
#include "sample/kinds.def"
#undef SAMPLER
    GR_SAMPLER_N_KIND
};

/* The samplers that have an effect, in their order. adaptive: the draw is that of adaptive-p. */
struct gr_sampler_chain {
    enum gr_sampler_kind kind[GR_MAX_SAMPLERS];
    int32_t n;
    bool adaptive;
};

/* GR_E_INVALID names the parameter, its value and what is expected. */
int gr_sampler_check(const struct gr_sampler_params *p);

/* Makes the chain of checked parameters; those of a sampler that is not in it are set to off, and
 * the temperature without its sampler to 1. With mirostat it has penalties, DRY and temperature. */
struct gr_sampler_chain gr_sampler_chain(struct gr_sampler_params *p);

const char *gr_sampler_kind_name(enum gr_sampler_kind kind);

/* Returns whether penalties change any logit. */
bool gr_sampler_penalises(const struct gr_sampler_params *p);

#endif
