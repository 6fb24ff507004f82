/* Properties of every architecture in the table, on tiny random models made from its tensors. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_TOK 40
#define N_VOCAB 96

/* F32 sums of at most 96 terms in another order: about 1e-6, squared, over two layers. */
#define SAME 1e-10

static void tokens(int32_t *id, int n, uint64_t seed)
{
    struct gr_rng r = gr_rng_new(seed);
    for (int i = 0; i < n; i++)
        id[i] = (int32_t)gr_rng_below(&r, N_VOCAB);
}

static struct gr_session_params params(void)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = 4, p.type_k = "f32", p.type_v = "f32", p.n_threads = 1;
    return p;
}

/* Decodes n tokens of one sequence from position `pos`, `step` at a time; all logits go to out [n,
 * N_VOCAB]. */
static void run(struct gr_session *s, const int32_t *id, int n, int32_t seq, int32_t pos, int step,
                float *out)
{
    for (int i = 0; i < n; i += step) {
        int k = i + step < n ? step : n - i;
        int32_t p[N_TOK], q[N_TOK];
        int8_t want[N_TOK];
        for (int j = 0; j < k; j++)
            p[j] = pos + i + j, q[j] = seq, want[j] = 1;
        struct gr_batch b = {.n_tok = k, .token = id + i, .pos = p, .seq = q, .logits = want};
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        for (int j = 0; j < k; j++)
            memcpy(out + (size_t)(i + j) * N_VOCAB, tiny_row(s, j), N_VOCAB * sizeof *out);
    }
}

static float want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];

Test(models, a_wrong_shape_or_a_missing_tensor_is_named)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        t.zeros = true;
        for (int k = 0; k < tiny_n_tensor(&t); k++)
            for (int drop = 0; drop < 2; drop++) {
                char name[96] = "";
                struct gr_model *m;
                t.reshape = drop ? -1 : k, t.drop = drop ? k : -1;
                const char *path = tiny_write(&t, name);
                int rc = gr_model_open(&m, path, NULL);
                unlink(path);
                if (drop && !tiny_required(&t, k)) {
                    gr_model_close(&m);
                    continue;
                }
                cr_expect_eq(rc, GR_E_CORRUPT, "%s %s: %d", t.arch->name, name, rc);
                cr_expect(strstr(gr_error(), name), "%s: %s", name, gr_error());
            }
    }
}

Test(models, opens_without_what_is_optional)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        t.no_optional = true, t.n_expert = tiny_needs_experts(t.arch) ? 3 : 0;
        struct gr_model *m = tiny_open(&t);
        struct gr_session_params p = params();
        struct gr_session *s = tiny_session(m, &p);
        int32_t id[N_TOK];
        tokens(id, N_TOK, 1);
        run(s, id, N_TOK, 0, 0, N_TOK, want);
        for (int j = 0; j < N_TOK * N_VOCAB; j++)
            cr_assert(isfinite(want[j]), "%s", t.arch->name);
        gr_session_close(&s);
        gr_model_close(&m);
    }
}

/* One batch, single steps, pieces of 7, micro-batches of 5, with another sequence beside it,
 * contiguous cells, more threads: the same logits. */
Test(models, every_way_to_decode_gives_the_same_logits)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        if (t.arch->no_cache) /* no_cache.c */
            continue;
        struct gr_model *m = tiny_open(&t);
        int32_t id[N_TOK], other[N_TOK];
        static float scratch[N_TOK * N_VOCAB];
        tokens(id, N_TOK, 1);
        tokens(other, N_TOK, 2);
        for (int way = 0; way < 7; way++) {
            struct gr_session_params p = params();
            p.n_ubatch = way == 3 ? 5 : 512;
            p.kv_contiguous = way == 5;
            p.n_threads = way == 6 ? 3 : 1;
            struct gr_session *s = tiny_session(m, &p);
            if (way == 4) { /* cells of another sequence before, between and after */
                run(s, other, 13, 1, 0, 3, scratch);
                run(s, id, 20, 0, 0, 4, got);
                run(s, other + 13, 9, 1, 13, 9, scratch);
                cr_assert_eq(gr_kv_seq_rm(s, 1, 2, 6), tiny_keeps_states(m) ? GR_E_UNSUPPORTED : 0);
                run(s, id + 20, N_TOK - 20, 0, 20, 4, got + 20 * N_VOCAB);
            } else {
                run(s, id, N_TOK, 0, 0, way == 1 ? 1 : way == 2 ? 7 : N_TOK, way ? got : want);
            }
            double e = way ? tiny_nmse(want, got, N_TOK * N_VOCAB) : 0;
            cr_expect(e <= SAME, "%s, way %d: %g", t.arch->name, way, e);
            gr_session_close(&s);
        }
        gr_model_close(&m);
    }
}

