/* Texts with drafts against texts without, on tiny models. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_TEXT 40
#define N_PROMPT 9

TestSuite(drafts, .timeout = 120);

/* A model, and another of the same vocabulary that agrees with it never, or always. */
struct pair {
    struct gr_model *model, *other;
    char arch[32];
};

static struct pair open_pair(const char *arch, uint64_t seed)
{
    struct pair p = {.model = NULL};
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    snprintf(p.arch, sizeof p.arch, "%s", arch);
    p.model = tiny_open(&t);
    t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.seed = seed;
    p.other = seed ? tiny_open(&t) : NULL;
    return p;
}

static void close_pair(struct pair *p)
{
    gr_model_close(&p->model);
    gr_model_close(&p->other);
}

static struct gr_session *open_session(struct gr_model *m, uint32_t n_rollback)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 1024, p.n_rollback = n_rollback, p.swa_full = true;
    return tiny_session_at(m, GR_CPU_REF, &p);
}

static struct gr_sampler *open_sampler(const struct gr_model *m, int kind)
{
    struct gr_sampler_params p = gr_sampler_params_default();
    struct gr_sampler *s;
    p.n_vocab = m->hp.n_vocab, p.n_ctx = 256, p.seed = 11;
    p.temp = kind == 0 ? 0 : 0.7f;
    if (kind == 2) { /* all that look back, and more */
        p.penalty_repeat = 1.2f, p.penalty_freq = 0.1f, p.dry_multiplier = 0.8f;
        p.dry_allowed_length = 1, p.xtc_probability = 0.3f, p.adaptive_target = 0.2f;
    } else if (kind == 3) {
        p.mirostat = 2;
    }
    cr_assert_eq(gr_sampler_new(&s, &p), 0, "%s", gr_error());
    return s;
}

/* Runs a prompt that repeats itself and picks the first token. */
static int32_t begin(struct gr_session *s, struct gr_sampler *sampler, struct gr_draft *d)
{
    const int32_t prompt[N_PROMPT] = {5, 6, 7, 8, 5, 6, 7, 8, 5};
    int32_t id;
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = N_PROMPT, .token = prompt}), 0);
    for (int i = 0; i < N_PROMPT; i++)
        cr_assert_eq(gr_sampler_accept(sampler, prompt[i]), 0);
    cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), &id), 0, "%s", gr_error());
    cr_assert_eq(gr_sampler_accept(sampler, id), 0);
    if (d) {
        cr_assert_eq(gr_draft_accept(d, prompt, N_PROMPT), 0);
        cr_assert_eq(gr_draft_accept(d, &id, 1), 0);
    }
    return id;
}

static void write_plain(const struct pair *p, int kind, int32_t *text)
{
    struct gr_session *s = open_session(p->model, 0);
    struct gr_sampler *sampler = open_sampler(p->model, kind);
    text[0] = begin(s, sampler, NULL);
    for (int i = 1; i < N_TEXT; i++) {
        cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = &text[i - 1]}), 0);
        cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), &text[i]), 0);
        cr_assert_eq(gr_sampler_accept(sampler, text[i]), 0);
    }
    gr_sampler_free(&sampler);
    gr_session_close(&s);
}

enum source { TEXT, SAME, OTHER };

/* Opens a draft of one source, and the session that it needs. */
static struct gr_draft *open_draft(const struct pair *p, enum source source, bool adaptive,
                                   struct gr_session **session)
{
    struct gr_draft_params q = gr_draft_params_default();
    struct gr_draft *d;
    q.n_max = 6, q.n_gram = source == TEXT ? 2 : 0, q.adaptive = adaptive;
    q.model = source == TEXT ? NULL : source == SAME ? p->model : p->other;
    *session = q.model ? open_session((struct gr_model *)(uintptr_t)q.model, 7) : NULL;
    q.session = *session;
    cr_assert_eq(gr_draft_new(&d, &q, p->model), 0, "%s", gr_error());
    return d;
}

