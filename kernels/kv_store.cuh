// KV_STORE (kernels/kv.cu) by warps: 32 neighbouring columns of a row of K or V each.
#pragma once

#include "kernels/kv.cuh"
#include "kernels/rope.cuh"

// Warps that a row of K or V takes.
GR_DEV uint32_t kv_store_parts(const struct gr_ten &t)
{
    return ((uint32_t)t.cols + WARP - 1) / WARP;
}

// Part `part` of token t: those of K, then those of V.
GR_DEV void kv_store_part(const struct gr_args_kv_store &a, uint32_t t, uint32_t part)
{
    uint32_t n_k = kv_store_parts(a.k);
    int32_t cell = row_of<int32_t>(a.cells, 0)[t];
    bool is_k = part < n_k;
    uint32_t col = (is_k ? part : part - n_k) * WARP + threadIdx.x % WARP;
    bool in = col < (is_k ? a.k.cols : a.v.cols);
    float x = 0;
    if (!is_k) {
        if (in)
            x = row_of<float>(a.v, t)[col];
        kv_put(a.v_cache, row_of<void>(a.v_cache, cell), col, x, in);
        return;
    }
    if (in) {
        uint32_t d = (uint32_t)a.d_head_k, at = col % d;
        const float *cs = a.kind == GR_ROPE_NONE ? nullptr : row_of<float>(a.cs, t);
        const float *head = row_of<float>(a.k, t) + (col - at);
        x = turned([&](uint32_t c) { return head[c]; }, cs, at, (uint32_t)a.cs.cols, a.kind);
    }
    kv_put(a.k_cache, row_of<void>(a.k_cache, cell), col, x, in);
}
