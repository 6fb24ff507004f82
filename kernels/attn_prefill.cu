// ATTN for many tokens a sequence by mma.sync: FlashAttention-2 (Dao 2023) over lists of cells.
//
// Traffic: a tile of K and V once for 64 queries, mostly from L2, where the tiles of neighbouring
// blocks are the same ones. Bound: tensor cores, and shared memory that feeds them.
// Grid: (KV heads x parts of their groups, tiles of tokens, the last ones first, which see most). A
// tile of queries is 64 (token, head) pairs: as many heads of a group as divide it and 64, so that
// the tokens are few and their spans differ little.
//
// A block: four warps of 16 queries each, which keep queries, weights and output in registers, and
// 64 or 32 keys at a time in shared memory, fetched by row number one tile ahead. Tiles that all of
// a warp's queries see are not masked, those that none sees are left out. The tokens of a tile are
// taken run by run (neighbours of one sequence), so nothing is fetched that no span names; runs of
// at most GR_ATTN_FEW tokens are attn_decode's. Rounding as there; an output in which something was
// no f16 is done over exactly.
#include "kernels/attn_tile.cuh"

enum { THREADS = 128, QUERIES = 64 };

// A warp's 16 queries; a thread's two rows g and g + 8.
template <int DK, int DV, int KT> struct state {
    static constexpr bool keep_q = DK <= 192; // in registers
    uint32_t q[keep_q ? DK / 16 : 1][4];
    float o[DV / 8][4], max[2], sum[2];
    int t[2], h[2], lo[2], hi[2];       // rows: token, head, what it sees
    int any_lo, any_hi, all_lo, all_hi; // what some, and all, of the warp's rows see
};

// The tokens [first, end) of a tile that are one run: what they see of the list.
struct range {
    attn_span span;
    int first_near;
};

