/* Layers that lack something, beside layers that have it and whose matrices make nothing of it. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

enum { N_TOK = 12, N_VOCAB = 96 };

static float want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];

/* Four layers like those of llama: as many KV heads as heads, no bias. In memory that may be
 * written to. */
static struct gr_model *model(void)
{
    struct gr_model_params p = gr_model_params_default();
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"deci", 4}));
    struct gr_model *m;
    t.heads = t.heads_kv = t.ffs = NULL;
    t.n_layer = 4, t.n_head_kv = 4, t.no_optional = true;
    p.use_mmap = false;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s", gr_error());
    unlink(path);
    return m;
}

static struct gr_ten *weight(struct gr_model *m, int il, enum gr_slot slot)
{
    return &m->weight[(size_t)(il + 1) * GR_N_SLOT + slot];
}

static void clear(struct gr_model *m, int il, enum gr_slot slot)
{
    struct gr_ten *w = weight(m, il, slot);
    cr_assert(gr_ten_is(w) && w->dtype == GR_F32);
    memset(w->data, 0, (size_t)(w->rows * w->row_bytes));
}

static void decode(struct gr_model *m, int n, float *out)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.type_k = p.type_v = "f32";
    struct gr_session *s = tiny_session(m, &p);
    int32_t id[N_TOK];
    int8_t all[N_TOK];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * i) % N_VOCAB, all[i] = 1;
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = n, .token = id, .logits = all}), 0, "%s",
                 gr_error());
    for (int i = 0; i < n; i++)
        memcpy(out + i * N_VOCAB, tiny_row(s, i), N_VOCAB * sizeof *out);
    gr_session_close(&s);
}

static void compare(int n, const char *what)
{
    double e = tiny_nmse(want, got, (size_t)n * N_VOCAB);
    cr_expect(e < 1e-12, "%s: %g", what, e);
}

/* Layers of which `lost` has a bit, the last one too, have no attention: it adds nothing. */
Test(layers, without_attention)
{
    for (unsigned lost = 1; lost < 16; lost++) {
        struct gr_model *a = model(), *b = model();
        for (int il = 0; il < 4; il++)
            if (lost >> il & 1) {
                a->rank_model[0]->hp.attn.n_head[il] = a->rank_model[0]->hp.attn.n_head_kv[il] = 0,
                a->rank_model[0]->hp.attn.kv_of[il] = -1;
                clear(b, il, GR_W_ATTN_OUT);
            }
        decode(a, N_TOK, got);
        decode(b, N_TOK, want);
        compare(N_TOK, "no attention");
        gr_model_close(&a);
        gr_model_close(&b);
    }
}

Test(layers, without_a_feed_forward)
{
    for (unsigned lost = 1; lost < 16; lost++) {
        struct gr_model *a = model(), *b = model();
        for (int il = 0; il < 4; il++)
            if (lost >> il & 1) {
                a->rank_model[0]->hp.ff.n_ff[il] = 0;
                clear(b, il, GR_W_FFN_DOWN);
            }
        decode(a, N_TOK, got);
        decode(b, N_TOK, want);
        compare(N_TOK, "no feed-forward");
        gr_model_close(&a);
        gr_model_close(&b);
    }
}

/* A matrix in place of attention: a single token sees itself alone, so attention gives it its own
 * value, and values are the token where their matrix is the identity. */
Test(layers, with_a_matrix_for_attention)
{
    for (int il = 0; il < 4; il++) {
        struct gr_model *a = model(), *b = model();
        struct gr_ten *v = weight(b, il, GR_W_ATTN_V);
        a->rank_model[0]->hp.attn.n_head_kv[il] = 0, a->rank_model[0]->hp.attn.kv_of[il] = -1;
        clear(b, il, GR_W_ATTN_V);
        cr_assert_eq(v->rows, v->cols);
        for (int64_t i = 0; i < v->rows; i++)
            ((float *)gr_ten_row(v, 0, i))[i] = 1;
        decode(a, 1, got);
        decode(b, 1, want);
        compare(1, "a matrix");
        gr_model_close(&a);
        gr_model_close(&b);
    }
}
