/* The chain: names, order, what a device can draw, breakers, and the values of a model's file. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gpurun.h"
#include "gr/status.h"
#include "model/model.h"
#include "sample/breakers.h"
#include "sample/sampler.h"
#include "support/tiny.h"

#define N_VOCAB 20

static struct gr_sampler_params plain(const char *samplers)
{
    struct gr_sampler_params p = gr_sampler_params_default();
    p.n_vocab = N_VOCAB, p.n_ctx = 64, p.seed = 3, p.temp = 1;
    snprintf(p.samplers, sizeof p.samplers, "%s", samplers);
    return p;
}

static struct gr_sampler *open_sampler(const struct gr_sampler_params *p)
{
    struct gr_sampler *s;
    cr_assert_eq(gr_sampler_new(&s, p), 0, "%s", gr_error());
    return s;
}

Test(chain, names)
{
    char letters[GR_MAX_SAMPLERS] = "x", many[40 * 6] = "";
    cr_assert_eq(gr_sampler_letters("penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;"
                                    "temperature;adaptive_p",
                                    letters),
                 0);
    cr_expect_str_eq(letters, "edskypmxta");
    cr_expect_str_eq(letters, gr_sampler_params_default().samplers);
    cr_assert_eq(gr_sampler_letters("top-k;temp;nucleus;typical;top_k", letters), 0);
    cr_expect_str_eq(letters, "ktpyk");
    cr_assert_eq(gr_sampler_letters("", letters), 0);
    cr_expect_str_eq(letters, "");
    cr_expect_eq(gr_sampler_letters("top_k;warm", letters), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "'warm'") && strstr(gr_error(), "min_p (m)"), "%s", gr_error());
    cr_expect_eq(gr_sampler_letters("top_k;;temp", letters), GR_E_INVALID);
    for (int i = 0; i < GR_MAX_SAMPLERS; i++)
        strcat(many, "xtc;");
    cr_expect_eq(gr_sampler_letters(many, letters), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "at most 31"), "%s", gr_error());
    struct gr_sampler_params p = plain("");
    struct gr_sampler *s;
    memset(p.samplers, 'k', sizeof p.samplers);
    cr_expect_eq(gr_sampler_new(&s, &p), GR_E_INVALID);
}

/* Filters behind a greedy draw change nothing, and look at nothing. */
Test(chain, behind_a_greedy_draw)
{
    static const struct {
        char samplers[4];
        bool looks;
    } c[] = {{"edt", true}, {"dt", true}, {"et", true}, {"ktd", false}, {"tde", false}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct gr_sampler_params p = plain(c[i].samplers);
        p.temp = 0, p.dry_multiplier = 1, p.penalty_repeat = 2, p.penalty_last_n = 8;
        struct gr_sampler *s = open_sampler(&p);
        cr_expect_eq(gr_sampler_looks_back(s), c[i].looks, "%s", c[i].samplers);
        gr_sampler_free(&s);
    }
}

/* XTC at its probability: with it the last likely token stands for all of them. */
Test(chain, xtc_frequencies)
{
    struct gr_sampler_params p = plain("x");
    float logits[N_VOCAB];
    double seen[N_VOCAB] = {0}, chi = 0, n = 60000, sum = 0, rest = 0;
    for (int32_t i = 0; i < N_VOCAB; i++)
        sum += exp(logits[i] = i < 4 ? 3 - 0.25f * (float)i : 0);
    p.xtc_probability = 0.3f;
    struct gr_sampler *s = open_sampler(&p);
    for (int i = 0; i < 60000; i++) {
        int32_t id;
        cr_assert_eq(gr_sampler_pick(s, logits, &id), 0);
        seen[id]++;
    }
    for (int32_t i = 3; i < N_VOCAB; i++)
        rest += exp(logits[i]);
    for (int32_t i = 0; i < N_VOCAB; i++) { /* tokens 0 to 3 have more than 0.1 */
        double want = 0.7 * exp(logits[i]) / sum + (i >= 3 ? 0.3 * exp(logits[i]) / rest : 0);
        chi += (seen[i] - n * want) * (seen[i] - n * want) / (n * want);
    }
    cr_assert_lt(chi, 43.8, "chi-square %g, 19 degrees of freedom, 0.1%%", chi);
    gr_sampler_free(&s);
}

