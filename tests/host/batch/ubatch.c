/* Splitting of batches: the traces by their numbers, and every split of random batches against a
 * model that works out for each token anew which ones it has to wait for. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "batch/batch.h"

#define N_SEQ 6
#define N_TOK 40

#define I(...) ((const int32_t[]){__VA_ARGS__})

static int32_t empty_pos(const void *cache, int32_t seq)
{
    (void)cache, (void)seq;
    return -1;
}

static bool all_same(const void *cache, int32_t a, int32_t b)
{
    (void)cache, (void)a, (void)b;
    return true;
}

static const struct gr_batch_limits limits = {20000, N_TOK, N_SEQ, empty_pos, all_same,
                                              NULL,  0,     NULL,  0};
static struct gr_full_batch full;

static void expect_ub(const struct gr_ubatch *ub, int32_t n_seq, int32_t n, const int32_t *tok)
{
    cr_assert_eq(ub->batch, &full);
    cr_assert(ub->n_seq == n_seq && ub->n_tok == n, "%d tokens of %d sequences", ub->n_tok,
              ub->n_seq);
    cr_assert_arr_eq(ub->tok, tok, (size_t)n * sizeof *tok);
}

/* S3-12: 36 tokens of one sequence are one micro-batch, not one of equal sequences. */
Test(split, simple)
{
    int32_t token[36] = {0}, tok[36];
    struct gr_ubatch ub[36];
    struct gr_batch b = {.n_tok = 36, .token = token};
    cr_assert_eq(gr_batch_check(&full, &b, &limits), 0);
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_SIMPLE, 512, 0, tok, ub), 1);
    cr_assert(ub[0].n_tok == 36 && ub[0].n_seq == 0 && ub[0].n_out == 1);
    for (int32_t i = 0; i < 36; i++)
        cr_assert_eq(ub[0].tok[i], i);
    gr_batch_fini(&full);
}

/* S4-30, S4-32: 5 tokens of sequence 0 and 4 of sequence 1 are 2 times 4 tokens, then 1 of
 * sequence 0. Token k = s * n_seq_tokens + i is the i-th of sequence s (S4-10). Sequences come in
 * the order of their ids (C11), where the trace has sequence 1 first. */
Test(split, equal)
{
    int32_t tok[9];
    struct gr_ubatch ub[9];
    struct gr_batch b = {.n_tok = 9,
                         .token = I(15496, 1276, 310, 9497, 5214, 15961, 14528, 6749, 10777),
                         .seq = I(0, 0, 0, 0, 0, 1, 1, 1, 1),
                         .logits = (int8_t[]){0, 0, 0, 0, 1, 0, 0, 0, 1}};
    cr_assert_eq(gr_batch_check(&full, &b, &limits), 0);
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 512, 0, tok, ub), 2);
    expect_ub(&ub[0], 2, 8, I(0, 1, 2, 3, 5, 6, 7, 8));
    expect_ub(&ub[1], 1, 1, I(4));
    cr_assert(ub[0].n_out == 1 && ub[1].n_out == 1);
    /* By sequence. */
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_SEQ, 3, 0, tok, ub), 4);
    expect_ub(&ub[0], 1, 3, I(0, 1, 2));
    expect_ub(&ub[1], 1, 2, I(3, 4));
    expect_ub(&ub[2], 1, 3, I(5, 6, 7));
    expect_ub(&ub[3], 1, 1, I(8));
    /* Two tokens of each at the end by themselves: what is before them first. */
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 512, 2, tok, ub), 4);
    expect_ub(&ub[0], 2, 4, I(0, 1, 5, 6));
    expect_ub(&ub[1], 1, 1, I(2));
    expect_ub(&ub[2], 2, 2, I(3, 7));
    expect_ub(&ub[3], 2, 2, I(4, 8));
    gr_batch_fini(&full);
}

