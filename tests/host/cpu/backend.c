/* The CPU backend around its operations: opening, memory, segments of several nodes, taps,
 * cancelling, failures. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "cpu/cpu.h"
#include "gr/status.h"

enum { N = 40 };

/* Nodes that each add one to a row of N, from value 0 on. */
struct chain {
    struct gr_backend *b;
    float *x, *one;
    struct gr_node node[8];
    void *exec;
};

static struct gr_ten row_of(float *p)
{
    return (struct gr_ten){.data = p,
                           .batch = 1,
                           .rows = 1,
                           .cols = N,
                           .row_bytes = N * sizeof(float),
                           .dtype = GR_F32};
}

static void chain_init(struct chain *c, int n_threads)
{
    float ones[N];
    memset(c, 0, sizeof *c);
    cr_assert_eq(gr_cpu_open(&c->b, n_threads, n_threads, GR_CPU_AUTO), 0, "%s", gr_error());
    c->x = c->b->api->alloc(c->b, N * sizeof(float));
    c->one = c->b->api->alloc(c->b, N * sizeof(float));
    cr_assert(c->x && c->one);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(c->x[i], 0, "memory is not zeroed");
        ones[i] = 1;
    }
    cr_assert_eq(c->b->api->upload(c->b, c->one, ones, sizeof ones), 0);
    for (size_t i = 0; i < GR_COUNT(c->node); i++)
        c->node[i] = (struct gr_node){
            .op = GR_OP_BINARY,
            .a.binary = {
                .a = row_of(c->x), .b = row_of(c->one), .y = row_of(c->x), .kind = GR_ADD}};
}

static void chain_fini(struct chain *c)
{
    c->b->api->segment_free(c->b, &c->exec);
    cr_assert_null(c->exec);
    c->b->api->segment_free(c->b, &c->exec);
    c->b->api->free(c->b, c->x);
    c->b->api->free(c->b, c->one);
    c->b->api->free(c->b, NULL);
    c->b->api->close(&c->b);
    cr_assert_null(c->b);
}

Test(backend, opens_levels)
{
    struct gr_backend *b;
    cr_assert(gr_cpu_has(GR_CPU_AUTO) && gr_cpu_has(GR_CPU_REF));
    for (enum gr_cpu_level l = GR_CPU_AUTO; l < GR_CPU_N_LEVEL; l++) {
        int rc = gr_cpu_open(&b, 1, 2, l);
        cr_assert_eq(rc, gr_cpu_has(l) ? 0 : GR_E_INVALID);
        cr_assert_eq(b != NULL, rc == 0);
        if (b) {
            cr_assert_str_eq(b->api->name, "CPU");
            cr_assert(b->api->can_borrow(b));
            b->api->close(&b);
        }
    }
    cr_assert_eq(gr_cpu_open(&b, 1000, 1, GR_CPU_REF), GR_E_INVALID);
    cr_assert_null(b);
}

/* By name; auto is one that is possible, and a name that is none or not possible here is refused
 * with what helps. */
Test(backend, finds_levels)
{
    enum gr_cpu_level best, found;
    cr_assert_eq(gr_cpu_level_find(&best, NULL), 0);
    cr_assert(best > GR_CPU_AUTO && gr_cpu_has(best));
    for (enum gr_cpu_level l = GR_CPU_AUTO; l < GR_CPU_N_LEVEL; l++) {
        int rc = gr_cpu_level_find(&found, gr_cpu_level_name(l));
        cr_expect_eq(rc, gr_cpu_has(l) ? 0 : GR_E_INVALID);
        cr_expect(rc || found == (l == GR_CPU_AUTO ? best : l));
        cr_expect(!rc || strstr(gr_error(), gr_cpu_level_name(best)), "%s", gr_error());
        cr_expect(best >= l || rc, "the best there are");
    }
    cr_expect_eq(gr_cpu_level_find(&found, "sse9"), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "sse9") && strstr(gr_error(), "avx2"), "%s", gr_error());
    cr_expect_eq(gr_cpu_level_find(&found, ""), GR_E_INVALID);
}

