/* Calls that fail on request, and contexts that fail for good. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/emu/driver/driver.h"

/* Each entry point once; with no sensible argument, as the failure comes before they are looked at.
 */
static void test_each_entry(void)
{
    struct bench t = bench_open("quiet");
    const int error = 46; /* device unavailable: nothing gives it by itself */
#define FAILS(name, symbol, ...)                                                                   \
    EXPECT_EQ(emu.fail(symbol, 1, error), 0);                                                      \
    EXPECT_EQ(cu.name(__VA_ARGS__), error);
    FAILS(init, "cuInit", 0)
    FAILS(driver_version, "cuDriverGetVersion", NULL)
    FAILS(error_name, "cuGetErrorName", 0, NULL)
    FAILS(error_string, "cuGetErrorString", 0, NULL)
    FAILS(device_count, "cuDeviceGetCount", NULL)
    FAILS(device_get, "cuDeviceGet", NULL, 0)
    FAILS(device_name, "cuDeviceGetName", NULL, 0, 0)
    FAILS(device_attribute, "cuDeviceGetAttribute", NULL, 0, 0)
    FAILS(device_total, "cuDeviceTotalMem_v2", NULL, 0)
    FAILS(device_bus_id, "cuDeviceGetPCIBusId", NULL, 0, 0)
    FAILS(context_retain, "cuDevicePrimaryCtxRetain", NULL, 0)
    FAILS(context_release, "cuDevicePrimaryCtxRelease_v2", 99)
    FAILS(context_set, "cuCtxSetCurrent", NULL)
    FAILS(context_get, "cuCtxGetCurrent", NULL)
    FAILS(can_access, "cuDeviceCanAccessPeer", NULL, 0, 0)
    FAILS(enable_access, "cuCtxEnablePeerAccess", NULL, 0)
    FAILS(mem_info, "cuMemGetInfo_v2", NULL, NULL)
    FAILS(module_load, "cuModuleLoadData", NULL, NULL)
    FAILS(module_unload, "cuModuleUnload", NULL)
    FAILS(module_function, "cuModuleGetFunction", NULL, NULL, NULL)
    FAILS(function_attribute, "cuFuncGetAttribute", NULL, 0, NULL)
    FAILS(function_set, "cuFuncSetAttribute", NULL, 0, 0)
    FAILS(alloc, "cuMemAlloc_v2", NULL, 0)
    FAILS(free, "cuMemFree_v2", 0)
    FAILS(host_alloc, "cuMemHostAlloc", NULL, 0, 0)
    FAILS(host_free, "cuMemFreeHost", NULL)
    FAILS(copy_in, "cuMemcpyHtoDAsync_v2", 0, NULL, 1, NULL)
    FAILS(copy_out, "cuMemcpyDtoHAsync_v2", NULL, 0, 1, NULL)
    FAILS(copy, "cuMemcpyDtoDAsync_v2", 0, 0, 1, NULL)
    FAILS(copy_peer, "cuMemcpyPeerAsync", 0, NULL, 0, NULL, 1, NULL)
    FAILS(fill, "cuMemsetD8Async", 0, 0, 1, NULL)
    FAILS(stream_create, "cuStreamCreate", NULL, 0)
    FAILS(stream_destroy, "cuStreamDestroy_v2", NULL)
    FAILS(stream_sync, "cuStreamSynchronize", NULL)
    FAILS(stream_wait, "cuStreamWaitEvent", NULL, NULL, 0)
    FAILS(event_create, "cuEventCreate", NULL, 0)
    FAILS(event_destroy, "cuEventDestroy_v2", NULL)
    FAILS(event_record, "cuEventRecord", NULL, NULL)
    FAILS(event_sync, "cuEventSynchronize", NULL)
    FAILS(event_query, "cuEventQuery", NULL)
    FAILS(event_time, "cuEventElapsedTime", NULL, NULL, NULL)
    FAILS(launch, "cuLaunchKernelEx", NULL, NULL, NULL, NULL)
    FAILS(capture_begin, "cuStreamBeginCapture_v2", NULL, 0)
    FAILS(capture_end, "cuStreamEndCapture", NULL, NULL)
    FAILS(graph_instantiate, "cuGraphInstantiateWithFlags", NULL, NULL, 0)
    FAILS(graph_launch, "cuGraphLaunch", NULL, NULL)
    FAILS(graph_exec_destroy, "cuGraphExecDestroy", NULL)
    FAILS(graph_destroy, "cuGraphDestroy", NULL)
    FAILS(tensor_map, "cuTensorMapEncodeTiled", NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0,
          0)
    FAILS(profiler_start, "cuProfilerStart")
    FAILS(profiler_stop, "cuProfilerStop")
    OK(cu.context_set(
        t.context)); /* the failed call took effect: releases do, and it is one here */
#define FN(name, symbol, params) EXPECT(emu.count(#symbol) > 0);
#include "cuda/driver.def"
#undef FN
    EXPECT_EQ(emu.fail("cuNone", 1, error), 1);
    emu.report_clear();
    bench_close(&t);
}

