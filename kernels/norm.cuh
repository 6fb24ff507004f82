// A group of columns of NORM (kernels/norm.cu), held in registers by a warp or a block.
#pragma once

#include "gr/kernel/packed_x.h"
#include "kernels/block.cuh"

enum { VECS = 8, NORM_WARPS = GR_PACKED_X_THREADS / WARP };

// A group: its number, its beginning, its weight, bias and residual.
struct group {
    const float *x, *w, *b, *res;
    float *y;
    uint32_t n;
};

GR_DEV struct group group_at(const struct gr_args_norm &a, uint32_t i)
{
    uint32_t n = (uint32_t)a.group, per_row = (uint32_t)a.x.cols / n;
    uint32_t t = i / per_row, g = i - t * per_row;
    struct group s = {row_of<float>(a.x, t) + g * n, 0, 0, 0, row_of<float>(a.y, t) + g * n, n};
    if (gr_ten_is(&a.w))
        s.w = row_of<float>(a.w, g % (uint32_t)a.w.rows);
    if (gr_ten_is(&a.b))
        s.b = row_of<float>(a.b, g % (uint32_t)a.b.rows);
    if (gr_ten_is(&a.res))
        s.res = row_of<float>(a.res, t) + g * n;
    return s;
}

// The mean as two floats.
GR_DEV struct exact_sum mean_of(struct exact_sum s, float n)
{
    float hi = s.hi / n;
    return {hi, (fmaf(-hi, n, s.hi) + s.lo) / n};
}

GR_DEV float factor_of(struct exact_sum squares, float n, float eps)
{
    return 1 / sqrtf((squares.hi + squares.lo) / n + eps);
}

template <int V> GR_DEV void finish(const struct group &g, uint32_t col, float *v, float f)
{
    float p[V];
    for (int i = 0; i < V; i++)
        v[i] *= f;
    if (g.w) {
        load<V>(g.w + col, p);
        for (int i = 0; i < V; i++)
            v[i] *= p[i];
    }
    if (g.b) {
        load<V>(g.b + col, p);
        for (int i = 0; i < V; i++)
            v[i] += p[i];
    }
    if (g.res) {
        load<V>(g.res + col, p);
        for (int i = 0; i < V; i++)
            v[i] += p[i];
    }
    store<V>(g.y + col, v);
}

// T threads (n_thread, where T = 0), of which this is number `me`, hold a group of up to 4 T VECS
// columns: a warp or the block.
template <int T>
GR_DEV void held(const struct gr_args_norm &a, const struct group &g, uint32_t me,
                 struct exact_sum (*slot)[NORM_WARPS], uint32_t n_thread = T)
{
    float v[VECS][4];
    struct exact_sum sum = {0, 0}, mean = {0, 0}, squares = {0, 0};
    bool layer = a.kind == GR_NORM_LAYER;
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if ((k * n_thread + me) * 4 < g.n)
            load<4>(g.x + (k * n_thread + me) * 4, v[k]);
    if (layer) {
#pragma unroll
        for (int k = 0; k < VECS; k++)
            for (int i = 0; i < 4 && (k * n_thread + me) * 4 < g.n; i++)
                add(sum, v[k][i]);
        mean = mean_of(block_sum<T>(sum, slot[0], n_thread), (float)g.n);
    }
#pragma unroll
    for (int k = 0; k < VECS; k++)
        for (int i = 0; i < 4 && (k * n_thread + me) * 4 < g.n; i++) {
            v[k][i] = v[k][i] - mean.hi - mean.lo;
            add(squares, __fmul_rn(v[k][i], v[k][i]));
        }
    float f = factor_of(block_sum<T>(squares, slot[1], n_thread), (float)g.n, a.eps);
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if ((k * n_thread + me) * 4 < g.n)
            finish<4>(g, (k * n_thread + me) * 4, v[k], f);
}
