/* Ranges of layers: shares as in llama.cpp, and the best split beside all that there are. */
#include "model/layer_split.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gr/status.h"

/* ---- shares ---- */

/* Results of llama.cpp: layers, -ngl, shares, then the number of layers (the output counted) of the
 * CPU and of each device. */
static const struct {
    int32_t n_layer, n_gpu;
    float share[4];
    int n_device, want[5];
} cases[] = {
    {32, 10, {1}, 1, {23, 10}},
    {42, 15, {1}, 1, {28, 15}},
    {32, 6, {1}, 1, {27, 6}},
    {32, 0, {1}, 1, {33, 0}},
    {32, 99, {1}, 1, {0, 33}},
    {1, 1, {1}, 1, {1, 1}},
    {32, 99, {1, 1}, 2, {0, 17, 16}},
    {32, 99, {3, 1}, 2, {0, 25, 8}},
    {32, 20, {1, 1}, 2, {13, 10, 10}},
    {80, 99, {1, 1, 1, 1}, 4, {0, 21, 20, 20, 20}},
    {80, 60, {2, 1, 1}, 3, {21, 30, 15, 15}},
    {36, 37, {0, 1, 1}, 3, {0, 0, 19, 18}},
    {32, 33, {7, 1}, 2, {0, 29, 4}},
};

Test(split, C16_as_in_llama)
{
    for (size_t i = 0; i < GR_COUNT(cases); i++) {
        int32_t cut[5], n = cases[i].n_device;
        gr_split_shares(cases[i].n_layer, cases[i].n_gpu, cases[i].share, n, cut);
        cr_expect_eq(cut[0], cases[i].want[0], "case %zu: %d on the CPU", i, cut[0]);
        for (int k = 0; k < n; k++)
            cr_expect_eq(cut[k + 1] - cut[k], cases[i].want[k + 1], "case %zu, device %d: %d", i, k,
                         cut[k + 1] - cut[k]);
        cr_expect_eq(cut[n], cases[i].n_layer + 1);
    }
}

/* The device of one layer, put the way llama.cpp does: ends of the shares, each divided by the sum,
 * and the first of them that is larger than the layer's place; -1 = the CPU. */
