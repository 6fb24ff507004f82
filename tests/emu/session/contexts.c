/* A program with a CUDA context of its own: whatever it calls here, its thread's current context is
 * afterwards what it was before. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "cuda/runtime.h"
#include "engine/session.h"
#include "support/tiny.h"
#include "tests/emu/libcuda.h"
#include "tests/emu/session/emulator.h"

#define N_VOCAB 96

static struct {
    int (*configure)(const char *options);
    int64_t (*count)(const char *symbol);
    int64_t (*live)(const char *kind);
    const char *(*report)(void);
} emu;

/* The driver as that program has it. */
static struct {
    int (*cuInit)(unsigned flags);
    int (*cuDevicePrimaryCtxRetain)(cu_context *context, cu_device device);
    int (*cuDevicePrimaryCtxRelease_v2)(cu_device device);
    int (*cuCtxSetCurrent)(cu_context context);
    int (*cuCtxGetCurrent)(cu_context *context);
} cu;

static char path[256];

static void setup(void)
{
#define GET(name) *(void **)(void *)&emu.name = emu_symbol("emu_driver_" #name)
    GET(configure), GET(count), GET(live), GET(report);
#undef GET
#define GET(name) *(void **)(void *)&cu.name = emu_symbol(#name)
    GET(cuInit), GET(cuDevicePrimaryCtxRetain), GET(cuDevicePrimaryCtxRelease_v2);
    GET(cuCtxSetCurrent), GET(cuCtxGetCurrent);
#undef GET
    emu_llama(path);
}

static void teardown(void)
{
    unlink(path);
}

TestSuite(contexts, .init = setup, .fini = teardown);

static cu_context own; /* of the program, NULL: none */

static void still(const char *call)
{
    cu_context now;
    cr_assert_eq(cu.cuCtxGetCurrent(&now), 0);
    cr_expect_eq(now, own, "%s leaves another context", call);
    (void)cu.cuCtxSetCurrent(own); /* each call is judged by itself */
}

