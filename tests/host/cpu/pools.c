/* Places of the CPU backend's threads, and the division of weights among nodes of memory. */
#include "cpu/pools.h"

#include <math.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "cpu/impl/impl.h"
#include "gr/status.h"
#include "support/tree.h"

static char said[4096];

static void listen(enum gr_log_level level, const char *line, void *user)
{
    (void)level, (void)user;
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", line);
}

/* Processors of the calling thread by /proc. */
static void allowed_of(struct gr_cpus *out)
{
    char path[64], line[4200];
    bool found = false;
    snprintf(path, sizeof path, "/proc/self/task/%ld/status", (long)syscall(SYS_gettid));
    FILE *f = fopen(path, "r");
    cr_assert(f);
    while (!found && fgets(line, sizeof line, f))
        found = !strncmp(line, "Cpus_allowed_list:", 18);
    fclose(f);
    cr_assert(found && gr_cpus_parse(out, line + 18), "%s", line);
}

struct seen {
    struct gr_cpus cpus[8];
    int on[8];
};

static void look(void *arg, int i, int n)
{
    struct seen *s = arg;
    (void)n;
    allowed_of(&s->cpus[i]);
    s->on[i] = sched_getcpu();
}

/* The first processors that this process has. */
static int own(int *cpu, int most)
{
    struct gr_cpus all;
    int n = 0;
    cr_assert(gr_cpus_allowed(&all));
    while (n < most && (cpu[n] = gr_cpus_at(&all, n)) >= 0)
        n++;
    return n;
}

/* Strict: each thread has one processor, in order; else all of them have all that are chosen. The
 * caller's affinity is as it was afterwards. */
Test(pools, threads_are_where_they_were_asked_to_be)
{
    int cpu[2], n = own(cpu, 2);
    struct gr_cpus before, after;
    cr_assert(gr_cpus_allowed(&before));
    for (int strict = 0; strict < 2; strict++) {
        struct gr_cpu_use use = {.decode = {.chosen = true, .strict = strict, .poll_us = 50},
                                 .of = 1};
        struct gr_cpu_pools p = {0};
        struct seen s;
        for (int i = 0; i < n; i++)
            gr_cpus_add(&use.decode.cpus, cpu[i]);
        use.batch = use.decode;
        cr_assert_eq(gr_cpu_pools_init(&p, n, 2 * n, &use), 0, "%s", gr_error());
        cr_assert_eq(p.decode.threads, p.batch.threads);
        gr_threads_run(p.batch.threads, 2 * n, look, &s);
        for (int i = 0; i < 2 * n; i++) {
            cr_expect_eq(gr_cpus_count(&s.cpus[i]), strict ? 1 : n);
            cr_expect(gr_cpus_has(&s.cpus[i], s.on[i]));
            cr_expect(!strict || s.on[i] == cpu[i % n], "thread %d on %d", i, s.on[i]);
        }
        cr_assert(gr_cpus_allowed(&after));
        cr_expect_eq(memcmp(&before, &after, sizeof after), 0);
        gr_cpu_pools_fini(&p);
    }
}

/* Prompts have processors of their own. */
Test(pools, batch_threads_elsewhere)
{
    int cpu[2];
    if (own(cpu, 2) < 2)
        cr_skip_test("one processor only");
    struct gr_cpu_use use = {.decode = {.chosen = true}, .batch = {.chosen = true}, .of = 1};
    struct gr_cpu_pools p = {0};
    struct seen s;
    gr_cpus_add(&use.decode.cpus, cpu[0]);
    gr_cpus_add(&use.batch.cpus, cpu[1]);
    cr_assert_eq(gr_cpu_pools_init(&p, 0, 2, &use), 0, "%s", gr_error());
    cr_expect_eq(p.decode.n, 1, "as many as were chosen");
    cr_expect_neq(p.decode.threads, p.batch.threads);
    gr_threads_run(p.decode.threads, 1, look, &s);
    cr_expect_eq(s.on[0], cpu[0]);
    gr_threads_run(p.batch.threads, 2, look, &s);
    cr_expect(s.on[0] == cpu[1] && s.on[1] == cpu[1]);
    gr_cpu_pools_fini(&p);
}

/* Processors that are not this process's, and a priority that may be refused: said, and it goes on.
 */
