/* Random operations on whole sequences of models with recurrent layers: what a sequence gives is
 * what its tokens give alone, in one piece. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

enum { N_SEQ = 4, N_VOCAB = 96, MOST = 40 };

/* F32 sums of some hundred terms, in the order of other numbers of rows, through all tokens: errors
 * of 1e-6 that norms of the heads of a state make larger wherever a head is small (RWKV: up to
 * 5e-5). A state that is not a sequence's own shows at 1e-2. */
#define SAME 5e-9

struct fixture {
    struct gr_session *s, *fresh;
    int32_t tok[N_SEQ][MOST];
    int n[N_SEQ];
    struct gr_rng rng;
};

static int below(struct fixture *f, int n)
{
    return (int)gr_rng_below(&f->rng, (uint32_t)n);
}

/* The logits of the last token of a sequence, by a session that has seen nothing else. */
static const float *alone(struct fixture *f, int seq)
{
    gr_kv_clear(f->fresh);
    struct gr_batch b = {.n_tok = f->n[seq], .token = f->tok[seq]};
    cr_assert_eq(gr_decode(f->fresh, &b), 0, "%s", gr_error());
    return tiny_row(f->fresh, -1);
}

/* New tokens of several sequences in one batch, in any order of the sequences; the logits of each
 * one's last are wanted and compared. */
static void decode(struct fixture *f)
{
    int32_t tok[64], pos[64], seq[64], last[N_SEQ];
    int8_t want[64] = {0};
    int n = 0;
    for (int q = 0; q < N_SEQ; q++)
        last[q] = -1;
    for (int i = 1 + below(f, 20); i > 0; i--) {
        int q = below(f, N_SEQ);
        if (f->n[q] == MOST)
            continue;
        tok[n] = f->tok[q][f->n[q]] = below(f, N_VOCAB);
        pos[n] = f->n[q]++, seq[n] = q, last[q] = n++;
    }
    for (int q = 0; q < N_SEQ; q++)
        if (last[q] >= 0)
            want[last[q]] = 1;
    struct gr_batch b = {.n_tok = n, .token = tok, .pos = pos, .seq = seq, .logits = want};
    cr_assert_eq(n ? gr_decode(f->s, &b) : 0, 0, "%s", gr_error());
    for (int q = 0; q < N_SEQ; q++) {
        if (last[q] < 0)
            continue;
        double e = tiny_nmse(alone(f, q), tiny_row(f->s, last[q]), N_VOCAB);
        cr_assert(e <= SAME, "%s, sequence %d of %d tokens: %g", f->s->model->arch->name, q,
                  f->n[q], e);
    }
}

static void copy(struct fixture *f, int src, int dst)
{
    cr_assert_eq(gr_kv_seq_rm(f->s, dst, -1, -1), 0, "%s", gr_error());
    f->n[dst] = 0;
    if (src == dst)
        return;
    cr_assert_eq(gr_kv_seq_cp(f->s, src, dst, -1, -1), 0, "%s", gr_error());
    memcpy(f->tok[dst], f->tok[src], sizeof f->tok[src]);
    f->n[dst] = f->n[src];
}

static void keep(struct fixture *f, int seq)
{
    cr_assert_eq(gr_kv_seq_keep(f->s, seq), 0, "%s", gr_error());
    for (int q = 0; q < N_SEQ; q++)
        f->n[q] = q == seq ? f->n[q] : 0;
}

/* Whatever would need a state of the past is refused, and changes nothing. */
static void refuse(struct fixture *f, int seq)
{
    if (f->n[seq] < 3)
        return;
    cr_expect_eq(gr_kv_seq_rm(f->s, seq, 1, 2), GR_E_UNSUPPORTED);
    cr_expect_eq(gr_kv_seq_rm(f->s, seq, f->n[seq] - 2, -1), GR_E_UNSUPPORTED);
    cr_expect_eq(gr_kv_seq_add(f->s, seq, 1, -1, 3), GR_E_UNSUPPORTED);
    cr_expect_eq(gr_kv_seq_div(f->s, seq, 1, -1, 2), GR_E_UNSUPPORTED);
}

static void run(struct gr_model *m, uint64_t seed)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = N_SEQ, p.type_k = p.type_v = "f32", p.n_threads = 1 + seed % 2;
    p.n_ubatch = (const uint32_t[]){1, 3, 8, 64}[seed % 4];
    struct fixture f = {.s = tiny_session(m, &p), .rng = gr_rng_new(seed)};
    p.n_ubatch = 64;
    f.fresh = tiny_session(m, &p);
    for (int k = 0; k < 30; k++) {
        int what = below(&f, 8), seq = below(&f, N_SEQ);
        if (what < 5)
            decode(&f);
        else if (what < 7)
            copy(&f, seq, below(&f, N_SEQ));
        else if (below(&f, 3) == 0)
            keep(&f, seq);
        refuse(&f, below(&f, N_SEQ));
        for (int q = 0; q < N_SEQ; q++)
            cr_assert_eq(gr_kv_seq_pos_max(f.s, q), f.n[q] - 1);
    }
    gr_session_close(&f.s);
    gr_session_close(&f.fresh);
}

Test(states, sequences_are_what_they_are_alone)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        t.n_expert = tiny_needs_experts(t.arch) ? 3 : 0;
        struct gr_model *m = tiny_open(&t);
        for (uint64_t seed = 0; seed < 5 && tiny_keeps_states(m); seed++)
            run(m, seed);
        gr_model_close(&m);
    }
}
