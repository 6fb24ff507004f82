// ATTN for few tokens a sequence: a token's span is cut into chunks, one or more a block, and the
// chunks' results are joined by the last block of its queries, or by a second launch where the
// step also has tokens for other files or more groups than counters.
// The packed x of y for the next product is written by the blocks that join, of up to 24 tokens
// where the heads of a group are whole chunks, otherwise of one token by the last block of all; by
// the second launch where attn_prefill has written that of its tokens.
//
// Traffic: every visible row of K and V once for each 16 queries; queries are the heads of a group
// and, up to 16 together, the tokens of a run, so usually once. Bound: HBM. For that the next one
// or two tiles of rows are always under way (cp.async, by row number), and two or three blocks
// share a multiprocessor, and the first two tiles are asked of L2 before the launch in front is
// over. Grid: (tokens, KV heads x tiles of their heads, blocks that walk over the chunks), by
// shapes alone: the tokens' spans are data. A block whose token is not the first of its 16 queries,
// or whose first chunk lies behind the span, leaves at once. Chunks are 256 items; of a longer span
// than n_chunk of those they are n_chunk of one length, so that an H200 has all of a token under
// way at once, and joining them takes no longer. They are counted from the beginning of the group's
// span, and n_chunk is of the shape (of 8 KV heads 32: from 8,193 items on), or less where scratch
// of 64 MiB has no room (of 32 heads of 128 columns: of more than 124 tokens): so results depend
// neither on the list, its length and its room, nor on the grid or other sequences.
//
// A block: 16 queries x 32 or 64 keys. Four warps share the keys for the logits and the columns of
// V for the output; head sizes are run-time numbers, NP pairs of 8 columns of V a warp. Products
// f16, everything else f32: a logit is off by 2^-11 of sum |q k|, a weight and with it the output
// by as much and 2^-11 more.
#include "kernels/attn_planes.cuh"
#include "kernels/last.cuh"
#include "kernels/packed_x.cuh"

enum { THREADS = 128, WARPS = 4, QUERIES = 16 };

// The queries of a block: of group g and heads [h0, h0 + n_head).
struct tile {
    attn_group g;
    int h_kv, h0, n_head, n_pack;
};

GR_DEV bool token_of(const tile &b, int row, int &t, int &h)
{
    t = b.g.lead + row / b.n_pack, h = b.h0 + row % b.n_pack;
    return row / b.n_pack < b.g.n && row % b.n_pack < b.n_head;
}

// Items of a chunk, and how many chunks there are.
GR_DEV int chunk_len(const gr_kernel_attn &a, const attn_span &s)
{
    return max((int)GR_ATTN_CHUNK, (s.hi - s.lo + a.n_chunk - 1) / a.n_chunk);
}
GR_DEV int n_chunk(const gr_kernel_attn &a, const attn_span &s)
{
    int n = s.hi - s.lo, len = chunk_len(a, s);
    return n > 0 ? (n + len - 1) / len : 0;
}
GR_DEV float *part_of(const gr_kernel_attn &a, int t, int chunk, int h)
{
    return a.part + (((int64_t)t * a.n_chunk + chunk) * a.n_head + h) * (a.d_v + 4);
}

// A thread's two rows of the tile (g and g + 8): the items of the current range that they see,
// and their state.
template <int NP> struct state {
    int t[2], lo[2], hi[2];
    float slope[2];
    float max[2], sum[2], o[NP][2][4];
};

// The first column of tile c of a warp: blocks of 32 in turn, or halves of them.
template <int NP> GR_DEV int tile_column(int c)
{
    const int warp = threadIdx.x / 32;
    return (NP == 1 ? warp : 2 * (warp + WARPS * (c / 2)) + c % 2) * 16;
}

template <int NP> GR_DEV void reset(state<NP> &s)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        s.max[i] = ATTN_NONE, s.sum[i] = 0;
#pragma unroll
    for (int p = 0; p < NP; p++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            s.o[p][i / 4][i % 4] = 0;
}

