/* Models that keep nothing: every token sees all tokens of its sequence in the batch, before and
 * after it, and a batch knows nothing of the one before. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

enum { N_TOK = 24, N_VOCAB = 96 };

/* f32 sums of at most 96 terms in another order, squared, over two layers. */
#define SAME 1e-10

struct batch {
    int n;
    int32_t id[2 * N_TOK], pos[2 * N_TOK], seq[2 * N_TOK];
    int8_t want[2 * N_TOK];
};

static void add(struct batch *b, int32_t id, int32_t pos, int32_t seq)
{
    b->id[b->n] = id, b->pos[b->n] = pos, b->seq[b->n] = seq, b->want[b->n] = 1;
    b->n++;
}

static struct batch one_sequence(int32_t pos)
{
    struct batch b = {.n = 0};
    struct gr_rng r = gr_rng_new(1);
    for (int i = 0; i < N_TOK; i++)
        add(&b, (int32_t)gr_rng_below(&r, N_VOCAB), pos + i, 0);
    return b;
}

/* Logits of the wanted tokens of sequence 0, one after the other. */
static int decode(struct gr_session *s, const struct batch *b, float *out)
{
    struct gr_batch batch = {
        .n_tok = b->n, .token = b->id, .pos = b->pos, .seq = b->seq, .logits = b->want};
    int rc = gr_decode(s, &batch);
    for (int i = 0; i < b->n && !rc; i++)
        if (b->seq[i] == 0 && b->want[i]) {
            memcpy(out, tiny_row(s, i), N_VOCAB * sizeof *out);
            out += N_VOCAB;
        }
    return rc;
}

static struct gr_session *session(struct gr_model *m, int n_threads)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = 2, p.n_threads = n_threads;
    return tiny_session(m, &p);
}

static float want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];

static void same(const char *arch, const char *what)
{
    double e = tiny_nmse(want, got, N_TOK * N_VOCAB);
    cr_expect(e <= SAME, "%s, %s: %g", arch, what, e);
}

/* A second time, at other positions, in any order, beside another sequence, by more threads. */
static void ways(struct gr_model *m)
{
    struct gr_session *s = session(m, 1), *many = session(m, 3);
    struct batch b = one_sequence(0), mixed = {.n = 0}, moved = one_sequence(71);
    cr_assert_eq(decode(s, &b, want), 0, "%s", gr_error());
    cr_assert_eq(decode(s, &b, got), 0, "%s", gr_error());
    cr_expect_eq(memcmp(want, got, sizeof want), 0, "%s: the second time", m->arch->name);
    cr_assert_eq(decode(s, &moved, got), 0, "%s", gr_error());
    if (!tiny_learned_positions(m))
        same(m->arch->name, "moved");
    for (int i = 0; i < N_TOK; i++) {
        add(&mixed, b.id[i], b.pos[i], 0);
        if (i % 3)
            add(&mixed, (i * 31) % N_VOCAB, mixed.n - i - 1, 1);
    }
    cr_assert_eq(decode(s, &mixed, got), 0, "%s", gr_error());
    same(m->arch->name, "beside another");
    cr_assert_eq(decode(many, &b, got), 0, "%s", gr_error());
    same(m->arch->name, "three threads");
    gr_session_close(&s);
    gr_session_close(&many);
}

/* Another last token changes the logits of the first one, another first token those of the last. */
static void sight(struct gr_model *m)
{
    struct gr_session *s = session(m, 1);
    for (int at = 0; at < N_TOK; at += N_TOK - 1) {
        struct batch b = one_sequence(0);
        const size_t far = (size_t)(N_TOK - 1 - at) * N_VOCAB;
        cr_assert_eq(decode(s, &b, want), 0, "%s", gr_error());
        b.id[at] = (b.id[at] + 1) % N_VOCAB;
        cr_assert_eq(decode(s, &b, got), 0, "%s", gr_error());
        cr_expect(tiny_nmse(want + far, got + far, N_VOCAB) > 1e-6, "%s: token %d is not seen",
                  m->arch->name, at);
    }
    gr_session_close(&s);
}

static void wanted_rows(struct gr_model *m)
{
    struct gr_session *s = session(m, 1);
    struct batch b = one_sequence(0);
    cr_assert_eq(decode(s, &b, want), 0, "%s", gr_error());
    for (int i = 0; i < N_TOK; i++)
        b.want[i] = i % 5 == 3;
    cr_assert_eq(decode(s, &b, got), 0, "%s", gr_error());
    for (int i = 3, row = 0; i < N_TOK; i += 5, row++)
        cr_expect(tiny_nmse(want + i * N_VOCAB, got + row * N_VOCAB, N_VOCAB) <= SAME, "%s row %d",
                  m->arch->name, i);
    gr_session_close(&s);
}

/* Tokens beyond a micro-batch cannot be seen at once. */
static void limits(struct gr_model *m)
{
    struct gr_session_params p = gr_session_params_default();
    struct batch b = one_sequence(0);
    p.n_ctx = 256, p.n_ubatch = N_TOK - 1;
    struct gr_session *s = tiny_session(m, &p);
    cr_expect_eq(decode(s, &b, got), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "larger -ub"), "%s", gr_error());
    b.n--;
    cr_expect_eq(decode(s, &b, got), 0, "%s", gr_error());
    cr_expect_eq(gr_kv_used(s), 0);
    gr_session_close(&s);
}

Test(no_cache, every_family)
{
    int n = 0;
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        if (!t.arch->no_cache)
            continue;
        struct gr_model *m = tiny_open(&t);
        ways(m);
        sight(m);
        wanted_rows(m);
        limits(m);
        gr_model_close(&m);
        n++;
    }
    cr_expect_geq(n, 4);
}