GR_DEV int warp_min(int x)
{
    for (int i = 16; i > 0; i /= 2)
        x = min(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

GR_DEV range range_of(const gr_kernel_attn &a, int first, int end)
{
    int lane = threadIdx.x % 32;
    attn_span s = attn_span_of(a, first + min(lane, end - 1 - first)),
              u = attn_span_of(a, first + min(lane + 32, end - 1 - first));
    range r;
    r.span.lo = warp_min(min(s.lo, u.lo)), r.span.hi = -warp_min(-max(s.hi, u.hi));
    r.span.near = -warp_min(-max(s.near, u.near)), r.first_near = warp_min(min(s.near, u.near));
    return r;
}

// What the warp's rows see of the items before `end` by the keys of a plane, rows of the tokens
// [first, last) alone.
template <class STATE>
GR_DEV void look(const gr_kernel_attn &a, STATE &s, int plane, int first, int last)
{
    int any_lo = INT32_MAX, any_hi = 0, all_lo = 0, all_hi = INT32_MAX;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool there = s.t[i] >= first && s.t[i] < last;
        attn_span u = attn_span_of(a, there ? s.t[i] : first);
        s.lo[i] = there ? plane ? u.near : u.lo : 0;
        s.hi[i] = there ? plane ? u.hi : u.near : 0;
        all_lo = max(all_lo, s.lo[i]), all_hi = min(all_hi, s.hi[i]);
        if (s.lo[i] < s.hi[i])
            any_lo = min(any_lo, s.lo[i]), any_hi = max(any_hi, s.hi[i]);
    }
    s.any_lo = warp_min(any_lo), s.any_hi = -warp_min(-any_hi);
    s.all_lo = -warp_min(-all_lo), s.all_hi = warp_min(all_hi);
}

// Logits x of items from j on: finished, masked, and made weights; the state follows.
template <int DK, int DV, int KT>
GR_DEV void weigh(const gr_kernel_attn &a, state<DK, DV, KT> &s, float (&x)[KT / 8][4], int j)
{
    const int first = j + threadIdx.x % 4 * 2;
    if (a.softcap > 0 || a.max_alibi > 0) {
        float slope[2] = {0, 0};
        if (a.max_alibi > 0)
            slope[0] = attn_slope(a, s.h[0]) * ATTN_LOG2E,
            slope[1] = attn_slope(a, s.h[1]) * ATTN_LOG2E;
#pragma unroll
        for (int n = 0; n < KT / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int item = first + 8 * n + e % 2, i = e / 2;
                if (item >= s.lo[i] && item < s.hi[i])
                    x[n][e] = attn_finish(a, x[n][e], slope[i], s.t[i], item);
            }
    }
    if (j < s.all_lo || j + KT > s.all_hi) {
#pragma unroll
        for (int n = 0; n < KT / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int item = first + 8 * n + e % 2, i = e / 2;
                x[n][e] = item >= s.lo[i] && item < s.hi[i] ? x[n][e] : ATTN_NONE;
            }
    }
    float base[2], down[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = ATTN_NONE;
#pragma unroll
        for (int n = 0; n < KT / 8; n++)
            m = fmaxf(m, fmaxf(x[n][2 * i], x[n][2 * i + 1]));
        m = fmaxf(s.max[i], attn_quad_max(m));
        base[i] = m == ATTN_NONE ? 0 : m;
        down[i] = exp2_fast(s.max[i] - base[i]);
        s.max[i] = m;
        s.sum[i] *= down[i];
    }
#pragma unroll
    for (int n = 0; n < KT / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            x[n][e] = exp2_fast(x[n][e] - base[e / 2]);
            s.sum[e / 2] += x[n][e];
        }
#pragma unroll
    for (int n = 0; n < DV / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s.o[n][e] *= down[e / 2];
}

// One tile of keys at k and values at v.
template <int DK, int DV, int KT>
GR_DEV void attend(const gr_kernel_attn &a, state<DK, DV, KT> &s, uint32_t q, uint32_t k,
                   uint32_t v, int j)
{
    const int k_pitch = a.smem.k_pitch, v_pitch = a.v_in_k < 0 ? a.smem.v_pitch : k_pitch;
    float x[KT / 8][4] = {};
#pragma unroll
    for (int c = 0; c < DK / 16; c++) {
        uint32_t fq[4];
        if constexpr (!state<DK, DV, KT>::keep_q)
            attn_frag_a(fq, q, a.smem.q_pitch, c * 16);
#pragma unroll
        for (int n = 0; n < KT / 16; n++) {
            uint32_t f[4];
            attn_frag_k(f, k + n * 16 * k_pitch, k_pitch, c * 16);
            mma_f16(x[2 * n], state<DK, DV, KT>::keep_q ? s.q[c] : fq, f);
            mma_f16(x[2 * n + 1], state<DK, DV, KT>::keep_q ? s.q[c] : fq, f + 2);
        }
    }
    weigh(a, s, x, j);
#pragma unroll
    for (int n = 0; n < KT / 16; n++) {
        uint32_t p[4] = {f16x2(x[2 * n][0], x[2 * n][1]), f16x2(x[2 * n][2], x[2 * n][3]),
                         f16x2(x[2 * n + 1][0], x[2 * n + 1][1]),
                         f16x2(x[2 * n + 1][2], x[2 * n + 1][3])};
#pragma unroll
        for (int c = 0; c < DV / 16; c++) {
            uint32_t f[4];
            attn_frag_v(f, v + n * 16 * v_pitch, v_pitch, c * 16);
            mma_f16(s.o[2 * c], p, f);
            mma_f16(s.o[2 * c + 1], p, f + 2);
        }
    }
}

// y of the thread's rows that belong to tokens whose bit is set, from token t0 on; bad[row]: it has
// to be done over.
template <class STATE>
GR_DEV void finish(const gr_kernel_attn &a, STATE &s, int t0, uint64_t mine, int *bad)
{
    constexpr int N = sizeof s.o / sizeof s.o[0];
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float own = attn_quad_sum(s.sum[i]), sum = own, f = 1;
        bool there = s.t[i] < a.n_tok && (mine >> (s.t[i] - t0) & 1);
        if (a.sinks && there) {
            float sink = a.sinks[s.h[i]] * ATTN_LOG2E, m = fmaxf(s.max[i], sink);
            f = exp2_fast(s.max[i] - m);
            sum = sum * f + exp2_fast(sink - m);
        }
        f = sum > 0 ? f / sum : 0;
        attn_span u = attn_span_of(a, there ? s.t[i] : t0);
        bool wrong = (u.lo < u.hi && !(own > 0)) || !(sum <= 3e38f);
        float *y = (float *)(a.y + s.t[i] * a.y_row) + s.h[i] * a.d_v + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < N; n++) {
            float2 two = {s.o[n][2 * i] * f, s.o[n][2 * i + 1] * f};
            wrong = wrong || !(fabsf(two.x) <= 3e38f) || !(fabsf(two.y) <= 3e38f);
            if (there)
                *(float2 *)(y + n * 8) = two;
        }
        uint32_t any = __ballot_sync(0xffffffffu, there && wrong) >> (lane & ~3) & 15;
        if (lane % 4 == 0)
            bad[threadIdx.x / 32 * 16 + lane / 4 + 8 * i] = any != 0;
    }
}

