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

#include "base/cpus.h"
#include "gr/backend.h"

enum gr_cpu_level {
    GR_CPU_AUTO,   /* the best one here */
    GR_CPU_REF,    /* references only */
    GR_CPU_AVX2,   /* AVX2, FMA, F16C */
    GR_CPU_AVX512, /* AVX-512 F, BW, VL, DQ, VNNI; BF16 where there is that too */
    GR_CPU_AMX,    /* these, and tiles: AMX-TILE, AMX-INT8, AMX-BF16 */
    GR_CPU_N_LEVEL
};

/* Whether this processor can run a level (and the build has it, and the system lets it be used: the
 * first question about tiles asks Linux for them). */
bool gr_cpu_has(enum gr_cpu_level level);

/* "auto", "ref", "avx2", "avx512", "amx". */
const char *gr_cpu_level_name(enum gr_cpu_level level);

/* The level of that name (NULL: auto), where auto is the best one here. GR_E_INVALID when there is
 * none, or it is not possible here. */
int gr_cpu_level_find(enum gr_cpu_level *out, const char *name);

/* Operations a second that its threads compute products of prompts with, two a multiplication: by
 * what was seen of the level, not of this processor. */
double gr_cpu_prompt_ops(const struct gr_backend *b);

/* Opens a backend; close it by api->close. n_threads_decode threads run plans whose matrix products
 * have one row, n_threads_batch all others; 0 = the processors this process may use. GR_E_INVALID
 * when the level is not possible here. */
int gr_cpu_open(struct gr_backend **out, int n_threads_decode, int n_threads_batch,
                enum gr_cpu_level level);

/* Where and how threads run, those of single tokens and those of prompts. */
struct gr_cpu_threads {
    bool chosen; /* on these processors only */
    struct gr_cpus cpus;
    bool strict; /* each on one of its own */
    int prio, poll_us;
};
enum gr_cpu_numa { GR_CPU_NUMA_OFF, GR_CPU_NUMA_DISTRIBUTE, GR_CPU_NUMA_ISOLATE };
struct gr_cpu_use {
    enum gr_cpu_numa numa; /* threads spread over the nodes of memory, or on the one that the
                              caller runs on */
    struct gr_cpu_threads decode, batch;
    const char *root; /* where /sys is, for tests; NULL: of this machine */
    int part, of;     /* of backends that share the processors: number `part` of `of` */
};

/* gr_cpu_open with these wishes. What cannot be is said in the log, and left. */
int gr_cpu_open_as(struct gr_backend **out, int n_threads_decode, int n_threads_batch,
                   enum gr_cpu_level level, const struct gr_cpu_use *use);

/* Processors that such threads may run on, at least 1. */
int gr_cpu_processors(const struct gr_cpu_threads *t);

/* Brings rows of a matrix in host memory to the nodes whose threads take them first; nothing with
 * one node. What is mapped from a file is read meanwhile, by threads of that node. */
void gr_cpu_spread(struct gr_backend *b, const struct gr_ten *w);

#endif
