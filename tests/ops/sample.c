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
#include "ops/ops.h"

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

/* Pearson's chi-square of 3,000 draws from one row of 12; the results are `want`, as is checked. A
 * right sampler exceeds 47.5 with 11 degrees of freedom once in a million. */
Test(sample, draws_follow_the_distribution)
{
    enum { N = 12, N_OUT = 3000 };
    const struct gr_sample_row h = {.temp = 1.25f, .top_p = 1};
    struct ops_case c;
    struct entry e[N];
    double count[N] = {0}, chi = 0;
    ops_case_init(&c, GR_OP_SAMPLE, 71, "3000 draws");
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
