/* Models and session parameters, from the flags. */
#ifndef GR_TOOLS_MODEL_H
#define GR_TOOLS_MODEL_H

#include "gpurun.h"

struct gr_options;

/* Opens the model of the options, or the built-in one, and prints a line about it. 0 or an exit
 * code, after printing the error. */
int gr_open_model(const struct gr_options *o, bool vocab_only, struct gr_model **model);
/* Find the constant of a word: "model", "yarn", ..; "model", "mean", .. False: there is none. */
bool gr_scaling_named(const char *word, enum gr_rope_scaling *scaling);
bool gr_pooling_named(const char *word, enum gr_pooling *pooling);
/* Returns session parameters from the options; the caller sets n_ctx. */
struct gr_session_params gr_session_options(const struct gr_options *o);
/* Sets only the options for cache layout and GPU use, in parameters from elsewhere. */
void gr_cache_options(const struct gr_options *o, struct gr_session_params *p);

/* Prints the memory of the caches of such a session. 0 or an exit code, after printing the
 * error. */
int gr_print_size(const struct gr_options *o, const struct gr_model *model,
                  const struct gr_session_params *p);
/* Most pending batches of a prompt: enough to keep that many stages busy. */
#define GR_MOST_PENDING 32
/* Ends batches until at most `most` of the *n pending are left. Returns a status. */
int gr_end_batches(struct gr_session *s, int32_t *n, int32_t most);

#endif
