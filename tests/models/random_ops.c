/* Random operations on sequences and Self-Extend, then the logits of a next token: those of a fresh
 * session that decodes the tokens which are left at the positions where they are. With one layer, K
 * and V of a token depend on the token and its position alone, so both must agree whatever happened
 * before. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_SEQ 4
#define N_VOCAB 96
#define MOST 60 /* tokens in the cache */

/* Content of the cache by the documentation of gpurun.h. */
struct model {
    struct {
        int32_t tok, pos, at; /* at: position at the last decode, to which K is rotated */
        unsigned seqs;        /* a bit each */
    } t[MOST];
    int n;
};

static void drop_empty(struct model *m)
{
    int n = 0;
    for (int i = 0; i < m->n; i++)
        if (m->t[i].seqs && m->t[i].pos >= 0)
            m->t[n++] = m->t[i];
    m->n = n;
}

static bool in(const struct model *m, int i, int seq, int32_t p0, int32_t p1)
{
    return m->t[i].seqs >> seq & 1 && m->t[i].pos >= (p0 < 0 ? 0 : p0) &&
           (p1 < 0 || m->t[i].pos < p1);
}

static int32_t end_of(const struct model *m, int seq)
{
    int32_t end = 0;
    for (int i = 0; i < m->n; i++)
        if (m->t[i].seqs >> seq & 1)
            end = GR_MAX(end, m->t[i].pos + 1);
    return end;
}

struct fixture {
    struct gr_session *s, *fresh;
    struct model m;
    struct gr_rng rng;
    int n_start; /* where an empty sequence may begin: 0 to n_start - 1 */
};

static int below(struct fixture *f, int n)
{
    return (int)gr_rng_below(&f->rng, (uint32_t)n);
}

/* Decodes n tokens of a sequence; the logits of the last are wanted. */
static void decode(struct fixture *f, int seq, int n)
{
    int32_t tok[8], pos[8], seqs[8], end = end_of(&f->m, seq);
    end = end ? end : below(f, f->n_start);
    for (int i = 0; i < n; i++) {
        tok[i] = below(f, N_VOCAB), pos[i] = end + i, seqs[i] = seq;
        f->m.t[f->m.n].tok = tok[i], f->m.t[f->m.n].pos = pos[i];
        f->m.t[f->m.n++].seqs = 1u << seq;
    }
    cr_assert_eq(
        gr_decode(f->s, &(struct gr_batch){.n_tok = n, .token = tok, .pos = pos, .seq = seqs}), 0,
        "%s", gr_error());
    for (int i = 0; i < f->m.n; i++)
        f->m.t[i].at = f->m.t[i].pos;
}

static void remove_some(struct fixture *f, int seq, int32_t p0, int32_t p1)
{
    cr_assert_eq(gr_kv_seq_rm(f->s, seq, p0, p1), 0);
    for (int i = 0; i < f->m.n; i++)
        if (in(&f->m, i, seq, p0, p1))
            f->m.t[i].seqs &= ~(1u << seq);
}

static void copy(struct fixture *f, int seq, int32_t p0, int32_t p1)
{
    int dst = below(f, N_SEQ);
    cr_assert_eq(gr_kv_seq_cp(f->s, seq, dst, p0, p1), 0);
    for (int i = 0; i < f->m.n; i++)
        if (in(&f->m, i, seq, p0, p1))
            f->m.t[i].seqs |= 1u << dst;
}

static void keep(struct fixture *f, int seq)
{
    cr_assert_eq(gr_kv_seq_keep(f->s, seq), 0);
    for (int i = 0; i < f->m.n; i++)
        f->m.t[i].seqs &= 1u << seq;
}

static void move(struct fixture *f, int seq, int32_t p0, int32_t p1)
{
    int32_t delta = below(f, 15) - 6;
    cr_assert_eq(gr_kv_seq_add(f->s, seq, p0, p1, delta), 0);
    for (int i = 0; i < f->m.n; i++)
        if (in(&f->m, i, seq, p0, p1))
            f->m.t[i].pos += delta;
}

static void divide(struct fixture *f, int seq, int32_t p0, int32_t p1)
{
    int32_t d = 1 + below(f, 4);
    cr_assert_eq(gr_kv_seq_div(f->s, seq, p0, p1, d), 0);
    for (int i = 0; i < f->m.n; i++)
        if (in(&f->m, i, seq, p0, p1))
            f->m.t[i].pos /= d;
}

