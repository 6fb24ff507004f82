/* Segments: launches, graphs, scratch, taps, the clock. Launchers are those of launchers.c. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "cuda/driver.h"
#include "fixture.h"
#include "gr/status.h"
#include "launchers.h"

static const struct gr_device_opt plain = {0}, no_graphs = {.no_graphs = true};

#define ROWS 3
#define COLS 70

static void count_up(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = (float)i * 0.25f - 11;
}

static void run(struct gr_backend *b, void *exec)
{
    cr_assert_eq(b->api->segment_run(b, exec, NULL, NULL), 0, "%s", gr_error());
}

/* A chain over x: y = x + 1, z = (y + 1) * x, z = z + y. */
struct chain {
    struct gr_ten x, y, z;
    struct gr_node node[3];
};

static struct chain chain_new(struct gr_backend *b, int64_t rows, int64_t cols)
{
    float *v = gr_calloc((size_t)(rows * cols), 4);
    count_up(v, (size_t)(rows * cols));
    struct chain c = {device_ten(b, rows, cols, v),
                      device_ten(b, rows, cols, NULL),
                      device_ten(b, rows, cols, NULL),
                      {{0}}};
    c.node[0] = node_act(c.x, c.y);
    c.node[1] = node_glu(c.y, c.x, c.z);
    c.node[2] = node_binary(GR_ADD, c.z, c.y, c.z);
    gr_free(v);
    return c;
}

static void chain_check(struct gr_backend *b, const struct chain *c)
{
    float *x = device_values(b, &c->x), *z = device_values(b, &c->z);
    for (int64_t i = 0; i < c->x.rows * c->x.cols; i++) {
        float y = x[i] + 1; /* quarters: every step is exact */
        cr_assert_eq(z[i], (y + 1) * x[i] + y, "%lld", (long long)i);
    }
    gr_free(x);
    gr_free(z);
}

static void chain_free(struct gr_backend *b, struct chain *c)
{
    b->api->free(b, c->x.data);
    b->api->free(b, c->y.data);
    b->api->free(b, c->z.data);
}

/* Spoils what a run has to write. */
static void spoil(struct gr_backend *b, const struct chain *c)
{
    cr_assert_eq(b->api->clear(b, c->y.data, (size_t)(c->y.rows * c->y.row_bytes)), 0);
    cr_assert_eq(b->api->clear(b, c->z.data, (size_t)(c->z.rows * c->z.row_bytes)), 0);
}

static void chain_runs(struct gr_device_opt opt, int graphs)
{
    struct gr_backend *b = device_open(NULL, opt);
    struct chain c = chain_new(b, ROWS, COLS);
    void *exec = device_segment(b, c.node, 3);
    for (int i = 0; i < 4; i++) {
        spoil(b, &c);
        run(b, exec);
        chain_check(b, &c);
    }
    expect_count(emu()->count("cuGraphLaunch"), graphs);
    expect_count(emu()->count("cuGraphInstantiateWithFlags"), graphs ? 1 : 0);
    b->api->segment_free(b, &exec);
    cr_expect_null(exec);
    chain_free(b, &c);
    device_close(&b);
}

Test(segment, becomes_a_graph_at_its_second_run)
{
    chain_runs(plain, 3);
}

Test(segment, without_graphs)
{
    chain_runs(no_graphs, 0);
}

Test(segment, steps_allocate_nothing)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct chain c = chain_new(b, ROWS, COLS);
    void *exec = device_segment(b, c.node, 3);
    float *src = b->api->host_alloc(b, 4096), back[16];
    float pageable[16] = {1};
    run(b, exec);
    run(b, exec);
    int64_t device = emu()->count("cuMemAlloc_v2"), host = emu()->count("cuMemHostAlloc"),
            events = emu()->count("cuEventCreate"),
            graphs = emu()->count("cuStreamBeginCapture_v2");
    (void)gr_alloc_fail_at(0, 0);
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(b->api->upload(b, c.x.data, src, 64), 0);
        cr_assert_eq(b->api->upload(b, c.x.data, pageable, 64), 0);
        run(b, exec);
        cr_assert_eq(b->api->download(b, back, c.z.data, 64), 0);
        cr_assert_eq(b->api->sync(b), 0);
    }
    cr_expect_eq(gr_alloc_fail_at(0, 0), 0, "allocations on the host");
    expect_count(emu()->count("cuMemAlloc_v2"), device);
    expect_count(emu()->count("cuMemHostAlloc"), host);
    expect_count(emu()->count("cuEventCreate"), events);
    expect_count(emu()->count("cuStreamBeginCapture_v2"), graphs);
    b->api->host_free(b, src);
    b->api->segment_free(b, &exec);
    chain_free(b, &c);
    device_close(&b);
}