static struct gr_draft_stats write_drafted(const struct pair *p, int kind, enum source source,
                                           bool adaptive, int32_t *text)
{
    struct gr_session *s = open_session(p->model, 7), *own;
    struct gr_sampler *sampler = open_sampler(p->model, kind);
    struct gr_draft *d = open_draft(p, source, adaptive, &own);
    text[0] = begin(s, sampler, d);
    for (int32_t i = 1, n; i < N_TEXT; i += n) {
        cr_assert_eq(gr_draft_step(d, s, 0, sampler, N_TEXT - i, text + i, &n), 0, "%s: %s",
                     p->arch, gr_error());
        cr_assert(n >= 1 && n <= N_TEXT - i);
        cr_assert_eq(gr_kv_seq_pos_max(s, 0), N_PROMPT + i + n - 2, "all but the last are cached");
    }
    struct gr_draft_stats stats = gr_draft_stats(d);
    cr_expect_eq(stats.n_token, N_TEXT - 1);
    cr_expect_eq(stats.n_step + stats.n_accepted, stats.n_token);
    gr_draft_free(&d);
    gr_session_close(&own);
    gr_sampler_free(&sampler);
    gr_session_close(&s);
    return stats;
}

static void expect_same(const struct pair *p, const int32_t *a, const int32_t *b, int kind,
                        int source)
{
    for (int i = 0; i < N_TEXT; i++)
        cr_assert_eq(a[i], b[i], "%s, sampler %d, source %d: token %d is %d, not %d", p->arch, kind,
                     source, i, b[i], a[i]);
}

/* Greedy and with every kind of sampler: the same tokens as without drafts. */
Test(drafts, leave_the_text_as_it_is)
{
    static const char *const archs[] = {"llama", "gemma3", "gpt2", "jamba"};
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        struct pair p = open_pair(archs[a], 77);
        for (int kind = 0; kind < 4; kind += a ? 2 : 1) {
            int32_t plain[N_TEXT], text[N_TEXT];
            write_plain(&p, kind, plain);
            for (int source = TEXT; source <= OTHER; source++) {
                struct gr_draft_stats s = write_drafted(&p, kind, (enum source)source, a % 2, text);
                expect_same(&p, plain, text, kind, source);
                if (source == SAME && kind == 0 && a % 2 == 0)
                    cr_expect(s.n_step < N_TEXT / 4, "%s: %lld steps with itself as the draft",
                              p.arch, (long long)s.n_step);
            }
        }
        close_pair(&p);
    }
}

/* A text that repeats itself is drafted from itself. */
Test(drafts, repetitions_are_accepted)
{
    struct pair p = open_pair("llama", 0);
    struct gr_session *s = open_session(p.model, 0), *own;
    struct gr_sampler_params q = gr_sampler_params_default();
    struct gr_logit_bias bias = {9, INFINITY};
    struct gr_sampler *sampler;
    struct gr_draft *d = open_draft(&p, TEXT, false, &own);
    int32_t ids[8], n, first = 0;
    q.n_vocab = p.model->hp.n_vocab, q.logit_bias = &bias, q.n_logit_bias = 1;
    cr_assert_eq(gr_sampler_new(&sampler, &q), 0);
    first = begin(s, sampler, d);
    cr_assert_eq(first, 9);
    for (int i = 0; i < 12; i++)
        cr_assert_eq(gr_draft_step(d, s, 0, sampler, 7, ids, &n), 0);
    struct gr_draft_stats stats = gr_draft_stats(d);
    cr_expect(n == 7 && stats.n_accepted == stats.n_drafted && stats.n_accepted >= 54,
              "%d, %lld of %lld", n, (long long)stats.n_accepted, (long long)stats.n_drafted);
    gr_draft_free(&d);
    gr_sampler_free(&sampler);
    gr_session_close(&s);
    close_pair(&p);
}

/* Frequencies of the second token behind the prompt, which a draft model that agrees at times has
 * drafted, against its probability over all first tokens. */
