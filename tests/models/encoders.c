/* Sessions of vectors: those of another implementation (tests/golden/encoders/make.py), each way of
 * pooling from its definition, and what is refused. */
#include "support/encoders.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "engine/session.h"
#include "gr/status.h"
#include "registry/registry.h"

enum { N_TOK = 15, N_SEQ = 2, FIRST = 9, N_VOCAB = 96 };

/* f32 sums of at most 96 terms in another order, squared, over two layers. */
#define SAME 1e-10

static int32_t id[N_TOK], pos[N_TOK], seq[N_TOK];
static int8_t want[N_TOK];

/* 9 tokens of sequence 0, then 6 of sequence 1. */
static struct gr_batch two_texts(void)
{
    for (int i = 0; i < N_TOK; i++) {
        id[i] = (5 + 37 * i) % N_VOCAB, seq[i] = i >= FIRST, want[i] = 1;
        pos[i] = i - seq[i] * FIRST;
    }
    return (struct gr_batch){.n_tok = N_TOK, .token = id, .pos = pos, .seq = seq, .logits = want};
}

static struct gr_session *session(struct gr_model *m, enum gr_pooling pooling)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = N_SEQ, p.type_k = p.type_v = "f32", p.n_threads = 1;
    p.embeddings = true, p.pooling = pooling;
    return tiny_session(m, &p);
}

static bool classifies(const struct gr_model *m)
{
    return gr_ten_is(&m->weight[GR_W_CLS]) || gr_ten_is(&m->weight[GR_W_CLS_OUT]);
}

/* Rows of the last batch, one after the other; their number. */
static int rows(struct gr_session *s, float *out)
{
    int n = gr_session_pooling(s) == GR_POOLING_NONE ? N_TOK : N_SEQ;
    size_t row = (size_t)gr_session_n_embd(s);
    for (int i = 0; i < n; i++) {
        const float *x = n == N_TOK ? gr_embeddings(s, i) : gr_embeddings_seq(s, i);
        cr_assert_not_null(x);
        memcpy(out + (size_t)i * row, x, row * sizeof *out);
    }
    return n;
}

static float got[N_TOK * 128], other[N_TOK * 128];

/* ---- the other implementation ---- */

/* It looks GELU up in a table of binary16 (11 bits of argument and result), which two layers of
 * feed-forward carry to the vectors. */
static double most(const struct gr_arch *a)
{
    static const char *const no_gelu[] = {"nomic-bert",  "neo-bert", "eurobert",
                                          "llama-embed", "llama",    "qwen3"};
    for (unsigned i = 0; i < sizeof no_gelu / sizeof *no_gelu; i++)
        if (strcmp(a->name, no_gelu[i]) == 0)
            return 1e-11;
    return 1e-6;
}

static void compare(struct gr_model *m, enum gr_pooling pooling, FILE *golden)
{
    struct gr_session *s = session(m, pooling);
    struct gr_batch b = two_texts();
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    size_t n = (size_t)rows(s, got) * (size_t)gr_session_n_embd(s);
    cr_assert_eq(fread(other, sizeof *other, n, golden), n, "%s", m->arch->name);
    double e = tiny_nmse(other, got, n);
    cr_expect(e <= most(m->arch), "%s, pooling %s: %g", m->arch->name, gr_pooling_name(pooling), e);
    gr_session_close(&s);
}

Test(encoders, vectors_are_those_of_another_implementation)
{
    for (int i = 0; i < ENCODER_N; i++) {
        char path[512];
        struct tiny t = encoder_model(i);
        struct gr_model *m = tiny_open(&t);
        snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/encoders/%s.f32", t.arch->name);
        FILE *f = fopen(path, "rb");
        cr_assert(f, "%s", path);
        for (int p = GR_POOLING_NONE; p <= GR_POOLING_RANK; p++)
            if (p != GR_POOLING_RANK || classifies(m))
                compare(m, (enum gr_pooling)p, f);
        cr_expect_eq(fgetc(f), EOF, "%s", path);
        fclose(f);
        gr_model_close(&m);
    }
}

/* ---- from the definition ---- */

static struct gr_model *open_arch(const char *name)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){name, strlen(name)}));
    return tiny_open(&t);
}