static void operate(struct fixture *f)
{
    int seq = below(f, N_SEQ), what = below(f, 12), end = end_of(&f->m, seq);
    int32_t p0 = below(f, end + 2) - 1, p1 = below(f, end + 4) - 1;
    if (what < 5 && f->m.n + 8 < MOST)
        decode(f, seq, 1 + below(f, 6));
    else if (what < 7)
        copy(f, seq, p0, p1);
    else if (what < 9)
        move(f, seq, p0, p1);
    else if (what == 9)
        divide(f, seq, p0, p1);
    else if (what == 10 && below(f, 6) == 0)
        keep(f, seq);
    else
        remove_some(f, seq, p0, p1);
    drop_empty(&f->m);
}

/* The fresh session gets each token as a sequence of its own, because positions may repeat and have
 * gaps; then sequence 0 is put together. */
static void put_together(struct fixture *f, int seq)
{
    int32_t tok[MOST], pos[MOST], seqs[MOST];
    int n = 0;
    for (int i = 0; i < f->m.n; i++)
        if (f->m.t[i].seqs >> seq & 1) {
            tok[n] = f->m.t[i].tok, pos[n] = f->m.t[i].pos;
            seqs[n] = 1 + n, n++;
        }
    gr_kv_clear(f->fresh);
    if (!n)
        return;
    struct gr_batch b = {.n_tok = n, .token = tok, .pos = pos, .seq = seqs};
    cr_assert_eq(gr_decode(f->fresh, &b), 0, "%s", gr_error());
    for (int i = 0; i < n; i++) {
        cr_assert_eq(gr_kv_seq_cp(f->fresh, 1 + i, 0, -1, -1), 0);
        cr_assert_eq(gr_kv_seq_rm(f->fresh, 1 + i, -1, -1), 0);
    }
}

static void compare_counts(const struct fixture *f)
{
    for (int seq = 0; seq < N_SEQ; seq++) {
        struct gr_kv_count got = gr_kv_seq_count(f->s, seq), want = {0};
        for (int i = 0; i < f->m.n; i++) {
            bool has = f->m.t[i].seqs >> seq & 1;
            want.n_cell += has;
            want.n_shared += has && f->m.t[i].seqs != 1u << seq;
            want.n_shift += has && f->m.t[i].pos != f->m.t[i].at;
        }
        cr_assert_eq(got.n_cell, want.n_cell);
        cr_assert_eq(got.n_shared, want.n_shared);
        cr_assert_eq(got.n_shift, want.n_shift);
    }
}

static double difference(struct fixture *f, int seq)
{
    put_together(f, seq);
    decode(f, seq, 1);
    struct gr_batch b = {
        .n_tok = 1, .token = &f->m.t[f->m.n - 1].tok, .pos = &f->m.t[f->m.n - 1].pos};
    cr_assert_eq(gr_decode(f->fresh, &b), 0, "%s", gr_error());
    return tiny_nmse(tiny_row(f->fresh, 0), tiny_row(f->s, 0), N_VOCAB);
}

static void run(struct gr_model *m, uint64_t seed)
{
    struct gr_session_params p = gr_session_params_default(), q;
    p.n_ctx = 256, p.n_seq_max = N_SEQ, p.type_k = p.type_v = "f32", p.n_threads = 1;
    p.n_ubatch = 1 + (uint32_t)seed % 4, p.kv_contiguous = seed % 3 == 0;
    p.rope_scaling = (enum gr_rope_scaling)(seed % 5), p.yarn_orig_ctx = 64;
    p.rope_freq_scale = 0.25f;
    q = p;
    q.n_seq_max = 1 + MOST;
    struct fixture f = {.s = tiny_session(m, &p),
                        .fresh = tiny_session(m, &q),
                        .rng = gr_rng_new(seed),
                        .n_start = 10};
    for (int k = 0; k < 100; k++) {
        operate(&f);
        cr_assert_eq(gr_kv_used(f.s), (uint32_t)f.m.n);
        compare_counts(&f);
        int seq = below(&f, N_SEQ);
        if (k % 4 || f.m.n + 2 > MOST)
            continue;
        double e = difference(&f, seq);
        cr_assert(e < 1e-9, "%s, seed %llu, step %d, sequence %d: %g", m->arch->name,
                  (unsigned long long)seed, k, seq, e);
    }
    gr_session_close(&f.s);
    gr_session_close(&f.fresh);
}

