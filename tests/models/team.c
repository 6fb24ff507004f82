/* A model that several threads run together does, byte for byte, what one does: random programs of
 * calls on a session of each. */
#include "ranks/team.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/rng.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/held.h"
#include "support/tiny.h"

enum { N_VOCAB = 96, N_SEQ = 4, MOST = 40, N_CALL = 30, N_EMBD = 96 };

TestSuite(team, .init = held_begin, .fini = held_end);

static struct gr_model *open_model(const struct tiny *t, int32_t n_rank)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    p.n_rank = n_rank;
    cr_assert_eq(gr_model_open(&m, tiny_write(t, NULL), &p), 0, "%s", gr_error());
    return m;
}

/* The same done by two: one rank, and several. */
struct pair {
    struct gr_model *m[2];
    struct gr_session *s[2];
    struct gr_sampler *sampler[2];
    struct gr_self_extend extend[2];
    struct gr_rng rng;
    char what[96]; /* of the call, for messages */
};

static int below(struct pair *p, int n)
{
    return (int)gr_rng_below(&p->rng, (uint32_t)n);
}

/* Results of both for the same call. */
struct said {
    int rc[2];
    char text[2][1024];
};

static void note(struct said *w, int i, int rc)
{
    w->rc[i] = rc;
    snprintf(w->text[i], sizeof w->text[i], "%s", rc ? gr_error() : "");
}

static int expect_same(struct pair *p, const struct said *w)
{

    cr_assert_eq(w->rc[0], w->rc[1], "%s: %d (%s) and %d (%s)", p->what, w->rc[0], w->text[0],
                 w->rc[1], w->text[1]);
    cr_assert_str_eq(w->text[0], w->text[1], "%s", p->what);
    return w->rc[0];
}

#define BOTH(p, call)                                                                              \
    ({                                                                                             \
        struct said said_;                                                                         \
        for (int i = 0; i < 2; i++)                                                                \
            note(&said_, i, (call));                                                               \
        expect_same(p, &said_);                                                                    \
    })

/* ---- batches ---- */

struct input {
    int32_t token[MOST], seq[MOST];
    int8_t logits[MOST];
    float embd[MOST * N_EMBD];
    struct gr_batch batch;
};

/* Tokens of sequences [lo, hi), where they go on; sometimes one that is refused. */
static void make(struct pair *p, struct input *in, int lo, int hi, int most)
{
    int n = 1 + below(p, most);
    *in = (struct input){.batch = {.n_tok = n,
                                   .token = in->token,
                                   .seq = in->seq,
                                   .logits = below(p, 3) ? in->logits : NULL}};
    for (int i = 0; i < n; i++) {
        in->token[i] = below(p, N_VOCAB), in->seq[i] = lo + below(p, hi - lo);
        in->logits[i] = below(p, 3) == 0;
    }
    if (below(p, 6) == 0) { /* vectors in place of tokens */
        cr_assert_leq(p->m[0]->hp.n_embd, N_EMBD);
        for (int i = 0; i < n * p->m[0]->hp.n_embd; i++)
            in->embd[i] = gr_rng_normal(&p->rng);
        in->batch.token = NULL, in->batch.embd = in->embd;
    }
    if (below(p, 25) == 0)
        in->token[below(p, n)] = N_VOCAB + below(p, 2);
}

static void expect_same_results(struct pair *p, const struct gr_batch *b)
{
    for (int32_t t = 0; t < b->n_tok; t++) {
        const float *x = tiny_row(p->s[0], t), *y = tiny_row(p->s[1], t);
        int32_t id[2] = {-7, -7};
        cr_assert_eq(x != NULL, y != NULL, "%s: token %d", p->what, t);
        cr_assert(!x || !memcmp(x, y, N_VOCAB * sizeof *x), "%s: token %d of %d", p->what, t,
                  b->n_tok);
        BOTH(p, gr_sampled_token(p->s[i], t, &id[i]));
        cr_assert_eq(id[0], id[1], "%s: token %d: %d and %d", p->what, t, id[0], id[1]);
        if (id[0] >= 0)
            BOTH(p, gr_sampler_accept(p->sampler[i], id[i]));
    }
}

static void decode(struct pair *p)
{
    struct input in;
    make(p, &in, 0, N_SEQ, MOST);
    snprintf(p->what, sizeof p->what, "%s of %d tokens", p->m[0]->arch->name, in.batch.n_tok);
    if (!BOTH(p, gr_decode(p->s[i], &in.batch)))
        expect_same_results(p, &in.batch);
}