/* Launches of a segment, and how many of them may begin before the one in front of them is over:
 * all but the first where the code waits for itself, which that of 8.0 does not, and graphs can
 * hold it. */
static void begins_early(const char *device, struct gr_device_opt opt, int64_t early)
{
    struct gr_backend *b = device_open(device, opt);
    struct chain c = chain_new(b, ROWS, COLS);
    void *exec = device_segment(b, c.node, 3);
    for (int i = 0; i < 3; i++) {
        int64_t kernels = emu()->count("kernel"), before = emu()->count("early");
        run(b, exec);
        chain_check(b, &c);
        expect_count(emu()->count("kernel"), kernels + 6);
        expect_count(emu()->count("early"), before + early);
    }
    b->api->segment_free(b, &exec);
    chain_free(b, &c);
    device_close(&b);
}

Test(segment, launches_begin_early)
{
    needs_emulated();
    begins_early("cc=90", plain, 5);
    begins_early("cc=90", (struct gr_device_opt){.no_pdl = true}, 0);
    begins_early("cc=80", plain, 0);
    begins_early("cc=90,driver=12.2", plain, 0);
}

Test(segment, of_nothing)
{
    struct gr_backend *b = device_open(NULL, plain);
    const struct gr_segment s = {0};
    void *exec = device_segment(b, NULL, 0);
    cr_expect_eq(b->api->segment_scratch(b, &s, NULL), 0);
    run(b, exec);
    run(b, exec);
    b->api->segment_free(b, &exec);
    b->api->segment_free(b, &exec);
    device_close(&b);
}

/* ---- scratch ---- */

Test(segment, scratch_is_told_before_addresses_are_known)
{
    struct gr_backend *b = device_open(NULL, plain);
    const struct gr_ten t = {.batch = 1, .rows = 5, .cols = 100, .row_bytes = 400};
    const struct gr_node node[2] = {node_act(t, t), node_glu(t, t, t)};
    const struct gr_segment s = {.node = node, .n_node = 2};
    const int64_t memory = emu()->live("memory");
    /* 2,000 bytes are padded to 2,048: two of ACT's, one of GLU's behind what stays */
    cr_expect_eq(b->api->segment_scratch(b, &s, NULL), 3 * 2048);
    expect_count(emu()->live("memory"), memory);
    device_close(&b);
}

Test(segment, those_made_before_follow_scratch_that_grew)
{
    float v[768];
    struct gr_backend *b = device_open(NULL, plain);
    const int64_t memory = emu()->live("memory");
    struct chain small = chain_new(b, ROWS, COLS);
    void *first = device_segment(b, small.node, 3);
    struct chain large = chain_new(b, 40, 90);
    for (int i = 0; i < 3; i++)
        run(b, first); /* queued, by graph: growing has to wait for it */
    void *second = device_segment(b, large.node, 3);
    expect_count(emu()->live("memory"), memory + 7);
    chain_check(b, &small);
    count_up(v, 768);
    struct gr_ten there = device_ten(b, 1, 768, v); /* where the first piece was, likely */
    for (int i = 0; i < 4; i++) {
        spoil(b, &small);
        spoil(b, &large);
        run(b, first);
        run(b, second);
        chain_check(b, &small);
        chain_check(b, &large);
    }
    expect_count(emu()->live("exec"), 2);
    float *still = device_values(b, &there);
    cr_expect_eq(memcmp(still, v, sizeof v), 0, "scratch that went is written to");
    gr_free(still);
    b->api->free(b, there.data);
    b->api->segment_free(b, &first);
    b->api->segment_free(b, &second);
    chain_free(b, &small);
    chain_free(b, &large);
    device_close(&b);
}

