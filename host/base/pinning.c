#include "base/pinning.h"

#include "base/checked.h"

/* Restricts the nodes to `cpus`, and of these, in order of nodes, to part `part` of `of`. */
static void take_part(struct gr_nodes *nodes, const struct gr_cpus *cpus, int part, int of)
{
    int n = 0, all = 0, kept = 0;
    for (int k = 0; k < nodes->n; k++) {
        gr_cpus_and(&nodes->node[k].cpus, cpus);
        all += gr_cpus_count(&nodes->node[k].cpus);
    }
    if (!all) { /* a container whose /sys lists other processors than it may use */
        nodes->n = 1, nodes->node[0].cpus = *cpus;
        all = gr_cpus_count(cpus);
    }
    int lo = all * part / of, hi = GR_MAX(all * (part + 1) / of, lo + 1);
    for (int k = 0; k < nodes->n; k++) {
        struct gr_cpus mine = {0};
        for (int i = 0, cpu; (cpu = gr_cpus_at(&nodes->node[k].cpus, i)) >= 0; i++, n++)
            if (n >= lo && n < hi)
                gr_cpus_add(&mine, cpu);
        nodes->node[kept] = nodes->node[k];
        nodes->node[kept].cpus = mine;
        kept += gr_cpus_count(&mine) > 0;
    }
    nodes->n = GR_MAX(kept, 1);
}

static void count_before(struct gr_pinning *pin)
{
    int on[GR_NODES_MAX] = {0};
    for (int i = 0; i < pin->n; i++)
        on[pin->node[i]]++;
    for (int k = 0; k < pin->n_node; k++)
        pin->before[k + 1] = pin->before[k] + on[k];
}

/* Assigns the threads to the nodes round-robin, so that the first few are on several nodes too; a
 * node whose processors are all taken is skipped until those of all nodes are. */
static void deal(struct gr_pinning *pin, const int *room)
{
    int on[GR_NODES_MAX] = {0}, full = 0, node = -1;
    for (int k = 0; k < pin->n_node; k++)
        full += room[k];
    for (int i = 0; i < pin->n; i++) {
        do
            node = (node + 1) % pin->n_node;
        while (i < full && on[node] >= room[node]);
        pin->node[i] = (uint8_t)node;
        on[node]++;
    }
    count_before(pin);
}

void gr_pinning_limit(struct gr_pinning *out, const struct gr_pinning *pin, int n)
{
    *out = *pin;
    out->n = GR_MIN(n, pin->n);
    out->n_node = 1; /* round-robin: they are on the first nodes */
    for (int i = 0; i < out->n; i++)
        out->n_node = GR_MAX(out->n_node, pin->node[i] + 1);
    count_before(out);
}

void gr_pinning_assign(struct gr_pinning *out, const struct gr_nodes *nodes,
                       const struct gr_cpus *cpus, const struct gr_pinning_request *w)
{
    struct gr_nodes mine = *nodes;
    int room[GR_NODES_MAX], taken[GR_NODES_MAX] = {0};
    take_part(&mine, cpus, w->part, w->of);
    *out = (struct gr_pinning){.n = w->n, .n_node = w->by_node ? mine.n : 1};
    for (int k = 0; k < mine.n; k++) {
        int at = w->by_node ? k : 0;
        for (int i = 0; i < GR_CPUS_MAX / 64; i++)
            out->cpus[at].bits[i] |= mine.node[k].cpus.bits[i];
        out->memory[at] = mine.node[k].memory;
    }
    for (int k = 0; k < out->n_node; k++)
        room[k] = gr_cpus_count(&out->cpus[k]);
    out->pinned = w->strict || w->chosen || w->of > 1 || out->n_node > 1;
    deal(out, room);
    for (int i = 0; i < w->n; i++) {
        int k = out->node[i];
        out->cpu[i] = w->strict ? gr_cpus_at(&out->cpus[k], taken[k]++ % GR_MAX(room[k], 1)) : -1;
    }
}

bool gr_pinning_apply(const struct gr_pinning *pin, int i)
{
    struct gr_cpus one = {0};
    if (!pin->pinned)
        return true;
    if (pin->cpu[i] < 0)
        return gr_cpus_run_on(&pin->cpus[pin->node[i]]);
    gr_cpus_add(&one, pin->cpu[i]);
    return gr_cpus_run_on(&one);
}
