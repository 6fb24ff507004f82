// LINEAR_ATTN: a state S [d_k, d_v] a head, of which every row decays.
// Memory: the state once in and out, q, k, v, w, y once. Bound by the chain of tokens: 3 to 5 d_k
// d_v multiply-adds a head and token from registers.
// Grid: kernels/columns.cuh. The block makes the next token's vectors while this one is computed:
// one barrier a token. Sums over a column run in one order whatever a step begins with.
//
// TOKEN_SHIFT: the last token's numbers less this one's. Memory: x and y once. Bound by it. Grid: a
// thread for a column of one sequence, which takes its tokens one after the other.
#include "kernels/columns.cuh"
#include "kernels/math.cuh"

enum { THREADS = 256 }; // of TOKEN_SHIFT

// One head, and a token's vectors [4 S], zeros behind d_k: q, k, decays, the part of k that the
// token sees itself, the vector that is erased and its rates.
struct head {
    const struct gr_args_linear_attn &a;
    uint32_t h, kv, d_k, d_v;
};

template <int S> struct alignas(16) vectors {
    float q[4 * S], k[4 * S], decay[4 * S], seen[4 * S], erase[4 * S], rate[4 * S];
};

GR_DEV float decay(const struct gr_args_linear_attn &a, uint32_t h, float x)
{
    if (a.decay == GR_DECAY_SLOPE)
        return expf(-a.slope * exp2f(-8 * (float)(h + 1) / (float)a.n_head));
    return a.decay == GR_DECAY_EXP ? expf(-expf(x)) : expf(-0.606531f * sigmoid(x));
}

// erase / its length, and that times its rates, by one warp.
template <int S> GR_DEV void erasure(const struct head &u, int64_t t, struct vectors<S> &out)
{
    uint32_t lane = threadIdx.x % WARP;
    float v[S / 8], sum = 0;
    const float *e = row_of<float>(u.a.erase, t) + u.h * u.d_k;
    const float *rate = row_of<float>(u.a.rate, t) + u.h * u.d_k;
    for (int m = 0; m < S / 8; m++) {
        v[m] = m * WARP + lane < u.d_k ? e[m * WARP + lane] : 0;
        sum = fmaf(v[m], v[m], sum);
    }
    float length = sqrtf(warp_sum(sum) + 1e-24f);
    for (int m = 0; m < S / 8; m++) {
        uint32_t i = m * WARP + lane;
        float x = v[m] / length;
        out.erase[i] = x;
        out.rate[i] = i < u.d_k ? x * rate[i] : 0;
    }
}

// Warp 0 makes the vector that is erased, the others the rest.
template <int S> GR_DEV void prepare(const struct head &u, int64_t t, struct vectors<S> &out)
{
    const struct gr_args_linear_attn &a = u.a;
    if (threadIdx.x < WARP) {
        if (gr_ten_is(&a.erase))
            erasure(u, t, out);
        return;
    }
    for (uint32_t i = threadIdx.x - WARP; i < 4 * S; i += (WARPS - 1) * WARP) {
        uint32_t at = u.h * u.d_k + i;
        float q = 0, k = 0, d = 0, seen = 0;
        if (i < u.d_k) {
            float x = gr_ten_is(&a.w) ? row_of<float>(a.w, t)[at] : 0;
            if (gr_ten_is(&a.w_bias))
                x += row_of<float>(a.w_bias, 0)[at];
            d = decay(a, u.h, x);
            q = a.scale * row_of<float>(a.q, t)[at];
            k = row_of<float>(a.k, t)[u.kv * u.d_k + i];
            k = a.rest ? k * (1 - d) : k;
            seen = gr_ten_is(&a.first) ? row_of<float>(a.first, 0)[at] * k : 0;
        }
        out.q[i] = q, out.k[i] = k, out.decay[i] = d, out.seen[i] = seen;
    }
}

