/* CPU threads, from the flags. */
#ifndef GR_TOOLS_THREAD_OPTIONS_H
#define GR_TOOLS_THREAD_OPTIONS_H

#include "gpurun.h"

struct gr_options;

/* Returns -t, or the number of available processors. */
int gr_threads_wanted(const struct gr_options *o);
/* Sets the placement of threads; `words` owns the lists of processors. */
struct gr_thread_words {
    char one[8192], many[8192];
};
void gr_thread_options(const struct gr_options *o, struct gr_thread_words *words,
                       struct gr_model_params *p);

#endif
