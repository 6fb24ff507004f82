/* Histograms. */
#include "histogram.h"

const double gr_bound_seconds[GR_N_BOUND] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                             0.5,   1,      2.5,   5,    10,    30,   60,  300};
const double gr_bound_tokens[GR_N_BOUND] = {1,   2,   4,    8,    16,   32,   64,    128,
                                            256, 512, 1024, 2048, 4096, 8192, 16384, 32768};

void gr_histogram_add(struct gr_histogram *h, const double bound[GR_N_BOUND], double value)
{
    int i = 0;
    while (i < GR_N_BOUND && value > bound[i])
        i++;
    h->n[i]++;
    h->sum += value;
}