/* Full and windowed layers turn at different speeds. */
static void edit(struct gr_gguf_writer *w, const struct tiny *t)
{
    char key[64];
    snprintf(key, sizeof key, "%s.rope.freq_base", t->arch->name);
    cr_assert_eq(gr_gguf_set_f32(w, key, 500), 0);
}

/* Learned positions cannot be moved: K and V keep what was added to the embedding. States cannot be
 * changed in parts (states.c). */
Test(random_ops, leave_what_decoding_from_scratch_gives)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        tiny_set_layers(&t, 1), t.no_optional = t.arch->rope == GR_ROPE_NONE;
        t.n_expert = tiny_needs_experts(t.arch) ? 3 : 0;
        t.edit = edit;
        struct gr_model *m = tiny_open(&t);
        bool parts = !t.arch->no_cache && !tiny_keeps_states(m) && m->hp.n_layer == 1;
        parts &= !gr_ten_is(&m->weight[GR_W_POS_EMBD]);
        for (uint64_t seed = 0; seed < 25 && parts; seed++)
            run(m, seed + 100 * (uint64_t)i);
        gr_model_close(&m);
    }
}

/* The published steps of Self-Extend, on positions alone. */
static void extend(struct model *m, int g, int w, int *ga_i, int *n_past)
{
    while (*n_past >= *ga_i + w) {
        int ib = g * *ga_i / w, bd = w / g * (g - 1), dd = w / g - ib * bd - w;
        for (int i = 0; i < m->n; i++) {
            int32_t *pos = &m->t[i].pos, lo = *ga_i + ib * bd;
            *pos += *pos >= *ga_i ? ib * bd : 0;
            if (*pos >= lo + w)
                *pos += dd;
            else if (*pos >= lo)
                *pos /= g;
        }
        *n_past -= bd;
        *ga_i += w / g;
    }
}

/* Chunks of random length, Self-Extend before each: the logits of every chunk's end are those of
 * the tokens stored at the grouped positions. */
Test(random_ops, self_extend_between_decodes)
{
    static const int factor[][2] = {{2, 4}, {2, 8}, {4, 8}, {3, 12}};
    struct gr_session_params p = gr_session_params_default(), q;
    p.n_ctx = 256, p.type_k = p.type_v = "f32", p.n_threads = 1;
    q = p;
    q.n_seq_max = 1 + MOST;
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        tiny_set_layers(&t, 1), t.n_expert = tiny_needs_experts(t.arch) ? 3 : 0;
        struct gr_model *m = tiny_open(&t);
        bool moves =
            t.arch->rope && !t.arch->no_cache && !tiny_keeps_states(m) && m->hp.n_layer == 1;
        for (size_t k = 0; k < sizeof factor / sizeof *factor && moves; k++) {
            struct fixture f = {.s = tiny_session(m, &p),
                                .fresh = tiny_session(m, &q),
                                .rng = gr_rng_new(k),
                                .n_start = 1};
            struct gr_self_extend se = {.n = factor[k][0], .w = factor[k][1]};
            int32_t n_past = 0, want_past = 0, want_i = 0;
            while (f.m.n + 6 < MOST) {
                cr_assert_eq(gr_self_extend(f.s, &se, &n_past), 0, "%s", gr_error());
                extend(&f.m, se.n, se.w, &want_i, &want_past);
                cr_assert(n_past == want_past && se.i == want_i);
                int n = below(&f, 5);
                if (n)
                    decode(&f, 0, n);
                double e = difference(&f, 0);
                cr_assert(e < 1e-9, "%s, %d/%d, %d tokens: %g", t.arch->name, se.n, se.w, f.m.n, e);
                n_past += n + 1, want_past += n + 1;
                cr_assert_eq(gr_kv_seq_pos_max(f.s, 0), n_past - 1);
            }
            gr_session_close(&f.s);
            gr_session_close(&f.fresh);
        }
        gr_model_close(&m);
    }
}