/* A prompt of two sequences, then each by itself: what they share comes first and once. */
Test(split, coupled)
{
    int32_t tok[6];
    struct gr_ubatch ub[6];
    struct gr_batch b = {.n_tok = 6, .token = I(1, 2, 3, 4, 5, 6)};
    b.n_seq = I(2, 1, 2, 1, 1, 1);
    b.seq = I(2, 0, 1, 0, 2, 0, 2, 1);
    cr_assert_eq(gr_batch_check(&full, &b, &limits), 0);
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 8, 0, tok, ub), 2);
    expect_ub(&ub[0], 2, 4, I(0, 2, 1, 5)); /* {0, 2} and {1} */
    expect_ub(&ub[1], 2, 2, I(3, 4));       /* {0} and {2} */
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 1, 0, tok, ub), 6);
    cr_assert_arr_eq(tok, I(0, 2, 3, 1, 5, 4), 24);
    gr_batch_fini(&full);
}

/* ---- random batches ---- */

struct model {
    const struct gr_full_batch *b;
    bool taken[N_TOK];
};

static bool has(const struct gr_full_batch *b, int32_t t, int32_t s)
{
    for (int32_t k = 0; k < b->n_seq[t]; k++)
        if (b->seq[b->seq_at[t] + k] == s)
            return true;
    return false;
}

static bool equal_sets(const struct gr_full_batch *b, int32_t t, int32_t u)
{
    for (int32_t s = 0; s < N_SEQ; s++)
        if (has(b, t, s) != has(b, u, s))
            return false;
    return true;
}

/* Tokens of a sequence that are not taken, from t on. */
static int32_t to_come(const struct model *m, int32_t s, int32_t t)
{
    int32_t n = 0;
    for (; t < m->b->n_tok; t++)
        n += !m->taken[t] && has(m->b, t, s);
    return n;
}

static bool in_tail(const struct model *m, int32_t t, int32_t n_tail)
{
    for (int32_t s = 0; s < N_SEQ; s++)
        if (has(m->b, t, s) && to_come(m, s, t) <= n_tail)
            return true;
    return false;
}

/* The tokens that the sequences led by s could take at once: run [N_TOK]. */
static int32_t model_run(const struct model *m, int32_t lead, int32_t *run)
{
    int32_t n = 0;
    for (int32_t t = 0; t < m->b->n_tok; t++) {
        bool mine = !m->taken[t] && has(m->b, t, lead);
        for (int32_t s = 0; s < lead; s++)
            if (mine && has(m->b, t, s))
                return n;
        if (mine && n && !equal_sets(m->b, run[0], t))
            return n;
        for (int32_t s = 0; mine && s < N_SEQ; s++)
            if (has(m->b, t, s) && to_come(m, s, 0) - to_come(m, s, t) != n)
                return n;
        if (mine)
            run[n++] = t;
    }
    return n;
}

/* The next micro-batch: tok; returns its tokens, *n_seq its sequences. */
static int32_t model_round(struct model *m, enum gr_split how, int32_t n_ubatch, int32_t n_tail,
                           int32_t *tok, int32_t *n_seq)
{
    int32_t run[N_SEQ][N_TOK], len[N_SEQ], body[N_SEQ], least = N_TOK, n = 0, n_tok = 0;
    bool bodies = false;
    for (int32_t s = 0; s < N_SEQ; s++) {
        len[s] = model_run(m, s, run[s]);
        for (body[s] = 0; body[s] < len[s] && !in_tail(m, run[s][body[s]], n_tail); body[s]++)
            bodies = true;
    }
    for (int32_t s = 0; s < N_SEQ; s++)
        len[s] = bodies ? body[s] : len[s] > 0;
    for (int32_t s = 0; s < N_SEQ; s++) {
        if (n == (how == GR_SPLIT_SEQ ? 1 : n_ubatch))
            len[s] = 0;
        n += len[s] > 0;
        least = len[s] ? GR_MIN(least, len[s]) : least;
    }
    least = GR_MIN(least, n_ubatch / n);
    for (int32_t s = 0; s < N_SEQ; s++)
        for (int32_t i = 0; len[s] && i < least; i++) {
            tok[n_tok++] = run[s][i];
            m->taken[run[s][i]] = true;
        }
    *n_seq = n;
    return n_tok;
}

