/* Models whose stages are on emulated devices of their own, a thread each: values go from device to
 * device, and the bytes that come out are those of one device. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "cuda/runtime.h"
#include "gr/status.h"
#include "ranks/team.h"
#include "support/tiny.h"
#include "tests/emu/libcuda.h"
#include "tests/emu/session/emulator.h"

#define N_VOCAB 96
#define N_OUT 10
#define N_MESSAGE 12 /* from a stage to the next: 3 micro-batches of a prompt and 9 tokens */

static struct {
    int (*configure)(const char *options);
    int (*fail)(const char *symbol, int64_t nth, int error);
    int64_t (*count)(const char *symbol);
    int64_t (*bytes)(const char *symbol);
    int64_t (*live)(const char *kind);
    const char *(*report)(void);
} emu;

static char path[256];

static void setup(void)
{
#define GET(name) *(void **)(void *)&emu.name = emu_symbol("emu_driver_" #name)
    GET(configure), GET(fail), GET(count), GET(bytes), GET(live), GET(report);
#undef GET
    emu_llama(path);
}

static void teardown(void)
{
    unlink(path);
    gr_team_test(NULL);
}

TestSuite(teams, .init = setup, .fini = teardown);

/* Way of running a model. */
struct way {
    const char *device;
    int32_t n_rank, n_gpu;
    bool no_graphs, no_kv_offload;
    int32_t n_shard; /* ranks that share a layer; 0: none do */
};

/* n tokens of sequence 0 from pos on; the last one's logits. */
static int decode(struct gr_session *s, int32_t pos, int n, float *out)
{
    int32_t id[32], at[32];
    int8_t last[32] = {0};
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (pos + i)) % N_VOCAB, at[i] = pos + i;
    last[n - 1] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = at, .logits = last};
    int rc = gr_decode(s, &b);
    if (!rc)
        memcpy(out, tiny_row(s, n - 1), N_VOCAB * sizeof(float));
    return rc;
}

/* A prompt of several micro-batches, single tokens, a shift of positions. */
static int run(struct gr_session *s, float out[N_OUT * N_VOCAB])
{
    int rc = decode(s, 0, 21, out);
    for (int i = 1; i < 5 && !rc; i++)
        rc = decode(s, 20 + i, 1, out + i * N_VOCAB);
    if (!rc)
        rc = gr_kv_seq_rm(s, 0, 2, 6) || gr_kv_seq_add(s, 0, 6, -1, -4) ? GR_E_INTERNAL : 0;
    for (int i = 5; i < N_OUT && !rc; i++)
        rc = decode(s, 16 + i, 1, out + i * N_VOCAB);
    return rc;
}

static int open_model(const struct way *way, struct gr_model **m)
{
    struct gr_model_params mp = gr_model_params_default();
    mp.device = way->device, mp.n_gpu_layers = way->n_gpu, mp.n_rank = way->n_rank;
    mp.split_mode = way->n_shard ? GR_SPLIT_MODE_TENSOR : GR_SPLIT_MODE_LAYER;
    mp.n_shard = way->n_shard;
    return gr_model_open(m, path, &mp);
}

static int open_session(const struct way *way, struct gr_model *m, struct gr_session **s)
{
    struct gr_session_params sp = gr_session_params_default();
    sp.n_ctx = 64, sp.n_threads = 1, sp.n_ubatch = 8;
    sp.no_graphs = way->no_graphs, sp.no_kv_offload = way->no_kv_offload;
    return gr_session_open(s, m, &sp);
}

static int scenario(const struct way *way, float out[N_OUT * N_VOCAB])
{
    struct gr_model *m = NULL;
    struct gr_session *s = NULL;
    int rc = open_model(way, &m);
    if (!rc)
        rc = open_session(way, m, &s);
    if (!rc)
        rc = run(s, out);
    gr_session_close(&s);
    gr_model_close(&m);
    return rc;
}

static const struct way alone = {"EMU0", 1, 99, false, false, 0};