static void test_counting(void)
{
    struct bench t = bench_open("quiet");
    int64_t calls = emu.count(NULL);
    int version;
    EXPECT_EQ(emu.fail(NULL, 3, CU_UNKNOWN), 0);
    OK(cu.driver_version(&version));
    OK(cu.stream_sync(t.a));
    EXPECT_EQ(cu.stream_sync(t.a), CU_UNKNOWN);
    OK(cu.stream_sync(t.a)); /* once */
    EXPECT_EQ(emu.count(NULL), calls + 4);
    EXPECT_EQ(emu.fail(NULL, 1, CU_UNKNOWN), 0);
    EXPECT_EQ(emu.fail(NULL, 0, 0), 0); /* taken back */
    OK(cu.stream_sync(t.a));
    bench_close(&t);
}

/* Releases that fail have released. */
static void test_failing_releases(void)
{
    static const char *const releases[] = {"cuMemFree_v2",       "cuMemFreeHost",
                                           "cuStreamDestroy_v2", "cuEventDestroy_v2",
                                           "cuModuleUnload",     "cuDevicePrimaryCtxRelease_v2"};
    for (size_t i = 0; i < sizeof releases / sizeof releases[0]; i++) {
        struct bench t = bench_open("quiet");
        int n_before = n_failed;
        EXPECT_EQ(emu.fail(releases[i], 1, CU_UNKNOWN), 0);
        int freed = cu.free(t.x) + cu.host_free(t.host) + cu.stream_destroy(t.a) +
                    cu.event_destroy(t.event) + cu.module_unload(t.module);
        freed += cu.free(t.y) + cu.stream_destroy(t.b) + cu.context_release(0);
        EXPECT_EQ(freed, CU_UNKNOWN);
        EXPECT_EQ(emu.live(NULL), 0);
        EXPECT_EQ(n_failed, n_before);
        OK(cu.context_set(NULL));
        REPORTED("");
    }
}

/* A context that has failed fails every call, and goes; the next one is well. */
static void expect_poisoned(struct bench *t, int error)
{
    cu_pointer p;
    EXPECT_EQ(cu.stream_sync(t->a), error);
    EXPECT_EQ(cu.alloc(&p, 1), error);
    EXPECT_EQ(cu.event_record(t->event, t->a), error);
    EXPECT_EQ(launch_add(t, t->a, t->y, t->x, 1), error);
    EXPECT_EQ(cu.free(t->x), error);
    OK(cu.context_release(0));
    OK(cu.context_set(NULL));
    EXPECT_EQ(emu.live(NULL), 0);
    OK(cu.context_retain(&t->context, 0));
    OK(cu.context_set(t->context));
    OK(cu.alloc(&p, 1));
    OK(cu.free(p));
    OK(cu.context_release(0));
    OK(cu.context_set(NULL));
}

static void test_sticky(void)
{
    struct bench t = bench_open("quiet");
    EXPECT_EQ(emu.fail("cuLaunchKernelEx", 2, CU_ILLEGAL_ADDRESS), 0);
    OK(launch_add(&t, t.a, t.y, t.x, 1));
    EXPECT_EQ(launch_add(&t, t.a, t.y, t.x, 1), CU_ILLEGAL_ADDRESS);
    expect_poisoned(&t, CU_ILLEGAL_ADDRESS);
    t = bench_open("quiet,order=late");
    EXPECT_EQ(emu.fail("kernel", 2, CU_LAUNCH_FAILED), 0); /* comes up late */
    OK(launch_add(&t, t.a, t.y, t.x, 1));
    OK(launch_add(&t, t.a, t.y, t.x, 1));
    OK(launch_add(&t, t.a, t.y, t.x, 1));
    expect_poisoned(&t, CU_LAUNCH_FAILED);
    EXPECT_EQ(emu.count("kernel"), 2);
    REPORTED("kernel test_add on stream 1: fails on request");
}

/* A kernel that writes behind the end of y. */
static void test_out_of_bounds(void)
{
    struct bench t = bench_open("quiet,order=late");
    struct test_add_args args = {(uint32_t *)(uintptr_t)t.y, (const uint32_t *)(uintptr_t)t.x,
                                 n + 1, 1};
    void *params[] = {&args};
    struct cu_launch l = {.grid = {n / 128 + 1, 1, 1}, .block = {128, 1, 1}, .stream = t.a};
    OK(cu.launch(&l, t.add, params, NULL));
    EXPECT_EQ(cu.stream_sync(t.a), CU_ILLEGAL_ADDRESS);
    EXPECT(strstr(emu.report(), "kernel test_add, block (8, 0, 0), thread (0, 0, 0)"));
    REPORTED("0 bytes behind the end of an allocation of 4096 bytes");
    expect_poisoned(&t, CU_ILLEGAL_ADDRESS);
}

