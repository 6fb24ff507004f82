/* Error of a result. Products and attention are judged by f64 arithmetic on the numbers that the
 * stored blocks stand for, at places that are drawn; others by the CPU's own result. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/rng.h"
#include "gr/status.h"
#include "ops/bench.h"
#include "quant/planes.h"
#include "quant/quant.h"

enum { N_JUDGED = 64 };

struct sums {
    double wrong, all; /* squares */
};

static void add(struct sums *s, double got, double want)
{
    s->wrong += (got - want) * (got - want);
    s->all += want * want;
}

static void *taken(size_t n, size_t bytes)
{
    void *p = gr_calloc(n, bytes);
    if (!p)
        bench_die(gr_error());
    return p;
}

/* The device's tensor, on the host. */
static void *fetched(struct bench *k, const struct gr_ten *t)
{
    size_t bytes = (size_t)(t->batch * t->rows * t->row_bytes);
    void *p = taken(bytes, 1);
    if (k->device->api->download(k->device, p, t->data, bytes))
        bench_die(gr_error());
    return p;
}

static bool all_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static struct sums judge_matmul(const struct gr_args_matmul *a, const float *y)
{
    struct sums s = {0, 0};
    struct gr_rng rng = gr_rng_new(11);
    const int64_t n_in = a->w.cols, n_tok = a->x.rows;
    float *w = taken((size_t)n_in, sizeof *w);
    for (int i = 0; i < N_JUDGED; i++) {
        int64_t o = (int64_t)gr_rng_below(&rng, (uint32_t)a->w.rows);
        gr_quant_find(a->w.dtype)->dequantize(gr_ten_row(&a->w, 0, o), w, (size_t)n_in);
        for (int64_t t = 0; t < n_tok; t += GR_MAX(1, n_tok / N_JUDGED)) {
            const float *x = gr_ten_row(&a->x, 0, t);
            double want = 0;
            for (int64_t c = 0; c < n_in; c++)
                want += (double)x[c] * (double)w[c];
            add(&s, (double)y[t * a->w.rows + o], (double)a->scale * want);
        }
    }
    gr_free(w);
    return s;
}

/* Columns [first, first + n) of a row of t as numbers. */
static void columns_of(const struct gr_ten *t, const char *row, int64_t first, int64_t n,
                       float *out)
{
    if (t->planes)
        gr_planes_load(t->dtype, t->cols, row, first, n, out);
    else
        gr_quant_find(t->dtype)->dequantize(row + gr_row_bytes(t->dtype, (uint64_t)first), out,
                                            (size_t)n);
}

/* Head h of row r of K or V. */
static void head_of(const struct gr_ten *t, int64_t r, int64_t h, int64_t d, float *out)
{
    columns_of(t, gr_ten_row(t, 0, r), h * d, d, out);
}

/* The exact output of token t and head h, [d]; p is scratch [items]. */
static void attend(const struct gr_args_attn *a, int64_t t, int64_t h, double *p, float *x,
                   double *want)
{
    const int32_t *span = gr_ten_row(&a->span, 0, t), *list = a->list.data;
    const float *q = (const float *)gr_ten_row(&a->q, 0, t) + h * a->d_k;
    const int64_t of = h / (a->n_head / a->n_head_kv);
    double most = -INFINITY, sum = 0;
    memset(want, 0, (size_t)a->d_v * sizeof *want);
    for (int32_t i = span[0]; i < span[2]; i++) {
        double dot = 0;
        head_of(&a->k, list[i], of, a->d_k, x);
        for (int64_t c = 0; c < a->d_k; c++)
            dot += (double)q[c] * (double)x[c];
        p[i - span[0]] = dot * (double)a->scale;
        most = GR_MAX(most, p[i - span[0]]);
    }
    for (int32_t i = span[0]; i < span[2]; i++) {
        double e = exp(p[i - span[0]] - most);
        head_of(&a->v, list[i], of, a->d_v, x);
        for (int64_t c = 0; c < a->d_v; c++)
            want[c] += e * (double)x[c];
        sum += e;
    }
    for (int64_t c = 0; c < a->d_v && sum > 0; c++)
        want[c] /= sum;
}

static struct sums judge_attn(const struct gr_args_attn *a, const float *y)
{
    struct sums s = {0, 0};
    struct gr_rng rng = gr_rng_new(13);
    double *p = taken((size_t)a->list.cols, sizeof *p), *want = taken((size_t)a->d_v, sizeof *want);
    float *x = taken((size_t)GR_MAX(a->d_k, a->d_v), sizeof *x);
    for (int i = 0; i < N_JUDGED; i++) {
        int64_t t = (int64_t)gr_rng_below(&rng, (uint32_t)a->q.rows);
        int64_t h = (int64_t)gr_rng_below(&rng, (uint32_t)a->n_head);
        attend(a, t, h, p, x, want);
        for (int64_t c = 0; c < a->d_v; c++)
            add(&s, (double)y[(t * a->n_head + h) * a->d_v + c], want[c]);
    }
    gr_free(p), gr_free(want), gr_free(x);
    return s;
}

/* Rows of what both wrote, as numbers. */
static void compare(const struct gr_ten *want, const void *got, struct sums *s)
{
    size_t n = (size_t)want->cols;
    float *x = taken(n, sizeof *x), *y = taken(n, sizeof *y);
    for (int64_t r = 0; r < want->batch * want->rows; r++) {
        const char *mine = (const char *)got + r * want->row_bytes;
        if (want->dtype == GR_I32) {
            for (size_t i = 0; i < n; i++)
                add(s, ((const int32_t *)(const void *)mine)[i],
                    ((const int32_t *)gr_ten_row(want, 0, r))[i]);
            continue;
        }
        columns_of(want, mine, 0, want->cols, x);
        columns_of(want, gr_ten_row(want, 0, r), 0, want->cols, y);
        for (size_t i = 0; i < n; i++)
            add(s, (double)x[i], (double)y[i]);
    }
    gr_free(x), gr_free(y);
}

static void run_on_cpu(struct bench *k, const struct gr_node *node)
{
    struct gr_segment s = {node, 1, NULL, 0};
    void *exec;
    if (k->b->api->segment_new(k->b, &s, &exec) || k->b->api->segment_run(k->b, exec, NULL, NULL))
        bench_die(gr_error());
    k->b->api->segment_free(k->b, &exec);
}

static struct sums judge_all(struct bench *k, struct gr_node host, struct gr_node device)
{
    struct sums s = {0, 0};
    run_on_cpu(k, &host);
    for (const struct gr_operand *o = gr_op_info(host.op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(&host, o);
        if (o->role == GR_ROLE_IN || !gr_ten_is(t))
            continue;
        void *got = fetched(k, gr_node_ten(&device, o));
        compare(t, got, &s);
        gr_free(got);
    }
    return s;
}

double bench_error(struct bench *k, const struct gr_node *host, const struct gr_node *device)
{
    const bool is_product = host->op == GR_OP_MATMUL, is_attn = host->op == GR_OP_ATTN;
    struct sums s;
    if (is_product || is_attn) {
        const struct gr_ten *y = is_product ? &device->a.matmul.y : &device->a.attn.y;
        float *got = fetched(k, y);
        s = is_product ? judge_matmul(&host->a.matmul, got) : judge_attn(&host->a.attn, got);
        s.wrong = all_finite(got, y->rows * y->cols) ? s.wrong : (double)NAN;
        gr_free(got);
    } else {
        s = judge_all(k, *host, *device);
    }
    return sqrt(s.wrong / (s.all > 0 ? s.all : 1));
}