// Logits [KW / 8][4] of KW keys from item `first` on, finished for items that are seen.
template <int NP, int N>
GR_DEV void mask(const gr_kernel_attn &a, const state<NP> &s, float (&x)[N][4], int first)
{
    const int last = first + 8 * N, from = first + threadIdx.x % 4 * 2;
    const bool full = first >= max(s.lo[0], s.lo[1]) && last <= min(s.hi[0], s.hi[1]);
    if (full && !(a.softcap > 0) && !(a.max_alibi > 0))
        return;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = e / 2, item = from + 8 * n + e % 2;
            bool seen = item >= s.lo[i] && item < s.hi[i];
            x[n][e] = seen ? attn_finish(a, x[n][e], s.slope[i], s.t[i], item) : ATTN_NONE;
        }
}

// The logits x [KW / 8][4] of KW keys from item `first` on become weights in shared memory
// [16][KT]; state and output follow the new maxima.
template <int NP, int KT>
GR_DEV void weigh(const gr_kernel_attn &a, state<NP> &s, float (&x)[KT / 32][4], int first,
                  float (*red)[QUERIES], uint16_t (*p)[KT + 8])
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float top[2] = {ATTN_NONE, ATTN_NONE};
    mask(a, s, x, first);
#pragma unroll
    for (int n = 0; n < KT / 32; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            top[e / 2] = fmaxf(top[e / 2], x[n][e]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = attn_quad_max(top[i]);
        if (t == 0)
            red[warp][g + 8 * i] = top[i];
    }
    __syncthreads();
    float down[2], base[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = s.max[i];
        for (int w = 0; w < WARPS; w++)
            m = fmaxf(m, red[w][g + 8 * i]);
        base[i] = m == ATTN_NONE ? 0 : m;
        down[i] = exp2_fast(s.max[i] - base[i]);
        s.max[i] = m;
        s.sum[i] *= down[i];
    }
#pragma unroll
    for (int n = 0; n < KT / 32; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float lo = exp2_fast(x[n][2 * i] - base[i]), hi = exp2_fast(x[n][2 * i + 1] - base[i]);
            s.sum[i] += lo + hi;
            *(uint32_t *)&p[g + 8 * i][warp * (KT / 4) + 8 * n + 2 * t] = f16x2(lo, hi);
        }
#pragma unroll
    for (int k = 0; k < NP; k++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            s.o[k][e / 4][e % 4] *= down[e % 4 / 2];
}

// x = the logits of the warp's keys, whose rows begin at k.
template <int KT>
GR_DEV void multiply_k(const gr_kernel_attn &a, float (&x)[KT / 32][4], const tile &b, int plane,
                       uint32_t q, const unsigned char *k)
{
    constexpr int KW = KT / WARPS;
    const gr_kernel_rows &r = a.k[plane];
    const int step = attn_step_at(r, a.k_stage, b.h_kv), first = threadIdx.x / 32 * KW;
    if (r.type == GR_Q8_0) {
        attn_multiply_k<GR_Q8_0, KW>(a, x, q, k + first * a.k_stage.pitch, step);
    } else if (r.type == GR_Q4_0) {
        attn_multiply_k<GR_Q4_0, KW>(a, x, q, k + first * a.k_stage.pitch, step);
    } else {
        const uint32_t tile = smem_u32(k) + first * a.smem.k_pitch;
#pragma unroll 4
        for (int c = 0; c < a.d_k; c += 16) {
            uint32_t fq[4], fk[4];
            attn_frag_a(fq, q, a.smem.q_pitch, c);
            attn_frag_k<KW == 8>(fk, tile, a.smem.k_pitch, c);
            mma_f16(x[0], fq, fk);
            if constexpr (KW == 16)
                mma_f16(x[1], fq, fk + 2);
        }
    }
}

// The output of weights p [16][KT] and of values whose rows begin at v, f16.
template <int NP, int KT>
GR_DEV void multiply_v(const gr_kernel_attn &a, state<NP> &s, uint32_t p, uint32_t v, int pitch)
{
#pragma unroll
    for (int j = 0; j < KT; j += 16) {
        uint32_t fp[4], fv[4];
        attn_frag_a(fp, p, (KT + 8) * 2, j);
#pragma unroll
        for (int c = 0; c < NP; c++) {
            int col = tile_column<NP>(c);
            if (col < a.d_v) {
                attn_frag_v(fv, v + j * pitch, pitch, col);
                mma_f16(s.o[c][0], fp, fv);
                mma_f16(s.o[c][1], fp, fv + 2);
            }
        }
    }
}
// The same of planes, steps `step` bytes behind the codes.
template <int TYPE, int NP, int KT>
GR_DEV void multiply_planes(const gr_kernel_attn &a, state<NP> &s, uint32_t p,
                            const unsigned char *v, int pitch, int step)
{
    constexpr int TILES = NP == 1 ? 1 : 2;
#pragma unroll
    for (int j = 0; j < KT; j += 32) {
        uint32_t fp[2][4];
        attn_frag_a(fp[0], p, (KT + 8) * 2, j);
        attn_frag_a(fp[1], p, (KT + 8) * 2, j + 16);
#pragma unroll
        for (int c = 0; c < NP; c += TILES) {
            int col = tile_column<NP>(c);
            if (col < a.d_v)
                attn_multiply_v<TYPE, TILES>(s.o + c, fp, v + j * pitch, pitch, step, col / GR_QK,
                                             col / 16 % 2);
        }
    }
}

// Values as tiles hold them: planes or f16.
template <int NP, int KT>
GR_DEV void multiply_any_v(const gr_kernel_attn &a, state<NP> &s, const tile &b, uint32_t p,
                           const unsigned char *v)
{
    const bool own = a.v_in_k < 0;
    const gr_kernel_rows &r = own ? a.v : a.k[1];
    const int pitch = own ? a.v_stage.pitch : a.k_stage.pitch;
    int step = attn_step_at(r, own ? a.v_stage : a.k_stage, b.h_kv);
    if (!own) // from the column where values begin
        step += a.v_in_k / GR_QK * 2 - gr_planes_codes(r.type, a.v_in_k);
    if (r.type == GR_Q8_0)
        multiply_planes<GR_Q8_0, NP, KT>(a, s, p, v, pitch, step);
    else if (r.type == GR_Q4_0)
        multiply_planes<GR_Q4_0, NP, KT>(a, s, p, v, pitch, step);
    else
        multiply_v<NP, KT>(a, s, p, smem_u32(v), own ? a.smem.v_pitch : a.smem.k_pitch);
}

// Items [lo, hi) of the list, by the near or the far keys.
template <int NP, int KT>
GR_DEV void attend(const gr_kernel_attn &a, const tile &b, state<NP> &s, int plane, int lo, int hi,
                   unsigned char *smem)
{
    __shared__ float red[WARPS][QUERIES];
    __align__(16) __shared__ uint16_t p[QUERIES][KT + 8];
    attn_pipe pipe = attn_pipe_begin<KT>(a, plane, b.h_kv, lo, hi, smem);
    for (int i = 0; lo + i * KT < hi; i++) {
        unsigned char *k, *v;
        attn_pipe_take<KT, true>(a, pipe, i, smem, k, v);
        float x[KT / 32][4] = {};
        multiply_k<KT>(a, x, b, plane, smem_u32(smem), k);
        weigh<NP, KT>(a, s, x, lo + i * KT + threadIdx.x / 32 * (KT / WARPS), red, p);
        __syncthreads();
        multiply_any_v<NP, KT>(a, s, b, smem_u32(p), v);
    }
    attn_pipe_end();
}

// Sets the items before `end` that the thread's rows see.
template <int NP>
GR_DEV void look(const gr_kernel_attn &a, const tile &b, state<NP> &s, int plane, int end)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int h;
        bool there = token_of(b, threadIdx.x % 32 / 4 + 8 * i, s.t[i], h);
        attn_span u = attn_span_of(a, there ? s.t[i] : b.g.lead);
        // missing queries see all, or nothing where a logit depends on their position
        s.lo[i] = there ? plane ? u.near : u.lo : 0;
        s.hi[i] = there ? min(plane ? u.hi : u.near, end) : a.max_alibi > 0 ? 0 : INT32_MAX;
        s.slope[i] = there && a.max_alibi > 0 ? attn_slope(a, h) * ATTN_LOG2E : 0;
    }
}

