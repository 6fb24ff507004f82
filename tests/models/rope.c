/* A session's rope parameters together with those of the model. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "arch/rope.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

static struct gr_session_params params(void)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1;
    return p;
}

/* 0 and NAN are what the model says: the same frequencies and the same magnitude. */
Test(rope, nothing_said)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    for (int scaling = GR_SCALING_MODEL; scaling <= GR_SCALING_LONGROPE; scaling++) {
        struct gr_session_params p = params(), q = params();
        p.rope_scaling = q.rope_scaling = (enum gr_rope_scaling)scaling;
        p.rope_freq_base = p.rope_freq_scale = 0;
        p.yarn_attn_factor = p.yarn_beta_fast = p.yarn_beta_slow = 0;
        q.rope_freq_base = q.rope_freq_scale = NAN;
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &q);
        const struct gr_rope_freqs *x = &a->env.rope[0], *y = &b->env.rope[0];
        cr_expect(x->mag.rope == 1 && x->mag.attn == 1, "%d: %g", scaling, (double)x->mag.rope);
        cr_expect(y->mag.rope == 1 && y->mag.attn == 1, "%d: %g", scaling, (double)y->mag.rope);
        cr_expect_eq(memcmp(x->freq.data, y->freq.data, (size_t)x->freq.row_bytes), 0);
        gr_session_close(&a);
        gr_session_close(&b);
    }
    gr_model_close(&m);
}

Test(rope, numbers_that_make_no_sense)
{
    static const float bad[] = {-1, INFINITY, -INFINITY};
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params();
    float *field[] = {&p.rope_freq_base, &p.rope_freq_scale, &p.yarn_attn_factor,
                      &p.yarn_beta_fast, &p.yarn_beta_slow,  &p.yarn_ext_factor};
    for (size_t f = 0; f < sizeof field / sizeof *field; f++)
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            struct gr_session *s;
            p = params();
            *field[f] = bad[k];
            cr_expect_eq(gr_session_open(&s, m, &p), GR_E_INVALID, "field %zu, %g", f,
                         (double)bad[k]);
            cr_expect_null(s);
        }
    p = params();
    p.yarn_orig_ctx = UINT32_MAX;
    struct gr_session *s;
    cr_expect_eq(gr_session_open(&s, m, &p), GR_E_INVALID);
    cr_expect_null(s);
    gr_model_close(&m);
}

/* Frequencies of YaRN by its definition, with heads that are rotated in part only. */
Test(rope, yarn_with_a_part_of_the_head)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    t.no_optional = true, t.n_rot = 10;
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params();
    p.rope_scaling = GR_SCALING_YARN, p.rope_freq_scale = 0.25f, p.yarn_orig_ctx = 64;
    struct gr_session *s = tiny_session(m, &p);
    const double *freq = s->env.rope[0].freq.data;
    cr_assert_eq(s->env.rope[0].freq.cols, 5);
    cr_expect_float_eq(s->env.rope[0].mag.rope, 1 + 0.1 * log(4), 1e-6);
    double lo = 10 * log(64 / (32 * 2 * M_PI)) / (2 * log(10000)),
           hi = 10 * log(64 / (1 * 2 * M_PI)) / (2 * log(10000));
    lo = fmax(0, floor(lo)), hi = fmin(9, ceil(hi));
    for (int i = 0; i < 5; i++) {
        double f = pow(10000, -i / 5.0), keep = 1 - fmin(1, fmax(0, (i - lo) / (hi - lo)));
        cr_expect_float_eq(freq[i], f * (keep + (1 - keep) / 4), 1e-12 * f, "pair %d", i);
    }
    gr_session_close(&s);
    gr_model_close(&m);
}

/* Contexts (of a sequence) up to the model's original length turn by the short divisors, longer
 * ones by the long ones; YaRN's original length of the session is something else. */
