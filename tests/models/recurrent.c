/* Models with recurrent layers, through the public interface: sequences of unequal length together,
 * shared states, rollback, refusals and failures. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_VOCAB 96
#define N_TOK 48

/* F32 sums of at most 128 terms, differently ordered, squared, over a few layers. */
#define SAME 1e-10

static int32_t id_of(int32_t seq, int32_t pos)
{
    return (pos * 7 + seq * 13 + pos * pos % 11) % N_VOCAB;
}

/* One arch after another that has recurrent layers; NULL at the end. */
static struct gr_model *next_model(int *at)
{
    for (const struct gr_arch *a; (a = gr_arch_at(*at)) != NULL;) {
        ++*at;
        struct tiny t = tiny_default(a);
        struct gr_model *m = tiny_open(&t);
        if (tiny_keeps_states(m))
            return m;
        gr_model_close(&m);
    }
    return NULL;
}

static struct gr_session *session(struct gr_model *m, uint32_t n_seq_max, uint32_t n_rollback)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = n_seq_max, p.n_rollback = n_rollback;
    p.type_k = p.type_v = "f32";
    p.n_threads = 1;
    return tiny_session(m, &p);
}

/* Tokens [lo, hi) of text `text` in sequence seq as one batch; logits [hi - lo]. */
static int decode(struct gr_session *s, int32_t seq, int32_t text, int lo, int hi, float *logits)
{
    int32_t id[N_TOK], q[N_TOK];
    int8_t want[N_TOK];
    for (int i = 0; i < hi - lo; i++)
        id[i] = id_of(text, lo + i), q[i] = seq, want[i] = 1;
    int rc =
        gr_decode(s, &(struct gr_batch){.n_tok = hi - lo, .token = id, .seq = q, .logits = want});
    for (int i = 0; !rc && logits && i < hi - lo; i++)
        memcpy(logits + i * N_VOCAB, tiny_row(s, i), N_VOCAB * sizeof *logits);
    return rc;
}

static void ok(int rc)
{
    cr_assert_eq(rc, 0, "%s", gr_error_message());
}

/* Tokens one after the other, so that each leaves a state to roll back to. */
static void steps(struct gr_session *s, int32_t seq, int32_t text, int lo, int hi, float *logits)
{
    for (int i = lo; i < hi; i++)
        ok(decode(s, seq, text, i, i + 1, logits + (i - lo) * N_VOCAB));
}

static float want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];

static void expect_equal(const struct gr_model *m, const float *a, const float *b, int n)
{
    cr_expect(!memcmp(a, b, (size_t)n * N_VOCAB * sizeof *a), "%s: logits differ: %g",
              m->arch->name, tiny_nmse(a, b, (size_t)n * N_VOCAB));
}

/* Generating, rolling back and generating again gives the same logits to the bit; so does another
 * text after a rollback, as if the first one had never been. */
Test(recurrent_models, turning_back)
{
    int at = 0, n = 0;
    for (struct gr_model *m; (m = next_model(&at)) != NULL; gr_model_close(&m), n++) {
        struct gr_session *s = session(m, 2, 4), *fresh = session(m, 2, 4);
        ok(decode(s, 0, 0, 0, 20, NULL));
        steps(s, 0, 0, 20, 26, want);
        cr_expect_eq(gr_kv_seq_pos_min(s, 0), 21);
        for (int back = 22; back < 26; back++) {
            ok(gr_kv_seq_rm(s, 0, back, -1));
            cr_expect_eq(gr_kv_seq_pos_max(s, 0), back - 1);
            steps(s, 0, 0, back, 26, got);
            expect_equal(m, want + (back - 20) * N_VOCAB, got, 26 - back);
        }
        ok(gr_kv_seq_rm(s, 0, 22, -1));
        steps(s, 0, 1, 22, 30, got);
        ok(decode(fresh, 0, 0, 0, 20, NULL));
        steps(fresh, 0, 0, 20, 22, want);
        steps(fresh, 0, 1, 22, 30, want);
        expect_equal(m, want, got, 8);
        gr_session_close(&s);
        gr_session_close(&fresh);
    }
    cr_assert_gt(n, 3);
}

