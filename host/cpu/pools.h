/* The threads of a CPU backend: those of single tokens and those of prompts, one pool where both
 * are wanted alike; where they run, and where the weights are that they read. */
#ifndef GR_CPU_POOLS_H
#define GR_CPU_POOLS_H

#include "base/seats.h"
#include "cpu/cpu.h"

struct gr_cpu_pool {
    struct gr_threads *threads;
    int n;                  /* threads that take part */
    struct gr_seats *seats; /* NULL: nothing was wished */
};

struct gr_cpu_pools {
    struct gr_cpu_pool decode, batch;
    struct gr_seats *homes; /* the decoding threads', or where that is one thread all threads', when
                               they are on several nodes; threads of `decode` have these numbers */
    bool stays;             /* memory cannot be moved, which was said */
};

/* 0 threads: as many as processors. `use` NULL: no wishes. */
int gr_cpu_pools_init(struct gr_cpu_pools *p, int n_decode, int n_batch,
                      const struct gr_cpu_use *use);
void gr_cpu_pools_fini(struct gr_cpu_pools *p);
int gr_cpu_pools_most(const struct gr_cpu_pools *p); /* threads of the larger one */
/* Number among the homes of the node that thread i of a pool is on. */
int gr_cpu_pools_home(const struct gr_cpu_pools *p, const struct gr_cpu_pool *pool, int i);
void gr_cpu_pools_spread(struct gr_cpu_pools *p, const struct gr_ten *w);

#endif