#define CALLS(call)                                                                                \
    do {                                                                                           \
        cr_assert_eq(call, 0, #call ": %s", gr_error());                                           \
        still(#call);                                                                              \
    } while (0)
#define DOES(call)                                                                                 \
    do {                                                                                           \
        call;                                                                                      \
        still(#call);                                                                              \
    } while (0)

static int decode(struct gr_session *s, int32_t pos, int n)
{
    int32_t id[16], at[16];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (pos + i)) % N_VOCAB, at[i] = pos + i;
    return gr_decode(s, &(struct gr_batch){.n_tok = n, .token = id, .pos = at});
}

static void tapped(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                   void *user)
{
    (void)name, (void)layer, (void)data, (void)rows, (void)cols;
    ++*(int *)user;
}

static void timed(const struct gr_op_sample *sample, void *user)
{
    (void)sample;
    ++*(int *)user;
}

static void decodes(struct gr_session *s, bool several)
{
    int n = 0;
    CALLS(decode(s, 0, 11));
    for (int i = 11; i < 14; i++) /* by launches, as a graph is made, by it */
        CALLS(decode(s, i, 1));
    cr_expect_not_null(gr_logits(s, 0));
    still("gr_logits");
    if (several) /* ranks have no taps */
        return;
    CALLS(gr_session_tap(s, "", tapped, &n));
    CALLS(decode(s, 14, 1));
    CALLS(gr_session_tap(s, NULL, NULL, NULL));
    CALLS(gr_session_time(s, timed, &n));
    CALLS(decode(s, 15, 1));
    CALLS(gr_session_time(s, NULL, NULL));
    cr_expect_gt(n, 2);
}

static void sequences(struct gr_session *s)
{
    void *state;
    size_t n;
    int32_t end = gr_kv_seq_pos_max(s, 0) - 3; /* once four positions are gone */
    CALLS(gr_kv_seq_rm(s, 0, 2, 6));
    CALLS(gr_kv_seq_add(s, 0, 6, -1, -4));
    CALLS(decode(s, end, 1));
    CALLS(gr_kv_seq_cp(s, 0, 1, 0, -1));
    CALLS(gr_kv_seq_dup(s, 0, 2, 0, -1));
    CALLS(gr_kv_seq_div(s, 2, 4, 8, 2));
    CALLS(gr_kv_defrag(s));
    CALLS(decode(s, end + 1, 1));
    CALLS(gr_state_save(s, -1, NULL, 0, &state, &n));
    CALLS(gr_kv_seq_keep(s, 1));
    DOES(gr_kv_clear(s));
    CALLS(gr_state_load(s, -1, state, n, NULL, NULL));
    gr_state_free(state);
    CALLS(decode(s, end + 2, 2));
}

static void devices(void)
{
    const char *text;
    struct gr_device d;
    struct gr_device_versions v;
    DOES(cr_expect_eq(gr_device_count(NULL), 2));
    CALLS(gr_device_get(0, &d));
    CALLS(gr_device_get(1, &d));
    CALLS(gr_device_get(0, &d));
    DOES(gr_device_versions(&v));
    DOES((void)gr_device_transport(&text));
}

/* A model and a session, and everything that is done with them. */
static void session(const char *device, int32_t n_gpu, int32_t offload_from)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    struct gr_fit fit;
    mp.device = device, mp.n_gpu_layers = n_gpu;
    sp.n_ctx = 64, sp.n_threads = 1, sp.n_ubatch = 8, sp.n_seq_max = 4;
    sp.offload_from = offload_from;
    CALLS(gr_model_open(&m, path, &mp));
    CALLS(gr_model_fit(m, &sp, &fit));
    CALLS(gr_model_load(m, &sp));
    CALLS(gr_session_open(&s, m, &sp));
    CALLS(gr_session_fit(s, &fit));
    decodes(s, strchr(device, ',') != NULL);
    sequences(s);
    CALLS(gr_session_resize(s, 512));
    CALLS(decode(s, gr_kv_seq_pos_max(s, 0) + 1, 1));
    CALLS(gr_session_profile(s, true));
    CALLS(gr_session_profile(s, false));
    DOES(gr_session_close(&s));
    DOES(gr_model_close(&m));
}

/* Every kind of call, by a program whose own context is that of a device, or none (-1). */
static void of_a_program_with(cu_device device)
{
    const int64_t kept = device < 0 ? 0 : 1;
    cr_assert_eq(emu.configure("devices=2,strict"), 0);
    cr_assert_eq(cu.cuInit(0), 0);
    own = NULL;
    if (device >= 0)
        cr_assert_eq(cu.cuDevicePrimaryCtxRetain(&own, device), 0);
    cr_assert_eq(cu.cuCtxSetCurrent(own), 0);
    devices();
    session("EMU0", 99, -1);
    session("EMU0", 1, 3);
    session("EMU0,EMU1", 99, -1);
    struct gr_backend *b; /* takes over what is kept of the last look at a device */
    for (int i = 0; i < 2; i++) {
        CALLS(gr_cuda_devices.open(&b, i, &(struct gr_device_opt){0}));
        DOES(b->api->close(&b));
    }
    cr_expect_eq(emu.live("context"), kept);
    cr_expect_str_empty(emu.report());
    cr_assert_eq(cu.cuCtxSetCurrent(NULL), 0);
    if (own)
        cr_assert_eq(cu.cuDevicePrimaryCtxRelease_v2(device), 0);
    cr_expect_eq(emu.live(NULL), 0);
}

Test(contexts, none)
{
    of_a_program_with(-1);
}

Test(contexts, of_the_same_device)
{
    of_a_program_with(0);
}

Test(contexts, of_another_device)
{
    of_a_program_with(1);
}

/* Driver calls that contexts cost a token: one for each call of the backend, and two more where the
 * thread has another context. */
static void calls_of_a_token(const char *whose, int64_t get, int64_t set)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    mp.device = "EMU0", mp.n_gpu_layers = 99;
    sp.n_ctx = 64, sp.n_threads = 1;
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    cr_assert_eq(gr_session_open(&s, m, &sp), 0, "%s", gr_error());
    for (int i = 0; i < 4; i++)
        cr_assert_eq(decode(s, i, 1), 0, "%s", gr_error());
    int64_t all = emu.count(NULL), n_set = emu.count("cuCtxSetCurrent"),
            n_get = emu.count("cuCtxGetCurrent");
    cr_assert_eq(decode(s, 4, 1), 0, "%s", gr_error());
    all = emu.count(NULL) - all, n_set = emu.count("cuCtxSetCurrent") - n_set;
    n_get = emu.count("cuCtxGetCurrent") - n_get;
    cr_expect(n_get <= get && n_set <= set, "%s: %lld and %lld of %lld calls", whose,
              (long long)n_get, (long long)n_set, (long long)all);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(contexts, calls_of_a_token)
{
    cr_assert_eq(emu.configure("quiet"), 0);
    cr_assert_eq(cu.cuInit(0), 0);
    calls_of_a_token("none", 4, 8);
    cr_assert_eq(cu.cuDevicePrimaryCtxRetain(&own, 0), 0);
    cr_assert_eq(cu.cuCtxSetCurrent(own), 0);
    calls_of_a_token("of the same device", 4, 0);
    cr_assert_eq(cu.cuCtxSetCurrent(NULL), 0);
    cr_assert_eq(cu.cuDevicePrimaryCtxRelease_v2(0), 0);
}