/* The last tokens of a longer batch can be rolled back too, and no more. */
Test(recurrent_models, turning_back_in_a_prompt)
{
    int at = 0;
    for (struct gr_model *m; (m = next_model(&at)) != NULL; gr_model_close(&m)) {
        struct gr_session *s = session(m, 1, 3);
        ok(decode(s, 0, 0, 0, 30, want));
        cr_expect_eq(gr_kv_seq_pos_min(s, 0), 26);
        cr_expect_eq(gr_kv_seq_rm(s, 0, 26, -1), GR_E_UNSUPPORTED);
        ok(gr_kv_seq_rm(s, 0, 27, -1));
        steps(s, 0, 0, 27, 30, got);
        expect_equal(m, want + 27 * N_VOCAB, got, 3);
        gr_session_close(&s);
    }
}

/* Impossible operations are refused and change nothing. */
Test(recurrent_models, refusals)
{
    int at = 0;
    for (struct gr_model *m; (m = next_model(&at)) != NULL; gr_model_close(&m)) {
        struct gr_session *s = session(m, 2, 0), *fresh = session(m, 2, 0);
        ok(decode(s, 0, 0, 0, 12, NULL));
        ok(decode(fresh, 0, 0, 0, 12, NULL));
        ok(decode(s, 1, 1, 0, 5, NULL));
        cr_expect_eq(gr_kv_seq_rm(s, 0, 0, 2), GR_E_UNSUPPORTED);
        cr_expect_eq(gr_kv_seq_rm(s, 0, 8, -1), GR_E_UNSUPPORTED);
        cr_expect_eq(gr_kv_seq_rm(s, 0, 3, 5), GR_E_UNSUPPORTED);
        cr_expect_eq(gr_kv_seq_add(s, 0, -1, -1, 4), GR_E_UNSUPPORTED);
        cr_expect_eq(gr_kv_seq_div(s, 0, 4, -1, 2), GR_E_UNSUPPORTED);
        cr_expect_eq(gr_kv_seq_cp(s, 0, 1, -1, -1), GR_E_UNSUPPORTED, "it has a state");
        ok(gr_kv_seq_rm(s, 1, -1, -1));
        cr_expect_eq(gr_kv_seq_cp(s, 0, 1, 0, 7), GR_E_UNSUPPORTED);
        ok(gr_kv_seq_rm(s, 0, 12, -1));
        cr_expect(gr_kv_seq_pos_max(s, 0) == 11 && gr_kv_seq_pos_max(s, 1) == -1);
        steps(s, 0, 0, 12, 16, got);
        steps(fresh, 0, 0, 12, 16, want);
        expect_equal(m, want, got, 4);
        gr_session_close(&s);
        gr_session_close(&fresh);
    }
}

/* Four sequences that share a prompt's state and go on in one batch, in tokens of unequal number
 * and mixed order; each as if it were alone. */
static void share(struct gr_model *m, uint32_t n_ubatch, bool unified)
{
    static const int len[4] = {9, 1, 4, 9};
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 1024, p.n_seq_max = 4, p.n_ubatch = n_ubatch, p.n_threads = 1;
    p.type_k = p.type_v = "f32", p.kv_unified = unified;
    struct gr_session *s = tiny_session(m, &p);
    int32_t id[N_TOK], seq[N_TOK], n = 0;
    int8_t all[N_TOK];
    ok(decode(s, 2, 0, 0, 15, NULL));
    for (int32_t q = 0; q < 4; q++)
        ok(gr_kv_seq_cp(s, 2, q, -1, -1));
    for (int i = 8; i >= 0; i--)
        for (int32_t q = 3; q >= 0; q--)
            if (i < len[q]) {
                id[n] = id_of(q, 15 + len[q] - 1 - i);
                all[n] = 1, seq[n++] = q;
            }
    ok(gr_decode(s, &(struct gr_batch){.n_tok = n, .token = id, .seq = seq, .logits = all}));
    for (int32_t q = 0; q < 4; q++) {
        struct gr_session *alone = session(m, 1, 0);
        ok(decode(alone, 0, 0, 0, 15, NULL));
        ok(decode(alone, 0, q, 15, 15 + len[q], want));
        for (int32_t i = 0, k = 0; i < n; i++)
            if (seq[i] == q)
                memcpy(got + k++ * N_VOCAB, tiny_row(s, i), N_VOCAB * sizeof *got);
        double e = tiny_nmse(want, got, (size_t)len[q] * N_VOCAB);
        cr_expect(e <= SAME, "%s, sequence %d: %g", m->arch->name, q, e);
        gr_session_close(&alone);
    }
    gr_session_close(&s);
}

