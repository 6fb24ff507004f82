// MATMUL, MATMUL_ID and HEAD_MATMUL for many tokens on wgmma: kernels of matmul_tile_sm90.cu, and
// of matmul_tile_narrow_sm90.cu, which are for products that have one tile of tokens.
//
// Traffic: weights once for 128 tokens, activations once for 256 rows, both by the copy engine.
// Bound: for a chunk of 128 rows and 256 columns and N tokens, in cycles: 16 N of the tensor cores;
// (bytes of weights + 256 N) / 24 of L2 (39 at best); 1200 of the warps that decode weights, two a
// scheduler; of Q4_K's bytes 990 of memory. So: memory and decoding up to about 64 tokens, tensor
// cores from there on, with L2 close behind.
// Grid: a block a multiprocessor, in clusters of two where the device has them, which take turns at
// the work: a tile of 128 tokens (for experts of pairs) of an item and, for each block of a
// cluster, of 128 rows. Rows of products of the same packed x stand one after another. The pieces
// of the last round, if they are few, are cut: into halves of the tokens, which cost 0.6 of a whole
// each, and if there is room for more into segments of columns, whose sums the last block of a tile
// adds. Products with weights of another type run beside this launch, on multiprocessors that its
// last round leaves free. Reasons: one warp fetches packed chunks as they are, another one packed x
// (by_step, 64 columns a stage, swizzled), of which each block of a cluster fetches half for both:
// L2 gives a multiprocessor 50 KB in place of 82 for a chunk of Q4_K and 128 tokens. Residuals come
// behind the weights of a tile, while it is multiplied. They go on to the next tile while this one
// is multiplied and stored. Two warpgroups with 64 rows each take turns at the tensor cores: one
// decodes weights into the registers wgmma reads, or stores, while the other's products run. Rows
// of x of a tile are multiplied as 64 or 128, as many as there are, by narrow kernels in steps
// of 8. Weights are f16 relative to a power of two of each row and step, which keeps any scale in
// range; the step's products are then added in f32. So a weight is off by 2^-11 of scale * (code -
// zero), of its minimum and of itself; those of F16 and BF16 are exact, and add up all along the
// row. K and V that nothing else reads go to a cache of f16 in place of y (KV_STORE), where K is
// turned.
#pragma once

#include "kernels/gate.cuh"
#include "kernels/last.cuh"
#include "kernels/matmul.cuh"
#include "kernels/packed_x.cuh"
#include "kernels/rope.cuh"
#include "kernels/step_sm90.cuh"
#include "kernels/wgmma.cuh"

#define ROWS GR_SM90_ROWS
#define TILES (ROWS / GR_PACK_ROWS)
#define CONSUMERS 8 // warps

// Rings and barriers of a block: addresses in shared memory.
template <uint32_t T> struct sm90_rings {
    static constexpr struct gr_sm90_smem AT = gr_sm90_smem(T);
    static constexpr uint32_t CHUNK_BYTES = (uint32_t)gr_pack_chunk_bytes(T, 8);
    uint32_t x, w, x_full, x_empty, w_full, w_empty;

    GR_METHOD sm90_rings(unsigned char *smem)
    {
        x = smem_u32(smem), w = x + AT.slots;
        x_full = x + AT.bars, x_empty = x_full + 8 * AT.n_stage;
        w_full = x_empty + 8 * AT.n_stage, w_empty = w_full + 8 * AT.n_slot;
    }
    GR_METHOD void init(int n_block) const // of a cluster
    {
        for (int i = 0; i < AT.n_stage; i++)
            mbar_init(x_full + 8 * i, 1), mbar_init(x_empty + 8 * i, CONSUMERS * n_block);
        for (int i = 0; i < AT.n_slot; i++)
            mbar_init(w_full + 8 * i, 1), mbar_init(w_empty + 8 * i, CONSUMERS);
        fence_mbar_init();
    }
};

// A piece of a block's work, or a segment of it.
struct sm90_work {
    uint32_t i;                     // its number
    uint32_t part;                  // the product's
    const struct gr_matmul_args &m; // the product
    struct mm_item item;
    int tile;           // the first of its rows'
    int lo, hi;         // chunks of columns
    uint32_t n_segment; // of the piece
    uint32_t number;    // of the segment of this tile, among those of all tiles that are cut
};

