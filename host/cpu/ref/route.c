/* ROUTE: experts of each token, and their weights. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

/* exp(x - max) / sum over n values, in place. */
static void softmax(double *x, int64_t n)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = fmax(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += x[i] = exp(x[i] - max);
    for (int64_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* Returns the first of the largest values among those with `open` (at least one); any of them when
 * they are NaN. */
static int64_t best_of(const double *x, const bool *open, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (open[i] && (best < 0 || x[i] > x[best]))
            best = i;
    return best;
}

/* Clears `open` for the experts of all but the n_keep best groups; a group's rank is the sum of its
 * two best. */
static void keep_groups(const double *rank, bool *open, int64_t n_expert, int64_t n_group,
                        int64_t n_keep, double *sum)
{
    int64_t size = n_expert / n_group;
    bool *group_open = (bool *)(sum + n_group);
    for (int64_t g = 0; g < n_group; g++) {
        bool *in = open + g * size;
        int64_t first = best_of(rank + g * size, in, size);
        in[first] = false;
        int64_t second = size > 1 ? best_of(rank + g * size, in, size) : first;
        in[first] = true;
        sum[g] = rank[g * size + first] + (size > 1 ? rank[g * size + second] : 0);
        group_open[g] = true;
    }
    memset(open, 0, (size_t)n_expert * sizeof *open);
    for (int64_t k = 0; k < n_keep; k++) {
        int64_t g = best_of(sum, group_open, n_group);
        group_open[g] = false;
        for (int64_t i = 0; i < size; i++)
            open[g * size + i] = true;
    }
}

static void gate_of(const struct gr_args_route *a, int64_t t, double *gate)
{
    const float *x = gr_cpu_f32(&a->logits, t);
    for (int64_t e = 0; e < a->logits.cols; e++)
        gate[e] = a->gate == GR_GATE_SIGMOID ? 1 / (1 + exp(-(double)x[e])) : (double)x[e];
    if (a->gate == GR_GATE_SOFTMAX)
        softmax(gate, a->logits.cols);
}

static void weights_of(const struct gr_args_route *a, const int32_t *id, const double *gate,
                       double *p, float *out)
{
    double sum = 0;
    for (int64_t j = 0; j < a->ids.cols; j++)
        p[j] = gate[id[j]];
    if (a->gate == GR_GATE_SOFTMAX_TOP)
        softmax(p, a->ids.cols);
    for (int64_t j = 0; j < a->ids.cols; j++)
        sum += p[j];
    for (int64_t j = 0; j < a->ids.cols; j++)
        out[j] = (float)((a->normalise && sum > 0 ? p[j] / sum : p[j]) * (double)a->scale);
}

static void route(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_route *a = &node->a.route;
    int64_t n = a->logits.cols;
    double *gate = w->local, *rank = gate + n,
           *spare = rank + n; /* spare: n values, then n flags */
    bool *open = (bool *)(spare + 2 * n);
    struct gr_cpu_share s = gr_cpu_share(a->logits.rows, 1, w);
    for (int64_t t = s.lo; t < s.hi; t++) {
        int32_t *id = gr_ten_row(&a->ids, 0, t);
        gate_of(a, t, gate);
        for (int64_t e = 0; e < n; e++) {
            rank[e] = gate[e] + (gr_ten_is(&a->bias) ? (double)gr_cpu_f32(&a->bias, 0)[e] : 0);
            open[e] = true;
        }
        if (a->n_group > 1)
            keep_groups(rank, open, n, a->n_group, a->n_group_used, spare);
        for (int64_t j = 0; j < a->ids.cols; j++) {
            id[j] = (int32_t)best_of(rank, open, n);
            open[id[j]] = false;
        }
        for (int64_t j = 0; j < a->ids.cols && a->per > 1; j++)
            id[j] /= a->per;
        weights_of(a, id, gate, spare, gr_cpu_f32(&a->weights, t));
    }
}

static struct gr_cpu_need route_need(const struct gr_node *node)
{
    size_t n = (size_t)node->a.route.logits.cols;
    return (struct gr_cpu_need){0, n * (4 * sizeof(double) + sizeof(bool))};
}

const struct gr_cpu_impl gr_ref_route = {route, route_need, NULL};