/* The mean probability of what adaptive-p draws is near the target, as far as the logits allow. */
Test(chain, adaptive_p_comes_near_the_probability)
{
    const float targets[] = {0.1f, 0.3f, 0.5f};
    for (int k = 0; k < 3; k++) {
        struct gr_sampler_params p = plain("a");
        struct gr_rng rng = gr_rng_new(9);
        double mean = 0;
        p.adaptive_target = targets[k];
        struct gr_sampler *s = open_sampler(&p);
        for (int i = 0; i < 8000; i++) {
            float logits[N_VOCAB];
            double sum = 0;
            int32_t id;
            for (int32_t j = 0; j < N_VOCAB; j++)
                sum += exp(logits[j] = 2 * gr_rng_normal(&rng));
            cr_assert_eq(gr_sampler_pick(s, logits, &id), 0);
            cr_assert_eq(gr_sampler_accept(s, id), 0);
            mean += exp(logits[id]) / sum / 8000;
        }
        cr_expect_float_eq(mean, targets[k], 0.09, "target %g: %g", (double)targets[k], mean);
        gr_sampler_free(&s);
    }
}

/* A device draws what it can to the letter; the host does the rest. */
Test(chain, what_a_device_draws)
{
    static const struct {
        const char *samplers, *missing;
        float temp;
    } c[] = {
        {"edskypmxta", NULL, 0.8f},
        {"ekpmt", NULL, 0.8f},
        {"kt", NULL, 0.8f},
        {"", NULL, 0.8f},
        {"tk", "top_k", 0.8f},
        {"kpet", "penalties", 0.8f},
        {"et", NULL, 0},
        {"te", NULL, 0},
        {"pkt", "top_k", 0.8f},
        {"pkt", NULL, 0},
        {"kkt", "top_k", 0.8f},
        {"dkt", "dry", 0},
        {"skt", "top_n_sigma", 0.8f},
        {"kta", "adaptive_p", 1},
        {"kyt", "typ_p", 0},
        {"kxt", "xtc", 0.8f},
        {"skt", NULL, 0},
        {"kt", "dynamic", -0.5f},
    };
    for (size_t i = 0; i < GR_COUNT(c); i++) {
        struct gr_sampler_params p = plain(c[i].samplers);
        bool all = !strcmp(c[i].samplers, "edskypmxta"); /* as they are by default */
        p.temp = fabsf(c[i].temp), p.penalty_freq = 0.1f;
        p.dynatemp_range = c[i].temp < 0 ? 0.2f : 0;
        p.dry_multiplier = all ? 0 : 1, p.top_n_sigma = all ? -1 : 1;
        p.xtc_probability = all ? 0 : 0.5f, p.adaptive_target = all ? -1 : 0.3f;
        p.typical_p = all ? 1 : 0.9f;
        struct gr_sampler *s = open_sampler(&p);
        int rc = gr_sampler_fits_device(s, N_VOCAB);
        cr_expect_eq(rc, c[i].missing ? GR_E_UNSUPPORTED : 0, "%s", c[i].samplers);
        cr_expect(!rc || strstr(gr_error(), c[i].missing), "%s: %s", c[i].samplers, gr_error());
        if (!rc) {
            struct gr_sample_row row = gr_sampler_next(s);
            bool k = strchr(c[i].samplers, 'k'), t = strchr(c[i].samplers, 't');
            bool e = !strncmp(c[i].samplers, "e", 1); /* before the draw */
            const struct gr_sample_edit *edits;
            cr_assert_eq(gr_sampler_accept(s, 5), 0);
            cr_expect_eq(gr_sampler_edits(s, &edits), e, "%s", c[i].samplers);
            cr_expect_eq(row.top_k, k ? 40 : 0, "%s", c[i].samplers);
            cr_expect_eq(row.temp, t ? c[i].temp : 1, "%s", c[i].samplers);
            gr_sampler_finish(s, false);
        }
        gr_sampler_free(&s);
    }
}

