/* Importances as a session sees them, held against results that it names and against what one row
 * means to several matrices. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "quantize/imatrix.h"
#include "support/tiny.h"

enum { N_TOK = 24, N_LAYER = 2, N_USED = 2 };

static float *means(const struct gr_imatrix *m, const char *name, uint64_t *n)
{
    float *x;
    cr_assert_eq(gr_imatrix_means(m, (struct gr_str){name, strlen(name)}, &x, n), 0);
    return x;
}

/* Sums of squares of what attention gave, by the named results. */
struct seen {
    double sum[N_LAYER][256];
    int64_t cols;
};

static void see(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                void *user)
{
    struct seen *s = user;
    (void)name;
    s->cols = cols;
    for (int64_t i = 0; i < rows * cols; i++)
        s->sum[layer][i % cols] += (double)data[i] * data[i];
}

static struct gr_imatrix *collect(struct gr_model *m, int n_ubatch, bool output, struct seen *s)
{
    struct gr_session_params p = gr_session_params_default();
    int32_t token[N_TOK];
    int8_t logits[N_TOK];
    struct gr_imatrix *im;
    p.n_ctx = 256, p.n_batch = N_TOK, p.n_ubatch = (uint32_t)n_ubatch;
    p.type_k = p.type_v = "f32"; /* of f16 the last bit may depend on how batches are cut */
    struct gr_session *session = tiny_session(m, &p);
    for (int i = 0; i < N_TOK; i++)
        token[i] = (7 * i + 3) % 90, logits[i] = 1;
    struct gr_batch b = {.n_tok = N_TOK, .token = token, .logits = logits};
    cr_assert_eq(gr_imatrix_new(&im), 0);
    if (s)
        cr_assert_eq(gr_session_tap(session, "attn", see, s), 0);
    cr_assert_eq(gr_session_imatrix(session, im, output), 0);
    cr_assert_eq(gr_decode(session, &b), 0, "%s", gr_error());
    cr_assert_eq(gr_session_imatrix(session, NULL, false), 0);
    cr_assert_eq(gr_session_tap(session, NULL, NULL, NULL), 0);
    gr_kv_clear(session);
    cr_assert_eq(gr_decode(session, &b), 0); /* no longer collected */
    gr_session_close(&session);
    return im;
}

static struct tiny tiny_llama(int n_expert)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.n_layer = N_LAYER, t.n_expert = n_expert;
    return t;
}

Test(importance, of_what_attention_gives)
{
    struct tiny t = tiny_llama(0);
    struct gr_model *m = tiny_open(&t);
    struct seen s = {.cols = 0};
    struct gr_imatrix *im = collect(m, N_TOK, false, &s);
    char name[64];
    for (int il = 0; il < N_LAYER; il++) {
        uint64_t n;
        snprintf(name, sizeof name, "blk.%d.attn_output.weight", il);
        float *x = means(im, name, &n);
        cr_assert_eq((int64_t)n, s.cols);
        for (uint64_t i = 0; i < n; i++)
            cr_expect_float_eq(x[i], s.sum[il][i] / N_TOK, 1e-5 * (1 + x[i]), "%s[%d]", name,
                               (int)i);
        gr_free(x);
    }
    cr_expect(!gr_imatrix_has(im, (struct gr_str){"output.weight", 13}));
    cr_expect_eq(gr_imatrix_n_entry(im), 7 * N_LAYER);
    gr_imatrix_free(&im);
    gr_model_close(&m);
}

/* Micro-batches of 5 tokens give the same as one of 24. */
Test(importance, however_batches_are_cut)
{
    struct tiny t = tiny_llama(0);
    struct gr_model *m = tiny_open(&t);
    struct gr_imatrix *a = collect(m, N_TOK, true, NULL), *b = collect(m, 5, true, NULL);
    static const char *const names[] = {"output.weight", "blk.1.ffn_down.weight"};
    for (int k = 0; k < 2; k++) {
        uint64_t n, n2;
        float *x = means(a, names[k], &n), *y = means(b, names[k], &n2);
        cr_assert(n == n2 && n > 0, "%s", names[k]);
        cr_expect_lt(tiny_nmse(y, x, n), 1e-9, "%s: %g", names[k], tiny_nmse(y, x, n));
        gr_free(x);
        gr_free(y);
    }
    gr_imatrix_free(&a);
    gr_imatrix_free(&b);
    gr_model_close(&m);
}

/* The router sees every row once, the experts that are used see it N_USED times in all. */
Test(importance, of_experts)
{
    struct tiny t = tiny_llama(3);
    struct gr_model *m = tiny_open(&t);
    struct gr_imatrix *im = collect(m, N_TOK, false, NULL);
    char path[] = "/tmp/gpurun-importance-XXXXXX";
    int fd = mkstemp(path);
    struct gr_gguf *g;
    float router[256], sum[3 * 256], count[3];
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(gr_imatrix_save(im, path, true), 0, "%s", gr_error());
    cr_assert_eq(gr_gguf_open(&g, path, false), 0);
    unlink(path);
#define READ(name, to)                                                                             \
    cr_assert_eq(gr_gguf_read_tensor(g, gr_gguf_find_tensor(g, name), to), 0, "%s", gr_error())
    READ("blk.1.ffn_gate_inp.weight.in_sum2", router);
    READ("blk.1.ffn_up_exps.weight.in_sum2", sum);
    READ("blk.1.ffn_up_exps.weight.counts", count);
    cr_expect_eq(count[0] + count[1] + count[2], N_USED * N_TOK);
    for (int i = 0; i < 64; i++)
        cr_expect_float_eq(sum[i] + sum[64 + i] + sum[128 + i], N_USED * router[i],
                           1e-5 * (1 + N_USED * router[i]), "column %d", i);
    READ("blk.1.ffn_down_exps.weight.counts", count);
    cr_expect_eq(count[0] + count[1] + count[2], N_USED * N_TOK);
    gr_gguf_close(&g);
    gr_imatrix_free(&im);
    gr_model_close(&m);
}

Test(importance, of_one_rank_only)
{
    struct tiny t = tiny_llama(0);
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params p = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    struct gr_imatrix *im;
    mp.n_rank = 2;
    p.n_ctx = 256;
    cr_assert_eq(gr_model_open(&m, tiny_write(&t, NULL), &mp), 0, "%s", gr_error());
    cr_assert_eq(gr_session_open(&s, m, &p), 0, "%s", gr_error());
    cr_assert_eq(gr_imatrix_new(&im), 0);
    cr_expect_eq(gr_session_imatrix(s, im, false), GR_E_INVALID);
    gr_imatrix_free(&im);
    gr_session_close(&s);
    gr_model_close(&m);
}
