/* Tokens that the device draws are those that a sampler picks from the logits. */
#include <criterion/criterion.h>
#include <math.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

enum { N_SEQ = 2, N_STEP = 12, N_PROMPT = 9 };

static struct gr_model *open_on(const char *device)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    fake_use(1, 64u << 20);
    p.device = device, p.n_gpu_layers = 99;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s", gr_error());
    unlink(path);
    return m;
}

static struct gr_session *open_session(struct gr_model *m)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 128, p.n_threads = 1, p.n_ubatch = 5, p.n_seq_max = N_SEQ;
    return tiny_session(m, &p);
}

static struct gr_sampler *sampler_for(const struct gr_model *m, float temp, uint64_t seed)
{
    struct gr_sampler_params p = gr_sampler_params_default();
    struct gr_sampler *s;
    p.temp = temp, p.seed = seed, p.n_vocab = m->hp.n_vocab, p.top_p = 0.9f, p.min_p = 0.01f;
    p.penalty_repeat = seed % 2 ? 1.5f : 1, p.penalty_freq = seed % 2 ? 0.5f : 0, p.n_ctx = 128;
    p.logit_bias = (struct gr_logit_bias[]){{7, 2}, {9, -INFINITY}}, p.n_logit_bias = 2;
    cr_assert_eq(gr_sampler_new(&s, &p), 0, "%s", gr_error());
    return s;
}

struct play {
    struct gr_session *s;
    struct gr_sampler *sampler[N_SEQ];
    int32_t out[N_STEP][N_SEQ];
};

/* The token after one of the batch, drawn or picked. */
static int32_t token_of(const struct play *p, int32_t i, int q, bool drawn)
{
    int32_t id, none;
    const float *logits = tiny_row(p->s, i);
    cr_assert_eq(logits == NULL, drawn);
    cr_assert_eq(gr_sampled_token(p->s, i, &none), drawn ? 0 : GR_E_INVALID);
    if (drawn)
        return none;
    cr_assert_eq(gr_sampler_pick(p->sampler[q], logits, &id), 0, "%s", gr_error());
    return id;
}

/* Prompts of both sequences at once, in several micro-batches, then a token of each at a time; the
 * steps of [lo, hi) are drawn. */
static void play(struct play *p, int lo, int hi)
{
    int32_t token[2 * N_PROMPT], seq[2 * N_PROMPT];
    int8_t logits[2 * N_PROMPT];
    for (int step = 0; step < N_STEP; step++) {
        int per = step ? 1 : N_PROMPT;
        bool drawn = step >= lo && step < hi;
        for (int i = 0; i < N_SEQ * per; i++) {
            seq[i] = i / per, logits[i] = i % per == per - 1;
            token[i] = step ? p->out[step - 1][i] : 1 + 3 * i;
        }
        for (int q = 0; q < N_SEQ; q++)
            cr_assert_eq(gr_session_set_sampler(p->s, q, drawn ? p->sampler[q] : NULL), 0);
        struct gr_batch b = {.n_tok = N_SEQ * per, .token = token, .seq = seq, .logits = logits};
        cr_assert_eq(gr_decode(p->s, &b), 0, "%s", gr_error());
        for (int q = 0; q < N_SEQ; q++) {
            p->out[step][q] = token_of(p, (q + 1) * per - 1, q, drawn);
            cr_assert_eq(gr_sampler_accept(p->sampler[q], p->out[step][q]), 0);
        }
    }
}

static void run(struct play *p, struct gr_model *m, float temp, int lo, int hi)
{
    p->s = open_session(m);
    uint32_t *mask = gr_calloc((size_t)gr_sample_mask_words(m->hp.n_vocab), sizeof *mask);
    cr_assert_not_null(mask);
    for (int32_t i = 0; i < gr_sample_mask_words(m->hp.n_vocab); i++)
        mask[i] = 0x7777bbbbu;
    for (int q = 0; q < N_SEQ; q++)
        p->sampler[q] = sampler_for(m, temp, 100 + (uint64_t)q);
    gr_sampler_set_mask(p->sampler[0], mask);
    play(p, lo, hi);
    for (int step = 0; step < N_STEP; step++)
        cr_expect(gr_sample_allowed(mask, p->out[step][0]) && p->out[step][1] != 9);
    gr_free(mask);
    gr_session_close(&p->s);
    for (int q = 0; q < N_SEQ; q++)
        gr_sampler_free(&p->sampler[q]);
}

Test(device_sampling, the_same_as_picks_wherever_logits_are)
{
    static const char *const devices[] = {"none", "FAKE"};
    static const int drawn[][2] = {{0, N_STEP}, {3, 7}, {0, 1}};
    static const float temps[] = {0, 0.8f, 3};
    for (size_t d = 0; d < GR_COUNT(devices); d++) {
        struct gr_model *m = open_on(devices[d]);
        for (size_t t = 0; t < GR_COUNT(temps); t++) {
            struct play want, got;
            run(&want, m, temps[t], 0, 0);
            for (size_t k = 0; k < GR_COUNT(drawn); k++) {
                run(&got, m, temps[t], drawn[k][0], drawn[k][1]);
                for (int i = 0; i < N_STEP * N_SEQ; i++)
                    cr_assert_eq(got.out[i / N_SEQ][i % N_SEQ], want.out[i / N_SEQ][i % N_SEQ],
                                 "%s, temp %g, drawn %zu, step %d", devices[d], (double)temps[t], k,
                                 i / N_SEQ);
            }
        }
        gr_model_close(&m);
    }
}

