/* The CPU backend: runs plans on a pool of threads, from scalar references (ref/) or faster
 * versions of them that this processor can run (fast/).
 *
 * Every operation has one reference, plain C that reads like its definition in gr/op.def. A level
 * is a table of faster implementations; the reference runs where the table has none for an
 * operation or for a node's storage types. Results do not depend on the number of threads: each
 * element is computed by one thread in one order.
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
    GR_CPU_AVX512, /* AVX-512 F, BW, VL, DQ, VNNI; BF16 where available */
    GR_CPU_AMX,    /* AVX512 and AMX-TILE, AMX-INT8, AMX-BF16 */
    GR_CPU_N_LEVEL
};

/* Returns whether a level can be used: supported by processor, build and operating system. The
 * first query about AMX asks Linux for permission to use the tiles. */
bool gr_cpu_has(enum gr_cpu_level level);

/* "auto", "ref", "avx2", "avx512", "amx". */
const char *gr_cpu_level_name(enum gr_cpu_level level);

/* Finds the level of that name (NULL: auto) and resolves auto to the best one available.
 * GR_E_INVALID: no such level, or not available here. */
int gr_cpu_level_find(enum gr_cpu_level *out, const char *name);

/* Estimates the operations per second (two per multiply-add) of its threads in matrix products of
 * prompts, from measurements of the level, not of this processor. */
double gr_cpu_prompt_ops(const struct gr_backend *b);

/* Opens a backend; close it by api->close. n_threads_decode threads run plans whose matrix products
 * have one row, n_threads_batch all others; 0: the number of processors this process may use.
 * GR_E_INVALID when the level is not available here. */
int gr_cpu_open(struct gr_backend **out, int n_threads_decode, int n_threads_batch,
                enum gr_cpu_level level);

/* Pinning and scheduling of threads. */
struct gr_cpu_threads {
    bool chosen; /* restricted to `cpus` */
    struct gr_cpus cpus;
    bool strict; /* each thread on a processor of its own */
    int prio, poll_us;
};
enum gr_cpu_numa { GR_CPU_NUMA_OFF, GR_CPU_NUMA_DISTRIBUTE, GR_CPU_NUMA_ISOLATE };
struct gr_cpu_use {
    enum gr_cpu_numa numa; /* threads on all NUMA nodes, or on the one that the caller runs on */
    struct gr_cpu_threads decode, batch;
    const char *root; /* folder that contains /sys, for tests; NULL: this machine */
    int part, of;     /* this backend uses part `part` of `of` of the processors */
};

/* gr_cpu_open with these settings. Settings that cannot be applied are logged and ignored. */
int gr_cpu_open_as(struct gr_backend **out, int n_threads_decode, int n_threads_batch,
                   enum gr_cpu_level level, const struct gr_cpu_use *use);

/* Returns the number of processors that such threads may run on, at least 1. */
int gr_cpu_processors(const struct gr_cpu_threads *t);

/* Moves the rows of a matrix in host memory to the NUMA nodes whose threads take them first; does
 * nothing with one node. Pages of mapped files are read in by threads of that node. */
void gr_cpu_numa_move(struct gr_backend *b, const struct gr_ten *w);

#endif
