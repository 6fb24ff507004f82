/* Sets of processors, and the machine's nodes of memory that they belong to. */
#ifndef GR_BASE_CPUS_H
#define GR_BASE_CPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_CPUS_MAX 1024
#define GR_NODES_MAX 64

struct gr_cpus {
    uint64_t bits[GR_CPUS_MAX / 64]; /* as the system's masks */
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
/* Number k of those in the set, in ascending order; -1 when there are fewer. */
int gr_cpus_at(const struct gr_cpus *s, int k);
void gr_cpus_and(struct gr_cpus *s, const struct gr_cpus *other);
/* Reads "0-3,8,0xF0": numbers, ranges with both ends, masks in hexadecimal; spaces around it do not
 * count, and an empty text is an empty set. False: something else, or beyond GR_CPUS_MAX. */
bool gr_cpus_parse(struct gr_cpus *out, const char *text);
/* "0-3,8"; cut with ".." when there is no room. */
const char *gr_cpus_text(const struct gr_cpus *s, char *text, size_t n);

/* Whether the calling thread may run on a part of the machine's processors only. */
bool gr_cpus_bound(void);

/* Those that the calling thread may run on; and has it run on these. False with errno. */
bool gr_cpus_allowed(struct gr_cpus *out);
bool gr_cpus_run_on(const struct gr_cpus *s);

/* A machine's nodes of memory that have processors. */
struct gr_nodes {
    int n; /* at least 1 */
    struct {
        int id;
        int memory; /* id of the node where its processors' memory should be: its own, or the
                       nearest one that has any */
        struct gr_cpus cpus; /* that are switched on */
    } node[GR_NODES_MAX];
};

/* Reads them from `root`/sys/devices/system ("" = this machine's). False: there is nothing there
 * that can be used, *why says what; *out is one node with all processors then. */
bool gr_nodes_read(struct gr_nodes *out, const char *root, char *why, size_t n);

/* The processors' worth of time that control groups grant this process, rounded up; 0 = no limit.
 * Reads `root`/proc/self/cgroup and `root`/sys/fs/cgroup. */
int gr_cpus_quota(const char *root);

#endif
