/* A decode that fails leaves the session as it was: what follows is bit for bit what a session
 * gives that never failed. And any number of shapes of batches, each with its plan. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/rng.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_VOCAB 96
#define LONG 300

static int32_t id[LONG];
static int8_t all[LONG];

static struct gr_model *model(const char *arch)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    for (int i = 0; i < LONG; i++)
        id[i] = (5 + 37 * i) % N_VOCAB, all[i] = 1;
    return tiny_open(&t);
}

static struct gr_session *session(struct gr_model *m, uint32_t n_ctx)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = n_ctx, p.type_k = p.type_v = "f32", p.n_threads = 1, p.n_seq_max = 2;
    return tiny_session(m, &p);
}

static int decode(struct gr_session *s, int first, int n)
{
    struct gr_batch b = {.n_tok = n, .token = id + first, .logits = all};
    return gr_decode(s, &b);
}

/* Each allocation of a decode fails that needs room for more logits, a larger arena, the plan of a
 * K-shift and one of its own. */
Test(failure, no_memory)
{
    struct gr_model *m = model("llama");
    bool done = false;
    for (uint64_t k = 1; !done; k++) {
        struct gr_session *a = session(m, 256), *b = session(m, 256);
        for (int i = 0; i < 2; i++) {
            struct gr_session *s = i ? b : a;
            cr_assert_eq(decode(s, 0, 3), 0, "%s", gr_error());
            cr_assert_eq(gr_kv_seq_add(s, 0, 1, -1, 5), 0);
        }
        gr_alloc_fail_at(k, 0);
        int rc = decode(a, 3, 20);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_assert_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "allocation %d: %d", (int)k, rc);
        if (rc) {
            cr_expect_eq(gr_kv_used(a), 3);
            cr_expect_eq(gr_kv_seq_pos_max(a, 0), 7);
            cr_assert_eq(decode(a, 3, 20), 0, "%s", gr_error());
        }
        cr_assert_eq(decode(b, 3, 20), 0, "%s", gr_error());
        for (int i = 0; i < 20; i++)
            cr_expect_eq(memcmp(tiny_row(a, i), tiny_row(b, i), N_VOCAB * sizeof(float)), 0,
                         "allocation %d, row %d", (int)k, i);
        gr_session_close(&a);
        gr_session_close(&b);
    }
    gr_model_close(&m);
}

/* Batches that are refused before anything is changed, the logits of the one before included. */
Test(failure, refused_batches)
{
    struct gr_model *m = model("gemma2");
    struct gr_session *a = session(m, 256), *b = session(m, 256);
    cr_assert_eq(decode(a, 0, 5), 0);
    cr_assert_eq(decode(b, 0, 5), 0);
    const struct gr_batch bad[] = {
        {.n_tok = 0, .token = id},
        {.n_tok = -1, .token = id},
        {.n_tok = INT32_MAX, .token = id},
        {.n_tok = 1, .token = (const int32_t[]){N_VOCAB}},
        {.n_tok = 1, .token = (const int32_t[]){-1}},
        {.n_tok = 1, .token = id, .pos = (const int32_t[]){4}},
        {.n_tok = 1, .token = id, .pos = (const int32_t[]){6}},
        {.n_tok = 1, .token = id, .pos = (const int32_t[]){INT32_MIN}},
        {.n_tok = 2, .token = id, .pos = (const int32_t[]){5, 5}},
        {.n_tok = 1, .token = id, .seq = (const int32_t[]){2}},
        {.n_tok = 1, .token = id, .seq = (const int32_t[]){-1}},
        {.n_tok = 1, .token = id, .n_seq = (const int32_t[]){2}, .seq = (const int32_t[]){0, 0}},
        {.n_tok = 1, .token = id, .n_seq = (const int32_t[]){2}, .seq = (const int32_t[]){0, 1}},
        {.n_tok = 1, .token = id, .n_seq = (const int32_t[]){INT32_MAX}, .seq = id},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(gr_decode(a, &bad[i]), GR_E_INVALID, "batch %zu", i);
        for (int r = 0; r < 5; r++)
            cr_assert_eq(memcmp(tiny_row(a, r), tiny_row(b, r), N_VOCAB * sizeof(float)), 0,
                         "batch %zu", i);
    }
    cr_assert_eq(decode(a, 5, 7), 0, "%s", gr_error());
    cr_assert_eq(decode(b, 5, 7), 0, "%s", gr_error());
    for (int r = 0; r < 7; r++)
        cr_expect_eq(memcmp(tiny_row(a, r), tiny_row(b, r), N_VOCAB * sizeof(float)), 0);
    gr_session_close(&a);
    gr_session_close(&b);
    gr_model_close(&m);
}

