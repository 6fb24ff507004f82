// ATTN for many tokens a sequence by wgmma: FlashAttention-3 (Shah et al. 2024) over lists of
// cells.
//
// Traffic: a tile of K and V once for 128 queries, from L2 mostly. Bound: tensor cores.
// Grid: as attn_prefill, tiles of 128 queries: (KV heads x parts of their groups, tiles of tokens,
// the last ones first). One block a multiprocessor.
//
// A block: two warpgroups of 64 queries each that multiply, and one that fetches. The fetcher
// gathers rows by number with cp.async into two stages each of K and V: rows of 64 columns, in the
// 128-byte swizzle that wgmma reads; f16 rows go there straight, others to a buffer from which the
// same warp brings them there as f16. mbarriers tell full stages from empty ones. A multiplier
// has the logits of the next tile under way while it multiplies weights, which stay in registers,
// with values, and while the other one exponentiates. Queries of a step that is one run are turned
// (ROPE) as they are read, so that no launch writes them turned. Runs, masks, rounding and outputs
// that are computed again: as attn_prefill.
#include "kernels/attn_many.cuh"
#include "kernels/rope.cuh"
#include "kernels/wgmma.cuh"

enum {
    GROUP = 128, // threads of a warpgroup
    MULTIPLIERS = 256,
    THREADS = 384,
    QUERIES = 128,
    STAGES = 2,
    REGS_MULTIPLY = 216, // of 168 a thread when the kernel begins
    REGS_FETCH = 72,
    BAR_GROUP = 1, // and 2: a warpgroup; 3: both multipliers
    BAR_BOTH = 3
};

// Place of a block: D columns a head, tiles of KT keys.
template <int D, int KT> struct block_place {
    static constexpr uint32_t tile_bytes = KT * D * 2;
    int h_kv, h0, t0, n;                       // heads and tokens of the tile of queries
    uint32_t q, k, v;                          // shared memory
    uint32_t full_k, full_v, empty_k, empty_v; // barriers, 8 bytes a stage
};

template <int D, int KT>
GR_DEV block_place<D, KT> block_place_of(const gr_kernel_attn &a, unsigned char *smem)
{
    block_place<D, KT> b;
    int group = a.n_head / a.n_head_kv;
    b.h_kv = blockIdx.x / a.n_tile;
    b.h0 = b.h_kv * group + blockIdx.x % a.n_tile * a.n_pack;
    b.n = QUERIES / a.n_pack;
    b.t0 = (gridDim.y - 1 - blockIdx.y) * b.n;
    b.q = smem_u32(smem);
    b.k = b.q + QUERIES * D * 2;
    b.v = b.k + STAGES * b.tile_bytes;
    b.full_k = b.v + STAGES * b.tile_bytes;
    b.full_v = b.full_k + 16, b.empty_k = b.full_k + 32, b.empty_v = b.full_k + 48;
    return b;
}

// Piece `piece` of 16 bytes of row `row` of a tile of n rows.
GR_DEV uint32_t piece_at(int n, int row, int piece)
{
    return piece / 8 * n * 128 + row * 128 + ((piece ^ row) & 7) * 16;
}

// --- the fetcher ---

// One tile of K or V under way: the warp's rows of it.
struct parcel {
    uint32_t to, full, empty, parity; // tile, barriers, parity of the stage's empty phase
    int raw;                          // buffer it is copied to first, -1: none
    bool of_v;
};

template <int D, int KT>
GR_DEV void fetch_swizzled(const gr_kernel_rows &r, int h_kv, int row, uint32_t to)
{
    constexpr int KEYS = KT / 4, PIECES = D / 8;
    const int lane = threadIdx.x % 32, first = threadIdx.x % GROUP / 32 * KEYS;
    const char *head = r.data + h_kv * r.head;
#pragma unroll 4
    for (int i = lane; i < KEYS * PIECES; i += 32) {
        int key = i / PIECES, piece = i % PIECES, at = __shfl_sync(0xffffffffu, row, key);
        const char *src = at < 0 ? r.data : head + (int64_t)at * (int32_t)r.row + piece * 16;
        cp_async_16(to + piece_at(KT, first + key, piece), src, at < 0 ? 0 : 16);
    }
}

// Offset of the warp's rows in a buffer of K or V: a part that no other warp touches.
GR_DEV int raw_at(const gr_kernel_attn &a, int raw)
{
    return a.smem.stage + raw * a.smem.stage_bytes +
           threadIdx.x % GROUP / 32 * (a.smem.stage_bytes / 4);
}

