// DELTA_RULE: gated delta rule, a state S [d_k, d_v] a head.
// Memory: the state once in and out, q, k, v, y once. Bound by the chain of tokens: about 5 d_k d_v
// multiply-adds a head and token from registers.
// Grid: kernels/columns.cuh. The block makes the next token's vectors while this one is computed:
// one barrier a token. Blocks of a head repeat that: d_v / 32 times 3 d_k functions.
// Sums over a column run in one order whatever a step begins with.
#include "kernels/columns.cuh"
#include "kernels/math.cuh"

// One head, and a token's vectors [4 S], zeros behind d_k.
struct head {
    const struct gr_args_delta_rule &a;
    uint32_t h, d_k, d_v;
};

template <int S> struct alignas(16) vectors {
    float q[4 * S], k[4 * S], decay[4 * S];
};

// x / sqrt(the sum of its squares + eps), by one warp.
template <int S> GR_DEV void unit(const float *x, uint32_t n, float eps, float *y)
{
    uint32_t lane = threadIdx.x % WARP;
    float v[S / 8], sum = 0;
    for (int m = 0; m < S / 8; m++) {
        v[m] = m * WARP + lane < n ? x[m * WARP + lane] : 0;
        sum = fmaf(v[m], v[m], sum);
    }
    float length = sqrtf(warp_sum(sum) + eps);
    for (int m = 0; m < S / 8; m++)
        y[m * WARP + lane] = v[m] / length;
}

// exp(rate * softplus(x)), or exp of the bounded form.
GR_DEV float decay(const struct gr_args_delta_rule &a, float rate, float x)
{
    return expf(a.bound == 0 ? rate * softplus(x) : a.bound * sigmoid(a.slope * rate * x));
}

// Warp 0 makes q, warp 1 k, the others the decays.
template <int S> GR_DEV void prepare(const struct head &u, int64_t t, struct vectors<S> &out)
{
    const struct gr_args_delta_rule &a = u.a;
    uint32_t warp = threadIdx.x / WARP, n_k = (uint32_t)a.n_head_k;
    uint32_t from = (a.tiled ? u.h % n_k : u.h / ((uint32_t)a.n_head / n_k)) * u.d_k;
    if (warp < 2) {
        const struct gr_ten &x = warp ? a.k : a.q;
        unit<S>(row_of<float>(x, t) + from, u.d_k, a.eps, warp ? out.k : out.q);
        return;
    }
    uint32_t per = (uint32_t)(a.alpha.cols / a.n_head); // 1 or d_k
    for (uint32_t i = threadIdx.x - 2 * WARP; i < 4 * S; i += (WARPS - 2) * WARP) {
        uint32_t at = u.h * per + (per == 1 ? 0 : i);
        float x = 0;
        if (i < u.d_k) {
            x = row_of<float>(a.alpha, t)[at];
            if (gr_ten_is(&a.dt_bias))
                x += row_of<float>(a.dt_bias, 0)[at];
            x = decay(a, row_of<float>(a.a, 0)[u.h], x);
        }
        out.decay[i] = x;
    }
}

// Updates this lane's part s of a column by value v; returns the product of the column and q.
template <int S>
GR_DEV float step(float (&s)[S], const struct vectors<S> &u, uint32_t sub, float v, float beta)
{
    float known = 0, y = 0, x[4];
    for (int m = 0; m < S; m += 4) {
        load<4>(u.decay + 4 * m + 4 * sub, x);
        for (int e = 0; e < 4; e++)
            s[m + e] *= x[e];
        load<4>(u.k + 4 * m + 4 * sub, x);
        for (int e = 0; e < 4; e++)
            known = fmaf(s[m + e], x[e], known);
    }
    float change = beta * (v - column_sum(known));
    for (int m = 0; m < S; m += 4) {
        load<4>(u.k + 4 * m + 4 * sub, x);
        for (int e = 0; e < 4; e++)
            s[m + e] = fmaf(x[e], change, s[m + e]);
        load<4>(u.q + 4 * m + 4 * sub, x);
        for (int e = 0; e < 4; e++)
            y = fmaf(s[m + e], x[e], y);
    }
    return column_sum(y);
}

// Heads with d_k <= 4 S.
template <int S> GR_DEV void run(const struct gr_args_delta_rule &a)
{
    __shared__ struct vectors<S> made[2];
    uint32_t d_k = (uint32_t)(a.q.cols / a.n_head_k), d_v = (uint32_t)(a.v.cols / a.n_head);
    struct columns c = columns_of(a.src, a.dst, (uint32_t)a.n_head, d_k, d_v);
    struct head u = {a, c.h, d_k, d_v};
    int64_t per = a.v.rows / a.src.cols, t = c.seq * per;
    float s[S], scale = 1 / sqrtf((float)d_k);
    load_column(c, a.state, s);
    prepare(u, t, made[0]);
    __syncthreads();
    for (int64_t n = 0; n < per; n++, t++) {
        float v = row_of<float>(a.v, t)[c.h * d_v + c.j];
        float beta = sigmoid(row_of<float>(a.beta, t)[c.h]);
        if (n + 1 < per)
            prepare(u, t + 1, made[(n + 1) % 2]);
        float y = step(s, made[n % 2], c.sub, v, beta);
        if (c.in && c.sub == 0)
            row_of<float>(a.y, t)[c.h * d_v + c.j] = y * scale;
        __syncthreads();
    }
    store_column(c, a.state, s);
}

GR_KERNEL(gr_delta_64, struct gr_args_delta_rule, WARPS *WARP, 4)
{
    run<16>(a);
}
GR_KERNEL(gr_delta_128, struct gr_args_delta_rule, WARPS *WARP, 4)
{
    run<32>(a);
}
GR_KERNEL(gr_delta_256, struct gr_args_delta_rule, WARPS *WARP, 3)
{
    run<64>(a);
}