Test(segment, too_large_for_memory_leaves_the_others_alive)
{
    struct gr_backend *b = device_open("memory=64M", plain);
    struct chain c = chain_new(b, ROWS, COLS);
    void *first = device_segment(b, c.node, 3), *second;
    const struct gr_ten t = {.data = c.x.data,
                             .batch = 1,
                             .rows = 1000,
                             .cols = 10000,
                             .row_bytes = 40000,
                             .dtype = GR_F32};
    const struct gr_node node = node_act(t, t);
    const struct gr_segment s = {.node = &node, .n_node = 1};
    run(b, first);
    cr_expect_eq(b->api->segment_new(b, &s, &second), GR_E_NOMEM_DEV);
    cr_expect_null(second);
    for (int i = 0; i < 3; i++) {
        spoil(b, &c);
        run(b, first);
        chain_check(b, &c);
    }
    b->api->segment_free(b, &first);
    chain_free(b, &c);
    device_close(&b);
}

/* Launches that a segment of these nodes has: its first run makes one after the other. */
static int64_t launches(struct gr_backend *b, const struct gr_node *node, int n)
{
    void *exec = device_segment(b, node, n);
    int64_t before = emu()->count("cuLaunchKernelEx");
    run(b, exec);
    b->api->segment_free(b, &exec);
    return emu()->count("cuLaunchKernelEx") - before;
}

Test(segment, derives_once_until_it_is_overwritten)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct gr_ten x = device_ten(b, ROWS, COLS, NULL), y = device_ten(b, ROWS, COLS, NULL),
                  z = device_ten(b, ROWS, COLS, NULL);
    float v[ROWS * COLS];
    count_up(v, ROWS * COLS);
    cr_assert_eq(b->api->upload(b, x.data, v, sizeof v), 0);
    cr_assert_eq(b->api->upload(b, y.data, v, sizeof v), 0);
    struct gr_ten part = x; /* some columns of x */
    part.data = (char *)x.data + 16, part.cols = 4;
    const struct gr_node same[] = {node_glu(x, y, z), node_glu(x, z, z)};
    const struct gr_node other[] = {node_glu(x, y, z), node_glu(y, y, z)};
    const struct gr_node narrower[] = {node_glu(x, y, z), node_glu(part, part, part)};
    const struct gr_node written[] = {node_glu(x, y, z), node_binary(GR_ADD, part, part, part),
                                      node_glu(x, z, z)};
    const struct gr_node by_itself[] = {node_glu(x, y, x), node_glu(x, y, z)};
    expect_count(launches(b, same, 2), 3);
    expect_count(launches(b, other, 2), 4);
    expect_count(launches(b, written, 3), 5);
    expect_count(launches(b, by_itself, 2), 4);
    expect_count(launches(b, narrower, 2), 4);
    b->api->free(b, x.data);
    b->api->free(b, y.data);
    b->api->free(b, z.data);
    device_close(&b);
}

/* ---- what launchers ask for ---- */

static void refused(int ask, int status, const char *message)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct gr_ten x = device_ten(b, 1, 4, NULL);
    const struct gr_node node = node_matmul(x, x);
    const struct gr_segment s = {.node = &node, .n_node = 1};
    void *exec;
    launchers_ask = ask;
    cr_expect_eq(b->api->segment_new(b, &s, &exec), status);
    cr_expect_null(exec);
    cr_expect_not_null(strstr(gr_error(), message), "%s", gr_error());
    cr_expect_eq(b->api->sync(b), 0, "the backend is not lost by it");
    b->api->free(b, x.data);
    device_close(&b);
}

Test(launcher, of_a_kernel_that_is_not_there)
{
    refused(ASK_UNKNOWN_KERNEL, GR_E_UNSUPPORTED, "no kernel gr_elementwise_no_such");
}

Test(launcher, of_a_file_that_is_not_there)
{
    refused(ASK_UNKNOWN_FAMILY, GR_E_UNSUPPORTED, "no kernel gr_no_such_family_x");
}

Test(launcher, of_too_much_shared_memory)
{
    refused(ASK_SHARED_MEMORY, GR_E_INTERNAL, "1048576 bytes of shared memory");
}

/* gr_norm_any has 1024 bytes of its own. */
Test(launcher, of_too_much_beside_its_own)
{
    launchers_smem = (227 << 10) - 64;
    refused(ASK_BESIDE_STATIC, GR_E_INTERNAL, "232384 bytes of shared memory beside 1024");
}

