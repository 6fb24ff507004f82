// KV_STORE: K turned, K and V converted or quantised, and written to their cells, in one launch.
// Memory: 4 bytes an element read, 0.6 to 4 written; a few KB at decode, so bound by latency.
// Grid: a warp for 32 neighbouring columns of a row of K or V: a block of a quantised type, 128
// bytes read at once; its lanes agree on the step by two votes. Q of the same tokens is rotated
// by blocks behind those, where ROPE comes next.
//
// KV_SHIFT: K of the cells whose delta is not 0 turned in place. Memory: every rotated element read
// and written once, 2 * bytes of the type. Bound by it.
// Grid: types without blocks, a thread for V pairs (V = 4: 16 bytes of f32, 8 of f16); quantised
// types, a warp a head: partners may lie in different blocks, so the head is laid out in shared
// memory before its blocks are written. Blocks behind n_rot do not change: quantising the values
// of a block once more gives the same block.
//
// KV_COPY: rows copied. Memory: each row read and written once. Grid: a thread for 16 bytes of a
// row, or for fewer where its alignment asks for that.
#include "gr/kernel/kv.h"
#include "kernels/kv_store.cuh"

enum { WARPS = GR_KV_WARPS, THREADS = WARPS * WARP };

GR_DEV void kv_store(const struct gr_args_kv_store &a)
{
    uint32_t n = kv_store_parts(a.k) + kv_store_parts(a.v), i = thread_id() / WARP, t = i / n;
    if (t < a.k.rows)
        kv_store_part(a, t, i - t * n);
}

GR_KERNEL(gr_kv_store, struct gr_args_kv_store, THREADS, 4)
{
    kv_store(a);
}
// KV_STORE, and the heads of Q rotated (ROPE, aligned to 16 bytes) by further blocks.
GR_KERNEL(gr_kv_store_rope, struct gr_kernel_kv_store_rope, THREADS, 4)
{
    if (blockIdx.x < a.n_store)
        kv_store(a.store);
    else
        heads<4>(a.rope, thread_id() - a.n_store * THREADS);
}

template <int V> GR_DEV void shift(const struct gr_args_kv_shift &a)
{
    uint32_t d = (uint32_t)a.d_head, n_rot = (uint32_t)a.cs.cols;
    uint32_t per_head = runs_of<V>(n_rot), per_row = (uint32_t)a.k_cache.cols / d * per_head;
    uint32_t i = thread_id(), cell = i / per_row, item = i % per_head;
    if (cell >= a.delta.cols || row_of<int32_t>(a.delta, 0)[cell] == 0)
        return;
    uint32_t first = i % per_row / per_head * d, type = a.k_cache.dtype;
    void *row = row_of<void>(a.k_cache, cell);
    struct run r = run_of<V>(item, n_rot, a.kind);
    float v[2 * V];
    kv_load<V>(a.k_cache, row, first + r.a, v);
    kv_load<V>(a.k_cache, row, first + r.b, v + V);
    turn_run<V>(v, row_of<float>(a.cs, cell), item, a.kind);
    kv_save<V>(type, row, first + r.a, v);
    kv_save<V>(type, row, first + r.b, v + V);
}

GR_KERNEL(gr_kv_shift_1, struct gr_args_kv_shift, THREADS, 4)
{
    shift<1>(a);
}
GR_KERNEL(gr_kv_shift_4, struct gr_args_kv_shift, THREADS, 4)
{
    shift<4>(a);
}

GR_KERNEL(gr_kv_shift_blocks, struct gr_args_kv_shift, THREADS, 4)
{
    GR_SMEM; // [WARPS][n] floats: the blocks of a head that turn
    uint32_t d = (uint32_t)a.d_head, n_rot = (uint32_t)a.cs.cols, n = (n_rot + GR_QK - 1) / GR_QK;
    uint32_t per_row = (uint32_t)a.k_cache.cols / d, lane = threadIdx.x % WARP;
    uint32_t i = thread_id() / WARP, cell = i / per_row, first = i % per_row * d;
    if (cell >= a.delta.cols || row_of<int32_t>(a.delta, 0)[cell] == 0)
        return;
    float *head = (float *)smem + threadIdx.x / WARP * n * GR_QK;
    void *row = row_of<void>(a.k_cache, cell);
    for (uint32_t b = 0; b < n; b++)
        head[b * GR_QK + lane] = kv_get(a.k_cache, row, first + b * GR_QK + lane);
    __syncwarp();
    for (uint32_t b = 0; b < n; b++) {
        uint32_t col = b * GR_QK + lane;
        float x = turned([&](uint32_t c) { return head[c]; }, row_of<float>(a.cs, cell), col, n_rot,
                         a.kind);
        kv_put(a.k_cache, row, first + col, x, true);
    }
}

template <typename T> GR_DEV void copy(const struct gr_kernel_kv_copy &a)
{
    uint32_t i = thread_id(), k = i / a.n_piece, piece = i - k * a.n_piece;
    if (k >= a.c.src.cols)
        return;
    const T *src = row_of<T>(a.c.cache, row_of<int32_t>(a.c.src, 0)[k]);
    row_of<T>(a.c.cache, row_of<int32_t>(a.c.dst, 0)[k])[piece] = src[piece];
}

GR_KERNEL(gr_kv_copy_16, struct gr_kernel_kv_copy, THREADS, 8)
{
    copy<uint4>(a);
}
GR_KERNEL(gr_kv_copy_4, struct gr_kernel_kv_copy, THREADS, 8)
{
    copy<uint32_t>(a);
}
GR_KERNEL(gr_kv_copy_2, struct gr_kernel_kv_copy, THREADS, 8)
{
    copy<uint16_t>(a);
}