// Tiles of 16 rows of a product that a block has at once: with GLU half are those of the gate, half
// of what it gates.
GR_DEV int sm90_tiles(const struct gr_matmul_sm90_args &a)
{
    return a.glu ? TILES / 2 : TILES;
}

// Number i of the cluster's turns. A tile of rows behind the last has copies of the last rows,
// which are not stored.
GR_DEV struct sm90_work sm90_work(const struct gr_matmul_sm90_args &a, uint32_t i)
{
    constexpr uint32_t PAIR = GR_SM90_CLUSTER;
    const uint32_t tile = i * a.n_block + blockIdx.x % a.n_block, at = tile / PAIR;
    const bool cut = at >= a.n_whole;
    const uint32_t n_half = cut ? (uint32_t)a.n_half : 1,
                   n_segment = cut ? (uint32_t)a.n_segment : 1, behind = cut ? at - a.n_whole : 0;
    const uint32_t part = behind / n_segment, segment = behind - part * n_segment,
                   before = part / n_half, half = part - before * n_half,
                   piece = cut ? a.n_whole + before : at;
    const uint32_t n_pair = (uint32_t)a.n_row / PAIR, item = piece / (n_pair * a.n_x);
    uint32_t in = piece - item * n_pair * a.n_x;
    const uint32_t first = in / (GR_SM90_GROUP * n_pair) * GR_SM90_GROUP;
    const uint32_t n = min((uint32_t)GR_SM90_GROUP, a.n_x - first);
    in -= first * n_pair;
    const uint32_t pair = in / n, x = first + in - pair * n;
    uint32_t row = pair * PAIR + tile % PAIR, p = 0;
    for (; !a.glu && p + 1 < (uint32_t)a.n; p++) {
        uint32_t rows = (mm_tiles(a.part[p]) + TILES - 1) / TILES;
        if (row < rows)
            break;
        row -= rows;
    }
    const struct gr_matmul_args &m = a.part[p];
    int chunks = (m.x.units + 7) / 8;
    return {i,
            p,
            m,
            m.tiles ? mm_tile(m, (int)x)
                    : mm_item(m, item, (int)(x * GR_SM90_X_ROWS + half * a.half),
                              n_half == 1 ? GR_SM90_X_ROWS
                              : half      ? GR_SM90_X_ROWS - a.half
                                          : a.half),
            (int)row * sm90_tiles(a),
            (int)(chunks * segment / n_segment),
            (int)(chunks * (segment + 1) / n_segment),
            n_segment,
            (part * PAIR + tile % PAIR) * n_segment + segment};
}

// Calls f(work) for each piece of the block's work, in their order.
template <class F> GR_DEV void sm90_each(const struct gr_matmul_sm90_args &a, F f)
{
    for (uint32_t i = blockIdx.x / a.n_block; i < a.n_work; i += a.n_cluster) {
        const struct sm90_work work = sm90_work(a, i);
        if (work.item.n > 0) // a half may have none
            f(work);
    }
}

// Residuals of a whole tile stand in the ring of weights behind its last; not where weights are
// floats, whose kernels have no registers left.
template <uint32_t T>
GR_DEV bool sm90_res_ahead(const struct gr_matmul_sm90_args &a, const struct sm90_work &work)
{
    return !sm90_pack<T>::IS_FLOAT && a.res_ahead && work.n_segment == 1;
}

// Fetches the residuals of tokens p .. of a whole tile to a slot.
GR_DEV void sm90_bring_res(const struct sm90_work &work, int p, uint32_t to, uint32_t full)
{
    const int n = min(GR_SM90_PIECE, work.item.n - p);
    const uint8_t *from = work.m.res + (work.item.x_row + p) * work.m.res_row_bytes +
                          (int64_t)work.tile * GR_PACK_ROWS * 4;
    mbar_arrive_expect_tx(full, n * ROWS * 4);
#pragma unroll 1
    for (int t = 0; t < n; t++)
        bulk_load(to + t * ROWS * 4, from + t * work.m.res_row_bytes, ROWS * 4, full);
}

