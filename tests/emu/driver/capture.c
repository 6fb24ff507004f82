/* Stream capture and graphs. */
#include <pthread.h>

#include "tests/emu/driver/driver.h"

enum {
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    UNSUPPORTED = 900,
    INVALIDATED,
    MERGE,
    UNMATCHED,
    UNJOINED,
    ISOLATION,
    IMPLICIT,
    CAPTURED_EVENT,
    WRONG_THREAD
};
static const size_t bytes = n * sizeof(uint32_t);

static void expect_x(const struct bench *t, uint32_t first)
{
    OK(cu.copy_out(t->host, t->x, bytes, t->a));
    OK(cu.stream_sync(t->a));
    EXPECT_EQ(n_wrong(t->host, first), 0);
}

static void set_x(const struct bench *t, uint32_t first)
{
    fill_host(t, first);
    OK(cu.copy_in(t->x, t->host, bytes, t->a));
    OK(cu.stream_sync(t->a));
}

static void free_graph(cu_graph graph, cu_graph_exec exec)
{
    OK(cu.graph_destroy(graph));
    OK(cu.graph_exec_destroy(exec));
}

/* Nothing runs during a capture; each launch runs it with the arguments of the capture. */
static void test_replay(void)
{
    struct bench t = bench_open("quiet");
    cu_graph_exec exec;
    set_x(&t, 0);
    cu_graph graph = capture_adds(&t, 3);
    expect_x(&t, 0);
    EXPECT_EQ(cu.graph_instantiate(&exec, graph, 16), CU_INVALID_VALUE);
    OK(cu.graph_instantiate(&exec, graph, 0));
    OK(cu.graph_destroy(graph));
    OK(cu.graph_launch(exec, t.a));
    OK(cu.graph_launch(exec, t.a));
    expect_x(&t, 6);
    OK(cu.graph_launch(exec, t.a));
    OK(cu.graph_launch(exec, t.b));  /* launches of one graph follow one another */
    OK(cu.graph_exec_destroy(exec)); /* queued launches still run */
    OK(cu.stream_sync(t.b));
    expect_x(&t, 12);
    EXPECT_EQ(emu.count("kernel"), 12);
    EXPECT_EQ(cu.graph_launch(exec, t.a), INVALID_HANDLE);
    REPORTED("cuGraphLaunch: the exec is destroyed");
    EXPECT_EQ(cu.graph_destroy(graph), INVALID_HANDLE);
    REPORTED("cuGraphDestroy: the graph is destroyed");
    bench_close(&t);
}

/* A captured copy reads its source at each launch. */
static void test_copies(void)
{
    struct bench t = bench_open("quiet,order=late");
    cu_graph graph;
    cu_graph_exec exec;
    uint32_t *result;
    OK(cu.host_alloc((void **)&result, bytes, 0));
    OK(cu.capture_begin(t.a, CU_CAPTURE_THREAD_LOCAL));
    OK(cu.copy_in(t.x, t.host, bytes, t.a));
    OK(launch_add(&t, t.a, t.y, t.x, 10));
    OK(cu.copy_out(result, t.y, bytes, t.a));
    OK(cu.capture_end(t.a, &graph));
    OK(cu.graph_instantiate(&exec, graph, 0));
    for (uint32_t i = 0; i < 3; i++) {
        fill_host(&t, i);
        OK(cu.graph_launch(exec, t.a));
        EXPECT_EQ(result[0], 0xffffffff);
        OK(cu.stream_sync(t.a));
        EXPECT_EQ(n_wrong(result, 10 + i), 0);
    }
    EXPECT_EQ(emu.bytes("cuMemcpyHtoDAsync_v2"), 3 * bytes);
    OK(cu.graph_launch(exec, t.a));
    t.host[0]++;
    OK(cu.stream_sync(t.a));
    REPORTED("has changed since it was queued");
    free_graph(graph, exec);
    OK(cu.host_free(result));
    bench_close(&t);
}

/* x = x + 1 in a, x to y in b after it, and both before the end, as branches or (wrongly) not. */
static int capture_branches(const struct bench *t, bool fork, bool join, cu_graph *graph)
{
    OK(cu.capture_begin(t->a, CU_CAPTURE_THREAD_LOCAL));
    OK(launch_add(t, t->a, t->x, t->x, 1));
    OK(cu.event_record(t->event, t->a));
    OK(cu.stream_wait(t->b, t->event, 0));
    if (!fork) /* and yet x is written again */
        OK(launch_add(t, t->a, t->x, t->x, 1));
    OK(cu.copy(t->y, t->x, bytes, t->b));
    OK(cu.event_record(t->event, t->b));
    if (join)
        OK(cu.stream_wait(t->a, t->event, 0));
    return cu.capture_end(t->a, graph);
}

