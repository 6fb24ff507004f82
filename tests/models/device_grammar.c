/* A grammar limits the tokens that a device draws as it limits those that are picked. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

enum { MOST = 40 };

static const char grammar[] = "root ::= [a-f]{3} (\" \" [x-z]+ \"!\"){2,3} [^a-z]{0,4}";

static struct gr_model *open_on(const char *device)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    fake_use(1, 64u << 20);
    p.device = device, p.n_gpu_layers = 99;
    cr_assert_eq(gr_model_open(&m, GR_SOURCE_DIR "/tools/default-model.gguf", &p), 0, "%s",
                 gr_error());
    return m;
}

/* Tokens of a text in the grammar, drawn on the device or picked; returns their number. */
static int generate(struct gr_model *m, bool drawn, int32_t *out)
{
    struct gr_session_params sp = gr_session_params_default();
    struct gr_sampler_params p = gr_sampler_params_default();
    struct gr_grammar_state *state;
    struct gr_grammar *g;
    struct gr_sampler *s;
    int n = 0;
    sp.n_ctx = 64, sp.n_threads = 1;
    p.temp = 2, p.top_k = 0, p.top_p = 1, p.min_p = 0, p.seed = 11, p.n_ctx = 64;
    p.n_vocab = m->hp.n_vocab;
    struct gr_session *session = tiny_session(m, &sp);
    cr_assert_eq(gr_grammar_gbnf(&g, m, grammar, strlen(grammar)), 0, "%s", gr_error());
    cr_assert_eq(gr_grammar_state_new(&state, g), 0);
    gr_grammar_free(&g);
    cr_assert_eq(gr_sampler_new(&s, &p), 0);
    cr_assert_eq(gr_sampler_set_grammar(s, state), 0);
    cr_assert_eq(gr_session_set_sampler(session, 0, drawn ? s : NULL), 0, "%s", gr_error());
    for (int32_t id = 4; n < MOST; n++) {
        struct gr_batch b = {.n_tok = 1, .token = &id};
        cr_assert_eq(gr_decode(session, &b), 0, "%s", gr_error());
        int rc = drawn ? gr_sampled_token(session, 0, &id)
                       : gr_sampler_pick(s, tiny_row(session, 0), &id);
        cr_assert_eq(rc, 0, "%s", gr_error());
        cr_assert_eq(gr_sampler_accept(s, id), 0, "%s", gr_error());
        out[n] = id;
        if (gr_text_is_eog(m, id))
            break;
    }
    gr_session_close(&session);
    gr_sampler_free(&s);
    gr_grammar_state_free(&state);
    return n;
}

Test(device_grammar, drawn_as_picked)
{
    static const char *const devices[] = {"none", "FAKE"};
    for (size_t d = 0; d < 2; d++) {
        struct gr_model *m = open_on(devices[d]);
        int32_t picked[MOST], drawn[MOST];
        int n = generate(m, false, picked), k = generate(m, true, drawn);
        cr_expect_eq(n, k, "%s", devices[d]);
        cr_expect_gt(n, 5);
        for (int i = 0; i < n && i < k; i++)
            cr_expect_eq(picked[i], drawn[i], "%s, token %d", devices[d], i);
        gr_model_close(&m);
    }
}

/* When no token follows, the step says so and nothing is drawn. */
Test(device_grammar, a_grammar_that_no_token_continues)
{
    struct gr_model *m = open_on("none");
    struct gr_session_params sp = gr_session_params_default();
    struct gr_sampler_params p = gr_sampler_params_default();
    const struct gr_logit_bias ban = {.id = gr_text_eos(m), .bias = -INFINITY};
    struct gr_grammar_state *state;
    struct gr_grammar *g;
    struct gr_sampler *s;
    int32_t id = 4;
    struct gr_batch b = {.n_tok = 1, .token = &id};
    sp.n_ctx = 64, sp.n_threads = 1, p.n_vocab = m->hp.n_vocab, p.n_ctx = 64;
    p.logit_bias = &ban, p.n_logit_bias = 1;
    struct gr_session *session = tiny_session(m, &sp);
    cr_assert_eq(gr_grammar_gbnf(&g, m, "root ::= \"\"", 11), 0, "%s", gr_error());
    cr_assert_eq(gr_grammar_state_new(&state, g), 0);
    cr_assert_eq(gr_sampler_new(&s, &p), 0);
    cr_assert_eq(gr_sampler_set_grammar(s, state), 0);
    cr_assert_eq(gr_session_set_sampler(session, 0, s), 0, "%s", gr_error());
    cr_assert_eq(gr_decode(session, &b), 0, "%s", gr_error());
    cr_expect_eq(gr_sampled_token(session, 0, &id), GR_E_CHECK);
    cr_expect(strstr(gr_error(), "leave no token"), "%s", gr_error());
    gr_session_close(&session);
    gr_sampler_free(&s);
    gr_grammar_state_free(&state);
    gr_grammar_free(&g);
    gr_model_close(&m);
}
