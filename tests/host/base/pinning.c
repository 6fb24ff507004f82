/* Placement as a pure function, on random machines. */
#include "base/pinning.h"

#include <criterion/criterion.h>

static uint64_t state = 1;

static int below(int n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)n);
}

/* Nodes with some processors each, of which some are allowed, one at least. */
static void machine(struct gr_nodes *m, struct gr_cpus *allowed)
{
    int cpu = 0;
    *m = (struct gr_nodes){.n = 1 + below(8)};
    *allowed = (struct gr_cpus){0};
    for (int k = 0; k < m->n; k++) {
        m->node[k].id = 2 * k, m->node[k].memory = below(4) ? 2 * k : 0;
        for (int n = 1 + below(5); n > 0; n--, cpu += 1 + below(3)) {
            gr_cpus_add(&m->node[k].cpus, cpu);
            if (below(3))
                gr_cpus_add(allowed, cpu);
        }
    }
    if (!gr_cpus_count(allowed))
        gr_cpus_add(allowed, gr_cpus_at(&m->node[0].cpus, 0));
}

static void check_places(const struct gr_pinning *s, const struct gr_cpus *allowed,
                         const struct gr_pinning_request *w)
{
    int on[GR_NODES_MAX] = {0}, used[GR_CPUS_MAX] = {0}, room = 0;
    for (int k = 0; k < s->n_node; k++) {
        struct gr_cpus both = s->cpus[k];
        gr_cpus_and(&both, allowed);
        room += gr_cpus_count(&both);
        cr_assert_eq(gr_cpus_count(&both), gr_cpus_count(&s->cpus[k]), "one that is not allowed");
        cr_assert_gt(gr_cpus_count(&both), 0);
    }
    for (int i = 0; i < s->n; i++) {
        cr_assert_lt(s->node[i], s->n_node);
        on[s->node[i]]++;
        cr_assert_eq(s->cpu[i] >= 0, w->strict);
        if (w->strict) {
            cr_assert(gr_cpus_has(&s->cpus[s->node[i]], s->cpu[i]));
            used[s->cpu[i]]++;
        }
    }
    for (int cpu = 0; cpu < GR_CPUS_MAX; cpu++)
        cr_assert(used[cpu] <= 1 || s->n > room, "two threads on one of more processors");
    for (int k = 0; k < s->n_node; k++) {
        cr_assert_eq(s->before[k + 1] - s->before[k], on[k]);
        cr_assert(s->n > room || on[k] <= gr_cpus_count(&s->cpus[k]),
                  "a crowd, and room elsewhere");
        for (int j = 0; j < s->n_node; j++) /* as even as there is room */
            cr_assert(on[k] <= on[j] + 1 || on[j] >= gr_cpus_count(&s->cpus[j]) || s->n > room);
    }
}

/* Every row belongs to one node, in order, by its threads. */
static void check_rows(const struct gr_pinning *s)
{
    int64_t rows = below(5) ? below(100000) : INT64_C(1) << 40;
    cr_assert_eq(gr_pinning_first_row(s, rows, 0), 0);
    cr_assert_eq(gr_pinning_first_row(s, rows, s->n_node), rows);
    for (int k = 0; k < s->n_node; k++) {
        int64_t n = gr_pinning_first_row(s, rows, k + 1) - gr_pinning_first_row(s, rows, k);
        int64_t want = rows / s->n * (s->before[k + 1] - s->before[k]);
        cr_assert(n >= want - 1 && n <= want + s->n, "%lld rows, %lld expected", (long long)n,
                  (long long)want);
    }
}

Test(pinning, random_machines)
{
    static struct gr_nodes m;
    static struct gr_pinning s;
    for (int round = 0; round < 2000; round++) {
        struct gr_cpus allowed;
        machine(&m, &allowed);
        struct gr_pinning_request w = {.n = 1 + below(40),
                                       .by_node = below(2),
                                       .strict = below(2),
                                       .chosen = below(2),
                                       .of = 1};
        gr_pinning_assign(&s, &m, &allowed, &w);
        cr_assert_eq(s.n, w.n);
        cr_assert(w.by_node || s.n_node == 1);
        cr_assert_eq(s.pinned, w.strict || w.chosen || s.n_node > 1);
        check_places(&s, &allowed, &w);
        check_rows(&s);
    }
}

/* The first threads alone: each on the node that it was on, and no node without one. */
Test(pinning, the_first_few)
{
    static struct gr_nodes m;
    static struct gr_pinning s, few;
    for (int round = 0; round < 1000; round++) {
        struct gr_cpus allowed;
        machine(&m, &allowed);
        const struct gr_pinning_request w = {.n = 1 + below(40), .by_node = true, .of = 1};
        gr_pinning_assign(&s, &m, &allowed, &w);
        int n = 1 + below(w.n + 3), on[GR_NODES_MAX] = {0};
        gr_pinning_limit(&few, &s, n);
        cr_assert_eq(few.n, n < w.n ? n : w.n);
        for (int i = 0; i < few.n; i++) {
            cr_assert(few.node[i] == s.node[i] && few.node[i] < few.n_node);
            on[few.node[i]]++;
        }
        for (int k = 0; k < few.n_node; k++)
            cr_assert(on[k] > 0 && few.before[k + 1] - few.before[k] == on[k]);
        cr_assert_eq(few.before[few.n_node], few.n);
        check_rows(&few);
    }
}

/* Parts share nothing and leave nothing over, while there are as many processors. */
Test(pinning, parts)
{
    static struct gr_nodes m;
    static struct gr_pinning s;
    for (int round = 0; round < 300; round++) {
        struct gr_cpus allowed, seen = {0};
        machine(&m, &allowed);
        int all = gr_cpus_count(&allowed), of = 1 + below(all), sum = 0;
        for (int part = 0; part < of; part++) {
            const struct gr_pinning_request w = {
                .n = 3, .by_node = below(2), .part = part, .of = of};
            gr_pinning_assign(&s, &m, &allowed, &w);
            for (int k = 0; k < s.n_node; k++)
                for (int i = 0, cpu; (cpu = gr_cpus_at(&s.cpus[k], i)) >= 0; i++, sum++)
                    gr_cpus_add(&seen, cpu);
        }
        cr_assert_eq(sum, all);
        cr_assert_eq(gr_cpus_count(&seen), all);
    }
}
