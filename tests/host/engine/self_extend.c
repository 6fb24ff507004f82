/* Self-Extend on cells: the published traces, number by number, and the log lines byte by byte. */
#include "engine/self_extend.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/log.h"
#include "base/rng.h"
#include "gr/status.h"

static char text[1 << 16]; /* output of a sink that prints each line and a newline */

static void sink(enum gr_log_level level, const char *line, void *user)
{
    (void)user;
    cr_assert_eq(level, GR_LOG_DEBUG);
    cr_assert_lt(strlen(text) + strlen(line) + 2, sizeof text);
    strcat(strcat(text, line), "\n");
}

static struct gr_kv *cache(uint32_t n_cell)
{
    struct gr_kv *kv;
    cr_assert_eq(gr_kv_new(&kv,
                           &(struct gr_kv_params){
                               .n_cell = n_cell, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 256}),
                 0);
    text[0] = 0;
    gr_log_set(sink, NULL);
    return kv;
}

/* Stores n tokens of sequence 0 from *n_past on. */
static void decode(struct gr_kv *kv, int32_t n, int32_t *n_past)
{
    static int32_t pos[2048], cells[2048];
    static int32_t zero[2048], one[2048], tok[2048];
    for (int32_t i = 0; i < n; i++)
        pos[i] = (*n_past)++, one[i] = 1, tok[i] = i;
    struct gr_full_batch b = {
        .n_tok = n, .pos = pos, .row = pos, .col = pos, .n_seq = one, .seq = zero, .seq_at = zero};
    struct gr_ubatch ub = {&b, tok, n, 0, 0};
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0, "%s", gr_error());
    gr_kv_place(kv, &ub, cells);
    gr_kv_commit(kv);
}

/* Positions [lo, hi) of sequence 0 += or /= by. */
static void move(struct gr_kv *kv, enum gr_kv_op_kind kind, int32_t lo, int32_t hi, int32_t by)
{
    struct gr_kv_op op = {kind, 0, 0, lo, hi, by};
    struct gr_kv_moves moves;
    cr_assert_eq(gr_kv_can(kv, &op), 0, "%s", gr_error());
    gr_kv_do(kv, &op, &moves);
    cr_assert_eq(moves.n, 0);
}

/* Self-Extend on a session's caches that are these cells. */
static int step(struct gr_kv *kv, struct gr_self_extend *se, int32_t *n_past)
{
    struct gr_cache c = {.n_seq_max = 1, .kv = {kv}};
    return gr_self_extend_cells(&c, 0, se, n_past);
}

static void expect_cell(const struct gr_kv *kv, uint32_t i, int32_t pos, int32_t delta)
{
    struct gr_cell c = gr_kv_cell(kv, i);
    cr_assert(c.pos == pos && c.delta == delta, "cell %u: (%d, %d) expected, (%d, %d) found", i,
              pos, delta, c.pos, c.delta);
}

static void expect_cells(const struct gr_kv *kv, uint32_t first, size_t n, const int32_t want[][2])
{
    for (uint32_t i = 0; i < n; i++)
        expect_cell(kv, first + i, want[i][0], want[i][1]);
}
#define EXPECT(kv, first, ...)                                                                     \
    expect_cells(kv, first, sizeof((const int32_t[][2]){__VA_ARGS__}) / sizeof(int32_t[2]),        \
                 (const int32_t[][2]){__VA_ARGS__})

static void extend(struct gr_kv *kv, struct gr_self_extend *se, int32_t *n_past)
{
    cr_assert_eq(step(kv, se, n_past), 0, "%s", gr_error());
    cr_assert_eq(gr_kv_check(kv), 0, "%s", gr_error());
}

