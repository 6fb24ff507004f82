/* Saving and restoring: what a session gives after a restore is bit for bit what it would have
 * given without, for every architecture, between all shapes of caches; whatever is wrong with a
 * state is refused before anything changes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_VOCAB 96
#define MOST 1024

/* Trained for more than any session here has, so that LongRoPE has one set of factors. */
static struct tiny tiny_at(int i)
{
    struct tiny t = tiny_default(gr_arch_at(i));
    t.n_ctx = 4096;
    return t;
}

static struct tiny tiny_of(const char *arch)
{
    return tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
}

static struct gr_model *model(const char *arch)
{
    struct tiny t = tiny_of(arch);
    return tiny_open(&t);
}

static struct gr_session_params params(void)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = 3, p.type_k = p.type_v = "f32", p.n_threads = 1;
    return p;
}

/* Decodes n tokens of a sequence behind what it has; which tokens they are depends on their
 * positions. Status. */
static int feed(struct gr_session *s, int32_t seq, int n)
{
    static int32_t id[MOST], q[MOST];
    int32_t pos = gr_kv_seq_pos_max(s, seq) + 1;
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (pos + i) + 11 * seq) % N_VOCAB, q[i] = seq;
    struct gr_batch b = {.n_tok = n, .token = id, .seq = q};
    return gr_decode(s, &b);
}

static void must_feed(struct gr_session *s, int32_t seq, int n)
{
    cr_assert_eq(feed(s, seq, n), 0, "%s: %s", s->model->arch->name, gr_error());
}

/* True when both continue alike with sequence `seq`: one token, then a few. Bit for bit, but where
 * tokens that may be rolled back are computed one by one: other sums of some hundred f32. */
static bool go_on(struct gr_session *a, struct gr_session *b, int32_t seq)
{
    bool same = true,
         cut = tiny_keeps_states(a->model) && (!a->params.n_rollback) != (!b->params.n_rollback);
    for (int i = 0; i < 3; i++) {
        must_feed(a, seq, i + 1);
        must_feed(b, seq, i + 1);
        const float *x = tiny_row(a, -1), *y = tiny_row(b, -1);
        same &= cut ? tiny_nmse(x, y, N_VOCAB) < 1e-10 : !memcmp(x, y, N_VOCAB * sizeof *x);
    }
    return same;
}

struct bytes {
    void *p;
    size_t n;
};

static struct bytes save(struct gr_session *s, int32_t seq)
{
    struct bytes d;
    cr_assert_eq(gr_state_save(s, seq, "note", 4, &d.p, &d.n), 0, "%s", gr_error());
    return d;
}

static void load(struct gr_session *s, int32_t seq, struct bytes d)
{
    cr_assert_eq(gr_state_load(s, seq, d.p, d.n, NULL, NULL), 0, "%s: %s", s->model->arch->name,
                 gr_error());
    cr_expect_eq(gr_cache_check(&s->cache), 0, "%s", gr_error());
}

static bool equal(struct bytes a, struct bytes b)
{
    return a.n == b.n && !memcmp(a.p, b.p, a.n);
}

/* True when a session has just the state saved in d. */
static bool has_still(struct gr_session *s, struct bytes d)
{
    struct bytes now = save(s, -1);
    bool same = equal(now, d);
    gr_state_free(now.p);
    return same;
}

/* Sequence 1 shares its beginning with sequence 0; both went on, in pieces; holes where the
 * architecture lets them be. */
static void fill(struct gr_session *s)
{
    must_feed(s, 0, 13);
    cr_assert_eq(gr_kv_seq_cp(s, 0, 1, -1, -1), 0, "%s", gr_error());
    must_feed(s, 1, 7);
    must_feed(s, 0, 5);
    must_feed(s, 1, 1);
    must_feed(s, 2, 4);
    if (!gr_kv_seq_rm(s, 2, -1, -1))
        must_feed(s, 1, 6);
    if (!gr_kv_seq_add(s, 0, 9, -1, 3))
        must_feed(s, 0, 2);
    if (!gr_kv_seq_rm(s, 0, 3, 6))
        must_feed(s, 0, 9);
}

/* ---- restored and never saved ---- */