Test(pools, what_cannot_be_is_said)
{
    struct gr_cpu_use use = {.decode = {.chosen = true, .prio = -1}, .of = 1};
    struct gr_cpu_pools p = {0};
    struct seen s;
    gr_log_set(listen, NULL);
    gr_cpus_add(&use.decode.cpus, GR_CPUS_MAX - 1);
    use.batch = use.decode;
    cr_assert_eq(gr_cpu_pools_init(&p, 2, 2, &use), 0, "%s", gr_error());
    cr_expect(strstr(said, "processors 1023 asked for"), "%s", said);
    gr_threads_run(p.decode.threads, 2, look, &s);
    gr_cpu_pools_fini(&p);
    gr_log_set(NULL, NULL);
}

Test(pools, pinning_that_the_system_refuses)
{
    static struct gr_pinning nowhere = {.n = 2, .n_node = 1, .pinned = true, .cpu = {-1, -1}};
    struct gr_threads *t;
    struct seen s;
    gr_log_set(listen, NULL);
    gr_cpus_add(&nowhere.cpus[0], GR_CPUS_MAX - 1);
    cr_assert_eq(gr_threads_new(&t, 2, &(struct gr_threads_opt){&nowhere, 0, 50}), 0);
    cr_expect(strstr(said, "could not be placed"), "%s", said);
    gr_threads_run(t, 2, look, &s);
    gr_threads_free(&t);
    gr_log_set(NULL, NULL);
}

/* ---- nodes of memory ---- */

/* Every item once, a node's own ones first, whatever the order in which threads ask. */
Test(pools, items_are_taken_once)
{
    static struct gr_pinning s = {.n = 5, .n_node = 3, .before = {0, 1, 3, 5}};
    static struct gr_cpu_queue next[GR_NODES_MAX];
    for (int64_t n_matrix = 1; n_matrix < 4; n_matrix++)
        for (int64_t n_part = 0; n_part < 23; n_part++) {
            int64_t n = n_matrix * n_part, taken = 0, k = 0;
            char seen[100] = {0};
            memset(next, 0, sizeof next);
            for (int turn = 0; k < 3; turn = (turn * 7 + 1) % 11) {
                const struct gr_cpu_work w = {.next = next, .homes = &s, .home = turn % 3};
                int64_t i = gr_cpu_take(&w, n_matrix, n_part), at = i % GR_MAX(n_part, 1);
                k = i >= n ? k + 1 : 0;
                if (i >= n)
                    continue;
                cr_assert_eq(seen[i]++, 0);
                taken++;
                if (next[turn % 3].n <= n_matrix * (gr_pinning_first_row(&s, n_part, turn % 3 + 1) -
                                                    gr_pinning_first_row(&s, n_part, turn % 3)))
                    cr_assert(at >= gr_pinning_first_row(&s, n_part, turn % 3) &&
                              at < gr_pinning_first_row(&s, n_part, turn % 3 + 1));
            }
            cr_assert_eq(taken, n);
        }
}

/* Weights belong to nodes that have threads of single tokens, and there are threads that bring
 * them; one such thread alone leaves them to those of prompts. Too few are said. */
Test(pools, weights_are_where_threads_are)
{
    static const struct {
        int n_decode, n_batch, homes, second; /* threads among the homes, on the second node */
    } of[] = {{2, 5, 2, 1}, {3, 8, 3, 1}, {5, 3, 5, 2}, {1, 4, 4, 2}};
    int cpu[2];
    struct tree t;
    char list[2][16];
    if (own(cpu, 2) < 2)
        cr_skip_test("one processor only");
    tree_init(&t);
    for (int i = 0; i < 2; i++)
        snprintf(list[i], sizeof list[i], "%d\n", cpu[i]);
    tree_put(&t, "/sys/devices/system/node/online", "0-1\n");
    tree_node(&t, 0, list[0], 1000, "10 20\n");
    tree_node(&t, 1, list[1], 1000, "20 10\n");
    const struct gr_cpu_use use = {.numa = GR_CPU_NUMA_DISTRIBUTE, .root = t.root, .of = 1};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        struct gr_cpu_pools p = {0};
        *said = 0;
        gr_log_set(listen, NULL);
        cr_assert_eq(gr_cpu_pools_init(&p, of[k].n_decode, of[k].n_batch, &use), 0, "%s",
                     gr_error());
        gr_log_set(NULL, NULL);
        cr_assert(p.homes && p.homes->n_node == 2);
        cr_expect_eq(p.homes->n, of[k].homes, "case %zu: %d", k, p.homes->n);
        cr_expect_eq(p.homes->before[2] - p.homes->before[1], of[k].second, "case %zu", k);
        cr_expect_geq(gr_threads_count(p.decode.threads), p.homes->n);
        cr_expect_eq(strstr(said, "-t 2 or more") != NULL, of[k].n_decode < 2, "%s", said);
        for (int i = 0; i < gr_cpu_pools_most(&p); i++) {
            int home = gr_cpu_pools_home(&p, &p.batch, i);
            cr_expect(home >= 0 && home < 2 && home == p.batch.pinning->node[i]);
        }
        gr_cpu_pools_fini(&p);
    }
    tree_fini(&t);
}

