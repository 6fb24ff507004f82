// The epilogue of a launch of products (gr/kernel/epilogue.h), done by its last block: a norm, a
// gate, K and V stored and Q turned, packed x for the next product. Reason: each of these is a
// microsecond of work and, as a launch, another one of waiting. The order of sums does not depend
// on which block is the last.
#pragma once

#include "gr/kernel/epilogue.h"
#include "kernels/gate.cuh"
#include "kernels/kv_store.cuh"
#include "kernels/last.cuh"
#include "kernels/norm.cuh"
#include "kernels/packed_x.cuh"

// Slice i of n. item_of: the number among all items of the one that is number `item` of a slice,
// where a row has per_row of them.
struct slice {
    uint32_t i, n;
};

GR_DEV uint32_t item_of(struct slice s, uint32_t item, uint32_t per_row)
{
    uint32_t each = per_row / s.n, t = item / each;
    return t * per_row + s.i * each + item - t * each;
}

GR_DEV void epilogue_norm(const struct gr_args_norm &a, struct slice s)
{
    __shared__ struct exact_sum slot[2][NORM_WARPS];
    uint32_t per_row = (uint32_t)(a.x.cols / a.group), n = (uint32_t)a.x.rows * (per_row / s.n);
    bool warps = a.group <= 4 * WARP * VECS && n > 1; // each a group of its own
    uint32_t n_thread = warps ? (uint32_t)WARP : blockDim.x, me = threadIdx.x % n_thread;
    for (uint32_t i = threadIdx.x / n_thread; i < n; i += blockDim.x / n_thread) {
        held<0>(a, group_at(a, item_of(s, i, per_row)), me, slot, n_thread);
        if (!warps)
            __syncthreads();
    }
}

// Calls f(place) for every 4 columns of y that are of the slice.
template <class F> GR_DEV void epilogue_columns(const struct gr_ten &y, struct slice s, F f)
{
    uint32_t per_row = (uint32_t)y.cols / 4, n = (uint32_t)y.rows * (per_row / s.n);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        uint32_t item = item_of(s, i, per_row), row = item / per_row;
        f({row, (item - row * per_row) * 4});
    }
}

GR_DEV void epilogue_kv_store(const struct gr_args_kv_store &a, struct slice s)
{
    uint32_t n_k = kv_store_parts(a.k), each_k = n_k / s.n, each_v = kv_store_parts(a.v) / s.n;
    uint32_t each = each_k + each_v, n = (uint32_t)a.k.rows * each;
    for (uint32_t i = threadIdx.x / WARP; i < n; i += blockDim.x / WARP) {
        uint32_t t = i / each, part = i - t * each;
        kv_store_part(a, t,
                      part < each_k ? s.i * each_k + part : n_k + s.i * each_v + part - each_k);
    }
}

GR_DEV void epilogue_rope(const struct gr_args_rope &a, struct slice s)
{
    uint32_t per_row = (uint32_t)(a.x.cols / a.d_head) * runs_of<4>((uint32_t)a.d_head);
    uint32_t n = (uint32_t)a.x.rows * (per_row / s.n);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        heads<4>(a, item_of(s, i, per_row));
}

GR_DEV void epilogue_steps(const struct gr_epilogue &t, uint32_t lo, uint32_t hi, struct slice s)
{
    for (uint32_t i = lo; i < hi; i++) {
        const struct gr_epilogue_step &step = t.step[i];
        switch (step.op) {
        case GR_OP_NORM:
            epilogue_norm(step.a.norm, s);
            break;
        case GR_OP_GLU:
            epilogue_columns(step.a.glu.y, s, [&](struct place at) { glu_at<4>(step.a.glu, at); });
            break;
        case GR_OP_EXPERT_SUM:
            epilogue_columns(step.a.expert_sum.y, s,
                             [&](struct place at) { expert_sum_at<4>(step.a.expert_sum, at); });
            break;
        case GR_OP_KV_STORE:
            epilogue_kv_store(step.a.kv_store, s);
            break;
        default:
            epilogue_rope(step.a.rope, s);
        }
        __syncthreads();
    }
}

// The epilogue of the block's launch. epilogue_begin is followed by a barrier before
// epilogue_behind.
GR_DEV struct gr_epilogue &epilogue_here()
{
    __shared__ struct gr_epilogue t;
    return t;
}
GR_DEV void epilogue_begin(const struct gr_epilogue &t)
{
    for (uint32_t i = threadIdx.x; i < sizeof t / 4; i += blockDim.x)
        ((uint32_t *)&epilogue_here())[i] = ((const uint32_t *)&t)[i];
}

// Chunks [lo, hi) of all rows.
GR_DEV void epilogue_packed_x(const struct gr_epilogue &t, int lo, int hi)
{
    packed_x_chunks<4>(t.packed_x, 0, 0, t.packed_x.to.n, lo, hi);
}

// A block has written `mine` of the tiles of slice i.
GR_DEV void epilogue_behind(uint32_t i, uint32_t mine)
{
    const struct gr_epilogue &t = epilogue_here();
    if (!last_of(t.count + i, t.n_work, mine))
        return;
    epilogue_steps(t, 0, t.n_sliced, {i, t.n_slice});
    if (t.slice_chunks)
        epilogue_packed_x(t, (int)(i * t.slice_chunks), (int)((i + 1) * t.slice_chunks));
    if (t.slice_chunks || (t.n_sliced == t.n_step && !t.packed_x.to.n) ||
        (t.n_slice > 1 && !last_of(t.count + t.n_slice, t.n_slice)))
        return;
    epilogue_steps(t, t.n_sliced, t.n_step, {0, 1});
    if (t.packed_x.to.n)
        epilogue_packed_x(t, 0, (int)gr_packed_x_chunks(t.packed_x.to.units));
}

// A block has written the tiles lo .. hi - 1 of all, counted by slices. In one copy for all kernels
// of a file: it is most of their code, and is called with nothing in registers.
GR_ONCE void epilogue_behind_all(uint32_t lo, uint32_t hi)
{
    for (uint32_t i = lo, end, n = epilogue_here().n_work; i < hi; i = end) {
        uint32_t slice = i / n;
        end = min(hi, (slice + 1) * n);
        epilogue_behind(slice, end - i);
    }
}