static void set_shape(struct gr_session_params *p, int shape)
{
    p->kv_unified = shape != 1 && shape != 2;
    p->n_ctx = shape == 2 ? 2048 : shape == 3 ? 1024 : shape == 1 ? 768 : 256;
    p->n_seq_max = shape == 3 ? 5 : 3;
    p->swa_full = shape == 3;
    p->kv_contiguous = shape == 4;
    p->n_ubatch = shape == 4 ? 16 : 512;
    p->n_rollback = shape == 2 ? 3 : 0;
}

/* One pool, separate pools, larger ones, more sequences, full windows, contiguous, rollback: from
 * each to each; the whole session and a sequence at a time, into another one. */
Test(state, between_all_shapes, .timeout = 300)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_at(i);
        struct gr_model *m = tiny_open(&t);
        for (int from = 0; from < 5; from++)
            for (int to = from % 2; to < 5; to += 2) {
                struct gr_session_params p = params(), q = params();
                set_shape(&p, from), set_shape(&q, to);
                if (m->hp.no_cache) /* whole batches at once */
                    p.n_ubatch = q.n_ubatch = 512;
                struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &q),
                                  *c = tiny_session(m, &q);
                fill(a);
                must_feed(b, 2, 20); /* gone after the load */
                must_feed(c, 1, 9);
                struct bytes all = save(a, -1), one = save(a, 1);
                load(b, -1, all);
                cr_expect_eq(gr_kv_seq_pos_max(b, 2), -1);
                load(c, 0, one);
                cr_expect_eq(gr_kv_seq_pos_max(c, 0), gr_kv_seq_pos_max(a, 1));
                for (int s = 0; s < 2; s++) {
                    cr_expect_eq(gr_kv_seq_pos_max(b, s), gr_kv_seq_pos_max(a, s));
                    cr_expect(go_on(a, b, s), "%s, %d to %d, sequence %d", t.arch->name, from, to,
                              s);
                }
                gr_session_close(&b);
                b = tiny_session(m, &p);
                load(b, 1, one);
                cr_assert_eq(gr_kv_seq_cp(c, 0, 2, -1, -1), 0, "%s", gr_error());
                if (!m->hp.no_cache)
                    cr_expect_eq(gr_kv_seq_pos_max(c, 1), 8, "the others stay");
                cr_assert_eq(gr_kv_seq_rm(c, 1, -1, -1), 0);
                load(c, 1, one);
                cr_expect(go_on(b, c, 1), "%s, %d to %d, one sequence", t.arch->name, from, to);
                gr_state_free(all.p), gr_state_free(one.p);
                gr_session_close(&a), gr_session_close(&b), gr_session_close(&c);
            }
        gr_model_close(&m);
    }
}

/* A restored session saves the same bytes again: places of cells are not in them. Cells that are
 * shared are shared again. */
Test(state, says_nothing_of_places)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_at(i);
        struct gr_model *m = tiny_open(&t);
        struct gr_session_params p = params(), q = params();
        q.n_ctx = 512, q.kv_contiguous = true;
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &q);
        fill(a);
        struct bytes all = save(a, -1), one = save(a, 0);
        must_feed(b, 2, 50);
        load(b, -1, all);
        cr_expect_eq(gr_kv_used(b), gr_kv_used(a), "%s", t.arch->name);
        cr_expect(has_still(b, all), "%s", t.arch->name);
        cr_assert_eq(gr_kv_defrag(a), 0, "%s", gr_error());
        cr_expect(has_still(a, all), "%s", t.arch->name);
        load(b, 0, one);
        struct bytes again = save(b, 0);
        cr_expect(equal(one, again), "%s", t.arch->name);
        gr_state_free(all.p), gr_state_free(one.p), gr_state_free(again.p);
        gr_session_close(&a), gr_session_close(&b);
        gr_model_close(&m);
    }
}

Test(state, types_of_k_and_v)
{
    static const char types[][8] = {"f16",  "bf16", "q8_0", "q4_0",
                                    "q4_1", "q5_0", "q5_1", "iq4_nl"};
    for (int i = 0; i < 8; i++) {
        struct tiny t = tiny_of("llama");
        t.d_head = 32;
        struct gr_model *m = tiny_open(&t);
        struct gr_session_params p = params();
        p.type_k = types[i], p.type_v = types[7 - i];
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
        fill(a);
        struct bytes d = save(a, -1);
        load(b, -1, d);
        cr_expect(has_still(b, d), "%s", types[i]);
        cr_expect(go_on(a, b, 0) && go_on(a, b, 1), "%s", types[i]);
        gr_state_free(d.p);
        gr_session_close(&a), gr_session_close(&b);
        gr_model_close(&m);
    }
}

