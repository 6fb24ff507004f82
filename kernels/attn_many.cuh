// Shared parts of the kernels for many tokens: queries of a warp in the fragments of mma.m16n8k16
// (those of wgmma are the same), their weights and results.
#pragma once

#include "kernels/attn_tile.cuh"
#include "kernels/packed_x.cuh"

// A thread's two rows, row and row + 8 of a tile of queries that begins with token t0 and head h0:
// the items of the current range that they see, the largest of their logits, in powers of two,
// and the sum of this lane's weights.
struct attn_rows {
    int t0, h0, row;
    int lo[2], hi[2];
    float max[2], sum[2];
};
GR_DEV attn_rows attn_rows_of(int t0, int h0, int row)
{
    return {t0, h0, row, {0, 0}, {0, 0}, {ATTN_NONE, ATTN_NONE}, {0, 0}};
}
// Token and head; a.n_pack is a power of two.
GR_DEV int attn_token(const gr_kernel_attn &a, const attn_rows &r, int i)
{
    return r.t0 + ((r.row + 8 * i) >> (__ffs(a.n_pack) - 1));
}
GR_DEV int attn_head_of(const gr_kernel_attn &a, const attn_rows &r, int i)
{
    return r.h0 + ((r.row + 8 * i) & (a.n_pack - 1));
}

// The last step tells the compiler that all lanes have the same value, so branches on it do not
// diverge.
GR_DEV int attn_warp_min(int x)
{
    for (int i = 16; i > 0; i /= 2)
        x = min(x, __shfl_xor_sync(0xffffffffu, x, i));
    return __shfl_sync(0xffffffffu, x, 0);
}

// Items that the tokens [first, end) of a run see.
struct attn_range {
    attn_span span; // union of their spans; near: the largest
    int first_near;
};
GR_DEV attn_range attn_range_of(const gr_kernel_attn &a, int first, int end)
{
    attn_range r = {attn_span_of(a, first), attn_span_of(a, first).near};
    for (int t = first + threadIdx.x % 32; t < end; t += 32) {
        attn_span s = attn_span_of(a, t);
        r.span.lo = min(r.span.lo, s.lo), r.span.hi = max(r.span.hi, s.hi);
        r.span.near = max(r.span.near, s.near), r.first_near = min(r.first_near, s.near);
    }
    r.span.lo = attn_warp_min(r.span.lo), r.span.hi = -attn_warp_min(-r.span.hi);
    r.span.near = -attn_warp_min(-r.span.near), r.first_near = attn_warp_min(r.first_near);
    return r;
}

// Work of a tile: items [lo, hi) of the list by the far or the near keys for the tokens [first,
// end) of one run. A long run has more than half of 128 tokens, so a tile meets three at
// most.
struct attn_work {
    int n;
    struct {
        int first, end, plane, lo, hi;
    } part[6];
    attn_bits few; // tokens that attn_decode takes
};
// n tokens from t0 on; by one warp.
GR_DEV void attn_plan(const gr_kernel_attn &a, int t0, int n, attn_work *w)
{
    const attn_runs runs = a.one_run ? attn_runs{0, 0} : attn_runs_of(a, t0, n);
    int parts = 0;
    n = min(n, a.n_tok - t0);
    for (int i = 0, end; i < n; i = end) {
        end = min(attn_next(runs.starts, i + 1), n);
        if (attn_bit(runs.few, i))
            continue;
        const attn_range r = attn_range_of(a, t0 + i, t0 + end);
        for (int plane = a.q[0] ? 0 : 1; plane < 2; plane++) {
            int lo = plane ? r.first_near : r.span.lo, hi = plane ? r.span.hi : r.span.near;
            if (lo < hi && threadIdx.x % 32 == 0)
                w->part[parts] = {t0 + i, t0 + end, plane, lo, hi};
            parts += lo < hi;
        }
    }
    if (threadIdx.x % 32 == 0)
        w->n = parts, w->few = runs.few;
}