// One thread fetches every chunk of the block's tiles of weights. No launch of this stream writes
// weights.
template <uint32_t T>
GR_DEV void sm90_bring_weights(const struct gr_matmul_sm90_args &a, unsigned char *smem)
{
    const struct sm90_rings<T> ring(smem);
    const int tiles = sm90_tiles(a);
    uint32_t i = 0;
    sm90_each(a, [&](const struct sm90_work &work) {
        const int units = work.m.x.units, last = (int)mm_tiles(work.m) - 1;
        const int64_t tile_bytes = gr_pack_tile_bytes(T, work.m.w.cols);
        const uint8_t *from = mm_tile_at(work.m, work.item, 0, tile_bytes),
                      *gated = a.glu ? mm_tile_at(a.part[1], work.item, 0, tile_bytes) : from;
        for (int c = work.lo; c < work.hi; c++, i++) {
            uint32_t slot = i % ring.AT.n_slot, full = ring.w_full + 8 * slot,
                     bytes = (uint32_t)gr_pack_chunk_bytes(T, min(8, units - 8 * c));
            mbar_wait(ring.w_empty + 8 * slot, i / ring.AT.n_slot % 2 ^ 1);
            mbar_arrive_expect_tx(full, TILES * bytes);
#pragma unroll 1 // this warp has few registers
            for (int t = 0; t < TILES; t++)
                bulk_load(ring.w + slot * ring.AT.slot_bytes + t * ring.CHUNK_BYTES,
                          (t < tiles ? from : gated) +
                              min(work.tile + t % tiles, last) * tile_bytes +
                              (int64_t)c * ring.CHUNK_BYTES,
                          bytes, full);
        }
        if (!sm90_res_ahead<T>(a, work))
            return;
        if (!a.beside)
            griddep_wait();
        for (int p = 0; p < work.item.n; p += GR_SM90_PIECE, i++) {
            uint32_t slot = i % ring.AT.n_slot;
            mbar_wait(ring.w_empty + 8 * slot, i / ring.AT.n_slot % 2 ^ 1);
            sm90_bring_res(work, p, ring.w + slot * ring.AT.slot_bytes, ring.w_full + 8 * slot);
        }
    });
}

// Another thread fetches its block's share of the rows of packed x that they are multiplied with,
// for all blocks of the cluster. Blocks take turns at the shares, the last of which is a smaller
// one: rows behind the last of packed x are not read. Places of a stage behind the last box are not
// filled: their products are not stored.
template <uint32_t T>
GR_DEV void sm90_bring_x(const struct gr_matmul_sm90_args &a, unsigned char *smem)
{
    const struct sm90_rings<T> ring(smem);
    const int n_block = a.n_block, me = (int)blockIdx.x % n_block;
    uint32_t i = 0;
    sm90_each(a, [&](const struct sm90_work &work) {
        const int n = (work.item.n + GR_SM90_BOX - 1) / GR_SM90_BOX;
        const int end = min(4 * work.hi, work.m.x.units / 2);
        for (int q = 4 * work.lo; q < end; q++, i++) {
            uint32_t stage = i % ring.AT.n_stage, full = ring.x_full + 8 * stage;
            const int share = (me + q) % n_block;
            const int lo = n * share / n_block, hi = n * (share + 1) / n_block;
            mbar_wait(ring.x_empty + 8 * stage, i / ring.AT.n_stage % 2 ^ 1);
            mbar_arrive_expect_tx(full, n * GR_SM90_BOX * 128);
            for (int b = lo; b < hi; b++)
                tma_load_2d_cluster(ring.x + stage * ring.AT.stage_bytes + b * GR_SM90_BOX * 128,
                                    &a.map, q * 64, (int)work.item.x_row + b * GR_SM90_BOX, full,
                                    (uint16_t)((1 << n_block) - 1));
        }
    });
}

