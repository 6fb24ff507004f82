/* SAMPLE against the same chain in f64, sorted and summed; what it draws against the sampler of the
 * library, and against the distribution. */
#include "gr/sample.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gpurun.h"
#include "gr/status.h"
#include "ops/ops.h"
#include "sample/sampler.h"

struct entry {
    double x, p;
    int32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->x != y->x ? (x->x < y->x ? 1 : -1) : x->id - y->id;
}

static int by_id(const void *a, const void *b)
{
    return ((const struct entry *)a)->id - ((const struct entry *)b)->id;
}

/* Probabilities at a temperature of n entries, the first of them the largest. */
static void softmax(struct entry *e, int64_t n, double temp)
{
    double sum = 0, best = e[0].x;
    for (int64_t i = 0; i < n; i++)
        sum += e[i].p = e[i].x == best ? 1 : exp((e[i].x - best) / temp);
    for (int64_t i = 0; i < n; i++)
        e[i].p /= sum;
}

/* Number of entries that the filters leave of n sorted ones. */
static int64_t filter(const struct gr_sample_row *h, struct entry *e, int64_t n)
{
    double sum = 0;
    int64_t kept = h->top_k > 0 ? GR_MIN(n, h->top_k) : n;
    softmax(e, kept, 1);
    if (h->top_p < 1) {
        int64_t m = 0;
        while (m < kept && (m == 0 || sum < (double)h->top_p))
            sum += e[m++].p;
        kept = m;
    }
    while (h->min_p > 0 && e[kept - 1].p < (double)h->min_p * e[0].p)
        kept--;
    return kept;
}

static double uniform(const struct gr_sample_row *h)
{
    struct gr_rng rng = gr_rng_new((uint64_t)h->seed[1] << 32 | h->seed[0]);
    for (uint32_t i = 0; i < h->counter[0]; i++)
        (void)gr_rng_double(&rng);
    return gr_rng_double(&rng);
}

/* The token, and its probability; e is scratch [n]. */
static int32_t want_of(const struct gr_sample_row *h, const double *x, int64_t n, struct entry *e)
{
    double u = uniform(h);
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            return GR_SAMPLE_NAN;
        e[i] = (struct entry){x[i], 0, (int32_t)i};
    }
    qsort(e, (size_t)n, sizeof *e, by_rank);
    if (e[0].x == -INFINITY)
        return GR_SAMPLE_NONE;
    if (h->temp <= 0)
        return e[0].id;
    int64_t kept = filter(h, e, n), i = 0;
    softmax(e, kept, (double)h->temp);
    qsort(e, (size_t)kept, sizeof *e, by_id);
    while (i + 1 < kept && (u -= e[i].p) >= 0)
        i++;
    return e[i].id;
}

/* n_out rows that are drawn as *h says, with counters and seeds of their own. */
static struct ops_out *sample_case(struct ops_case *c, const struct gr_sample_row *h,
                                   struct gr_ten logits, uint64_t seed)
{
    struct gr_args_sample *a = &c->node.a.sample;
    int64_t n_out = logits.rows, n = logits.cols;
    *a = (struct gr_args_sample){.logits = logits,
                                 .rows = ops_new(c, GR_I32, 1, n_out, GR_SAMPLE_WORDS),
                                 .ids = ops_new(c, GR_I32, 1, 1, n_out)};
    const double *x = ops_values(c, &logits);
    struct ops_out *o = ops_expect(c, &a->ids); /* tolerance 0 */
    struct entry *e = gr_calloc((size_t)n, sizeof *e);
    cr_assert_not_null(e);
    for (int64_t i = 0; i < n_out; i++) {
        struct gr_sample_row *row = gr_ten_row(&a->rows, 0, i);
        *row = *h;
        row->seed[0] = (uint32_t)seed, row->seed[1] = (uint32_t)(seed >> 32);
        row->counter[0] = (uint32_t)i, row->counter[1] = 0;
        o->want[i] = want_of(row, x + i * n, n, e);
    }
    gr_free(e);
    c->same_bits = true;
    return o;
}