static void decode_again(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                         void *user)
{
    (void)name, (void)layer, (void)data, (void)rows, (void)cols;
    cr_expect_eq(decode(user, 40, 60), GR_E_INVALID);
    cr_expect_eq(gr_kv_seq_rm(user, 0, -1, -1), GR_E_INVALID);
    gr_kv_clear(user);
    cr_expect_eq(gr_kv_used(user), 30);
    cr_assert_eq(gr_session_tap(user, "", layer == 1 ? NULL : decode_again, user), 0);
}

/* A tap is called in the middle of a decode: another one would write over the batch under way. */
Test(failure, decoding_inside_a_tap)
{
    struct gr_model *m = model("llama");
    struct gr_session *a = session(m, 256), *b = session(m, 256);
    cr_assert_eq(gr_session_tap(a, "layer", decode_again, a), 0);
    cr_assert_eq(decode(a, 0, 30), 0, "%s", gr_error());
    cr_assert_eq(decode(b, 0, 30), 0, "%s", gr_error());
    for (int r = 0; r < 30; r++)
        cr_expect_eq(memcmp(tiny_row(a, r), tiny_row(b, r), N_VOCAB * sizeof(float)), 0);
    gr_session_close(&a);
    gr_session_close(&b);
    gr_model_close(&m);
}

/* Windows that hold nothing are not merged one after the other, a billion of them. */
Test(failure, self_extend_beyond_the_end, .timeout = 10)
{
    struct gr_model *m = model("llama");
    struct gr_session *s = session(m, 256);
    struct gr_self_extend se = {.n = 2, .w = 2};
    int32_t n_past = INT32_MAX / 4;
    cr_expect_eq(gr_self_extend(s, &se, &n_past), GR_E_INVALID);
    cr_assert_eq(decode(s, 0, 5), 0);
    n_past = 6;
    cr_expect_eq(gr_self_extend(s, &se, &n_past), GR_E_INVALID);
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), 4);
    n_past = 5;
    cr_expect_eq(gr_self_extend(s, &se, &n_past), 0, "%s", gr_error());
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), n_past - 1);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* Switched off it asks nothing of a model; switched on it is refused before any text is there. */
Test(failure, self_extend_where_positions_stay)
{
    static const char *const archs[] = {"gpt2", "gemma3", "mamba", "jamba", "dream"};
    for (unsigned i = 0; i < GR_COUNT(archs); i++) {
        struct gr_model *m = model(archs[i]);
        struct gr_session_params p = gr_session_params_default();
        p.n_ctx = 1024, p.n_threads = 1, p.n_ubatch = 32;
        struct gr_session *s = tiny_session(m, &p);
        struct gr_self_extend off = {.n = 1, .w = 512}, on = {.n = 2, .w = 16};
        int32_t n_past = 0;
        bool keeps = !m->hp.no_cache;
        cr_expect_eq(gr_self_extend(s, &off, &n_past), 0, "%s: %s", archs[i], gr_error());
        if (keeps)
            cr_expect_eq(gr_self_extend(s, &on, &n_past), GR_E_UNSUPPORTED, "%s", archs[i]);
        cr_assert_eq(decode(s, 0, 20), 0, "%s: %s", archs[i], gr_error());
        n_past = 20;
        cr_expect_eq(gr_self_extend(s, &off, &n_past), 0, "%s: %s", archs[i], gr_error());
        cr_expect_eq(n_past, 20);
        cr_expect_eq(gr_kv_seq_pos_max(s, 0), keeps ? 19 : -1);
        gr_session_close(&s);
        gr_model_close(&m);
    }
}

