// Pairs of columns of a head (enum gr_rope_kind), and their rotation.
#pragma once

#include "kernels/block.cuh"

// A pair (x, y) becomes (x c - y s, x s + y c), rounded once: products of floats are exact in f64.
GR_DEV void turn(float &x, float &y, float c, float s)
{
    double dx = (double)x, dy = (double)y, dc = (double)c, ds = (double)s;
    x = (float)(dx * dc - dy * ds);
    y = (float)(dx * ds + dy * dc);
}

// The value of column `col` of a head, whose columns are x(col), after the rotation by cs [n_rot].
template <class X> GR_DEV float turned(X x, const float *cs, uint32_t col, uint32_t n_rot, int kind)
{
    if (kind == GR_ROPE_NONE || col >= n_rot)
        return x(col);
    uint32_t half = n_rot / 2;
    uint32_t pair = kind == GR_ROPE_NEOX ? col % half : col / 2;
    uint32_t first = kind == GR_ROPE_NEOX ? pair : 2 * pair;
    uint32_t second = kind == GR_ROPE_NEOX ? pair + half : first + 1;
    float u = x(first), v = x(second);
    turn(u, v, cs[2 * pair], cs[2 * pair + 1]);
    return col == first ? u : v;
}

// A thread's part of a head: V pairs, or 2 V of the columns behind n_rot; V columns from a and V
// from b.
struct run {
    uint32_t a, b;
    bool turns;
};

template <int V> GR_DEV struct run run_of(uint32_t item, uint32_t n_rot, int kind)
{
    uint32_t pair = item * V, n_pair = n_rot / 2;
    bool turns = pair < n_pair;
    if (turns && kind == GR_ROPE_NEOX)
        return {pair, pair + n_pair, turns};
    return {2 * pair, 2 * pair + V, turns};
}

template <int V> GR_DEV uint32_t runs_of(uint32_t n_col)
{
    return (n_col + 2 * V - 1) / (2 * V);
}

// Turns v [2 V], which holds run `item`: its columns from a, then those from b.
template <int V> GR_DEV void turn_run(float *v, const float *cs, uint32_t item, int kind)
{
    float t[2 * V];
    load<V>(cs + item * 2 * V, t);
    load<V>(cs + item * 2 * V + V, t + V);
    for (int k = 0; k < V; k++)
        if (kind == GR_ROPE_NEOX)
            turn(v[k], v[k + V], t[2 * k], t[2 * k + 1]);
        else
            turn(v[2 * k], v[2 * k + 1], t[2 * k], t[2 * k + 1]);
}

// Thread i of ROPE: a run of a head.
template <int V> GR_DEV void heads(const struct gr_args_rope &a, uint32_t i)
{
    uint32_t d = (uint32_t)a.d_head, n_rot = (uint32_t)a.cs.cols;
    uint32_t per_head = runs_of<V>(d), per_row = (uint32_t)a.x.cols / d * per_head;
    uint32_t t = i / per_row, item = i % per_head;
    if (t >= a.x.rows)
        return;
    uint32_t first = i % per_row / per_head * d;
    struct run r = run_of<V>(item, n_rot, a.kind);
    const float *x = row_of<float>(a.x, t) + first;
    float *y = row_of<float>(a.y, t) + first, v[2 * V];
    bool both = r.b < d; // V = 1: the last column of an odd number
    load<V>(x + r.a, v);
    if (both)
        load<V>(x + r.b, v + V);
    if (r.turns)
        turn_run<V>(v, row_of<float>(a.cs, t), item, a.kind);
    store<V>(y + r.a, v);
    if (both)
        store<V>(y + r.b, v + V);
}
