/* Order of operations: when they run, and the reports about missing waits. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/emu/driver/driver.h"

static const size_t bytes = n * sizeof(uint32_t);
static const char *const orders[] = {"quiet,order=eager",         "quiet,order=late",
                                     "quiet,order=random,seed=1", "quiet,order=random,seed=2",
                                     "quiet,order=random,seed=3", "quiet,order=random,seed=4"};
enum { n_orders = sizeof orders / sizeof orders[0] };

/* Pinned memory is read when the copy runs: a change meanwhile arrives, and is reported. */
static void test_late_read(void)
{
    struct bench t = bench_open("quiet,order=late");
    uint32_t back[n];
    fill_host(&t, 1);
    OK(cu.copy_in(t.x, t.host, bytes, t.a));
    t.host[5] = 77;
    OK(cu.stream_sync(t.a));
    REPORTED("cuMemcpyHtoDAsync_v2 of 4096 bytes");
    OK(cu.copy_out(back, t.x, bytes, t.a));
    EXPECT_EQ(back[5], 77);
    OK(cu.copy_in(t.x, t.host, bytes, t.a));
    OK(cu.stream_sync(t.a));
    t.host[5] = 78; /* synchronized before */
    OK(cu.stream_sync(t.a));
    bench_close(&t);
}

/* A copy to the host arrives only once something waits for it. */
static void test_late_arrival(void)
{
    struct bench t = bench_open("quiet,order=late");
    fill_host(&t, 3);
    OK(cu.copy_in(t.x, t.host, bytes, t.a));
    OK(cu.stream_sync(t.a));
    memset(t.host, 0, bytes);
    OK(cu.copy_out(t.host, t.x, bytes, t.a));
    EXPECT_EQ(t.host[0], 0xffffffff);
    OK(cu.event_record(t.event, t.a));
    OK(cu.event_sync(t.event));
    EXPECT_EQ(n_wrong(t.host, 3), 0);
    bench_close(&t);
}

/* From a stream to the other through x, with and without an event. */
static void two_streams(const char *options, bool with_event)
{
    struct bench t = bench_open(options);
    fill_host(&t, 9);
    OK(cu.copy_in(t.x, t.host, bytes, t.a));
    if (with_event) {
        OK(cu.event_record(t.event, t.a));
        OK(cu.stream_wait(t.b, t.event, 0));
    }
    OK(cu.copy(t.y, t.x, bytes, t.b));
    OK(cu.copy_out(t.host, t.y, bytes, t.b));
    OK(cu.stream_sync(t.b));
    OK(cu.stream_sync(t.a));
    if (with_event)
        EXPECT_EQ(n_wrong(t.host, 9), 0);
    else
        REPORTED("nothing orders them, and one and the other touch the same bytes");
    bench_close(&t);
}

/* A kernel in one stream, a copy of its output in the other. */
static void kernel_and_copy(const char *options, bool with_event)
{
    struct bench t = bench_open(options);
    fill_host(&t, 0);
    OK(cu.copy_in(t.x, t.host, bytes, t.a));
    OK(launch_add(&t, t.a, t.y, t.x, 4));
    if (with_event) {
        OK(cu.event_record(t.event, t.a));
        OK(cu.stream_wait(t.b, t.event, 0));
    }
    OK(cu.copy_out(t.host, t.y, bytes, t.b));
    if (with_event) {
        OK(cu.stream_sync(t.b));
        EXPECT_EQ(n_wrong(t.host, 4), 0);
    } else {
        OK(cu.stream_sync(t.b));
        OK(cu.stream_sync(t.a));
        REPORTED("kernel test_add on stream 1");
    }
    bench_close(&t);
}

/* A copy into what a kernel of the other stream was given. */
static void test_copy_into_arguments(const char *options)
{
    struct bench t = bench_open(options);
    OK(launch_add(&t, t.a, t.y, t.x, 4));
    OK(cu.fill(t.x, 0, bytes, t.b));
    REPORTED("writes where an argument of the other points");
    OK(cu.stream_sync(t.a));
    OK(cu.fill(t.x, 0, bytes, t.b)); /* the kernel is done, and the host knows */
    bench_close(&t);
}

/* Work that the host has waited for is over for every stream; a query that reports the end counts
 * too. */
static void test_host_orders(const char *options)
{
    struct bench t = bench_open(options);
    OK(cu.fill(t.x, 1, bytes, t.a));
    OK(cu.stream_sync(t.a));
    OK(cu.fill(t.x, 2, bytes, t.b));
    OK(cu.event_record(t.event, t.b));
    while (cu.event_query(t.event) == CU_NOT_READY)
        ;
    OK(cu.fill(t.x, 3, bytes, t.a));
    OK(cu.event_record(t.event, t.a));
    OK(cu.event_sync(t.event));
    OK(cu.copy(t.y, t.x, bytes, t.b));
    OK(cu.copy_out(t.host, t.y, bytes, t.b));
    OK(cu.stream_sync(t.b));
    EXPECT_EQ(t.host[n - 1], 0x03030303);
    bench_close(&t);
}