enum { ROWS = 999, COLS = 64 };

static struct gr_ten matrix(float *p, int64_t rows, int64_t cols)
{
    return (struct gr_ten){.data = p,
                           .batch = 1,
                           .rows = rows,
                           .cols = cols,
                           .row_bytes = cols * (int64_t)sizeof(float),
                           .dtype = GR_F32};
}

/* y of one product, with such wishes. */
static void multiply(const struct gr_cpu_use *use, int n_threads, float *w, float *x, float *y)
{
    struct gr_backend *b;
    void *exec;
    cr_assert_eq(gr_cpu_open_as(&b, n_threads, n_threads, GR_CPU_AUTO, use), 0, "%s", gr_error());
    struct gr_node node = {.op = GR_OP_MATMUL,
                           .a.matmul = {.x = matrix(x, 3, COLS),
                                        .w = matrix(w, ROWS, COLS),
                                        .y = matrix(y, 3, ROWS),
                                        .scale = 1}};
    gr_cpu_numa_move(b, &node.a.matmul.w);
    const struct gr_segment s = {.node = &node, .n_node = 1};
    cr_assert_eq(b->api->segment_new(b, &s, &exec), 0, "%s", gr_error());
    cr_assert_eq(b->api->segment_run(b, exec, NULL, NULL), 0, "%s", gr_error());
    b->api->segment_free(b, &exec);
    b->api->close(&b);
}

/* Two nodes made up of this process's processors; the second one's memory is there or not, and
 * where it is not it stays with the first, or moving is refused and said. The product is the same.
 */
Test(pools, nodes_change_no_result)
{
    int cpu[2];
    if (own(cpu, 2) < 2)
        cr_skip_test("one processor only");
    float *w = gr_calloc(ROWS * COLS, sizeof *w), *x = gr_calloc(3 * COLS, sizeof *x);
    float *y = gr_calloc(3 * ROWS, sizeof *y), *want = gr_calloc(3 * ROWS, sizeof *want);
    cr_assert(w && x && y && want);
    for (int i = 0; i < ROWS * COLS; i++)
        w[i] = sinf((float)i);
    for (int i = 0; i < 3 * COLS; i++)
        x[i] = cosf((float)i);
    multiply(NULL, 2, w, x, want);
    gr_log_set(listen, NULL);
    for (int memory = 0; memory < 2; memory++) {
        struct tree t;
        char list[2][16];
        tree_init(&t);
        for (int i = 0; i < 2; i++)
            snprintf(list[i], sizeof list[i], "%d\n", cpu[i]);
        tree_put(&t, "/sys/devices/system/node/online", "0,63\n");
        tree_node(&t, 0, list[0], 1000, "10 20\n");
        tree_node(&t, 63, list[1], memory ? 1000 : 0, "20 10\n");
        for (int n_threads = 1; n_threads <= 5; n_threads++) {
            const struct gr_cpu_use use = {.numa = GR_CPU_NUMA_DISTRIBUTE, .root = t.root, .of = 1};
            memset(y, 0xff, 3 * ROWS * sizeof *y);
            multiply(&use, n_threads, w, x, y);
            cr_expect_eq(memcmp(y, want, 3 * ROWS * sizeof *y), 0, "%d threads", n_threads);
        }
        cr_expect(!memory || strstr(said, "weights cannot be moved"), "%s", said);
        tree_fini(&t);
    }
    gr_log_set(NULL, NULL);
    gr_free(w);
    gr_free(x);
    gr_free(y);
    gr_free(want);
}