// A consumer's place in the rings.
template <uint32_t T> struct sm90_reader {
    struct sm90_rings<T> ring;
    uint32_t x_empty; // of the lane's block of the cluster
    bool speaks;      // the lane gives stages back to it
    uint32_t c;       // slots of weights so far
    uint32_t q;       // the next pair of units
    uint32_t held;    // pairs whose stages are not given back yet: those before q

    GR_METHOD void release() // all but the newest that may still be read
    {
        __syncwarp(); // its lanes speak for all that have waited
        if (held && speaks)
            mbar_arrive_cluster(x_empty + 8 * ((q - 1) % ring.AT.n_stage));
        held = 0;
    }
};

// acc += the step's n units, from pair `first` of its chunk on, times `width` rows of activations.
// a: two pairs of units, one that is multiplied and one that is decoded.
template <uint32_t T, int N>
GR_DEV void sm90_multiply(const sm90_step<T> &w, int first, int n, int width,
                          struct sm90_reader<T> &in, uint32_t (&a)[2][2][2][4], float (&acc)[N / 2])
{
    using S = sm90_pack<T>;
    float part[N / 2];
    float(&d)[N / 2] = S::IS_FLOAT ? acc : part;
#pragma unroll
    for (int p = 0; p < S::UNITS / 2; p++) {
        if (2 * p >= n)
            break;
        uint32_t(&pair)[2][2][4] = a[(first + p) % 2];
        w.unit16(2 * p, pair[0]);
        w.unit16(2 * p + 1, pair[1]);
        uint32_t stage = in.q % in.ring.AT.n_stage;
        mbar_wait(in.ring.x_full + 8 * stage, in.q / in.ring.AT.n_stage % 2);
        uint64_t desc = wgmma_desc_k(in.ring.x + stage * in.ring.AT.stage_bytes);
        if constexpr (N == GR_SM90_NARROW)
            sm90_pair_of<T>(width, d, pair, desc, S::IS_FLOAT || p > 0);
        else
            sm90_pair<T, N>(d, pair, desc, S::IS_FLOAT || p > 0);
        wgmma_wait<1>(); // the pair before is done
        in.release();
        in.q++, in.held = 1;
    }
    if constexpr (!S::IS_FLOAT) {
        wgmma_wait<0>(part);
        in.release();
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i] = fmaf(w.power[i / 2 % 2], part[i], acc[i]);
    }
}

// True where acc[i] is a product: those of a narrow kernel behind its width were never written.
template <int N> GR_DEV bool sm90_made(const struct sm90_work &work, int i)
{
    return N != GR_SM90_NARROW || i < GR_SM90_HALF / 2 || i / 4 * 8 < work.item.n;
}

// The consumers' barrier.
GR_DEV void sm90_sync()
{
    bar_sync(1, 32 * CONSUMERS);
}

// Turns acc of one segment into the sum of all, added in their order, in the block that is the last
// of the tile; false in the others.
template <int N>
GR_DEV bool sm90_join(const struct gr_matmul_sm90_args &a, const struct sm90_work &work,
                      float (&acc)[N / 2])
{
    const int each = gr_sm90_width(work.m.n_tok) * ROWS, me = threadIdx.x - 128;
    const uint32_t n_segment = work.n_segment, tile = work.number / n_segment;
    float *all = a.sums + (int64_t)tile * n_segment * each + me;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        if (sm90_made<N>(work, i))
            all[work.number % n_segment * each + i * 32 * CONSUMERS] = acc[i];
    if (!last_of(a.count + tile, n_segment, me == 0, sm90_sync))
        return false;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        if (sm90_made<N>(work, i))
            acc[i] = all[i * 32 * CONSUMERS];
    for (uint32_t s = 1; s < n_segment; s++)
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            if (sm90_made<N>(work, i))
                acc[i] += all[s * each + i * 32 * CONSUMERS];
    return true;
}