/* all [N_TOK][n]: the rows of the tokens. */
static void expect_pooled(struct gr_model *m, enum gr_pooling pooling, const float *all, size_t n)
{
    struct gr_session *s = session(m, pooling);
    struct gr_batch b = two_texts();
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    cr_assert_eq((size_t)gr_session_n_embd(s), n);
    for (int q = 0; q < N_SEQ; q++) {
        int lo = q ? FIRST : 0, hi = q ? N_TOK : FIRST;
        double mean[128] = {0};
        for (int i = lo; i < hi; i++)
            for (size_t c = 0; c < n; c++)
                mean[c] += (double)all[(size_t)i * n + c] / (hi - lo);
        for (size_t c = 0; c < n; c++)
            other[c] = pooling == GR_POOLING_MEAN  ? (float)mean[c]
                       : pooling == GR_POOLING_CLS ? all[(size_t)lo * n + c]
                                                   : all[(size_t)(hi - 1) * n + c];
        double e = tiny_nmse(other, gr_embeddings_seq(s, q), n);
        cr_expect(e <= SAME, "%s, pooling %s: %g", m->arch->name, gr_pooling_name(pooling), e);
    }
    cr_expect_null(gr_embeddings(s, 0));
    cr_expect_null(gr_logits(s, -1));
    cr_expect_null(gr_embeddings_seq(s, N_SEQ));
    cr_expect_null(gr_embeddings_seq(s, -1));
    gr_session_close(&s);
}

Test(encoders, pooling_is_what_it_says_of_every_family)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        struct gr_model *m = tiny_open(&t);
        bool states = tiny_keeps_states(m);
        if (m->hp.enc.n_layer) { /* encoder_decoder.c */
            gr_model_close(&m);
            continue;
        }
        struct gr_session *s = session(m, GR_POOLING_NONE);
        struct gr_batch b = two_texts();
        cr_assert_eq(gr_decode(s, &b), 0, "%s: %s", t.arch->name, gr_error());
        static float all[N_TOK * 128];
        rows(s, all);
        size_t n = (size_t)gr_session_n_embd(s);
        gr_session_close(&s);
        for (int p = states ? GR_POOLING_CLS : GR_POOLING_MEAN; p <= GR_POOLING_LAST; p++)
            expect_pooled(m, (enum gr_pooling)p, all, n);
        gr_model_close(&m);
    }
}

/* A token of both sequences counts in both. */
Test(encoders, shared_tokens)
{
    struct gr_model *m = open_arch("llama");
    struct gr_session *s = session(m, GR_POOLING_NONE), *mean = session(m, GR_POOLING_MEAN);
    int32_t n_seq[3] = {2, 1, 1}, ids[4] = {0, 1, 0, 1}, token[3] = {3, 4, 5}, at[3] = {0, 1, 1};
    int8_t all[3] = {1, 1, 1};
    struct gr_batch b = {
        .n_tok = 3, .token = token, .pos = at, .n_seq = n_seq, .seq = ids, .logits = all};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    cr_assert_eq(gr_decode(mean, &b), 0, "%s", gr_error());
    for (int q = 0; q < N_SEQ; q++) {
        const float *x = gr_embeddings(s, 0), *y = gr_embeddings(s, 1 + q);
        for (int c = 0; c < 64; c++)
            other[c] = (x[c] + y[c]) / 2;
        cr_expect(tiny_nmse(other, gr_embeddings_seq(mean, q), 64) <= SAME);
    }
    gr_session_close(&s);
    gr_session_close(&mean);
    gr_model_close(&m);
}

/* With a cache the last token's vector needs no micro-batch that holds the whole text. */
Test(encoders, last_over_several_micro_batches)
{
    struct gr_model *m = open_arch("llama");
    struct gr_session *whole = session(m, GR_POOLING_LAST), *cut;
    struct gr_session_params p = gr_session_params_default();
    struct gr_batch b = two_texts();
    p.n_ctx = 256, p.n_seq_max = N_SEQ, p.type_k = p.type_v = "f32", p.n_ubatch = 4;
    p.embeddings = true, p.pooling = GR_POOLING_LAST;
    cut = tiny_session(m, &p);
    cr_assert_eq(gr_decode(whole, &b), 0, "%s", gr_error());
    cr_assert_eq(gr_decode(cut, &b), 0, "%s", gr_error());
    for (int q = 0; q < N_SEQ; q++)
        cr_expect(tiny_nmse(gr_embeddings_seq(whole, q), gr_embeddings_seq(cut, q), 64) <= SAME);
    gr_session_close(&whole);
    gr_session_close(&cut);
    gr_model_close(&m);
}

/* ---- what is refused ---- */

static void refused(struct gr_model *m, struct gr_session_params p, const char *why)
{
    struct gr_session *s;
    cr_expect_neq(gr_session_open(&s, m, &p), 0);
    cr_expect(strstr(gr_error(), why), "%s", gr_error());
    cr_expect_null(s);
}