static void beside_static(const char *options, uint32_t smem, uint32_t most, int32_t resident)
{
    const float v[4] = {1, 2, 3, 4};
    struct gr_backend *b = device_open(options, plain);
    struct gr_ten x = device_ten(b, 1, 4, v), y = device_ten(b, 1, 4, NULL);
    const struct gr_node node = node_matmul(x, y);
    launchers_ask = ASK_BESIDE_STATIC, launchers_smem = smem;
    void *exec = device_segment(b, &node, 1);
    cr_expect_eq(launchers_most, most, "%u", launchers_most);
    cr_expect_eq(launchers_resident, resident, "%d", launchers_resident);
    run(b, exec);
    float *back = device_values(b, &y);
    cr_expect(back[3] > back[0]);
    gr_free(back);
    b->api->segment_free(b, &exec);
    b->api->free(b, x.data);
    b->api->free(b, y.data);
    device_close(&b);
}

/* All that a block can have, what is more than 48 KiB by its own alone, and little: how many blocks
 * there is room for, with the kilobyte that the system takes of each. */
Test(launcher, of_shared_memory_beside_its_own)
{
    beside_static("cc=90", (227 << 10) - 1024, (227 << 10) - 1024, 1);
    beside_static("cc=90", (48 << 10) - 512, (227 << 10) - 1024, 4);
    beside_static("cc=90", (113 << 10) - 1024, (227 << 10) - 1024, 2);
    beside_static("cc=90", (113 << 10) - 1023, (227 << 10) - 1024, 1);
    beside_static("cc=90", 0, (227 << 10) - 1024, 114);
    beside_static("cc=80", (81 << 10) - 1024, (163 << 10) - 1024, 2);
    beside_static("cc=86", (49 << 10) - 1024, (99 << 10) - 1024, 2);
    beside_static("cc=86", (49 << 10) - 1023, (99 << 10) - 1024, 1);
}

Test(launcher, of_too_many_blocks)
{
    refused(ASK_BLOCKS, GR_E_UNSUPPORTED, "1 x 65536 x 1 blocks");
}

Test(launcher, of_much_shared_memory)
{
    const float v[4] = {1, 2, 3, 4};
    struct gr_backend *b = device_open(NULL, plain);
    struct gr_ten x = device_ten(b, 1, 4, v), y = device_ten(b, 1, 4, NULL);
    const struct gr_node node = node_matmul(x, y);
    launchers_ask = ASK_MUCH_SHARED_MEMORY;
    void *exec = device_segment(b, &node, 1);
    run(b, exec);
    float *back = device_values(b, &y);
    cr_expect_eq(memcmp(back, v, sizeof v), 0);
    gr_free(back);
    b->api->segment_free(b, &exec);
    b->api->free(b, x.data);
    b->api->free(b, y.data);
    device_close(&b);
}

Test(launcher, that_measured_less_scratch)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct gr_ten x = device_ten(b, 1, 4, NULL);
    struct gr_node node = node_matmul(x, x);
    const struct gr_segment s = {.node = &node, .n_node = 1};
    void *exec;
    launchers_ask = ASK_MORE_SCRATCH;
    cr_expect_eq(b->api->segment_new(b, &s, &exec), GR_E_INTERNAL);
    cr_expect_not_null(strstr(gr_error(), "more scratch memory than it measured"), "%s",
                       gr_error());
    node.a.matmul.y.data = NULL;
    cr_expect_eq(b->api->segment_new(b, &s, &exec), GR_E_INTERNAL);
    cr_expect_not_null(strstr(gr_error(), "matmul, layer -1: y has no memory"), "%s", gr_error());
    b->api->free(b, x.data);
    device_close(&b);
}

/* ---- taps ---- */

struct seen {
    const struct chain *chain;
    float *x;
    int n;
    atomic_int *cancel;
};

