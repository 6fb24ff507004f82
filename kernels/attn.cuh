// Shared parts of the attention kernels: spans, runs of tokens, logits, and one head of one token
// done exactly.
#pragma once

#include "gr/kernel/attn.h"
#include "gr/planes.h"
#include "kernels/fields.cuh"

#define ATTN_NONE (-INFINITY) // the logit of an item that is not seen

// Items [lo, near) of the list meet the far keys, [near, hi) the near ones.
struct attn_span {
    int lo, near, hi;
};

GR_DEV attn_span attn_span_of(const gr_kernel_attn &a, int t)
{
    const int32_t *s = (const int32_t *)(a.span + t * a.span_row);
    return {s[0], s[1], s[2]};
}

// --- runs: neighbouring tokens of one sequence, whose spans overlap ---

// True when a run begins at token t, or t is past the last token.
GR_DEV bool attn_starts(const gr_kernel_attn &a, int t)
{
    if (t <= 0 || t >= a.n_tok)
        return true;
    attn_span s = attn_span_of(a, t - 1), u = attn_span_of(a, t);
    return s.lo >= s.hi || u.lo >= u.hi || s.lo >= u.hi || u.lo >= s.hi;
}

// The run of token t, looked for GR_ATTN_FEW tokens to either side. All lanes of a warp call it.
struct attn_run {
    int first, end; // -1: further away
    bool few;
};
GR_DEV attn_run attn_run_of(const gr_kernel_attn &a, int t)
{
    int lane = threadIdx.x % 32;
    uint32_t b0 = __ballot_sync(0xffffffffu, attn_starts(a, t - lane)),
             b1 = __ballot_sync(0xffffffffu, attn_starts(a, t - 32 - lane)),
             e0 = __ballot_sync(0xffffffffu, attn_starts(a, t + 1 + lane)),
             e1 = __ballot_sync(0xffffffffu, attn_starts(a, t + 33 + lane));
    attn_run r;
    r.first = b0 ? t - __ffs(b0) + 1 : b1 ? t - 32 - __ffs(b1) + 1 : -1;
    r.end = e0 ? t + __ffs(e0) : e1 ? t + 32 + __ffs(e1) : -1;
    r.few = r.first >= 0 && r.end >= 0 && r.end - r.first <= GR_ATTN_FEW;
    return r;
}

// Tokens t0 + i, i < 128: bit i of `starts` where a run begins, and, for i < n, of `few` where the
// run is one of at most GR_ATTN_FEW tokens.
typedef unsigned __int128 attn_bits;
struct attn_runs {
    attn_bits starts, few;
};
GR_DEV bool attn_bit(attn_bits b, int i)
{
    return (uint32_t)(b >> i) & 1;
}
// The first bit from i on, 128 when there is none.
GR_DEV int attn_next(attn_bits b, int i)
{
    attn_bits rest = i < 128 ? b >> i : 0;
    int lo = __ffsll((long long)(uint64_t)rest), hi = __ffsll((long long)(uint64_t)(rest >> 64));
    return lo ? i + lo - 1 : hi ? i + hi + 63 : 128;
}
// Bit i: a run begins at token t + i, i < 64.
GR_DEV uint64_t attn_starts_from(const gr_kernel_attn &a, int t)
{
    int lane = threadIdx.x % 32;
    uint32_t lo = __ballot_sync(0xffffffffu, attn_starts(a, t + lane)),
             hi = __ballot_sync(0xffffffffu, attn_starts(a, t + 32 + lane));
    return (uint64_t)hi << 32 | lo;
}
// Runs of n <= 128 tokens from t0 on; all lanes of a warp call it.
GR_DEV attn_runs attn_runs_of(const gr_kernel_attn &a, int t0, int n)
{
    const uint64_t before = attn_starts_from(a, t0 - 64), after = attn_starts_from(a, t0 + 128);
    attn_runs r = {(attn_bits)attn_starts_from(a, t0 + 64) << 64 | attn_starts_from(a, t0), 0};
    for (int i = 0, end; i < n && t0 + i < a.n_tok; i = end) {
        int first = attn_bit(r.starts, i) ? i : before ? -1 - __clzll((long long)before) : -65;
        end = attn_next(r.starts, i + 1);
        if (end == 128)
            end = after ? 127 + __ffsll((long long)after) : 128 + GR_ATTN_FEW;
        if (end - first <= GR_ATTN_FEW)
            r.few |= (end < 128 ? (attn_bits)1 << end : 0) - ((attn_bits)1 << i);
    }
    return r;
}