Test(drafts, leave_the_distribution_as_it_is)
{
    struct pair p = open_pair("llama", 0);
    int32_t n_vocab = p.model->hp.n_vocab, prompt[2] = {5, 6}, runs = 3000, drafted = 0;
    double want[256] = {0}, seen[256] = {0}, chi = 0;
    struct gr_session *s = open_session(p.model, 0), *own;
    int classes = 0;
    cr_assert_leq(n_vocab, 256);
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 2, .token = prompt}), 0);
    float first[256];
    double sum = 0;
    memcpy(first, gr_logits(s, -1), (size_t)n_vocab * sizeof *first);
    for (int32_t i = 0; i < n_vocab; i++)
        sum += exp(2 * (double)first[i]);
    for (int32_t i = 0; i < n_vocab; i++) {
        double all = 0, p_first = exp(2 * (double)first[i]) / sum;
        cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = &i}), 0);
        const float *x = gr_logits(s, -1);
        for (int32_t j = 0; j < n_vocab; j++)
            all += exp(2 * (double)x[j]);
        for (int32_t j = 0; j < n_vocab; j++)
            want[j] += p_first * exp(2 * (double)x[j]) / all;
        cr_assert_eq(gr_kv_seq_rm(s, 0, 2, -1), 0);
    }
    struct gr_sampler_params q = gr_sampler_params_default();
    struct gr_sampler *sampler;
    q.n_vocab = n_vocab, q.temp = 0.5f, q.top_k = 0, q.top_p = 1, q.min_p = 0, q.seed = 21;
    cr_assert_eq(gr_sampler_new(&sampler, &q), 0);
    own = open_session(p.model, 2);
    struct gr_draft_params dp = {.n_max = 1, .model = p.model, .session = own};
    for (int32_t i = 0; i < runs; i++) { /* the last token of the prompt is decoded again */
        struct gr_draft *d;
        int32_t ids[2], n, more;
        cr_assert_eq(gr_draft_new(&d, &dp, p.model), 0);
        cr_assert_eq(gr_kv_seq_rm(s, 0, 1, -1), 0);
        cr_assert_eq(gr_draft_accept(d, prompt, 2), 0);
        cr_assert_eq(gr_draft_step(d, s, 0, sampler, 2, ids, &n), 0, "%s", gr_error());
        drafted += n == 2;
        if (n == 1)
            cr_assert_eq(gr_draft_step(d, s, 0, sampler, 1, ids + 1, &more), 0);
        seen[ids[1]]++;
        gr_draft_free(&d);
    }
    for (int32_t j = 0; j < n_vocab; j++) {
        double e = runs * want[j];
        if (e < 5)
            continue;
        chi += (seen[j] - e) * (seen[j] - e) / e, classes++;
    }
    cr_assert_lt(chi, classes + 5 * sqrt(2.0 * classes), "chi-square %g of %d classes", chi,
                 classes);
    cr_assert(classes > 10 && drafted > runs / 100 && drafted < runs, "%d classes, %d drafted",
              classes, drafted);
    gr_sampler_free(&sampler);
    gr_session_close(&own);
    gr_session_close(&s);
    close_pair(&p);
}

/* The plain level of the CPU is what makes texts with drafts equal those without to the bit. */
Test(drafts, logits_do_not_depend_on_the_batch)
{
    static const char *const archs[] = {"llama", "gemma3", "qwen3moe", "jamba"};
    static const char *const types[] = {"f32", "q8_0", "q4_0", "f16"};
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){archs[a], strlen(archs[a])}));
        t.dtype = types[a];
        struct gr_model *m = tiny_open(&t);
        struct gr_session *one = open_session(m, 0), *many = open_session(m, 0);
        size_t bytes = (size_t)m->hp.n_vocab * sizeof(float);
        int8_t wanted[24];
        int32_t token[24];
        memset(wanted, 1, sizeof wanted);
        for (int32_t i = 0; i < 24; i++)
            token[i] = (i * 37 + 11) % m->hp.n_vocab;
        for (int32_t i = 0, n = 1; i + n <= 24; i += n, n++) {
            struct gr_batch batch = {.n_tok = n, .token = token + i, .logits = wanted};
            cr_assert_eq(gr_decode(many, &batch), 0);
            for (int32_t j = 0; j < n; j++) {
                batch = (struct gr_batch){.n_tok = 1, .token = token + i + j};
                cr_assert_eq(gr_decode(one, &batch), 0);
                cr_expect(!memcmp(gr_logits(one, 0), gr_logits(many, j), bytes),
                          "%s, %s: token %d of %d", archs[a], types[a], j, n);
            }
        }
        gr_session_close(&one);
        gr_session_close(&many);
        gr_model_close(&m);
    }
}

