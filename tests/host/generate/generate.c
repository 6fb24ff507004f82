/* gr_generate against the same loop written out with the parts. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "gpurun.h"
#include "support/encoder_decoder.h"
#include "support/tiny.h"

#define N_PREDICT 24
#define PROMPT "Once upon a time"

TestSuite(generate, .timeout = 120);

struct text {
    char p[8192];
    size_t n;
    int n_call, n_stop; /* calls; the call that ends the text, 0: none does */
};

static int collect(const char *p, size_t n, void *user)
{
    struct text *t = user;
    cr_assert(n > 0 && t->n + n < sizeof t->p);
    cr_assert(!t->n_stop || t->n_call < t->n_stop, "called again");
    memcpy(t->p + t->n, p, n);
    t->n += n;
    return ++t->n_call == t->n_stop;
}

static struct gr_model *open_model(void)
{
    struct gr_model *m;
    cr_assert_eq(gr_model_open(&m, NULL, NULL), 0, "%s", gr_error_message());
    return m;
}

static struct gr_generate_params params_for(struct text *t, int32_t n_predict)
{
    struct gr_generate_params p = gr_generate_params_default();
    *t = (struct text){.n = 0};
    p.text = collect, p.user = t, p.n_predict = n_predict;
    return p;
}

static void expect_text(const struct text *t, const char *p, size_t n)
{
    cr_expect(t->n == n && !memcmp(t->p, p, n), "'%.*s', expected '%.*s'", (int)t->n, t->p, (int)n,
              p);
}

/* The tokens that the sampler picks behind a prompt; returns their number, at most n. */
static int32_t by_hand(struct gr_model *m, const struct gr_sampler_params *params, int32_t *id,
                       int32_t n)
{
    struct gr_session_params sp = gr_session_params_default();
    struct gr_sampler_params p = *params;
    struct gr_session *s;
    struct gr_sampler *sampler;
    struct gr_model_info info;
    int32_t *prompt, i = 0;
    size_t n_prompt;
    gr_model_info(m, &info);
    sp.n_ctx = 256, p.n_vocab = info.n_vocab, p.n_ctx = 256, p.model = m;
    cr_assert_eq(gr_session_open(&s, m, &sp), 0, "%s", gr_error_message());
    cr_assert_eq(gr_sampler_new(&sampler, &p), 0, "%s", gr_error_message());
    cr_assert_eq(gr_text_tokenize(m, PROMPT, strlen(PROMPT), true, true, &prompt, &n_prompt), 0);
    for (size_t k = 0; k < n_prompt; k++)
        cr_assert_eq(gr_sampler_accept(sampler, prompt[k]), 0);
    struct gr_batch batch = {.n_tok = (int32_t)n_prompt, .token = prompt};
    do {
        cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error_message());
        cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), &id[i]), 0);
        cr_assert_eq(gr_sampler_accept(sampler, id[i]), 0);
        batch = (struct gr_batch){.n_tok = 1, .token = &id[i]};
    } while (++i < n && !gr_text_is_eog(m, id[i - 1]));
    gr_free_ids(prompt);
    gr_sampler_free(&sampler);
    gr_session_close(&s);
    return i;
}

static size_t text_of(const struct gr_model *m, const int32_t *id, int32_t n, char *text)
{
    size_t all = 0, k;
    const char *p;
    for (int32_t i = 0; i < n; i++) {
        cr_assert_eq(gr_text_piece(m, id[i], false, &p, &k), 0);
        memcpy(text + all, p, k);
        all += k;
    }
    return all;
}

/* Greedy, drawn, and with what looks back at the prompt. */
Test(generate, equals_the_parts)
{
    struct gr_model *m = open_model();
    for (int kind = 0; kind < 3; kind++) {
        struct gr_sampler_params sp = gr_sampler_params_default();
        struct text t;
        struct gr_generate_params p = params_for(&t, N_PREDICT);
        struct gr_generated r;
        int32_t id[N_PREDICT];
        char text[2048];
        sp.temp = kind ? 0.9f : 0, sp.seed = 5;
        if (kind == 2)
            sp.penalty_repeat = 1.3f, sp.dry_multiplier = 0.8f, sp.dry_allowed_length = 1;
        int32_t n = by_hand(m, &sp, id, N_PREDICT);
        size_t n_text = text_of(m, id, n, text);
        p.sampler = &sp;
        cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, &r), 0, "%s",
                     gr_error_message());
        expect_text(&t, text, n_text);
        bool eog = gr_text_is_eog(m, id[n - 1]);
        cr_expect(r.end == (eog ? GR_END_EOG : GR_END_LENGTH) && r.n_token == n && r.stop == -1);
        cr_expect(r.n_prompt > 3 && r.prompt_s > 0 && r.first_s >= r.prompt_s && r.token_s > 0);
    }
    gr_model_close(&m);
}

