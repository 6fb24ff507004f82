/* Vectors in place of tokens: those of the model's own table give what its tokens give. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "registry/registry.h"
#include "support/token_vectors.h"

enum { N_TOK = 24, N_VOCAB = 96, LLAMA_EMBD = 64 };

static int32_t id[N_TOK];
static float vector[N_TOK * TOKEN_VECTORS_EMBD], want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];

/* A learned position that is added to a row of the table is one sum for tokens and one more
 * rounding for vectors; everywhere else both give the same bits. */
#define SAME 1e-12

static struct gr_session *session(struct gr_model *m, uint32_t n_ubatch)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = 2, p.n_threads = 2, p.n_ubatch = n_ubatch;
    p.type_k = p.type_v = "f32";
    return tiny_session(m, &p);
}

static void prepare(const struct gr_model *m)
{
    for (int i = 0; i < N_TOK; i++)
        id[i] = (5 + 37 * i) % N_VOCAB;
    token_vectors(m, id, N_TOK, vector);
}

/* Tokens [lo, hi) of alternating sequences, as they are or as vectors. */
static int decode(const struct gr_model *m, struct gr_session *s, int lo, int hi, bool given,
                  float *out)
{
    int32_t seq[N_TOK];
    int8_t all[N_TOK];
    for (int i = lo; i < hi; i++)
        seq[i - lo] = i / 4 % 2, all[i - lo] = 1;
    struct gr_batch b = {.n_tok = hi - lo,
                         .token = given ? NULL : id + lo,
                         .embd = given ? vector + lo * m->hp.n_embd : NULL,
                         .seq = seq,
                         .logits = all};
    int rc = gr_decode(s, &b);
    for (int i = lo; !rc && i < hi; i++)
        memcpy(out + i * N_VOCAB, tiny_row(s, i - lo), N_VOCAB * sizeof *out);
    return rc;
}

static void expect_same(const struct gr_model *m, const char *how)
{
    const char *name = m->arch->name;
    double e = tiny_nmse(got, want, N_TOK * N_VOCAB);
    if (gr_ten_is(&m->weight[GR_W_POS_EMBD]))
        cr_expect_lt(e, SAME, "%s, %s: %g", name, how, e);
    else
        cr_expect_eq(memcmp(got, want, sizeof got), 0, "%s, %s: %g", name, how, e);
    memset(got, 0, sizeof got);
}

/* Decodes all of it in pieces, those of odd number (or all, or none) as vectors. */
static void pieces(struct gr_model *m, uint32_t n_ubatch, int step, int given, float *out)
{
    struct gr_session *s = session(m, n_ubatch);
    for (int lo = 0, k = 0; lo < N_TOK; lo += step, k++)
        cr_assert_eq(decode(m, s, lo, lo + step < N_TOK ? lo + step : N_TOK,
                            given == 2 || (given && k % 2), out),
                     0, "%s: %s", m->arch->name, gr_error());
    gr_session_close(&s);
}

Test(embd, own_vectors_are_the_tokens)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        struct gr_model *m = tiny_open(&t);
        bool whole = t.arch->no_cache;
        if (!m->hp.embd.only_tokens) {
            prepare(m);
            pieces(m, 512, N_TOK, 0, want);
            pieces(m, 512, N_TOK, 2, got);
            expect_same(m, "as a whole");
            if (!whole) {
                pieces(m, 3, 7, 0, want);
                pieces(m, 3, 7, 2, got);
                expect_same(m, "in micro-batches");
                pieces(m, 512, 5, 0, want);
                pieces(m, 512, 5, 1, got);
                expect_same(m, "between tokens");
                pieces(m, 512, 1, 0, want);
                pieces(m, 512, 1, 2, got);
                expect_same(m, "one by one");
            }
        }
        gr_model_close(&m);
    }
}