Test(recurrent_models, sharing_and_going_on_together)
{
    int at = 0;
    for (struct gr_model *m; (m = next_model(&at)) != NULL; gr_model_close(&m)) {
        share(m, 512, true);
        share(m, 5, true);
        share(m, 3, false);
    }
}

/* Logits of the last of n tokens of text 0 and then, if `text` is not 0, of its token n. */
static void alone(struct gr_model *m, int n, int32_t text, float *logits)
{
    struct gr_session *s = session(m, 1, 0);
    float all[4 * N_VOCAB];
    ok(decode(s, 0, n ? 0 : text, 0, GR_MAX(n, 1), all));
    if (n && text)
        ok(decode(s, 0, text, n, n + 1, all + (n - 1) * N_VOCAB));
    memcpy(logits, all + (GR_MAX(n, 1) - 1) * N_VOCAB, N_VOCAB * sizeof *logits);
    gr_session_close(&s);
}

/* Tokens of two sequences are computed once; then these part. */
Test(recurrent_models, tokens_of_several_sequences)
{
    static const int32_t n_seq[6] = {2, 2, 2, 1, 1, 1}, seq[9] = {2, 0, 0, 2, 2, 0, 1, 2, 0};
    static const int8_t all[6] = {1, 1, 1, 1, 1, 1};
    const int32_t id[6] = {id_of(0, 0), id_of(0, 1), id_of(0, 2),
                           id_of(1, 0), id_of(2, 3), id_of(0, 3)};
    int at = 0;
    for (struct gr_model *m; (m = next_model(&at)) != NULL; gr_model_close(&m)) {
        struct gr_session *s = session(m, 3, 2);
        struct gr_batch b = {.n_tok = 6, .token = id, .n_seq = n_seq, .seq = seq, .logits = all};
        ok(gr_decode(s, &b));
        for (int i = 0; i < 4; i++)
            memcpy(got + i * N_VOCAB, tiny_row(s, 2 + i), N_VOCAB * sizeof *got);
        alone(m, 3, 0, want);
        alone(m, 0, 1, want + N_VOCAB);
        alone(m, 3, 2, want + 2 * N_VOCAB);
        alone(m, 4, 0, want + 3 * N_VOCAB);
        double e = tiny_nmse(want, got, 4 * N_VOCAB);
        cr_expect(e <= SAME, "%s: %g", m->arch->name, e);
        cr_expect(gr_kv_seq_pos_max(s, 0) == 3 && gr_kv_seq_pos_max(s, 1) == 0 &&
                  gr_kv_seq_pos_max(s, 2) == 3);
        gr_session_close(&s);
    }
}

/* A restored sequence can be rolled back as far as the saved one could. */
Test(recurrent_models, saved_and_restored)
{
    int at = 0;
    for (struct gr_model *m; (m = next_model(&at)) != NULL; gr_model_close(&m)) {
        struct gr_session *s = session(m, 2, 3), *other = session(m, 3, 3);
        void *data;
        size_t n;
        ok(decode(s, 0, 0, 0, 12, NULL));
        steps(s, 0, 0, 12, 16, want);
        ok(gr_state_save(s, 0, NULL, 0, &data, &n));
        ok(decode(other, 1, 1, 0, 9, NULL));
        ok(gr_state_load(other, 1, data, n, NULL, NULL));
        cr_expect_eq(gr_kv_seq_pos_min(other, 1), gr_kv_seq_pos_min(s, 0));
        ok(gr_kv_seq_cp(other, 1, 2, -1, -1));
        for (int32_t q = 1; q < 3; q++) {
            ok(gr_kv_seq_rm(other, q, 13, -1));
            steps(other, q, 0, 13, 16, got);
            expect_equal(m, want + N_VOCAB, got, 3);
        }
        gr_state_free(data);
        gr_session_close(&s);
        gr_session_close(&other);
    }
}

