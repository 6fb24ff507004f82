/* One plan for the life of a batch shape: however many cells its texts have, whatever happens to
 * them meanwhile, and however many there is room for. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/session.h"
#include "engine/step.h"
#include "support/timed.h"
#include "support/tiny.h"

enum { N_SEQ = 3, PROMPT = 61, N_VOCAB = 96 };

/* ---- texts ---- */

struct life {
    char arch[16];
    int32_t n_seq, self_extend_n;
    bool pools;
    bool keeps_states; /* parts of a text cannot be changed */
};

static struct gr_session *begin(const struct life *c, int32_t n_gpu, struct gr_model **m)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){c->arch, strlen(c->arch)}));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_session *s;
    char path[256];
    timed_use(1, 0, n_gpu == 0);
    t.n_ctx = 4096;
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    mp.n_gpu_layers = n_gpu;
    cr_assert_eq(gr_model_open(m, path, &mp), 0, "%s: %s", c->arch, gr_error_message());
    unlink(path);
    sp.n_ctx = 4096, sp.n_seq_max = N_SEQ, sp.kv_unified = !c->pools;
    sp.n_threads = sp.n_threads_batch = 1;
    sp.self_extend_n = c->self_extend_n, sp.self_extend_w = c->self_extend_n ? 64 : 0;
    cr_assert_eq(gr_session_open(&s, *m, &sp), 0, "%s: %s", c->arch, gr_error_message());
    return s;
}

/* n more tokens of each of the texts [lo, hi); returns how many plans had to be made. What is
 * pending of moves has plans of its own. */
static int feed(struct gr_session *s, int32_t lo, int32_t hi, int32_t n)
{
    int32_t token[PROMPT], seq[PROMPT];
    int8_t logits[PROMPT] = {0};
    int32_t all = n * (hi - lo);
    for (int32_t i = 0; i < all; i++)
        token[i] = 1 + i % n * 7 % 90, seq[i] = lo + i / n, logits[i] = i % n == n - 1;
    struct gr_batch b = {.n_tok = all, .token = token, .seq = seq, .logits = logits};
    cr_assert_eq(gr_apply_shift(s), 0, "%s", gr_error_message());
    uint64_t before = s->plans.n_made;
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error_message());
    return (int)(s->plans.n_made - before);
}

/* A part of the first text goes and what is behind it moves up; the last one becomes the first. */
static void change(struct gr_session *s, const struct life *c, int round)
{
    int32_t end = gr_kv_seq_pos_max(s, 0);
    if (!c->keeps_states && round % 8 == 3) {
        cr_assert_eq(gr_kv_seq_rm(s, 0, end - 20, end - 10), 0, "%s", gr_error_message());
        cr_assert_eq(gr_kv_seq_add(s, 0, end - 10, -1, -10), 0, "%s", gr_error_message());
    }
    if (c->n_seq > 1 && round % 8 == 5) {
        cr_assert_eq(gr_kv_seq_rm(s, N_SEQ - 1, -1, -1), 0, "%s", gr_error_message());
        cr_assert_eq(gr_kv_seq_cp(s, 0, N_SEQ - 1, -1, -1), 0, "%s", gr_error_message());
    }
}