/* Operations a second that a backend with so many threads of prompts says it has. */
static double prompt_ops(int n_threads, int n_threads_batch, const struct gr_cpu_use *use)
{
    struct gr_backend *b;
    cr_assert_eq(gr_cpu_open_as(&b, n_threads, n_threads_batch, GR_CPU_REF, use), 0, "%s",
                 gr_error());
    double ops = gr_cpu_prompt_ops(b);
    b->api->close(&b);
    return ops;
}

Test(backend, prompts_have_their_threads)
{
    struct gr_cpu_use use = {.decode = {.poll_us = 50}, .batch = {.poll_us = 50}, .of = 1};
    double one = prompt_ops(2, 1, &use);
    cr_assert_gt(one, 0);
    cr_assert_eq(prompt_ops(1, 2, &use), 2 * one);
    struct gr_cpus all;
    cr_assert(gr_cpus_allowed(&all));
    use.batch.chosen = true;
    gr_cpus_add(&use.batch.cpus, gr_cpus_at(&all, 0));
    cr_assert_eq(prompt_ops(0, 0, &use), one, "a pool on one processor has one thread");
}

Test(backend, memory)
{
    struct gr_backend *b;
    cr_assert_eq(gr_cpu_open(&b, 0, 0, GR_CPU_AUTO), 0);
    for (size_t n = 0; n < 2000; n += 97) {
        char *p = b->api->alloc(b, n);
        cr_assert(p && (uintptr_t)p % 256 == 0);
        memset(p, 1, n);
        b->api->free(b, p);
    }
    cr_assert_null(b->api->alloc(b, SIZE_MAX - 10));
    b->api->close(&b);
}

/* The segment keeps its own copy of the nodes. */
Test(backend, runs_nodes_in_order)
{
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        struct chain c;
        chain_init(&c, n_threads);
        struct gr_segment s = {c.node, GR_COUNT(c.node), NULL, 0};
        cr_assert_eq(c.b->api->segment_new(c.b, &s, &c.exec), 0, "%s", gr_error());
        memset(c.node, 0xff, sizeof c.node);
        for (int run = 0; run < 3; run++)
            cr_assert_eq(c.b->api->segment_run(c.b, c.exec, NULL, NULL), 0);
        float y[N];
        cr_assert_eq(c.b->api->download(c.b, y, c.x, sizeof y), 0);
        for (int i = 0; i < N; i++)
            cr_assert_eq(y[i], 3 * GR_COUNT(c.node));
        chain_fini(&c);
    }
}

Test(backend, empty_segment)
{
    struct chain c;
    chain_init(&c, 2);
    struct gr_segment s = {NULL, 0, NULL, 0};
    cr_assert_eq(c.b->api->segment_new(c.b, &s, &c.exec), 0);
    cr_assert_eq(c.b->api->segment_run(c.b, c.exec, NULL, NULL), 0);
    chain_fini(&c);
}

struct seen {
    int n;
    int layer[8];
    float value[8];
};

static void see(const struct gr_tap *tap, const struct gr_ten *t, void *user)
{
    struct seen *s = user;
    cr_assert_str_eq(tap->name, "sum");
    s->layer[s->n] = tap->layer;
    s->value[s->n++] = *(float *)t->data;
}

static struct gr_tap tap_of(int32_t node, int32_t layer, float *x)
{
    return (struct gr_tap){.node = node, .name = "sum", .layer = layer, .ten = row_of(x)};
}

/* Taps see a value as it stands right after their node. */
Test(backend, taps)
{
    struct chain c;
    struct seen seen = {0};
    chain_init(&c, 2);
    const struct gr_tap taps[] = {tap_of(0, 5, c.x), tap_of(3, 6, c.x), tap_of(3, 7, c.x),
                                  tap_of(7, 8, c.x)};
    struct gr_segment s = {c.node, GR_COUNT(c.node), taps, GR_COUNT(taps)};
    cr_assert_eq(c.b->api->segment_new(c.b, &s, &c.exec), 0);
    cr_assert_eq(c.b->api->segment_run(c.b, c.exec, see, &seen), 0);
    static const float want[] = {1, 4, 4, 8};
    cr_assert_eq(seen.n, 4);
    for (int i = 0; i < 4; i++)
        cr_assert(seen.value[i] == want[i] && seen.layer[i] == 5 + i);
    cr_assert_eq(c.b->api->segment_run(c.b, c.exec, NULL, NULL), 0);
    cr_assert_eq(seen.n, 4);
    cr_assert_eq(c.x[N - 1], 16);
    chain_fini(&c);
}

