/* Self-Extend with the exact neighbour window, and context shifts, in whole models: against a
 * float64 implementation (tests/golden/self-extend), and by what holds for every architecture. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define DATA GR_SOURCE_DIR "/tests/golden/self-extend/"

/* ---- against float64 ---- */

enum { LAST = 2, N_VOCAB = 768, LONGEST = 1024 };

static double worst;

static int32_t number(const json_t *list, size_t i)
{
    cr_assert(json_is_integer(json_array_get(list, i)));
    return (int32_t)json_integer_value(json_array_get(list, i));
}

/* Decodes the tokens and compares the logits of the last ones with the next ones of the file. */
static void decode(struct gr_session *s, const json_t *list, FILE *expected, const char *where)
{
    static int32_t id[LONGEST];
    static int8_t all[LONGEST];
    static float want[N_VOCAB];
    int32_t n = (int32_t)json_array_size(list);
    cr_assert(n <= LONGEST);
    memset(all, 1, sizeof all);
    for (int32_t i = 0; i < n; i++)
        id[i] = number(list, (size_t)i);
    struct gr_batch b = {.n_tok = n, .token = id, .logits = all};
    cr_assert_eq(gr_decode(s, &b), 0, "%s: %s", where, gr_error_message());
    for (int32_t i = n > LAST ? n - LAST : 0; i < n; i++) {
        cr_assert_eq(fread(want, sizeof want, 1, expected), 1, "%s", where);
        double e = tiny_nmse(want, tiny_row(s, i), N_VOCAB);
        worst = e > worst ? e : worst;
        cr_assert(e <= 1e-8, "%s: token %d of %d: NMSE %g", where, i, n, e);
    }
}

static int change(struct gr_session *s, const char *name, const json_t *op)
{
    int32_t a = number(op, 1), b = number(op, 2), n_past;
    if (!strcmp(name, "rm"))
        return gr_kv_seq_rm(s, 0, a, b);
    if (!strcmp(name, "add"))
        return gr_kv_seq_add(s, 0, a, b, number(op, 3));
    if (!strcmp(name, "div"))
        return gr_kv_seq_div(s, 0, a, b, number(op, 3));
    cr_assert_str_eq(name, "shift");
    return gr_context_shift(s, 0, a, b, &n_past);
}

/* F32 sums of some hundred terms and cosines rounded to f32 in three layers: about 1e-12. */
Test(window, a_float64_implementation_gives_the_same_logits)
{
    json_t *sessions = json_load_file(DATA "sessions.json", 0, NULL);
    FILE *expected = fopen(DATA "logits.f32", "rb");
    struct gr_model *m;
    cr_assert(sessions && expected);
    cr_assert_eq(gr_model_open(&m, NULL, NULL), 0, "%s", gr_error_message());
    for (size_t k = 0; k < json_array_size(sessions); k++) {
        const json_t *o = json_array_get(sessions, k), *ops = json_object_get(o, "ops");
        struct gr_session_params p = gr_session_params_default();
        p.n_ctx = LONGEST, p.type_k = p.type_v = "f32", p.n_ubatch = 64;
        p.self_extend_n = (int32_t)json_integer_value(json_object_get(o, "self_extend_n"));
        p.self_extend_w = (int32_t)json_integer_value(json_object_get(o, "self_extend_w"));
        struct gr_session *s = tiny_session(m, &p);
        for (size_t i = 0; i < json_array_size(ops); i++) {
            const json_t *op = json_array_get(ops, i);
            const char *name = json_string_value(json_array_get(op, 0));
            char where[64];
            snprintf(where, sizeof where, "session %zu, operation %zu, %s", k, i, name);
            if (!strcmp(name, "decode"))
                decode(s, json_array_get(op, 1), expected, where);
            else
                cr_assert_eq(change(s, name, op), 0, "%s: %s", where, gr_error_message());
        }
        gr_session_close(&s);
    }
    cr_assert_eq(fgetc(expected), EOF, "logits of fewer tokens than the file has");
    printf("worst NMSE against float64: %.2g\n", worst);
    fclose(expected);
    json_decref(sessions);
    gr_model_close(&m);
}

/* ---- every architecture ---- */

enum { T_VOCAB = 96, N_TOK = 60 };

static int32_t id[N_TOK];
static float first[T_VOCAB];

static struct gr_session_params params(const char *type)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = 3, p.type_k = type, p.type_v = type, p.n_threads = 1;
    p.swa_full = true;
    for (int i = 0; i < N_TOK; i++)
        id[i] = (i * 37 + i * i) % T_VOCAB;
    return p;
}

static int feed(struct gr_session *s, int32_t seq, int from, int n)
{
    int32_t seqs[N_TOK];
    for (int i = 0; i < n; i++)
        seqs[i] = seq;
    return gr_decode(s, &(struct gr_batch){.n_tok = n, .token = id + from, .seq = seqs});
}