/* Every allocation failing once: a status, and the text goes on as if nothing had happened: a draft
 * model that is the model itself is right every time. */
Test(drafts, out_of_memory)
{
    struct pair p = open_pair("llama", 0);
    struct gr_session *s = open_session(p.model, 0), *own;
    struct gr_sampler *sampler = open_sampler(p.model, 0);
    struct gr_draft *d = open_draft(&p, SAME, false, &own);
    int32_t ids[8], n, n_failed = 0;
    (void)begin(s, sampler, d);
    for (uint64_t k = 1, done = 0; !done; k++) {
        gr_alloc_fail_at(k, 0);
        int rc = gr_draft_step(d, s, 0, sampler, 7, ids, &n);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_assert(rc == 0 || rc == GR_E_NOMEM_HOST, "%s", gr_error());
        n_failed += rc != 0;
        cr_assert_eq(gr_draft_step(d, s, 0, sampler, 7, ids, &n), 0, "%s", gr_error());
        cr_expect_eq(n, 7, "allocation %d: %d tokens", (int)k, n);
    }
    cr_expect_gt(n_failed, 0);
    gr_draft_free(&d);
    gr_alloc_fail_at(1, 0);
    struct gr_draft_params q = gr_draft_params_default();
    cr_expect_eq(gr_draft_new(&d, &q, p.model), GR_E_NOMEM_HOST);
    gr_alloc_fail_at(0, 0);
    cr_expect_null(d);
    gr_session_close(&own);
    gr_sampler_free(&sampler);
    gr_session_close(&s);
    close_pair(&p);
}

/* A step that fails in a full cache is right when it is repeated with room. */
Test(drafts, go_on_after_a_failure)
{
    struct pair p = open_pair("llama", 0);
    struct gr_session_params q = gr_session_params_default();
    q.n_ctx = 256, q.n_seq_max = 2;
    struct gr_session *s = tiny_session_at(p.model, GR_CPU_REF, &q), *own;
    struct gr_sampler *sampler = open_sampler(p.model, 0);
    struct gr_draft *d = open_draft(&p, SAME, false, &own);
    int32_t ids[8], n, fill[244], seq[244];
    for (int i = 0; i < 244; i++)
        fill[i] = 3, seq[i] = 1;
    (void)begin(s, sampler, d);
    for (int turn = 0; turn < 3; turn++) {
        struct gr_batch batch = {.n_tok = 244 - 7 * turn, .token = fill, .seq = seq};
        cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error());
        cr_expect_eq(gr_draft_step(d, s, 0, sampler, 7, ids, &n), GR_E_KV_FULL);
        cr_assert_eq(gr_kv_seq_rm(s, 1, -1, -1), 0);
        cr_assert_eq(gr_draft_step(d, s, 0, sampler, 7, ids, &n), 0, "%s", gr_error());
        cr_expect_eq(n, 7, "%d tokens", n);
    }
    gr_draft_free(&d);
    gr_session_close(&own);
    gr_sampler_free(&sampler);
    gr_session_close(&s);
    close_pair(&p);
}

/* ---- vocabularies ---- */