// Tokens GR_SM90_PIECE p .. of the warpgroup's rows, from sum [token][row]. What a thread adds is
// in shared memory, ahead [token][row of the tile], or is loaded before it stores any.
GR_DEV void sm90_put(const struct sm90_work &work, int p, const float *sum, const float *ahead)
{
    constexpr int HALF = ROWS / 2, EACH = 128 / HALF, AHEAD = 4;
    const struct gr_matmul_args &m = work.m;
    const int wg = threadIdx.x / 128 - 1, me = threadIdx.x % 128;
    const int64_t row = (int64_t)work.tile * GR_PACK_ROWS + wg * HALF + me % HALF - m.w.offset;
    for (int e = 0; e < GR_SM90_PIECE; e += EACH * AHEAD) {
        float res[AHEAD] = {};
        const int first = p * GR_SM90_PIECE;
#pragma unroll
        for (int k = 0; m.res && k < AHEAD; k++) {
            const int t = e + EACH * k + me / HALF;
            if (mm_in(m, work.item, row, first + t))
                res[k] = ahead ? ahead[t * ROWS + wg * HALF + me % HALF]
                               : mm_res(m, work.item, row, first + t);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int t = e + EACH * k + me / HALF;
            if (!mm_in(m, work.item, row, first + t))
                continue;
            float v = sum[t * GR_SM90_PITCH + me % HALF] * mm_factor(m, work.item, first + t);
            v = mm_value(m, work.item, row, v);
            ((float *)(m.y + mm_y(m, work.item, first + t)))[row] = m.res ? v + res[k] : v;
        }
    }
}

// The GLU of these tokens, from the gate's sums and behind them those of what it gates.
GR_DEV void sm90_put_glu(const struct gr_matmul_sm90_args &a, const struct sm90_work &work, int p,
                         const float *sum)
{
    constexpr int HALF = ROWS / 2;
    const int me = threadIdx.x - 128;
    const int64_t row = (int64_t)work.tile * GR_PACK_ROWS + me % HALF - work.m.w.offset;
    for (int t = me / HALF; t < GR_SM90_PIECE; t += 32 * CONSUMERS / HALF) {
        const int tok = p * GR_SM90_PIECE + t;
        if (!mm_in(work.m, work.item, row, tok))
            continue;
        const float factor = mm_factor(work.m, work.item, tok);
        const float *at = sum + t * GR_SM90_PITCH + me % HALF;
        float gate[1] = {mm_value(work.m, work.item, row, at[0] * factor)};
        float up[1] = {
            mm_value(a.part[1], work.item, row, at[GR_SM90_PIECE * GR_SM90_PITCH] * factor)};
        join_gate(a.glu - 1, gate, up);
        ((float *)(work.m.y + mm_y(work.m, work.item, tok)))[row] = gate[0];
    }
}

// The same as packed x: the block's columns are a group of each of its rows, which a warp writes.
// Not where weights are floats.
GR_DEV void sm90_put_glu_x(const struct gr_matmul_sm90_args &a, const struct sm90_work &work, int p,
                           const float *sum)
{
    const int group = work.tile / sm90_tiles(a), col = packed_x_group_col();
    const int64_t row = (int64_t)work.tile * GR_PACK_ROWS + col;
    if (2 * group >= a.glu_x.to.units)
        return;
    for (int t = threadIdx.x / 32 - 4; t < GR_SM90_PIECE; t += CONSUMERS) {
        const int tok = p * GR_SM90_PIECE + t;
        if (tok >= work.item.n)
            break;
        const float factor = mm_factor(work.m, work.item, tok);
        const float *at = sum + t * GR_SM90_PITCH + col;
        float gate[2] = {}, up[2] = {};
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (row + 4 * k < work.m.w.rows) {
                gate[k] = mm_value(work.m, work.item, row + 4 * k, at[4 * k] * factor);
                up[k] = mm_value(a.part[1], work.item, row + 4 * k,
                                 at[GR_SM90_PIECE * GR_SM90_PITCH + 4 * k] * factor);
            }
        join_gate(a.glu - 1, gate, up);
        packed_x_put_group(a.glu_x, work.item.x_row + tok, group, gate[0], gate[1]);
    }
}

// True where a tile's results go to the cache.
template <uint32_t T>
GR_DEV bool sm90_keeps(const struct gr_matmul_sm90_args &a, const struct sm90_work &work)
{
    return !sm90_pack<T>::IS_FLOAT && a.kept[work.part] != GR_SM90_Y;
}