/* Distances, grouped ones too, do not change when all tokens move by a multiple of the factor. And
 * while no token is as far as the window from another, nothing is grouped. */
Test(window, moving_all_by_whole_groups_changes_nothing)
{
    int n_tried = 0;
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        struct gr_model *m = tiny_open(&t);
        for (int32_t delta = 0; delta <= 12; delta += 12) {
            struct gr_session_params p = params("f32");
            struct gr_session *s;
            p.self_extend_n = 4, p.self_extend_w = 20;
            if (gr_session_open(&s, m, &p)) {
                cr_assert(m->hp.rope.kind == GR_ROPE_NONE || m->hp.no_cache, "%s: %s", t.arch->name,
                          gr_error_message());
                break;
            }
            cr_assert_eq(feed(s, 0, 0, N_TOK - 1), 0, "%s: %s", t.arch->name, gr_error_message());
            int rc = gr_kv_seq_add(s, 0, 0, -1, delta);
            if (rc == GR_E_UNSUPPORTED) { /* a recurrent part */
                gr_session_close(&s);
                break;
            }
            cr_assert_eq(rc, 0, "%s: %s", t.arch->name, gr_error_message());
            cr_assert_eq(feed(s, 0, N_TOK - 1, 1), 0, "%s: %s", t.arch->name, gr_error_message());
            bool distances = delta && !m->hp.attn.norm_roped; /* nothing else matters */
            double e = distances ? tiny_nmse(first, tiny_row(s, -1), T_VOCAB) : 0;
            cr_expect(e < 1e-9, "%s: NMSE %g", t.arch->name, e);
            memcpy(first, tiny_row(s, -1), sizeof first);
            n_tried += delta > 0;
            gr_session_close(&s);
        }
        gr_model_close(&m);
    }
    cr_assert(n_tried >= 5, "%d", n_tried);
}

Test(window, a_window_that_nothing_leaves_changes_nothing)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        struct gr_model *m = tiny_open(&t);
        for (int on = 0; on < 2; on++) {
            struct gr_session_params p = params("f16");
            struct gr_session *s;
            p.self_extend_n = on ? 2 : 0, p.self_extend_w = N_TOK;
            if (gr_session_open(&s, m, &p))
                break;
            cr_assert_eq(feed(s, 0, 0, N_TOK), 0, "%s: %s", t.arch->name, gr_error_message());
            cr_expect(!on || !memcmp(first, tiny_row(s, -1), sizeof first), "%s", t.arch->name);
            memcpy(first, tiny_row(s, -1), sizeof first);
            gr_session_close(&s);
        }
        gr_model_close(&m);
    }
}

Test(window, what_cannot_be_grouped_is_refused)
{
    static const int32_t bad[][2] = {{3, 2048}, {2, 0}, {2, -4}, {4, 2}};
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        struct gr_session_params p = params("f16");
        struct gr_session *s;
        p.self_extend_n = bad[k][0], p.self_extend_w = bad[k][1];
        cr_expect_eq(gr_session_open(&s, m, &p), GR_E_INVALID, "%zu", k);
        cr_expect(strstr(gr_error_message(), "a multiple of the group factor"), "%s",
                  gr_error_message());
    }
    struct gr_session_params p = params("f16");
    struct gr_session_size plain, grouped;
    cr_assert_eq(gr_session_size(m, &p, &plain), 0);
    p.self_extend_n = 2, p.self_extend_w = 8;
    cr_assert_eq(gr_session_size(m, &p, &grouped), 0);
    cr_expect(grouped.k == 2 * plain.k && grouped.v == plain.v && plain.k > 0, "K once more");
    gr_model_close(&m);
}

/* ---- context shift ---- */

/* In every architecture and cache type, grouped or not, a shift is the removal and the addition
 * that it is described as, bit for bit; or it says why not, and all is as before. */