/* Sessions that the sizes allow can be opened, and the other way round. */
Test(failure, more_states_than_are_kept)
{
    struct gr_model *m = model("mamba");
    struct gr_session_params p = gr_session_params_default();
    struct gr_session_size size;
    struct gr_session *s;
    p.n_ctx = 256, p.n_threads = 1;
    for (p.n_rollback = 4095; p.n_rollback <= 4096; p.n_rollback++) {
        int rc = p.n_rollback > 4095 ? GR_E_INVALID : 0;
        cr_expect_eq(gr_session_size(m, &p, &size), rc, "%s", gr_error());
        cr_expect_eq(gr_session_open(&s, m, &p), rc, "%s", gr_error());
        gr_session_close(&s);
    }
    gr_model_close(&m);
}

/* A neighbour window that no text leaves is attention as it always is. */
Test(failure, the_largest_neighbour_window)
{
    struct gr_model *m = model("llama");
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.type_k = p.type_v = "f32", p.n_seq_max = 2;
    p.self_extend_n = 2, p.self_extend_w = INT32_MAX - 1;
    struct gr_session *a = tiny_session(m, &p), *b = session(m, 256);
    cr_assert_eq(decode(a, 0, 30), 0, "%s", gr_error());
    cr_assert_eq(decode(b, 0, 30), 0, "%s", gr_error());
    cr_expect_leq(tiny_nmse(tiny_row(b, -1), tiny_row(a, -1), N_VOCAB), 1e-10);
    gr_session_close(&a);
    gr_session_close(&b);
    gr_model_close(&m);
}

Test(failure, a_full_cache)
{
    struct gr_model *m = model("llama");
    struct gr_session *a = session(m, 256), *b = session(m, 256);
    cr_assert_eq(decode(a, 0, 250), 0);
    cr_assert_eq(decode(b, 0, 250), 0);
    cr_expect_eq(decode(a, 250, 7), GR_E_KV_FULL);
    cr_expect_eq(gr_kv_used(a), 250);
    cr_expect_null(tiny_row(a, 0));
    cr_assert_eq(decode(a, 250, 6), 0, "%s", gr_error());
    cr_assert_eq(decode(b, 250, 6), 0, "%s", gr_error());
    for (int r = 0; r < 6; r++)
        cr_expect_eq(memcmp(tiny_row(a, r), tiny_row(b, r), N_VOCAB * sizeof(float)), 0);
    gr_session_close(&a);
    gr_session_close(&b);
    gr_model_close(&m);
}

/* More shapes than plans are kept, in random order, in an arena that grows from the smallest: all
 * rows are those of one batch. */
Test(failure, more_shapes_than_plans)
{
    static const char *const arch[] = {"qwen2", "gemma3", "bloom"};
    static float want[LONG * N_VOCAB];
    for (int i = 0; i < 3; i++) {
        struct gr_model *m = model(arch[i]);
        struct gr_session *a = session(m, 300), *b = session(m, 300);
        struct gr_rng rng = gr_rng_new((uint64_t)i);
        cr_assert_eq(gr_session_n_ctx(a), 512);
        cr_assert_eq(decode(b, 0, LONG), 0);
        for (int r = 0; r < LONG; r++)
            memcpy(want + r * N_VOCAB, tiny_row(b, r), N_VOCAB * sizeof *want);
        for (int round = 0; round < 2; round++) {
            gr_kv_clear(a);
            for (int at = 0, n; at < LONG; at += n) {
                int8_t some[LONG];
                n = 1 + (int)gr_rng_below(&rng, at < 20 ? 2 : 24);
                n = GR_MIN(n, LONG - at);
                for (int k = 0; k < n; k++)
                    some[k] = gr_rng_below(&rng, 3) == 0;
                struct gr_batch part = {.n_tok = n, .token = id + at, .logits = some};
                cr_assert_eq(gr_decode(a, &part), 0, "%s", gr_error());
                for (int k = 0; k < n; k++) {
                    const float *got = tiny_row(a, k);
                    cr_assert_eq(got != NULL, some[k]);
                    if (got)
                        cr_assert(tiny_nmse(want + (at + k) * N_VOCAB, got, N_VOCAB) < 1e-9,
                                  "%s: token %d", arch[i], at + k);
                }
            }
        }
        gr_session_close(&a);
        gr_session_close(&b);
        gr_model_close(&m);
    }
}