template <int TYPE, int D, int KT>
GR_DEV void convert_as(int type, const unsigned char *from, int pitch, int step,
                       unsigned char *tile)
{
    constexpr int KEYS = KT / 4, PARTS = D / 16;
    const int first = threadIdx.x % GROUP / 32 * KEYS;
    for (int i = threadIdx.x % 32; i < KEYS * PARTS; i += 32) {
        int key = i / PARTS, at = i % PARTS;
        const unsigned char *row = from + key * pitch;
        uint4 out[2];
        attn_sixteen<TYPE>(type, row, (const uint16_t *)(row + step), at, out);
        *(uint4 *)(tile + piece_at(KT, first + key, 2 * at)) = out[0];
        *(uint4 *)(tile + piece_at(KT, first + key, 2 * at + 1)) = out[1];
    }
}

// The parcel is complete: f16 in its stage, for the multipliers to see.
template <int D, int KT>
GR_DEV void settle(const gr_kernel_attn &a, const block_place<D, KT> &b, const parcel &p,
                   unsigned char *smem)
{
    if (p.raw >= 0) {
        const gr_attn_stage &s = p.of_v ? a.v_stage : a.k_stage;
        const int type = p.of_v ? a.v.type : a.k[1].type,
                  step = attn_step_at(p.of_v ? a.v : a.k[1], s, b.h_kv);
        const unsigned char *from = smem + raw_at(a, p.raw);
        unsigned char *tile = smem + (p.to - b.q);
        mbar_wait(p.empty, p.parity);
        __syncwarp();
        if (type == GR_BF16)
            convert_as<GR_BF16, D, KT>(type, from, s.pitch, step, tile);
        else if (type == GR_Q8_0)
            convert_as<GR_Q8_0, D, KT>(type, from, s.pitch, step, tile);
        else if (type == GR_Q4_0)
            convert_as<GR_Q4_0, D, KT>(type, from, s.pitch, step, tile);
        else
            convert_as<ATTN_RECORDS, D, KT>(type, from, s.pitch, step, tile);
        __syncwarp();
    }
    fence_proxy_async();
    mbar_arrive(p.full);
}

// Begins tile number i of the block, rows `row` of it a lane; raw: the buffer that is next.
template <int D, int KT>
GR_DEV parcel fetch(const gr_kernel_attn &a, const block_place<D, KT> &b, int plane, bool of_v,
                    uint32_t i, int row, int raw)
{
    const gr_kernel_rows &r = of_v ? a.v : a.k[plane];
    const uint32_t slot = i % STAGES;
    parcel p = {(of_v ? b.v : b.k) + slot * b.tile_bytes,
                (of_v ? b.full_v : b.full_k) + slot * 8,
                (of_v ? b.empty_v : b.empty_k) + slot * 8,
                ~(i / STAGES) & 1,
                -1,
                of_v};
    if (r.type == GR_F16) {
        mbar_wait(p.empty, p.parity);
        fetch_swizzled<D, KT>(r, b.h_kv, row, p.to);
    } else {
        p.raw = raw;
        attn_fetch<KT / 4>(r, of_v ? a.v_stage : a.k_stage, b.h_kv, row, b.q + raw_at(a, raw));
    }
    return p;
}