static int device_of(int il, int n_layer, int n_gpu, const float *share, int n_device)
{
    float ends[GR_MAX_RANK_DEVICE], total = 0.0f;
    int start = n_layer + 1 - n_gpu > 0 ? n_layer + 1 - n_gpu : 0;
    int act = n_gpu < n_layer + 1 ? n_gpu : n_layer + 1;
    for (int i = 0; i < n_device; i++) {
        total += share[i];
        ends[i] = total;
    }
    for (int i = 0; i < n_device; i++)
        ends[i] /= total;
    if (il < start)
        return -1;
    float place = (float)(il - start) / (float)act;
    int lo = 0, hi = n_device; /* the first end in [lo, hi) beyond it */
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (place < ends[mid])
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static int32_t below(struct gr_rng *r, int32_t n)
{
    return (int32_t)gr_rng_below(r, (uint32_t)n);
}

Test(split, every_layer_is_where_llama_has_it)
{
    struct gr_rng r = gr_rng_new(21);
    for (int trial = 0; trial < 20000; trial++) {
        float share[GR_MAX_RANK_DEVICE], sum = 0;
        int32_t cut[GR_MAX_RANK_DEVICE + 1], n_layer = 1 + below(&r, trial % 10 ? 90 : 512);
        int32_t n_gpu = below(&r, n_layer + 5), n_device = 1 + below(&r, trial % 10 ? 8 : 64);
        for (int k = 0; k < n_device; k++)
            sum += share[k] =
                below(&r, 4) ? (float)below(&r, 1 << 20) / (float)(1 + below(&r, 999)) : 0;
        if (sum <= 0)
            continue;
        gr_split_shares(n_layer, n_gpu, share, n_device, cut);
        cr_assert(cut[n_device] == n_layer + 1);
        for (int32_t il = 0; il <= n_layer; il++) {
            int k = device_of(il, n_layer, n_gpu, share, n_device);
            cr_assert(k < 0 ? il < cut[0] : il >= cut[k] && il < cut[k + 1],
                      "trial %d: layer %d of %d, -ngl %d: device %d", trial, il, n_layer, n_gpu, k);
        }
    }
}

static int parse(const char *text, float *share)
{
    int32_t n;
    int rc = gr_split_parse(text, share, &n);
    return rc ? -rc : n;
}

Test(split, shares_are_read)
{
    float s[GR_MAX_RANK_DEVICE];
    char many[3 * GR_MAX_RANK_DEVICE + 3] = "1";
    cr_expect(parse("3,1", s) == 2 && s[0] == 3 && s[1] == 1);
    cr_expect(parse("24.5/16", s) == 2 && s[0] == 24.5f && s[1] == 16);
    cr_expect(parse("0,1/.25", s) == 3 && s[0] == 0 && s[1] == 1 && s[2] == 0.25f);
    cr_expect(parse("1", s) == 1 && parse("1,", s) == 1);
    static const char *const bad[] = {"",     ",",   "0",   "0,0", "-1,2", "1,,2", "x",    "3 1",
                                      "1,2x", "nan", "inf", "1e3", "0x1",  ".",    "1..2", "1.2.3"};
    for (size_t i = 0; i < GR_COUNT(bad); i++) {
        cr_expect_eq(parse(bad[i], s), -GR_E_INVALID, "'%s'", bad[i]);
        cr_expect(strstr(gr_error(), "tensor split: "), "%s", gr_error());
    }
    for (int i = 1; i < GR_MAX_RANK_DEVICE; i++)
        strcat(many, ",1");
    cr_expect_eq(parse(many, s), GR_MAX_RANK_DEVICE);
    strcat(many, ",1");
    cr_expect_eq(parse(many, s), -GR_E_INVALID);
}

/* ---- the best ---- */

enum { MOST_DEVICE = 5, MOST_LAYER = 9 };

struct world {
    struct gr_split_problem p;
    int32_t bytes[MOST_LAYER], work[MOST_DEVICE], room[MOST_DEVICE], moved[MOST_LAYER + 1];
    bool may[MOST_DEVICE][MOST_LAYER + 1];
};

static double used(void *user, int32_t k, int32_t lo, int32_t hi)
{
    const struct world *w = user;
    int32_t sum = w->work[k];
    for (int32_t il = lo; il < hi; il++)
        sum += w->bytes[il];
    return w->room[k] ? (double)sum / w->room[k] : INFINITY;
}

static bool may_cut(void *user, int32_t k, int32_t il)
{
    const struct world *w = user;
    return w->may[k][il];
}

static uint64_t moved(void *user, int32_t k, int32_t il)
{
    const struct world *w = user;
    (void)k;
    return (uint64_t)w->moved[il];
}

static struct world make(struct gr_rng *r, int trial)
{
    struct world w = {.p = {.used = used, .may_cut = may_cut, .moved = moved}};
    w.p.n_device = 1 + below(r, MOST_DEVICE), w.p.hi = 1 + below(r, MOST_LAYER);
    w.p.lo = trial % 3 ? 0 : below(r, w.p.hi);
    int32_t range = trial % 2 ? 3 : 1000; /* many ties, or few */
    for (int i = 0; i < MOST_LAYER; i++)
        w.bytes[i] = below(r, range) + trial % 2;
    for (int i = 0; i <= MOST_LAYER; i++)
        w.moved[i] = i == 0 || i == w.p.hi ? 0 : below(r, 3);
    for (int k = 0; k < MOST_DEVICE; k++) {
        w.work[k] = below(r, 4) * range / 4, w.room[k] = below(r, 6) * range * 2;
        for (int i = 0; i <= MOST_LAYER; i++)
            w.may[k][i] = i == w.p.lo || i == w.p.hi || below(r, trial % 5 ? 8 : 2);
    }
    return w;
}

struct answer {
    bool any;
    double most;
    uint64_t bytes;
    int32_t cut[MOST_DEVICE + 1];
};

static void consider(const struct world *w, const int32_t *cut, struct answer *best)
{
    struct answer a = {.any = true};
    int n = w->p.n_device;
    memcpy(a.cut, cut, sizeof a.cut);
    for (int k = 0; k < n; k++) {
        if (cut[k] < cut[k + 1])
            a.most = fmax(a.most, used((void *)(uintptr_t)w, k, cut[k], cut[k + 1]));
        if (k && !w->may[k][cut[k]])
            return;
        a.bytes += k ? (uint64_t)w->moved[cut[k]] : 0;
    }
    int later = 0;
    for (int k = 1; k < n && !later; k++)
        later = cut[k] - best->cut[k];
    if (!best->any || a.most < best->most ||
        (a.most == best->most && (a.bytes < best->bytes || (a.bytes == best->bytes && later > 0))))
        *best = a;
}

/* Every way to cut, one after the other. */
static struct answer brute_force(const struct world *w)
{
    struct answer best = {0};
    int32_t cut[MOST_DEVICE + 1];
    int n = w->p.n_device, k = n;
    for (int i = 0; i <= n; i++)
        cut[i] = i < n ? w->p.lo : w->p.hi;
    while (k > 0) {
        consider(w, cut, &best);
        for (k = n - 1; k > 0 && cut[k] == w->p.hi;)
            k--;
        cut[k] += k > 0;
        for (int i = k + 1; k > 0 && i < n; i++)
            cut[i] = cut[k];
    }
    return best;
}

Test(split, the_best_is_the_best_of_all)
{
    struct gr_rng r = gr_rng_new(22);
    int n_infeasible = 0, n_infinite = 0;
    for (int trial = 0; trial < 20000; trial++) {
        struct world w = make(&r, trial);
        struct answer want = brute_force(&w);
        int32_t cut[MOST_DEVICE + 1];
        double most;
        w.p.user = &w;
        int rc = gr_split_best(&w.p, cut, &most);
        cr_assert_eq(rc, want.any ? 0 : GR_E_INVALID, "trial %d", trial);
        n_infeasible += rc != 0;
        if (rc)
            continue;
        n_infinite += isinf(most);
        cr_assert(most == want.most, "trial %d: %g, %g expected", trial, most, want.most);
        for (int k = 0; k <= w.p.n_device; k++)
            cr_assert_eq(cut[k], want.cut[k], "trial %d: cut %d at %d, %d expected", trial, k,
                         cut[k], want.cut[k]);
    }
    cr_expect(n_infinite > 100, "%d", n_infinite);
    cr_expect_eq(n_infeasible, 0, "every device may begin at the end");
}