/* The NULL stream and blocking streams wait for one another, others do not. */
static void test_null_stream(const char *options)
{
    struct bench t = bench_open(options);
    cu_stream blocking;
    OK(cu.stream_create(&blocking, 0));
    OK(cu.fill(t.x, 1, bytes, blocking));
    OK(cu.fill(t.x, 2, bytes, NULL));
    OK(cu.fill(t.x, 3, bytes, blocking));
    OK(cu.copy_out(t.host, t.x, bytes, blocking));
    OK(cu.stream_sync(NULL));
    EXPECT_EQ(t.host[0], 0x03030303);
    REPORTED("");
    OK(cu.fill(t.x, 2, bytes, NULL));
    OK(cu.fill(t.x, 3, bytes, t.a));
    REPORTED("on the NULL stream: nothing orders them");
    OK(cu.stream_sync(NULL));
    OK(cu.stream_destroy(blocking));
    bench_close(&t);
}

static void test_freed_early(const char *options)
{
    struct bench t = bench_open(options);
    cu_pointer p;
    void *host;
    OK(cu.alloc(&p, bytes));
    OK(cu.host_alloc(&host, bytes, 0));
    OK(launch_add(&t, t.a, t.y, p, 4));
    OK(cu.free(p));
    REPORTED("is freed while test_add on stream 1, which uses it,");
    OK(cu.copy_in(t.x, host, bytes, t.b));
    OK(cu.host_free(host));
    REPORTED("is freed while cuMemcpyHtoDAsync_v2 on stream 2");
    OK(cu.alloc(&p, bytes));
    OK(cu.fill(p, 0, bytes, t.a));
    OK(cu.stream_sync(t.a));
    OK(cu.free(p));
    OK(launch_add(&t, t.a, t.y, t.x, 4));
    OK(cu.module_unload(t.module));
    REPORTED("kernel test_add on stream 1 is not known to be finished");
    OK(cu.module_load(&t.module, "image"));
    bench_close(&t);
}

/* Streams that nothing orders run in either order. */
static void test_both_orders(void)
{
    int first = 0, runs = 40;
    for (int seed = 0; seed < runs; seed++) {
        char options[64];
        float ms;
        snprintf(options, sizeof options, "quiet,seed=%d", seed);
        struct bench t = bench_open(options);
        cu_event other;
        OK(cu.event_create(&other, 0));
        OK(cu.fill(t.x, 1, bytes, t.a));
        OK(cu.event_record(t.event, t.a));
        OK(cu.fill(t.y, 1, bytes, t.b));
        OK(cu.event_record(other, t.b));
        OK(cu.stream_sync(t.a));
        OK(cu.stream_sync(t.b));
        OK(cu.event_time(&ms, t.event, other));
        first += ms > 0;
        OK(cu.event_destroy(other));
        bench_close(&t);
    }
    EXPECT(first > 0 && first < runs);
}

/* Staged copies do not pile up without bound. */
static void test_staging(void)
{
    struct bench t = bench_open("quiet,order=late");
    const size_t much = 40 << 20;
    cu_pointer p;
    unsigned char *from = malloc(much);
    memset(from, 5, much);
    OK(cu.alloc(&p, much));
    OK(cu.copy_in(p, from, much, t.a));
    EXPECT_EQ(emu.bytes("cuMemcpyHtoDAsync_v2"), 0);
    OK(cu.copy_in(p, from, much, t.a));
    EXPECT_EQ(emu.bytes("cuMemcpyHtoDAsync_v2"), 2 * much);
    free(from);
    OK(cu.stream_sync(t.a));
    OK(cu.free(p));
    bench_close(&t);
}

/* True when a child process that reads at p is killed by it. */
static bool deadly(const volatile uint32_t *p)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(0);
        _exit((int)(*p & 0));
    }
    return waitpid(child, &status, 0) == child && status != 0;
}

static void test_host_access(void)
{
    struct bench t = bench_open("quiet");
    void *gone;
    EXPECT(!deadly(t.host));
    EXPECT(deadly((const uint32_t *)(uintptr_t)t.x));
    OK(launch_add(&t, t.a, t.y, t.x, 4));
    OK(cu.stream_sync(t.a));
    EXPECT(deadly((const uint32_t *)(uintptr_t)t.x)); /* closed again */
    EXPECT(deadly(t.host + n));                       /* its end */
    OK(cu.host_alloc(&gone, bytes, 0));
    OK(cu.host_free(gone));
    EXPECT(deadly(gone));
    bench_close(&t);
}

void test_order(void)
{
    test_late_read();
    test_late_arrival();
    for (int i = 0; i < n_orders; i++) {
        two_streams(orders[i], true);
        two_streams(orders[i], false);
        kernel_and_copy(orders[i], true);
        test_copy_into_arguments(orders[i]);
        test_host_orders(orders[i]);
        test_null_stream(orders[i]);
        test_freed_early(orders[i]);
    }
    kernel_and_copy("quiet,order=late", false);
    test_both_orders();
    test_staging();
    test_host_access();
}
