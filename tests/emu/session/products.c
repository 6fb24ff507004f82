/* Sessions whose products of many tokens are cuBLASLt's (`--matmul cublas`), on the emulated one:
 * what is computed, by which calls, of what memory, and what is left when calls fail. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "cuda/cublaslt.h"
#include "cuda/matmul_plain.h"
#include "cuda/runtime.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"
#include "tests/emu/session/emulator.h"

enum { N_VOCAB = 96, N_PROMPT = 40, N_RUN = 3 };

static struct {
    int (*configure)(const char *options);
    int (*fail)(const char *symbol, int64_t nth, int error);
    int64_t (*count)(const char *symbol);
    int64_t (*live)(const char *kind);
    const char *(*report)(void);
} emu;

static char path[256];

/* Two layers of weights of this type. */
static void write_model(const char *dtype)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.dtype = dtype, t.first_expert = t.n_layer;
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    gr_cuda_load_slot = 1 << 16;
}

static void setup(void)
{
#define GET(name) *(void **)(void *)&emu.name = emu_symbol("emu_driver_" #name)
    GET(configure), GET(fail), GET(count), GET(live), GET(report);
#undef GET
    write_model("f16");
}

static void teardown(void)
{
    unlink(path);
}

TestSuite(products, .init = setup, .fini = teardown);

static struct gr_session_params with(enum gr_matmul matmul)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.matmul = matmul;
    return p;
}

/* The same prompt N_RUN times, the last time by a graph; closes what it opened. */
static int play(const struct gr_session_params *p, float out[N_RUN][N_VOCAB])
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_model *m = NULL;
    struct gr_session *s = NULL;
    int32_t id[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        id[i] = (5 + 37 * i) % N_VOCAB;
    mp.device = "EMU0", mp.n_gpu_layers = 99;
    int rc = gr_model_open(&m, path, &mp);
    if (!rc)
        rc = gr_session_open(&s, m, p);
    for (int i = 0; i < N_RUN && !rc; i++) {
        rc = gr_decode(s, &(struct gr_batch){.n_tok = N_PROMPT, .token = id});
        if (!rc)
            memcpy(out[i], tiny_row(s, N_PROMPT - 1), N_VOCAB * sizeof(float));
        if (!rc && gr_kv_seq_rm(s, 0, 0, -1))
            rc = GR_E_INTERNAL;
    }
    gr_session_close(&s);
    gr_model_close(&m);
    return rc;
}

static float own[N_RUN][N_VOCAB], library[N_RUN][N_VOCAB];

static void both(void)
{
    struct gr_session_params p = with(GR_MATMUL_OWN);
    cr_assert_eq(play(&p, own), 0, "%s", gr_error());
    p = with(GR_MATMUL_CUBLAS);
    cr_assert_eq(play(&p, library), 0, "%s", gr_error());
}

/* The same results as own kernels' but for roundings, the same bits each time, whether launched or
 * replayed; algorithms are asked for once a shape. */
Test(products, of_a_session)
{
    static const char *const types[] = {"bf16", "f32", "q4_0"};
    for (size_t i = 0; i < GR_COUNT(types); i++) {
        unlink(path);
        write_model(types[i]);
        cr_assert_eq(emu.configure(NULL), 0);
        both();
        int64_t calls = emu.count("cublasLtMatmul"), replays = emu.count("cuGraphLaunch");
        int64_t asked = emu.count("cublasLtMatmulAlgoGetHeuristic");
        cr_expect(calls >= 7 * 2 && replays > 0, "%s: %lld calls, %lld replays", types[i],
                  (long long)calls, (long long)replays);
        cr_expect(asked > 0 && asked <= calls / 2, "%s: %lld calls, asked %lld times", types[i],
                  (long long)calls, (long long)asked);
        cr_expect_leq(tiny_nmse(library[0], own[0], N_VOCAB), 1e-5, "%s", types[i]);
        for (int k = 1; k < N_RUN; k++)
            cr_expect_eq(memcmp(library[k], library[0], sizeof *library), 0, "%s, run %d", types[i],
                         k);
        cr_expect_str_eq(emu.report(), "");
        cr_expect_eq(emu.live("product"), 0);
    }
}

/* Slabs of a tile of rows give what one slab of all gives. */
Test(products, in_slabs)
{
    struct gr_session_params p = with(GR_MATMUL_CUBLAS);
    cr_assert_eq(play(&p, own), 0, "%s", gr_error());
    int64_t calls = emu.count("cublasLtMatmul");
    gr_plain_slab_bytes = 1;
    cr_assert_eq(play(&p, library), 0, "%s", gr_error());
    cr_expect_gt(emu.count("cublasLtMatmul") - calls, 2 * calls);
    cr_expect_eq(memcmp(own, library, sizeof own), 0, "other bits");
    cr_expect_str_eq(emu.report(), "");
}