/* One device's failure is not the other's. */
static void test_two_devices(void)
{
    struct bench t = bench_open("quiet,devices=2");
    cu_context second;
    cu_module module;
    cu_function add;
    cu_stream s;
    OK(cu.context_retain(&second, 1));
    OK(cu.context_set(second));
    OK(cu.module_load(&module, "image"));
    OK(cu.module_function(&add, module, "test_add"));
    OK(cu.stream_create(&s, CU_STREAM_NON_BLOCKING));
    struct bench u = {.add = add};
    OK(launch_add(&u, s, t.y, t.x, 1)); /* memory of device 0 */
    EXPECT_EQ(cu.stream_sync(s), CU_ILLEGAL_ADDRESS);
    REPORTED("is memory of another device");
    OK(cu.context_set(t.context));
    OK(launch_add(&t, t.a, t.y, t.x, 1));
    OK(cu.stream_sync(t.a));
    OK(cu.context_release(1));
    bench_close(&t);
}

/* A launch in a process of its own, and a wait for it; its status. The alarm ends one that hangs.
 */
static int launch_aside(const char *options)
{
    pid_t child = fork();
    int status = -1;
    if (child == 0) {
        alarm(1);
        struct bench t = bench_open(options);
        int rc = cu.fill(t.x, 0, n * sizeof(uint32_t), t.a);
        rc = rc ? rc : launch_add(&t, t.a, t.y, t.x, 1);
        rc = rc ? rc : cu.copy_out(t.host, t.y, 4, t.a);
        rc = rc ? rc : cu.stream_sync(t.a);
        _exit(rc == CU_OK ? t.host[0] == 1 : rc == CU_ILLEGAL_ADDRESS ? 2 : 3);
    }
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

/* Faults planted in kernels whose names begin with a word; the others have none. */
static void test_planted(void)
{
    char options[128], lost[] = "/tmp/gpurun-lost-XXXXXX";
    enum { WRONG = 0, RIGHT = 1 << 8, ILLEGAL = 2 << 8 };
    int file = mkstemp(lost);
    EXPECT(file >= 0 && close(file) == 0 && unlink(lost) == 0);
    EXPECT_EQ(launch_aside("quiet,plant=wrong:test_sub"), RIGHT);
    EXPECT_EQ(launch_aside("quiet,plant=wrong:test_a"), WRONG);
    EXPECT_EQ(launch_aside("quiet,plant=crash:test_add"), ILLEGAL);
    EXPECT(WTERMSIG(launch_aside("quiet,plant=hang:test")) == SIGALRM);
    snprintf(options, sizeof options, "quiet,plant=lose:test,lost=%s", lost);
    EXPECT_EQ(launch_aside(options), ILLEGAL);
    EXPECT_EQ(emu.configure(options), 0);
    EXPECT_EQ(cu.init(0), CU_UNKNOWN);
    EXPECT_EQ(unlink(lost), 0);
    OK(cu.init(0));
    EXPECT_EQ(emu.configure("quiet,plant=burn:test"), 1);
    EXPECT_EQ(emu.configure("quiet,plant=hang:"), 1);
    EXPECT_EQ(emu.configure("quiet"), 0);
}

/* Launches are listed in a file, those that a fault keeps from running too. */
static void test_listed(void)
{
    char options[128], list[] = "/tmp/gpurun-launches-XXXXXX", text[128] = "";
    int file = mkstemp(list);
    EXPECT(file >= 0);
    snprintf(options, sizeof options, "quiet,plant=wrong:test_add,launches=%s", list);
    launch_aside(options);
    EXPECT(read(file, text, sizeof text - 1) > 0);
    EXPECT_EQ(strcmp(text, "test_add 8 1 1 128\n"), 0);
    EXPECT_EQ(close(file), 0);
    EXPECT_EQ(unlink(list), 0);
}

static void test_options(void)
{
    struct bench t = bench_open("quiet,strict");
    int version;
    EXPECT_EQ(cu.stream_destroy((cu_stream)(uintptr_t)t.event), 400);
    REPORTED("the stream is not one");
    EXPECT_EQ(cu.stream_sync(t.a), CU_UNKNOWN);
    OK(cu.context_release(0));
    OK(cu.context_set(NULL));
    EXPECT_EQ(setenv("GR_EMU_DEVICE", "quiet,driver=12.4,fail=cuInit:2:803,fail=any:4:2", 1), 0);
    EXPECT_EQ(emu.configure(NULL), 0);
    OK(cu.init(0));
    EXPECT_EQ(cu.init(0), CU_SYSTEM_DRIVER_MISMATCH);
    OK(cu.driver_version(&version));
    EXPECT_EQ(version, 12040);
    EXPECT_EQ(cu.driver_version(&version), CU_OUT_OF_MEMORY);
    OK(cu.driver_version(&version));
    EXPECT_EQ(unsetenv("GR_EMU_DEVICE"), 0);
}

void test_faults(void)
{
    test_each_entry();
    test_counting();
    test_failing_releases();
    test_sticky();
    test_planted();
    test_listed();
    test_out_of_bounds();
    test_two_devices();
    test_options();
}