template <int NP>
GR_DEV void write_part(const gr_kernel_attn &a, const tile &b, const state<NP> &s, int chunk)
{
    __shared__ float red[WARPS][QUERIES];
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, lane4 = threadIdx.x % 4;
    const bool planes = gr_attn_by_planes(a.v.type); // tiles are even columns, then odd ones
    for (int i = 0; i < 2; i++) {
        float sum = attn_quad_sum(s.sum[i]);
        if (lane4 == 0)
            red[warp][g + 8 * i] = sum;
    }
    __syncthreads();
    for (int i = 0; i < 2; i++) {
        int t, h;
        if (!token_of(b, g + 8 * i, t, h))
            continue;
        float *part = part_of(a, t, chunk, h);
#pragma unroll
        for (int c = 0; c < NP; c++) {
            int col = tile_column<NP>(c);
            const float *first = s.o[c][0] + 2 * i, *second = s.o[c][1] + 2 * i;
            if (col >= a.d_v)
                continue;
            if (planes) {
                *(float4 *)(part + col + lane4 * 4) =
                    make_float4(first[0], second[0], first[1], second[1]);
            } else {
                *(float2 *)(part + col + lane4 * 2) = make_float2(first[0], first[1]);
                *(float2 *)(part + col + lane4 * 2 + 8) = make_float2(second[0], second[1]);
            }
        }
        if (warp == 0 && lane4 == 0) {
            part[a.d_v] = s.max[i];
            part[a.d_v + 1] =
                red[0][g + 8 * i] + red[1][g + 8 * i] + red[2][g + 8 * i] + red[3][g + 8 * i];
        }
    }
    __syncthreads();
}