/* The same bytes as one device gives, nothing misused, and nothing left. */
static void same(const char *options, const struct way *way)
{
    static float one[N_OUT * N_VOCAB], out[N_OUT * N_VOCAB];
    char text[128];
    snprintf(text, sizeof text, "quiet,strict,devices=4,%s", options);
    cr_assert_eq(emu.configure(text), 0);
    struct way first = alone;
    first.n_gpu = way->n_gpu, first.no_kv_offload = way->no_kv_offload;
    cr_assert_eq(scenario(&first, one), 0, "%s", gr_error());
    memset(out, 0, sizeof out);
    cr_assert_eq(emu.configure(text), 0);
    cr_expect_eq(scenario(way, out), 0, "%s, %d ranks on %s: %s", options, way->n_rank, way->device,
                 gr_error());
    cr_expect_eq(memcmp(out, one, sizeof out), 0, "%s, %d ranks on %s: other bytes", options,
                 way->n_rank, way->device);
    cr_expect_str_empty(emu.report());
    cr_expect_eq(emu.live(NULL), 0);
}

static const char *const orders[] = {"order=eager", "order=late", "seed=2", "seed=3"};
enum { n_orders = sizeof orders / sizeof *orders };

Test(teams, a_device_each)
{
    const struct way two = {"EMU0,EMU1", 2, 99, false, false, 0},
                     three = {"EMU2,EMU0,EMU1", 3, 99, false, false, 0};
    for (int i = 0; i < n_orders; i++) {
        same(orders[i], &two);
        cr_expect_geq(emu.count("cuMemcpyPeerAsync"), N_MESSAGE);
        same(orders[i], &three);
    }
}

/* Stages of one device: copies within it, as virtual devices. */
Test(teams, one_device_for_all)
{
    const struct way way = {"EMU1", 3, 99, false, false, 0};
    for (int i = 1; i < n_orders - 1; i++) {
        same(orders[i], &way);
        cr_expect_geq(emu.count("cuMemcpyDtoDAsync_v2"), 2 * N_MESSAGE);
        cr_expect_eq(emu.count("cuMemcpyPeerAsync"), 0);
    }
}

Test(teams, devices_that_do_not_reach_each_other)
{
    const struct way way = {"EMU0,EMU1", 2, 99, false, false, 0};
    same("no-peer", &way);
    cr_expect_geq(emu.count("cuMemcpyPeerAsync"), N_MESSAGE);
}

/* Layers on the CPU, ahead of the first device; caches there. */
Test(teams, with_the_cpu)
{
    for (int n = 0; n < 5; n++) {
        const struct way way = {"EMU0,EMU1", 2, n, false, false, 0};
        same("seed=5", &way);
    }
    const struct way caches = {"EMU0,EMU1", 2, 99, false, true, 0};
    same("seed=6", &caches);
}

Test(teams, without_graphs)
{
    const struct way way = {"EMU0,EMU1", 2, 99, true, false, 0};
    same("seed=5", &way);
}

static void use_nccl(void)
{
    gr_team_test(&(struct gr_team_test){.nccl = true});
}

Test(teams, by_nccl)
{
    const struct way two = {"EMU0,EMU1", 2, 99, false, false, 0},
                     three = {"EMU2,EMU0,EMU1", 3, 99, false, false, 0},
                     no_graphs = {"EMU0,EMU1", 2, 99, true, false, 0},
                     some = {"EMU0,EMU1", 2, 2, false, false, 0};
    use_nccl();
    for (int i = 1; i < n_orders - 1; i++) {
        same(orders[i], &two);
        cr_expect_geq(emu.count("cuGraphLaunch"), 2 * N_MESSAGE);
        cr_expect_eq(emu.count("cuMemcpyPeerAsync"), 0);
        same(orders[i], &three);
    }
    same("seed=7", &no_graphs);
    same("seed=7", &some);
}

/* Two sessions of a model take turns: messages of both go by one transport, each in the order of
 * its own work. */