/* A batch with an output that nobody draws gives logits, and one that fails draws nothing. */
Test(device_sampling, all_outputs_or_none)
{
    struct gr_model *m = open_on("none");
    struct play p = {.s = open_session(m)};
    int32_t token[N_SEQ] = {4, 5}, seq[N_SEQ] = {0, 1}, id;
    int8_t logits[N_SEQ] = {1, 1};
    struct gr_batch b = {.n_tok = N_SEQ, .token = token, .seq = seq, .logits = logits};
    struct gr_sampler *picks = sampler_for(m, 2, 7);
    p.sampler[0] = sampler_for(m, 2, 7);
    cr_assert_eq(gr_session_set_sampler(p.s, 0, p.sampler[0]), 0);
    cr_assert_eq(gr_decode(p.s, &b), 0);
    cr_assert(tiny_row(p.s, 0) && tiny_row(p.s, 1));
    cr_assert_eq(gr_sampled_token(p.s, 0, &id), GR_E_INVALID);
    cr_assert_eq(gr_sampled_token(p.s, 7, &id), GR_E_INVALID);
    token[0] = -1; /* refused */
    cr_assert_eq(gr_decode(p.s, &b), GR_E_INVALID);
    token[0] = 4, b.n_tok = 1;
    cr_assert_eq(gr_decode(p.s, &b), 0);
    cr_assert_eq(gr_sampled_token(p.s, 0, &id), 0);
    cr_assert_eq(gr_session_set_sampler(p.s, 0, NULL), 0);
    cr_assert_eq(gr_kv_seq_rm(p.s, 0, 1, -1), 0);
    cr_assert_eq(gr_decode(p.s, &b), 0);
    int32_t first;
    cr_assert_eq(gr_sampler_pick(picks, tiny_row(p.s, 0), &first), 0);
    cr_assert_eq(id, first, "draw 0 of the seed");
    gr_session_close(&p.s);
    gr_sampler_free(&p.sampler[0]);
    gr_sampler_free(&picks);
    gr_model_close(&m);
}

/* Penalties or mask of the second of two outputs depend on the token of the first: logits. */
Test(device_sampling, several_outputs_of_a_sampler_that_looks_back)
{
    struct gr_model *m = open_on("none");
    static const uint32_t mask[64] = {0xff};
    for (uint64_t k = 0; k < 3; k++) { /* neither, penalties, a mask */
        struct gr_session *s = open_session(m);
        struct gr_sampler *sampler = sampler_for(m, 1, k == 1);
        gr_sampler_set_mask(sampler, k == 2 ? mask : NULL);
        int32_t token[] = {1, 2, 3};
        int8_t logits[] = {1, 0, 1};
        struct gr_batch b = {.n_tok = 3, .token = token, .logits = logits};
        cr_assert_eq(gr_session_set_sampler(s, 0, sampler), 0);
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        cr_expect_eq(gr_logits(s, 0) == NULL, k == 0);
        logits[0] = 0;
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        cr_expect_null(gr_logits(s, 2));
        gr_session_close(&s);
        gr_sampler_free(&sampler);
    }
    gr_model_close(&m);
}

Test(device_sampling, refuses_what_needs_logarithms)
{
    struct gr_model *m = open_on("none");
    struct gr_session *s = open_session(m);
    for (int i = 0; i < 4; i++) {
        struct gr_sampler_params p = gr_sampler_params_default();
        struct gr_sampler *sampler;
        p.n_vocab = m->hp.n_vocab - (i == 3), p.n_ctx = 64;
        if (i == 0)
            p.mirostat = 2;
        else if (i == 1)
            p.typical_p = 0.5f;
        cr_assert_eq(gr_sampler_new(&sampler, &p), 0, "%s", gr_error());
        cr_assert_eq(gr_session_set_sampler(s, 0, sampler), i < 2    ? GR_E_UNSUPPORTED
                                                            : i == 2 ? 0
                                                                     : GR_E_INVALID);
        cr_assert_eq(gr_session_set_sampler(s, 0, NULL), 0);
        gr_sampler_free(&sampler);
    }
    cr_assert_eq(gr_session_set_sampler(s, N_SEQ, NULL), GR_E_INVALID);
    cr_assert_eq(gr_session_set_sampler(s, -1, NULL), GR_E_INVALID);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* A session that is resized goes on as before, with the samplers that draw its tokens. */
Test(device_sampling, resizing_keeps_the_samplers)
{
    struct gr_model *m = open_on("cpu");
    struct gr_session *s = open_session(m);
    struct gr_sampler *sampler = sampler_for(m, 0.8f, 7);
    int32_t token[] = {1, 2, 3}, id;
    cr_assert_eq(gr_session_set_sampler(s, 0, sampler), 0);
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 2, .token = token}), 0);
    cr_assert_eq(gr_session_resize(s, 512), 0, "%s", gr_error());
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = token + 2}), 0);
    cr_expect_eq(gr_sampled_token(s, -1, &id), 0, "%s", gr_error());
    gr_session_close(&s);
    gr_sampler_free(&sampler);
    gr_model_close(&m);
}
