/* The CPU backend: runs plans on a pool of threads, from scalar references (ref/) or faster
 * versions of them that this processor can run (fast/).
 *
 * How to think of it: every operation has one reference, plain C that reads like its definition in
 * gr/op.def. A level is a table of faster implementations; where it has none for an operation, or
 * none for a node's storage types, the reference runs. Results do not depend on the number of
 * threads: each element is computed by one thread in one order.
 *
 * The table of functions is struct gr_backend_api (gr/backend.h). Calls come from one thread at a
 * time. */
#ifndef GR_CPU_CPU_H
#define GR_CPU_CPU_H

#include <stdbool.h>

#include "gr/backend.h"

enum gr_cpu_level {
    GR_CPU_AUTO,   /* the best one here */
    GR_CPU_REF,    /* references only */
    GR_CPU_AVX2,   /* AVX2, FMA, F16C */
    GR_CPU_AVX512, /* AVX-512 F, BW, VL, DQ, VNNI */
    GR_CPU_N_LEVEL
};

/* Whether this processor can run a level (and the build has it). */
bool gr_cpu_has(enum gr_cpu_level level);

/* "auto", "ref", "avx2", "avx512". */
const char *gr_cpu_level_name(enum gr_cpu_level level);

/* Opens a backend; close it by api->close. n_threads_decode threads run plans whose matrix products
 * have one row, n_threads_batch all others; 0 = the processors this process may use. GR_E_INVALID
 * when the level is not possible here. */
int gr_cpu_open(struct gr_backend **out, int n_threads_decode, int n_threads_batch,
                enum gr_cpu_level level);

#endif