/* Only some rows wanted, none wanted: the others' logits are what they were. */
Test(models, unwanted_logits_change_nothing)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        if (t.arch->no_cache) /* no_cache.c */
            continue;
        struct gr_model *m = tiny_open(&t);
        struct gr_session_params p = params();
        struct gr_session *s = tiny_session(m, &p);
        int32_t id[N_TOK];
        tokens(id, N_TOK, 1);
        run(s, id, N_TOK, 0, 0, N_TOK, want);
        gr_kv_clear(s);
        tiny_encode(s);
        int8_t none[N_TOK] = {0}, some[N_TOK] = {0};
        struct gr_batch b = {.n_tok = 20, .token = id, .logits = none};
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        cr_expect_null(tiny_row(s, 0));
        some[3] = some[11] = some[19] = 1;
        b = (struct gr_batch){.n_tok = 20, .token = id + 20, .logits = some};
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        for (int j = 0; j < 20; j++) {
            const float *row = tiny_row(s, j);
            cr_expect_eq(row != NULL, some[j] != 0);
            if (row)
                cr_expect(tiny_nmse(want + (20 + j) * N_VOCAB, row, N_VOCAB) <= SAME, "%s row %d",
                          t.arch->name, j);
        }
        gr_session_close(&s);
        gr_model_close(&m);
    }
}

/* Memory that no value was stored in holds NaN: cells, intermediate results. */
Test(models, unwritten_memory_is_never_read)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        struct gr_model *m = tiny_open(&t);
        int32_t id[N_TOK];
        tokens(id, N_TOK, 1);
        for (int poison = 0; poison < 2; poison++) {
            struct gr_session_params p = params();
            struct gr_session *s = tiny_session(m, &p);
            if (poison && s->device[0].has.cache)
                memset(s->device[0].cache, 0xff, s->device[0].has.cache);
            tiny_encode(s);
            run(s, id, 9, 0, 0, 9, poison ? got : want); /* makes the arena */
            if (poison)
                memset(s->device[0].memory.arena, 0xff, s->device[0].has.arena);
            run(s, id + 9, N_TOK - 9, 0, 9, 9, (poison ? got : want) + 9 * N_VOCAB);
            gr_session_close(&s);
        }
        cr_expect_eq(memcmp(want, got, sizeof want), 0, "%s", t.arch->name);
        gr_model_close(&m);
    }
}

/* K of the first layer, roped at p and then shifted by d, is K roped at p + d: for every scaling.
 * Deeper layers depend on positions only through differences, so logits of a shifted sequence agree
 * as well. */
Test(models, a_shift_is_a_pure_rotation)
{
    static const enum gr_rope_scaling scaling[] = {GR_SCALING_NONE, GR_SCALING_LINEAR,
                                                   GR_SCALING_YARN, GR_SCALING_LONGROPE};
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        if (t.arch->rope == GR_ROPE_NONE || t.arch->no_cache)
            continue;
        struct gr_model *m = tiny_open(&t);
        int32_t id[N_TOK];
        tokens(id, N_TOK, 1);
        for (unsigned k = 0; k < sizeof scaling / sizeof *scaling && !tiny_keeps_states(m); k++) {
            struct gr_session_params p = params();
            p.rope_scaling = scaling[k];
            p.rope_freq_scale = scaling[k] == GR_SCALING_NONE ? 1 : 0.25f;
            p.yarn_orig_ctx = 64;
            struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
            static float scratch[N_TOK * N_VOCAB];
            run(a, id, 20, 0, 7, 20, scratch);
            cr_assert_eq(gr_kv_seq_add(a, 0, 0, -1, 100), 0);
            cr_assert_eq(gr_kv_seq_add(a, 0, 0, -1, -31), 0);
            run(b, id, 20, 0, 76, 20, scratch);
            run(a, id + 20, 5, 0, 96, 5, got);
            run(b, id + 20, 5, 0, 96, 5, want);
            size_t n = (size_t)(25 * a->env.k_cache[0].cols);
            double e = tiny_nmse(b->env.k_cache[0].data, a->env.k_cache[0].data, n);
            cr_expect(e < 1e-11, "%s, scaling %d: K differs by %g", t.arch->name, (int)scaling[k],
                      e);
            /* where positions themselves matter, the layers above were given others */
            e = m->hp.attn.norm_roped ? 0 : tiny_nmse(want, got, 5 * N_VOCAB);
            cr_expect(e < 1e-9, "%s, scaling %d: logits differ by %g", t.arch->name,
                      (int)scaling[k], e);
            gr_session_close(&a);
            gr_session_close(&b);
        }
        gr_model_close(&m);
    }
}

