/* gr_generate_tokens where a device draws the tokens: the text is that of picks from the logits. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

#define N_PREDICT 40
#define PROMPT "Once upon a time"

TestSuite(device_generate, .timeout = 120);

struct text {
    char p[1024];
    size_t n;
};

static int collect(const char *p, size_t n, void *user)
{
    struct text *t = user;
    cr_assert_lt(t->n + n, sizeof t->p);
    memcpy(t->p + t->n, p, n);
    t->n += n;
    return 0;
}

static struct gr_session *open_session(struct gr_model *m)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1;
    return tiny_session(m, &p);
}

/* The text of tokens that are picked from logits. */
static void pick_text(struct gr_model *m, const struct gr_sampler_params *params,
                      const int32_t *prompt, size_t n_prompt, struct text *t)
{
    struct gr_session *s = open_session(m);
    struct gr_sampler_params p = *params;
    struct gr_sampler *sampler;
    int32_t id;
    const char *piece;
    size_t n;
    p.n_vocab = m->hp.n_vocab, p.n_ctx = 256, p.model = m, t->n = 0;
    cr_assert_eq(gr_sampler_new(&sampler, &p), 0, "%s", gr_error());
    for (size_t i = 0; i < n_prompt; i++)
        cr_assert_eq(gr_sampler_accept(sampler, prompt[i]), 0);
    struct gr_batch batch = {.n_tok = (int32_t)n_prompt, .token = prompt};
    for (int i = 0; i < N_PREDICT; i++) {
        cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error());
        cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), &id), 0, "%s", gr_error());
        cr_assert_eq(gr_sampler_accept(sampler, id), 0);
        cr_assert_eq(gr_text_piece(m, id, false, &piece, &n), 0);
        (void)collect(piece, n, t);
        if (gr_text_is_eog(m, id))
            break;
        batch = (struct gr_batch){.n_tok = 1, .token = &id};
    }
    gr_sampler_free(&sampler);
    gr_session_close(&s);
}

/* Greedy, drawn, with penalties, and by a sampler that devices do not have. */
Test(device_generate, draws_as_picked)
{
    static const struct {
        float temp, penalty, typical;
        bool drawn;
    } kind[] = {{0, 1, 1, true}, {0.9f, 1, 1, true}, {0.9f, 1.3f, 1, true}, {0.9f, 1, 0.7f, false}};
    struct gr_model_params mp = gr_model_params_default();
    struct gr_model *m;
    int32_t *prompt;
    size_t n_prompt;
    fake_use(1, 64u << 20);
    mp.device = "FAKE", mp.n_gpu_layers = 99;
    cr_assert_eq(gr_model_open(&m, GR_SOURCE_DIR "/tools/default-model.gguf", &mp), 0, "%s",
                 gr_error());
    cr_assert_eq(gr_text_tokenize(m, PROMPT, strlen(PROMPT), true, true, &prompt, &n_prompt), 0);
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) {
        struct gr_sampler_params sp = gr_sampler_params_default();
        struct gr_generate_params p = gr_generate_params_default();
        struct gr_session *s = open_session(m);
        struct text want, got = {.n = 0};
        sp.seed = 11 + k, sp.temp = kind[k].temp;
        sp.penalty_repeat = kind[k].penalty, sp.typical_p = kind[k].typical;
        strcpy(sp.samplers, kind[k].drawn ? "ekpmt" : "ekypmt");
        pick_text(m, &sp, prompt, n_prompt, &want);
        p.sampler = &sp, p.n_predict = N_PREDICT, p.text = collect, p.user = &got;
        cr_assert_eq(gr_generate_tokens(s, 0, prompt, n_prompt, &p, NULL), 0, "%s", gr_error());
        cr_expect(want.n > 20 && got.n == want.n && !memcmp(got.p, want.p, got.n),
                  "kind %zu: '%.*s', picked '%.*s'", k, (int)got.n, got.p, (int)want.n, want.p);
        cr_expect_eq(!gr_logits(s, -1), kind[k].drawn, "kind %zu: who drew?", k);
        gr_session_close(&s);
    }
    gr_free_ids(prompt);
    gr_model_close(&m);
}
