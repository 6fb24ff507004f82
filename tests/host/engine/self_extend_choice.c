/* Self-Extend's arithmetic, against what a count of positions and of distances says. */
#include <criterion/criterion.h>

#include "base/rng.h"
#include "engine/self_extend.h"
#include "gr/status.h"

/* The counters of the classic mode, one window merged. */
static void merge(struct gr_self_extend *se, int64_t *n_past)
{
    *n_past -= se->w / se->n * (se->n - 1);
    se->i += se->w / se->n;
}

/* Tokens, one at a time, until the next one would be at position t. */
static int64_t count_classic(int32_t t, int32_t n, int32_t w)
{
    struct gr_self_extend se = {n, w, 0};
    int64_t n_past = 0, n_tok = 0;
    for (;; n_tok++, n_past++) {
        while (n > 1 && n_past >= se.i + se.w)
            merge(&se, &n_past);
        if (n_past >= t)
            return n_tok;
    }
}

static int32_t distance(int32_t i, int32_t j, int32_t n, int32_t w)
{
    return i - j < w ? i - j : i / n + w - w / n - j / n;
}

/* Tokens until the next one would be t or more away from any. */
static int64_t count_window(int32_t t, int32_t n, int32_t w)
{
    for (int32_t i = 0;; i++)
        for (int32_t j = 0; j <= i; j++)
            if (distance(i, j, n, w) >= t)
                return i;
}

static int64_t count(enum gr_self_extend_mode mode, int32_t t, int32_t n, int32_t w)
{
    return mode == GR_SELF_EXTEND_CLASSIC ? count_classic(t, n, w) : count_window(t, n, w);
}

Test(self_extend_choice, published_capacities)
{
    cr_expect_eq(gr_self_extend_capacity(GR_SELF_EXTEND_CLASSIC, 2048, 2, 2048), 3072);
    cr_expect_eq(gr_self_extend_capacity(GR_SELF_EXTEND_CLASSIC, 4096, 4, 256), 15808);
    cr_expect_eq(gr_self_extend_capacity(GR_SELF_EXTEND_CLASSIC, 4096, 3, 2048), 0);
    cr_expect_eq(count_classic(2048, 2, 2048), 3072);
    cr_expect_eq(count_classic(4096, 4, 256), 15808);
    cr_expect_eq(gr_self_extend_capacity(GR_SELF_EXTEND_WINDOW, 256, 4, 128), 640);
    cr_expect_eq(gr_self_extend_capacity(GR_SELF_EXTEND_WINDOW, 256, 8, 128), 1152);
}

Test(self_extend_choice, capacity_is_the_count)
{
    static const int32_t bad[][2] = {{0, 4}, {-1, 4}, {2, 0}, {2, -4}, {2, 3}, {4, 2}};
    for (enum gr_self_extend_mode mode = GR_SELF_EXTEND_CLASSIC; mode <= GR_SELF_EXTEND_WINDOW;
         mode++) {
        for (int32_t t = 1; t <= 24; t++)
            for (int32_t n = 1; n <= 6; n++)
                for (int32_t w = n; w <= 30; w += n) {
                    int64_t got = gr_self_extend_capacity(mode, t, n, w);
                    if (w > t && mode == GR_SELF_EXTEND_WINDOW) /* distances below w are exact */
                        cr_assert_eq(got, t);
                    else
                        cr_assert_eq(got, count(mode, t, n, w), "mode %d, %d, -gan %d -gaw %d: %ld",
                                     (int)mode, t, n, w, (long)got);
                    cr_assert(w > t || got >= (int64_t)(t - w) * n + w, "the guaranteed minimum");
                }
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
            cr_expect_eq(gr_self_extend_capacity(mode, 100, bad[k][0], bad[k][1]), 0, "%zu", k);
        cr_expect_eq(gr_self_extend_capacity(mode, INT32_MAX, 1 << 20, 1 << 20),
                     mode == GR_SELF_EXTEND_WINDOW
                         ? (int64_t)(INT32_MAX - (1 << 20)) * (1 << 20) + (1 << 20)
                         : ((int64_t)INT32_MAX - (1 << 20) + 1) * (1 << 20) + (1 << 20) - 1);
    }
}

/* The factor is the smallest one, the window the largest it divides. */
Test(self_extend_choice, choice_is_the_first_that_reaches)
{
    struct gr_rng r = gr_rng_new(3);
    for (int round = 0; round < 1500; round++) {
        enum gr_self_extend_mode mode = round % 2 ? GR_SELF_EXTEND_WINDOW : GR_SELF_EXTEND_CLASSIC;
        int32_t t = 1 + (int32_t)gr_rng_below(&r, 64), most = 1 + (int32_t)gr_rng_below(&r, 40);
        int32_t n_ctx = 1 + (int32_t)gr_rng_below(&r, 500), limit = most < t / 4 ? most : t / 4;
        int32_t want = n_ctx <= t ? 1 : 2, n = -7, w = most;
        while (want > 1 && want <= limit && count(mode, t, want, limit / want * want) < n_ctx)
            want++;
        int rc = gr_self_extend_choose(mode, t, n_ctx, &n, &w);
        if (want > 1 && want > limit) {
            cr_assert(rc == GR_E_INVALID && n == -7 && w == most, "%d %d %d", t, most, n_ctx);
            continue;
        }
        cr_assert(rc == 0 && n == want, "%d tokens of %d, window up to %d: -gan %d, %d expected",
                  n_ctx, t, most, n, want);
        cr_assert_eq(w, n == 1 ? most : limit / n * n);
    }
}

/* Pieces of any size up to the room there is never go beyond the trained range before the capacity
 * is reached, and merge what single tokens merge. */
Test(self_extend_choice, pieces_stay_within_the_trained_range)
{
    struct gr_rng r = gr_rng_new(5);
    for (int round = 0; round < 300; round++) {
        struct gr_self_extend se = {2 + (int32_t)gr_rng_below(&r, 6), 0, 0};
        se.w = se.n * (1 + (int32_t)gr_rng_below(&r, 8));
        int32_t t = se.w + (int32_t)gr_rng_below(&r, 60);
        int64_t capacity = gr_self_extend_capacity(GR_SELF_EXTEND_CLASSIC, t, se.n, se.w),
                n_past = 0;
        for (int64_t n_tok = 0, n; n_tok < capacity; n_tok += n, n_past += n) {
            while (n_past >= se.i + se.w)
                merge(&se, &n_past);
            int32_t room = gr_self_extend_remaining(&se, (int32_t)n_past);
            cr_assert(room >= 1 && room <= se.w);
            n = 1 + gr_rng_below(&r, (uint32_t)room);
            n = n < capacity - n_tok ? n : capacity - n_tok;
            cr_assert(n_past + n <= t, "position %ld with %d trained", (long)(n_past + n - 1), t);
        }
    }
    cr_expect_eq(gr_self_extend_remaining(&(struct gr_self_extend){1, 512, 0}, 5), INT32_MAX);
    cr_expect_eq(gr_self_extend_remaining(&(struct gr_self_extend){2, 4, 0}, 9), 1, "never none");
}