/* A shift takes memory and time for the cells in use, not for those of the whole context. */
Test(models, a_shift_looks_at_used_cells_only)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params();
    p.n_ctx = 1 << 16, p.n_seq_max = 1;
    struct gr_session *s = tiny_session(m, &p);
    int32_t id[N_TOK];
    tokens(id, N_TOK, 1);
    run(s, id, 1, 0, 0, 1, got);
    cr_assert_eq(gr_kv_seq_add(s, 0, 0, -1, 1), 0);
    run(s, id, 1, 0, 2, 1, got);
    cr_expect(s->device[0].has.arena < 1 << 20, "%zu bytes", s->device[0].has.arena);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* The memory that a session takes at first is enough for every step: those of few tokens, whose
 * values live longer, need more than those of some tokens more. */
Test(models, no_step_needs_more_than_was_reserved)
{
    struct gr_session_params p = params();
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        struct gr_model *m = tiny_open(&t);
        for (p.n_ubatch = GR_PLAN_FEW; p.n_ubatch <= GR_PLAN_FEW + 3; p.n_ubatch++) {
            struct gr_session *s = tiny_session(m, &p);
            size_t has = s->device[0].has.arena;
            int32_t id[GR_PLAN_FEW], pos[GR_PLAN_FEW];
            int8_t last[GR_PLAN_FEW] = {[GR_PLAN_FEW - 1] = 1};
            tokens(id, GR_PLAN_FEW, 1);
            for (int k = 0; k < GR_PLAN_FEW; k++)
                pos[k] = k;
            struct gr_batch b = {.n_tok = GR_PLAN_FEW, .token = id, .pos = pos, .logits = last};
            cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
            cr_expect_eq(s->device[0].has.arena, has, "%s, micro-batches of %u: %zu and %zu bytes",
                         t.arch->name, p.n_ubatch, s->device[0].has.arena, has);
            gr_session_close(&s);
        }
        gr_model_close(&m);
    }
}

/* Self-Extend end to end: after seq_div, logits are those of tokens stored at grouped positions. */
Test(models, grouped_positions_by_division_or_from_the_start)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.n_layer = 1; /* deeper layers saw the old positions when K was made */
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params();
    struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
    int32_t id[N_TOK], pos[12], last[1] = {6};
    tokens(id, N_TOK, 1);
    static float scratch[N_TOK * N_VOCAB];
    run(a, id, 12, 0, 0, 12, scratch);
    cr_assert_eq(gr_kv_seq_div(a, 0, 0, -1, 2), 0);
    run(a, id + 12, 1, 0, 6, 1, got);
    for (int i = 0; i < 12;
         i++) { /* b: pairs of tokens at one position, each stored as its own sequence first */
        pos[i] = i / 2;
        struct gr_batch one = {
            .n_tok = 1, .token = id + i, .pos = &pos[i], .seq = (const int32_t[]){1 + i % 2}};
        cr_assert_eq(gr_decode(b, &one), 0, "%s", gr_error());
    }
    cr_assert_eq(gr_kv_seq_cp(b, 1, 0, -1, -1), 0);
    cr_assert_eq(gr_kv_seq_cp(b, 2, 0, -1, -1), 0);
    struct gr_batch end = {.n_tok = 1, .token = id + 12, .pos = last};
    cr_assert_eq(gr_decode(b, &end), 0, "%s", gr_error());
    cr_expect(tiny_nmse(tiny_row(b, 0), got, N_VOCAB) < 1e-10);
    gr_session_close(&a);
    gr_session_close(&b);
    gr_model_close(&m);
}

struct seen {
    int n, layers;
};

static void count(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                  void *user)
{
    struct seen *s = user;
    cr_expect_str_eq(name, "layer");
    s->n++, s->layers |= 1 << layer;
    for (int64_t i = 0; i < rows * cols; i++)
        cr_assert(isfinite(data[i]));
}

Test(models, taps_give_every_layer)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params();
    struct gr_session *s = tiny_session(m, &p);
    int32_t id[N_TOK];
    struct seen seen = {0, 0};
    tokens(id, N_TOK, 1);
    run(s, id, 8, 0, 0, 8, want);
    gr_kv_clear(s);
    cr_assert_eq(gr_session_tap(s, "layer", count, &seen), 0);
    run(s, id, 8, 0, 0, 8, got);
    cr_expect_eq(seen.n, 2);
    cr_expect_eq(seen.layers, 3);
    cr_expect_eq(memcmp(want, got, 8 * N_VOCAB * sizeof *want), 0);
    gr_session_close(&s);
    gr_model_close(&m);
}