/* Views of a moved value keep their offsets; what is not of this value stays. */
Test(backend, moved_value)
{
    enum { FIRST = 4 };
    float z[2][FIRST + N] = {{0}};
    struct chain c;
    struct seen seen = {0};
    chain_init(&c, 2);
    struct gr_tap tap = tap_of(7, 5, c.x);
    struct gr_ten *y = &c.node[7].a.binary.y;
    y->value = tap.ten.value = 3, y->offset = tap.ten.offset = FIRST * sizeof(float);
    c.node[6].a.binary.y.value = 4;
    struct gr_segment s = {c.node, GR_COUNT(c.node), &tap, 1};
    cr_assert_eq(c.b->api->segment_new(c.b, &s, &c.exec), 0);
    for (int run = 0; run < 2; run++) {
        c.b->api->segment_move(c.b, c.exec, 3, z[run]);
        cr_assert_eq(c.b->api->segment_run(c.b, c.exec, see, &seen), 0);
        cr_assert(c.x[0] == 7 * (run + 1) && c.x[N - 1] == 7 * (run + 1));
        cr_assert(z[run][FIRST - 1] == 0 && z[run][FIRST] == 7 * run + 8);
        cr_assert(z[run][FIRST + N - 1] == 7 * run + 8 && seen.value[run] == 7 * run + 8);
    }
    cr_assert(z[0][FIRST] == 8, "the memory of the first run is not written any more");
    chain_fini(&c);
}

static _Atomic int stop;

static void stop_at_tap(const struct gr_tap *tap, const struct gr_ten *t, void *user)
{
    (void)tap, (void)t, (void)user;
    atomic_store(&stop, 1);
}

Test(backend, cancel)
{
    struct chain c;
    chain_init(&c, 2);
    const struct gr_tap tap = tap_of(2, 0, c.x);
    struct gr_segment s = {c.node, GR_COUNT(c.node), &tap, 1};
    cr_assert_eq(c.b->api->segment_new(c.b, &s, &c.exec), 0);
    c.b->api->set_cancel(c.b, &stop);
    cr_assert_eq(c.b->api->segment_run(c.b, c.exec, stop_at_tap, NULL), GR_E_CANCELLED);
    cr_assert_eq(c.x[0], 3);
    cr_assert_eq(c.b->api->segment_run(c.b, c.exec, NULL, NULL), GR_E_CANCELLED);
    cr_assert_eq(c.x[0], 3);
    atomic_store(&stop, 0);
    cr_assert_eq(c.b->api->segment_run(c.b, c.exec, NULL, NULL), 0);
    c.b->api->set_cancel(c.b, NULL);
    cr_assert_eq(c.x[0], 11);
    chain_fini(&c);
}

static void *stop_soon(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    atomic_store(&stop, 1);
    return arg;
}

/* The flag set by another thread at any moment: all threads of the pool stop behind the same node.
 */
Test(backend, cancel_while_running)
{
    struct chain c;
    chain_init(&c, 3);
    struct gr_segment s = {c.node, GR_COUNT(c.node), NULL, 0};
    cr_assert_eq(c.b->api->segment_new(c.b, &s, &c.exec), 0);
    c.b->api->set_cancel(c.b, &stop);
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        atomic_store(&stop, 0);
        cr_assert_eq(pthread_create(&thread, NULL, stop_soon, NULL), 0);
        while (c.b->api->segment_run(c.b, c.exec, NULL, NULL) == 0)
            ;
        pthread_join(thread, NULL);
        for (int k = 1; k < N; k++)
            cr_assert_eq(c.x[k], c.x[0], "threads stopped at different nodes");
    }
    chain_fini(&c);
}

static void expect_refusal(struct chain *c, int status, const char *words)
{
    struct gr_segment s = {c->node, 1, NULL, 0};
    cr_assert_eq(c->b->api->segment_new(c->b, &s, &c->exec), status);
    cr_assert_null(c->exec);
    cr_assert(strstr(gr_error(), words), "%s", gr_error());
}

