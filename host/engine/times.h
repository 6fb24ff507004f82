/* Time that a rank spends computing, waiting and transferring, for each session. */
#ifndef GR_ENGINE_TIMES_H
#define GR_ENGINE_TIMES_H

#include "base/alloc.h"
#include "gpurun.h"

enum { GR_N_SPAN = GR_SPAN_TRANSFER + 1 };

/* Sent between ranks as plain bytes. */
struct gr_timing_span {
    uint64_t number; /* of the micro-batch on this rank */
    uint64_t what;   /* enum gr_span */
    int64_t start_ns, end_ns;
};

struct gr_timing {
    int64_t ns[GR_N_SPAN];
    uint64_t n_ubatch, n_span;
    struct gr_timing_span *span; /* ring of the newest ones; NULL: none are recorded */
};

/* Records spans from now on; when memory is short, only the sums. */
void gr_timing_init(struct gr_timing *t);
void gr_timing_fini(struct gr_timing *t);
/* Adds a span from start_ns until now, and returns now. TRANSFER ends a micro-batch. */
int64_t gr_timing_add(struct gr_timing *t, enum gr_span what, int64_t start_ns);
/* Moves the spans, oldest first, to a vector that the caller frees. GR_E_NOMEM_HOST. */
int gr_timing_list(struct gr_timing *t, struct gr_vec *out);

#endif