/* Until a shape is in the table the library is not even opened. */
Test(products, none_by_default)
{
    struct gr_session_params p = with(GR_MATMUL_AUTO);
    cr_assert_eq(play(&p, own), 0, "%s", gr_error());
    cr_expect_eq(emu.count("cublasLtCreate"), 0);
    cr_expect_eq(emu.count("cublasLtMatmul"), 0);
}

/* A product that the library has no algorithm for is computed by an own kernel. */
Test(products, without_an_algorithm)
{
    struct gr_session_params p = with(GR_MATMUL_OWN);
    cr_assert_eq(play(&p, own), 0, "%s", gr_error());
    for (int64_t i = 1; i <= 8; i++)
        cr_assert_eq(emu.fail("cublasLtMatmulAlgoGetHeuristic", i, CUBLASLT_NOT_SUPPORTED), 0);
    p = with(GR_MATMUL_CUBLAS);
    cr_assert_eq(play(&p, library), 0, "%s", gr_error());
    cr_expect_eq(emu.count("cublasLtMatmul"), 0);
    cr_expect_eq(memcmp(own, library, sizeof own), 0, "other bits");
}

/* Asked for and not to be had, it is an error that says what to do; otherwise nobody misses it. */
Test(products, too_old)
{
    cr_assert_eq(emu.configure("cublaslt=11.9.2"), 0);
    struct gr_session_params p = with(GR_MATMUL_CUBLAS);
    cr_expect_eq(play(&p, library), GR_E_UNSUPPORTED);
    for (const char *const *said = (const char *const[]){"EMU0", "--matmul cublas", "11.9.2",
                                                         "12.0.0", "--matmul own", NULL};
         *said; said++)
        cr_expect(strstr(gr_error(), *said), "%s: %s", *said, gr_error());
    p = with(GR_MATMUL_AUTO);
    cr_expect_eq(play(&p, own), 0, "%s", gr_error());
}

Test(products, not_there)
{
    struct gr_cublaslt lt;
    int version = 1;
    cr_expect_eq(gr_cublaslt_load(&lt, "libnone.so.13 libnone.so.12", &version), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), "no cuBLASLt (libnone.so.13") && !strchr(gr_error(), '\n'), "%s",
              gr_error());
    cr_expect_eq(version, 0);
    cr_expect_eq(gr_cublaslt_load(&lt, "libm.so.6", &version), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), "no whole cuBLASLt"), "%s", gr_error());
}

/* ---- failures ---- */

static const char *const symbols[] = {
#define FN(type, name, symbol, params) #symbol,
#include "cuda/cublaslt.def"
#undef FN
};

/* One call fails: the session says so, or goes on where nothing was lost, and nothing is left. */
static bool fails(const char *symbol, int64_t nth, int error)
{
    struct gr_session_params p = with(GR_MATMUL_CUBLAS);
    size_t held = gr_alloc_held(NULL);
    cr_assert_eq(emu.configure("quiet"), 0);
    cr_assert_eq(emu.fail(symbol, nth, error), 0);
    (void)gr_fail(GR_E_INTERNAL, "nothing was said");
    int rc = play(&p, library);
    int want = error == CUBLASLT_ALLOC_FAILED ? GR_E_NOMEM_HOST : GR_E_DEVICE;
    cr_expect(rc == 0 || rc == want, "%s %lld with %d: %d, %s", symbol, (long long)nth, error, rc,
              gr_error());
    cr_expect(rc == 0 || strstr(gr_error(), symbol), "%s: %s", symbol, gr_error());
    cr_assert_eq(emu.fail(NULL, 0, 0), 0);
    cr_expect_eq(emu.live("product"), 0, "%s %lld: objects are left", symbol, (long long)nth);
    cr_expect_eq(gr_alloc_held(NULL), held, "%s %lld: memory is left", symbol, (long long)nth);
    return rc != 0;
}

Test(products, any_call_fails, .timeout = 120)
{
    struct gr_session_params p = with(GR_MATMUL_CUBLAS);
    cr_assert_eq(play(&p, own), 0, "%s", gr_error());
    cr_assert_eq(emu.configure(NULL), 0);
    cr_assert_eq(play(&p, own), 0, "%s", gr_error());
    int64_t n[GR_COUNT(symbols)];
    for (size_t i = 0; i < GR_COUNT(symbols); i++)
        n[i] = emu.count(symbols[i]);
    int failed = 0;
    for (size_t i = 0; i < GR_COUNT(symbols); i++)
        if (n[i] && strcmp(symbols[i], "cublasLtGetVersion") != 0 &&
            strcmp(symbols[i], "cublasLtGetStatusString") != 0)
            failed += fails(symbols[i], 1, CUBLASLT_EXECUTION_FAILED) +
                      fails(symbols[i], n[i], CUBLASLT_ALLOC_FAILED);
    cr_expect_geq(failed, 14);
    cr_expect_eq(play(&p, library), 0, "%s", gr_error());
    cr_expect_eq(memcmp(own, library, sizeof own), 0, "other bits");
}