Test(backend, refuses_what_it_cannot_compute)
{
    struct chain c;
    chain_init(&c, 1);
    struct gr_ten good = c.node[0].a.binary.b;
    c.node[0].a.binary.b.dtype = GR_I64;
    c.node[0].layer = 4;
    expect_refusal(&c, GR_E_UNSUPPORTED, "binary, layer 4: b is stored as i64");
    c.node[0].a.binary.b.dtype = GR_Q4_K;
    expect_refusal(&c, GR_E_UNSUPPORTED, "no whole blocks of q4_K");
    c.node[0].a.binary.b = good;
    c.node[0].a.binary.b.data = NULL;
    expect_refusal(&c, GR_E_INTERNAL, "b has no memory");
    chain_fini(&c);
}

/* Every allocation fails once: a clear status, nothing left behind, and the next try works. */
Test(backend, out_of_memory)
{
    for (uint64_t k = 1;; k++) {
        struct gr_backend *b;
        gr_alloc_fail_at(k, 0);
        int rc = gr_cpu_open(&b, 2, 2, GR_CPU_AUTO);
        gr_alloc_fail_at(0, 0);
        cr_assert(rc ? rc == GR_E_NOMEM_HOST && !b : b != NULL);
        if (!rc) {
            b->api->close(&b);
            cr_assert_gt(k, 3);
            break;
        }
    }
    struct chain c;
    chain_init(&c, 2);
    c.node[0] = (struct gr_node){
        .op = GR_OP_MATMUL,
        .a.matmul = {.x = row_of(c.x), .w = row_of(c.one), .y = row_of(c.x), .scale = 1}};
    c.node[0].a.matmul.y.cols = 1;
    struct gr_segment s = {c.node, GR_COUNT(c.node), NULL, 0};
    int rc = GR_E_NOMEM_HOST;
    for (uint64_t k = 1; rc; k++) {
        gr_alloc_fail_at(k, 0);
        rc = c.b->api->segment_new(c.b, &s, &c.exec);
        gr_alloc_fail_at(0, 0);
        cr_assert(rc ? rc == GR_E_NOMEM_HOST && !c.exec : k > 3);
    }
    chain_fini(&c);
}

/* A weight in memory of the backend's own is what it was on the host, wherever it may be used in
 * place. */
Test(backend, weights)
{
    struct gr_backend *b;
    float rows[3 * N];
    struct gr_ten host = row_of(rows), out;
    host.rows = 3;
    for (int i = 0; i < 3 * N; i++)
        rows[i] = (float)i;
    cr_assert_eq(gr_cpu_open(&b, 1, 1, GR_CPU_AUTO), 0);
    size_t bytes = b->api->weight_bytes(b, &host, true);
    cr_expect(bytes >= sizeof rows && bytes % 256 == 0);
    cr_assert_eq(b->api->weight_upload(b, &host, true, NULL, &out), 0);
    cr_expect(out.data == NULL && out.rows == 3 && out.cols == N);
    void *dst = b->api->alloc(b, bytes);
    cr_assert_eq(b->api->weight_upload(b, &host, true, dst, &out) | b->api->sync(b), 0);
    cr_expect_eq(out.data, dst);
    for (int r = 0; r < 3; r++)
        cr_expect_arr_eq(gr_ten_row(&out, 0, r), rows + r * N, N * sizeof(float));
    cr_assert_eq(b->api->clear(b, dst, bytes), 0);
    cr_expect_eq(*(float *)gr_ten_row(&out, 0, 2), 0);
    b->api->free(b, dst);
    b->api->close(&b);
}

struct times {
    int n;
    struct gr_op_time t[32];
};

static void keep_time(const struct gr_op_time *t, void *user)
{
    struct times *all = user;
    cr_assert(all->n < (int)GR_COUNT(all->t));
    all->t[all->n++] = *t;
}