static const struct gr_sample_row rows[] = {
    {.temp = 0},
    {.temp = 1, .top_p = 1},
    {.temp = 0.7f, .top_p = 1, .top_k = 1},
    {.temp = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 40},
    {.temp = 1.5f, .top_p = 0.5f},
    {.temp = 1, .top_p = 0},
    {.temp = 2, .top_p = 1, .min_p = 0.1f},
    {.temp = 1, .top_p = 0.999f, .top_k = 700},
    {.temp = 1e-3f, .top_p = 0.9f, .top_k = 5},
    {.temp = 1e6f, .top_p = 1, .min_p = 1},
    {.temp = 1.5f, .top_p = 0.9f, .top_k = 3000},
};

Test(sample, chains_and_sizes)
{
    static const int64_t sizes[] = {1, 2, 31, 33, 1000, 5003};
    for (size_t k = 0; k < GR_COUNT(rows); k++)
        for (size_t s = 0; s < GR_COUNT(sizes); s++)
            for (enum ops_data data = 0; data < OPS_N_DATA; data++) {
                struct ops_case c;
                ops_case_init(&c, GR_OP_SAMPLE, 31 + s, "chain %zu, %lld logits, data %d", k,
                              (long long)sizes[s], data);
                sample_case(&c, &rows[k], ops_random(&c, GR_F32, 1, 3, sizes[s], data), 7 + k);
                ops_check(&c);
                ops_case_fini(&c);
            }
}

/* The largest vocabulary: normal logits, and all equal (ties by id in every filter). */
Test(sample, many_logits)
{
    for (int data = OPS_NORMAL; data <= OPS_ZERO; data += OPS_ZERO - OPS_NORMAL)
        for (size_t k = 1; k < GR_COUNT(rows); k += 3) {
            struct ops_case c;
            ops_case_init(&c, GR_OP_SAMPLE, 41, "chain %zu, 2^18 logits, data %d", k, data);
            sample_case(&c, &rows[k], ops_random(&c, GR_F32, 1, 1, 1 << 18, (enum ops_data)data),
                        11);
            ops_check(&c);
            ops_case_fini(&c);
        }
}

static void set(struct gr_ten *t, int64_t row, int64_t lo, int64_t hi, float x)
{
    for (int64_t i = lo; i < hi; i++)
        ((float *)gr_ten_row(t, 0, row))[i] = x;
}

/* Where a device changes its way: as many equal logits as it lists, and one more, among the first
 * and behind 100 others; logits far apart, and hardly. */
Test(sample, ties_and_spreads)
{
    enum { N = 5003, LISTED = 2048 };
    static const size_t chain[] = {3, 4, 6, 10};
    for (size_t k = 0; k < GR_COUNT(chain); k++) {
        struct ops_case c;
        ops_case_init(&c, GR_OP_SAMPLE, 45, "chain %zu, ties", chain[k]);
        struct gr_ten t = ops_random(&c, GR_F32, 1, 6, N, OPS_NORMAL);
        set(&t, 0, 900, 900 + LISTED, 20);
        set(&t, 1, 900, 900 + LISTED + 1, 20);
        for (int64_t row = 2; row < 4; row++) {
            set(&t, row, 0, N, -9);
            set(&t, row, 900, 900 + LISTED - 100 + row - 2, 5);
            set(&t, row, 4000, 4100, 5.01f);
        }
        for (int64_t i = 0; i < N; i++) {
            ((float *)gr_ten_row(&t, 0, 4))[i] *= 300;
            ((float *)gr_ten_row(&t, 0, 5))[i] *= 1e-4f;
        }
        sample_case(&c, &rows[chain[k]], t, 13);
        ops_check(&c);
        ops_case_fini(&c);
    }
}

Test(sample, infinities_and_not_a_number)
{
    enum { N = 70 };
    for (size_t k = 0; k < GR_COUNT(rows); k++) {
        struct ops_case c;
        ops_case_init(&c, GR_OP_SAMPLE, 51, "chain %zu, infinities", k);
        struct gr_ten t = ops_random(&c, GR_F32, 1, 6, N, OPS_NORMAL);
        set(&t, 0, 0, N, -INFINITY);
        set(&t, 1, 0, N - 1, -INFINITY);
        set(&t, 2, N / 2, N, -INFINITY);
        set(&t, 3, 5, 6, INFINITY);
        set(&t, 3, 60, 64, INFINITY);
        set(&t, 4, N - 1, N, NAN);
        set(&t, 5, 3, 4, -0.0f);
        const struct ops_out *o = sample_case(&c, &rows[k], t, 3);
        cr_assert(o->want[0] == GR_SAMPLE_NONE && o->want[1] == N - 1 &&
                  o->want[4] == GR_SAMPLE_NAN);
        ops_check(&c);
        ops_case_fini(&c);
    }
}

