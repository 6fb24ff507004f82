/* Switches that leave out parts of a session or check it to find a fault: each does what it says
 * and changes nothing else, also beside a session of the same model without it. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "cuda/runtime.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/cuda_words.h"
#include "support/tiny.h"
#include "tests/emu/session/emulator.h"

enum { N_VOCAB = 96, N_PROMPT = 70, N_STEP = 3 };

static int64_t (*count)(const char *symbol);
static struct gr_model *model;

/* A dense model whose prompts go to wgmma and whose attention does, where that is there. */
static void open_on(const char *devices)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_model_params mp = gr_model_params_default();
    t.dtype = "f16", t.d_head = 64, t.first_expert = t.n_layer;
    const char *path = tiny_write(&t, NULL);
    mp.n_gpu_layers = 99, mp.device = devices;
    cr_assert_eq(gr_model_open(&model, path, &mp), 0, "%s", gr_error());
    unlink(path);
}

static void setup(void)
{
    *(void **)(void *)&count = emu_symbol("emu_driver_count");
    open_on(NULL);
}

static void setup_two(void)
{
    int (*configure)(const char *options);
    *(void **)(void *)&count = emu_symbol("emu_driver_count");
    *(void **)(void *)&configure = emu_symbol("emu_driver_configure");
    cr_assert_eq(configure("devices=2"), 0);
    open_on("EMU0,EMU1");
}

static void teardown(void)
{
    gr_model_close(&model);
}

TestSuite(switches, .init = setup, .fini = teardown);

static struct gr_session_params usual(void)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1;
    return p;
}

static struct gr_session *begin(const struct gr_session_params *p)
{
    struct gr_session *s;
    cr_assert_eq(gr_session_open(&s, model, p), 0, "%s", gr_error());
    return s;
}

/* n tokens from pos on, with the last one's logits. */
static int decode(struct gr_session *s, int32_t pos, int n, float *out)
{
    int32_t id[N_PROMPT];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (pos + i)) % N_VOCAB;
    int rc = gr_decode(s, &(struct gr_batch){.n_tok = n, .token = id});
    if (!rc)
        memcpy(out, tiny_row(s, n - 1), N_VOCAB * sizeof *out);
    return rc;
}

/* A prompt and tokens behind it, the last by a graph where there are any: logits, and launches. */
struct took {
    float row[1 + N_STEP][N_VOCAB];
    int64_t prompt, step, early, graphs; /* early: of all launches */
};

static void take(struct gr_session *s, struct took *t)
{
    int64_t early = count("early"), graphs = count("cuGraphLaunch"), n = count("kernel");
    cr_assert_eq(decode(s, 0, N_PROMPT, t->row[0]), 0, "%s", gr_error());
    t->prompt = count("kernel") - n;
    for (int i = 0; i < N_STEP; i++) {
        n = count("kernel");
        cr_assert_eq(decode(s, N_PROMPT + i, 1, t->row[1 + i]), 0, "%s", gr_error());
        t->step = count("kernel") - n;
    }
    t->early = count("early") - early, t->graphs = count("cuGraphLaunch") - graphs;
}

static void one(const struct gr_session_params *p, struct took *t)
{
    struct gr_session *s = begin(p);
    take(s, t);
    gr_session_close(&s);
}

static void expect_same(const struct took *a, const struct took *b, double most)
{
    for (int i = 0; i <= N_STEP; i++)
        cr_expect_leq(tiny_nmse(a->row[i], b->row[i], N_VOCAB), most, "row %d", i);
}

static struct took with, without;

Test(switches, early)
{
    struct gr_session_params p = usual();
    one(&p, &with);
    p.no_pdl = true;
    one(&p, &without);
    cr_expect_gt(with.early, 0);
    cr_expect_eq(without.early, 0);
    cr_expect_eq(without.prompt, with.prompt);
    cr_expect_eq(without.step, with.step);
    cr_expect_eq(without.graphs, with.graphs);
    cr_expect_eq(memcmp(with.row, without.row, sizeof with.row), 0, "other bits");
}

Test(switches, fusions)
{
    struct gr_session_params p = usual();
    one(&p, &with);
    p.no_fuse = true;
    one(&p, &without);
    cr_expect_geq(without.step, 2 * with.step, "%lld, %lld", (long long)without.step,
                  (long long)with.step);
    cr_expect_gt(without.prompt, with.prompt);
    cr_expect_eq(without.graphs, with.graphs);
    expect_same(&with, &without, 1e-6); /* an x may be rounded to f16 the other way */
}

struct kernels {
    int n_sm90, n_attn, n_matmul; /* of prompts: on wgmma; attention and products elsewhere */
};

static void see(const struct gr_op_sample *sample, void *user)
{
    struct kernels *k = user;
    if (!sample->kernel)
        return;
    k->n_sm90 += strstr(sample->kernel, "_sm90") != NULL;
    k->n_attn += strcmp(sample->kernel, "gr_attn_prefill_64") == 0;
    k->n_matmul += strcmp(sample->kernel, "gr_matmul_tile_f16") == 0;
}