/* Every node in its order, one after the other, with the three rows that it moves. */
Test(backend, times_every_node)
{
    struct times all = {0};
    struct chain c;
    chain_init(&c, 2);
    struct gr_segment s = {c.node, GR_COUNT(c.node), NULL, 0};
    cr_assert_eq(c.b->api->segment_new(c.b, &s, &c.exec), 0, "%s", gr_error());
    cr_assert_eq(c.b->api->set_timer(c.b, keep_time, &all), 0);
    cr_assert_eq(c.b->api->segment_run(c.b, c.exec, NULL, NULL), 0);
    cr_assert_eq(all.n, GR_COUNT(c.node));
    for (int i = 0; i < all.n; i++) {
        cr_expect(all.t[i].op == GR_OP_BINARY && all.t[i].ns >= 0);
        cr_expect_eq(all.t[i].bytes, 3 * N * sizeof(float));
        cr_expect(all.t[i].start_ns >= (i ? all.t[i - 1].start_ns + all.t[i - 1].ns : 0));
    }
    cr_assert_eq(c.b->api->set_timer(c.b, NULL, NULL), 0);
    cr_assert_eq(c.b->api->segment_run(c.b, c.exec, NULL, NULL), 0);
    cr_expect_eq(all.n, GR_COUNT(c.node));
    chain_fini(&c);
}

/* The scratch memory that a segment is said to need is the memory that it takes. */
Test(backend, scratch_is_known_before)
{
    struct gr_backend *b;
    void *exec, *memory;
    cr_assert_eq(gr_cpu_open(&b, 2, 2, GR_CPU_AUTO), 0);
    float *x = memory = b->api->alloc(b, 4096 * sizeof(float));
    struct gr_ten row = {
        .data = x, .batch = 1, .rows = 1, .cols = 512, .row_bytes = 2048, .dtype = GR_F32};
    struct gr_ten logits = row, ids = row, weights = row;
    logits.cols = 64, ids.cols = weights.cols = 4, ids.row_bytes = weights.row_bytes = 16;
    ids.dtype = GR_I32;
    ids.data = x + 1024, weights.data = x + 2048;
    struct gr_node n = {.op = GR_OP_ROUTE,
                        .a.route = {.logits = logits,
                                    .ids = ids,
                                    .weights = weights,
                                    .scale = 1,
                                    .n_group = 1,
                                    .n_group_used = 1}};
    struct gr_segment s = {&n, 1, NULL, 0};
    size_t before = gr_alloc_held(NULL), said = b->api->segment_scratch(b, &s, NULL);
    cr_assert_eq(b->api->segment_new(b, &s, &exec), 0, "%s", gr_error());
    b->api->segment_free(b, &exec);
    cr_expect_eq(gr_alloc_held(NULL) - before, said, "%zu", said);
    cr_expect(said > 0);
    b->api->free(b, memory);
    b->api->close(&b);
}

/* Columns [16, 32) of a matrix of 32 whose last row ends where its file does. */
Test(backend, weights_end_with_their_file)
{
    enum { ROWS = 8, COLS = 32, PAGE = 4096 };
    struct gr_backend *b;
    char *page =
        mmap(NULL, 2 * (size_t)PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(page, MAP_FAILED);
    cr_assert_eq(mprotect(page + PAGE, PAGE, PROT_NONE), 0);
    float *m = (float *)(page + PAGE) - ROWS * COLS;
    for (int i = 0; i < ROWS * COLS; i++)
        m[i] = (float)i;
    struct gr_ten host = {.data = m + COLS / 2,
                          .batch = 1,
                          .rows = ROWS,
                          .cols = COLS / 2,
                          .row_bytes = COLS * sizeof *m,
                          .dtype = GR_F32};
    struct gr_ten t;
    cr_assert_eq(gr_cpu_open(&b, 1, 1, GR_CPU_AUTO), 0, "%s", gr_error());
    cr_assert_eq(b->api->weight_bytes(b, &host, true), ROWS * COLS / 2 * sizeof *m);
    void *memory = b->api->alloc(b, b->api->weight_bytes(b, &host, true));
    cr_assert_eq(b->api->weight_upload(b, &host, true, memory, &t), 0, "%s", gr_error());
    for (int r = 0; r < ROWS; r++)
        cr_expect_arr_eq(gr_ten_row(&t, 0, r), gr_ten_row(&host, 0, r), COLS / 2 * sizeof *m,
                         "row %d", r);
    b->api->free(b, memory);
    b->api->close(&b);
    munmap(page, 2 * (size_t)PAGE);
}