/* A window's cells have been evicted: to a cache that keeps all, and back to one that only holds
 * what is seen. What was evicted stays known. */
Test(state, windows, .timeout = 120)
{
    struct tiny t = tiny_of("gemma3");
    t.n_swa = 8;
    struct gr_model *m = tiny_open(&t);
    for (int way = 0; way < 3; way++) {
        struct gr_session_params p = params(), q = params();
        p.n_ctx = q.n_ctx = 1024, p.n_seq_max = q.n_seq_max = 1, p.n_ubatch = q.n_ubatch = 16;
        p.swa_full = way == 1, q.swa_full = way == 2;
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &q);
        cr_assert(way == 1 || gr_kv_n_cell(a->cache.kv[GR_CACHE_SWA]) <
                                  gr_kv_n_cell(a->cache.kv[GR_CACHE_FULL]));
        for (int n = 0; n < 600; n += 60)
            must_feed(a, 0, 60);
        struct bytes d = save(a, -1);
        load(b, -1, d);
        int cut_a = gr_kv_seq_rm(a, 0, 100, -1), cut_b = gr_kv_seq_rm(b, 0, 100, -1);
        cr_expect_eq(cut_a, way == 1 ? 0 : GR_E_UNSUPPORTED, "way %d: %d", way, cut_a);
        cr_expect_eq(cut_b, GR_E_UNSUPPORTED, "way %d: %d", way, cut_b);
        if (!cut_a)
            load(a, -1, d);
        cr_expect(go_on(a, b, 0), "way %d", way);
        gr_state_free(d.p);
        gr_session_close(&a), gr_session_close(&b);
    }
    gr_model_close(&m);
}

/* Each token sees itself alone in the windowed layers: what was evicted before it is stored all the
 * same. */
Test(state, window_of_one_token)
{
    struct tiny t = tiny_of("gemma3");
    t.n_swa = 1;
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params();
    p.n_ctx = 1024, p.n_seq_max = 1, p.n_ubatch = 16;
    struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
    for (int n = 0; n < 600; n += 60)
        must_feed(a, 0, 60);
    struct bytes d = save(a, -1);
    load(b, -1, d);
    cr_expect(go_on(a, b, 0));
    gr_state_free(d.p);
    gr_session_close(&a), gr_session_close(&b);
    gr_model_close(&m);
}

/* Merged positions, and keys by grouped position, with the counters as a note. */
Test(state, self_extend)
{
    struct gr_model *m = model("llama");
    for (int window = 0; window < 2; window++) {
        struct gr_session_params p = params();
        if (window)
            p.self_extend_n = 2, p.self_extend_w = 8;
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
        struct gr_self_extend se = {2, 8, 0}, *got;
        int32_t n_past = 0;
        void *data;
        size_t n, n_got;
        for (int i = 0; i < 10; i++) {
            if (!window)
                cr_assert_eq(gr_self_extend(a, &se, &n_past), 0, "%s", gr_error());
            must_feed(a, 0, 5);
            n_past += 5;
        }
        cr_assert_eq(gr_state_save(a, -1, &se, sizeof se, &data, &n), 0, "%s", gr_error());
        cr_assert_eq(gr_state_load(b, -1, data, n, (void **)&got, &n_got), 0, "%s", gr_error());
        cr_assert_eq(n_got, sizeof se);
        cr_expect_eq(memcmp(got, &se, sizeof se), 0);
        int32_t n_past_b = gr_kv_seq_pos_max(b, 0) + 1;
        for (int i = 0; i < 4; i++) {
            if (!window) {
                cr_assert_eq(gr_self_extend(a, &se, &n_past), 0);
                cr_assert_eq(gr_self_extend(b, got, &n_past_b), 0);
                cr_expect_eq(n_past, n_past_b);
            }
            cr_expect(go_on(a, b, 0), "%d, round %d", window, i);
            n_past += 6, n_past_b += 6;
        }
        gr_state_free(data), gr_state_free(got);
        gr_session_close(&a), gr_session_close(&b);
    }
    gr_model_close(&m);
}

