// ROUTE by warps, a token each: gates of its experts, the best of them, their weights.
//
// Gates and ranks lie in shared memory as f64, so that near ties between experts fall as they do
// on the CPU. Entries taken or closed have a NaN for a rank, which compares with nothing; an
// input of NaN ranks as -inf. Lane i alone writes entries i, i + 32, ..
#pragma once

#include "kernels/block.cuh"

struct best {
    double x;
    int32_t id;
};

GR_DEV bool beats(struct best a, struct best b)
{
    return a.x > b.x || (a.x == b.x && a.id < b.id);
}

GR_DEV struct best none()
{
    return {-__longlong_as_double(0x7ff0000000000000), INT32_MAX};
}

// An integer that orders as x does; both zeros have the same.
GR_DEV uint64_t ordinal(double x)
{
    uint64_t u = (uint64_t)__double_as_longlong(x + 0.0);
    return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}

// Index of the largest of x[0 .. n), the lowest of equals: the upper half of the ordinal, the
// lower one, and the index, a reduction of the warp each.
GR_DEV int32_t best_of(const double *x, int32_t n)
{
    struct best b = none();
    for (int32_t i = threadIdx.x % WARP; i < n; i += WARP) {
        struct best c = {x[i], i};
        b = beats(c, b) ? c : b;
    }
    uint64_t key = ordinal(b.x);
    uint32_t high = (uint32_t)(key >> 32), low = (uint32_t)key;
    bool is = high == __reduce_max_sync(~0u, high);
    uint32_t top = __reduce_max_sync(~0u, is ? low : 0);
    is = is && low == top;
    return (int32_t)__reduce_min_sync(~0u, is ? (uint32_t)b.id : UINT32_MAX);
}

GR_DEV void strike(double *x, int32_t i)
{
    if (i % WARP == (int32_t)threadIdx.x % WARP)
        x[i] = __longlong_as_double(0x7ff8000000000000);
}

GR_DEV double rank_of(double x) // never NaN
{
    return x == x ? x : none().x;
}

GR_DEV double warp_sum(double x)
{
    for (int o = WARP / 2; o > 0; o /= 2)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

// exp(x - max) / sum over n values, in place.
GR_DEV void softmax(double *x, int32_t n)
{
    int32_t lane = threadIdx.x % WARP;
    double max = none().x, sum = 0;
    for (int32_t i = lane; i < n; i += WARP)
        max = fmax(max, x[i]);
    for (int o = WARP / 2; o > 0; o /= 2)
        max = fmax(max, __shfl_xor_sync(~0u, max, o));
    for (int32_t i = lane; i < n; i += WARP)
        sum += x[i] = exp(x[i] - max);
    sum = warp_sum(sum);
    for (int32_t i = lane; i < n; i += WARP)
        x[i] /= sum;
}

// Closes the experts of all but the best groups; a group's rank is the sum of its two best.
GR_DEV void keep_groups(double *rank, double *group, int32_t n, int32_t n_group, int32_t n_keep)
{
    int32_t lane = threadIdx.x % WARP, size = n / n_group;
    __syncwarp();
    for (int32_t g = lane; g < n_group; g += WARP) {
        double first = none().x, second = first;
        for (int32_t i = g * size; i < (g + 1) * size; i++) {
            second = fmax(second, fmin(first, rank[i]));
            first = fmax(first, rank[i]);
        }
        group[g] = rank_of(first + (size > 1 ? second : 0));
    }
    for (int32_t k = 0; k < n_keep; k++)
        strike(group, best_of(group, n_group));
    __syncwarp();
    for (int32_t i = lane; i < n; i += WARP)
        if (group[i / size] == group[i / size]) // not taken
            strike(rank, i);
}

// The weights of the chosen ones, whose gates are p [n].
GR_DEV void weigh(const struct gr_args_route &a, double *p, int32_t n, float *out)
{
    int32_t lane = threadIdx.x % WARP;
    double sum = 0;
    if (a.gate == GR_GATE_SOFTMAX_TOP)
        softmax(p, n);
    for (int32_t j = lane; j < n; j += WARP)
        sum += p[j];
    sum = warp_sum(sum);
    for (int32_t j = lane; j < n; j += WARP)
        out[j] = (float)((a.normalise && sum > 0 ? p[j] / sum : p[j]) * (double)a.scale);
}

// Token t by this warp; space [3][n_expert] is its own: gates, ranks, and groups, then chosen
// gates.
GR_DEV void route_token(const struct gr_args_route &a, uint32_t t, double *space)
{
    int32_t n = (int32_t)a.logits.cols, n_used = (int32_t)a.ids.cols, lane = threadIdx.x % WARP;
    double *gate = space, *rank = gate + n, *spare = rank + n;
    const float *x = row_of<float>(a.logits, t), *bias = row_of<float>(a.bias, 0);
    for (int32_t e = lane; e < n; e += WARP)
        gate[e] = a.gate == GR_GATE_SIGMOID ? 1 / (1 + exp(-(double)x[e])) : (double)x[e];
    if (a.gate == GR_GATE_SOFTMAX)
        softmax(gate, n);
    for (int32_t e = lane; e < n; e += WARP)
        rank[e] = rank_of(gate[e] + (gr_ten_is(&a.bias) ? (double)bias[e] : 0));
    if (a.n_group > 1)
        keep_groups(rank, spare, n, a.n_group, a.n_group_used);
    __syncwarp();
    for (int32_t j = 0; j < n_used; j++) {
        int32_t id = best_of(rank, n);
        strike(rank, id);
        id = a.per > 1 ? id / a.per : id;
        if (lane == j % WARP) {
            spare[j] = gate[id];
            row_of<int32_t>(a.ids, t)[j] = id;
        }
    }
    weigh(a, spare, n_used, row_of<float>(a.weights, t));
}