// Joins the n chunks of one head of one token, by a warp that holds K times 128 columns; false
// where attn_exact has to compute it.
template <int K> GR_DEV bool join(const gr_kernel_attn &a, int t, int h, int n)
{
    const int lane = threadIdx.x % 32;
    attn_span own = attn_span_of(a, t);
    float sink = a.sinks ? a.sinks[h] * ATTN_LOG2E : ATTN_NONE, max = sink, sum = 0;
    for (int c = lane; c < n; c += 32)
        max = fmaxf(max, part_of(a, t, c, h)[a.d_v]);
    for (int i = 16; i > 0; i /= 2)
        max = fmaxf(max, __shfl_xor_sync(~0u, max, i));
    float base = max == ATTN_NONE ? 0 : max;
    float4 o[K] = {};
    for (int c0 = 0; c0 < n; c0 += 32) { // a lane weighs a chunk; all add up the outputs
        float weight = 0;
        if (c0 + lane < n) {
            float2 of = *(const float2 *)(part_of(a, t, c0 + lane, h) + a.d_v);
            weight = exp2_fast(of.x - base), sum += weight * of.y;
        }
#pragma unroll 16 / K
        for (int c = c0; c < min(n, c0 + 32); c++) {
            const float *part = part_of(a, t, c, h);
            float f = __shfl_sync(~0u, weight, c - c0);
#pragma unroll
            for (int k = 0; k < K; k++)
                if (128 * k + 4 * lane < a.d_v) {
                    float4 x = *(const float4 *)(part + 128 * k + 4 * lane);
                    o[k].x += f * x.x, o[k].y += f * x.y, o[k].z += f * x.z, o[k].w += f * x.w;
                }
        }
    }
    for (int i = 16; i > 0; i /= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    float all = sum + (a.sinks ? exp2_fast(sink - base) : 0);
    float *y = (float *)(a.y + t * a.y_row) + h * a.d_v;
    bool good = (own.lo >= own.hi || sum > 0) && fabsf(all) <= 3e38f;
    for (int k = 0; k < K; k++) {
        float4 x = o[k];
        good = good && fabsf(x.x) <= 3e38f && fabsf(x.y) <= 3e38f && fabsf(x.z) <= 3e38f &&
               fabsf(x.w) <= 3e38f;
        if (all > 0)
            x = make_float4(x.x / all, x.y / all, x.z / all, x.w / all);
        else
            x = make_float4(0, 0, 0, 0);
        if (128 * k + 4 * lane < a.d_v)
            *(float4 *)(y + 128 * k + 4 * lane) = x;
    }
    return __all_sync(~0u, good);
}

// The same for rows of a tile, which row(r, t, h) names, with n chunks.
template <int K, class F>
GR_DEV void join_rows(const gr_kernel_attn &a, int n_row, int n, unsigned char *smem, F row)
{
    __shared__ bool exact[QUERIES];
    int t, h;
    for (int r = threadIdx.x / 32; r < n_row; r += WARPS) {
        bool again = row(r, t, h) && !join<K>(a, t, h, n);
        if (threadIdx.x % 32 == 0)
            exact[r] = again;
    }
    __syncthreads();
    for (int r = 0; r < n_row; r++)
        if (exact[r] && row(r, t, h))
            attn_exact<THREADS>(a, t, h, (float *)smem);
}

// Asks L2 for n bytes of a row, for a head of it.
GR_DEV void ask(const char *p, int n)
{
    uint32_t below = (uint32_t)((uintptr_t)p % 16); // whole pieces of 16 bytes
    bulk_prefetch(p - below, (below + (uint32_t)n + 15) / 16 * 16);
}
GR_DEV void ask(const gr_kernel_rows &r, int row, int h_kv)
{
    ask(r.data + row * r.row + h_kv * r.head, r.head);
    if (r.head_step)
        ask(r.step + row * r.row + h_kv * r.head_step, r.head_step);
}
// Asks L2 for the rows of n items from item `first` on, which may be before the launch in front is
// over: rows that it writes are read again later.
GR_DEV void ask(const gr_kernel_attn &a, const tile &b, int first, int n)
{
    for (int i = first + threadIdx.x; i < min(first + n, b.g.span.hi); i += THREADS) {
        int row = a.list[i];
        ask(a.k[!a.q[0] || i >= b.g.first_near], row, b.h_kv);
        if (a.v_in_k < 0)
            ask(a.v, row, b.h_kv);
    }
}

// The chunks of the group that token t leads, every gridDim.z th one. The first rows are asked for
// while the launch in front is not over.
template <int NP, int KT> GR_DEV void decode(const gr_kernel_attn &a, int t, unsigned char *smem)
{
    int group = a.n_head / a.n_head_kv, part = blockIdx.y % a.n_tile;
    tile b;
    b.g = attn_group_of(a, t, QUERIES / a.n_pack);
    if (b.g.lead != t)
        return;
    b.h_kv = blockIdx.y / a.n_tile, b.n_pack = a.n_pack;
    b.h0 = b.h_kv * group + part * a.n_pack;
    b.n_head = min(a.n_pack, group - part * a.n_pack);
    int len = chunk_len(a, b.g.span), n = n_chunk(a, b.g.span), in_smem = -1;
    if ((int)blockIdx.z < n)
        ask(a, b, b.g.span.lo + blockIdx.z * len, min(len, 2 * KT));
    griddep_begin(); // spans and lists are complete from the start, rows may not be
    for (int c = blockIdx.z; c < n; c += gridDim.z) {
        int from = b.g.span.lo + c * len, to = min(from + len, b.g.span.hi);
        state<NP> s;
        reset(s);
        for (int plane = a.q[0] ? 0 : 1; plane < 2; plane++) {
            int lo = plane ? max(from, b.g.first_near) : from;
            int hi = plane ? to : min(to, b.g.span.near);
            if (lo >= hi)
                continue;
            if (in_smem != plane)
                attn_load_q<true>(a, in_smem = plane, QUERIES, smem,
                                  [&](int r, int &t, int &h) { return token_of(b, r, t, h); });
            look(a, b, s, plane, hi);
            attend<NP, KT>(a, b, s, plane, lo, hi, smem);
        }
        write_part(a, b, s, c);
    }
    int n_block = max(1, min(n, (int)gridDim.z)), me = t * gridDim.y + blockIdx.y;
    if (!a.count || (int)blockIdx.z >= n_block || (n_block > 1 && !last_of(a.count + me, n_block)))
        return;
    join_rows<(NP + 1) / 2>(a, QUERIES, n, smem,
                            [&](int r, int &t, int &h) { return token_of(b, r, t, h); });
    if (a.packed_alone) {
        int chunks = b.n_head * a.d_v / GR_PACK_COLS, first = b.h0 * a.d_v / GR_PACK_COLS;
        packed_x_chunks<2>(a.packed_x, b.g.lead, b.g.lead, b.g.n, first, first + chunks);
    } else if (a.packed_x.to.n && last_of(a.count + gridDim.y, gridDim.y)) {
        packed_x_chunks<2>(a.packed_x, 0, 0, 1, 0, (int)gr_packed_x_chunks(a.packed_x.to.units));
    }
}

// Calls f(t) for those of the n_each tokens from n_each * block on that are for this file.
template <class F> GR_DEV void each_token(const gr_kernel_attn &a, int block, F f)
{
    int t0 = block * a.n_each, n = min(a.n_each, a.n_tok - t0);
    attn_bits few = a.all ? ~(attn_bits)0 : attn_runs_of(a, t0, n).few;
    for (int i = 0; i < n; i++)
        if (attn_bit(few, i))
            f(t0 + i);
}

template <int NP, int KT> GR_DEV void decode_all(const gr_kernel_attn &a)
{
    GR_SMEM;
    each_token(a, blockIdx.x, [&](int t) { decode<NP, KT>(a, t, smem); });
    griddep_begin(); // of a block without work
}

// Up to 64, 128, 256 and 512 columns of V.
GR_KERNEL_EARLY(gr_attn_decode_64, gr_kernel_attn, THREADS, 3)
{
    decode_all<1, 64>(a);
}
GR_KERNEL_EARLY(gr_attn_decode_128, gr_kernel_attn, THREADS, 3)
{
    decode_all<2, 64>(a);
}
GR_KERNEL_EARLY(gr_attn_decode_256, gr_kernel_attn, THREADS, 2)
{
    decode_all<4, 32>(a);
}
GR_KERNEL_EARLY(gr_attn_decode_512, gr_kernel_attn, THREADS, 2)
{
    decode_all<8, 32>(a);
}

// Chunks of WARPS heads of token t.
GR_DEV void join_heads(const gr_kernel_attn &a, int t, int h0, unsigned char *smem)
{
    int n = n_chunk(a, attn_group_of(a, t, QUERIES / a.n_pack).span);
    join_rows<4>(a, WARPS, n, smem, [&](int r, int &token, int &h) {
        token = t, h = h0 + r;
        return h < a.n_head;
    });
    __syncthreads();
}

// A block for WARPS heads of n_each tokens.
GR_KERNEL(gr_attn_decode_join, gr_kernel_attn, THREADS, 3)
{
    GR_SMEM;
    each_token(a, blockIdx.y, [&](int t) { join_heads(a, t, blockIdx.x * WARPS, smem); });
}

// A block for a token, where attn_prefill has written packed x: one factor for its groups, or, of a
// token that is for this file, all of its heads and packed x of them.
GR_KERNEL(gr_attn_decode_level, gr_kernel_attn, THREADS, 3)
{
    GR_SMEM;
    const int t = blockIdx.x;
    if (!attn_bit(attn_runs_of(a, t, 1).few, 0)) {
        if (a.up)
            packed_x_level(gr_attn_groups(&a), t);
        return;
    }
    for (int h = 0; h < a.n_head; h += WARPS)
        join_heads(a, t, h, smem);
    write_packed_row<2>(a.packed_x, t, t);
}