Test(generate, ends_where_it_should)
{
    struct gr_model *m = open_model();
    struct gr_sampler_params greedy = gr_sampler_params_default();
    struct gr_generated r;
    struct text whole, t;
    greedy.temp = 0;
    struct gr_generate_params p = params_for(&whole, N_PREDICT);
    p.sampler = &greedy;
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, NULL), 0);

    char stop[8] = {0};
    memcpy(stop, whole.p + 20, 5);
    const char *const stops[] = {"~~", stop};
    p = params_for(&t, N_PREDICT);
    p.sampler = &greedy, p.stop = stops, p.n_stop = 2;
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, &r), 0);
    const char *at = memmem(whole.p, whole.n, stop, 5);
    expect_text(&t, whole.p, (size_t)(at - whole.p));
    cr_expect(r.end == GR_END_STOP && r.stop == 1);

    p = params_for(&t, N_PREDICT);
    p.sampler = &greedy, t.n_stop = 4;
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, &r), 0);
    cr_expect(r.end == GR_END_CALLER && t.n_call == 4 && r.n_token >= 4);
    expect_text(&t, whole.p, t.n);

    p = params_for(&t, 0);
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, &r), 0);
    cr_expect(r.end == GR_END_LENGTH && !r.n_token && r.last == -1 && !t.n && r.n_prompt > 3 &&
              r.first_s == 0);
    gr_model_close(&m);
}

/* A text that nothing ends fills the context: one cell for each token but the last. */
Test(generate, ends_with_the_context)
{
    struct gr_model *m = open_model();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_sampler_params sampler = gr_sampler_params_default();
    struct gr_logit_bias no_end = {gr_text_eos(m), -INFINITY};
    struct gr_generated r;
    struct text t;
    struct gr_generate_params p = params_for(&t, -1);
    sp.n_ctx = 256, sampler.temp = 0;
    sampler.logit_bias = &no_end, sampler.n_logit_bias = 1, p.sampler = &sampler;
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), &sp, &p, &r), 0, "%s", gr_error_message());
    cr_expect(r.end == GR_END_CONTEXT && r.n_prompt + r.n_token == 257, "%d + %d", r.n_prompt,
              r.n_token);
    static char longer[4096];
    memset(longer, 'a', sizeof longer - 1);
    cr_expect_eq(gr_generate(m, longer, sizeof longer - 1, &sp, &p, &r), GR_E_KV_FULL);
    cr_expect(strstr(gr_error_message(), "the context is 256"), "%s", gr_error_message());
    gr_model_close(&m);
}

/* Learned positions end before the cells, which are rounded up. */
Test(generate, ends_with_the_positions)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"gpt2", 4}));
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params sp = gr_session_params_default();
    struct gr_sampler_params greedy = gr_sampler_params_default();
    struct gr_generate_params p = gr_generate_params_default();
    struct gr_generated r;
    struct gr_session *s;
    const int32_t ids[3] = {5, 6, 7};
    greedy.temp = 0, p.sampler = &greedy;
    sp.n_ctx = (uint32_t)t.n_ctx + 256;
    cr_assert_eq(gr_session_open(&s, m, &sp), 0, "%s", gr_error_message());
    cr_assert_eq(gr_generate_tokens(s, 0, ids, 3, &p, &r), 0, "%s", gr_error_message());
    cr_expect(r.end == GR_END_CONTEXT && 3 + r.n_token == t.n_ctx + 1, "%d tokens", r.n_token);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* A text in two calls, in any sequence and with batches of any size, is the text of one. */