/* Token i is "w<i>", but for three control tokens. */
static void write_words(struct gr_gguf_writer *w, const struct tiny *t, uint32_t eos)
{
    static char text[128][8];
    struct gr_str token[128];
    float score[128] = {0};
    int32_t type[128];
    size_t n = (size_t)t->n_vocab;
    cr_assert_leq(n, 128);
    for (size_t i = 0; i < n; i++) {
        snprintf(text[i], sizeof text[i], i < 3 ? "<%zu>" : "w%zu", i);
        token[i] = (struct gr_str){text[i], strlen(text[i])};
        type[i] = i == 0 ? 2 : i < 3 ? 3 : 1;
    }
    cr_assert_eq(gr_gguf_set_str(w, "tokenizer.ggml.model", "llama"), 0);
    cr_assert_eq(gr_gguf_set_strs(w, "tokenizer.ggml.tokens", token, n), 0);
    cr_assert_eq(gr_gguf_set_array(w, "tokenizer.ggml.scores", GR_GGUF_F32, score, n), 0);
    cr_assert_eq(gr_gguf_set_array(w, "tokenizer.ggml.token_type", GR_GGUF_I32, type, n), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "tokenizer.ggml.bos_token_id", 1), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "tokenizer.ggml.eos_token_id", eos), 0);
}

static void words(struct gr_gguf_writer *w, const struct tiny *t)
{
    write_words(w, t, 2);
}

static void words_with_other_eos(struct gr_gguf_writer *w, const struct tiny *t)
{
    write_words(w, t, 7);
}

static struct gr_model *open_words(const char *arch,
                                   void (*edit)(struct gr_gguf_writer *w, const struct tiny *t))
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    t.edit = edit;
    return tiny_open(&t);
}

/* Expects the logits behind the last token of sequence 0 to be those of the text [n] alone. */
static void expect_logits(struct gr_model *m, struct gr_session *s, const int32_t *text, int32_t n)
{
    struct gr_session *fresh = open_session(m, 0);
    struct gr_batch last = {.n_tok = 1, .token = text + n - 1};
    cr_assert_eq(gr_decode(fresh, &(struct gr_batch){.n_tok = n, .token = text}), 0);
    cr_assert_eq(gr_decode(s, &last), 0, "%s", gr_error());
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), n - 1);
    cr_expect_lt(tiny_nmse(gr_logits(fresh, -1), gr_logits(s, -1), (size_t)m->hp.n_vocab), 1e-9);
    gr_session_close(&fresh);
}

/* A pick that fails inside a draft: the tokens before it are there, and the next step fails and
 * leaves the text as it was, also where states can only be removed as far as they were kept. */
static void fail_inside(const char *arch)
{
    static const char rule[] = "root ::= \"w7w8w5!\"";
    const int32_t prompt[] = {5, 6, 7, 8, 5, 6}, text[] = {5, 6, 7, 8, 5, 6, 7, 8, 5};
    struct gr_model *m = open_words(arch, words);
    struct gr_session *s = open_session(m, 7);
    struct gr_sampler *sampler = open_sampler(m, 0);
    struct gr_draft_params q = {.n_max = 6, .n_gram = 1};
    struct gr_grammar *g;
    struct gr_grammar_state *state;
    struct gr_draft *d;
    int32_t ids[7], n;
    cr_assert_eq(gr_grammar_gbnf(&g, m, rule, sizeof rule - 1), 0, "%s", gr_error());
    cr_assert_eq(gr_grammar_state_new(&state, g), 0);
    cr_assert_eq(gr_sampler_set_grammar(sampler, state), 0);
    cr_assert_eq(gr_draft_new(&d, &q, m), 0);
    cr_assert_eq(gr_draft_accept(d, prompt, 6), 0);
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 5, .token = prompt}), 0);
    cr_assert_eq(gr_draft_step(d, s, 0, sampler, 7, ids, &n), 0, "%s: %s", arch, gr_error());
    cr_assert(n == 3 && !memcmp(ids, text + 6, sizeof *ids * 3), "%s: %d tokens", arch, n);
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), 7);
    cr_expect_eq(gr_draft_step(d, s, 0, sampler, 7, ids, &n), GR_E_CHECK);
    cr_expect_eq(n, 0);
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), 7, "%s: nothing is left of the step", arch);
    expect_logits(m, s, text, 9);
    gr_draft_free(&d);
    gr_sampler_free(&sampler);
    gr_grammar_state_free(&state);
    gr_grammar_free(&g);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(drafts, keep_the_tokens_before_a_failure)
{
    fail_inside("llama");
    fail_inside("jamba");
}

