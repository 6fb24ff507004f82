// ACT, XIELU, GLU, BINARY, EXPERT_SUM, SUM, POOL: y from the same element of a few matrices, or
// columns. Memory: every element of each operand once (4 bytes); EXPERT_SUM n_used + 1 or 2, SUM
// n_shard + 1 or 2, POOL the rows of a sequence and 1. Bound by it: 10 to 40 instructions an
// element, where the device could spend 70. Grid: a thread for V neighbouring columns (V = 4: rows
// are aligned to 16 bytes; else 1). Functions: expf, expm1f and tanhf are off by 1 unit in the last
// place, erfcf by 4 (CUDA math functions' table); divisions and sums round once. The gates are
// written so that no digits cancel.
#include "kernels/gate.cuh"
#include "kernels/packed_x.cuh"

enum { THREADS = 256, BLOCKS = 6 };

template <int V> GR_DEV void act(const struct gr_args_act &a)
{
    struct place at = place_of<V>(a.y);
    float v[V];
    if (at.row >= a.y.rows)
        return;
    uint32_t each = (uint32_t)a.y.rows / (uint32_t)a.x.rows;
    load<V>(row_of<float>(a.x, each == 1 ? at.row : at.row / each) + at.col, v);
    apply(a.kind, v, a.a, a.b);
    store<V>(row_of<float>(a.y, at.row) + at.col, v);
}

GR_KERNEL(gr_elementwise_act_1, struct gr_args_act, THREADS, BLOCKS)
{
    act<1>(a);
}
GR_KERNEL(gr_elementwise_act_4, struct gr_args_act, THREADS, BLOCKS)
{
    act<4>(a);
}

template <int V> GR_DEV void xielu(const struct gr_args_xielu &a)
{
    struct place at = place_of<V>(a.y);
    float v[V];
    if (at.row >= a.y.rows)
        return;
    load<V>(row_of<float>(a.x, at.row) + at.col, v);
    for (int i = 0; i < V; i++) {
        float x = v[i];
        float part = x > 0 ? a.positive * x * x : a.negative * (expm1f(fminf(x, a.below)) - x);
        v[i] = fmaf(a.linear, x, part);
    }
    store<V>(row_of<float>(a.y, at.row) + at.col, v);
}

GR_KERNEL(gr_elementwise_xielu_1, struct gr_args_xielu, THREADS, BLOCKS)
{
    xielu<1>(a);
}
GR_KERNEL(gr_elementwise_xielu_4, struct gr_args_xielu, THREADS, BLOCKS)
{
    xielu<4>(a);
}

template <int V> GR_DEV void glu(const struct gr_args_glu &a)
{
    struct place at = place_of<V>(a.y);
    if (at.row < a.y.rows)
        glu_at<V>(a, at);
}

GR_KERNEL(gr_elementwise_glu_1, struct gr_args_glu, THREADS, BLOCKS)
{
    glu<1>(a);
}
GR_KERNEL(gr_elementwise_glu_4, struct gr_args_glu, THREADS, BLOCKS)
{
    glu<4>(a);
}
// GLU followed by a product: writes y as packed x as well, a block a row.
GR_KERNEL(gr_elementwise_glu_packed_x, struct gr_glu_packed_x_args, GR_PACKED_X_THREADS, 2)
{
    uint32_t row = blockIdx.x;
    for (uint32_t col = threadIdx.x * 4; col < a.glu.y.cols; col += GR_PACKED_X_THREADS * 4)
        glu_at<4>(a.glu, {row, col});
    __syncthreads();
    write_packed_row<2>(a.packed_x, row, row);
}

template <int V> GR_DEV void binary(const struct gr_args_binary &n)
{
    struct place at = place_of<V>(n.y);
    float x[V], y[V];
    if (at.row >= n.y.rows)
        return;
    load<V>(row_of<float>(n.a, at.row) + at.col, x);
    load<V>(row_of<float>(n.b, n.b.rows == 1 ? 0 : at.row) + at.col, y);
    for (int i = 0; i < V; i++)
        x[i] = n.kind == GR_MUL ? x[i] * y[i] : n.kind == GR_DIV ? x[i] / y[i] : x[i] + y[i];
    store<V>(row_of<float>(n.y, at.row) + at.col, x);
}

GR_KERNEL(gr_elementwise_binary_1, struct gr_args_binary, THREADS, BLOCKS)
{
    binary<1>(a);
}
GR_KERNEL(gr_elementwise_binary_4, struct gr_args_binary, THREADS, BLOCKS)
{
    binary<4>(a);
}

template <int V> GR_DEV void expert_sum(const struct gr_args_expert_sum &a)
{
    struct place at = place_of<V>(a.y);
    if (at.row < a.y.rows)
        expert_sum_at<V>(a, at);
}

GR_KERNEL(gr_elementwise_expert_sum_1, struct gr_args_expert_sum, THREADS, BLOCKS)
{
    expert_sum<1>(a);
}
GR_KERNEL(gr_elementwise_expert_sum_4, struct gr_args_expert_sum, THREADS, BLOCKS)
{
    expert_sum<4>(a);
}

template <int V> GR_DEV void sum(const struct gr_args_sum &a)
{
    struct place at = place_of<V>(a.y);
    float all[V], x[V];
    if (at.row >= a.y.rows)
        return;
    load<V>(row_of<float>(a.parts, at.row) + at.col, all);
    for (int64_t r = at.row + a.y.rows; r < a.parts.rows; r += a.y.rows) {
        load<V>(row_of<float>(a.parts, r) + at.col, x);
        for (int i = 0; i < V; i++)
            all[i] += x[i];
    }
    if (gr_ten_is(&a.res)) {
        load<V>(row_of<float>(a.res, at.row) + at.col, x);
        for (int i = 0; i < V; i++)
            all[i] += x[i];
    }
    store<V>(row_of<float>(a.y, at.row) + at.col, all);
}

GR_KERNEL(gr_elementwise_sum_1, struct gr_args_sum, THREADS, BLOCKS)
{
    sum<1>(a);
}
GR_KERNEL(gr_elementwise_sum_4, struct gr_args_sum, THREADS, BLOCKS)
{
    sum<4>(a);
}

// Few sequences, many rows: registers for loads in flight count for more than blocks.
enum { POOL_BLOCKS = 4 };

template <int V> GR_DEV void pool(const struct gr_args_pool &a)
{
    struct place at = place_of<V>(a.y);
    float all[V] = {0}, x[V];
    if (at.row >= a.y.rows)
        return;
    const int32_t *list = row_of<int32_t>(a.list, 0), *begin = row_of<int32_t>(a.at, 0) + at.row;
    int32_t lo = begin[0], hi = begin[1];
    for (int32_t j = lo; j < hi; j++) {
        load<V>(row_of<float>(a.x, list[j]) + at.col, x);
        for (int i = 0; i < V; i++)
            all[i] += x[i];
    }
    for (int i = 0; i < V; i++)
        all[i] = hi > lo ? all[i] / (float)(hi - lo) : 0;
    store<V>(row_of<float>(a.y, at.row) + at.col, all);
}

GR_KERNEL(gr_elementwise_pool_1, struct gr_args_pool, THREADS, POOL_BLOCKS)
{
    pool<1>(a);
}
GR_KERNEL(gr_elementwise_pool_4, struct gr_args_pool, THREADS, POOL_BLOCKS)
{
    pool<4>(a);
}