Test(generate, continues_a_sequence)
{
    struct gr_model *m = open_model();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_sampler_params greedy = gr_sampler_params_default();
    struct gr_session *s;
    struct gr_generated r;
    struct text whole, t;
    int32_t id[N_PREDICT], *prompt;
    size_t n_prompt;
    greedy.temp = 0;
    (void)by_hand(m, &greedy, id, N_PREDICT);
    struct gr_generate_params p = params_for(&whole, N_PREDICT);
    p.sampler = &greedy;
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, NULL), 0);
    sp.n_ctx = 512, sp.n_batch = sp.n_ubatch = 3, sp.n_seq_max = 3;
    cr_assert_eq(gr_session_open(&s, m, &sp), 0, "%s", gr_error_message());
    cr_expect(gr_session_n_batch(s) == 3 && gr_session_model(s) == m);
    cr_assert_eq(gr_text_tokenize(m, PROMPT, strlen(PROMPT), true, true, &prompt, &n_prompt), 0);
    p = params_for(&t, 10);
    p.sampler = &greedy;
    cr_assert_eq(gr_generate_tokens(s, 2, prompt, n_prompt, &p, &r), 0, "%s", gr_error_message());
    cr_expect_eq(gr_kv_seq_pos_max(s, 2), (int32_t)n_prompt + 8);
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), -1);
    cr_expect_eq(r.last, id[9]);
    p.n_predict = N_PREDICT - 10;
    cr_assert_eq(gr_generate_tokens(s, 2, &r.last, 1, &p, NULL), 0, "%s", gr_error_message());
    expect_text(&t, whole.p, whole.n);
    gr_free_ids(prompt);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* A draft model that agrees always, and one text that stops within a draft: what is behind the end
 * is not in the cache. */
Test(generate, verifies_drafts)
{
    struct gr_model *m = open_model();
    struct gr_sampler_params greedy = gr_sampler_params_default();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_draft_params dp = gr_draft_params_default();
    struct gr_session *s;
    struct gr_generated r;
    struct text whole, t;
    int32_t *prompt;
    size_t n_prompt;
    char stop[8] = {0};
    const char *const stops[] = {stop};
    greedy.temp = 0, sp.n_ctx = 256;
    struct gr_generate_params p = params_for(&whole, N_PREDICT);
    p.sampler = &greedy;
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, NULL), 0);
    memcpy(stop, whole.p + 31, 3);
    cr_assert_eq(gr_text_tokenize(m, PROMPT, strlen(PROMPT), true, true, &prompt, &n_prompt), 0);
    cr_assert_eq(gr_session_open(&s, m, &sp), 0);
    cr_assert_eq(gr_session_open(&dp.session, m, &sp), 0);
    dp.model = m, dp.adaptive = false, dp.n_max = 8;
    for (int stopped = 0; stopped < 2; stopped++) {
        p = params_for(&t, N_PREDICT);
        p.sampler = &greedy, p.stop = stops, p.n_stop = stopped;
        gr_kv_clear(s);
        cr_assert_eq(gr_draft_new(&p.draft, &dp, m), 0, "%s", gr_error_message());
        cr_assert_eq(gr_generate_tokens(s, 0, prompt, n_prompt, &p, &r), 0, "%s",
                     gr_error_message());
        const char *at = memmem(whole.p, whole.n, stop, 3);
        expect_text(&t, whole.p, stopped ? (size_t)(at - whole.p) : whole.n);
        cr_expect_eq(r.end, stopped ? GR_END_STOP : GR_END_LENGTH);
        cr_expect(stopped ? r.n_token < N_PREDICT : r.n_token == N_PREDICT);
        cr_expect_eq(gr_kv_seq_pos_max(s, 0), (int32_t)n_prompt + r.n_token - 2);
        cr_expect_gt(gr_draft_stats(p.draft).n_accepted, 4);
        gr_draft_free(&p.draft);
    }
    gr_free_ids(prompt);
    gr_session_close(&s);
    gr_session_close(&dp.session);
    gr_model_close(&m);
}