static void test_branches(void)
{
    for (int seed = 0; seed < 10; seed++) {
        char options[64];
        snprintf(options, sizeof options, "quiet,seed=%d", seed);
        struct bench t = bench_open(options);
        cu_graph graph;
        cu_graph_exec exec;
        set_x(&t, 0);
        OK(capture_branches(&t, true, true, &graph));
        OK(cu.graph_instantiate(&exec, graph, 0));
        for (int i = 0; i < 3; i++)
            OK(cu.graph_launch(exec, t.a));
        OK(cu.copy(t.x, t.y, bytes, t.a));
        expect_x(&t, 3);
        free_graph(graph, exec);
        bench_close(&t);
    }
}

static void test_bad_branches(void)
{
    struct bench t = bench_open("quiet,order=late");
    cu_graph graph;
    cu_graph_exec exec;
    EXPECT_EQ(capture_branches(&t, true, false, &graph), UNJOINED);
    REPORTED("work of another stream is not waited for");
    EXPECT(!graph);
    OK(cu.stream_sync(t.a)); /* both streams are out of it */
    OK(cu.stream_sync(t.b));
    OK(capture_branches(&t, false, true,
                        &graph)); /* nothing orders the copy and the second launch */
    OK(cu.graph_instantiate(&exec, graph, 0));
    for (int i = 0; i < 20; i++)
        OK(cu.graph_launch(exec, t.a));
    OK(cu.stream_sync(t.a));
    REPORTED("in a graph writes what cuMemcpyDtoDAsync_v2");
    free_graph(graph, exec);
    bench_close(&t);
}

/* A call that is not allowed in a capture ends it: the end of the capture fails, and the stream
 * goes on. */
static void expect_ended(const struct bench *t)
{
    cu_graph graph = (cu_graph)t;
    EXPECT_EQ(launch_add(t, t->a, t->x, t->x, 1), INVALIDATED);
    EXPECT_EQ(cu.capture_end(t->a, &graph), INVALIDATED);
    EXPECT(!graph);
    OK(launch_add(t, t->a, t->x, t->x, 1));
    OK(cu.stream_sync(t->a));
    emu.report_clear();
}

static void test_forbidden(void)
{
    struct bench t = bench_open("quiet");
    cu_pointer p;
    void *host;
    uint32_t pageable[n] = {0};
    cu_module module;
#define FORBIDDEN(call)                                                                            \
    do {                                                                                           \
        OK(cu.capture_begin(t.a, CU_CAPTURE_THREAD_LOCAL));                                        \
        OK(launch_add(&t, t.a, t.x, t.x, 1));                                                      \
        EXPECT_EQ(call, UNSUPPORTED);                                                              \
        expect_ended(&t);                                                                          \
    } while (0)
    OK(cu.event_record(t.event, t.b));
    FORBIDDEN(cu.stream_sync(t.a));
    FORBIDDEN(cu.stream_sync(t.b));
    FORBIDDEN(cu.event_sync(t.event));
    FORBIDDEN(cu.event_query(t.event));
    FORBIDDEN(cu.alloc(&p, 1));
    FORBIDDEN(cu.free(t.x));
    FORBIDDEN(cu.host_alloc(&host, 1, 0));
    FORBIDDEN(cu.host_free(t.host));
    FORBIDDEN(cu.module_load(&module, "image"));
    FORBIDDEN(cu.module_unload(t.module));
    FORBIDDEN(cu.copy_in(t.x, pageable, bytes, t.a));
    FORBIDDEN(cu.copy_out(pageable, t.x, bytes, t.a));
    OK(cu.capture_begin(t.a, 2)); /* relaxed */
    OK(cu.alloc(&p, 1));
    OK(cu.free(p));
    cu_graph graph;
    OK(cu.capture_end(t.a, &graph));
    OK(cu.graph_destroy(graph));
    bench_close(&t);
}

