/* SAMPLE: gr/sample.h specifies the draw. */
#include "gr/sample.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/ref/ref.h"

static int higher_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Returns the first rank; 0 when a logit is NaN. */
static uint64_t first_of(const float *x, int64_t n)
{
    uint64_t first = 0;
    bool nan = false;
    for (int64_t i = 0; i < n; i++) {
        nan |= x[i] != x[i];
        first = GR_MAX(first, gr_sample_rank(x[i], (int32_t)i));
    }
    return nan ? 0 : first;
}

/* Returns the rank of the last entry kept by top_k and top_p; r is scratch [n]. */
static uint64_t last_of(const struct gr_sample_row *h, const float *x, int64_t n, float best,
                        uint64_t *r)
{
    int64_t kept = h->top_k > 0 && h->top_k < n ? h->top_k : n, last = kept - 1;
    uint64_t all = 0, sum = 0;
    if (kept == n && !(h->top_p < 1))
        return 0;
    for (int64_t i = 0; i < n; i++)
        r[i] = gr_sample_rank(x[i], (int32_t)i);
    qsort(r, (size_t)n, sizeof *r, higher_first);
    if (!(h->top_p < 1))
        return r[last];
    for (int64_t i = 0; i < kept; i++)
        all += gr_sample_weight(x[gr_sample_id(r[i])], best, 1);
    for (last = 0; last < kept; last++) {
        sum += gr_sample_weight(x[gr_sample_id(r[last])], best, 1);
        if (sum >= gr_sample_part(h->top_p, all))
            break;
    }
    return r[last];
}

/* Writes the logits of a row after its edits and its mask to y. */
static void edit(const struct gr_args_sample *a, const struct gr_sample_row *h, const float *x,
                 float *y)
{
    const uint32_t *mask = h->mask ? gr_ten_row(&a->masks, 0, h->mask - 1) : NULL;
    int64_t n = a->logits.cols;
    memcpy(y, x, (size_t)n * sizeof *x);
    for (int32_t i = 0; i < h->n_edit; i++) {
        struct gr_sample_edit e = *(struct gr_sample_edit *)gr_ten_row(&a->edits, 0, h->edit + i);
        y[e.id] = gr_sample_edited(x[e.id], h, e);
    }
    for (int64_t i = 0; mask && i < n; i++)
        if (!gr_sample_allowed(mask, (int32_t)i))
            y[i] = -INFINITY;
}

/* raw: a row of logits; x: the same after its edits. */
static int32_t pick(const struct gr_sample_row *h, const float *raw, const float *x, int64_t n,
                    uint64_t *scratch)
{
    uint64_t all = first_of(raw, n), first = first_of(x, n), sum = 0;
    int32_t best = gr_sample_id(first);
    if (!all)
        return GR_SAMPLE_NAN;
    if (x[best] == -INFINITY)
        return raw[gr_sample_id(all)] == -INFINITY ? GR_SAMPLE_NONE : GR_SAMPLE_EXCLUDED;
    if (!(h->temp > 0))
        return best;
    uint64_t last = last_of(h, x, n, x[best], scratch);
    uint64_t least = h->min_p > 0 ? gr_sample_part(h->min_p, GR_SAMPLE_ONE) : 0;
    for (int64_t i = 0; i < n; i++) {
        bool keep = gr_sample_rank(x[i], (int32_t)i) >= last &&
                    (!least || gr_sample_weight(x[i], x[best], 1) >= least);
        sum += scratch[i] = keep ? gr_sample_weight(x[i], x[best], h->temp) : 0;
    }
    uint64_t target = gr_sample_target(gr_sample_random(h), sum);
    int32_t id = 0;
    while (target >= scratch[id])
        target -= scratch[id++];
    return id;
}

static void sample(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_sample *a = &node->a.sample;
    struct gr_cpu_share s = gr_cpu_share(a->logits.rows, 1, w);
    int32_t *ids = gr_ten_row(&a->ids, 0, 0);
    uint64_t *scratch = w->local;
    float *y = (float *)(scratch + a->logits.cols);
    for (int64_t i = s.lo; i < s.hi; i++) {
        const struct gr_sample_row *h = gr_ten_row(&a->rows, 0, i);
        const float *x = gr_cpu_f32(&a->logits, i);
        edit(a, h, x, y);
        ids[i] = pick(h, x, y, a->logits.cols, scratch);
    }
}

static struct gr_cpu_need sample_need(const struct gr_node *node)
{
    return (struct gr_cpu_need){0, (size_t)node->a.sample.logits.cols *
                                       (sizeof(uint64_t) + sizeof(float))};
}

const struct gr_cpu_impl gr_ref_sample = {sample, sample_need, NULL};
