/* Pinning of a pool's threads to processors and NUMA nodes, computed from the machine's nodes, the
 * process's affinity and the user's options. Only gr_pinning_apply has an effect. */
#ifndef GR_BASE_PINNING_H
#define GR_BASE_PINNING_H

#include "base/cpus.h"
#include "base/threads.h"

struct gr_pinning {
    int n;                        /* threads */
    int n_node;                   /* nodes that they are on, at least 1; 1: memory is not moved */
    bool pinned;                  /* affinities are set; otherwise the system places threads */
    int cpu[GR_THREADS_MAX];      /* processor of each thread; -1: any of its node */
    uint8_t node[GR_THREADS_MAX]; /* node of each thread */
    struct gr_cpus cpus[GR_NODES_MAX];
    int memory[GR_NODES_MAX];     /* id of the node whose memory is nearest */
    int before[GR_NODES_MAX + 1]; /* threads on the nodes before it */
};

struct gr_pinning_request {
    int n;        /* threads */
    bool by_node; /* divided evenly among the nodes, while they have processors */
    bool strict;  /* each thread has a processor of its own, while there are enough */
    bool chosen;  /* the user has chosen the processors */
    int part, of; /* this pool uses part number `part` of `of` equal parts of the processors */
};

/* Computes the pinning. `cpus`: processors that the threads may run on, at least one. */
void gr_pinning_assign(struct gr_pinning *out, const struct gr_nodes *nodes,
                       const struct gr_cpus *cpus, const struct gr_pinning_request *w);

/* Restricts a pinning to its first n threads and the nodes that they are on. */
void gr_pinning_limit(struct gr_pinning *out, const struct gr_pinning *pin, int n);

/* Returns the first of n rows, divided evenly among the threads, that belongs to `node`: a node has
 * rows [first(node), first(node + 1)). */
static inline int64_t gr_pinning_first_row(const struct gr_pinning *pin, int64_t n, int node)
{
    return n / pin->n * pin->before[node] + n % pin->n * pin->before[node] / pin->n;
}

/* Sets the affinity of the calling thread to that of thread i. False with errno on failure. */
bool gr_pinning_apply(const struct gr_pinning *pin, int i);

#endif