/* Row i is draw i of a seed: what the library's sampler picks the i-th time. */
Test(sample, draws_what_the_sampler_draws)
{
    enum { N = 900, N_OUT = 100 };
    for (size_t k = 0; k < GR_COUNT(rows); k++) {
        struct gr_sampler_params p = gr_sampler_params_default();
        struct gr_sampler *s;
        struct ops_case c;
        ops_case_init(&c, GR_OP_SAMPLE, 61, "chain %zu beside the sampler", k);
        const struct ops_out *o =
            sample_case(&c, &rows[k], ops_random(&c, GR_F32, 1, N_OUT, N, OPS_NORMAL), 1ull << 40);
        p.temp = rows[k].temp, p.top_k = rows[k].top_k, p.top_p = rows[k].top_p;
        p.min_p = rows[k].min_p, p.seed = 1ull << 40, p.n_vocab = N;
        cr_assert_eq(gr_sampler_new(&s, &p), 0, "%s", gr_error());
        for (int64_t i = 0; i < N_OUT; i++) {
            int32_t id;
            cr_assert_eq(gr_sampler_pick(s, gr_ten_row(&c.node.a.sample.logits, 0, i), &id), 0);
            cr_assert_eq(id, (int32_t)o->want[i], "%s: draw %lld: %d, expected %g", c.label,
                         (long long)i, id, o->want[i]);
        }
        gr_sampler_free(&s);
        ops_check(&c);
        ops_case_fini(&c);
    }
}

enum { EDIT_ROWS = 12, EDITED_NAN = 10, EDITED_NONE = 11 };

/* A sampler with random bias and penalties that has accepted random tokens, and on odd rows a mask
 * [n]: of few tokens, or of none in row EDITED_NONE. */
static struct gr_sampler *edited_sampler(struct ops_case *c, const struct gr_sample_row *h,
                                         int32_t n, int row, uint32_t *mask)
{
    enum { N_BIAS = 30, MANY = 900, N_PAST = 150 }; /* more than a block has threads */
    static const float biases[] = {1, -2, 0.3f, 0, INFINITY, -INFINITY};
    struct gr_sampler_params p = gr_sampler_params_default();
    struct gr_logit_bias bias[MANY];
    struct gr_sampler *s;
    int n_bias = row == 6 ? MANY : row % 4 ? N_BIAS : 0;
    for (int i = 0; i < n_bias; i++)
        bias[i] = (struct gr_logit_bias){(int32_t)gr_rng_below(&c->rng, (uint32_t)n),
                                         biases[gr_rng_below(&c->rng, row % 3 ? 4 : 6)]};
    p.temp = h->temp, p.top_k = h->top_k, p.top_p = h->top_p, p.min_p = h->min_p;
    p.seed = 77 + (uint64_t)row, p.n_vocab = n, p.n_ctx = 120;
    p.logit_bias = bias, p.n_logit_bias = n_bias;
    p.penalty_last_n = row % 5 ? 100 : -1, p.penalty_repeat = row % 2 ? 1.3f : 0.9f;
    p.penalty_freq = row % 3 ? 0.2f : 0, p.penalty_present = row % 4 == 1 ? -0.7f : 0.4f;
    cr_assert_eq(gr_sampler_new(&s, &p), 0, "%s", gr_error());
    for (int i = 0; i < N_PAST; i++)
        cr_assert_eq(gr_sampler_accept(s, (int32_t)gr_rng_below(&c->rng, (uint32_t)GR_MIN(n, 60))),
                     0);
    for (int32_t i = 0; i < gr_sample_mask_words(n); i++)
        mask[i] = row == EDITED_NONE ? 0 : gr_rng_below(&c->rng, 1u << 31) & 0x41020805u;
    gr_sampler_set_mask(s, row % 2 ? mask : NULL);
    return s;
}

/* Rows with ties, -inf and one with a NaN, which change as a sampler's bias, penalties and mask
 * say: what the sampler picks. */