/* Groups of sequences in flight, with something done to a group that is behind. */
static void decode_groups(struct pair *p)
{
    enum { GROUPS = 8 };
    static struct input in[GROUPS];
    int n = 1 + below(p, GROUPS), n_begun = 0;
    for (int k = 0; k < n; k++) {
        struct input *one = &in[n_begun];
        make(p, one, k % N_SEQ, k % N_SEQ + 1, 6);
        snprintf(p->what, sizeof p->what, "%s, group %d", p->m[0]->arch->name, k);
        n_begun += !BOTH(p, gr_decode_begin(p->s[i], &one->batch));
        if (below(p, 6) == 0)
            BOTH(p, gr_kv_seq_rm(p->s[i], k % N_SEQ, -1, -1));
    }
    for (int k = 0; k < n_begun; k++) {
        BOTH(p, gr_decode_end(p->s[i]));
        expect_same_results(p, &in[k].batch);
    }
}

/* An image of two rows, for models whose tokens have rows and columns. */
static void decode_image(struct pair *p)
{
    enum { N = 6 };
    int32_t token[N], seq[N], pos[N], yx[2 * N], q = below(p, N_SEQ);
    int32_t at = gr_kv_seq_pos_max(p->s[0], q) + 4;
    for (int i = 0; i < N; i++) {
        token[i] = below(p, N_VOCAB), seq[i] = q, pos[i] = at;
        yx[i] = at + i / 3, yx[N + i] = at + i % 3;
    }
    struct gr_batch b = {.n_tok = N, .token = token, .pos = pos, .seq = seq, .pos_yx = yx};
    snprintf(p->what, sizeof p->what, "%s, image", p->m[0]->arch->name);
    if (!BOTH(p, gr_decode(p->s[i], &b)))
        expect_same_results(p, &b);
}

/* ---- states ---- */