// K or V of these tokens to the cache: a warp has 32 columns of a token.
GR_DEV void sm90_put_kv(const struct gr_matmul_sm90_args &a, const struct sm90_work &work, int p,
                        const float *sums)
{
    constexpr int PARTS = ROWS / WARP;
    const bool is_k = a.kept[work.part] == GR_SM90_K;
    const struct gr_ten &cache = is_k ? a.kv.k_cache : a.kv.v_cache;
    const uint32_t first = (uint32_t)(work.tile * GR_PACK_ROWS);
    for (int i = threadIdx.x / WARP - 4; i < GR_SM90_PIECE * PARTS; i += CONSUMERS) {
        const int t = i / PARTS, tok = p * GR_SM90_PIECE + t;
        if (tok >= work.item.n)
            break;
        const int64_t row = work.item.x_row + tok;
        const int32_t cell = row_of<int32_t>(a.kv.cells, 0)[row];
        const float factor = mm_factor(work.m, work.item, tok);
        auto at = [&](uint32_t c) { // column c of the tile
            const float sum =
                sums[(c / (ROWS / 2) * GR_SM90_PIECE + t) * GR_SM90_PITCH + c % (ROWS / 2)];
            return mm_value(work.m, work.item, first + c, sum * factor);
        };
        const uint32_t col = i % PARTS * WARP + threadIdx.x % WARP;
        if (first + col >= work.m.w.rows)
            continue;
        float x;
        if (is_k) {
            const uint32_t in_head = col % (uint32_t)a.kv.d_head_k;
            const float *cs = a.kv.kind == GR_ROPE_NONE ? nullptr : row_of<float>(a.kv.cs, row);
            x = turned([&](uint32_t c) { return at(col - in_head + c); }, cs, in_head,
                       (uint32_t)a.kv.cs.cols, a.kv.kind);
        } else {
            x = at(col);
        }
        row_of<uint16_t>(cache, cell)[first + col] = f32_to_f16(x);
    }
}

// Stores a tile's sums by way of shared memory, GR_SM90_PIECE tokens at a time, so that whole rows
// of y are written: each warpgroup its own rows, or both their GLU or what goes to the cache.
template <uint32_t T, int N>
GR_DEV void sm90_store(const struct gr_matmul_sm90_args &a, const struct sm90_work &work,
                       struct sm90_reader<T> &in, unsigned char *smem, float (&acc)[N / 2])
{
    const auto &ring = in.ring;
    float *sums = (float *)(smem + ring.AT.sums);
    constexpr int PIECE = GR_SM90_PIECE, PITCH = GR_SM90_PITCH;
    if (work.n_segment > 1 && !sm90_join<N>(a, work, acc))
        return;
    const int wg = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const bool both = a.glu || sm90_keeps<T>(a, work);
    const int id = both ? 1 : 2 + wg, n_thread = both ? 32 * CONSUMERS : 128;
    float *sum = sums + wg * PIECE * PITCH; // [token][row]
#pragma unroll 1
    for (int p = 0; p * PIECE < work.item.n; p++) {
#pragma unroll
        for (int i = 0; i < PIECE / 2; i++)
            if (N != GR_SM90_NARROW || p * PIECE + i / 4 * 8 < work.item.n)
                sum[(i / 4 * 8 + lane % 4 * 2 + i % 2) * PITCH + warp * 16 + lane / 4 +
                    i / 2 % 2 * 8] = acc[i];
#pragma unroll
        for (int i = PIECE / 2; i < N / 2; i++)
            acc[i - PIECE / 2] = acc[i];
        bar_sync(id, n_thread);
        const uint32_t slot = in.c % ring.AT.n_slot;
        const float *ahead = nullptr;
        if (sm90_res_ahead<T>(a, work)) {
            mbar_wait(ring.w_full + 8 * slot, in.c++ / ring.AT.n_slot % 2);
            ahead = (const float *)(smem + ring.AT.slots + slot * ring.AT.slot_bytes);
        }
        if (a.glu_x.to.n && !sm90_pack<T>::IS_FLOAT)
            sm90_put_glu_x(a, work, p, sums);
        else if (a.glu)
            sm90_put_glu(a, work, p, sums);
        else if (sm90_keeps<T>(a, work))
            sm90_put_kv(a, work, p, sums);
        else
            sm90_put(work, p, sum, ahead);
        bar_sync(id, n_thread);
        if (ahead && lane == 0)
            mbar_arrive(ring.w_empty + 8 * slot);
    }
}

