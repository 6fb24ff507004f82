/* Whole sessions on the emulated device: what is left when any call of the driver fails, and that
 * no order of the device's work changes a bit. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "cuda/runtime.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"
#include "tests/emu/libcuda.h"
#include "tests/emu/session/emulator.h"

#define N_VOCAB 96
#define N_OUT 8

static struct {
    int (*configure)(const char *options);
    int (*fail)(const char *symbol, int64_t nth, int error);
    int64_t (*count)(const char *symbol);
    int64_t (*live)(const char *kind);
    const char *(*report)(void);
} emu;

static char path[256];

static void setup(void)
{
#define GET(name) *(void **)(void *)&emu.name = emu_symbol("emu_driver_" #name)
    GET(configure), GET(fail), GET(count), GET(live), GET(report);
#undef GET
    emu_llama(path);
}

static void teardown(void)
{
    unlink(path);
}

TestSuite(session, .init = setup, .fini = teardown);

/* n tokens of sequence 0 from pos on; the last one's logits. */
static int decode(struct gr_session *s, int32_t pos, int n, float *out)
{
    int32_t id[16], at[16];
    int8_t last[16] = {0};
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (pos + i)) % N_VOCAB, at[i] = pos + i;
    last[n - 1] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = at, .logits = last};
    int rc = gr_decode(s, &b);
    if (!rc)
        memcpy(out, tiny_row(s, n - 1), N_VOCAB * sizeof(float));
    return rc;
}

/* A prompt, single tokens, a shift of positions, as far as it goes; closes what it opened. */
static int scenario_with(const char *device, int32_t n_gpu, const struct gr_session_params *with,
                         float out[N_OUT * N_VOCAB])
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = *with;
    struct gr_model *m = NULL;
    struct gr_session *s = NULL;
    mp.device = device, mp.n_gpu_layers = n_gpu;
    sp.n_ctx = 64, sp.n_threads = 1, sp.n_ubatch = 8;
    int rc = gr_model_open(&m, path, &mp);
    if (!rc)
        rc = gr_session_open(&s, m, &sp);
    if (!rc)
        rc = decode(s, 0, 11, out);
    for (int i = 1; i < 4 && !rc; i++)
        rc = decode(s, 10 + i, 1, out + i * N_VOCAB);
    if (!rc)
        rc = gr_kv_seq_rm(s, 0, 2, 6) || gr_kv_seq_add(s, 0, 6, -1, -4) ? GR_E_INTERNAL : 0;
    for (int i = 4; i < N_OUT && !rc; i++)
        rc = decode(s, 6 + i, 1, out + i * N_VOCAB);
    gr_session_close(&s);
    gr_model_close(&m);
    return rc;
}

static int scenario(const char *device, int32_t n_gpu, float out[N_OUT * N_VOCAB])
{
    const struct gr_session_params usual = gr_session_params_default();
    return scenario_with(device, n_gpu, &usual, out);
}

/* The output layer is on the device, and computes prompts through the CPU's layers too. */
static int scenario_offload(float out[N_OUT * N_VOCAB])
{
    struct gr_session_params p = gr_session_params_default();
    p.offload_from = 3;
    return scenario_with("EMU0", 1, &p, out);
}

static const char *const symbols[] = {
#define FN(name, symbol, params) #symbol,
#include "cuda/driver.def"
#undef FN
};

/* The device can be used again; what is kept of it from the last look goes. */
static void open_again(void)
{
    struct gr_backend *b;
    cr_assert_eq(gr_cuda_devices.open(&b, 0, &(struct gr_device_opt){0}), 0, "%s", gr_error());
    b->api->close(&b);
}

