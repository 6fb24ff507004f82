/* Drafts on the emulated device: verified in one step by its kernels for few tokens, and what is
 * rejected taken back there, cells and recurrent states. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/rng.h"
#include "engine/session.h"
#include "support/tiny.h"

#define N_VOCAB 96
#define N_TEXT 30
#define MOST 7 /* tokens of a step */

/* As many tokens beside each other round some x to f16 the other way. */
#define SAME 1e-6

static const char *const archs[] = {"llama",     "gemma3", "qwen3moe", "deepseek2",
                                    "gpt-oss",   "jamba",  "mamba",    "rwkv6",
                                    "qwen3next", "lfm2",   "falcon-h1"};

static struct gr_model *model_of(const char *arch)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_model *m;
    t.n_swa = 6, mp.device = "EMU0", mp.n_gpu_layers = 99;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    unlink(path);
    return m;
}

static struct gr_session *open_session(struct gr_model *m, bool deterministic)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_rollback = MOST, p.swa_full = true;
    p.n_threads = p.n_threads_batch = 1, p.deterministic = deterministic;
    return tiny_session(m, &p);
}

static void decode(struct gr_session *s, const int32_t *ids, int32_t n, float (*row)[N_VOCAB])
{
    int8_t all[MOST];
    memset(all, 1, sizeof all);
    struct gr_batch b = {.n_tok = n, .token = ids, .logits = all};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    for (int32_t i = 0; i < n; i++)
        memcpy(row[i], tiny_row(s, i), sizeof *row);
}

/* Drafts that are drawn, some of whose last tokens are wrong and taken back: each token has the
 * logits of a text that was written token by token. */
Test(drafts, wrong_tokens_leave_no_trace, .timeout = 600)
{
    static float want[N_TEXT][N_VOCAB], got[N_TEXT + MOST][N_VOCAB];
    int32_t text[N_TEXT], step[MOST];
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        struct gr_rng r = gr_rng_new(a + 1);
        struct gr_model *m = model_of(archs[a]);
        struct gr_session *s = open_session(m, false);
        for (int32_t i = 0; i < N_TEXT; i++)
            text[i] = (int32_t)gr_rng_below(&r, N_VOCAB);
        for (int32_t i = 0; i < N_TEXT; i++)
            decode(s, text + i, 1, want + i);
        gr_kv_clear(s);
        for (int32_t i = 0, right; i < N_TEXT; i += right) {
            int32_t n = 1 + (int32_t)gr_rng_below(&r, MOST);
            right = GR_MIN(1 + (int32_t)gr_rng_below(&r, (uint32_t)n), N_TEXT - i);
            for (int32_t k = 0; k < n; k++)
                step[k] = k < right ? text[i + k] : (text[GR_MIN(i + k, N_TEXT - 1)] + 1) % N_VOCAB;
            decode(s, step, n, got + i);
            cr_assert_eq(gr_kv_seq_rm(s, 0, i + right, -1), 0, "%s: %s", archs[a], gr_error());
        }
        double e = tiny_nmse(want[0], got[0], N_TEXT * N_VOCAB);
        cr_expect_leq(e, SAME, "%s: %g", archs[a], e);
        gr_session_close(&s);
        gr_model_close(&m);
    }
}

/* Writes a text behind a prompt that repeats itself, by a draft unless it is NULL. */
static void write_text(struct gr_session *s, struct gr_draft *d, int32_t *text)
{
    const int32_t prompt[] = {5, 6, 7, 8, 5, 6, 7, 8, 5};
    struct gr_sampler_params q = gr_sampler_params_default();
    struct gr_sampler *sampler;
    q.n_vocab = N_VOCAB, q.temp = 0;
    cr_assert_eq(gr_sampler_new(&sampler, &q), 0);
    struct gr_batch b = {.n_tok = GR_COUNT(prompt), .token = prompt};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), text), 0);
    if (d) {
        cr_assert_eq(gr_draft_accept(d, prompt, GR_COUNT(prompt)), 0);
        cr_assert_eq(gr_draft_accept(d, text, 1), 0);
    }
    for (int32_t i = 1, n = 1; i < N_TEXT; i += n) {
        if (d) {
            cr_assert_eq(gr_draft_step(d, s, 0, sampler, N_TEXT - i, text + i, &n), 0, "%s",
                         gr_error());
            continue;
        }
        b = (struct gr_batch){.n_tok = 1, .token = text + i - 1};
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), text + i), 0);
    }
    gr_sampler_free(&sampler);
}

/* Where results do not depend on the batch: the same tokens, by drafts of a model that is always
 * right, and of the text. */
Test(drafts, leave_the_text_as_it_is, .timeout = 600)
{
    int32_t plain[N_TEXT], drafted[N_TEXT];
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        struct gr_model *m = model_of(archs[a]);
        struct gr_session *s = open_session(m, true);
        write_text(s, NULL, plain);
        for (int with_model = 0; with_model < 2; with_model++) {
            struct gr_draft_params q = gr_draft_params_default();
            struct gr_session *own = with_model ? open_session(m, true) : NULL;
            struct gr_draft *d;
            q.n_max = MOST - 1, q.adaptive = false;
            q.model = with_model ? m : NULL, q.session = own, q.n_gram = with_model ? 0 : 2;
            cr_assert_eq(gr_draft_new(&d, &q, m), 0, "%s", gr_error());
            gr_kv_clear(s);
            write_text(s, d, drafted);
            cr_expect_arr_eq(plain, drafted, sizeof plain, "%s", archs[a]);
            struct gr_draft_stats stats = gr_draft_stats(d);
            cr_expect(!with_model || stats.n_accepted > N_TEXT / 2, "%s: %lld of %lld", archs[a],
                      (long long)stats.n_accepted, (long long)stats.n_drafted);
            gr_draft_free(&d);
            gr_session_close(&own);
        }
        gr_session_close(&s);
        gr_model_close(&m);
    }
}
