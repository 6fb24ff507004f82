/* Tokens of an image, with rows and columns beside their position (M-RoPE): through a session, in
 * one batch or in several, and the text behind them. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_VOCAB 96
#define N_TEXT 5
#define N_IMAGE 6 /* 2 rows of 3 */
#define N_AFTER 4
#define N_ALL (N_TEXT + N_IMAGE + N_AFTER)

/* The image stands at 5: rows 5 and 6, columns 5 to 7. The text behind it begins at 8. */
static const int32_t all_pos[N_ALL] = {0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 8, 9, 10, 11};
static const int32_t all_row[N_ALL] = {0, 1, 2, 3, 4, 5, 5, 5, 6, 6, 6, 8, 9, 10, 11};
static const int32_t all_col[N_ALL] = {0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 9, 10, 11};

/* Tokens [lo, hi); text alone without rows and columns, and without positions when `plain`. */
static int decode(struct gr_session *s, int lo, int hi, bool plain, float *logits)
{
    int32_t id[N_ALL], yx[2 * N_ALL];
    int8_t want[N_ALL];
    int n = hi - lo;
    for (int i = 0; i < n; i++) {
        id[i] = (lo + i) * 7 % N_VOCAB, want[i] = 1;
        yx[i] = all_row[lo + i], yx[n + i] = all_col[lo + i];
    }
    bool text = hi <= N_TEXT || lo >= N_TEXT + N_IMAGE;
    struct gr_batch b = {.n_tok = n, .token = id, .logits = want};
    b.pos = text && plain ? NULL : all_pos + lo;
    b.pos_yx = text ? NULL : yx;
    int rc = gr_decode(s, &b);
    for (int i = 0; !rc && i < n; i++)
        memcpy(logits + (lo + i) * N_VOCAB, tiny_row(s, i), N_VOCAB * sizeof *logits);
    return rc;
}

static struct gr_model *model(void)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"qwen2vl", 7}));
    return tiny_open(&t);
}

static struct gr_session *session(struct gr_model *m, uint32_t n_ubatch)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_ubatch = n_ubatch, p.type_k = "f32", p.type_v = "f32", p.n_threads = 1;
    return tiny_session(m, &p);
}

Test(image, in_one_batch_or_in_several)
{
    static const int cut[][6] = {
        {0, N_ALL}, {0, 5, 11, N_ALL}, {0, 5, 8, 11, 12, N_ALL}, {0, 7, 11, N_ALL}};
    static float want[N_ALL * N_VOCAB], got[N_ALL * N_VOCAB];
    struct gr_model *m = model();
    for (int k = 0; k < 8; k++) { /* the second time in micro-batches of 4 */
        struct gr_session *s = session(m, k < 4 ? 512 : 4);
        for (int i = 0; cut[k % 4][i] < N_ALL; i++)
            cr_assert_eq(decode(s, cut[k % 4][i], cut[k % 4][i + 1], true, k ? got : want), 0, "%s",
                         gr_error());
        /* sums of F32 in another order, squared */
        double e = k ? tiny_nmse(want, got, N_ALL * N_VOCAB) : 0;
        cr_expect(e <= 1e-10, "cut %d: %g", k, e);
        gr_session_close(&s);
    }
    gr_model_close(&m);
}

/* Rows and columns matter, and do not come to the tokens they do not belong to. */
Test(image, is_not_a_text)
{
    static float a[N_ALL * N_VOCAB], b[N_ALL * N_VOCAB];
    struct gr_model *m = model();
    struct gr_session *s = session(m, 512);
    cr_assert_eq(decode(s, 0, N_ALL, false, a), 0);
    gr_kv_clear(s);
    int32_t id[N_ALL], flat[2 * N_ALL];
    int8_t want[N_ALL];
    for (int i = 0; i < N_ALL; i++)
        id[i] = i * 7 % N_VOCAB, want[i] = 1, flat[i] = flat[N_ALL + i] = all_pos[i];
    struct gr_batch batch = {.n_tok = N_ALL, .token = id, .pos = all_pos, .pos_yx = flat};
    batch.logits = want;
    cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error());
    for (int i = 0; i < N_ALL; i++)
        memcpy(b + i * N_VOCAB, tiny_row(s, i), N_VOCAB * sizeof *b);
    cr_expect(tiny_nmse(a, b, N_TEXT * N_VOCAB) <= 1e-10, "before the image nothing changes");
    cr_expect(tiny_nmse(a + N_TEXT * N_VOCAB, b + N_TEXT * N_VOCAB, (N_ALL - N_TEXT) * N_VOCAB) >
              1e-6);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(image, the_text_behind_it)
{
    float scratch[N_ALL * N_VOCAB];
    struct gr_model *m = model();
    struct gr_session *s = session(m, 512);
    int32_t id = 1, pos = 6;
    cr_assert_eq(decode(s, 0, N_TEXT + N_IMAGE, false, scratch), 0);
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = &id, .pos = &pos}),
                 GR_E_INVALID);
    cr_assert_str_eq(gr_error_message(),
                     "batch token 0: position 8 expected, as sequence 0 ends at 7, 6 found");
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = &id}), 0, "%s", gr_error());
    cr_assert_eq(gr_kv_seq_pos_max(s, 0), 8);
    /* With the text removed the next position is 8 again; with the image removed it is 5. */
    cr_assert_eq(gr_kv_seq_rm(s, 0, 8, -1), 0);
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = &id}), 0, "%s", gr_error());
    cr_assert_eq(gr_kv_seq_pos_max(s, 0), 8);
    cr_assert_eq(gr_kv_seq_rm(s, 0, 5, -1), 0);
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = &id}), 0, "%s", gr_error());
    cr_assert_eq(gr_kv_seq_pos_max(s, 0), 5);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* Rows and columns may lie before the position, and below 0 when the position comes down. */
Test(image, rows_below_zero_are_saved)
{
    static const int32_t id[] = {7, 8, 9}, pos[] = {100, 100, 100}, yx[] = {20, 20, 21, 3, 4, 3};
    const struct gr_batch image = {.n_tok = 3, .token = id, .pos = pos, .pos_yx = yx};
    const struct gr_batch next = {.n_tok = 1, .token = id};
    struct gr_model *m = model();
    for (int k = 0; k < 2; k++) {
        struct gr_session *a = session(m, 512), *b = session(m, 512);
        void *state;
        size_t n;
        cr_assert_eq(gr_decode(a, &image), 0, "%s", gr_error());
        cr_assert_eq(k ? gr_kv_seq_div(a, 0, -1, -1, 20) : gr_kv_seq_add(a, 0, -1, -1, -95), 0);
        cr_assert_eq(gr_state_save(a, -1, NULL, 0, &state, &n), 0, "%s", gr_error());
        cr_assert_eq(gr_state_load(b, -1, state, n, NULL, NULL), 0, "%s", gr_error());
        cr_assert_eq(gr_decode(a, &next), 0, "%s", gr_error());
        cr_assert_eq(gr_decode(b, &next), 0, "%s", gr_error());
        cr_expect_eq(memcmp(tiny_row(a, 0), tiny_row(b, 0), N_VOCAB * sizeof(float)), 0);
        gr_state_free(state);
        gr_session_close(&a);
        gr_session_close(&b);
    }
    gr_model_close(&m);
}
