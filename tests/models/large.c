/* More cells than 16 bits count, all 256 sequences: each is as if it were alone. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_SEQ 256
#define EACH 258 /* tokens of a sequence: 66,048 cells in all */
#define N_VOCAB 32

static void fill(struct gr_session *s, int which, int32_t seq, int32_t pos)
{
    int32_t id[EACH], at[EACH], seqs[EACH];
    int8_t none[EACH] = {0};
    for (int i = 0; i < EACH; i++)
        id[i] = (which + 7 * i) % N_VOCAB, at[i] = pos + i, seqs[i] = seq;
    struct gr_batch b = {.n_tok = EACH, .token = id, .pos = at, .seq = seqs, .logits = none};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
}

static const float *next(struct gr_session *s, int32_t seq)
{
    struct gr_batch b = {.n_tok = 1, .token = &(int32_t){5}, .seq = &seq};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    return tiny_row(s, 0);
}

Test(large, sequences_in_66048_cells)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    t.n_layer = 1, t.n_embd = t.n_ff = 16, t.n_head = t.n_head_kv = 1, t.d_head = 8;
    t.n_vocab = N_VOCAB, t.n_expert = 0;
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = gr_session_params_default();
    p.n_threads = 1, p.type_k = p.type_v = "f32", p.n_ctx = 512;
    struct gr_session *alone = tiny_session(m, &p);
    p.n_ctx = N_SEQ * (EACH + 2), p.n_seq_max = N_SEQ;
    struct gr_session *s = tiny_session(m, &p);
    for (int k = 0; k < N_SEQ; k++)
        fill(s, k, k, 0);
    cr_expect_eq(gr_kv_used(s), N_SEQ * EACH);
    for (int k = 0; k < N_SEQ; k += 51)
        for (int moved = 0; moved < 2; moved++) {
            gr_kv_clear(alone);
            fill(alone, k, 0, 10 * moved);
            if (moved) {
                cr_assert_eq(gr_kv_seq_rm(s, k, EACH, -1), 0);
                cr_assert_eq(gr_kv_seq_add(s, k, 0, -1, 10), 0);
            }
            float want[N_VOCAB];
            memcpy(want, next(alone, 0), sizeof want);
            double e = tiny_nmse(want, next(s, k), N_VOCAB);
            cr_expect(e < 1e-9, "sequence %d, moved %d: %g", k, moved, e);
        }
    gr_session_close(&s);
    gr_session_close(&alone);
    gr_model_close(&m);
}