// The tokens that share a tile of queries with token t in attn_decode: `most` from the beginning of
// a short run on; of a long one those with the same t / most. span: the items that any of them
// sees; far items end at or before `near` of one of them, near ones begin at first_near.
struct attn_group {
    int lead, n, first_near;
    attn_span span;
    bool few;
};
GR_DEV attn_group attn_group_of(const gr_kernel_attn &a, int t, int most)
{
    attn_run r = attn_run_of(a, t);
    int lane = threadIdx.x % 32, from = t - t % most, to = from + most;
    if (r.few)
        from = r.first + (t - r.first) / most * most, to = from + most;
    attn_group g;
    g.few = r.few;
    g.lead = from > r.first ? from : r.first;
    g.n = (r.end >= 0 && r.end < to ? r.end : to) - g.lead;
    g.span = attn_span_of(a, g.lead + (lane < g.n ? lane : 0));
    g.first_near = g.span.near;
    for (int i = 16; i > 0; i /= 2) {
        g.span.lo = min(g.span.lo, __shfl_xor_sync(0xffffffffu, g.span.lo, i));
        g.span.hi = max(g.span.hi, __shfl_xor_sync(0xffffffffu, g.span.hi, i));
        g.span.near = max(g.span.near, __shfl_xor_sync(0xffffffffu, g.span.near, i));
        g.first_near = min(g.first_near, __shfl_xor_sync(0xffffffffu, g.first_near, i));
    }
    return g;
}

// ALiBi's slope of a head, as gr_alibi_slope.
GR_DEV float attn_slope(const gr_kernel_attn &a, int h)
{
    int n2 = 1;
    h += a.first_head;
    while (n2 * 2 <= a.n_head_all)
        n2 *= 2;
    float e = h < n2 ? -a.max_alibi * (float)(h + 1) / (float)n2
                     : -a.max_alibi / 2 * (float)(2 * (h - n2) + 1) / (float)n2;
    return exp2f(e);
}

GR_DEV float attn_distance(const gr_kernel_attn &a, int t, int item)
{
    return fabsf((float)(a.pos[t] - a.key_pos[item]));
}

GR_DEV float attn_bias(const gr_kernel_attn &a, int t, int h, int item)
{
    int d = a.key_pos[item] - a.pos[t], row = a.n_rel + max(-a.n_rel, min(a.n_rel, d));
    return ((const float *)(a.rel + row * a.rel_row))[h];
}

// --- elements of a row, any type ---

// A head of a row.
struct attn_vector {
    const char *x;        // codes of planes
    const uint16_t *step; // of planes: records
    int type;
};
GR_DEV attn_vector attn_head(const gr_kernel_rows &r, int row, int h_kv)
{
    return {r.data + row * r.row + h_kv * r.head,
            (const uint16_t *)(r.step + row * r.row + h_kv * r.head_step), r.type};
}

// Stands for Q4_1, Q5_0, Q5_1 and IQ4_NL, which share instances: they look at the type each time.
enum { ATTN_RECORDS = -1 };

template <int TYPE> GR_DEV float attn_element(const attn_vector &v, int i)
{
    if constexpr (TYPE == GR_F16) {
        return f16_to_f32(((const uint16_t *)v.x)[i]);
    } else if constexpr (TYPE == GR_BF16) {
        return bf16_to_f32(((const uint16_t *)v.x)[i]);
    } else if constexpr (TYPE == GR_Q8_0) {
        return f16_to_f32(v.step[i / GR_QK]) * (float)((const int8_t *)v.x)[i];
    } else if constexpr (TYPE == GR_Q4_0) {
        int two = ((const uint8_t *)v.x)[i / GR_QK * 16 + i % 16];
        return f16_to_f32(v.step[i / GR_QK]) * (float)((i % GR_QK < 16 ? two & 15 : two >> 4) - 8);
    } else if constexpr (TYPE == ATTN_RECORDS) {
        return nibble_value(v.type, (const uint8_t *)v.x + i / GR_QK * 16,
                            v.step + i / GR_QK * (gr_planes_record(v.type) / 2), i % GR_QK);
    } else {
        return ((const float *)v.x)[i];
    }
}

// --- one head of one token by N threads, f32 throughout ---
//
// Called by all threads of a block or, with a named barrier BAR, by the first N.

template <int N, int BAR> GR_DEV void attn_sync()
{
    if constexpr (BAR == 0)
        __syncthreads();
    else
        bar_sync(BAR, N);
}

template <int TYPE> GR_DEV float attn_dot(const float *q, const attn_vector &k, int n)
{
    [[maybe_unused]] constexpr int UNROLL = TYPE == ATTN_RECORDS ? 1 : 8;
    float s = 0;
#pragma unroll UNROLL
    for (int i = 0; i < n; i++)
        s = fmaf(q[i], attn_element<TYPE>(k, i), s);
    return s;
}

// acc[c] = acc[c] * down + sum over n rows of p * V, a column a thread.
template <int TYPE, int N>
GR_DEV void attn_add(const gr_kernel_attn &a, int h_kv, const float *p, const int *row, int n,
                     float down, float *acc)
{
    [[maybe_unused]] constexpr int UNROLL = TYPE == ATTN_RECORDS ? 1 : 4;
    for (int c = threadIdx.x; c < a.d_v; c += N) {
        float s = acc[c] * down;
#pragma unroll UNROLL
        for (int j = 0; j < n; j++)
            s = fmaf(p[j], attn_element<TYPE>(attn_head(a.v, row[j], h_kv), c), s);
        acc[c] = s;
    }
}