/* One call fails. The status says that of it, the message more, and nothing is left anywhere. */
static int with_failure(int (*play)(float *out), const char *symbol, int64_t nth, int error)
{
    static float out[N_OUT * N_VOCAB];
    size_t held = gr_alloc_held(NULL);
    cr_assert_eq(emu.configure("quiet,strict"), 0);
    cr_assert_eq(emu.fail(symbol, nth, error), 0);
    (void)gr_fail(GR_E_INTERNAL, "nothing was said");
    int rc = play(out);
    bool memory = rc == GR_E_NOMEM_DEV || rc == GR_E_NOMEM_HOST;
    cr_expect(rc == 0 || rc == GR_E_DEVICE || (memory && error == CU_OUT_OF_MEMORY),
              "%s %lld with %d: %d, %s", symbol, (long long)nth, error, rc, gr_error());
    cr_expect(rc == 0 || strcmp(gr_error(), "nothing was said") != 0, "%s %lld", symbol,
              (long long)nth);
    cr_assert_eq(emu.fail(NULL, 0, 0), 0);
    (void)gr_cuda_state()->cu.context_set(NULL); /* where changing it back has failed */
    open_again();
    cr_expect_eq(emu.live(NULL), 0, "%s %lld: objects are left", symbol, (long long)nth);
    cr_expect_eq(gr_alloc_held(NULL), held, "%s %lld: memory is left", symbol, (long long)nth);
    return rc;
}

/* A profiler that does not start is an error of that call; the session goes on. */
Test(session, profiler)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    float out[N_VOCAB];
    mp.n_gpu_layers = 99, sp.n_ctx = 64, sp.n_threads = 1;
    cr_assert_eq(emu.configure("fail=cuProfilerStart:1:5,fail=cuProfilerStop:2:5"), 0);
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    cr_assert_eq(gr_session_open(&s, m, &sp), 0, "%s", gr_error());
    for (int i = 0; i < 4; i++) {
        int want = i % 3 ? 0 : GR_E_DEVICE; /* the first start, the second stop */
        cr_expect_eq(gr_session_profile(s, i % 2 == 0), want, "%d: %s", i, gr_error());
        cr_expect(!want || strstr(gr_error(), "EMU0: cuProfilerSt"), "%s", gr_error());
        cr_expect_eq(decode(s, i, 1, out), 0, "%s", gr_error());
    }
    gr_session_close(&s);
    gr_model_close(&m);
}

static int scenario_whole(float out[N_OUT * N_VOCAB])
{
    return scenario("EMU0", 99, out);
}

Test(session, any_call_fails)
{
    static float out[N_OUT * N_VOCAB];
    int runs = 0, failed = 0;
    cr_assert_eq(scenario("EMU0", 99, out), 0, "%s", gr_error()); /* objects made once exist now */
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        cr_assert_eq(emu.configure("quiet,strict"), 0);
        cr_assert_eq(scenario("EMU0", 99, out), 0, "%s", gr_error());
        int64_t n = emu.count(symbols[i]);
        const int64_t some[] = {1, 2, n / 2, n - 1, n};
        for (int k = 0; k < 5; k++)
            if (some[k] > 0 && some[k] <= n && (k == 0 || some[k] > some[k - 1])) {
                failed += with_failure(scenario_whole, symbols[i], some[k], CU_UNKNOWN) != 0;
                failed += with_failure(scenario_whole, symbols[i], some[k], CU_OUT_OF_MEMORY) != 0;
                runs += 2;
            }
    }
    cr_expect_gt(runs, 120);
    cr_expect_gt(failed, runs / 2);
}

/* Calls that offloading makes, the first of each, one under way and the last. Without memory for it
 * the CPU does what it did before. */
