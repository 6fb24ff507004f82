// SSM_CONV: a short convolution along each column of a sequence. Memory: x and y once, 8 bytes an
// element (the window comes from L1). Bound by it. Grid: a thread for a column and a chunk of
// tokens of one sequence; the thread of the first chunk alone touches the state: it reads the
// inputs it needs and then writes the last inputs there.
//
// SSM_SCAN: Mamba 1 and 2. Memory: state once in and out, x, y, z once; B and C come from L1 for
// the columns of a head. Bound by the chain of tokens: 2 n_state multiply-adds and L1 loads a
// column and token, half as many exponentials with a rate for each state. Grid: L lanes a column, S
// states in the registers of each; a warp has 32 / L neighbouring columns, so that their states are
// whole sectors of memory. The next token's operands are fetched before this one is computed.
//
// The result for a token does not depend on where a step or a chunk begins: sums run over the
// window or the states in one order, and the state is the f32 that registers hold.
#include "gr/kernel/ssm.h"
#include "kernels/block.cuh"
#include "kernels/math.cuh"

enum { THREADS = 256 };

// A sequence: rows of the state it reads (NULL: zeros) and writes.
struct sequence {
    const float *from;
    float *to;
};

GR_DEV struct sequence sequence_at(const struct gr_ten &state, const struct gr_ten &src,
                                   const struct gr_ten &dst, uint32_t q)
{
    int32_t from = row_of<int32_t>(src, 0)[q];
    return {from < 0 ? nullptr : row_of<float>(state, from),
            row_of<float>(state, row_of<int32_t>(dst, 0)[q])};
}

// --- SSM_CONV ---

struct column {
    const struct gr_args_ssm_conv &a;
    struct sequence s;
    int64_t first; // row of x of the sequence's first token
    int32_t past, c;

    // The input at token t; t < 0: from the state.
    __device__ __forceinline__ float input(int32_t t) const
    {
        if (t >= 0)
            return row_of<float>(a.x, first + t)[c];
        return s.from ? s.from[(past + t) * a.x.cols + c] : 0;
    }

    __device__ __forceinline__ void output(int32_t t, float sum) const
    {
        if (gr_ten_is(&a.b))
            sum += row_of<float>(a.b, 0)[c];
        row_of<float>(a.y, first + t)[c] = a.kind == GR_SILU ? silu(sum) : sum;
    }
};

// Tokens [lo, hi) with a kernel of K columns, 0 = any number.
template <int K> GR_DEV void convolve(const struct column &u, int32_t lo, int32_t hi)
{
    const float *w = row_of<float>(u.a.w, u.c);
    float in[K ? K : 1], tap[K ? K : 1];
    for (int j = 0; j < K; j++)
        tap[j] = w[j], in[j] = j < K - 1 ? u.input(lo - u.past + j) : 0;
    for (int32_t t = lo; t < hi; t++) {
        float sum = 0;
        if (K)
            in[K ? K - 1 : 0] = u.input(t);
        for (int j = 0; j < K; j++)
            sum = fmaf(tap[j], in[j], sum);
        for (int j = 0; j + 1 < K; j++)
            in[j] = in[j + 1];
        for (int j = 0; !K && j <= u.past; j++)
            sum = fmaf(w[j], u.input(t - u.past + j), sum);
        u.output(t, sum);
    }
}

template <int K> GR_DEV void conv(const struct gr_kernel_ssm_conv &a)
{
    uint32_t n = (uint32_t)a.c.x.cols, n_seq = (uint32_t)a.c.src.cols;
    uint32_t per = (uint32_t)a.c.x.rows / n_seq, n_chunk = (per + a.chunk - 1) / a.chunk;
    uint32_t i = thread_id(), part = i / n, q = part / n_chunk, lo = part % n_chunk * a.chunk;
    if (q >= n_seq)
        return;
    struct sequence s = sequence_at(a.c.state, a.c.src, a.c.dst, q);
    struct column u = {a.c, s, (int64_t)q * per, (int32_t)a.c.w.cols - 1, (int32_t)(i % n)};
    convolve<K>(u, (int32_t)lo, (int32_t)(lo + a.chunk < per ? lo + a.chunk : per));
    for (int32_t j = 0; lo == 0 && j < u.past; j++) // ascending: it may overwrite where it reads
        s.to[j * (int64_t)n + u.c] = u.input((int32_t)per - u.past + j);
}

GR_KERNEL(gr_ssm_conv_any, struct gr_kernel_ssm_conv, THREADS, 4)
{
    conv<0>(a);
}
GR_KERNEL(gr_ssm_conv_3, struct gr_kernel_ssm_conv, THREADS, 4)
{
    conv<3>(a);
}
GR_KERNEL(gr_ssm_conv_4, struct gr_kernel_ssm_conv, THREADS, 4)
{
    conv<4>(a);
}