static void check_edits(const struct gr_sample_row *h, int32_t n)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_SAMPLE, 81 + (uint64_t)n, "edits, top-k %d, top-p %g, %d logits",
                  h->top_k, (double)h->top_p, n);
    struct gr_ten logits = ops_random(&c, GR_F32, 1, EDIT_ROWS, n, OPS_NORMAL);
    struct gr_args_sample *a = &c.node.a.sample;
    int32_t n_edit = 0;
    *a =
        (struct gr_args_sample){.logits = logits,
                                .rows = ops_new(&c, GR_I32, 1, EDIT_ROWS, GR_SAMPLE_WORDS),
                                .edits = ops_new(&c, GR_I32, 1, 2500, GR_SAMPLE_EDIT_WORDS),
                                .masks = ops_new(&c, GR_I32, 1, EDIT_ROWS, gr_sample_mask_words(n)),
                                .ids = ops_new(&c, GR_I32, 1, 1, EDIT_ROWS)};
    struct ops_out *o = ops_expect(&c, &a->ids);
    for (int row = 0; row < EDIT_ROWS; row++) {
        float *x = gr_ten_row(&logits, 0, row);
        for (int32_t i = 0; i < n; i++)
            x[i] = row % 3 == 1 ? rintf(2 * x[i]) : gr_rng_below(&c.rng, 9) ? x[i] : -INFINITY;
        x[n / 2] = row == EDITED_NAN ? NAN : x[n / 2];
        uint32_t *mask = gr_ten_row(&a->masks, 0, row);
        struct gr_sampler *s = edited_sampler(&c, h, n, row, mask);
        struct gr_sample_row *r = gr_ten_row(&a->rows, 0, row);
        const struct gr_sample_edit *e;
        *r = gr_sampler_next(s);
        gr_sampler_finish(s, false);
        r->edit = n_edit, r->n_edit = gr_sampler_edits(s, &e), r->mask = row % 2 ? 1 + row : 0;
        for (int32_t i = 0; i < r->n_edit; i++)
            *(struct gr_sample_edit *)gr_ten_row(&a->edits, 0, n_edit++) = e[i];
        int32_t id, rc = gr_sampler_pick(s, x, &id);
        cr_assert_eq(rc, row >= EDITED_NAN ? GR_E_CHECK : 0, "%s", gr_error());
        o->want[row] = row == EDITED_NAN    ? GR_SAMPLE_NAN
                       : row == EDITED_NONE ? GR_SAMPLE_EXCLUDED
                                            : id;
        gr_sampler_free(&s);
    }
    c.same_bits = true;
    ops_check(&c);
    ops_case_fini(&c);
}

Test(sample, edits_are_those_of_the_sampler)
{
    for (size_t k = 0; k < GR_COUNT(rows); k++) {
        check_edits(&rows[k], 67);
        check_edits(&rows[k], 4101); /* three slices, rows that are not aligned */
    }
}

/* Pearson's chi-square of 1,000 draws from one row of 12; the results are `want`, as is checked. A
 * right sampler exceeds 47.5 with 11 degrees of freedom once in a million. */
Test(sample, draws_follow_the_distribution)
{
    enum { N = 12, N_OUT = 1000 };
    const struct gr_sample_row h = {.temp = 1.25f, .top_p = 1};
    struct ops_case c;
    struct entry e[N];
    double count[N] = {0}, chi = 0;
    ops_case_init(&c, GR_OP_SAMPLE, 71, "1000 draws");
    struct gr_ten t = ops_random(&c, GR_F32, 1, N_OUT, N, OPS_NORMAL);
    for (int64_t i = 1; i < N_OUT; i++)
        memcpy(gr_ten_row(&t, 0, i), gr_ten_row(&t, 0, 0), N * sizeof(float));
    const struct ops_out *o = sample_case(&c, &h, t, 5);
    ops_check(&c);
    for (int64_t i = 0; i < N_OUT; i++)
        count[(int)o->want[i]]++;
    for (int i = 0; i < N; i++)
        e[i] = (struct entry){(double)((float *)t.data)[i], 0, i};
    qsort(e, N, sizeof *e, by_rank);
    softmax(e, N, (double)h.temp);
    for (int i = 0; i < N; i++) {
        double expected = e[i].p * N_OUT, off = count[e[i].id] - expected;
        chi += off * off / expected;
    }
    cr_assert(chi < 47.5, "chi-square %g", chi);
    ops_case_fini(&c);
}