/* Recurrent states can be rolled back after a restore as before. */
Test(state, snapshots)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_at(i);
        struct gr_model *m = tiny_open(&t);
        struct gr_session_params p = params();
        p.n_rollback = 4;
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
        must_feed(a, 0, 9);
        for (int k = 0; k < 5; k++)
            must_feed(a, 0, 1);
        cr_assert_eq(gr_kv_seq_cp(a, 0, 2, -1, -1), 0, "%s", gr_error());
        struct bytes d = save(a, -1);
        load(b, -1, d);
        cr_expect(has_still(b, d), "%s", t.arch->name);
        for (int s = 0; a->cache.rs && s < 3; s += 2) {
            cr_expect_eq(gr_kv_seq_pos_min(a, s), gr_kv_seq_pos_min(b, s));
            cr_assert_eq(gr_kv_seq_rm(a, s, 12 - s, -1), 0, "%s: %s", t.arch->name, gr_error());
            cr_assert_eq(gr_kv_seq_rm(b, s, 12 - s, -1), 0, "%s: %s", t.arch->name, gr_error());
        }
        cr_expect(go_on(a, b, 2) && go_on(a, b, 0), "%s", t.arch->name);
        gr_state_free(d.p);
        gr_session_close(&a), gr_session_close(&b);
        gr_model_close(&m);
    }
}

/* ---- what is refused ---- */

/* A state of about 10 KiB, each of its bits and each of its lengths. */
Test(state, damage, .timeout = 300)
{
    struct gr_model *m = model("llama");
    struct gr_session_params p = params();
    p.type_k = p.type_v = "f16";
    struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
    must_feed(a, 0, 30);
    must_feed(b, 1, 17);
    struct bytes d = save(a, -1), was = save(b, -1);
    cr_assert(d.n > 8 << 10 && d.n < 12 << 10, "%zu bytes", d.n);
    for (size_t bit = 0; bit < 8 * d.n; bit++) {
        uint8_t *at = (uint8_t *)d.p + bit / 8;
        *at ^= (uint8_t)(1 << bit % 8);
        int rc = gr_state_load(b, -1, d.p, d.n, NULL, NULL);
        cr_assert(rc == GR_E_CORRUPT || rc == GR_E_UNSUPPORTED, "bit %zu: %d", bit, rc);
        *at ^= (uint8_t)(1 << bit % 8);
        if (bit % 997 == 0)
            cr_assert(has_still(b, was), "bit %zu", bit);
    }
    for (size_t n = 0; n < d.n; n++)
        cr_assert_eq(gr_state_load(b, -1, d.p, n, NULL, NULL), GR_E_CORRUPT, "%zu bytes", n);
    cr_expect(has_still(b, was));
    load(b, -1, d);
    cr_expect(go_on(a, b, 0));
    gr_state_free(d.p), gr_state_free(was.p);
    gr_session_close(&a), gr_session_close(&b);
    gr_model_close(&m);
}

static void refused(struct gr_session *s, int32_t seq, struct bytes d, int status, const char *why)
{
    struct bytes was = save(s, -1);
    int rc = gr_state_load(s, seq, d.p, d.n, NULL, NULL);
    cr_expect_eq(rc, status, "%s: %d", why, rc);
    cr_expect(strstr(gr_error(), why), "%s: %s", why, gr_error());
    cr_expect(has_still(s, was), "%s", why);
    gr_state_free(was.p);
}

static struct gr_session *filled(struct gr_model *m, const struct gr_session_params *p)
{
    struct gr_session *s = tiny_session(m, p);
    must_feed(s, 0, 9);
    return s;
}

static void refused_by(struct gr_model *m, const struct gr_session_params *p, struct bytes d,
                       const char *why)
{
    struct gr_session *s = filled(m, p);
    refused(s, -1, d, GR_E_INVALID, why);
    gr_session_close(&s);
}