/* Tokens of a step that are removed behind it, as after a stop string. */
Test(drafts, tokens_can_be_removed_after_a_step)
{
    static const char *const archs[] = {"llama", "jamba"};
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        struct pair p = open_pair(archs[a], 0);
        struct gr_session *s = open_session(p.model, 7), *own;
        struct gr_sampler *sampler = open_sampler(p.model, 0);
        struct gr_draft *d = open_draft(&p, SAME, false, &own);
        int32_t text[N_PROMPT + 8] = {5, 6, 7, 8, 5, 6, 7, 8, 5}, n;
        text[N_PROMPT] = begin(s, sampler, d);
        cr_assert_eq(gr_draft_step(d, s, 0, sampler, 7, text + N_PROMPT + 1, &n), 0);
        cr_assert_eq(n, 7);
        for (int32_t end = N_PROMPT + 5; end > N_PROMPT; end -= 2) {
            cr_assert_eq(gr_kv_seq_rm(s, 0, end, -1), 0, "%s: %s", archs[a], gr_error());
            expect_logits(p.model, s, text, end + 1);
        }
        gr_draft_free(&d);
        gr_session_close(&own);
        gr_sampler_free(&sampler);
        gr_session_close(&s);
        close_pair(&p);
    }
}

/* Sessions with batches shorter than a text and a draft. */
Test(drafts, fit_into_batches)
{
    struct pair p = open_pair("llama", 0);
    struct gr_session_params q = gr_session_params_default();
    q.n_ctx = 1024, q.n_batch = q.n_ubatch = 4;
    struct gr_session *s = tiny_session_at(p.model, GR_CPU_REF, &q),
                      *own = tiny_session_at(p.model, GR_CPU_REF, &q);
    struct gr_sampler *sampler = open_sampler(p.model, 0);
    struct gr_draft_params dp = {.n_max = 6, .model = p.model, .session = own};
    struct gr_draft *d;
    const int32_t prompt[N_PROMPT] = {5, 6, 7, 8, 5, 6, 7, 8, 5};
    int32_t ids[7], n;
    cr_assert_eq(gr_draft_new(&d, &dp, p.model), 0);
    cr_assert_eq(gr_draft_accept(d, prompt, N_PROMPT), 0);
    for (int i = 0; i < 8; i += 4)
        cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 4, .token = prompt + i}), 0);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(gr_draft_step(d, s, 0, sampler, 7, ids, &n), 0, "%s", gr_error());
        cr_expect_eq(n, 4, "%d tokens", n);
    }
    gr_draft_free(&d);
    gr_session_close(&own);
    gr_sampler_free(&sampler);
    gr_session_close(&s);
    close_pair(&p);
}