/* Layers on other devices, and on other ranks. */
Test(embd, elsewhere)
{
    static const struct {
        const char *device;
        int32_t n_gpu_layers, n_rank;
        enum gr_split_mode split;
    } ways[] = {{"none", 0, 2, GR_SPLIT_MODE_LAYER},
                {"none", 0, 2, GR_SPLIT_MODE_TENSOR},
                {"FAKE0", 1, 1, GR_SPLIT_MODE_LAYER},
                {"FAKE0,FAKE1", 99, 2, GR_SPLIT_MODE_LAYER}};
    static const char *const arch[] = {"llama", "gemma3", "gpt2"};
    fake_use(2, (uint64_t)1 << 30);
    for (size_t a = 0; a < sizeof arch / sizeof *arch; a++)
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch[a], strlen(arch[a])}));
            struct gr_model_params p = gr_model_params_default();
            struct gr_model *m;
            p.device = ways[k].device, p.n_gpu_layers = ways[k].n_gpu_layers;
            p.n_rank = ways[k].n_rank, p.split_mode = ways[k].split;
            cr_assert_eq(gr_model_open(&m, tiny_write(&t, NULL), &p), 0, "%s", gr_error());
            prepare(m);
            pieces(m, 8, 12, 0, want);
            pieces(m, 8, 12, 2, got);
            expect_same(m, ways[k].device);
            gr_model_close(&m);
        }
}

static void keep_tap(const char *name, int layer, const float *rows, int64_t n, int64_t n_cols,
                     void *user)
{
    (void)name, (void)layer;
    cr_assert_eq(n * n_cols, LLAMA_EMBD);
    memcpy(user, rows, LLAMA_EMBD * sizeof *rows);
}

/* The first layer gets the numbers themselves, or times the factor of some models. */
Test(embd, factor)
{
    static const struct {
        const char *arch;
        float factor;
    } cases[] = {{"llama", 1}, {"gemma", 8}, {"gemma2", 8}, {"gemma3", 1}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *name = cases[k].arch;
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){name, strlen(name)}));
        struct gr_model *m = tiny_open(&t);
        struct gr_session *s = session(m, 512);
        float row[LLAMA_EMBD], first[LLAMA_EMBD];
        for (int i = 0; i < LLAMA_EMBD; i++)
            row[i] = (float)(i % 7) - 3;
        cr_assert_eq(gr_session_tap(s, "embd", keep_tap, first), 0, "%s", gr_error());
        cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .embd = row}), 0, "%s: %s", name,
                     gr_error());
        for (int i = 0; i < LLAMA_EMBD; i++)
            cr_expect_eq(first[i], cases[k].factor * row[i], "%s: %d", name, i);
        gr_session_close(&s);
        gr_model_close(&m);
    }
}

/* A text for an encoder. */
Test(embd, encoded)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"t5", 2}));
    struct gr_model *m = tiny_open(&t);
    static const int32_t start[] = {0};
    prepare(m);
    for (int given = 0; given < 2; given++) {
        struct gr_session *s = session(m, 512);
        struct gr_batch b = {.n_tok = N_TOK};
        if (given)
            b.embd = vector;
        else
            b.token = id;
        cr_assert_eq(gr_encode(s, &b), 0, "%s", gr_error());
        cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = start}), 0, "%s",
                     gr_error());
        memcpy(given ? got : want, tiny_row(s, 0), N_VOCAB * sizeof *want);
        gr_session_close(&s);
    }
    cr_expect_eq(memcmp(got, want, N_VOCAB * sizeof *want), 0);
    gr_model_close(&m);
}

Test(embd, refused)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_model *m = tiny_open(&t);
    struct gr_session *s = session(m, 512);
    static float bad[2 * LLAMA_EMBD];
    static const int32_t token[2] = {1, 2};
    struct gr_batch both = {.n_tok = 2, .token = token, .embd = bad};
    struct gr_batch one = {.n_tok = 2, .embd = bad};
    cr_expect_eq(gr_decode(s, &both), GR_E_INVALID);
    cr_expect_str_eq(gr_error(), "batch: token ids or vectors expected, both found");
    bad[LLAMA_EMBD + 3] = INFINITY;
    cr_expect_eq(gr_decode(s, &one), GR_E_INVALID);
    cr_expect_str_eq(gr_error(), "batch token 1: a vector of finite numbers expected, inf found");
    cr_expect_eq(gr_kv_used(s), 0);
    gr_session_close(&s);
    gr_model_close(&m);
    t = tiny_default(gr_arch_find((struct gr_str){"cogvlm", 6}));
    m = tiny_open(&t), s = session(m, 512);
    cr_expect_eq(gr_decode(s, &one), GR_E_UNSUPPORTED);
    cr_expect_str_eq(gr_error(), "batch: this model takes tokens alone, no vectors");
    gr_session_close(&s);
    gr_model_close(&m);
}