Test(self_extend, five_tokens_two_rounds)
{
    struct gr_kv *kv = cache(256);
    struct gr_self_extend se = {2, 4, 0};
    int32_t n_past = 0;
    decode(kv, 5, &n_past);
    cr_assert(gr_kv_n_used(kv) == 5 && n_past == 5);
    EXPECT(kv, 0, {0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {-1, 0});

    extend(kv, &se, &n_past);
    EXPECT(kv, 0, {0, 0}, {0, -1}, {1, -1}, {1, -2}, {2, -2});
    cr_assert(n_past == 3 && se.i == 2 && gr_kv_has_shift(kv) && gr_kv_n_used(kv) == 5);
    cr_assert_str_eq(text, "shift: [     0,      5] +      0 -> [     0,      5]\n"
                           "div:   [     0,      4] /      2 -> [     0,      2]\n"
                           "shift: [     4,      5] +     -2 -> [     2,      3]\n"
                           "\nn_past_old = 5, n_past = 3, ga_i = 2\n\n");

    gr_kv_shifted(kv);
    cr_assert(!gr_kv_has_shift(kv));
    decode(kv, 3, &n_past);
    cr_assert_eq(n_past, 6);
    EXPECT(kv, 0, {0, 0}, {0, 0}, {1, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {-1, 0});
    text[0] = 0;
    extend(kv, &se, &n_past);
    EXPECT(kv, 0, {0, 0}, {0, 0}, {1, 0}, {1, 0}, {2, 0}, {2, -1}, {3, -1}, {3, -2}, {-1, 0});
    cr_assert(n_past == 4 && se.i == 4);
    cr_assert_str_eq(text, "shift: [     2,      6] +      2 -> [     4,      8]\n"
                           "div:   [     4,      8] /      2 -> [     2,      4]\n"
                           "shift: [     8,      8] +     -4 -> [     4,      4]\n"
                           "\nn_past_old = 6, n_past = 4, ga_i = 4\n\n");
    gr_kv_free(&kv);
}

/* The same two rounds, statement by statement. */
Test(self_extend, five_tokens_by_hand)
{
    struct gr_kv *kv = cache(256);
    int32_t n_past = 0;
    decode(kv, 5, &n_past);
    move(kv, GR_KV_ADD, 0, 5, 0);
    cr_assert(!gr_kv_has_shift(kv) && gr_kv_head(kv, 0) == 5, "adding 0 touches nothing");
    move(kv, GR_KV_DIV, 0, 4, 2);
    EXPECT(kv, 0, {0, 0}, {0, -1}, {1, -1}, {1, -2}, {4, 0});
    move(kv, GR_KV_ADD, 4, 5, -2);
    EXPECT(kv, 0, {0, 0}, {0, -1}, {1, -1}, {1, -2}, {2, -2});
    gr_kv_shifted(kv);
    n_past = 3;
    decode(kv, 3, &n_past);
    move(kv, GR_KV_ADD, 2, 6, 2);
    EXPECT(kv, 4, {4, 2}, {5, 2}, {6, 2}, {7, 2});
    move(kv, GR_KV_DIV, 4, 8, 2);
    EXPECT(kv, 4, {2, 0}, {2, -1}, {3, -1}, {3, -2});
    move(kv, GR_KV_ADD, 8, 8, -4);
    EXPECT(kv, 4, {2, 0}, {2, -1}, {3, -1}, {3, -2});
    gr_kv_free(&kv);
}

Test(self_extend, one_window_of_2048)
{
    struct gr_kv *kv = cache(2048);
    struct gr_self_extend se = {2, 2048, 0};
    int32_t n_past = 0;
    decode(kv, 2048, &n_past);
    extend(kv, &se, &n_past);
    cr_assert_str_eq(text, "shift: [     0,   2048] +      0 -> [     0,   2048]\n"
                           "div:   [     0,   2048] /      2 -> [     0,   1024]\n"
                           "shift: [  2048,   2048] +  -1024 -> [  1024,   1024]\n"
                           "\nn_past_old = 2048, n_past = 1024, ga_i = 1024\n\n");
    EXPECT(kv, 0, {0, 0}, {0, -1}, {1, -1}, {1, -2}, {2, -2}, {2, -3});
    EXPECT(kv, 2044, {1022, -1022}, {1022, -1023}, {1023, -1023}, {1023, -1024});
    gr_kv_free(&kv);

    kv = cache(2048), n_past = 0;
    se = (struct gr_self_extend){4, 2048, 0};
    decode(kv, 2048, &n_past);
    extend(kv, &se, &n_past);
    cr_assert_str_eq(text, "shift: [     0,   2048] +      0 -> [     0,   2048]\n"
                           "div:   [     0,   2048] /      4 -> [     0,    512]\n"
                           "shift: [  2048,   2048] +  -1536 -> [   512,    512]\n"
                           "\nn_past_old = 2048, n_past = 512, ga_i = 512\n\n");
    EXPECT(kv, 0, {0, 0}, {0, -1}, {0, -2}, {0, -3}, {1, -3}, {1, -4}, {1, -5}, {1, -6});
    gr_kv_free(&kv);
}

Test(self_extend, two_windows_of_1024)
{
    struct gr_kv *kv = cache(2048), *once = cache(2048);
    struct gr_self_extend se = {2, 1024, 0}, wide = {2, 2048, 0};
    int32_t n_past = 0, n_once = 0;
    decode(once, 2048, &n_once);
    extend(once, &wide, &n_once);
    decode(kv, 2048, &n_past);
    text[0] = 0;
    extend(kv, &se, &n_past);
    cr_assert_str_eq(text, "shift: [     0,   2048] +      0 -> [     0,   2048]\n"
                           "div:   [     0,   1024] /      2 -> [     0,    512]\n"
                           "shift: [  1024,   2048] +   -512 -> [   512,   1536]\n"
                           "\nn_past_old = 2048, n_past = 1536, ga_i = 512\n\n"
                           "shift: [   512,   1536] +    512 -> [  1024,   2048]\n"
                           "div:   [  1024,   2048] /      2 -> [   512,   1024]\n"
                           "shift: [  2048,   2048] +  -1024 -> [  1024,   1024]\n"
                           "\nn_past_old = 1536, n_past = 1024, ga_i = 1024\n\n");
    cr_assert(n_past == 1024 && se.i == 1024);
    EXPECT(kv, 1024, {512, -512}, {512, -513}, {513, -513}, {513, -514}, {514, -514}, {514, -515});
    for (uint32_t i = 0; i < 2048; i++)
        expect_cell(kv, i, gr_kv_cell(once, i).pos, gr_kv_cell(once, i).delta);
    gr_kv_free(&kv), gr_kv_free(&once);

    kv = cache(2048), n_past = 0; /* between the division and the last move of the first window */
    decode(kv, 2048, &n_past);
    move(kv, GR_KV_DIV, 0, 1024, 2);
    EXPECT(kv, 1022, {511, -511}, {511, -512}, {1024, 0});
    gr_kv_free(&kv);
}

/* Factor 4, window 256 on 2048 tokens: the first window's states, then where it all ends. */
Test(self_extend, windows_of_256)
{
    struct gr_kv *kv = cache(2048);
    int32_t n_past = 0;
    decode(kv, 2048, &n_past);
    move(kv, GR_KV_DIV, 0, 256, 4);
    EXPECT(kv, 255, {63, -192}, {256, 0});
    cr_assert_eq(gr_kv_cell(kv, 255).pos - gr_kv_cell(kv, 255).delta, 255, "where it was before");
    move(kv, GR_KV_ADD, 256, 2048, -192);
    EXPECT(kv, 255, {63, -192}, {64, -192});
    expect_cell(kv, 2047, 1855, -192);
    move(kv, GR_KV_ADD, 64, 1856, 192);
    expect_cell(kv, 256, 256, 0);
    gr_kv_free(&kv);

    kv = cache(2048), n_past = 0;
    struct gr_self_extend se = {4, 256, 0};
    decode(kv, 2048, &n_past);
    extend(kv, &se, &n_past);
    cr_assert_not_null(strstr(text, "\nn_past_old = 2048, n_past = 1856, ga_i = 64\n\n"
                                    "shift: [    64,   1856] +    192 -> [   256,   2048]\n"
                                    "div:   [   256,    512] /      4 -> [    64,    128]\n"
                                    "shift: [   512,   2048] +   -384 -> [   128,   1664]\n"));
    cr_assert(n_past == 512 && se.i == 512);
    for (uint32_t i = 0; i < 2048; i++)
        expect_cell(kv, i, (int32_t)i / 4, (int32_t)i / 4 - (int32_t)i);
    gr_kv_free(&kv);
}

Test(self_extend, prompt_of_7037_in_chunks)
{
    static const int32_t chunks[] = {2048, 2048, 2048, 893};
    struct gr_kv *kv = cache(8192);
    struct gr_self_extend se = {4, 256, 0};
    int32_t n_past = 0;
    for (int i = 0; i < 4; i++) {
        extend(kv, &se, &n_past);
        gr_kv_shifted(kv);
        decode(kv, chunks[i], &n_past);
    }
    extend(kv, &se, &n_past);
    cr_assert(n_past == 1853 && se.i == 1728, "%d %d", n_past, se.i);
    cr_assert_eq(gr_kv_n_used(kv), 7037, "positions are merged, cells are not");
    for (uint32_t i = 1; i < 7037; i++) {
        int32_t step = gr_kv_cell(kv, i).pos - gr_kv_cell(kv, i - 1).pos;
        cr_assert(step == 0 || step == 1, "cell %u", i);
    }
    cr_assert_eq(gr_kv_cells_pos_max(kv, 0), n_past - 1);
    gr_kv_free(&kv);
}

/* The position of token t after any number of rounds: t / n inside merged windows, in steps of 1
 * after them. */
Test(self_extend, property)
{
    struct gr_rng r = gr_rng_new(7);
    for (int round = 0; round < 60; round++) {
        struct gr_self_extend se = {1 + (int32_t)gr_rng_below(&r, 8), 0, 0};
        se.w = se.n * (1 + (int32_t)gr_rng_below(&r, 20));
        struct gr_kv *kv = cache(1024);
        int32_t n_past = 0, n_tok = 0;
        while (n_tok < 900) {
            int32_t n = 1 + (int32_t)gr_rng_below(&r, 90);
            extend(kv, &se, &n_past);
            text[0] = 0;
            decode(kv, n, &n_past);
            n_tok += n;
        }
        extend(kv, &se, &n_past);
        int32_t merged = se.n > 1 ? se.i * se.n : 0;
        cr_assert_eq(n_past, merged / se.n + n_tok - merged);
        for (int32_t t = 0; t < n_tok; t++)
            cr_assert_eq(gr_kv_cell(kv, (uint32_t)t).pos,
                         t < merged ? t / se.n : merged / se.n + t - merged);
        gr_kv_free(&kv);
    }
}

/* Tokens that fit without leaving positions 0 .. T - 1: the exact capacity against a count, one
 * token at a time. */
Test(self_extend, capacity)
{
    static const int32_t cases[][4] = {{2048, 2, 2048, 3072}, {4096, 4, 256, 15808}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t t = cases[i][0], g = cases[i][1], w = cases[i][2], n_past = 0, n_tok = 0;
        struct gr_self_extend se = {g, w, 0};
        struct gr_kv *kv = cache(1);
        for (;; n_tok++, n_past++, text[0] = 0) {
            extend(kv, &se, &n_past);
            if (n_past >= t)
                break;
        }
        cr_assert_eq(n_tok, cases[i][3], "%d", n_tok);
        gr_kv_free(&kv);
    }
}

Test(self_extend, refuses)
{
    static const struct gr_self_extend bad[] = {
        {3, 2048, 0}, {0, 512, 0}, {-1, 512, 0},        {2, 0, 0}, {2, -4, 0},
        {2, 4, -1},   {4, 2, 0},   {INT32_MAX, 512, 0}, {2, 3, 0}, {8, INT32_MIN, 0}};
    struct gr_kv *kv = cache(64);
    int32_t n_past = 0;
    decode(kv, 20, &n_past);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct gr_self_extend se = bad[i];
        cr_assert_eq(step(kv, &se, &n_past), GR_E_INVALID, "%zu", i);
        cr_assert(se.i == bad[i].i && n_past == 20 && !gr_kv_has_shift(kv) && !text[0]);
    }
    struct gr_self_extend se = bad[0];
    step(kv, &se, &n_past);
    cr_assert_str_eq(
        gr_error(),
        "Self-Extend: a window that is a multiple of the group factor expected, window 2048 "
        "and factor 3 found");
    se = (struct gr_self_extend){1, 512, 0};
    n_past = 2000;
    cr_assert(step(kv, &se, &n_past) == 0 && se.i == 0 && n_past == 2000 && !text[0], "1 is off");
    se = (struct gr_self_extend){1 << 20, 1 << 20, 1 << 20}; /* positions would pass 2^31 */
    n_past = 1 << 22;
    cr_assert_eq(step(kv, &se, &n_past), GR_E_INVALID);
    cr_assert(se.i == 1 << 20 && n_past == 1 << 22 && !text[0]);
    gr_kv_free(&kv);
}
