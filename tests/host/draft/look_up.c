/* Drafts from the text against a naive search, and their pace. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "draft/draft.h"

#define MOST 40

/* The last place where the text's end occurred before, as a definition; -1: none. */
static int naive(const int32_t *text, int n, int g)
{
    for (int end = n - 1; end >= g; end--) {
        int i = 0;
        while (i < g && text[end - 1 - i] == text[n - 1 - i])
            i++;
        if (i == g)
            return end;
    }
    return -1;
}

Test(look_up, equals_a_naive_search)
{
    struct gr_rng rng = gr_rng_new(4);
    int n_found = 0;
    for (int turn = 0; turn < 20000; turn++) {
        int32_t text[2 * MOST], draft[MOST];
        int n = (int)gr_rng_below(&rng, MOST), g = 1 + (int)gr_rng_below(&rng, 5);
        uint32_t letters = 1 + gr_rng_below(&rng, 4);
        int32_t most = 1 + (int32_t)gr_rng_below(&rng, MOST - 1);
        for (int i = 0; i < n; i++)
            text[i] = (int32_t)gr_rng_below(&rng, letters);
        int end = naive(text, n, g);
        int32_t got = gr_draft_look_up(text, (size_t)n, g, draft, most);
        cr_assert_eq(got, end < 0 ? 0 : most);
        for (int32_t i = 0; i < got; i++) { /* the text goes on as it did there */
            text[n + i] = text[end + i];
            cr_assert_eq(draft[i], text[n + i], "turn %d: token %d", turn, i);
        }
        n_found += got > 0;
    }
    cr_assert(n_found > 5000 && n_found < 19000, "%d", n_found);
}

/* Steps with a cost for each token of a batch: cheap batches lead to long drafts, dear ones to
 * pauses, and a text that becomes easy ends the pause. */
static double cost(struct gr_draft_pace *p, int n, double each, int accepted, int *n_token)
{
    double all = 0;
    *n_token = 0;
    for (int i = 0; i < n; i++) {
        int32_t most = gr_draft_pace_next(p), good = GR_MIN(most, accepted);
        double s = 1 + each * most;
        cr_assert(most >= 0 && most <= 16);
        gr_draft_pace_step(p, most > 0, most, good, s);
        all += s, *n_token += 1 + good;
    }
    return all / *n_token;
}

Test(pace, follows_what_is_accepted)
{
    struct gr_draft_pace p = {.n_max = 16, .adaptive = true};
    int n;
    double each = cost(&p, 300, 0.05, 99, &n);
    cr_expect(each < 0.15 && p.length == 16, "all accepted: %g of a step for a token", each);
    p = (struct gr_draft_pace){.n_max = 16, .adaptive = true};
    each = cost(&p, 300, 0.05, 2, &n);
    cr_expect(p.length <= 4 && each < 0.5, "two accepted: length %d, %g", p.length, each);
    p = (struct gr_draft_pace){.n_max = 16, .adaptive = true};
    each = cost(&p, 2000, 1, 0, &n);
    cr_expect_lt(each, 1.15, "dear and never accepted: %g", each);
    cr_expect_gt(p.pause, 500);
    each = cost(&p, 2000, 0.05, 99, &n);
    cr_expect(each < 0.6 && p.length == 16, "then easy: %g, length %d", each, p.length);
    p = (struct gr_draft_pace){.n_max = 5};
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(gr_draft_pace_next(&p), 5);
        gr_draft_pace_step(&p, true, 5, 0, 9);
    }
    p = (struct gr_draft_pace){.n_min = 9, .n_max = 16, .adaptive = true};
    for (int i = 0, n_long = 0; i < 30; i++) { /* never shorter than is of use */
        int32_t most = gr_draft_pace_next(&p);
        cr_assert(!most || most >= 9, "%d", most);
        n_long += most > 0;
        cr_assert(n_long > 0 || i < 5);
        gr_draft_pace_step(&p, most > 0, most, 1, 1);
    }
}

/* A draft model that proposes nothing costs time all the same. */
Test(pace, pauses_when_drafts_come_to_nothing)
{
    struct gr_draft_pace p = {.n_max = 16, .adaptive = true};
    int n_tried = 0;
    for (int i = 0; i < 1000; i++) {
        bool tries = gr_draft_pace_next(&p) > 0;
        gr_draft_pace_step(&p, tries, 0, 0, tries ? 1.5 : 1);
        n_tried += tries;
    }
    cr_expect(n_tried > 10 && n_tried < 50, "%d", n_tried);
    cr_expect(p.plain_s < 1.01, "%g", p.plain_s);
}
