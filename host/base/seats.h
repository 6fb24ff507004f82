/* Which processors the threads of a pool run on, and which node of memory has what they read most.
 * Worked out from what the machine, the process and the user say; nothing is done here. */
#ifndef GR_BASE_SEATS_H
#define GR_BASE_SEATS_H

#include "base/cpus.h"
#include "base/threads.h"

struct gr_seats {
    int n;                   /* threads */
    int n_node;              /* nodes that they are on, at least 1; 1: memory is left where it is */
    bool pinned;             /* otherwise the system chooses among all that is allowed */
    int cpu[GR_THREADS_MAX]; /* the one processor of a thread; -1: those of its node */
    uint8_t node[GR_THREADS_MAX]; /* of a thread */
    struct gr_cpus cpus[GR_NODES_MAX];
    int memory[GR_NODES_MAX];     /* id of the node whose memory is next to it */
    int before[GR_NODES_MAX + 1]; /* threads on the nodes before it */
};

struct gr_seats_wish {
    int n;        /* threads */
    bool by_node; /* as many on each node as on the others, while they have processors */
    bool strict;  /* each has a processor of its own, while there are any */
    bool chosen;  /* the processors are those somebody asked for */
    int part, of; /* this pool has number `part` of `of` equal parts of the processors */
};

/* `cpus`: those that the threads may run on, not none. */
void gr_seats_assign(struct gr_seats *out, const struct gr_nodes *nodes, const struct gr_cpus *cpus,
                     const struct gr_seats_wish *w);

/* Of these seats those of the first n threads, and the nodes that they are on. */
void gr_seats_few(struct gr_seats *out, const struct gr_seats *s, int n);

/* Of n rows (or whatever is shared evenly by the threads) those [lo, hi) that belong to a node. */
static inline int64_t gr_seats_first(const struct gr_seats *s, int64_t n, int node)
{
    return n / s->n * s->before[node] + n % s->n * s->before[node] / s->n;
}

/* Has the calling thread run where thread i belongs. False with errno. */
bool gr_seats_take(const struct gr_seats *s, int i);

#endif