static void live(const struct life *c, int32_t n_gpu)
{
    struct gr_model *m;
    struct gr_session *s = begin(c, n_gpu, &m);
    int prompts = 0, tokens = 0;
    for (int round = 0; gr_kv_seq_pos_max(s, 0) < 3600 / c->n_seq; round++) {
        for (int32_t q = 0; q < c->n_seq; q++)
            prompts += feed(s, q, q + 1, PROMPT);
        tokens += feed(s, 0, c->n_seq, 1);
        tokens += feed(s, 0, c->n_seq, 1);
        change(s, c, round);
    }
    cr_expect_eq(prompts, 1, "%s x %d, %d: %d plans of a prompt", c->arch, c->n_seq, n_gpu,
                 prompts);
    cr_expect_eq(tokens, c->n_seq > 1, "%s x %d, %d: %d plans of a token each", c->arch, c->n_seq,
                 n_gpu, tokens); /* the one of a single token was there from the beginning */
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(life, one_plan_for_a_shape)
{
    static const struct life cases[] = {
        {"llama", 1, 0, false, false},     {"llama", N_SEQ, 0, false, false},
        {"llama", N_SEQ, 0, true, false},  {"llama", 1, 4, false, false},
        {"gemma3", 1, 0, false, true},     {"gemma3", N_SEQ, 0, false, true},
        {"bloom", N_SEQ, 0, false, false}, {"mamba2", N_SEQ, 0, false, true},
        {"falcon-h1", 1, 0, false, true},  {"falcon-h1", N_SEQ, 0, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        live(&cases[i], 99);
        if (i % 3 == 0)
            live(&cases[i], 0);
    }
}

/* The CPU computes: texts of 61, 732 and 1,159 tokens in sessions of 2,048 cells and of 16,384, by
 * one thread and by two. */
static void compute(const char *arch, uint32_t n_ctx, int32_t n_threads, float *out)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_session_params sp = gr_session_params_default();
    static const int n_prompt[N_SEQ] = {1, 12, 19};
    t.n_ctx = 16384;
    struct gr_model *m = tiny_open(&t);
    sp.n_ctx = n_ctx, sp.n_seq_max = N_SEQ, sp.n_threads = sp.n_threads_batch = n_threads;
    struct gr_session *s = tiny_session(m, &sp);
    for (int32_t q = 0; q < N_SEQ; q++)
        for (int i = 0; i < n_prompt[q]; i++)
            (void)feed(s, q, q + 1, PROMPT);
    (void)feed(s, 0, N_SEQ, 1);
    for (int32_t q = 0; q < N_SEQ; q++)
        memcpy(out + q * N_VOCAB, gr_logits(s, q), N_VOCAB * sizeof *out);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(life, the_same_bits_whatever_the_room)
{
    static const char *const arch[] = {"llama", "gemma3", "bloom", "falcon-h1"};
    static float want[N_SEQ * N_VOCAB], got[N_SEQ * N_VOCAB];
    for (size_t i = 0; i < sizeof arch / sizeof *arch; i++) {
        compute(arch[i], 2048, 1, want);
        compute(arch[i], 16384, 1, got);
        cr_expect_eq(memcmp(want, got, sizeof got), 0, "%s: more room", arch[i]);
        compute(arch[i], 2048, 2, got);
        cr_expect_eq(memcmp(want, got, sizeof got), 0, "%s: more threads", arch[i]);
    }
}

/* Texts that share cells list them once each: more than lists had room for, which is found out, and
 * then there is room. */
Test(life, shared_cells_may_need_more_room)
{
    struct gr_model *m;
    struct gr_session *s = begin(&(struct life){"llama", N_SEQ, 0, false, false}, 0, &m);
    for (int i = 0; i < 50; i++)
        (void)feed(s, 0, 1, PROMPT);
    cr_expect_eq(feed(s, 0, 1, PROMPT), 0);
    for (int32_t q = 1; q < N_SEQ; q++)
        cr_assert_eq(gr_kv_seq_cp(s, 0, q, -1, -1), 0, "%s", gr_error_message());
    cr_expect_eq(feed(s, 0, N_SEQ, 1), 1);
    cr_expect_eq(feed(s, 0, N_SEQ, 1), 0);
    cr_expect_eq(memcmp(gr_logits(s, 0), gr_logits(s, 1), N_VOCAB * sizeof(float)), 0);
    cr_expect_eq(memcmp(gr_logits(s, 0), gr_logits(s, 2), N_VOCAB * sizeof(float)), 0);
    cr_expect_eq(feed(s, 0, 1, PROMPT), 1, "the plan of a prompt was one with less room");
    cr_expect_eq(feed(s, 0, 1, PROMPT), 0);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* A batch that needs more room than there is memory for fails, and no other one. */
Test(life, room_that_is_not_had_is_not_missed)
{
    struct gr_model *m;
    struct gr_session *s = begin(&(struct life){"llama", N_SEQ, 0, false, false}, 0, &m);
    int32_t token[N_SEQ] = {1, 2, 3}, seq[N_SEQ] = {0, 1, 2};
    struct gr_batch all = {.n_tok = N_SEQ, .token = token, .seq = seq};
    int n_failed = 0;
    bool done = false;
    for (int i = 0; i < 50; i++)
        (void)feed(s, 0, 1, PROMPT);
    for (int32_t q = 1; q < N_SEQ; q++)
        cr_assert_eq(gr_kv_seq_cp(s, 0, q, -1, -1), 0, "%s", gr_error_message());
    for (uint64_t k = 1; !done; k++) {
        gr_alloc_fail_at(k, 0);
        int rc = gr_decode(s, &all);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_assert_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "%s", gr_error_message());
        cr_assert_eq(s->lists.room[GR_CACHE_FULL] == 0, rc != 0, "allocation %d", (int)k);
        n_failed += rc != 0;
    }
    cr_expect(n_failed > 10, "%d", n_failed);
    gr_session_close(&s);
    gr_model_close(&m);
}