template <int DK, int DV, int KT> GR_DEV void prefill(const gr_kernel_attn &a, unsigned char *smem)
{
    __shared__ int bad[QUERIES];
    const int group = a.n_head / a.n_head_kv, warp = threadIdx.x / 32;
    const int h_kv = blockIdx.x / a.n_tile, h0 = h_kv * group + blockIdx.x % a.n_tile * a.n_pack;
    const int n = QUERIES / a.n_pack, t0 = (gridDim.y - 1 - blockIdx.y) * n;
    unsigned char *q = smem + a.smem.q;
    state<DK, DV, KT> s;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = warp * 16 + threadIdx.x % 32 / 4 + 8 * i;
        s.t[i] = t0 + row / a.n_pack, s.h[i] = h0 + row % a.n_pack;
        s.max[i] = ATTN_NONE, s.sum[i] = 0;
    }
#pragma unroll
    for (int c = 0; c < DV / 8; c++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s.o[c][e] = 0;

    const attn_runs runs = attn_runs_of(a, t0, n);
    for (int i = 0, end; i < n && t0 + i < a.n_tok; i = end) {
        for (end = i + 1; end < n && !(runs.starts >> end & 1);)
            end++;
        if (runs.few >> i & 1)
            continue;
        range r = range_of(a, t0 + i, t0 + end);
        for (int plane = a.q[0] ? 0 : 1; plane < 2; plane++) {
            int lo = plane ? r.first_near : r.span.lo, hi = plane ? r.span.hi : r.span.near;
            attn_load_q(a, plane, QUERIES, q, [&](int row, int &t, int &h) {
                t = t0 + row / a.n_pack, h = h0 + row % a.n_pack;
                return t < a.n_tok;
            });
            __syncthreads();
            uint32_t warp_q = smem_u32(q) + warp * 16 * a.smem.q_pitch;
            if constexpr (s.keep_q) {
#pragma unroll
                for (int c = 0; c < DK / 16; c++)
                    attn_frag_a(s.q[c], warp_q, a.smem.q_pitch, c * 16);
                __syncthreads();
            }
            look(a, s, plane, t0 + i, t0 + end);
            attn_pipe pipe = attn_pipe_begin<KT>(a, plane, h_kv, lo, hi, smem);
            for (int j = 0; lo + j * KT < hi; j++) {
                uint32_t k, v;
                attn_pipe_take<KT>(a, pipe, j, smem, k, v);
                int item = lo + j * KT;
                if (item < s.any_hi && item + KT > s.any_lo)
                    attend(a, s, warp_q, k, v, item);
            }
            attn_pipe_end();
        }
    }
    finish(a, s, t0, ~runs.few, bad);
    __syncthreads();
    for (int row = 0; row < QUERIES; row++)
        if (bad[row])
            attn_exact<THREADS>(a, t0 + row / a.n_pack, h0 + row % a.n_pack, (float *)smem);
}

#define PREFILL(name, DK, DV, KT, BLOCKS)                                                          \
    GR_KERNEL(gr_attn_prefill_##name, gr_kernel_attn, THREADS, BLOCKS)                             \
    {                                                                                              \
        GR_SMEM;                                                                                   \
        prefill<DK, DV, KT>(a, smem);                                                              \
    }
PREFILL(64, 64, 64, 64, 3)
PREFILL(80, 80, 80, 64, 2)
PREFILL(96, 96, 96, 64, 2)
PREFILL(112, 112, 112, 64, 2)
PREFILL(128, 128, 128, 64, 2)
PREFILL(192_128, 192, 128, 64, 2)
PREFILL(256, 256, 256, 32, 2)