static bool expect_shift(struct gr_model *m, const struct gr_session_params *p, const char *what)
{
    struct gr_session *a = tiny_session(m, p), *b = tiny_session(m, p);
    int32_t n_past = -1;
    cr_assert_eq(feed(a, 0, 0, 50), 0, "%s: %s", what, gr_error_message());
    cr_assert_eq(feed(b, 0, 0, 50), 0);
    cr_assert(feed(a, 1, 3, 20) == 0 && feed(b, 1, 3, 20) == 0);
    int rc = gr_context_shift(a, 0, 7, 0, &n_past);
    if (rc) {
        cr_assert(rc == GR_E_UNSUPPORTED && n_past == -1, "%s: %s", what, gr_error_message());
    } else {
        cr_assert_eq(n_past, 50 - 21, "half of what is not kept");
        cr_assert_eq(gr_kv_seq_rm(b, 0, 7, 28), 0, "%s: %s", what, gr_error_message());
        cr_assert_eq(gr_kv_seq_add(b, 0, 28, -1, -21), 0, "%s: %s", what, gr_error_message());
    }
    for (int32_t seq = 0; seq < 2; seq++) {
        cr_assert_eq(feed(a, seq, 50, 6), 0, "%s: %s", what, gr_error_message());
        cr_assert_eq(feed(b, seq, 50, 6), 0, "%s: %s", what, gr_error_message());
        cr_expect_eq(memcmp(tiny_row(a, -1), tiny_row(b, -1), T_VOCAB * sizeof(float)), 0,
                     "%s, sequence %d", what, seq);
    }
    cr_assert_eq(gr_cache_check(&a->cache), 0, "%s: %s", what, gr_error_message());
    gr_session_close(&a);
    gr_session_close(&b);
    return !rc;
}

Test(context_shift, is_a_removal_and_an_addition)
{
    static const char *const types[] = {"f16", "q8_0", "q4_0", "q5_1"};
    int n_shifted[4] = {0};
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        t.d_head = t.n_rot = 32, t.n_embd = 128, t.d_v = 32;
        struct gr_model *m = tiny_open(&t);
        for (size_t k = 0; k < sizeof types / sizeof *types; k++)
            for (int way = 0; way < 4; way++) {
                struct gr_session_params p = params(types[k]);
                struct gr_session_size size;
                char what[96];
                p.kv_unified = way != 1, p.swa_full = way != 2;
                p.self_extend_n = way == 3 ? 4 : 0, p.self_extend_w = 16;
                p.rope_scaling = k == 1 ? GR_SCALING_YARN : GR_SCALING_MODEL;
                p.rope_freq_scale = k == 1 ? 0.25f : 0, p.yarn_orig_ctx = k == 1 ? 128 : 0;
                snprintf(what, sizeof what, "%s, %s, way %d", t.arch->name, types[k], way);
                if (!gr_session_size(m, &p, &size) && size.n_cell + size.n_cell_swa)
                    n_shifted[way] += expect_shift(m, &p, what);
            }
        gr_model_close(&m);
    }
    for (int way = 0; way < 4; way++)
        cr_assert(n_shifted[way] >= 15, "way %d: %d", way, n_shifted[way]);
}

/* A window that evicted old cells: the shift goes on as long as the window lies in what moves. */
Test(context_shift, of_a_window_that_gave_up_cells)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"gemma3", 6}));
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params("f32"), full = p;
    p.n_ctx = full.n_ctx = 1024, p.n_seq_max = full.n_seq_max = 1, p.n_ubatch = full.n_ubatch = 16;
    p.swa_full = false;
    struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &full);
    int32_t n_past = 0, other;
    for (int i = 0; i < 16; i++) {
        cr_assert_eq(feed(a, 0, 0, N_TOK), 0, "%s", gr_error_message());
        cr_assert_eq(feed(b, 0, 0, N_TOK), 0);
    }
    cr_assert(gr_kv_n_used(a->cache.kv[GR_CACHE_SWA]) < gr_kv_n_used(b->cache.kv[GR_CACHE_SWA]),
              "cells were evicted");
    for (int round = 0; round < 3; round++) {
        cr_assert_eq(gr_context_shift(a, 0, 5, 0, &n_past), 0, "%s", gr_error_message());
        cr_assert_eq(gr_context_shift(b, 0, 5, 0, &other), 0, "%s", gr_error_message());
        cr_assert_eq(n_past, other);
        for (int i = 0; i < 6; i++) {
            cr_assert_eq(feed(a, 0, 0, N_TOK), 0, "%s", gr_error_message());
            cr_assert_eq(feed(b, 0, 0, N_TOK), 0);
            cr_expect_lt(tiny_nmse(tiny_row(b, -1), tiny_row(a, -1), T_VOCAB), 1e-10);
        }
    }
    /* Only two tokens would stay behind those kept: the window would reach evicted cells. */
    cr_expect_eq(gr_context_shift(a, 0, 5, INT32_MAX, &n_past), GR_E_UNSUPPORTED);
    cr_expect_eq(gr_context_shift(b, 0, 5, INT32_MAX, &other), 0, "%s", gr_error_message());
    cr_expect_eq(other, 6);
    cr_assert_eq(feed(a, 0, 0, N_TOK), 0, "a refused shift changes nothing: %s",
                 gr_error_message());
    gr_session_close(&a);
    gr_session_close(&b);
    gr_model_close(&m);
}

/* The answer of gr_context_can_shift for an empty session holds when it is full; for models that
 * cannot shift at all, at any time. */