// --- SSM_SCAN ---

// Operands of a token in a lane: its state k is number k * L + `lane of the column`.
template <int S> struct token {
    float dt, x, z, b[S], c[S];
};

template <int S, int L> struct scan {
    const struct gr_args_ssm_scan &a;
    uint32_t col, head, sub; // the column, its head, the number of this lane in the column
    uint32_t at;             // of the first state in a row of B and C
    float bias, d;

    __device__ __forceinline__ bool has(int k) const
    {
        return k * L + sub < (uint32_t)a.n_state;
    }

    __device__ __forceinline__ struct token<S> fetch(int64_t t) const {
        struct token<S> u;
        u.dt = row_of<float>(a.dt, t)[head];
        u.x = row_of<float>(a.x, t)[col];
        u.z = gr_ten_is(&a.z) ? row_of<float>(a.z, t)[col] : 0;
        const float *b = row_of<float>(a.b, t) + at, *c = row_of<float>(a.c, t) + at;
        for (int k = 0; k < S; k++) {
            u.b[k] = has(k) ? b[k * L + sub] : 0;
            u.c[k] = has(k) ? c[k * L + sub] : 0;
        }
        return u;
    }
};

// EACH: a rate for every state; else one a head.
template <int S, int L, bool EACH> GR_DEV void scan_run(const struct gr_args_ssm_scan &a)
{
    const uint32_t cols = WARP / L;
    uint32_t n = (uint32_t)a.x.cols, n_tile = (n + cols - 1) / cols, i = thread_id() / WARP;
    uint32_t q = i / n_tile, lane = threadIdx.x % WARP, col = i % n_tile * cols + lane % cols;
    uint32_t n_head = (uint32_t)a.dt.cols, n_group = (uint32_t)(a.b.cols / a.n_state);
    if (q >= a.src.cols)
        return;
    bool in = col < n; // the others compute the last one, but write nothing
    col = in ? col : n - 1;
    uint32_t head = col / (n / n_head), group = head / (n_head / n_group);
    struct scan<S, L> r = {
        a, col, head, lane / cols, group *(uint32_t)a.n_state, 0, 0
    };
    r.bias = gr_ten_is(&a.dt_bias) ? row_of<float>(a.dt_bias, 0)[head] : 0;
    r.d = gr_ten_is(&a.d) ? row_of<float>(a.d, 0)[head] : 0;
    struct sequence s = sequence_at(a.state, a.src, a.dst, q);
    const float *rates = row_of<float>(a.a, head);
    float h[S], rate[EACH ? S : 1];
    rate[0] = rates[0];
    for (int k = 0; k < S; k++) {
        h[k] = s.from && r.has(k) ? s.from[(k * L + r.sub) * (int64_t)n + col] : 0;
        if (EACH)
            rate[EACH ? k : 0] = r.has(k) ? rates[k * L + r.sub] : 0;
    }
    int64_t per = a.x.rows / a.src.cols, t = q * per, end = t + per;
    struct token<S> u = r.fetch(t);
    for (; t < end; t++) {
        struct token<S> next = r.fetch(t + 1 < end ? t + 1 : t);
        float dt = softplus(u.dt + r.bias), dtx = dt * u.x, sum = 0;
        float decay = EACH ? 0 : expf(dt * rate[0]);
        for (int k = 0; k < S; k++) {
            h[k] = fmaf(EACH ? expf(dt * rate[EACH ? k : 0]) : decay, h[k], dtx * u.b[k]);
            sum = fmaf(u.c[k], h[k], sum);
        }
        for (int o = cols; o < WARP; o *= 2)
            sum += __shfl_xor_sync(~0u, sum, o);
        sum = fmaf(r.d, u.x, sum);
        if (in && r.sub == 0)
            row_of<float>(a.y, t)[col] = gr_ten_is(&a.z) ? sum * silu(u.z) : sum;
        u = next;
    }
    for (int k = 0; k < S; k++)
        if (in && r.has(k))
            s.to[(k * L + r.sub) * (int64_t)n + col] = h[k];
}

#define SCAN(name, S, L, EACH)                                                                     \
    GR_KERNEL(name, struct gr_args_ssm_scan, GR_SCAN_WARPS *WARP, 2)                               \
    {                                                                                              \
        scan_run<S, L, EACH>(a);                                                                   \
    }
SCAN(gr_ssm_scan_16, 4, 4, false)
SCAN(gr_ssm_scan_128, 16, 8, false)
SCAN(gr_ssm_scan_512, 16, 32, false)
SCAN(gr_ssm_scan_each_16, 4, 4, true)
SCAN(gr_ssm_scan_each_128, 16, 8, true)
SCAN(gr_ssm_scan_each_512, 16, 32, true)