/* Logits divided by a temperature beyond the range of floats are in order still. */
Test(chain, smallest_temperatures)
{
    static const float offsets[] = {1, -30};
    for (int k = 0; k < 2; k++) {
        struct gr_sampler_params p = plain("te");
        float logits[N_VOCAB];
        int32_t id;
        p.temp = 1e-38f, p.penalty_freq = 0.1f;
        for (int32_t i = 0; i < N_VOCAB; i++)
            logits[i] = offsets[k] + (float)(i * 7 % N_VOCAB);
        struct gr_sampler *s = open_sampler(&p);
        for (int i = 0; i < 20; i++) {
            cr_assert_eq(gr_sampler_pick(s, logits, &id), 0);
            cr_expect_eq(id, 17, "token %d at offset %g", id, (double)offsets[k]);
        }
        gr_sampler_free(&s);
    }
}

/* ---- breakers ---- */

static bool has(const struct gr_breakers *b, int32_t head, int32_t n_tail, int32_t first)
{
    const struct gr_breaker *item = b->item.data;
    const int32_t *tail = b->tail.data;
    for (size_t i = 0; i < b->item.n; i++)
        if (item[i].head == head && item[i].n_tail == n_tail &&
            (!n_tail || tail[item[i].tail] == first))
            return true;
    return false;
}

enum { N_PIECE = 9 };

/* Bytes, and pieces behind them. */
static struct gr_vocab *open_vocab(void)
{
    static const char *const pieces[N_PIECE] = {"a",   "b", "ab", "xa", "aab",
                                                "bca", "c", "bc", "cab"};
    struct gr_str tokens[256 + N_PIECE];
    static char bytes[256][8];
    static float scores[256 + N_PIECE];
    static int32_t types[256 + N_PIECE];
    struct gr_vocab_source source = gr_vocab_source_new("llama");
    for (int i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", i);
        tokens[i] = (struct gr_str){bytes[i], 6}, types[i] = GR_TOKEN_BYTE;
    }
    for (size_t i = 0; i < N_PIECE; i++) {
        tokens[256 + i] = (struct gr_str){pieces[i], strlen(pieces[i])};
        types[256 + i] = GR_TOKEN_NORMAL, scores[256 + i] = -(float)i;
    }
    source.tokens = tokens, source.n_tok = GR_COUNT(tokens);
    source.scores = scores, source.n_scores = GR_COUNT(tokens);
    source.types = types, source.n_types = GR_COUNT(tokens);
    source.add_space_prefix = 0;
    struct gr_vocab *v;
    cr_assert_eq(gr_vocab_open_source(&v, &source), 0, "%s", gr_error());
    return v;
}

Test(chain, breakers_of_a_text)
{
    struct gr_vocab *v = open_vocab();
    struct gr_breakers b = {0};
    cr_assert_eq(gr_breakers_add_text(&b, v, "ab"), 0, "%s", gr_error());
    cr_expect(has(&b, 256 + 2, 0, 0) && has(&b, 256 + 4, 0, 0) && has(&b, 256 + 8, 0, 0),
              "tokens that contain it");
    cr_expect(has(&b, 256, 1, 257) && has(&b, 256 + 3, 1, 257) && has(&b, 256 + 5, 1, 257) &&
                  has(&b, 'a', 1, 257),
              "tokens that end with its beginning, and the token of the rest");
    cr_expect_eq(b.item.n, 7);
    gr_breakers_fini(&b);
    gr_vocab_close(&v);
}

/* Draws a text; returns it as a number. */
static uint64_t draw(struct gr_sampler *s, int32_t n_vocab)
{
    float logits[256 + N_PIECE];
    uint64_t sum = 0;
    int32_t id;
    for (int i = 0; i < 60; i++) {
        for (int32_t k = 0; k < n_vocab; k++)
            logits[k] = k < 256 ? -9 : (float)(k * 7 % 5);
        cr_assert_eq(gr_sampler_pick(s, logits, &id), 0);
        cr_assert_eq(gr_sampler_accept(s, id), 0);
        sum = sum * 31 + (uint64_t)id;
    }
    return sum;
}

/* A sampler that is like another one is the one that the parameters make, whatever became of the
 * other one. */