struct stop {
    struct gr_session *s;
    int after; /* taps */
};

static void stop(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                 void *user)
{
    struct stop *x = user;
    (void)name, (void)layer, (void)data, (void)rows, (void)cols;
    if (x->after-- == 0)
        gr_session_cancel(x->s);
}

/* With a spare row, a decode that is cancelled on the way changes nothing. Where it has to
 * overwrite the state, the sequence is empty and the message says so; others are as before. */
Test(recurrent_models, cancelling)
{
    int at = 0;
    for (struct gr_model *m; (m = next_model(&at)) != NULL; gr_model_close(&m))
        for (int after = 0; after < 6; after += 2) {
            struct gr_session *s = session(m, 1, 1), *fresh = session(m, 1, 1);
            struct stop x = {s, after};
            ok(decode(s, 0, 0, 0, 12, NULL));
            ok(decode(fresh, 0, 0, 0, 12, NULL));
            ok(gr_session_tap(s, "", stop, &x));
            cr_expect_eq(decode(s, 0, 1, 12, 13, NULL), GR_E_CANCELLED);
            ok(gr_session_tap(s, "", NULL, NULL));
            cr_expect_eq(gr_kv_seq_pos_max(s, 0), 11);
            steps(s, 0, 0, 12, 14, got);
            steps(fresh, 0, 0, 12, 14, want);
            expect_equal(m, want, got, 2);
            gr_session_close(&s);
            gr_session_close(&fresh);
        }
}

Test(recurrent_models, cancelling_without_a_spare_row)
{
    int at = 0;
    for (struct gr_model *m; (m = next_model(&at)) != NULL; gr_model_close(&m)) {
        struct gr_session *s = session(m, 1, 0), *fresh = session(m, 1, 0);
        struct stop x = {s, 3};
        ok(decode(s, 0, 0, 0, 12, NULL));
        ok(gr_session_tap(s, "", stop, &x));
        cr_expect_eq(decode(s, 0, 0, 12, 13, NULL), GR_E_CANCELLED);
        cr_expect(strstr(gr_error_message(), "they are empty now: 0"), "%s", gr_error_message());
        ok(gr_session_tap(s, "", NULL, NULL));
        cr_expect(gr_kv_seq_pos_max(s, 0) == -1 && gr_kv_used(s) == 0);
        ok(decode(s, 0, 0, 0, 12, got));
        ok(decode(fresh, 0, 0, 0, 12, want));
        expect_equal(m, want, got, 12);
        gr_session_close(&s);
        gr_session_close(&fresh);
    }
}

/* Four sequences have two spare rows: a batch of all of them overwrites two states, and the message
 * names the sequences that are empty. */
Test(recurrent_models, cancelling_several_sequences)
{
    int at = 0;
    for (struct gr_model *m; (m = next_model(&at)) != NULL; gr_model_close(&m)) {
        struct gr_session *s = session(m, 4, 0);
        struct stop x = {s, 3};
        int32_t id[4] = {1, 2, 3, 4}, seq[4] = {0, 1, 2, 3};
        char list[64] = "they are empty now: ";
        int n_empty = 0;
        for (int32_t q = 0; q < 4; q++)
            ok(decode(s, q, 0, 0, 12, NULL));
        ok(gr_session_tap(s, "", stop, &x));
        cr_expect_eq(gr_decode(s, &(struct gr_batch){.n_tok = 4, .token = id, .seq = seq}),
                     GR_E_CANCELLED);
        for (int32_t q = 0; q < 4; q++) {
            const int32_t pos = gr_kv_seq_pos_max(s, q);
            cr_expect(pos == -1 || pos == 11, "%d", (int)pos);
            if (pos < 0)
                snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d",
                         n_empty++ ? ", " : "", (int)q);
        }
        cr_expect_eq(n_empty, 2);
        cr_expect(strstr(gr_error_message(), list), "%s, not %s", gr_error_message(), list);
        ok(gr_session_tap(s, "", NULL, NULL));
        gr_session_close(&s);
    }
}