// Product of the column (this lane's part s of it) and the erased vector, over all lanes.
template <int S> GR_DEV float known(const float (&s)[S], const struct vectors<S> &u, uint32_t sub)
{
    float sum = 0, x[4];
    for (int m = 0; m < S; m += 4) {
        load<4>(u.erase + 4 * m + 4 * sub, x);
        for (int e = 0; e < 4; e++)
            sum = fmaf(s[m + e], x[e], sum);
    }
    return column_sum(sum);
}

// Updates this lane's part s of a column by value v; returns the product of the column and q.
template <int S>
GR_DEV float step(float (&s)[S], const struct vectors<S> &u, uint32_t sub, float v, bool erases,
                  bool first)
{
    float gone = erases ? known(s, u, sub) : 0, y = 0, x[4], k[4], q[4];
    for (int m = 0; m < S; m += 4) {
        uint32_t at = 4 * m + 4 * sub;
        load<4>(u.q + at, q);
        if (first) {
            load<4>(u.seen + at, x);
            for (int e = 0; e < 4; e++)
                y = fmaf(fmaf(x[e], v, s[m + e]), q[e], y);
        }
        load<4>(u.decay + at, x);
        load<4>(u.k + at, k);
        for (int e = 0; e < 4; e++)
            s[m + e] = fmaf(x[e], s[m + e], k[e] * v);
        if (erases) {
            load<4>(u.rate + at, x);
            for (int e = 0; e < 4; e++)
                s[m + e] = fmaf(-x[e], gone, s[m + e]);
        }
        for (int e = 0; e < 4 && !first; e++)
            y = fmaf(s[m + e], q[e], y);
    }
    return column_sum(y);
}

// Heads with d_k <= 4 S.
template <int S> GR_DEV void run(const struct gr_args_linear_attn &a)
{
    __shared__ struct vectors<S> made[2];
    uint32_t n_head = (uint32_t)a.n_head, d_k = (uint32_t)(a.q.cols / a.n_head);
    uint32_t d_v = (uint32_t)(a.v.cols / a.n_head_kv);
    struct columns c = columns_of(a.src, a.dst, n_head, d_k, d_v);
    struct head u = {a, c.h, c.h / (n_head / (uint32_t)a.n_head_kv), d_k, d_v};
    int64_t per = a.v.rows / a.src.cols, t = c.seq * per;
    bool erases = gr_ten_is(&a.erase), first = gr_ten_is(&a.first);
    float s[S];
    load_column(c, a.state, s);
    prepare(u, t, made[0]);
    __syncthreads();
    for (int64_t n = 0; n < per; n++, t++) {
        float v = row_of<float>(a.v, t)[u.kv * d_v + c.j];
        if (n + 1 < per)
            prepare(u, t + 1, made[(n + 1) % 2]);
        float y = step(s, made[n % 2], c.sub, v, erases, first);
        if (c.in && c.sub == 0)
            row_of<float>(a.y, t)[c.h * d_v + c.j] = y;
        __syncthreads();
    }
    store_column(c, a.state, s);
}

GR_KERNEL(gr_linear_attn_64, struct gr_args_linear_attn, WARPS *WARP, 4)
{
    run<16>(a);
}
GR_KERNEL(gr_linear_attn_128, struct gr_args_linear_attn, WARPS *WARP, 4)
{
    run<32>(a);
}
GR_KERNEL(gr_linear_attn_256, struct gr_args_linear_attn, WARPS *WARP, 3)
{
    run<64>(a);
}

GR_KERNEL(gr_linear_attn_shift, struct gr_args_token_shift, THREADS, 4)
{
    uint32_t n = (uint32_t)a.x.cols, i = thread_id(), seq = i / n, c = i % n;
    if (seq >= a.src.cols)
        return;
    int32_t from = row_of<int32_t>(a.src, 0)[seq];
    float before = from >= 0 ? row_of<float>(a.state, from)[c] : 0;
    int64_t per = a.x.rows / a.src.cols;
    for (int64_t t = seq * per; t < (seq + 1) * per; t++) {
        float x = row_of<float>(a.x, t)[c];
        row_of<float>(a.y, t)[c] = before - x;
        before = x;
    }
    row_of<float>(a.state, row_of<int32_t>(a.dst, 0)[seq])[c] = before;
}