Test(rope, long_and_short_divisors)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"phi3", 4}));
    struct gr_model *m = tiny_open(&t);
    const struct {
        uint32_t n_ctx, orig, n_seq;
        bool unified, is_long;
    } cases[] = {{256, 0, 1, false, false},  {512, 0, 1, false, true},
                 {512, 512, 1, false, true}, {256, 128, 1, false, false},
                 {257, 256, 1, false, true}, {512, 0, 2, false, false},
                 {1024, 0, 2, false, true},  {512, 0, 2, true, true}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct gr_session_params p = params();
        p.n_ctx = cases[k].n_ctx, p.yarn_orig_ctx = cases[k].orig;
        p.n_seq_max = cases[k].n_seq, p.kv_unified = cases[k].unified;
        struct gr_session *s = tiny_session(m, &p);
        const float *divisor = m->weight[cases[k].is_long ? GR_W_ROPE_LONG : GR_W_ROPE_SHORT].data;
        const double *freq = s->env.rope[0].freq.data;
        for (int i = 0; i < 8; i++)
            cr_expect_float_eq(freq[i], pow(10000, -i / 8.0) / (double)divisor[i], 1e-12,
                               "case %zu, pair %d", k, i);
        gr_session_close(&s);
    }
    gr_model_close(&m);
}

/* M-RoPE: sections follow each other, or take turns until they are used up; too few begin again. */
Test(rope, sections)
{
    static struct gr_hparams hp;
    int32_t got[12];
    hp.rope.n_rot = hp.rope.n_rot_swa = 24;
    cr_expect(!gr_rope_sections(&hp, got));
    memcpy(hp.rope.section, (int32_t[]){2, 3, 4, 3}, sizeof hp.rope.section);
    cr_expect(gr_rope_sections(&hp, got));
    cr_expect_arr_eq(got, ((int32_t[]){0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3}), sizeof got);
    memcpy(hp.rope.section, (int32_t[]){2, 2, 1, 0}, sizeof hp.rope.section);
    cr_expect(gr_rope_sections(&hp, got));
    cr_expect_arr_eq(got, ((int32_t[]){0, 0, 1, 1, 2, 0, 0, 1, 1, 2, 0, 0}), sizeof got);
    hp.rope.interleaved = true;
    memcpy(hp.rope.section, (int32_t[]){5, 4, 2, 1}, sizeof hp.rope.section);
    cr_expect(gr_rope_sections(&hp, got));
    cr_expect_arr_eq(got, ((int32_t[]){0, 1, 2, 0, 1, 2, 0, 1, 3, 0, 1, 3}), sizeof got);
}

/* DeepSeek: the attention's scale grows with YaRN, by its own multiplier where the file has one;
 * rope then does not. Linear scaling is treated as YaRN's magnitude is, as in the other
 * implementation. */
Test(rope, magnitudes_of_latent_attention)
{
    static struct gr_hparams hp;
    hp.rope.n_rot = hp.rope.n_rot_swa = 8, hp.rope.n_ctx_orig = 64, hp.rope.yarn_scales_attn = true;
    const float ln4 = logf(4);
    for (int yarn = 0; yarn < 2; yarn++)
        for (int own = 0; own < 2; own++) {
            struct gr_rope_opt o = {GR_SCALE_YARN, 10000, 0.25f, (float)yarn, 1, 32, 1, 64};
            struct gr_rope_mag mag;
            double freq[4];
            hp.rope.yarn_log_mul = own ? 0.07f : 0;
            gr_rope_freqs(&o, &hp, false, NULL, freq, &mag);
            float all = (yarn && own ? 1 : 1 + 0.1f * ln4) * (own ? 1 + 0.07f * ln4 : 1);
            cr_expect_float_eq(mag.rope, yarn && !own ? 1 + 0.1f * ln4 : 1, 1e-6);
            cr_expect_float_eq(mag.attn, all * all, 1e-6, "%d %d: %g", yarn, own, (double)mag.attn);
        }
}

/* Pairs of the last section stand still, so that moving a key by a distance leaves them alone. */
Test(rope, pairs_that_do_not_turn)
{
    static struct gr_hparams hp;
    struct gr_rope_opt o = {
        .freq_base = 10000, .freq_scale = 1, .attn_factor = 1, .n_ctx_orig = 64};
    struct gr_rope_mag mag;
    double freq[12];
    hp.rope.n_rot = hp.rope.n_rot_swa = 24;
    memcpy(hp.rope.section, (int32_t[]){2, 3, 4, 3}, sizeof hp.rope.section);
    gr_rope_freqs(&o, &hp, false, NULL, freq, &mag);
    for (int i = 0; i < 12; i++)
        cr_expect_float_eq(freq[i], i < 9 ? pow(10000, -i / 12.0) : 0, 1e-12, "pair %d", i);
    memset(hp.rope.section, 0, sizeof hp.rope.section);
    gr_rope_freqs(&o, &hp, false, NULL, freq, &mag);
    cr_expect_float_eq(freq[11], pow(10000, -11 / 12.0), 1e-12);
}