Test(state, what_it_does_not_belong_to)
{
    struct tiny t = tiny_of("llama"), other = t;
    other.seed = 2;
    struct gr_model *m = tiny_open(&t), *weights = tiny_open(&other), *arch = model("qwen2");
    struct gr_session_params p = params(), q = p;
    struct gr_session *a = filled(m, &p);
    struct bytes d = save(a, -1);
    refused_by(weights, &p, d, "weights:");
    refused_by(arch, &p, d, "architecture: 'qwen2' expected, 'llama' found: it belongs to another");
    q.type_k = "f16";
    refused_by(m, &q, d, "type of K: 'f16' expected, 'f32' found: open the session with");
    q = p, q.type_v = "bf16";
    refused_by(m, &q, d, "type of V: 'bf16' expected, 'f32' found");
    q = p, q.rope_freq_base = 12345;
    refused_by(m, &q, d, "rope frequency base: '12345' expected");
    q = p, q.rope_scaling = GR_SCALING_YARN, q.rope_freq_scale = 0.5f;
    refused_by(m, &q, d, "rope scaling: 'yarn' expected");
    q = p, q.yarn_orig_ctx = 4321;
    refused_by(m, &q, d, "original context: '4321' expected");
    q = p, q.self_extend_n = 2, q.self_extend_w = 8;
    refused_by(m, &q, d, "group factor: '2' expected, '1' found");
    gr_state_free(d.p);
    gr_session_close(&a);
    gr_model_close(&m), gr_model_close(&weights), gr_model_close(&arch);
}

/* LongRoPE turns positions otherwise beyond the original length. */
Test(state, other_factors)
{
    struct tiny t = tiny_of("phi3");
    t.n_ctx = 300;
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params();
    struct gr_session *a = filled(m, &p);
    struct bytes d = save(a, -1);
    p.n_ctx = 512;
    refused_by(m, &p, d, "rope frequency factors: 'long' expected, 'short' found");
    cr_expect_eq(gr_session_resize(a, 512), GR_E_INVALID);
    cr_expect(has_still(a, d));
    gr_kv_clear(a);
    cr_expect_eq(gr_session_resize(a, 512), 0, "%s", gr_error());
    gr_state_free(d.p);
    gr_session_close(&a);
    gr_model_close(&m);
}

Test(state, what_there_is_no_place_for)
{
    struct gr_model *m = model("llama");
    struct gr_session_params p = params(), q = p;
    p.n_ctx = 512;
    struct gr_session *a = tiny_session(m, &p);
    must_feed(a, 0, 200), must_feed(a, 2, 100);
    struct bytes all = save(a, -1), one = save(a, 0);
    struct gr_session *b = filled(m, &q);
    refused(b, -1, all, GR_E_KV_FULL, "300 cells needed, 256 of 256 free");
    refused(b, 0, all, GR_E_INVALID, "restore it as a whole");
    refused(b, -1, one, GR_E_INVALID, "say which sequence");
    refused(b, 3, one, GR_E_INVALID, "sequence: 0 to 2, or -1 for all, expected, 3 found");
    must_feed(b, 1, 50);
    refused(b, 2, one, GR_E_KV_FULL, "200 cells needed, 197 of 256 free");
    load(b, 0, one); /* in the place of 9 */
    cr_expect_eq(gr_kv_used(b), 250);
    gr_session_close(&b);
    q.n_seq_max = 2, q.n_ctx = 512;
    b = filled(m, &q);
    refused(b, -1, all, GR_E_INVALID, "it has sequence 2, the session has sequences 0 to 1");
    gr_session_close(&b);
    q.n_seq_max = 3, q.n_ctx = 384, q.kv_unified = false; /* 256 each */
    b = tiny_session(m, &q);
    load(b, -1, all);
    cr_expect(go_on(a, b, 0) && go_on(a, b, 2));
    void *data;
    size_t n;
    cr_expect_eq(gr_state_save(b, 3, NULL, 0, &data, &n), GR_E_INVALID);
    cr_expect_null(data);
    gr_state_free(all.p), gr_state_free(one.p);
    gr_session_close(&a), gr_session_close(&b);
    gr_model_close(&m);
}

