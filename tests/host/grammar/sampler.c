/* Samplers that obey a grammar. */
#include <criterion/criterion.h>
#include <math.h>

#include "bytes.h"
#include "sample/sampler.h"

enum { N_VOCAB = 258 };

static float logits[N_VOCAB];

static struct gr_sampler *sampler(float temp, int32_t n_vocab)
{
    struct gr_sampler_params p = gr_sampler_params_default();
    struct gr_sampler *s;
    p.temp = temp, p.seed = 3, p.n_vocab = n_vocab, p.n_ctx = 64;
    cr_assert_eq(gr_sampler_new(&s, &p), 0, "%s", gr_error());
    return s;
}

/* Picks until the text ends; *n receives the number of bytes written to out [64]. */
static void generate(struct gr_sampler *s, char *out, size_t *n)
{
    int32_t id = -1;
    for (*n = 0; *n < 63; (*n)++) {
        cr_assert_eq(gr_sampler_pick(s, logits, &id), 0, "%s", gr_error());
        cr_assert_eq(gr_sampler_accept(s, id), 0, "%s", gr_error());
        if (id == 256)
            break;
        out[*n] = (char)id;
    }
    out[*n] = 0;
}

Test(grammar_sampler, picks_what_the_grammar_allows)
{
    static const float temps[] = {0, 1, 5};
    struct gr_grammar_state *g =
        open_gbnf("root ::= (\"x\" [0-9]{2} \" \"){2} (\"ja\" | \"nein\")");
    char text[64];
    size_t n;
    for (size_t t = 0; t < 3; t++) {
        struct gr_sampler *s = sampler(temps[t], N_VOCAB);
        for (int32_t i = 0; i < N_VOCAB; i++)
            logits[i] = (float)(i * 37 % 23);
        /* Tokens of a prompt are not part of the text. */
        cr_assert_eq(gr_sampler_accept(s, '?'), 0);
        gr_grammar_state_reset(g);
        cr_assert_eq(gr_sampler_set_grammar(s, g), 0);
        cr_expect(gr_sampler_looks_back(s));
        generate(s, text, &n);
        cr_expect(n == 10 || n == 12, "'%s'", text);
        cr_expect(accepts(g, text), "'%s'", text);
        cr_expect_eq(gr_sampler_accept(s, 'q'), GR_E_INVALID);
        cr_assert_eq(gr_sampler_set_grammar(s, NULL), 0);
        cr_expect_eq(gr_sampler_accept(s, 'q'), 0);
        gr_sampler_free(&s);
    }
    gr_grammar_state_free(&g);
}

Test(grammar_sampler, mask_and_grammar_and_nothing_left)
{
    static uint32_t mask[(N_VOCAB + 31) / 32];
    struct gr_grammar_state *g = open_gbnf("root ::= [a-d]");
    struct gr_sampler *s = sampler(0, N_VOCAB), *other = sampler(0, N_VOCAB - 1);
    const uint32_t *both;
    int32_t id;
    for (int32_t i = 0; i < N_VOCAB; i++)
        logits[i] = (float)i;
    mask['b' / 32] |= 1u << 'b' % 32, mask['z' / 32] |= 1u << 'z' % 32;
    cr_assert_eq(gr_sampler_set_grammar(s, g), 0);
    cr_expect(gr_sampler_pick(s, logits, &id) == 0 && id == 'd');
    gr_sampler_set_mask(s, mask);
    cr_expect(gr_sampler_pick(s, logits, &id) == 0 && id == 'b');
    cr_expect_eq(gr_sampler_mask(s, &both), 0);
    for (int32_t i = 0; i < N_VOCAB; i++)
        cr_expect_eq(gr_sample_allowed(both, i), i == 'b');
    mask['b' / 32] = 0;
    cr_expect_eq(gr_sampler_pick(s, logits, &id), GR_E_CHECK);
    cr_expect(strstr(gr_error(), "mask and grammar leave no token"), "%s", gr_error());
    cr_expect_eq(gr_sampler_set_grammar(other, g), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "a grammar of 258 tokens"), "%s", gr_error());
    gr_sampler_free(&s);
    gr_sampler_free(&other);
    gr_grammar_state_free(&g);
}