static int count_shifts(const struct tiny *t, int32_t keep, bool swa_full)
{
    struct gr_model *m = tiny_open(t);
    struct gr_session_params p = params("f16");
    p.n_ctx = 512, p.n_seq_max = 1, p.n_ubatch = 16, p.swa_full = swa_full;
    struct gr_session *s = tiny_session(m, &p);
    int can = gr_context_can_shift(s, 0, keep), rc = 0, n = 0, fixed = 0;
    cr_expect(can == 0 || can == GR_E_UNSUPPORTED, "%s", gr_error_message());
    fixed = tiny_keeps_states(m) || tiny_learned_positions(m);
    cr_expect(!fixed || can, "%s can shift", t->arch->name);
    for (int round = 0; round < (fixed ? 1 : 3) && !rc; round++) {
        int32_t n_past = gr_kv_seq_pos_max(s, 0) + 1, end = fixed ? 16 : 512;
        for (; n_past < end; n_past += end - n_past < 16 ? end - n_past : 16)
            cr_assert_eq(feed(s, 0, 0, end - n_past < 16 ? end - n_past : 16), 0, "%s: %s",
                         t->arch->name, gr_error_message());
        rc = gr_context_shift(s, 0, fixed ? 2 : keep, 0, NULL);
        n += !rc;
    }
    cr_expect_eq(rc, can, "%s, %d kept: %s", t->arch->name, keep, gr_error_message());
    gr_session_close(&s);
    gr_model_close(&m);
    return n;
}

Test(context_shift, is_known_to_be_possible_before)
{
    static const char *const archs[] = {"llama", "gemma3",  "llama4", "deepseek2", "bloom",
                                        "gpt2",  "qwen2vl", "jamba",  "mamba",     "lfm2"};
    int n[2] = {0};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        for (int32_t keep = 0; keep < 500; keep += 75) {
            struct tiny t = tiny_default(gr_arch_find((struct gr_str){archs[i], strlen(archs[i])}));
            t.n_swa = 200;
            n[0] += count_shifts(&t, keep, true), n[1] += count_shifts(&t, keep, false);
        }
    cr_expect(n[0] == 6 * 7 * 3 && n[1] > 0 && n[1] < n[0], "%d and %d shifts", n[0], n[1]);
}

Test(context_shift, limits_and_refusals)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params("f16");
    struct gr_session *s = tiny_session(m, &p);
    int32_t n_past = 77;
    cr_expect_eq(gr_context_shift(s, 0, 0, 0, &n_past), GR_E_INVALID, "empty");
    cr_assert_eq(feed(s, 0, 0, N_TOK), 0);
    cr_expect_eq(gr_context_shift(s, -1, 0, 0, &n_past), GR_E_INVALID);
    cr_expect_eq(gr_context_shift(s, 3, 0, 0, &n_past), GR_E_INVALID);
    cr_expect_eq(gr_context_shift(s, 0, -1, 0, &n_past), GR_E_INVALID);
    cr_expect_eq(gr_context_shift(s, 0, N_TOK - 1, 0, &n_past), GR_E_INVALID);
    cr_expect(strstr(gr_error_message(), "nothing to discard"), "%s", gr_error_message());
    cr_assert_eq(gr_kv_seq_cp(s, 0, 1, 0, 20), 0);
    cr_expect_eq(gr_context_shift(s, 0, 4, 10, &n_past), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error_message(), "gr_kv_seq_dup"), "%s", gr_error_message());
    cr_expect(n_past == 77 && gr_kv_seq_pos_max(s, 0) == N_TOK - 1 && gr_kv_used(s) == N_TOK);
    cr_expect_eq(gr_context_shift(s, 0, 20, 10, &n_past), 0, "what is shared is kept: %s",
                 gr_error_message());
    cr_expect(n_past == N_TOK - 10 && gr_kv_seq_pos_max(s, 1) == 19);
    cr_expect_eq(gr_context_shift(s, 0, 4, 30, &n_past), 0, "or is removed from this one: %s",
                 gr_error_message());
    cr_expect(n_past == N_TOK - 40 && gr_kv_seq_pos_max(s, 1) == 19);
    cr_expect_eq(gr_context_shift(s, 0, 0, INT32_MAX, NULL), 0, "%s", gr_error_message());
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), 0, "one stays");
    gr_kv_clear(s);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(feed(s, 0, 0, N_TOK), 0);
    cr_assert_eq(feed(s, 0, 0, 16), 0);
    cr_expect_eq(gr_context_shift(s, 0, INT32_MAX, 0, &n_past), 0, "%s", gr_error_message());
    cr_expect_eq(n_past, 254, "all but four cells can be kept, two of the four go");
    gr_session_close(&s);
    gr_model_close(&m);
}
