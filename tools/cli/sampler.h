/* Parameters of a sampler: by default, by the model's file, by flags. */
#ifndef GR_TOOLS_SAMPLER_H
#define GR_TOOLS_SAMPLER_H

#include "gpurun.h"

struct gr_options;

/* The parameters, and what they point to. */
struct gr_sampler_choice {
    struct gr_sampler_params p; /* without seed and n_ctx */
    int32_t n_file;             /* of them by the model's file */
    struct gr_logit_bias *bias; /* [n_bias], as p has them */
    size_t n_bias, cap_bias;
    char **breaker; /* [n_breaker] of DRY */
    int32_t n_breaker;
};

/* Chooses them for a model. 0 or an exit code, after printing the error; *c is to be dropped in
 * both cases. */
int gr_sampler_choose(struct gr_sampler_choice *c, const struct gr_options *o,
                      const struct gr_model *model);
/* Adds a bias; false: no memory. */
bool gr_sampler_add_bias(struct gr_sampler_choice *c, int32_t id, float bias);
void gr_sampler_drop(struct gr_sampler_choice *c);

/* Returns the seed of the options, or a random one. */
uint64_t gr_choose_seed(const struct gr_options *o);

#endif