// Sets the items that the rows see by the far or the near keys, for rows of tokens [first, end)
// alone.
GR_DEV void attn_look(const gr_kernel_attn &a, attn_rows &r, int plane, int first, int end)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = attn_token(a, r, i);
        bool there = t >= first && t < end;
        attn_span u = attn_span_of(a, there ? t : first);
        r.lo[i] = there ? plane ? u.near : u.lo : 0;
        r.hi[i] = there ? plane ? u.hi : u.near : 0;
    }
}

// Items that some, and items that all, of a warp's rows see.
struct attn_seen {
    int any_lo, any_hi, all_lo, all_hi;
};
GR_DEV attn_seen attn_seen_of(const attn_rows &r)
{
    attn_seen s = {INT32_MAX, 0, 0, INT32_MAX};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        s.all_lo = max(s.all_lo, r.lo[i]), s.all_hi = min(s.all_hi, r.hi[i]);
        if (r.lo[i] < r.hi[i])
            s.any_lo = min(s.any_lo, r.lo[i]), s.any_hi = max(s.any_hi, r.hi[i]);
    }
    s.any_lo = attn_warp_min(s.any_lo), s.any_hi = -attn_warp_min(-s.any_hi);
    s.all_lo = -attn_warp_min(-s.all_lo), s.all_hi = attn_warp_min(s.all_hi);
    return s;
}

// Logits x of KT items from j on become weights; down: factor of the sums and outputs so far
// (applied to the sum here). full: every row sees all of them.
template <int KT>
GR_DEV void attn_weigh(const gr_kernel_attn &a, attn_rows &r, float (&x)[KT / 2], int j, bool full,
                       float (&down)[2])
{
    const int first = j + threadIdx.x % 4 * 2;
    if (a.softcap > 0 || a.max_alibi > 0) {
        float slope[2] = {0, 0};
        if (a.max_alibi > 0) {
            slope[0] = attn_slope(a, attn_head_of(a, r, 0)) * ATTN_LOG2E;
            slope[1] = attn_slope(a, attn_head_of(a, r, 1)) * ATTN_LOG2E;
        }
#pragma unroll
        for (int n = 0; n < KT / 2; n++) {
            int item = first + n / 4 * 8 + n % 2, i = n % 4 / 2;
            if (item >= r.lo[i] && item < r.hi[i])
                x[n] = attn_finish(a, x[n], slope[i], attn_token(a, r, i), item);
        }
    }
    if (!full) {
#pragma unroll
        for (int n = 0; n < KT / 2; n++) {
            int item = first + n / 4 * 8 + n % 2, i = n % 4 / 2;
            x[n] = item >= r.lo[i] && item < r.hi[i] ? x[n] : ATTN_NONE;
        }
    }
    float base[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = ATTN_NONE;
#pragma unroll
        for (int n = 0; n < KT / 8; n++)
            m = fmaxf(m, fmaxf(x[4 * n + 2 * i], x[4 * n + 2 * i + 1]));
        m = fmaxf(r.max[i], attn_quad_max(m));
        base[i] = m == ATTN_NONE ? 0 : m;
        down[i] = exp2_fast(r.max[i] - base[i]);
        r.max[i] = m;
        r.sum[i] *= down[i];
    }
#pragma unroll
    for (int n = 0; n < KT / 2; n++) {
        x[n] = exp2_fast(x[n] - base[n % 4 / 2]);
        r.sum[n % 4 / 2] += x[n];
    }
}

template <int N> GR_DEV void attn_rescale(float (&o)[N], const float (&down)[2])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        o[n] *= down[n % 4 / 2];
}

// Weights of 16 keys as a fragment a [16, 16].
GR_DEV void attn_frag_p(uint32_t p[4], const float *x)
{
    p[0] = f16x2(x[0], x[1]), p[1] = f16x2(x[2], x[3]);
    p[2] = f16x2(x[4], x[5]), p[3] = f16x2(x[6], x[7]);
}