/* A draft model with fewer tokens drafts again behind one that it does not have. */
Test(drafts, go_on_behind_an_unknown_token)
{
    struct pair p = open_pair("llama", 0);
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    const int32_t prompt[] = {5, 6, 95, 8, 95}, unknown = 95;
    struct gr_draft_params q = {.n_max = 3};
    struct gr_draft *d;
    int32_t ids[4], n;
    t.n_vocab = 90;
    struct gr_model *small = tiny_open(&t);
    struct gr_session *s = open_session(p.model, 0), *own = open_session(small, 0);
    struct gr_sampler_params sp = gr_sampler_params_default();
    struct gr_logit_bias bias = {9, INFINITY};
    struct gr_sampler *sampler;
    sp.n_vocab = p.model->hp.n_vocab, sp.logit_bias = &bias, sp.n_logit_bias = 1;
    cr_assert_eq(gr_sampler_new(&sampler, &sp), 0);
    q.model = small, q.session = own;
    cr_assert_eq(gr_draft_new(&d, &q, p.model), 0, "%s", gr_error());
    cr_assert_eq(gr_draft_accept(d, prompt, 5), 0);
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 4, .token = prompt}), 0);
    cr_assert_eq(gr_draft_step(d, s, 0, sampler, 4, ids, &n), 0, "%s", gr_error());
    cr_expect_eq(gr_draft_stats(d).n_drafted, 0);
    cr_assert_eq(gr_draft_step(d, s, 0, sampler, 4, ids, &n), 0, "%s", gr_error());
    cr_expect_eq(gr_draft_stats(d).n_drafted, 3);
    cr_assert_eq(gr_draft_accept(d, &unknown, 1), 0);
    cr_assert_eq(gr_draft_accept(d, prompt, 2), 0);
    cr_assert_eq(gr_draft_step(d, s, 0, sampler, 4, ids, &n), 0, "%s", gr_error());
    cr_expect_eq(gr_draft_stats(d).n_drafted, 6);
    gr_draft_free(&d);
    gr_sampler_free(&sampler);
    gr_session_close(&own);
    gr_session_close(&s);
    gr_model_close(&small);
    close_pair(&p);
}

/* ---- refusals ---- */

static void refuse(struct gr_draft_params p, const struct gr_model *target, const char *words)
{
    struct gr_draft *d = (void *)&p;
    cr_expect_eq(gr_draft_new(&d, &p, target), GR_E_INVALID, "%s", words);
    cr_expect_null(d);
    cr_expect(strstr(gr_error(), words), "%s", gr_error());
}

/* Real vocabularies that differ in the token that ends a text. */
Test(drafts, refuse_another_end)
{
    struct gr_model *m = open_words("llama", words), *other;
    struct gr_draft_params q = gr_draft_params_default();
    struct gr_draft *d;
    other = open_words("llama", words_with_other_eos);
    struct gr_session *s = open_session(other, 0), *same = open_session(m, 0);
    q.model = other, q.session = s;
    refuse(q, m, "texts begin and end with tokens 1 and 7");
    q.model = m, q.session = same;
    cr_expect_eq(gr_draft_new(&d, &q, m), 0, "%s", gr_error());
    gr_draft_free(&d);
    gr_session_close(&same);
    gr_session_close(&s);
    gr_model_close(&other);
    gr_model_close(&m);
}

Test(drafts, refuse_what_cannot_be)
{
    struct pair p = open_pair("llama", 5);
    struct gr_draft_params q = gr_draft_params_default();
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    q.n_max = 0;
    refuse(q, p.model, "n_max is 0");
    q.n_max = GR_MAX_DRAFT + 1;
    refuse(q, p.model, "n_max is 257");
    q = gr_draft_params_default(), q.p_min = NAN;
    refuse(q, p.model, "p_min is nan");
    q = gr_draft_params_default(), q.n_min = 17;
    refuse(q, p.model, "n_min is 17, at most n_max is expected, which is 16");
    q = gr_draft_params_default(), q.n_gram = -1;
    refuse(q, p.model, "n_gram is -1");
    q = gr_draft_params_default(), q.model = p.other;
    refuse(q, p.model, "a session of it");
    t.n_vocab += 300;
    struct gr_model *larger = tiny_open(&t);
    struct gr_session *s = open_session(larger, 0);
    q.model = larger, q.session = s;
    refuse(q, p.model, "both need the same vocabulary");
    gr_session_close(&s);
    gr_model_close(&larger);
    struct gr_draft *d;
    int32_t id, n;
    q = gr_draft_params_default();
    cr_assert_eq(gr_draft_new(&d, &q, p.model), 0);
    s = open_session(p.model, 0);
    cr_expect_eq(gr_draft_step(d, s, 0, NULL, 1, &id, &n), GR_E_INVALID, "no text");
    gr_draft_free(&d);
    gr_session_close(&s);
    close_pair(&p);
}
