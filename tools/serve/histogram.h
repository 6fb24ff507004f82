/* Histograms: how many values there were up to each of some bounds. */
#ifndef GR_TOOLS_HISTOGRAM_H
#define GR_TOOLS_HISTOGRAM_H

#include <stdint.h>

enum { GR_N_BOUND = 16 };
struct gr_histogram {
    int64_t n[GR_N_BOUND + 1]; /* of each bucket alone; the last one is unbounded */
    double sum;
};
extern const double gr_bound_seconds[GR_N_BOUND], gr_bound_tokens[GR_N_BOUND];

void gr_histogram_add(struct gr_histogram *h, const double bound[GR_N_BOUND], double value);

#endif