Test(encoders, refusals)
{
    struct gr_model *m = open_arch("llama");
    struct gr_session_params p = gr_session_params_default();
    struct gr_batch b = two_texts();
    p.n_ctx = 256, p.n_seq_max = N_SEQ, p.pooling = GR_POOLING_MEAN;
    refused(m, p, "a session of vectors expected");
    p.embeddings = true, p.pooling = (enum gr_pooling)9;
    refused(m, p, "pooling: 0 to 5 expected, 9 found");
    p.pooling = GR_POOLING_RANK;
    refused(m, p, "the model has no classifier");
    p.pooling = GR_POOLING_MEAN, p.n_ubatch = N_TOK - 1;
    struct gr_session *s = tiny_session(m, &p);
    cr_expect_eq(gr_decode(s, &b), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "larger -ub"), "%s", gr_error());
    b.n_tok = 1;
    cr_expect_eq(gr_decode(s, &b), 0, "%s", gr_error());
    b.token++, b.pos++;
    cr_expect_eq(gr_decode(s, &b), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "sequence 0 has tokens already"), "%s", gr_error());
    struct gr_sampler *sampler = NULL;
    cr_expect_eq(gr_session_set_sampler(s, 0, sampler), GR_E_UNSUPPORTED);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* Learned positions end somewhere. */
Test(encoders, positions_that_were_not_learned)
{
    struct gr_model *m = open_arch("bert");
    struct gr_session *s = session(m, GR_POOLING_CLS);
    struct gr_batch b = two_texts();
    b.n_tok = 3, pos[0] = 254, pos[1] = 255, pos[2] = 256;
    cr_expect_eq(gr_decode(s, &b), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "has learned 256 positions"), "%s", gr_error());
    b.n_tok = 2;
    cr_expect_eq(gr_decode(s, &b), 0, "%s", gr_error());
    gr_session_close(&s);
    gr_model_close(&m);
}

/* ---- what files say ---- */

static void set_pooling(struct gr_gguf_writer *w, const struct tiny *t)
{
    char key[64];
    snprintf(key, sizeof key, "%s.pooling_type", t->arch->name);
    cr_assert_eq(gr_gguf_set_u32(w, key, 2), 0);
}

Test(encoders, the_file_s_pooling)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"bert", 4}));
    t.edit = set_pooling;
    struct gr_model *m = tiny_open(&t);
    struct gr_model_info info;
    gr_model_info(m, &info);
    cr_expect(info.no_logits && info.no_cache && info.pooling == GR_POOLING_CLS);
    struct gr_session *s = session(m, GR_POOLING_MODEL), *none = session(m, GR_POOLING_NONE);
    cr_expect_eq(gr_session_pooling(s), GR_POOLING_CLS);
    cr_expect_eq(gr_session_pooling(none), GR_POOLING_NONE);
    cr_expect_eq(gr_session_n_embd(s), 96);
    gr_session_close(&s);
    gr_session_close(&none);
    gr_model_close(&m);
}

/* Positions end where the training did, with a cache and without. */
Test(encoders, learned_positions)
{
    static const char *const name[] = {"bert", "gpt2", "llama", "bloom", "modern-bert"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){name[i], strlen(name[i])}));
        struct gr_model *m = tiny_open(&t);
        struct gr_model_info info;
        gr_model_info(m, &info);
        cr_expect_eq(info.n_learned_pos > 0, i < 2, "%s", name[i]);
        gr_model_close(&m);
    }
}

static void set_not_causal(struct gr_gguf_writer *w, const struct tiny *t)
{
    char key[64];
    snprintf(key, sizeof key, "%s.attention.causal", t->arch->name);
    cr_assert_eq(gr_gguf_set_bool(w, key, false), 0);
}

/* A first token knows the last one, and nothing is kept, but where something has to be. */
Test(encoders, files_that_are_not_causal)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.edit = set_not_causal;
    struct gr_model *m = tiny_open(&t);
    struct gr_session *s = session(m, GR_POOLING_CLS);
    struct gr_batch b = two_texts();
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    memcpy(got, gr_embeddings_seq(s, 0), 64 * sizeof *got);
    id[FIRST - 1]++;
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    cr_expect_gt(tiny_nmse(got, gr_embeddings_seq(s, 0), 64), 1e-6);
    cr_expect_eq(gr_kv_used(s), 0);
    gr_session_close(&s);
    gr_model_close(&m);
    t = tiny_default(gr_arch_find((struct gr_str){"deepseek2", 9}));
    t.edit = set_not_causal;
    cr_expect_eq(gr_model_open(&m, tiny_write(&t, NULL), NULL), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), "deepseek2.attention.causal"), "%s", gr_error());
}