// Tiles in the order K0, K1, V0, K2, V1 .. of each part, one more under way than is waited for;
// with one buffer for rows to be converted, each is waited for.
template <int D, int KT>
GR_DEV void fetch_all(const gr_kernel_attn &a, const block_place<D, KT> &b, const attn_work &work,
                      unsigned char *smem)
{
    constexpr int KEYS = KT / 4;
    const int key = threadIdx.x % GROUP / 32 * KEYS + threadIdx.x % 32;
    const bool one = a.smem.n_stage == 1;
    parcel last = {0, 0, 0, 0, -1, false};
    uint32_t done = 0;                     // tiles of the parts before
    int w = -1, s = 0, n = 0, raw = 0;     // part, step of it, its tiles
    int row_k = -1, row_v = -1, next = -1; // of the current K, of the V that follows, of the next K
    for (;;) {
        while (s == 2 * n && w < work.n) {
            done += n, s = 0, w++;
            n = w < work.n ? (work.part[w].hi - work.part[w].lo + KT - 1) / KT : 0;
        }
        if (w == work.n && (one || !last.full))
            break;
        parcel p = {0, 0, 0, 0, -1, false};
        if (w < work.n) {
            const int i = (s + 1) / 2, hi = work.part[w].hi;
            const bool of_v = (s > 0 && s % 2 == 0) || i == n;
            if (!of_v) {
                int item = work.part[w].lo + i * KT + key;
                auto row_of = [&](int at) {
                    return threadIdx.x % 32 < KEYS && at < hi ? a.list[at] : -1;
                };
                row_v = row_k, row_k = s == 0 ? row_of(item) : next, next = row_of(item + KT);
            }
            const int row = !of_v ? row_k : i == n && s % 2 ? row_k : row_v;
            p = fetch(a, b, work.part[w].plane, of_v,
                      done + (of_v ? i == n && s % 2 ? n - 1 : i - 1 : i), row, raw);
            raw = one ? 0 : raw ^ (p.raw >= 0);
            s++;
        }
        cp_async_commit();
        if (one)
            cp_async_wait<0>();
        else
            cp_async_wait<1>();
        if (one)
            last = p;
        if (last.full)
            settle(a, b, last, smem);
        last = p;
    }
}

// --- a multiplier ---

// q of the warpgroup's 64 rows as f16, swizzled, turned on the way where that is left to this
// kernel. A warp asks for HELD rows at once, a lane for pairs of columns that turn together.
template <int D, int KT>
GR_DEV void load_q(const gr_kernel_attn &a, const block_place<D, KT> &b, int plane,
                   unsigned char *tile)
{
    constexpr bool CAN_TURN = D <= GR_ATTN_TURNED;
    constexpr int HELD = CAN_TURN ? 512 / D : 1, PAIRS = D / 64;
    const bool turns = CAN_TURN && gr_ten_is(&a.turn.x),
               apart = turns && a.turn.kind == GR_ROPE_NEOX;
    const char *from = turns ? (const char *)a.turn.x.data : a.q[plane];
    const int64_t row_bytes = turns ? a.turn.x.row_bytes : a.q_row[plane];
    const uint32_t n_rot = turns ? (uint32_t)a.turn.cs.cols : 0;
    const float f = attn_q_factor(a);
    const int group = threadIdx.x / GROUP, lane = threadIdx.x % 32;
    auto half_at = [&](int r, int col) { return piece_at(64, r, col / 8) + col % 8 * 2; };
    for (int first = threadIdx.x % GROUP / 32; first < 64; first += 4 * HELD) {
        float2 x[HELD][PAIRS], cs[HELD][PAIRS];
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int row = group * 64 + first + 4 * k, t = b.t0 + row / a.n_pack;
            const float *q = (const float *)(from + t * row_bytes) + (b.h0 + row % a.n_pack) * D;
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                const struct run u = run_of<1>(32 * i + lane, n_rot, a.turn.kind);
                x[k][i] = cs[k][i] = make_float2(0, 0);
                if (t < a.n_tok)
                    x[k][i] = apart ? make_float2(q[u.a], q[u.b]) : *(const float2 *)(q + u.a);
                if (t < a.n_tok && turns && u.turns)
                    cs[k][i] = row_of<const float2>(a.turn.cs, t)[32 * i + lane];
            }
        }
#pragma unroll
        for (int k = 0; k < HELD; k++)
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                const struct run u = run_of<1>(32 * i + lane, n_rot, a.turn.kind);
                const int r = first + 4 * k;
                if (turns && u.turns)
                    turn(x[k][i].x, x[k][i].y, cs[k][i].x, cs[k][i].y);
                const uint32_t two =
                    f16x2(attn_f16_or_nan(x[k][i].x * f), attn_f16_or_nan(x[k][i].y * f));
                if (apart) {
                    *(uint16_t *)(tile + half_at(r, u.a)) = (uint16_t)two;
                    *(uint16_t *)(tile + half_at(r, u.b)) = (uint16_t)(two >> 16);
                } else {
                    *(uint32_t *)(tile + half_at(r, u.a)) = two;
                }
            }
    }
}

// Turns q of a head as load_q does, for outputs that are computed again.
template <int D> GR_DEV void turn_again(const gr_kernel_attn &a, int t, int h)
{
    if (threadIdx.x < D / 8)
        heads<4>(a.turn, (t * a.n_head + h) * (D / 8) + threadIdx.x);
    bar_sync(BAR_BOTH, MULTIPLIERS);
}