// Row i of o times f as packed x of token t and head h. The four lanes of a row have two columns of
// each eight, and write a word of each eight. Where f16 holds all the row's factor is known.
template <int N>
GR_DEV void attn_put_groups(const gr_kernel_attn &a, const float (&o)[N], int i, float f, int t,
                            int h, bool there)
{
    constexpr int GROUPS = 2 * N / GR_PACKED_X_GROUP;
    const int lane = threadIdx.x % 32, r = lane % 4, from = (lane & ~3) + r / 2;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int group = h * GROUPS + g;
        int up = GR_PACKED_X_F16;
        if (a.up) {
            float top = 0;
#pragma unroll
            for (int n = 8 * g; n < 8 * g + 8; n++)
                top =
                    fmaxf(top, fmaxf(fabsf(o[4 * n + 2 * i] * f), fabsf(o[4 * n + 2 * i + 1] * f)));
            up = packed_x_group_up(attn_quad_max(top));
        }
        const float by = packed_x_group_factor(up);
        uint4 *to =
            (uint4 *)(a.packed_x.to.x + ((int64_t)t * a.packed_x.to.units + 2 * group) * 64);
#pragma unroll
        for (int u = 0; u < 2; u++) {
            uint32_t word[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int n = 8 * g + 4 * u + k;
                uint32_t two = f16x2(o[4 * n + 2 * i] * f * by, o[4 * n + 2 * i + 1] * f * by);
                uint32_t lower = __shfl_sync(0xffffffffu, two, from),
                         upper = __shfl_sync(0xffffffffu, two, from + 2);
                word[k] =
                    r % 2 ? lower >> 16 | (upper & 0xffff0000) : (lower & 0xffff) | upper << 16;
            }
            if (there)
                to[4 * u + r] = {word[0], word[1], word[2], word[3]};
        }
        if (a.up && there && r == 0)
            packed_x_exponents(gr_attn_groups(&a), t)[group] = (int8_t)up;
    }
    if (!a.up && there && h == 0 && r == 0)
        a.packed_x.to.factor[t] = pow2(-GR_PACKED_X_F16);
}

// y of a head of a token, which attn_exact has written, as packed x, by n_warp warps.
GR_DEV void attn_pack_head(const gr_kernel_attn &a, int t, int h, int n_warp)
{
    const int groups = a.d_v / GR_PACKED_X_GROUP, col = packed_x_group_col();
    const float *y = (const float *)(a.y + t * a.y_row) + h * a.d_v;
    for (int g = threadIdx.x / 32; g < groups; g += n_warp) {
        const float *at = y + g * GR_PACKED_X_GROUP + col;
        packed_x_put_group(gr_attn_groups(&a), t, h * groups + g, at[0], at[4]);
    }
}

// y of the rows, those of tokens whose bit is set in `not_mine` left out; bad[i]: row + 8 i has
// to be computed again.
template <int N>
GR_DEV void attn_write(const gr_kernel_attn &a, const attn_rows &r, const float (&o)[N],
                       attn_bits not_mine, bool (&bad)[2])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = attn_token(a, r, i), h = attn_head_of(a, r, i);
        float own = attn_quad_sum(r.sum[i]), sum = own, f = 1;
        bool there = t < a.n_tok && !attn_bit(not_mine, t - r.t0);
        if (a.sinks && there) {
            float sink = a.sinks[h] * ATTN_LOG2E, m = fmaxf(r.max[i], sink);
            f = exp2_fast(r.max[i] - m);
            sum = sum * f + exp2_fast(sink - m);
        }
        f = sum > 0 ? f / sum : 0;
        attn_span u = attn_span_of(a, there ? t : r.t0);
        bool wrong = (u.lo < u.hi && !(own > 0)) || !(sum <= 3e38f);
        float *y = (float *)(a.y + t * a.y_row) + h * a.d_v + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < N / 4; n++) {
            float2 two = {o[4 * n + 2 * i] * f, o[4 * n + 2 * i + 1] * f};
            wrong = wrong || !(fabsf(two.x) <= 3e38f) || !(fabsf(two.y) <= 3e38f);
            if (there && !a.packed_x.to.n)
                *(float2 *)(y + n * 8) = two;
        }
        if constexpr (2 * N % GR_PACKED_X_GROUP == 0)
            if (a.packed_x.to.n)
                attn_put_groups(a, o, i, f, t, h, there);
        bad[i] = __ballot_sync(0xffffffffu, there && wrong) >> (lane & ~3) & 15;
    }
}