static void save_in_tap(const char *name, int layer, const float *row, int64_t rows, int64_t cols,
                        void *user)
{
    void *data;
    size_t n;
    (void)name, (void)layer, (void)row, (void)rows, (void)cols;
    cr_expect_eq(gr_state_save(user, -1, NULL, 0, &data, &n), GR_E_INVALID);
    cr_expect_eq(gr_state_load(user, -1, "", 0, NULL, NULL), GR_E_INVALID);
    cr_expect_eq(gr_session_resize(user, 512), GR_E_INVALID);
}

Test(state, inside_a_tap)
{
    struct gr_model *m = model("llama");
    struct gr_session_params p = params();
    struct gr_session *s = tiny_session(m, &p);
    cr_assert_eq(gr_session_tap(s, "layer", save_in_tap, s), 0);
    must_feed(s, 0, 4);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* ---- failures on the way ---- */

/* Each allocation fails once: what was saved from is as it was; what was restored to as well. */
static void starve(const char *arch)
{
    struct gr_model *m = model(arch);
    struct gr_session_params p = params();
    struct gr_session *a = tiny_session(m, &p), *b = filled(m, &p);
    fill(a);
    struct bytes d = save(a, -1), one = save(a, 1), was = save(b, -1), now = {0};
    for (uint64_t k = 1, done = 0; !done; k++) {
        size_t before = gr_alloc_held(NULL);
        gr_alloc_fail_at(k, 0);
        int rc = gr_state_save(a, -1, "note", 4, &now.p, &now.n);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_expect_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "%s: allocation %d: %d", arch, (int)k, rc);
        cr_expect(done ? equal(now, d) : gr_alloc_held(NULL) == before, "%s: %d", arch, (int)k);
    }
    for (int way = 0; way < 2; way++)
        for (uint64_t k = 1, done = 0; !done; k++) {
            gr_alloc_fail_at(k, 0);
            int rc = way ? gr_state_load(b, -1, d.p, d.n, NULL, NULL)
                         : gr_state_load(b, 2, one.p, one.n, NULL, NULL);
            done = gr_alloc_fail_at(0, 0) < k;
            cr_expect_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "%s: allocation %d: %d", arch, (int)k, rc);
            if (!done && way == 0)
                cr_expect(has_still(b, was), "%s: allocation %d", arch, (int)k);
        }
    cr_expect(has_still(b, d), "%s", arch);
    gr_state_free(d.p), gr_state_free(one.p), gr_state_free(was.p), gr_state_free(now.p);
    gr_session_close(&a), gr_session_close(&b);
    gr_model_close(&m);
}

Test(state, no_memory)
{
    starve("llama");
    starve("gemma3");
}

/* A backend whose k-th copy fails. */
static struct gr_backend_api broken;
static const struct gr_backend_api *whole;
static int left;

static int broken_upload(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    return left-- == 0 ? gr_fail(GR_E_DEVICE, "it fell off") : whole->upload(b, dst, src, bytes);
}

static int broken_download(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    return left-- == 0 ? gr_fail(GR_E_DEVICE, "it fell off") : whole->download(b, dst, src, bytes);
}

static void break_copies(struct gr_session *s, int after)
{
    whole = s->device[0].backend->api, broken = *whole, left = after;
    broken.upload = broken_upload, broken.download = broken_download;
    s->device[0].backend->api = &broken;
}

/* The sequence to be filled is empty, the rest is as it was. */
Test(state, copies_that_fail)
{
    struct gr_model *m = model("llama");
    struct gr_session_params p = params();
    struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p), *c = tiny_session(m, &p);
    void *data;
    size_t n;
    fill(a);
    must_feed(b, 1, 20), must_feed(c, 1, 20);
    struct bytes all = save(a, -1), one = save(a, 0);
    for (int after = 0; after < 3; after++) {
        break_copies(a, after);
        cr_expect_eq(gr_state_save(a, -1, NULL, 0, &data, &n), GR_E_DEVICE);
        cr_expect_null(data);
        a->device[0].backend->api = whole;
        cr_expect(has_still(a, all));

        must_feed(b, 0, 5);
        break_copies(b, after);
        cr_expect_eq(gr_state_load(b, 0, one.p, one.n, NULL, NULL), GR_E_DEVICE);
        b->device[0].backend->api = whole;
        cr_expect(strstr(gr_error(), "fell off; sequence 0 is empty now"), "%s", gr_error());
        cr_expect_eq(gr_kv_seq_pos_max(b, 0), -1);
        cr_expect(go_on(b, c, 1));
    }
    break_copies(b, 1);
    cr_expect_eq(gr_state_load(b, -1, all.p, all.n, NULL, NULL), GR_E_DEVICE);
    b->device[0].backend->api = whole;
    cr_expect(strstr(gr_error(), "the session is empty now"), "%s", gr_error());
    cr_expect_eq(gr_kv_used(b), 0);
    load(b, -1, all);
    cr_expect(go_on(a, b, 0));
    gr_state_free(all.p), gr_state_free(one.p);
    gr_session_close(&a), gr_session_close(&b), gr_session_close(&c);
    gr_model_close(&m);
}