static void test_misuse(void)
{
    struct bench t = bench_open("quiet");
    cu_graph graph;
    cu_event outside;
    OK(cu.event_create(&outside, 0));
    EXPECT_EQ(cu.capture_begin(NULL, 1), UNSUPPORTED);
    EXPECT_EQ(cu.capture_begin(t.a, 3), CU_INVALID_VALUE);
    EXPECT_EQ(cu.capture_end(t.a, &graph), ILLEGAL_STATE);
    OK(cu.capture_begin(t.a, 1));
    EXPECT_EQ(cu.capture_begin(t.a, 1), ILLEGAL_STATE);
    OK(cu.event_record(outside, t.b));
    EXPECT_EQ(cu.stream_wait(t.a, outside, 0), ISOLATION);
    expect_ended(&t);
    OK(cu.capture_begin(t.a, 1));
    OK(cu.event_record(t.event, t.a));
    EXPECT_EQ(cu.event_sync(t.event), CAPTURED_EVENT);
    expect_ended(&t);
    EXPECT_EQ(cu.event_query(t.event), CAPTURED_EVENT);
    EXPECT_EQ(cu.stream_wait(t.b, t.event, 0), CAPTURED_EVENT);
    OK(cu.capture_begin(t.a, 1));
    OK(cu.capture_begin(t.b, 1));
    OK(cu.event_record(t.event, t.a));
    EXPECT_EQ(cu.stream_wait(t.b, t.event, 0), MERGE);
    EXPECT_EQ(cu.capture_end(t.b, &graph), INVALIDATED);
    expect_ended(&t);
    OK(cu.capture_begin(t.a, 1));
    OK(cu.event_record(t.event, t.a));
    OK(cu.stream_wait(t.b, t.event, 0));
    EXPECT_EQ(cu.capture_end(t.b, &graph), UNMATCHED);
    expect_ended(&t);
    OK(cu.event_record(t.event, t.a)); /* an event of a capture is an ordinary one again */
    OK(cu.event_sync(t.event));
    OK(cu.event_destroy(outside));
    bench_close(&t);
}

static void test_null_stream(void)
{
    struct bench t = bench_open("quiet");
    cu_stream blocking;
    cu_graph graph;
    OK(cu.stream_create(&blocking, 0));
    OK(cu.capture_begin(blocking, 1));
    EXPECT_EQ(cu.fill(t.x, 0, 4, NULL), IMPLICIT);
    EXPECT_EQ(cu.capture_end(blocking, &graph), INVALIDATED);
    OK(cu.capture_begin(blocking, 1));
    OK(cu.stream_destroy(blocking));
    REPORTED("stream 3 is capturing");
    OK(cu.capture_begin(t.a, 1));
    OK(cu.fill(t.x, 0, 4, NULL)); /* a non-blocking stream has nothing to do with it */
    OK(cu.capture_end(t.a, &graph));
    OK(cu.graph_destroy(graph));
    bench_close(&t);
}

static void *in_other_thread(void *arg)
{
    const struct bench *t = arg;
    cu_graph graph;
    cu_pointer p;
    OK(cu.context_set(t->context));
    OK(cu.alloc(&p, 1)); /* the capture is another thread's */
    OK(cu.free(p));
    EXPECT_EQ(cu.capture_end(t->a, &graph), WRONG_THREAD);
    return NULL;
}

static void test_threads(void)
{
    struct bench t = bench_open("quiet");
    pthread_t thread;
    OK(cu.capture_begin(t.a, CU_CAPTURE_THREAD_LOCAL));
    EXPECT_EQ(pthread_create(&thread, NULL, in_other_thread, &t), 0);
    pthread_join(thread, NULL);
    expect_ended(&t);
    bench_close(&t);
}

/* A graph launched into a capture becomes part of it. */
static void test_nested(void)
{
    struct bench t = bench_open("quiet");
    cu_graph inner, outer;
    cu_graph_exec exec, twice;
    OK(capture_branches(&t, true, true, &inner));
    OK(cu.graph_instantiate(&exec, inner, 0));
    OK(cu.capture_begin(t.a, 1));
    OK(cu.graph_launch(exec, t.a));
    OK(launch_add(&t, t.a, t.x, t.y, 100));
    OK(cu.graph_launch(exec, t.a));
    OK(cu.capture_end(t.a, &outer));
    OK(cu.graph_instantiate(&twice, outer, 0));
    set_x(&t, 0);
    OK(cu.graph_launch(twice, t.a));
    expect_x(&t, 102);
    free_graph(inner, exec);
    free_graph(outer, twice);
    bench_close(&t);
}

/* Memory that is gone when a graph comes to it. */
static void test_freed(bool kernel)
{
    struct bench t = bench_open("quiet");
    cu_pointer p;
    cu_graph graph;
    cu_graph_exec exec;
    OK(cu.alloc(&p, bytes));
    OK(cu.capture_begin(t.a, 1));
    OK(kernel ? launch_add(&t, t.a, p, t.x, 1) : cu.fill(p, 1, bytes, t.a));
    OK(cu.capture_end(t.a, &graph));
    OK(cu.graph_instantiate(&exec, graph, 0));
    OK(cu.free(p));
    OK(cu.graph_launch(exec, t.a));
    EXPECT_EQ(cu.stream_sync(t.a), CU_ILLEGAL_ADDRESS);
    REPORTED(kernel ? "is freed memory" : "its memory has been freed");
    OK(cu.context_release(0));
    OK(cu.context_set(NULL));
    EXPECT_EQ(emu.live(NULL), 0);
}

void test_capture(void)
{
    test_replay();
    test_copies();
    test_branches();
    test_bad_branches();
    test_forbidden();
    test_misuse();
    test_null_stream();
    test_threads();
    test_nested();
    test_freed(true);
    test_freed(false);
}
