/* Pending batches: they begin and end in order, and give what they give one at a time. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_VOCAB 96
#define N_SEQ 4

static struct gr_session *session(struct gr_model *m)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 512, p.n_threads = 1, p.n_seq_max = N_SEQ, p.n_ubatch = 4;
    return tiny_session(m, &p);
}

/* Tokens of round k of a sequence: six at first, then one. */
static struct gr_batch batch(int seq, int k, int32_t id[6], int32_t seqs[6])
{
    int n = k ? 1 : 6;
    for (int i = 0; i < n; i++)
        id[i] = (7 + 31 * seq + 11 * k + i * 5) % N_VOCAB, seqs[i] = seq;
    return (struct gr_batch){.n_tok = n, .token = id, .seq = seqs};
}

Test(pending, groups_of_sequences)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    struct gr_session *a = session(m), *b = session(m);
    int32_t id[6], seqs[6];
    for (int k = 0; k < 20; k++) {
        for (int q = 0; q < N_SEQ; q++) {
            struct gr_batch in = batch(q, k, id, seqs);
            cr_assert_eq(gr_decode_begin(a, &in), 0, "%s", gr_error());
        }
        cr_assert_eq(gr_kv_seq_rm(a, 3, -1, -1), 0, "%s", gr_error());
        for (int q = 0; q < N_SEQ; q++) {
            struct gr_batch in = batch(q, k, id, seqs);
            cr_assert_eq(gr_decode_end(a), 0, "%s", gr_error());
            cr_assert_eq(gr_decode(b, &in), 0, "%s", gr_error());
            cr_assert_eq(memcmp(tiny_row(a, -1), tiny_row(b, -1), N_VOCAB * sizeof(float)), 0,
                         "round %d, sequence %d", k, q);
        }
        cr_assert_eq(gr_kv_seq_rm(b, 3, -1, -1), 0, "%s", gr_error());
    }
    gr_session_close(&a), gr_session_close(&b);
    gr_model_close(&m);
}

/* Batches that follow each other use the memory of those that have ended. */
Test(pending, memory_is_used_again)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    struct gr_session *s = session(m);
    int32_t id[6], seqs[6], n = 0;
    for (int k = 0; k < 2 * GR_N_PENDING; k++) {
        for (int q = 0; q < 3; q++) {
            struct gr_batch in = batch(q, 1, id, seqs);
            cr_assert_eq(gr_decode_begin(s, &in), 0, "%s", gr_error());
        }
        for (int q = 0; q < 3; q++)
            cr_assert_eq(gr_decode_end(s), 0, "%s", gr_error());
        cr_assert_eq(gr_kv_seq_rm(s, -1, -1, -1), 0);
    }
    for (int i = 0; i < GR_N_PENDING; i++)
        n += s->results.pending[i].logits != NULL;
    cr_expect_leq(n, 4);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(pending, what_is_refused)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    struct gr_session *s = session(m);
    int32_t id[6], seqs[6];
    struct gr_batch in = batch(0, 0, id, seqs), one = {.n_tok = 1, .token = id};
    cr_assert_eq(gr_decode_end(s), GR_E_INVALID);
    cr_assert_eq(gr_decode(s, &in), 0);
    const float *logits = tiny_row(s, -1);
    float copy[N_VOCAB];
    memcpy(copy, logits, sizeof copy);
    for (int i = 0; i < GR_MAX_PENDING; i++)
        cr_assert_eq(gr_decode_begin(s, &one), 0, "%s", gr_error());
    cr_assert_eq(gr_decode_begin(s, &one), GR_E_INVALID);
    cr_assert_eq(gr_decode(s, &one), GR_E_INVALID);
    cr_assert_eq(gr_session_resize(s, 1024), GR_E_INVALID);
    cr_assert_eq(tiny_row(s, -1), logits);
    cr_assert_eq(memcmp(logits, copy, sizeof copy), 0);
    cr_assert_eq(gr_kv_used(s), 6 + GR_MAX_PENDING);
    cr_assert_eq(gr_decode_end(s), 0);
    cr_assert_neq(tiny_row(s, 0), logits);
    id[0] = N_VOCAB;
    cr_assert_eq(gr_decode_begin(s, &one), GR_E_INVALID);
    for (int i = 1; i < GR_MAX_PENDING; i++)
        cr_assert_eq(gr_decode_end(s), 0);
    cr_assert_eq(gr_decode_end(s), GR_E_INVALID);
    gr_session_close(&s);
    gr_model_close(&m);
}
