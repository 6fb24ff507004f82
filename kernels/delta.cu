// DELTA_RULE: gated delta rule, a state S [d_k, d_v] a head.
// Memory: the state once in and out, q, k, v, y once. Bound by the chain of tokens: about 5 d_k d_v
// multiply-adds a head and token from registers.
// Grid: a block for 32 columns of one head of one sequence, a warp for 8 of them, 4 lanes a column;
// a lane holds numbers 16 m + 4 l .. + 3 of its column (l = 0 .. 3), so that its parts of q, k and
// decay are 16 bytes of shared memory each. The block makes the next token's vectors while this one
// is computed: one barrier a token. Blocks of a head repeat that: d_v / 32 times 3 d_k functions.
// Sums over a column run in one order whatever a step begins with.
#include "gr/kernel/ssm.h"
#include "kernels/block.cuh"
#include "kernels/math.cuh"

enum { WARPS = GR_DELTA_WARPS, LANES = 4, COLS = WARP / LANES };

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

// exp(rate * softplus(x)), or of what bounds it.
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

// The sum over the lanes of a column, the same in all of them.
GR_DEV float column_sum(float x)
{
    for (int o = COLS; o < WARP; o *= 2)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

// This lane's part s of a column: forgets, takes in value v, answers q.
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
    uint32_t n_part = (d_v + WARPS * COLS - 1) / (WARPS * COLS), i = blockIdx.x / n_part;
    uint32_t n_head = (uint32_t)a.n_head, seq = i / n_head, lane = threadIdx.x % WARP;
    struct head u = {a, i % n_head, d_k, d_v};
    uint32_t j = (blockIdx.x % n_part * WARPS + threadIdx.x / WARP) * COLS + lane % COLS;
    uint32_t sub = lane / COLS;
    bool in = j < d_v; // the others do as the last column does, but write nothing
    j = in ? j : d_v - 1;
    int32_t from = row_of<int32_t>(a.src, 0)[seq], to = row_of<int32_t>(a.dst, 0)[seq];
    int64_t first = (int64_t)u.h * d_k * d_v + j, per = a.v.rows / a.src.cols;
    float s[S], scale = 1 / sqrtf((float)d_k);
    for (int m = 0; m < S; m++) {
        uint32_t k = m / 4 * 16 + 4 * sub + m % 4;
        s[m] = from >= 0 && k < d_k ? row_of<float>(a.state, from)[first + k * (int64_t)d_v] : 0;
    }
    prepare(u, seq * per, made[0]);
    __syncthreads();
    for (int64_t n = 0, t = seq * per; n < per; n++, t++) {
        float v = row_of<float>(a.v, t)[u.h * d_v + j];
        float beta = sigmoid(row_of<float>(a.beta, t)[u.h]);
        if (n + 1 < per)
            prepare(u, t + 1, made[(n + 1) % 2]);
        float y = step(s, made[n % 2], sub, v, beta);
        if (in && sub == 0)
            row_of<float>(a.y, t)[u.h * d_v + j] = y * scale;
        __syncthreads();
    }
    for (int m = 0; m < S; m++) {
        uint32_t k = m / 4 * 16 + 4 * sub + m % 4;
        if (in && k < d_k)
            row_of<float>(a.state, to)[first + k * (int64_t)d_v] = s[m];
    }
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