// The kernels' one list of types: CALL(TYPE) for the type of the cache.
#define ATTN_BY_TYPE(type, CALL)                                                                   \
    switch (type) {                                                                                \
    case GR_F16:                                                                                   \
        CALL(GR_F16);                                                                              \
        break;                                                                                     \
    case GR_BF16:                                                                                  \
        CALL(GR_BF16);                                                                             \
        break;                                                                                     \
    case GR_Q8_0:                                                                                  \
        CALL(GR_Q8_0);                                                                             \
        break;                                                                                     \
    case GR_Q4_0:                                                                                  \
        CALL(GR_Q4_0);                                                                             \
        break;                                                                                     \
    case GR_F32:                                                                                   \
        CALL(GR_F32);                                                                              \
        break;                                                                                     \
    default:                                                                                       \
        CALL(ATTN_RECORDS);                                                                        \
    }

// The logit of an item; q [2][d_k]. REL: biases by distance, where there are any.
template <bool REL>
GR_DEV float attn_logit(const gr_kernel_attn &a, const float *q, int t, int h, int item, int row,
                        bool near)
{
    const gr_kernel_rows &rows = a.k[near];
    const attn_vector k = attn_head(rows, row, h / (a.n_head / a.n_head_kv));
    float x = 0;
#define DOT(TYPE) x = attn_dot<TYPE>(near ? q + a.d_k : q, k, a.d_k)
    ATTN_BY_TYPE(rows.type, DOT)
#undef DOT
    x *= a.scale;
    if (a.softcap > 0)
        x = a.softcap * tanhf(x / a.softcap);
    if (a.max_alibi > 0)
        x -= attn_slope(a, h) * attn_distance(a, t, item);
    if (REL && a.rel)
        x += attn_bias(a, t, h, item);
    return x;
}

// The largest of N threads' x, or their sum, in a fixed order; red [N / 32].
template <int N, bool MAX, int BAR = 0> GR_DEV float attn_reduce(float x, float *red)
{
    for (int i = 16; i > 0; i /= 2) {
        float y = __shfl_xor_sync(0xffffffffu, x, i);
        x = MAX ? fmaxf(x, y) : x + y;
    }
    if (threadIdx.x % 32 == 0)
        red[threadIdx.x / 32] = x;
    attn_sync<N, BAR>();
    x = red[0];
    for (int i = 1; i < N / 32; i++)
        x = MAX ? fmaxf(x, red[i]) : x + red[i];
    attn_sync<N, BAR>();
    return x;
}

// y of head h of token t. N items at a time: a thread has the logit of one, then a column of V.
// mem: GR_ATTN_EXACT_BYTES.
template <int N, int BAR = 0, bool REL = false>
GR_DEV void attn_exact(const gr_kernel_attn &a, int t, int h, float *mem)
{
    int tid = threadIdx.x, h_kv = h / (a.n_head / a.n_head_kv);
    float *q = mem, *acc = q + 2 * a.d_k, *p = acc + a.d_v, *red = p + N;
    int *row = (int *)(red + N / 32);
    attn_span s = attn_span_of(a, t);
    for (int i = tid; i < 2 * a.d_k; i += N) {
        int plane = i / a.d_k;
        const float *src = (const float *)(a.q[plane] + t * a.q_row[plane]) + h * a.d_k;
        q[i] = a.q[plane] ? src[i - plane * a.d_k] : 0;
    }
    for (int c = tid; c < a.d_v; c += N)
        acc[c] = 0;
    attn_sync<N, BAR>();
    float max = a.sinks ? a.sinks[h] : ATTN_NONE, sum = max > ATTN_NONE ? 1 : 0;
    for (int i = s.lo; i < s.hi; i += N) {
        bool seen = i + tid < s.hi;
        row[tid] = seen ? a.list[i + tid] : 0;
        float x =
            seen ? attn_logit<REL>(a, q, t, h, i + tid, row[tid], i + tid >= s.near) : ATTN_NONE;
        float top = fmaxf(max, attn_reduce<N, true, BAR>(x, red));
        float down = max == ATTN_NONE ? 0 : expf(max - top);
        p[tid] = x == ATTN_NONE ? 0 : expf(x - top);
        sum = sum * down + attn_reduce<N, false, BAR>(p[tid], red);
        max = top;
        int n = s.hi - i < N ? s.hi - i : N;
#define ADD(TYPE) attn_add<TYPE, N>(a, h_kv, p, row, n, down, acc)
        ATTN_BY_TYPE(a.v.type, ADD)
#undef ADD
        attn_sync<N, BAR>();
    }
    for (int c = tid; c < a.d_v; c += N)
        ((float *)(a.y + t * a.y_row))[h * a.d_v + c] = sum == 0 ? 0 : acc[c] / sum;
    attn_sync<N, BAR>();
}