static void set_linear_scaling(struct gr_gguf_writer *w, const struct tiny *t)
{
    char key[64];
    snprintf(key, sizeof key, "%s.rope.scaling.factor", t->arch->name);
    cr_assert_eq(gr_gguf_set_f32(w, key, 4), 0);
    snprintf(key, sizeof key, "%s.rope.freq_base", t->arch->name);
    cr_assert_eq(gr_gguf_set_f32(w, key, 500000), 0);
}

/* Families that say nothing of their windowed layers' frequencies: a base of 10000, whatever the
 * other layers have. */
Test(rope, windowed_layers_turn_as_ever)
{
    static const char *const arch[] = {"gemma3", "gemma-embedding", "modern-bert", "plamo3"};
    for (size_t k = 0; k < sizeof arch / sizeof *arch; k++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch[k], strlen(arch[k])}));
        t.edit = set_linear_scaling;
        struct gr_model *m = tiny_open(&t);
        struct gr_session_params p = params();
        struct gr_session *s = tiny_session(m, &p);
        const double *full = s->env.rope[0].freq.data, *swa = s->env.rope[1].freq.data;
        double n = (double)(2 * s->env.rope[1].freq.cols);
        cr_expect_float_eq(full[1], pow(500000, -2 / n) / 4, 1e-12, "%s", arch[k]);
        cr_expect_float_eq(swa[1], pow(10000, -2 / n), 1e-12, "%s: %g", arch[k], swa[1]);
        gr_session_close(&s);
        gr_model_close(&m);
    }
}

/* ---- queries that grow with positions ---- */

static void set_temperature(struct gr_gguf_writer *w, const struct tiny *t)
{
    (void)t;
    cr_assert_eq(gr_gguf_set_f32(w, "mistral3.attention.temperature_scale", 0.5f), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "mistral3.rope.scaling.original_context_length", 8), 0);
}

/* The logits of eight tokens from position `first` on. */
static void compute(struct gr_model *m, int32_t first, float attn_factor, float *logits)
{
    int32_t token[8], pos[8];
    struct gr_session_params p = params();
    p.yarn_attn_factor = attn_factor, p.type_k = "f32"; /* its error does not depend on the size */
    struct gr_session *s = tiny_session(m, &p);
    for (int i = 0; i < 8; i++)
        token[i] = 5 * i + 1, pos[i] = first + i;
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 8, .token = token, .pos = pos}), 0, "%s",
                 gr_error_message());
    memcpy(logits, gr_logits(s, 7), 96 * sizeof *logits);
    gr_session_close(&s);
}

/* Queries of positions [8 k, 8 k + 8) count 1 + ln(1 + k) / 2 times, as if rope made both queries
 * and keys larger by the square root of that. */
Test(rope, queries_grow_with_positions)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"mistral3", 8}));
    t.no_optional = true;
    struct gr_model *plain = tiny_open(&t);
    t.edit = set_temperature;
    struct gr_model *m = tiny_open(&t);
    for (int k = 0; k < 4; k += k + 1) {
        float got[96], want[96], same[96];
        compute(m, 8 * k, 0, got);
        compute(plain, 8 * k, sqrtf(1 + 0.5f * logf(1 + (float)k)), want);
        compute(plain, 8 * k, 0, same);
        cr_expect_lt(tiny_nmse(want, got, 96), 1e-10, "from %d on: %g", 8 * k,
                     tiny_nmse(want, got, 96));
        cr_expect(k == 0 || tiny_nmse(same, got, 96) > 1e-6, "from %d on nothing grows", 8 * k);
    }
    gr_model_close(&m);
    gr_model_close(&plain);
}