static void on_tap(const struct gr_tap *tap, const struct gr_ten *t, void *user)
{
    struct seen *s = user;
    static const char *const names[] = {"y", "part", "z"};
    cr_assert_lt(s->n, 3);
    cr_expect_str_eq(tap->name, names[s->n]);
    cr_expect_eq(tap->layer, s->n);
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t i = 0; i < t->cols; i++) {
            float x = s->x[r * COLS + i + (s->n == 1 ? 5 : 0)], y = x + 1;
            float got = ((const float *)gr_ten_row(t, 0, r))[i];
            cr_expect_eq(got, s->n == 0 ? y : s->n == 1 ? (y + 1) * x : (y + 1) * x + y);
        }
    s->n++;
    if (s->cancel)
        atomic_store(s->cancel, 1);
}

Test(segment, taps_see_each_node_done)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct chain c = chain_new(b, ROWS, COLS);
    struct seen seen = {&c, device_values(b, &c.x), 0, NULL};
    struct gr_ten part = c.z;
    part.data = (char *)part.data + 20, part.cols = 7;
    const struct gr_tap tap[] = {{.node = 0, .name = "y", .layer = 0, .ten = c.y},
                                 {.node = 1, .name = "part", .layer = 1, .ten = part},
                                 {.node = 2, .name = "z", .layer = 2, .ten = c.z}};
    const struct gr_segment s = {c.node, 3, tap, 3};
    void *exec;
    cr_assert_eq(b->api->segment_new(b, &s, &exec), 0);
    for (int i = 0; i < 3; i++) {
        spoil(b, &c);
        seen.n = 0;
        cr_assert_eq(b->api->segment_run(b, exec, on_tap, &seen), 0, "%s", gr_error());
        cr_expect_eq(seen.n, 3);
        chain_check(b, &c);
        run(b, exec); /* between, as a graph */
    }
    gr_free(seen.x);
    b->api->segment_free(b, &exec);
    chain_free(b, &c);
    device_close(&b);
}

Test(segment, cancelled)
{
    atomic_int flag = 1;
    struct gr_backend *b = device_open(NULL, plain);
    struct chain c = chain_new(b, ROWS, COLS);
    struct seen seen = {&c, device_values(b, &c.x), 0, &flag};
    const struct gr_tap tap[] = {{.node = 0, .name = "y", .layer = 0, .ten = c.y},
                                 {.node = 1, .name = "part", .layer = 1, .ten = c.z}};
    const struct gr_segment s = {c.node, 3, tap, 2};
    void *exec;
    cr_assert_eq(b->api->segment_new(b, &s, &exec), 0);
    b->api->set_cancel(b, &flag);
    cr_expect_eq(b->api->segment_run(b, exec, NULL, NULL), GR_E_CANCELLED);
    atomic_store(&flag, 0);
    cr_expect_eq(b->api->segment_run(b, exec, on_tap, &seen), GR_E_CANCELLED);
    cr_expect_eq(seen.n, 1);
    b->api->set_cancel(b, NULL);
    run(b, exec);
    chain_check(b, &c);
    gr_free(seen.x);
    b->api->segment_free(b, &exec);
    chain_free(b, &c);
    device_close(&b);
}

/* ---- the clock ---- */

struct times {
    int n;
    int64_t end;
};

static void on_time(const struct gr_op_time *t, void *user)
{
    static const enum gr_op ops[] = {GR_OP_ACT, GR_OP_GLU, GR_OP_BINARY};
    static const char *const kernels[] = {"gr_elementwise_act_1", "gr_elementwise_binary_1",
                                          "gr_elementwise_binary_1"};
    struct times *s = user;
    int64_t slack = emulated() ? 2 : 2000; /* a GPU's events count half microseconds */
    int i = s->n % 3;
    cr_expect_eq(t->op, ops[i]);
    cr_expect_eq(t->layer, -1);
    cr_expect_str_eq(t->kernel, kernels[i]);
    cr_expect_eq(t->bytes, (i == 0 ? 2 : 3) * ROWS * COLS * 4);
    cr_expect_geq(t->ns, 0);
    cr_expect(i == 0 ? t->start_ns == 0 : t->start_ns >= s->end - slack, "%lld behind %lld",
              (long long)t->start_ns, (long long)s->end);
    s->end = t->start_ns + t->ns;
    s->n++;
}

