/* Thread pools of a CPU backend, for single tokens and for prompts (one pool when both have the
 * same settings), their pinning, and the NUMA nodes of the weights they read. */
#ifndef GR_CPU_POOLS_H
#define GR_CPU_POOLS_H

#include "base/pinning.h"
#include "cpu/cpu.h"

struct gr_cpu_pool {
    struct gr_threads *threads;
    int n;                      /* threads used */
    struct gr_pinning *pinning; /* NULL: not pinned */
};

struct gr_cpu_pools {
    struct gr_cpu_pool decode, batch;
    /* Nodes of weights when the threads of `decode` are on several: by the threads that decode, or
     * by all of its pool when only one does; NULL: one node. */
    struct gr_pinning *homes;
    bool stays; /* memory cannot be moved (logged once) */
};

/* 0 threads: one per processor. `use` NULL: default settings. */
int gr_cpu_pools_init(struct gr_cpu_pools *p, int n_decode, int n_batch,
                      const struct gr_cpu_use *use);
void gr_cpu_pools_fini(struct gr_cpu_pools *p);
int gr_cpu_pools_most(const struct gr_cpu_pools *p); /* threads of the larger pool */
/* Returns the index in `homes` of the node that thread i of a pool is on. */
int gr_cpu_pools_home(const struct gr_cpu_pools *p, const struct gr_cpu_pool *pool, int i);
void gr_cpu_pools_numa_move(struct gr_cpu_pools *p, const struct gr_ten *w);

#endif