static void save_and_load(struct pair *p, int seq)
{
    void *data[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    snprintf(p->what, sizeof p->what, "%s: state of %d", p->m[0]->arch->name, seq);
    if (BOTH(p, gr_state_save(p->s[i], seq, "note", 4, &data[i], &n[i])))
        return;
    cr_assert(n[0] == n[1] && !memcmp(data[0], data[1], n[0]), "%s", p->what);
    if (below(p, 2))
        decode(p);
    int to = seq < 0 ? -1 : below(p, N_SEQ);
    if (below(p, 8) == 0)
        ((char *)data[0])[n[0] / 2] ^= 1, ((char *)data[1])[n[0] / 2] ^= 1;
    BOTH(p, gr_state_load(p->s[i], to, data[i], n[i], NULL, NULL));
    gr_state_free(data[0]), gr_state_free(data[1]);
}

/* ---- programs ---- */

static void call(struct pair *p)
{
    int seq = below(p, N_SEQ), dst = below(p, N_SEQ), what = below(p, 30);
    int32_t p0 = below(p, 20) - 1, p1 = p0 + below(p, 20), by = below(p, 9) - 4, past[2] = {0, 0};
    snprintf(p->what, sizeof p->what, "%s, call %d", p->m[0]->arch->name, what);
    switch (what) {
    case 0:
        BOTH(p, gr_kv_seq_rm(p->s[i], seq, p0, p1));
        break;
    case 1:
    case 2:
        BOTH(p, gr_kv_seq_rm(p->s[i], seq, -1, -1));
        BOTH(p, gr_kv_seq_cp(p->s[i], dst, seq, -1, -1));
        break;
    case 3:
        BOTH(p, gr_kv_seq_cp(p->s[i], seq, dst, p0, p1));
        break;
    case 4:
        BOTH(p, gr_kv_seq_dup(p->s[i], seq, dst, -1, -1));
        break;
    case 5:
        BOTH(p, gr_kv_seq_add(p->s[i], seq, p0, -1, by));
        break;
    case 6:
        BOTH(p, gr_kv_seq_div(p->s[i], seq, p0, -1, 1 + dst));
        break;
    case 7:
        BOTH(p, gr_context_shift(p->s[i], seq, 2, 0, &past[i]));
        cr_assert_eq(past[0], past[1]);
        break;
    case 8:
        past[0] = past[1] = gr_kv_seq_pos_max(p->s[0], 0) + 1;
        BOTH(p, gr_self_extend(p->s[i], &p->extend[i], &past[i]));
        cr_assert(past[0] == past[1] && p->extend[0].i == p->extend[1].i);
        break;
    case 9:
        BOTH(p, gr_kv_defrag(p->s[i]));
        break;
    case 10:
        if (below(p, 3) == 0)
            BOTH(p, (gr_kv_clear(p->s[i]), 0));
        break;
    case 11:
        if (below(p, 3) == 0)
            BOTH(p, gr_kv_seq_keep(p->s[i], seq));
        break;
    case 12:
    case 13:
        save_and_load(p, what == 12 ? -1 : seq);
        break;
    case 14:
        BOTH(p, gr_session_resize(p->s[i], 256u << dst % 2));
        break;
    case 15:
        BOTH(p, gr_session_set_sampler(p->s[i], seq, dst % 2 ? p->sampler[i] : NULL));
        break;
    case 16:
        if (p->m[0]->hp.rope.section[0] > 0)
            decode_image(p);
        break;
    case 17:
    case 18:
    case 19:
        decode_groups(p);
        break;
    default:
        decode(p);
    }
    for (int q = 0; q < N_SEQ; q++) {
        cr_assert_eq(gr_kv_seq_pos_min(p->s[0], q), gr_kv_seq_pos_min(p->s[1], q), "%s", p->what);
        cr_assert_eq(gr_kv_seq_pos_max(p->s[0], q), gr_kv_seq_pos_max(p->s[1], q), "%s", p->what);
    }
    cr_assert_eq(gr_kv_used(p->s[0]), gr_kv_used(p->s[1]), "%s", p->what);
}

static struct gr_session_params random_params(struct pair *p, bool groups)
{
    static const char *const type[] = {"f32", "f16", "q8_0"};
    struct gr_session_params q = gr_session_params_default();
    q.n_ctx = 256, q.n_seq_max = N_SEQ, q.n_threads = 1 + below(p, 2);
    q.n_ubatch = (uint32_t)(1 + below(p, 24));
    q.kv_unified = below(p, 3) > 0, q.kv_contiguous = below(p, 4) == 0;
    q.swa_full = below(p, 3) == 0, q.n_rollback = below(p, 3) ? 0 : 2;
    q.type_k = type[below(p, 2)], q.type_v = type[below(p, 2)];
    if (groups && below(p, 5) == 0)
        q.self_extend_n = 2, q.self_extend_w = 8;
    return q;
}

static void run(const struct tiny *t, int32_t n_rank, uint64_t seed)
{
    static const uint32_t mask[] = {0x0f0f3333, 0xfffffffe, 0x01010101};
    struct gr_sampler_params draws = gr_sampler_params_default();
    struct pair p = {.rng = gr_rng_new(seed)};
    p.m[0] = open_model(t, 1), p.m[1] = open_model(t, n_rank);
    const struct gr_hparams *hp = &p.m[0]->hp;
    struct gr_session_params q = random_params(&p, hp->rope.kind != GR_ROPE_NONE && !hp->no_cache &&
                                                       !tiny_keeps_states(p.m[0]));
    if (hp->no_cache)
        q.n_ubatch = MOST;
    draws.n_vocab = N_VOCAB, draws.seed = seed, draws.temp = 1;
    draws.penalty_last_n = seed % 2 ? 20 : 0, draws.penalty_freq = 0.5f;
    draws.logit_bias = (struct gr_logit_bias[]){{5, 2}, {6, -2}}, draws.n_logit_bias = seed % 3;
    for (int i = 0; i < 2; i++) {
        p.s[i] = tiny_session(p.m[i], &q);
        p.extend[i] = (struct gr_self_extend){.n = 2, .w = 4};
        cr_assert_eq(gr_sampler_new(&p.sampler[i], &draws), 0);
        gr_sampler_set_mask(p.sampler[i], seed % 4 == 3 ? mask : NULL);
    }
    cr_assert(p.s[1]->ranks && !p.s[0]->ranks);
    for (int k = 0; k < N_CALL; k++)
        call(&p);
    for (int i = 0; i < 2; i++) {
        gr_session_close(&p.s[i]);
        gr_sampler_free(&p.sampler[i]);
        gr_model_close(&p.m[i]);
    }
}

/* Every architecture, with ranks of which some have no layer; over links without buffers too. */
Test(team, does_what_one_rank_does)
{
    static const struct gr_link_opt unbuffered = {.sync = true};
    for (int k = 0; gr_arch_at(k); k++) {
        struct tiny t = tiny_default(gr_arch_at(k));
        t.n_ctx = 4096;
        t.n_layer = t.heads || t.heads_kv ? t.n_layer : 2 + k % 4;
        gr_team_test(&(struct gr_team_test){.wrap = k % 3 ? NULL : &unbuffered});
        run(&t, 2 + k % 7, (uint64_t)k);
    }
}

/* Decoding token by token allocates nothing on any rank, except for messages when more than ever
 * before are being sent at once. */
Test(team, steps_take_no_memory)
{
    enum { STEPS = 60, FEW = 6 };
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_session_params q = gr_session_params_default();
    const struct gr_batch b = {.n_tok = 1, .token = (int32_t[]){7}};
    q.n_ctx = 256, q.n_threads = 1;
    for (int32_t n = 1; n <= 3; n++) {
        struct gr_model *m = open_model(&t, n);
        struct gr_session *s = tiny_session(m, &q);
        for (int k = 0; k < 3 * STEPS; k++) {
            if (k % STEPS == 0) {
                gr_kv_clear(s);
                (void)gr_alloc_fail_at(0, 0);
            }
            cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        }
        uint64_t made = gr_alloc_fail_at(0, 0);
        cr_expect(made <= (n > 1 ? FEW : 0), "%d ranks: %d allocations", n, (int)made);
        gr_session_close(&s);
        gr_model_close(&m);
    }
}