/* The encoder reads the prompt, the text begins behind the decoder's first token. */
Test(generate, runs_an_encoder)
{
    struct tiny t = encoder_decoder_model(0);
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params sp = gr_session_params_default();
    struct gr_model_info info;
    struct gr_sampler_params greedy = gr_sampler_params_default();
    struct gr_generated r;
    struct gr_session *s;
    struct gr_sampler *sampler;
    struct gr_generate_params p = gr_generate_params_default();
    float logits[256];
    int32_t text[] = {5, 9, 12, 7, 30}, n = 0;
    gr_model_info(m, &info);
    sp.n_ctx = 256, greedy.temp = 0, greedy.n_vocab = info.n_vocab, greedy.n_ctx = 256;
    cr_assert_eq(gr_session_open(&s, m, &sp), 0, "%s", gr_error_message());
    cr_assert_eq(gr_sampler_new(&sampler, &greedy), 0);
    struct gr_batch batch = {.n_tok = 5, .token = text};
    cr_assert_eq(gr_encode(s, &batch), 0, "%s", gr_error_message());
    int32_t by_hand[8], last = info.decoder_start;
    do {
        batch = (struct gr_batch){.n_tok = 1, .token = &last};
        cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error_message());
        cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), &by_hand[n]), 0);
        last = by_hand[n++];
    } while (n < 8 && !gr_text_is_eog(m, last));
    cr_assert(info.n_vocab <= 256);
    memcpy(logits, gr_logits(s, -1), (size_t)info.n_vocab * sizeof *logits);
    p.n_predict = 8;
    p.sampler = &greedy;
    gr_kv_clear(s);
    cr_assert_eq(gr_generate_tokens(s, 0, text, 5, &p, &r), 0, "%s", gr_error_message());
    cr_expect(r.n_prompt == 5 && r.n_token == n, "%d, %d", r.n_prompt, r.n_token);
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), n - 1);
    cr_expect_arr_eq(gr_logits(s, -1), logits, (size_t)info.n_vocab * sizeof *logits);
    gr_sampler_free(&sampler);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(generate, obeys_a_grammar)
{
    static const char rules[] = "root ::= \" \" [A-Z] [a-z] [a-z] \".\"";
    struct gr_model *m = open_model();
    struct gr_grammar *g;
    struct text t;
    struct gr_generate_params p = params_for(&t, 50);
    struct gr_generated r;
    cr_assert_eq(gr_grammar_gbnf(&g, m, rules, sizeof rules - 1), 0, "%s", gr_error_message());
    cr_assert_eq(gr_grammar_state_new(&p.grammar, g), 0);
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, &r), 0, "%s", gr_error_message());
    cr_expect(t.n == 5 && t.p[0] == ' ' && t.p[4] == '.' && r.end == GR_END_EOG, "'%.*s'", (int)t.n,
              t.p);
    cr_expect(gr_grammar_may_end(p.grammar));
    gr_grammar_state_free(&p.grammar);
    gr_grammar_free(&g);
    gr_model_close(&m);
}

Test(generate, refuses)
{
    struct gr_model *m = open_model();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_sampler_params bad = gr_sampler_params_default();
    struct gr_generate_params p = gr_generate_params_default();
    struct gr_generated r;
    struct gr_session *s;
    const int32_t none = 1 << 30, some = 5;
    const char *const empty = "";
    cr_assert_eq(gr_session_open(&s, m, &sp), 0);
    cr_expect_eq(gr_generate_tokens(s, 0, &some, 0, &p, &r), GR_E_INVALID);
    cr_expect_eq(gr_generate_tokens(s, 0, &none, 1, &p, &r), GR_E_INVALID);
    p.n_predict = 3;
    cr_expect_eq(gr_generate_tokens(s, 7, &some, 1, &p, &r), GR_E_INVALID);
    bad.top_p = NAN, p.sampler = &bad;
    cr_expect_eq(gr_generate_tokens(s, 0, &some, 1, &p, &r), GR_E_INVALID);
    p.sampler = NULL, p.stop = &empty, p.n_stop = 1;
    cr_expect_eq(gr_generate_tokens(s, 0, &some, 1, &p, &r), GR_E_INVALID);
    cr_expect_eq(gr_kv_used(s), 0);
    gr_session_close(&s);
    sp.embeddings = true;
    cr_expect_eq(gr_generate(m, "a", 1, &sp, NULL, &r), GR_E_INVALID);
    cr_expect(strstr(gr_error_message(), "embeddings"), "%s", gr_error_message());
    gr_model_close(&m);
}

/* Every allocation of a call fails once: an error, and nothing is lost. */
Test(generate, survives_failing_allocations)
{
    struct gr_model *m = open_model();
    const char *const stop[] = {"zebra"};
    struct text t;
    struct gr_generate_params p = params_for(&t, 3);
    struct gr_generated r;
    int rc = GR_E_NOMEM_HOST, n_failed = 0;
    p.stop = stop, p.n_stop = 1;
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, &r), 0); /* weights are placed */
    size_t held = gr_alloc_held(NULL);
    for (uint64_t k = 1; rc; k++) {
        t.n = 0;
        (void)gr_alloc_fail_at(k, 0);
        rc = gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, &r);
        (void)gr_alloc_fail_at(0, 0);
        cr_assert(!rc || rc == GR_E_NOMEM_HOST, "allocation %llu: %s", (unsigned long long)k,
                  gr_error_message());
        cr_assert(!rc || gr_alloc_held(NULL) == held, "allocation %llu: memory is lost",
                  (unsigned long long)k);
        n_failed += rc != 0;
    }
    cr_expect_gt(n_failed, 30);
    gr_model_close(&m);
}