// The products of a piece of work.
template <uint32_t T, int N>
GR_DEV void sm90_tile(const struct gr_matmul_sm90_args &a, const struct sm90_work &work,
                      struct sm90_reader<T> &in, unsigned char *smem)
{
    using S = sm90_pack<T>;
    const auto &ring = in.ring;
    int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    const int width = max(64, (work.item.n + 7) / 8 * 8);
    uint32_t pairs[2][2][2][4];
    float acc[N / 2] = {};
    for (int c = work.lo; c < work.hi; c++, in.c++) {
        uint32_t slot = in.c % ring.AT.n_slot;
        int n = work.m.x.units - 8 * c;
        const uint8_t *codes =
            smem + ring.AT.slots + slot * ring.AT.slot_bytes + warp * ring.CHUNK_BYTES;
        mbar_wait(ring.w_full + 8 * slot, in.c / ring.AT.n_slot % 2);
#pragma unroll
        for (int s = 0; s < S::STEPS; s++) {
            sm90_step<T> w;
            if (s * S::UNITS >= n)
                break;
            w.template load_chunk<from_shared>(codes, s * S::UNITS, n, lane);
            if (s == S::STEPS - 1 || (s + 1) * S::UNITS >= n) {
                __syncwarp();
                if (lane == 0)
                    mbar_arrive(ring.w_empty + 8 * slot);
            }
            w.arrived();
            w.relate();
            sm90_multiply<T, N>(w, s * S::UNITS / 2, n - s * S::UNITS, width, in, pairs, acc);
        }
    }
    wgmma_wait<0>(acc);
    in.release();
    sm90_store<T, N>(a, sm90_work(a, opaque(work.i)), in, smem, acc);
}

// Waits until the launches in front have ended, but for the one that this runs beside, and lets the
// next one begin.
GR_DEV void sm90_begin(const struct gr_matmul_sm90_args &a)
{
    if (!a.beside)
        griddep_wait();
    griddep_launch();
}

// Two warpgroups, 64 rows each.
template <uint32_t T, bool NARROW>
GR_DEV void sm90_consume(const struct gr_matmul_sm90_args &a, unsigned char *smem)
{
    const struct sm90_rings<T> ring(smem);
    const uint32_t lane = threadIdx.x % 32, n_block = (uint32_t)a.n_block;
    struct sm90_reader<T> in = {
        ring, cluster_address(ring.x_empty, lane % n_block), lane < n_block, 0, 0, 0
    };
    sm90_each(a, [&](const struct sm90_work &work) {
        if constexpr (NARROW)
            sm90_tile<T, GR_SM90_NARROW>(a, work, in, smem);
        else if (gr_sm90_width(work.item.n) == 64)
            sm90_tile<T, 64>(a, work, in, smem);
        else
            sm90_tile<T, 128>(a, work, in, smem);
    });
}

template <uint32_t T, bool NARROW> GR_DEV void matmul_tile_sm90(const struct gr_matmul_sm90_args &a)
{
    GR_SMEM;
    if (threadIdx.x == 0) {
        sm90_rings<T>(smem).init(a.n_block);
        tma_prefetch_map(&a.map);
    }
    __syncthreads();
    cluster_arrive();
    if (threadIdx.x < 128) {
        setmaxnreg_dec<40>();
        cluster_wait(); // the other block's barriers are there
        if (threadIdx.x == 0) {
            if (a.part[0].tiles)
                griddep_wait(); // they are the launch in front's
            sm90_bring_weights<T>(a, smem);
        } else if (threadIdx.x == 32) {
            sm90_begin(a);
            sm90_bring_x<T>(a, smem);
        }
    } else {
        setmaxnreg_inc<232>();
        cluster_wait();
        sm90_begin(a);
        sm90_consume<T, NARROW>(a, smem);
        griddep_wait();   // whoever waits for this launch waits for the one in front as well
        cluster_arrive(); // the other block may still give stages back to this one
        cluster_wait();
    }
}