template <int D, int KT> struct multiplier {
    const block_place<D, KT> &b;
    attn_rows rows;
    uint32_t q; // the warpgroup's
    uint32_t p[KT / 16][4];
};

// x = q K of tile i, and o += p V of tile i: issued, not waited for.
template <int D, int KT> GR_DEV void issue_qk(multiplier<D, KT> &m, float (&x)[KT / 2], uint32_t i)
{
    const uint32_t slot = i % STAGES;
    mbar_wait(m.b.full_k + slot * 8, i / STAGES & 1);
    const uint64_t q = wgmma_desc_k(m.q), k = wgmma_desc_k(m.b.k + slot * m.b.tile_bytes);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < D / 16; c++)
        wgmma_f16<KT>(x, wgmma_step(q, c / 4 * 64 * 128 + c % 4 * 32),
                      wgmma_step(k, c / 4 * KT * 128 + c % 4 * 32), c > 0);
    wgmma_commit();
}
template <int D, int KT> GR_DEV void issue_pv(multiplier<D, KT> &m, float (&o)[D / 2], uint32_t i)
{
    const uint32_t slot = i % STAGES;
    mbar_wait(m.b.full_v + slot * 8, i / STAGES & 1);
    const uint64_t v = wgmma_desc_mn(m.b.v + slot * m.b.tile_bytes, KT);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < KT / 16; c++)
        wgmma_f16_ra<D, 1>(o, m.p[c], wgmma_step(v, c * 2048), true);
    wgmma_commit();
}
// Marks a stage as empty for this warp.
GR_DEV void release(uint32_t empty, uint32_t i)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbar_arrive(empty + i % STAGES * 8);
}
// Tiles [from, to), of which this warpgroup sees nothing.
template <int D, int KT> GR_DEV void pass(const multiplier<D, KT> &m, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        mbar_wait(m.b.full_k + i % STAGES * 8, i / STAGES & 1);
        release(m.b.empty_k, i);
        mbar_wait(m.b.full_v + i % STAGES * 8, i / STAGES & 1);
        release(m.b.empty_v, i);
    }
}

template <int KT> GR_DEV void keep_weights(uint32_t (&p)[KT / 16][4], const float (&x)[KT / 2])
{
#pragma unroll
    for (int c = 0; c < KT / 16; c++)
        attn_frag_p(p[c], x + 8 * c);
}

// Union of the items that the warps of the group see.
GR_DEV attn_seen seen_by_group(const attn_rows &r)
{
    __shared__ attn_seen each[MULTIPLIERS / 32];
    const int group = threadIdx.x / GROUP;
    attn_seen s = attn_seen_of(r);
    bar_sync(BAR_GROUP + group, GROUP);
    if (threadIdx.x % 32 == 0)
        each[threadIdx.x / 32] = s;
    bar_sync(BAR_GROUP + group, GROUP);
    for (int w = group * 4; w < group * 4 + 4; w++) {
        s.any_lo = min(s.any_lo, each[w].any_lo), s.any_hi = max(s.any_hi, each[w].any_hi);
        s.all_lo = max(s.all_lo, each[w].all_lo), s.all_hi = min(s.all_hi, each[w].all_hi);
    }
    s.any_lo = __shfl_sync(0xffffffffu, s.any_lo, 0),
    s.any_hi = __shfl_sync(0xffffffffu, s.any_hi, 0);
    s.all_lo = __shfl_sync(0xffffffffu, s.all_lo, 0),
    s.all_hi = __shfl_sync(0xffffffffu, s.all_hi, 0);
    return s;
}