static void take_turns(void)
{
    static float one[N_OUT * N_VOCAB], out[2][N_OUT * N_VOCAB];
    const struct way way = {"EMU0,EMU1,EMU2", 3, 99, false, false, 0};
    struct gr_session *s[2] = {NULL, NULL};
    struct gr_model *m = NULL;
    cr_assert_eq(emu.configure("quiet,strict,devices=3,seed=9"), 0);
    cr_assert_eq(scenario(&alone, one), 0, "%s", gr_error());
    cr_assert_eq(emu.configure("quiet,strict,devices=3,seed=9"), 0);
    cr_assert_eq(open_model(&way, &m), 0, "%s", gr_error());
    for (int k = 0; k < 2; k++)
        cr_assert_eq(open_session(&way, m, &s[k]), 0, "%s", gr_error());
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 2; k++)
            cr_assert_eq(decode(s[k], i ? 20 + i : 0, i ? 1 : 21, out[k] + i * N_VOCAB), 0, "%s",
                         gr_error());
    for (int k = 0; k < 2; k++) {
        cr_expect_eq(memcmp(out[k], one, 5 * N_VOCAB * sizeof(float)), 0, "session %d", k);
        gr_session_close(&s[k]);
    }
    gr_model_close(&m);
    cr_expect_str_empty(emu.report());
    cr_expect_eq(emu.live(NULL), 0);
}

Test(teams, two_sessions)
{
    take_turns();
}

Test(teams, two_sessions_by_nccl)
{
    use_nccl();
    take_turns();
}

/* Without a transport, or with one that does not work, messages go through memory of the host; the
 * log says so once. */
static char said[4096];

static void note(enum gr_log_level level, const char *text, void *user)
{
    (void)user;
    if (level <= GR_LOG_WARN)
        strncat(said, text, sizeof said - strlen(said) - 1);
}

Test(teams, by_nccl_that_is_too_old)
{
    const struct way way = {"EMU0,EMU1", 2, 99, false, false, 0};
    use_nccl();
    same("nccl=2.17.1", &way);
    cr_expect_eq(emu.count("ncclCommInitRankConfig"), 0);
}

Test(teams, by_nccl_that_refuses)
{
    const struct way way = {"EMU1", 2, 99, false, false, 0}; /* two ranks, one device */
    use_nccl();
    gr_log_set(note, NULL);
    same("seed=1", &way);
    cr_expect_not_null(strstr(said, "Duplicate GPU"), "%s", said);
    cr_expect_not_null(strstr(said, "goes through the host"), "%s", said);
}

/* The test of the links at the start finds that nothing comes by the transport. */
Test(teams, by_nccl_that_does_not_bring_it)
{
    const struct way way = {"EMU0,EMU1", 2, 99, false, false, 0};
    static float one[N_OUT * N_VOCAB], out[N_OUT * N_VOCAB];
    use_nccl();
    gr_log_set(note, NULL);
    cr_assert_eq(emu.configure("quiet,devices=2"), 0);
    cr_assert_eq(scenario(&alone, one), 0, "%s", gr_error());
    cr_assert_eq(emu.configure("quiet,devices=2"), 0);
    cr_assert_eq(emu.fail("nccl-hang", 4, 1), 0); /* the first two connect */
    cr_expect_eq(scenario(&way, out), 0, "%s", gr_error());
    cr_expect_eq(memcmp(out, one, sizeof out), 0);
    cr_expect_not_null(strstr(said, "the next way is taken"), "%s", said);
    cr_expect_eq(emu.live(NULL), 0);
}

/* ---- failures ---- */

/* Memory kept of the device that was examined last goes when another one is examined. */
static void forget_devices(void)
{
    for (int i = 0; i < 2; i++) {
        struct gr_backend *b;
        cr_assert_eq(gr_cuda_devices.open(&b, i, &(struct gr_device_opt){0}), 0, "%s", gr_error());
        b->api->close(&b);
    }
}

/* A call of the driver fails, in one rank or another, at some time: an error, no hang, nothing left
 * behind, and the same model can be run again. */