/* ---- optional calls ---- */

struct call {
    char arguments[256]; /* without blanks */
    size_t n;
    int n_done;
};

static int take_call(const struct gr_answer_delta *d, void *user)
{
    struct call *c = user;
    cr_assert(d->part != GR_ANSWER_TEXT && d->part != GR_ANSWER_WITHDRAWN);
    for (size_t i = 0; d->part == GR_ANSWER_ARGUMENTS && i < d->n; i++)
        if (!strchr(" \n", d->text[i]) && c->n + 1 < sizeof c->arguments)
            c->arguments[c->n++] = d->text[i];
    c->n_done += d->part == GR_ANSWER_DONE;
    return 0;
}

static struct gr_grammar_state *open_optional(const struct gr_model *m)
{
    static const char tools[] =
        "[{\"name\": \"set\", \"parameters\": {\"properties\": {\"unit\": {\"enum\": [\"C\", "
        "\"F\"]}, \"days\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 14}}, "
        "\"required\": [\"unit\", \"days\"], \"additionalProperties\": false}}]";
    struct gr_answer_calls calls = {
        .format = "hermes", .tools = tools, .n_tools = sizeof tools - 1, .optional = true};
    struct gr_grammar *g;
    struct gr_grammar_state *state;
    cr_assert_eq(gr_answer_grammar(&g, m, &calls), 0, "%s", gr_error_message());
    cr_assert_eq(gr_grammar_state_new(&state, g), 0);
    gr_grammar_free(&g);
    return state;
}

/* Text is what it is without the grammar; a call that has begun becomes a valid one, whatever the
 * model would write. */
Test(generate, optional_calls)
{
    static const char begun[] = "I look.\n<tool_call>";
    struct gr_model *m = open_model();
    struct gr_sampler_params sp = gr_sampler_params_default();
    struct gr_grammar_state *state = open_optional(m);
    struct text free_text, t;
    struct gr_generate_params p = params_for(&free_text, N_PREDICT);
    int32_t *ids;
    size_t n;
    sp.temp = 0, p.sampler = &sp;
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, NULL), 0);
    p = params_for(&t, N_PREDICT), p.sampler = &sp, p.grammar = state;
    cr_assert_eq(gr_generate(m, PROMPT, strlen(PROMPT), NULL, &p, NULL), 0, "%s",
                 gr_error_message());
    expect_text(&t, free_text.p, free_text.n);

    cr_assert_eq(gr_text_tokenize(m, begun, strlen(begun), false, false, &ids, &n), 0);
    for (int seed = 0; seed < 8; seed++) {
        struct gr_generated r;
        struct call c = {.n = 0};
        struct gr_answer_params params = {.format = "hermes",
                                          .prompt = "<tool_call>",
                                          .n_prompt = strlen("<tool_call>"),
                                          .fn = take_call,
                                          .user = &c};
        struct gr_answer *a;
        char unit;
        int days = 0, end = 0;
        gr_grammar_state_reset(state);
        for (size_t i = 0; i < n; i++)
            cr_assert_eq(gr_grammar_accept(state, ids[i]), 0, "%s", gr_error_message());
        p = params_for(&t, 200), p.sampler = &sp, p.grammar = state;
        sp.temp = 2, sp.seed = (uint64_t)seed;
        cr_assert_eq(gr_generate(m, begun, strlen(begun), NULL, &p, &r), 0, "%s",
                     gr_error_message());
        cr_expect_eq(r.end, GR_END_EOG, "%.*s", (int)t.n, t.p);
        cr_assert_eq(gr_answer_new(&a, &params), 0, "%s", gr_error_message());
        cr_assert_eq(gr_answer_push(a, t.p, t.n), 0);
        cr_assert_eq(gr_answer_end(a), 0);
        gr_answer_free(&a);
        cr_expect(sscanf(c.arguments, "{\"unit\":\"%c\",\"days\":%d}%n", &unit, &days, &end) == 2 &&
                      end == (int)c.n && strchr("CF", unit) && days >= 1 && days <= 14,
                  "%.*s", (int)t.n, t.p);
        cr_expect_eq(c.n_done, 1);
    }
    gr_free_ids(ids);
    gr_grammar_state_free(&state);
    gr_model_close(&m);
}
