#include "cpu/pools.h"

#include <sched.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"

/* Returns the processors that these threads may run on: the chosen ones that the process may use,
 * or all it may use when there are none. */
static struct gr_cpus usable(const struct gr_cpu_threads *t, bool say)
{
    struct gr_cpus all, mine = t->cpus;
    char asked[128], have[128];
    if (!gr_cpus_allowed(&all))
        memset(&all, 0xff, sizeof all);
    if (!t->chosen)
        return all;
    gr_cpus_and(&mine, &all);
    int n = gr_cpus_count(&mine);
    if (say && n < gr_cpus_count(&t->cpus))
        gr_log(GR_LOG_WARN, "processors %s asked for: this process may use %s only%s",
               gr_cpus_text(&t->cpus, asked, sizeof asked), gr_cpus_text(&all, have, sizeof have),
               n ? "" : ", which it does");
    return n ? mine : all;
}

int gr_cpu_processors(const struct gr_cpu_threads *t)
{
    struct gr_cpus cpus = usable(t, false);
    return GR_MIN(gr_threads_online(), gr_cpus_count(&cpus));
}

/* Restricts cpus to the node that the caller runs on. */
static void isolate(const struct gr_nodes *nodes, struct gr_cpus *cpus)
{
    int here = sched_getcpu();
    for (int k = 0; k < nodes->n && here >= 0 && here < GR_CPUS_MAX; k++) {
        struct gr_cpus mine = *cpus;
        gr_cpus_and(&mine, &nodes->node[k].cpus);
        if (gr_cpus_has(&nodes->node[k].cpus, here) && gr_cpus_count(&mine)) {
            *cpus = mine;
            return;
        }
    }
}

static void read_nodes(struct gr_nodes *nodes, const char *root, enum gr_cpu_numa numa)
{
    char why[256];
    bool found = gr_nodes_read(nodes, root ? root : "", why, sizeof why);
    if (numa == GR_CPU_NUMA_OFF)
        return;
    if (!found)
        gr_log(GR_LOG_WARN, "--numa: %s; all memory is taken for one node's", why);
    else if (nodes->n == 1)
        gr_log(GR_LOG_INFO, "--numa: all processors have the same memory; it changes nothing");
}

static int assign_pinning(struct gr_cpu_pool *p, const struct gr_cpu_threads *t,
                          const struct gr_cpu_use *use)
{
    struct gr_nodes nodes;
    if (!t->chosen && !t->strict && use->numa == GR_CPU_NUMA_OFF)
        return 0;
    if (!(p->pinning = gr_calloc(1, sizeof *p->pinning)))
        return GR_E_NOMEM_HOST;
    read_nodes(&nodes, use->root, use->numa);
    bool by_node = use->numa != GR_CPU_NUMA_OFF && nodes.n > 1;
    if (!t->chosen && !t->strict && !by_node) {
        gr_free(p->pinning);
        p->pinning = NULL;
        return 0;
    }
    struct gr_cpus cpus = usable(t, true);
    if (use->numa == GR_CPU_NUMA_ISOLATE)
        isolate(&nodes, &cpus);
    int n = gr_cpus_count(&cpus);
    if (p->n > n)
        gr_log(GR_LOG_WARN, "%d threads on %d processor%s: as many threads are faster", p->n, n,
               n == 1 ? "" : "s");
    const struct gr_pinning_request w = {.n = p->n,
                                         .by_node = use->numa == GR_CPU_NUMA_DISTRIBUTE,
                                         .strict = t->strict,
                                         .chosen = t->chosen || by_node,
                                         .part = use->part,
                                         .of = GR_MAX(use->of, 1)};
    gr_pinning_assign(p->pinning, &nodes, &cpus, &w);
    return 0;
}

static int start(struct gr_cpu_pool *p, int n, const struct gr_cpu_threads *t,
                 const struct gr_cpu_use *use)
{
    if (n < 1 || n > GR_THREADS_MAX)
        return gr_fail(GR_E_INVALID, "%d threads: 1 to %d expected", n, GR_THREADS_MAX);
    int rc = assign_pinning(p, t, use);
    const struct gr_threads_opt opt = {p->pinning, t->prio, t->poll_us};
    return rc ? rc : gr_threads_new(&p->threads, n, &opt);
}

static bool alike(const struct gr_cpu_threads *a, const struct gr_cpu_threads *b)
{
    return a->chosen == b->chosen && a->strict == b->strict && a->prio == b->prio &&
           a->poll_us == b->poll_us && !memcmp(&a->cpus, &b->cpus, sizeof a->cpus);
}

/* Decides the nodes of weights: those whose threads read all rows for every token. */
static int find_homes(struct gr_cpu_pools *p)
{
    const struct gr_pinning *s = p->decode.pinning;
    int n = p->decode.n;
    if (!s || s->n_node == 1)
        return 0;
    if (n < s->n_node)
        gr_log(GR_LOG_WARN,
               "--numa distribute: single tokens have %d thread%s, which cannot be on all of %d "
               "nodes of memory; -t %d or more can",
               n, n == 1 ? "" : "s", s->n_node, s->n_node);
    if (!(p->homes = gr_calloc(1, sizeof *p->homes)))
        return GR_E_NOMEM_HOST;
    gr_pinning_limit(p->homes, s, n > 1 ? n : s->n);
    return 0;
}

int gr_cpu_pools_init(struct gr_cpu_pools *p, int n_decode, int n_batch,
                      const struct gr_cpu_use *use)
{
    static const struct gr_cpu_use usual = {.decode.poll_us = GR_THREADS_POLL_US,
                                            .batch.poll_us = GR_THREADS_POLL_US};
    use = use ? use : &usual;
    p->decode.n = n_decode > 0 ? n_decode : gr_cpu_processors(&use->decode);
    p->batch.n = n_batch > 0 ? n_batch : gr_cpu_processors(&use->batch);
    bool same = alike(&use->decode, &use->batch);
    int n = p->decode.n, most = GR_MAX(n, p->batch.n);
    p->decode.n = same ? most : n; /* pinning of all threads of the pool */
    int rc = start(&p->decode, same ? most : n, &use->decode, use);
    p->decode.n = n;
    if (!rc && !same)
        rc = start(&p->batch, p->batch.n, &use->batch, use);
    else
        p->batch.threads = p->decode.threads, p->batch.pinning = p->decode.pinning;
    return rc ? rc : find_homes(p);
}

void gr_cpu_pools_fini(struct gr_cpu_pools *p)
{
    if (p->batch.threads != p->decode.threads)
        gr_threads_free(&p->batch.threads);
    if (p->batch.pinning != p->decode.pinning)
        gr_free(p->batch.pinning);
    gr_threads_free(&p->decode.threads);
    gr_free(p->decode.pinning);
    gr_free(p->homes);
    *p = (struct gr_cpu_pools){0};
}

int gr_cpu_pools_most(const struct gr_cpu_pools *p)
{
    return GR_MAX(p->decode.n, p->batch.n);
}

int gr_cpu_pools_home(const struct gr_cpu_pools *p, const struct gr_cpu_pool *pool, int i)
{
    if (!p->homes || !pool->pinning)
        return 0;
    int node = pool->pinning->node[i], home = 0;
    if (pool->pinning == p->decode.pinning && node < p->homes->n_node)
        return node;
    while (home < p->homes->n_node && p->homes->memory[home] != pool->pinning->memory[node])
        home++;
    return home < p->homes->n_node ? home : i % home; /* its node has no rows */
}