Test(teams, a_call_fails)
{
    static const char *const symbols[] = {"cuMemAlloc_v2",     "cuStreamWaitEvent",
                                          "cuMemcpyPeerAsync", "cuGraphLaunch",
                                          "cuLaunchKernelEx",  "kernel",
                                          "cuEventRecord",     "cuCtxEnablePeerAccess"};
    const struct way way = {"EMU0,EMU1", 2, 99, false, false, 0};
    static float out[N_OUT * N_VOCAB];
    int failed = 0;
    cr_assert_eq(emu.configure("quiet,devices=2"), 0);
    cr_assert_eq(scenario(&way, out), 0, "%s", gr_error());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        int64_t n = emu.count(symbols[i]);
        const int64_t some[] = {n / 3, n - 1};
        for (int k = 0; k < 2; k++) {
            cr_assert_eq(emu.configure("quiet,devices=2"), 0);
            forget_devices();
            size_t held = gr_alloc_held(NULL);
            int64_t start = gr_now_ns();
            cr_assert_eq(emu.fail(symbols[i], some[k] > 0 ? some[k] : 1, CU_ILLEGAL_ADDRESS), 0);
            failed += scenario(&way, out) != 0;
            cr_expect_lt(gr_seconds_since(start), 20, "%s %lld", symbols[i], (long long)some[k]);
            cr_assert_eq(emu.fail(NULL, 0, 0), 0);
            forget_devices();
            cr_expect_eq(emu.live(NULL), 0, "%s %lld: objects are left", symbols[i],
                         (long long)some[k]);
            cr_expect_eq(gr_alloc_held(NULL), held, "%s %lld: memory is left", symbols[i],
                         (long long)some[k]);
        }
        cr_assert_eq(emu.configure("quiet,devices=2"), 0);
        cr_assert_eq(scenario(&way, out), 0, "%s", gr_error());
    }
    cr_expect_gt(failed, 8);
}

/* NCCL says in the middle of it that another rank has failed. */
Test(teams, nccl_fails)
{
    const struct way way = {"EMU0,EMU1", 2, 99, false, false, 0};
    static float out[N_OUT * N_VOCAB];
    use_nccl();
    cr_assert_eq(emu.configure("quiet,devices=2"), 0);
    cr_assert_eq(scenario(&way, out), 0, "%s", gr_error());
    cr_assert_eq(emu.configure("quiet,devices=2"), 0);
    cr_assert_eq(emu.fail("nccl-async", 400, 6), 0);
    int rc = scenario(&way, out);
    cr_expect(rc == 0 || rc == GR_E_PEER_LOST, "%d: %s", rc, gr_error());
}

/* ---- layers that are shared ---- */

/* Two and four ranks, the latter in two stages: sums go from device to device, or through the host,
 * and are the same. */
static void shared(const char *devices, int32_t n_rank, int32_t n_shard)
{
    static float by_host[N_OUT * N_VOCAB], out[N_OUT * N_VOCAB];
    const struct way way = {devices, n_rank, 99, false, false, n_shard};
    const struct gr_link_opt plain = {0}; /* links that are wrapped have no transport beside them */
    gr_team_test(&(struct gr_team_test){.wrap = &plain});
    cr_assert_eq(emu.configure("quiet,strict,devices=4"), 0);
    cr_assert_eq(scenario(&way, by_host), 0, "%s", gr_error());
    cr_expect_eq(emu.count("cuMemcpyPeerAsync"), 0);
    gr_team_test(NULL);
    for (int i = 1; i < n_orders - 1; i++) {
        char text[128];
        snprintf(text, sizeof text, "quiet,strict,devices=4,%s", orders[i]);
        cr_assert_eq(emu.configure(text), 0);
        cr_expect_eq(scenario(&way, out), 0, "%s: %s", text, gr_error());
        cr_expect_eq(memcmp(out, by_host, sizeof out), 0, "%s: other bytes", text);
        cr_expect_geq(emu.count("cuMemcpyPeerAsync"), 4 * N_MESSAGE);
        cr_expect_str_empty(emu.report());
        cr_expect_eq(emu.live(NULL), 0);
    }
    use_nccl();
    cr_assert_eq(emu.configure("quiet,strict,devices=4,order=late"), 0);
    cr_expect_eq(scenario(&way, out), 0, "%s", gr_error());
    cr_expect_eq(memcmp(out, by_host, sizeof out), 0, "other bytes by NCCL");
    cr_expect_gt(emu.count("ncclSend"), 4);
    cr_expect_str_empty(emu.report());
}

Test(teams, two_that_share_layers)
{
    shared("EMU0,EMU1", 2, 2);
}

Test(teams, stages_of_two_that_share_layers)
{
    shared("EMU0,EMU1,EMU2,EMU3", 4, 2);
}