/* Checks the properties of every split, whatever its order. */
static void expect_split(const struct gr_ubatch *ub, int32_t n_ub, int32_t n_ubatch)
{
    int32_t last[N_SEQ], n_tok = 0, n_out = 0;
    bool seen[N_TOK] = {false};
    memset(last, 0xff, sizeof last);
    for (int32_t u = 0; u < n_ub; n_tok += ub[u].n_tok, n_out += ub[u].n_out, u++) {
        int32_t out = 0;
        cr_assert(ub[u].n_tok >= 1 && ub[u].n_tok <= n_ubatch);
        cr_assert(!ub[u].n_seq || ub[u].n_tok % ub[u].n_seq == 0);
        for (int32_t i = 0; i < ub[u].n_tok; i++) {
            int32_t t = ub[u].tok[i];
            cr_assert(t >= 0 && t < full.n_tok && !seen[t]);
            seen[t] = true;
            out += full.logits[t];
            for (int32_t s = 0; s < N_SEQ; s++)
                if (has(&full, t, s)) {
                    cr_assert_gt(t, last[s], "sequence %d: token %d behind %d", s, t, last[s]);
                    last[s] = t;
                }
        }
        cr_assert_eq(out, ub[u].n_out);
    }
    cr_assert(n_tok == full.n_tok && n_out == full.n_out);
}

/* Sequences begin together in a few groups, which divide as the batch goes on. */
static void random_batch(struct gr_rng *r)
{
    static int32_t token[N_TOK], n_seq[N_TOK], seq[N_TOK * N_SEQ];
    static int8_t logits[N_TOK];
    int32_t group[N_SEQ], n = 1 + (int32_t)gr_rng_below(r, N_TOK), at = 0, s = 0;
    for (int32_t i = 0; i < N_SEQ; i++)
        group[i] = (int32_t)gr_rng_below(r, N_SEQ);
    bool interleave = gr_rng_below(r, 2);
    for (int32_t t = 0; t < n; t++) {
        if (interleave || !gr_rng_below(r, 5))
            s = (int32_t)gr_rng_below(r, N_SEQ);
        if (!gr_rng_below(r, 6)) /* one leaves its group */
            group[s] = N_SEQ + t;
        n_seq[t] = 0;
        for (int32_t k = 0, i = (int32_t)gr_rng_below(r, N_SEQ); k < N_SEQ; k++, i++)
            if (group[i % N_SEQ] == group[s])
                seq[at++] = i % N_SEQ, n_seq[t]++;
        logits[t] = (int8_t)gr_rng_below(r, 2);
    }
    struct gr_batch b = {n, token, NULL, n_seq, seq, logits, NULL, NULL};
    cr_assert_eq(gr_batch_check(&full, &b, &limits), 0, "%s", gr_error());
}

Test(split, random)
{
    struct gr_rng r = gr_rng_new(11);
    int32_t tok[N_TOK], want[N_TOK], n_equal = 0;
    struct gr_ubatch ub[N_TOK];
    for (int round = 0; round < 20000; round++) {
        random_batch(&r);
        int32_t n_ubatch = 1 + (int32_t)gr_rng_below(&r, N_TOK + 5);
        int32_t n_tail = gr_rng_below(&r, 2) ? (int32_t)gr_rng_below(&r, 5) : 0;
        enum gr_split how = (enum gr_split)gr_rng_below(&r, 3);
        int32_t n_ub = gr_batch_split(&full, how, n_ubatch, n_tail, tok, ub);
        expect_split(ub, n_ub, n_ubatch);
        struct model m = {.b = &full};
        for (int32_t u = 0; u < n_ub; u++) {
            int32_t n_seq = 0, n_tok = ub[u].n_tok;
            if (how == GR_SPLIT_SIMPLE)
                cr_assert_eq(n_tok, GR_MIN(n_ubatch, full.n_tok - u * n_ubatch));
            else
                n_tok = model_round(&m, how, n_ubatch, n_tail, want, &n_seq);
            for (int32_t i = 0; how == GR_SPLIT_SIMPLE && i < n_tok; i++)
                want[i] = u * n_ubatch + i;
            expect_ub(&ub[u], n_seq, n_tok, want);
            n_equal += n_seq > 1;
        }
    }
    cr_assert_gt(n_equal, 20000);
    gr_batch_fini(&full);
}