static struct kernels kernels_of(const struct gr_session_params *p)
{
    struct kernels k = {0};
    float row[N_VOCAB];
    struct gr_session *s = begin(p);
    cr_assert_eq(gr_session_time(s, see, &k), 0, "%s", gr_error());
    cr_assert_eq(decode(s, 0, N_PROMPT, row), 0, "%s", gr_error());
    gr_session_close(&s);
    return k;
}

Test(switches, sm90)
{
    struct gr_session_params p = usual();
    struct kernels k = kernels_of(&p);
    cr_expect_gt(k.n_sm90, 0);
    one(&p, &with);
    p.no_sm90 = true;
    k = kernels_of(&p);
    cr_expect_eq(k.n_sm90, 0);
    cr_expect_gt(k.n_matmul, 0);
    one(&p, &without);
    expect_same(&with, &without, 1e-6);
}

/* One session's switches are not another's, whichever runs first. */
Test(switches, of_a_session)
{
    struct gr_session_params plain = usual(), p = usual();
    p.no_pdl = p.no_sm90 = p.no_fuse = p.no_graphs = true;
    struct took alone;
    one(&plain, &alone);
    struct gr_session *a = begin(&p), *b = begin(&plain);
    take(a, &without);
    take(b, &with);
    cr_expect_eq(without.early, 0);
    cr_expect_eq(without.graphs, 0);
    cr_expect_eq(with.early, alone.early);
    cr_expect_eq(with.graphs, alone.graphs);
    cr_expect_eq(with.step, alone.step);
    cr_expect_eq(memcmp(with.row, alone.row, sizeof with.row), 0, "other bits");
    gr_session_close(&a);
    gr_session_close(&b);
}

/* Every rank has them: the same launches as without, none of them early. */
Test(switches_of_ranks, early_and_fusions, .init = setup_two, .fini = teardown)
{
    struct gr_session_params p = usual();
    one(&p, &with);
    p.no_pdl = p.no_fuse = true;
    one(&p, &without);
    cr_expect_gt(with.early, 0);
    cr_expect_eq(without.early, 0);
    cr_expect_geq(without.step, 2 * with.step, "%lld, %lld", (long long)without.step,
                  (long long)with.step);
    expect_same(&with, &without, 1e-6);
}

/* A counter that is not zero behind a segment is named, with the segment; without the switch nobody
 * looks. */
static void check(bool wanted)
{
    const uint32_t three = 3;
    struct gr_session_params p = usual();
    float row[N_VOCAB];
    p.check_counters = wanted;
    struct gr_session *s = begin(&p);
    struct gr_backend *b = s->device[1].backend;
    void *at = (uint32_t *)(uintptr_t)gr_cuda_of(b)->counters + GR_LAUNCH_COUNTERS - 1;
    for (int i = 0; i < 3; i++)
        cr_assert_eq(decode(s, i, 1, row), 0, "%s", gr_error());
    cr_assert_eq(b->api->upload(b, at, &three, sizeof three), 0, "%s", gr_error());
    int rc = decode(s, 3, 1, row);
    cr_expect_eq(rc, wanted ? GR_E_INTERNAL : 0, "%s", gr_error());
    const char *const said[] = {"EMU0", "found 3 in number 1023", "embed (layer -1)", "layer"};
    for (size_t i = 0; i < GR_COUNT(said) && wanted; i++)
        cr_expect(strstr(gr_error(), said[i]), "%s: %s", said[i], gr_error());
    gr_session_close(&s);
}

Test(switches, counters)
{
    check(true);
    check(false);
}

/* ---- the same for test programs ---- */

Test(cuda_switch_values, say_which)
{
    struct gr_session_params p = {.no_graphs = true};
    unsetenv("GR_TEST_CUDA");
    struct gr_device_opt o = cuda_words((struct gr_device_opt){.no_sm90 = true});
    cr_expect(o.no_sm90 && !o.no_graphs && !o.no_pdl && !o.no_fuse && !o.check_counters);
    setenv("GR_TEST_CUDA", "no-pdl,no-fuse", 1);
    o = cuda_words((struct gr_device_opt){0});
    cr_expect(o.no_pdl && o.no_fuse && !o.no_graphs && !o.no_sm90 && !o.check_counters);
    setenv("GR_TEST_CUDA", "check,no-sm90,", 1);
    cuda_words_session(&p);
    cr_expect(p.check_counters && p.no_sm90 && p.no_graphs && !p.no_pdl && !p.no_fuse);
    setenv("GR_TEST_CUDA", "no-graphs", 1);
    cr_expect(cuda_words((struct gr_device_opt){0}).no_graphs);
    cr_expect_eq(p.matmul, GR_MATMUL_AUTO);
    setenv("GR_TEST_CUDA", "cublas", 1);
    cuda_words_session(&p);
    cr_expect_eq(p.matmul, GR_MATMUL_CUBLAS);
    cr_expect_eq(cuda_words((struct gr_device_opt){0}).matmul, GR_DEVICE_MATMUL_LIBRARY);
}

Test(cuda_switch_values, no_other, .exit_code = 2)
{
    setenv("GR_TEST_CUDA", "no-pdl,no-graph", 1);
    (void)cuda_words((struct gr_device_opt){0});
}
