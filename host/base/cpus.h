/* Sets of processors, and the NUMA nodes that they belong to. */
#ifndef GR_BASE_CPUS_H
#define GR_BASE_CPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_CPUS_MAX 1024
#define GR_NODES_MAX 64

struct gr_cpus {
    uint64_t bits[GR_CPUS_MAX / 64]; /* bit `cpu` of the set, as in the kernel's cpu_set_t */
};

static inline bool gr_cpus_has(const struct gr_cpus *s, int cpu)
{
    return s->bits[cpu / 64] >> cpu % 64 & 1;
}
static inline void gr_cpus_add(struct gr_cpus *s, int cpu)
{
    s->bits[cpu / 64] |= UINT64_C(1) << cpu % 64;
}
int gr_cpus_count(const struct gr_cpus *s);
/* Returns the k-th processor of the set, ascending, counted from 0; -1 past the last one. */
int gr_cpus_at(const struct gr_cpus *s, int k);
void gr_cpus_and(struct gr_cpus *s, const struct gr_cpus *other);
/* Reads "0-3,8,0xF0": numbers, ranges with both ends, masks in hexadecimal; surrounding white space
 * is ignored, and an empty text is an empty set. False: another syntax, or a processor beyond
 * GR_CPUS_MAX. */
bool gr_cpus_parse(struct gr_cpus *out, const char *text);
/* Writes "0-3,8" to text [n], cut with ".." where it is too long; returns text. */
const char *gr_cpus_text(const struct gr_cpus *s, char *text, size_t n);

/* True when the calling thread is restricted to some of the machine's processors. */
bool gr_cpus_bound(void);

/* Reads, and sets, the affinity of the calling thread. False with errno on failure. */
bool gr_cpus_allowed(struct gr_cpus *out);
bool gr_cpus_run_on(const struct gr_cpus *s);

/* NUMA nodes of a machine that have processors. */
struct gr_nodes {
    int n; /* at least 1 */
    struct {
        int id;
        int memory; /* id of the node to allocate memory on for its processors: itself, or the
                       nearest node that has memory */
        struct gr_cpus cpus; /* that are online */
    } node[GR_NODES_MAX];
};

/* Reads the nodes from `root`/sys/devices/system (root "": this machine). On failure returns false,
 * why [n] receives the reason, and *out is one node with all processors. */
bool gr_nodes_read(struct gr_nodes *out, const char *root, char *why, size_t n);

/* Returns the CPU quota of this process's control groups, in processors rounded up; 0: no limit.
 * Reads `root`/proc/self/cgroup and `root`/sys/fs/cgroup. */
int gr_cpus_quota(const char *root);

#endif
