/* State after calls that fail: the same error for ever, and nothing left on the device. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "cuda/runtime.h"
#include "fixture.h"
#include "gr/status.h"

static const struct gr_device_opt plain = {0};

/* Every call of a lost backend says what the first one said. */
static void all_say(struct gr_backend *b, void *exec, const char *text)
{
    const struct gr_node node = {.op = GR_OP_ACT};
    const struct gr_segment s = {.node = &node, .n_node = 1};
    const struct gr_ten t = {.batch = 1, .rows = 1, .cols = 4, .row_bytes = 16, .dtype = GR_F32};
    struct gr_ten out;
    char byte = 0;
    void *other = NULL;
#define SAYS(call)                                                                                 \
    do {                                                                                           \
        (void)gr_fail(GR_E_INTERNAL, "nothing was said");                                          \
        cr_expect(call, #call);                                                                    \
        cr_expect_str_eq(gr_error(), text, #call ": %s", gr_error());                              \
    } while (0)
    SAYS(b->api->alloc(b, 64) == NULL);
    SAYS(b->api->host_alloc(b, 64) == NULL);
    SAYS(b->api->clear(b, &byte, 1) == GR_E_DEVICE);
    SAYS(b->api->upload(b, &byte, &byte, 1) == GR_E_DEVICE);
    SAYS(b->api->download(b, &byte, &byte, 1) == GR_E_DEVICE);
    SAYS(b->api->sync(b) == GR_E_DEVICE);
    SAYS(b->api->weight_upload(b, &t, true, &byte, &out) == GR_E_DEVICE);
    SAYS(b->api->segment_new(b, &s, &other) == GR_E_DEVICE);
    SAYS(b->api->segment_run(b, exec, NULL, NULL) == GR_E_DEVICE);
    SAYS(b->api->set_timer(b, NULL, NULL) == GR_E_DEVICE);
    SAYS(b->api->profile(b, true) == GR_E_DEVICE);
#undef SAYS
    cr_expect_null(other);
}

static void lost_by(const char *symbol, int error, const char *name, const char *options)
{
    struct gr_backend *b = device_open(options, plain), *again;
    float v[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct gr_ten x = device_ten(b, 2, 4, v), y = device_ten(b, 2, 4, NULL);
    void *pinned = b->api->host_alloc(b, 100);
    const struct gr_node node = node_act(x, y);
    void *exec = device_segment(b, &node, 1);
    char text[1024];
    int rc = 0;
    cr_assert_eq(emu()->fail(symbol, 2, error), 0);
    for (int i = 0; i < 4 && !rc; i++)
        if (!(rc = b->api->segment_run(b, exec, NULL, NULL)))
            rc = b->api->sync(b);
    cr_assert_eq(rc, GR_E_DEVICE);
    (void)strncpy(text, gr_error(), sizeof text - 1);
    cr_expect_not_null(strstr(text, name), "%s", text);
    all_say(b, exec, text);
    b->api->host_free(b, pinned);
    b->api->segment_free(b, &exec);
    b->api->free(b, x.data);
    b->api->free(b, y.data);
    b->api->close(&b);
    cr_expect_eq(emu()->live(NULL), 0, "objects are left on the device");
    if (strcmp(symbol, "kernel") != 0) /* its failure is reported */
        cr_expect_str_empty(emu()->report());
    emu()->report_clear();

    cr_assert_eq(gr_cuda_devices.open(&again, 0, &plain), 0, "%s", gr_error());
    x = device_ten(again, 2, 4, v);
    float *back = device_values(again, &x);
    cr_expect_eq(memcmp(back, v, sizeof v), 0);
    gr_free(back);
    again->api->free(again, x.data);
    device_close(&again);
}

Test(errors, a_launch_that_fails_at_once)
{
    lost_by("cuLaunchKernelEx", CU_LAUNCH_FAILED,
            "cuLaunchKernelEx failed with "
            "CUDA_ERROR_LAUNCH_FAILED",
            "quiet");
}

Test(errors, a_kernel_that_faults_later)
{
    lost_by("kernel", CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "quiet");
}

Test(errors, a_graph_that_cannot_be_launched)
{
    lost_by("cuGraphLaunch", CU_LAUNCH_FAILED, "cuGraphLaunch", "quiet");
}

Test(errors, a_wait_that_fails)
{
    lost_by("cuStreamSynchronize", CU_UNKNOWN, "cuStreamSynchronize", "quiet");
}

/* Images that a driver cannot read, or has no code in: one line with what helps. */
Test(errors, images_that_are_not_loaded)
{
    static const struct {
        int error, status;
        const char *says[3];
    } cases[] = {
        {200, GR_E_DEVICE, {"CUDA_ERROR_INVALID_IMAGE", "made by nvcc", "update the NVIDIA"}},
        {218, GR_E_DEVICE, {"CUDA_ERROR_INVALID_PTX", "made by nvcc", "update the NVIDIA"}},
        {222, GR_E_DEVICE, {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "made by", "update the NVIDIA"}},
        {209,
         GR_E_UNSUPPORTED,
         {"no kernel gr_elementwise_act", "there is code for sm_80", "EMU0"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gr_backend *b = device_open("quiet", plain);
        struct gr_ten x = device_ten(b, 2, 4, NULL);
        const struct gr_node node = node_act(x, x);
        const struct gr_segment s = {.node = &node, .n_node = 1};
        void *exec = NULL;
        cr_assert_eq(emu()->fail("cuModuleLoadData", 1, cases[i].error), 0);
        cr_expect_eq(b->api->segment_new(b, &s, &exec), cases[i].status, "%s", gr_error());
        for (int k = 0; k < 3; k++)
            cr_expect_not_null(strstr(gr_error(), cases[i].says[k]), "%s: %s", cases[i].says[k],
                               gr_error());
        cr_expect_null(strchr(gr_error(), '\n'));
        b->api->free(b, x.data);
        device_close(&b);
    }
}

/* ---- what says nothing about the device ---- */

enum { NOT_PERMITTED = 800, PROFILER_DISABLED = 5 }; /* CUresult */

struct used {
    struct gr_backend *b;
    struct gr_ten x, y;
    struct gr_node node;
    void *exec;
};

static void begin(struct used *u)
{
    static const float v[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    u->b = device_open("quiet", plain);
    u->x = device_ten(u->b, 2, 4, v), u->y = device_ten(u->b, 2, 4, NULL);
    u->node = node_act(u->x, u->y);
    u->exec = device_segment(u->b, &u->node, 1);
}

/* It computes: twice, so that there is a graph where there can be one. */
static void expect_alive(struct used *u, const char *what)
{
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(u->b->api->clear(u->b, u->y.data, 32), 0, "%s: %s", what, gr_error());
        cr_assert_eq(u->b->api->segment_run(u->b, u->exec, NULL, NULL), 0, "%s: %s", what,
                     gr_error());
        float *got = device_values(u->b, &u->y);
        for (int k = 0; k < 8; k++)
            cr_expect_eq(got[k], (float)(k + 2), "%s: %g", what, (double)got[k]);
        gr_free(got);
    }
}

static void end(struct used *u)
{
    u->b->api->segment_free(u->b, &u->exec);
    u->b->api->free(u->b, u->x.data);
    u->b->api->free(u->b, u->y.data);
    device_close(&u->b);
}

Test(errors, a_profiler_that_does_not_start)
{
    static const char *const symbol[] = {"cuProfilerStop", "cuProfilerStart"};
    struct used u;
    begin(&u);
    for (int on = 0; on < 2; on++) {
        cr_assert_eq(emu()->fail(symbol[on], 1, PROFILER_DISABLED), 0);
        cr_expect_eq(u.b->api->profile(u.b, on), GR_E_DEVICE);
        cr_expect(strstr(gr_error(), symbol[on]), "%s", gr_error());
        expect_alive(&u, symbol[on]);
        cr_expect_eq(u.b->api->profile(u.b, on), 0, "%s", gr_error());
    }
    end(&u);
}

Test(errors, memory_that_is_not_given)
{
    struct used u;
    begin(&u);
    cr_assert_eq(emu()->fail("cuMemAlloc_v2", 1, NOT_PERMITTED), 0);
    cr_expect_null(u.b->api->alloc(u.b, 64));
    cr_expect(strstr(gr_error(), "cuMemAlloc_v2"), "%s", gr_error());
    cr_assert_eq(emu()->fail("cuMemHostAlloc", 1, NOT_PERMITTED), 0);
    cr_expect_null(u.b->api->host_alloc(u.b, 64));
    cr_expect(strstr(gr_error(), "cuMemHostAlloc"), "%s", gr_error());
    cr_assert_eq(emu()->fail("cuMemAlloc_v2", 1, CU_OUT_OF_MEMORY), 0);
    cr_assert_eq(emu()->fail("cuMemGetInfo_v2", 1, NOT_PERMITTED), 0);
    cr_expect_null(u.b->api->alloc(u.b, 3 << 20));
    cr_expect(strstr(gr_error(), "out of memory: 3.0 MiB asked for"), "%s", gr_error());
    expect_alive(&u, "memory");
    end(&u);
}

/* A kernel, or scratch memory, that cannot be had: the segment fails, the others go on. */
Test(errors, segments_that_cannot_be_made)
{
    static const char *const symbol[] = {"cuModuleGetFunction", "cuFuncGetAttribute",
                                         "cuMemAlloc_v2"};
    for (size_t i = 0; i < sizeof symbol / sizeof *symbol; i++) {
        const int64_t rows = 1024;
        struct used u;
        begin(&u);
        struct gr_ten x = device_ten(u.b, rows, 64, NULL), y = device_ten(u.b, rows, 64, NULL);
        const struct gr_node node = i < 2 ? node_binary(GR_MUL, x, x, y) : node_act(x, y);
        const struct gr_segment s = {&node, 1, NULL, 0};
        void *exec;
        cr_assert_eq(emu()->fail(symbol[i], 1, NOT_PERMITTED), 0);
        cr_expect_eq(u.b->api->segment_new(u.b, &s, &exec), GR_E_DEVICE, "%s", symbol[i]);
        cr_expect(strstr(gr_error(), symbol[i]), "%s", gr_error());
        expect_alive(&u, symbol[i]);
        cr_expect_eq(u.b->api->segment_new(u.b, &s, &exec), 0, "%s", gr_error());
        u.b->api->segment_free(u.b, &exec);
        u.b->api->free(u.b, x.data);
        u.b->api->free(u.b, y.data);
        end(&u);
    }
}

/* Steps are launched kernel by kernel where there can be no graph of them. */
Test(errors, graphs_that_cannot_be_made)
{
    static const char *const symbol[] = {"cuStreamBeginCapture_v2", "cuStreamEndCapture",
                                         "cuGraphInstantiateWithFlags"};
    for (size_t i = 0; i < sizeof symbol / sizeof *symbol; i++) {
        struct used u;
        begin(&u);
        for (int nth = 1; nth <= 2; nth++)
            cr_assert_eq(emu()->fail(symbol[i], nth, NOT_PERMITTED), 0);
        expect_alive(&u, symbol[i]);
        expect_alive(&u, symbol[i]);
        expect_count(emu()->count("cuGraphLaunch"), 0);
        end(&u);
    }
}

static void count_times(const struct gr_op_time *t, void *user)
{
    (void)t;
    ++*(int *)user;
}

Test(errors, a_clock_that_cannot_be_had)
{
    int n = 0;
    struct used u;
    begin(&u);
    cr_assert_eq(u.b->api->set_timer(u.b, count_times, &n), 0);
    cr_assert_eq(emu()->fail("cuEventCreate", 1, NOT_PERMITTED), 0);
    cr_expect_eq(u.b->api->segment_run(u.b, u.exec, NULL, NULL), GR_E_DEVICE);
    cr_expect_eq(n, 0);
    expect_alive(&u, "cuEventCreate");
    cr_expect_eq(n, 2);
    end(&u);
}

/* ---- every call in turn ---- */

/* Everything a backend is used for, as far as it goes; closes what it opened. The status. */
static int scenario(void)
{
    struct gr_backend *b;
    struct gr_ten out;
    static float v[64 * 32];
    const struct gr_ten w = {
        .data = v, .batch = 1, .rows = 32, .cols = 64, .row_bytes = 256, .dtype = GR_F32};
    void *p[4] = {0}, *host = NULL, *exec = NULL;
    int rc = gr_cuda_devices.open(&b, 0, &plain);
    if (rc)
        return rc;
    const struct gr_backend_api *api = b->api;
    for (int i = 0; i < 4 && !rc; i++)
        rc = (p[i] = api->alloc(b, i == 0 ? api->weight_bytes(b, &w, true) : sizeof v))
                 ? 0
                 : GR_E_NOMEM_DEV;
    if (!rc)
        rc = (host = api->host_alloc(b, sizeof v)) ? 0 : GR_E_NOMEM_HOST;
    if (!rc)
        rc = api->clear(b, p[2], sizeof v);
    if (!rc)
        rc = api->weight_upload(b, &w, true, p[0], &out);
    if (!rc)
        rc = api->weight_upload(b, &w, false, p[1], &out);
    if (!rc)
        rc = api->sync(b);
    struct gr_ten x = out, y = out;
    x.data = p[1], y.data = p[2];
    const struct gr_node node = node_act(x, y);
    const struct gr_tap tap = {.name = "y", .ten = y};
    const struct gr_segment s = {&node, 1, &tap, 1};
    if (!rc)
        rc = api->segment_new(b, &s, &exec);
    for (int i = 0; i < 3 && !rc; i++)
        if (!(rc = api->upload(b, p[3], v, sizeof v)))
            rc = api->segment_run(b, exec, NULL, NULL);
    if (!rc)
        rc = api->profile(b, true);
    if (!rc)
        rc = api->profile(b, false);
    if (!rc)
        rc = api->download(b, host, p[2], sizeof v);
    api->segment_free(b, &exec);
    api->host_free(b, host);
    for (int i = 0; i < 4; i++)
        api->free(b, p[i]);
    api->close(&b);
    return rc;
}

static const char *const symbols[] = {
#define FN(name, symbol, params) #symbol,
#include "cuda/driver.def"
};

/* The nth call of this entry point fails: nothing may be left behind, and nothing be misused, but
 * that one does not know what is finished when waiting failed, and that what a context holds goes
 * with it when it cannot be made current. The status of the scenario. */
static int with_failure(const char *symbol, int64_t nth, int error)
{
    (void)gr_fail(GR_E_INTERNAL, "nothing was said");
    cr_assert_eq(emu()->fail(symbol, nth, error), 0);
    int rc = scenario();
    cr_assert_eq(emu()->fail(NULL, 0, 0), 0);
    (void)gr_cuda_state()->cu.context_set(NULL); /* where changing it back has failed */
    cr_expect(rc == 0 || rc == GR_E_DEVICE || rc == GR_E_NOMEM_DEV || rc == GR_E_NOMEM_HOST,
              "%s: %d", symbol, rc);
    cr_expect(rc == 0 || strcmp(gr_error(), "nothing was said") != 0, "%s", symbol);
    cr_expect_eq(emu()->live(NULL), 0, "%s leaves objects on the device", symbol);
    if (!strstr(symbol, "Synchronize") && !strstr(symbol, "cuCtx"))
        cr_expect_str_empty(emu()->report(), "%s %lld", symbol, (long long)nth);
    emu()->report_clear();
    return rc;
}

Test(errors, each_call_of_the_driver_in_turn)
{
    int failed = 0, runs = 0;
    gr_cuda_load_slot = 1 << 16;
    device_configure("quiet");
    cr_assert_eq(scenario(), 0, "%s", gr_error());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        int64_t n = emu()->count(symbols[i]);
        cr_assert_eq(scenario(), 0, "%s", gr_error());
        n = emu()->count(symbols[i]) - n;
        for (int64_t nth = 1; nth <= n; nth++, runs++)
            failed += with_failure(symbols[i], nth, nth % 2 ? CU_UNKNOWN : CU_OUT_OF_MEMORY) != 0;
    }
    cr_expect_gt(runs, 60);
    cr_expect_gt(failed, runs / 2);
    cr_expect_eq(scenario(), 0, "%s", gr_error());
}

Test(errors, each_allocation_in_turn)
{
    gr_cuda_load_slot = 1 << 16;
    device_configure("quiet");
    cr_assert_eq(scenario(), 0, "%s", gr_error());
    size_t held = gr_alloc_held(NULL);
    (void)gr_alloc_fail_at(0, 0);
    cr_assert_eq(scenario(), 0);
    uint64_t n = gr_alloc_fail_at(0, 0);
    cr_assert_gt(n, 5);
    for (uint64_t i = 1; i <= n; i++) {
        (void)gr_alloc_fail_at(i, 0);
        int rc = scenario();
        (void)gr_alloc_fail_at(0, 0);
        cr_expect_eq(rc, GR_E_NOMEM_HOST, "allocation %llu: %d", (unsigned long long)i, rc);
        cr_expect_eq(gr_alloc_held(NULL), held, "allocation %llu leaks", (unsigned long long)i);
        cr_expect_eq(emu()->live(NULL), 0);
    }
    cr_expect_eq(scenario(), 0);
}