Test(session, any_call_fails_as_weights_come)
{
    static float want[N_OUT * N_VOCAB], out[N_OUT * N_VOCAB];
    static const char *const of[] = {
        "cuMemcpyHtoDAsync_v2", "cuEventRecord",  "cuStreamWaitEvent",   "cuEventSynchronize",
        "cuLaunchKernelEx",     "cuStreamCreate", "cuStreamSynchronize", "cuMemHostAlloc",
        "cuMemAlloc_v2",        "cuEventCreate",  "cuStreamDestroy_v2"};
    int failed = 0;
    cr_assert_eq(scenario_offload(want), 0, "%s", gr_error());
    for (size_t i = 0; i < GR_COUNT(of); i++) {
        cr_assert_eq(emu.configure("quiet,strict"), 0);
        cr_assert_eq(scenario_offload(out), 0, "%s", gr_error());
        cr_expect_eq(memcmp(out, want, sizeof out), 0);
        int64_t n = emu.count(of[i]);
        cr_assert_gt(n, 1, "%s: %lld calls", of[i], (long long)n);
        failed += with_failure(scenario_offload, of[i], 1, CU_UNKNOWN) != 0;
        failed += with_failure(scenario_offload, of[i], n / 2 + 1, CU_UNKNOWN) != 0;
        failed += with_failure(scenario_offload, of[i], n, CU_OUT_OF_MEMORY) != 0;
    }
    cr_expect_gt(failed, 2 * (int)GR_COUNT(of));
}

/* The same kernels in another order of work: a prompt through layers whose weights come gives the
 * bits of one whose weights are there, keys and values with the CPU in both. */
Test(session, weights_come_in_any_order)
{
    static float want[N_OUT * N_VOCAB], out[N_OUT * N_VOCAB];
    static const char *const options[] = {"order=eager", "order=late", "seed=2", "seed=3"};
    struct gr_session_params p = gr_session_params_default();
    p.no_kv_offload = true;
    cr_assert_eq(emu.configure("quiet,strict"), 0);
    cr_assert_eq(scenario_with("EMU0", 99, &p, want), 0, "%s", gr_error());
    for (size_t i = 0; i < GR_COUNT(options); i++) {
        char text[64];
        snprintf(text, sizeof text, "quiet,strict,%s", options[i]);
        cr_assert_eq(emu.configure(text), 0);
        cr_assert_eq(scenario_offload(out), 0, "%s: %s", text, gr_error());
        cr_expect_eq(memcmp(out, want, N_VOCAB * sizeof *out), 0, "%s", text);
        cr_expect_str_empty(emu.report(), "%s", emu.report());
        cr_expect_eq(emu.live(NULL), 0);
    }
}

/* Kernels that fault, each of the first and some later ones: found out at some later call. */
Test(session, any_kernel_faults)
{
    static float out[N_OUT * N_VOCAB];
    cr_assert_eq(scenario("EMU0", 99, out), 0, "%s", gr_error());
    cr_assert_eq(emu.configure("quiet"), 0);
    cr_assert_eq(scenario("EMU0", 99, out), 0);
    int64_t n = emu.count("kernel");
    cr_assert_gt(n, 100);
    for (int64_t nth = 1; nth <= n; nth += nth < 10 ? 1 : n / 10)
        cr_expect_eq(with_failure(scenario_whole, "kernel", nth, CU_ILLEGAL_ADDRESS), GR_E_DEVICE);
}

/* Any order of work, one device or two, all layers or some: the same bits, and nothing misused. */
Test(session, any_order)
{
    static float first[N_OUT * N_VOCAB], out[N_OUT * N_VOCAB];
    static const char *const options[] = {"order=eager", "order=late", "seed=2",
                                          "seed=3",      "seed=4",     "cc=80"};
    cr_assert_eq(emu.configure("quiet,strict,devices=2"), 0);
    cr_assert_eq(scenario("EMU0", 99, first), 0, "%s", gr_error());
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (int two = 0; two < 2; two++) {
            char text[128];
            snprintf(text, sizeof text, "quiet,strict,devices=2,%s", options[i]);
            cr_assert_eq(emu.configure(text), 0);
            cr_assert_eq(scenario(two ? "EMU0,EMU1" : "EMU1", 99, out), 0, "%s: %s", text,
                         gr_error());
            cr_expect_eq(memcmp(out, first, sizeof out), 0, "%s, %d devices", text, two + 1);
            cr_expect_str_empty(emu.report());
            cr_expect_eq(emu.live(NULL), 0);
        }
}