/* ---- files ---- */

Test(state, files)
{
    char dir[] = "/tmp/gpurun-state-XXXXXX", path[64];
    struct gr_model *m = model("llama");
    struct gr_session_params p = params();
    struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
    char *note;
    size_t n;
    struct stat st;
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/state", dir);
    fill(a);
    cr_assert_eq(gr_state_save_file(a, -1, "what was said", 14, path), 0, "%s", gr_error());
    cr_assert_eq(gr_state_load_file(b, -1, path, (void **)&note, &n), 0, "%s", gr_error());
    cr_expect_eq(n, 14);
    cr_expect_str_eq(note, "what was said");
    cr_expect(go_on(a, b, 0) && go_on(a, b, 1));
    cr_assert_eq(gr_state_save_file(a, 1, NULL, 0, path), 0, "%s", gr_error());
    cr_assert_eq(gr_state_load_file(b, 2, path, NULL, NULL), 0, "%s", gr_error());
    cr_expect_eq(gr_kv_seq_pos_max(b, 2), gr_kv_seq_pos_max(a, 1));
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(truncate(path, st.st_size / 2), 0);
    struct bytes was = save(b, -1);
    cr_expect_eq(gr_state_load_file(b, 2, path, NULL, NULL), GR_E_CORRUPT);
    cr_expect(strstr(gr_error(), path) && strstr(gr_error(), "cut off"), "%s", gr_error());
    cr_expect(has_still(b, was));
    unlink(path);
    cr_expect_eq(gr_state_load_file(b, 2, path, NULL, NULL), GR_E_IO);
    cr_expect_eq(rmdir(dir), 0, "no temporary file is left");
    cr_expect_eq(gr_state_save_file(a, -1, NULL, 0, path), GR_E_IO);
    gr_state_free(note), gr_state_free(was.p);
    gr_session_close(&a), gr_session_close(&b);
    gr_model_close(&m);
}

/* ---- another number of cells ---- */

Test(state, resize)
{
    struct gr_model *m = model("llama");
    struct gr_session_params p = params();
    struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
    fill(a), fill(b);
    cr_assert_eq(gr_session_resize(b, 1000), 0, "%s", gr_error());
    cr_expect_eq(gr_session_n_ctx(b), 1024);
    cr_expect(go_on(a, b, 0) && go_on(a, b, 1));
    must_feed(b, 2, 250);
    cr_expect_eq(gr_session_resize(b, 256), GR_E_KV_FULL);
    cr_expect_eq(gr_session_n_ctx(b), 1024);
    cr_assert_eq(gr_kv_seq_rm(b, 2, -1, -1), 0);
    for (uint64_t k = 1, done = 0; !done; k++) {
        gr_alloc_fail_at(k, 0);
        int rc = gr_session_resize(b, 256);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_expect_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "allocation %d: %d", (int)k, rc);
        cr_expect_eq(gr_session_n_ctx(b), done ? 256 : 1024);
    }
    cr_expect(go_on(a, b, 0) && go_on(a, b, 1));
    gr_session_cancel(b);
    cr_assert_eq(gr_session_tap(b, "nothing", save_in_tap, b), 0);
    cr_assert_eq(gr_session_resize(b, 512), 0, "%s", gr_error());
    cr_expect_str_eq(b->observers.tap_name, "nothing");
    cr_expect(go_on(a, b, 1));
    gr_session_close(&a), gr_session_close(&b);
    gr_model_close(&m);
}