Test(segment, timed_node_by_node)
{
    struct times times = {0, 0};
    struct gr_backend *b = device_open(NULL, plain);
    struct chain c = chain_new(b, ROWS, COLS);
    void *exec = device_segment(b, c.node, 3);
    cr_assert_eq(b->api->set_timer(b, on_time, &times), 0);
    for (int i = 0; i < 3; i++) {
        spoil(b, &c);
        run(b, exec);
        chain_check(b, &c);
    }
    cr_expect_eq(times.n, 9);
    cr_expect_gt(times.end, 0);
    expect_count(emu()->count("cuGraphLaunch"), 0);
    cr_assert_eq(b->api->set_timer(b, NULL, NULL), 0);
    run(b, exec);
    run(b, exec);
    cr_expect_eq(times.n, 9);
    expect_count(emu()->count("cuGraphLaunch"), 1);
    b->api->segment_free(b, &exec);
    chain_free(b, &c);
    device_close(&b);
}

Test(segment, no_memory_for_a_graph)
{
    needs_emulated();
    struct gr_backend *b = device_open(NULL, plain);
    struct chain c = chain_new(b, ROWS, COLS);
    void *exec = device_segment(b, c.node, 3);
    run(b, exec);
    cr_assert_eq(emu()->fail("cuGraphInstantiateWithFlags", 1, CU_OUT_OF_MEMORY), 0);
    for (int i = 0; i < 3; i++) {
        spoil(b, &c);
        run(b, exec);
        chain_check(b, &c);
    }
    expect_count(emu()->count("cuGraphLaunch"), 0);
    b->api->segment_free(b, &exec);
    chain_free(b, &c);
    device_close(&b);
}

Test(segment, two_devices_side_by_side)
{
    struct gr_backend *a = device_open("devices=2,", plain), *b;
    cr_assert_eq(gr_cuda_devices.open(&b, 1, &plain), 0);
    struct chain on_a = chain_new(a, ROWS, COLS), on_b = chain_new(b, 4, 9);
    void *ea = device_segment(a, on_a.node, 3), *eb = device_segment(b, on_b.node, 3);
    for (int i = 0; i < 3; i++) {
        run(a, ea);
        run(b, eb);
        chain_check(b, &on_b);
        chain_check(a, &on_a);
    }
    b->api->segment_free(b, &eb);
    chain_free(b, &on_b);
    b->api->close(&b);
    a->api->segment_free(a, &ea);
    chain_free(a, &on_a);
    device_close(&a);
}

/* ---- threads ---- */

/* A backend of its own, used by one thread from beginning to end. */
static void *use_one(void *failed)
{
    struct gr_backend *b;
    if (gr_cuda_devices.open(&b, 0, &plain)) {
        *(int *)failed = 1;
        return NULL;
    }
    struct chain c = chain_new(b, ROWS, COLS);
    void *exec = device_segment(b, c.node, 3);
    for (int i = 0; i < 20; i++) {
        spoil(b, &c);
        run(b, exec);
        chain_check(b, &c);
    }
    b->api->segment_free(b, &exec);
    chain_free(b, &c);
    b->api->close(&b);
    return NULL;
}

Test(threads, each_with_a_backend)
{
    enum { N = 4 };
    pthread_t thread[N];
    int failed[N] = {0};
    struct gr_backend *b = device_open(NULL, plain);
    for (int i = 0; i < N; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, use_one, &failed[i]), 0);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(pthread_join(thread[i], NULL), 0);
        cr_expect_eq(failed[i], 0);
    }
    expect_count(emu()->count("cuModuleLoadData"), 1);
    device_close(&b);
}

struct hand_over {
    struct gr_backend *b;
    struct chain c;
    void *exec;
};

static void *use_other(void *arg)
{
    struct hand_over *h = arg;
    spoil(h->b, &h->c);
    run(h->b, h->exec);
    chain_check(h->b, &h->c);
    return NULL;
}

Test(threads, one_after_the_other)
{
    struct hand_over h = {.b = device_open(NULL, plain)};
    h.c = chain_new(h.b, ROWS, COLS);
    h.exec = device_segment(h.b, h.c.node, 3);
    for (int i = 0; i < 4; i++) {
        pthread_t thread;
        cr_assert_eq(pthread_create(&thread, NULL, use_other, &h), 0);
        cr_assert_eq(pthread_join(thread, NULL), 0);
        (void)use_other(&h);
    }
    h.b->api->segment_free(h.b, &h.exec);
    chain_free(h.b, &h.c);
    device_close(&h.b);
}