Test(chain, like_another)
{
    static const char *const breakers[] = {"ab", "c"};
    struct gr_vocab *v = open_vocab();
    struct gr_model model = {.vocab = v};
    struct gr_logit_bias bias[] = {{257, 1}, {257, 0.5f}, {3, -INFINITY}};
    uint64_t drawn[5] = {0};
    for (uint64_t k = 0; k < GR_COUNT(drawn); k++) {
        struct gr_sampler_params p = plain("edkt");
        struct gr_sampler *s, *like, *other;
        p.n_vocab = 256 + N_PIECE, p.model = k == 4 ? NULL : &model;
        p.dry_multiplier = k == 3 ? 0 : 2, p.dry_allowed_length = 1, p.dry_penalty_last_n = -1;
        p.dry_breakers = breakers, p.n_dry_breakers = 2;
        p.penalty_repeat = 1.5f, p.penalty_last_n = 5;
        p.logit_bias = bias, p.n_logit_bias = 3;
        p.temp = k == 2 ? 0 : 1;
        s = open_sampler(&p);
        (void)draw(s, p.n_vocab);
        cr_assert_eq(gr_sampler_new_like(&other, s, k), 0);
        cr_assert_eq(gr_sampler_new_like(&like, other, k), 0);
        gr_sampler_free(&s);
        gr_sampler_free(&other);
        p.seed = k;
        s = open_sampler(&p);
        drawn[k] = draw(s, p.n_vocab);
        cr_expect_eq(draw(like, p.n_vocab), drawn[k], "%d", (int)k);
        gr_sampler_free(&s);
        gr_sampler_free(&like);
    }
    cr_expect(drawn[0] != drawn[1] && drawn[1] != drawn[3] && drawn[3] != drawn[4]);
    gr_vocab_close(&v);
}

/* A token that would continue a repetition is not drawn; without a model nothing breaks it. */
Test(chain, dry_without_a_model)
{
    struct gr_sampler_params p = plain("d");
    static const int32_t text[] = {7, 8, 9, 10, 7, 8, 9};
    float logits[N_VOCAB] = {0};
    int32_t id;
    p.dry_multiplier = 1000;
    logits[10] = 5;
    struct gr_sampler *s = open_sampler(&p);
    for (size_t i = 0; i < GR_COUNT(text); i++)
        cr_assert_eq(gr_sampler_accept(s, text[i]), 0);
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(gr_sampler_pick(s, logits, &id), 0);
        cr_assert_neq(id, 10);
    }
    gr_sampler_free(&s);
}

/* ---- the values of a model's file ---- */

static void write_values(struct gr_gguf_writer *w, const struct tiny *t)
{
    (void)t;
    cr_assert_eq(gr_gguf_set_f32(w, "general.sampling.temp", 0.6f), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "general.sampling.top_k", 20), 0);
    cr_assert_eq(gr_gguf_set_f32(w, "general.sampling.top_p", 7), 0); /* off */
    cr_assert_eq(gr_gguf_set_f32(w, "general.sampling.min_p", 7), 0); /* out of range */
    cr_assert_eq(gr_gguf_set_f32(w, "general.sampling.penalty_last_n", 1.5f), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "general.sampling.penalty_repeat", 1), 0);
    cr_assert_eq(gr_gguf_set_str(w, "general.sampling.xtc_threshold", "0.2"), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "general.sampling.mirostat", 3), 0);
    cr_assert_eq(gr_gguf_set_f32(w, "general.sampling.mirostat_tau", 4), 0);
    cr_assert_eq(gr_gguf_set_str(w, "general.sampling.sequence", "top_k;temp"), 0);
}

static int n_warned;
static void count_warnings(enum gr_log_level level, const char *line, void *user)
{
    (void)user;
    n_warned += level == GR_LOG_WARN && strstr(line, "is ignored");
}

Test(chain, values_of_a_file)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.edit = write_values;
    struct gr_model *m = tiny_open(&t);
    struct gr_sampler_params p = gr_sampler_params_default();
    gr_log_set(count_warnings, NULL);
    cr_expect_eq(gr_model_sampling(m, &p), 6);
    gr_log_set(NULL, NULL);
    cr_expect_eq(n_warned, 4);
    cr_expect(p.temp == 0.6f && p.top_k == 20 && p.top_p == 7 && p.min_p == 0.05f);
    cr_expect(p.penalty_last_n == 64 && p.penalty_repeat == 1 && p.xtc_threshold == 0.1f);
    cr_expect(p.mirostat == 0 && p.mirostat_tau == 4);
    cr_expect_str_eq(p.samplers, "kt");
    gr_model_close(&m);
    t.edit = NULL;
    m = tiny_open(&t);
    cr_expect_eq(gr_model_sampling(m, &p), 0);
    gr_model_close(&m);
}