// Items [lo, hi), tiles `done` and on of the block.
template <int D, int KT>
GR_DEV void multiply(const gr_kernel_attn &a, multiplier<D, KT> &m, float (&o)[D / 2], int lo,
                     int hi, uint32_t done)
{
    const attn_seen s = seen_by_group(m.rows);
    const int n = hi > lo ? (hi - lo + KT - 1) / KT : 0;
    int from = s.any_hi > s.any_lo ? max(s.any_lo - lo, 0) / KT : n;
    int to = s.any_hi > s.any_lo ? min((s.any_hi - lo + KT - 1) / KT, n) : n;
    float x[KT / 2], down[2];
    auto full = [&](int i) { return lo + i * KT >= s.all_lo && lo + (i + 1) * KT <= s.all_hi; };
    pass(m, done, done + from);
    if (from < to) {
        issue_qk(m, x, done + from);
        wgmma_wait<0>(x);
        release(m.b.empty_k, done + from);
        attn_weigh<KT>(a, m.rows, x, lo + from * KT, full(from), down);
        attn_rescale(o, down);
        keep_weights<KT>(m.p, x);
        for (int i = from + 1; i < to; i++) {
            issue_qk(m, x, done + i);
            issue_pv(m, o, done + i - 1);
            wgmma_wait<1>(x);
            release(m.b.empty_k, done + i);
            attn_weigh<KT>(a, m.rows, x, lo + i * KT, full(i), down);
            wgmma_wait<0>(o);
            release(m.b.empty_v, done + i - 1);
            attn_rescale(o, down);
            keep_weights<KT>(m.p, x);
        }
        issue_pv(m, o, done + to - 1);
        wgmma_wait<0>(o);
        release(m.b.empty_v, done + to - 1);
    }
    pass(m, done + to, done + n);
}

template <int D, int KT>
GR_DEV void multiply_all(const gr_kernel_attn &a, const block_place<D, KT> &b,
                         const attn_work &work, unsigned char *smem)
{
    __shared__ bool bad[QUERIES];
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / GROUP, 0), // not divergent
        row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    multiplier<D, KT> m = {b, attn_rows_of(b.t0, b.h0, row), b.q + group * 64 * D * 2, {}};
    float o[D / 2];
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        o[i] = 0;
    uint32_t done = 0;
    for (int w = 0; w < work.n; w++) {
        bar_sync(BAR_GROUP + group, GROUP);
        load_q(a, b, work.part[w].plane, smem + group * 64 * D * 2);
        fence_proxy_async();
        attn_look(a, m.rows, work.part[w].plane, work.part[w].first, work.part[w].end);
        multiply(a, m, o, work.part[w].lo, work.part[w].hi, done); // a barrier of the group first
        done += (work.part[w].hi - work.part[w].lo + KT - 1) / KT;
    }
    bool wrong[2];
    attn_write(a, m.rows, o, work.few, wrong);
    if (threadIdx.x % 4 == 0)
        bad[row] = wrong[0], bad[row + 8] = wrong[1];
    bar_sync(BAR_BOTH, MULTIPLIERS);
    for (int r = 0; r < QUERIES; r++)
        if (bad[r]) {
            const int t = b.t0 + r / a.n_pack, h = b.h0 + r % a.n_pack;
            if (D <= GR_ATTN_TURNED && gr_ten_is(&a.turn.x))
                turn_again<D>(a, t, h);
            attn_exact<MULTIPLIERS, BAR_BOTH>(a, t, h, (float *)smem);
            if (a.packed_x.to.n)
                attn_pack_head(a, t, h, MULTIPLIERS / 32);
        }
}

template <int D, int KT> GR_DEV void prefill(const gr_kernel_attn &a, unsigned char *smem)
{
    __shared__ attn_work work;
    const block_place<D, KT> b = block_place_of<D, KT>(a, smem);
    if (threadIdx.x < 32)
        attn_plan(a, b.t0, b.n, &work);
    if (threadIdx.x == MULTIPLIERS) {
        for (int i = 0; i < STAGES; i++) {
            mbar_init(b.full_k + i * 8, GROUP), mbar_init(b.full_v + i * 8, GROUP);
            mbar_init(b.empty_k + i * 8, MULTIPLIERS / 32);
            mbar_init(b.empty_v + i * 8, MULTIPLIERS / 32);
        }
        fence_mbar_init();
    }
    __syncthreads();
    if (threadIdx.x >= MULTIPLIERS) {
        setmaxnreg_dec<REGS_FETCH>();
        fetch_all<D, KT>(a, b, work, smem);
    } else {
        setmaxnreg_inc<REGS_MULTIPLY>();
        multiply_all<D, KT>(a, b, work, smem);
    }
}

GR_KERNEL(gr_attn_prefill_sm90_64, gr_kernel_attn, THREADS, 1)
{
    GR_SMEM;
    prefill<64, 128>(a, smem);
}
GR_KERNEL(gr_attn_prefill_sm90_128, gr_kernel_attn, THREADS, 1)
{
    GR_SMEM;
    prefill<128, 128>(a, smem);
}
GR_KERNEL(gr_attn_prefill_sm90_256, gr_kernel_attn, THREADS, 1)
{
    GR_SMEM;
    prefill<256, 64>(a, smem);
}
