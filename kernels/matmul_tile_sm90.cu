// MATMUL, MATMUL_ID and HEAD_MATMUL for many tokens on wgmma.
//
// Traffic: weights once for 128 tokens, activations once for 128 rows, both by the copy engine.
// Bound: for a chunk of 128 rows and 256 columns and N tokens, in cycles: 16 N of the tensor cores;
// (bytes of weights + 512 N) / 24 of L2 (39 at best); 1200 of the warps that decode weights, two a
// scheduler; of Q4_K's bytes 990 of memory. So: memory and decoding up to about 32 tokens, L2 from
// there on, with tensor cores not far behind.
// Grid: (tiles of 128 tokens, or for experts of pairs, and of 128 rows; segment of columns; item).
// Rows of products of the same packed x stand one after another. Where tiles are few, columns are
// cut into segments, and the last block of a tile adds up. One block a multiprocessor.
// Reasons: one warp fetches packed chunks as they are, another one packed x (by_step, 64
// columns a stage, swizzled); two warpgroups with 64 rows each take turns at the tensor cores: one
// decodes weights into the registers wgmma reads while the other's products run. Rows of x of a
// tile are multiplied as 32, 64 or 128, as many as there are; the fewer, the more shared memory
// there is for weights under way. Weights are f16 relative to a power of two of each row and step,
// which keeps any scale in range; the step's products are then added in f32. So a weight is off by
// 2^-11 of scale * (code - zero), of its minimum and of itself; those of F16 and BF16 are exact,
// and add up all along the row.
#include "kernels/last.cuh"
#include "kernels/matmul.cuh"
#include "kernels/wgmma.cuh"

#define ROWS GR_SM90_ROWS
#define TILES (ROWS / GR_PACK_ROWS)

// Rings and barriers of a block of N rows of x: addresses in shared memory.
template <uint32_t T, int N> struct sm90_rings {
    static constexpr struct gr_sm90_smem AT = gr_sm90_smem(T, N);
    static constexpr uint32_t CHUNK_BYTES = (uint32_t)gr_pack_chunk_bytes(T, 8);
    uint32_t x, w, x_full, x_empty, w_full, w_empty;

    GR_METHOD sm90_rings(unsigned char *smem)
    {
        x = smem_u32(smem), w = x + AT.slots;
        x_full = x + AT.bars, x_empty = x_full + 8 * AT.n_stage;
        w_full = x_empty + 8 * AT.n_stage, w_empty = w_full + 8 * AT.n_slot;
    }
    GR_METHOD void init() const
    {
        for (int i = 0; i < AT.n_stage; i++)
            mbar_init(x_full + 8 * i, 1), mbar_init(x_empty + 8 * i, 8);
        for (int i = 0; i < AT.n_slot; i++)
            mbar_init(w_full + 8 * i, 1), mbar_init(w_empty + 8 * i, 8);
        fence_mbar_init();
    }
};

// Work of a block.
struct sm90_work {
    const struct gr_matmul_args &m; // the product
    struct mm_item item;
    int64_t tile;   // the first of its rows'
    int lo, hi;     // chunks of columns
    int64_t number; // of the tile of rows and of x, among those of the launch
};

GR_DEV struct sm90_work sm90_work(const struct gr_matmul_sm90_args &a)
{
    int per = GR_SM90_GROUP * a.n_row, first = blockIdx.x / per * GR_SM90_GROUP;
    int in = blockIdx.x % per, n = min(GR_SM90_GROUP, a.n_x - first);
    int x = first + in % n, row = in / n, p = 0;
    for (; p + 1 < a.n; p++) {
        int rows = (int)(mm_tiles(a.part[p]) + TILES - 1) / TILES;
        if (row < rows)
            break;
        row -= rows;
    }
    const struct gr_matmul_args &m = a.part[p];
    int chunks = (m.x.units + 7) / 8, s = blockIdx.y;
    return {m,
            m.tiles ? mm_tile(m, x) : mm_item(m, blockIdx.z, x * GR_SM90_X_ROWS, GR_SM90_X_ROWS),
            (int64_t)row * TILES,
            chunks * s / a.n_segment,
            chunks * (s + 1) / a.n_segment,
            (int64_t)blockIdx.z * gridDim.x + blockIdx.x};
}

// One thread fetches every chunk of the block's tiles of weights. No launch of this stream writes
// weights.
template <uint32_t T, int N>
GR_DEV void sm90_bring_weights(const struct sm90_work &work, unsigned char *smem)
{
    const struct sm90_rings<T, N> ring(smem);
    const int units = work.m.x.units;
    int64_t tile_bytes = gr_pack_tile_bytes(T, work.m.w.cols);
    for (int c = work.lo; c < work.hi; c++) {
        uint32_t i = c - work.lo, slot = i % ring.AT.n_slot, full = ring.w_full + 8 * slot,
                 bytes = (uint32_t)gr_pack_chunk_bytes(T, min(8, units - 8 * c));
        mbar_wait(ring.w_empty + 8 * slot, i / ring.AT.n_slot % 2 ^ 1);
        mbar_arrive_expect_tx(full, TILES * bytes);
        for (int t = 0; t < TILES; t++)
            bulk_load(ring.w + slot * ring.AT.slot_bytes + t * ring.CHUNK_BYTES,
                      mm_tile_at(work.m, work.item, work.tile + t, tile_bytes) +
                          (int64_t)c * ring.CHUNK_BYTES,
                      bytes, full);
    }
}

// Another thread fetches the rows of packed x that they are multiplied with. Places of a stage
// behind the last row are not filled: their products are not stored.
template <uint32_t T, int N>
GR_DEV void sm90_bring_x(const struct gr_tensor_map &map, const struct sm90_work &work,
                         unsigned char *smem)
{
    const struct sm90_rings<T, N> ring(smem);
    const int n = (work.item.n + GR_SM90_BOX - 1) / GR_SM90_BOX;
    const int first = 4 * work.lo, end = min(4 * work.hi, work.m.x.units / 2);
    for (int q = first; q < end; q++) {
        uint32_t i = q - first, stage = i % ring.AT.n_stage, full = ring.x_full + 8 * stage;
        mbar_wait(ring.x_empty + 8 * stage, i / ring.AT.n_stage % 2 ^ 1);
        mbar_arrive_expect_tx(full, n * GR_SM90_BOX * 128);
        for (int b = 0; b < n; b++)
            tma_load_2d(ring.x + stage * ring.AT.stage_bytes + b * GR_SM90_BOX * 128, &map, q * 64,
                        (int)work.item.x_row + b * GR_SM90_BOX, full);
    }
}

// A step whose weights are whole f16 numbers, relative to a power of two for each of a lane's rows.
template <uint32_t T> struct sm90_step : pack_step<T> {
    using S = pack_step<T>;
    float power[2];
    uint32_t d16[2], m16[2]; // K types: the block's scale and minimum
    uint32_t largest[2];     // MXFP4: exponent

    // The largest scale or minimum of a block becomes 2^room() or a little more: its product with
    // the largest code is then below 2^15, and scales down to 2^-14 keep all their bits.
    static GR_METHOD constexpr uint32_t room()
    {
        switch (T) {
        case GR_Q4_0:
            return 11; // 8 scales
        case GR_Q4_1:
        case GR_Q5_0:
            return 10; // 16
        case GR_Q5_1:
            return 9; // 32
        case GR_Q2_K:
            return 8; // 15 * 3 + 15
        case GR_Q4_K:
            return 4; // 63 * 15 + 63
        case GR_Q5_K:
            return 3; // 63 * 31 + 63
        case GR_Q6_K:
        case GR_IQ4_XS:
            return 2; // 128 * 32, 32 * 127
        case GR_MXFP4:
            return 10; // 12 scales
        default:
            return 7; // Q8_0, Q3_K, IQ4_NL: 128, 32 * 4, 127
        }
    }
    GR_METHOD void relate()
    {
#pragma unroll
        for (int r = 0; r < 2 && !S::IS_FLOAT; r++) {
            if constexpr (T == GR_NVFP4) { // fits as it is
                power[r] = 1;
                continue;
            }
            if constexpr (T == GR_MXFP4) {
                largest[r] = 0;
#pragma unroll
                for (int i = 0; i < 4 * S::WS; i++)
                    largest[r] = max(largest[r], this->s[r][i / 4] >> i % 4 * 8 & 255);
                power[r] = exponent_f32(largest[r]) * exponent_f32(128 - room());
                continue;
            }
            uint32_t most = S::K_BLOCK ? this->d[r] & 0x7fff : 0;
            if constexpr (S::K_BLOCK && S::HAS_MIN)
                most = max(most, this->d[r] >> 16 & 0x7fff);
#pragma unroll
            for (int i = 0; i < S::WS && !S::K_BLOCK; i++)
                most = max(most, max(this->s[r][i] & 0x7fff, this->s[r][i] >> 16 & 0x7fff));
            uint32_t bits = __float_as_uint(f16_to_f32((uint16_t)most)) & 0x7f800000;
            power[r] = bits ? __uint_as_float(bits - (room() << 23)) : 1.0f;
            if constexpr (S::K_BLOCK) {
                d16[r] = related(this->d[r], r);
                m16[r] = S::HAS_MIN ? related(this->d[r] >> 16 ^ 0x8000, r) : 0;
            }
        }
    }
    // An f16 over the row's power of two, twice.
    GR_METHOD uint32_t related(uint32_t f16, int r) const
    {
        float v =
            f16_to_f32((uint16_t)f16) * __uint_as_float(0x7f000000 - __float_as_uint(power[r]));
        return f16x2(v, v);
    }
    GR_METHOD void unit16(int u, uint32_t (&a)[2][4]) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t scale = 0, min = 0;
            if constexpr (T == GR_NVFP4) {
                scale = this->group_scale(u, r);
            } else if constexpr (T == GR_MXFP4) { // 2^(room - what it is less than the largest)
                int e = (int)(this->s[r][u / 4] >> u % 4 * 8 & 255) - (int)largest[r];
                float v = e < -30 ? 0 : __uint_as_float((uint32_t)(e + 127 + (int)room()) << 23);
                scale = f16x2(v, v);
            } else if constexpr (S::BY_16)
                scale = mul_f16x2(this->group_scale(u, r), d16[r]);
            else if constexpr (T == GR_IQ4_XS)
                scale = mul_f16x2(sub_f16x2(byte_f16x2(this->s[r][u / 4], u % 4), twice(0x5000)),
                                  d16[r]); // - 32
            else if constexpr (S::K_BLOCK)
                scale = mul_f16x2(byte_f16x2(this->s[r][u / 4], u % 4), d16[r]);
            else if constexpr (S::US == 4)
                scale = related(this->s[r][u], r), min = related(this->s[r][u] >> 16, r);
            else if constexpr (S::US == 2)
                scale = related(this->s[r][u / 2] >> u % 2 * 16, r);
            if constexpr (T == GR_Q2_K)
                min = mul_f16x2(byte_f16x2(this->s[r][u / 2] >> 4 & 0x0f0f0f0f,
                                           u % 2 * 2 + threadIdx.x % 4 / 2),
                                m16[r]);
            else if constexpr (S::K_BLOCK && S::HAS_MIN)
                min = mul_f16x2(byte_f16x2(this->s[r][2 + u / 4], u % 4), m16[r]);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint32_t v = this->pair(u, r, s);
                a[s / 2][s % 2 * 2 + r] = S::IS_FLOAT  ? v
                                          : S::HAS_MIN ? fma_f16x2(v, scale, min)
                                                       : mul_f16x2(v, scale);
            }
        }
    }
};

template <uint32_t T, int N>
GR_DEV void sm90_mma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate)
{
    if constexpr (T == GR_BF16)
        wgmma_bf16_ra<N>(d, a, b, accumulate);
    else
        wgmma_f16_ra<N>(d, a, b, accumulate);
}

// A consumer's place in the ring of x.
template <uint32_t T, int N> struct sm90_reader {
    struct sm90_rings<T, N> ring;
    int q;    // the next pair of units
    int held; // pairs whose stages are not given back yet: those before q

    GR_METHOD void release() // all but the newest that may still be read
    {
        __syncwarp(); // lane 0 speaks for all that have waited
        if (held && threadIdx.x % 32 == 0)
            mbar_arrive(ring.x_empty + 8 * ((q - 1) % ring.AT.n_stage));
        held = 0;
    }
};

// acc += the step's n units times activations. a: two pairs of units, one that is multiplied and
// one that is decoded.
template <uint32_t T, int N>
GR_DEV void sm90_multiply(const sm90_step<T> &w, int n, struct sm90_reader<T, N> &x,
                          uint32_t (&a)[2][2][2][4], float (&acc)[N / 2])
{
    using S = pack_step<T>;
    float part[N / 2];
    float(&d)[N / 2] = S::IS_FLOAT ? acc : part;
#pragma unroll
    for (int p = 0; p < S::UNITS / 2; p++) {
        if (2 * p >= n)
            break;
        w.unit16(2 * p, a[p % 2][0]);
        w.unit16(2 * p + 1, a[p % 2][1]);
        uint32_t stage = x.q % x.ring.AT.n_stage;
        mbar_wait(x.ring.x_full + 8 * stage, x.q / x.ring.AT.n_stage % 2);
        uint64_t desc = wgmma_desc_k(x.ring.x + stage * x.ring.AT.stage_bytes);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            sm90_mma<T, N>(d, a[p % 2][k / 2][k % 2], wgmma_step(desc, 32 * k),
                           S::IS_FLOAT ? true : p > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>(); // the pair before is done
        x.release();
        x.q++, x.held = 1;
    }
    if constexpr (!S::IS_FLOAT) {
        wgmma_wait<0>(part);
        x.release();
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i] = fmaf(w.power[i / 2 % 2], part[i], acc[i]);
    }
}

// The consumers' barrier.
GR_DEV void sm90_sync()
{
    bar_sync(1, 256);
}

// Turns sum [token][ROWS + 4] of one segment into the sum of all, added in their order, in the
// block that is the last of the tile; false in the others.
GR_DEV bool sm90_join(const struct gr_matmul_sm90_args &a, const struct sm90_work &work, float *sum)
{
    const int pieces = ROWS / 4, each = gr_sm90_width(work.m.n_tok) * pieces;
    const int me = threadIdx.x - 128, n = work.item.n * pieces;
    float4 *all = (float4 *)a.sums + work.number * a.n_segment * each;
    for (int e = me; e < n; e += 256)
        all[blockIdx.y * each + e] = *(float4 *)(sum + e / pieces * (ROWS + 4) + e % pieces * 4);
    if (!last_of(a.count + work.number, a.n_segment, me == 0, sm90_sync))
        return false;
    for (int e = me; e < n; e += 256) {
        float4 v = all[e];
#pragma unroll 4
        for (int s = 1; s < a.n_segment; s++) {
            float4 more = all[s * each + e];
            v.x += more.x, v.y += more.y, v.z += more.z, v.w += more.w;
        }
        *(float4 *)(sum + e / pieces * (ROWS + 4) + e % pieces * 4) = v;
    }
    sm90_sync();
    return true;
}

// Stores sums by way of shared memory, so that whole rows of y are written: the ring of x is no
// longer used.
template <int N>
GR_DEV void sm90_store(const struct gr_matmul_sm90_args &a, const struct sm90_work &work,
                       unsigned char *smem, const float (&acc)[N / 2])
{
    float *sum = (float *)smem; // [token][ROWS + 4]
    int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    sm90_sync();
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sum[(i / 4 * 8 + lane % 4 * 2 + i % 2) * (ROWS + 4) + warp * 16 + lane / 4 +
            i / 2 % 2 * 8] = acc[i];
    sm90_sync();
    if (a.n_segment > 1 && !sm90_join(a, work, sum))
        return;
    for (int e = threadIdx.x - 128; e < ROWS * work.item.n; e += 256)
        mm_store(work.m, work.item, work.tile * GR_PACK_ROWS + e % ROWS - work.m.w.offset, e / ROWS,
                 sum[e / ROWS * (ROWS + 4) + e % ROWS]);
}

// Two warpgroups, 64 rows each.
template <uint32_t T, int N>
GR_DEV void sm90_consume(const struct gr_matmul_sm90_args &a, const struct sm90_work &work,
                         unsigned char *smem)
{
    using S = pack_step<T>;
    struct sm90_reader<T, N> x = {
        sm90_rings<T, N>(smem), 0, 0
    };
    const auto &ring = x.ring;
    int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    uint32_t pairs[2][2][2][4];
    float acc[N / 2] = {};
    for (int c = work.lo; c < work.hi; c++) {
        int i = c - work.lo, slot = i % ring.AT.n_slot, n = work.m.x.units - 8 * c;
        const uint8_t *codes =
            smem + ring.AT.slots + slot * ring.AT.slot_bytes + warp * ring.CHUNK_BYTES;
        mbar_wait(ring.w_full + 8 * slot, i / ring.AT.n_slot % 2);
#pragma unroll
        for (int s = 0; s < S::STEPS; s++) {
            sm90_step<T> w;
            if (s * S::UNITS >= n)
                break;
            w.template load_chunk<from_shared>(codes, s * S::UNITS, n);
            if (s == S::STEPS - 1 || (s + 1) * S::UNITS >= n) {
                __syncwarp();
                if (lane == 0)
                    mbar_arrive(ring.w_empty + 8 * slot);
            }
            w.arrived();
            w.relate();
            sm90_multiply<T, N>(w, n - s * S::UNITS, x, pairs, acc);
        }
    }
    wgmma_wait<0>(acc);
    sm90_store<N>(a, work, smem, acc);
}

template <uint32_t T, int N>
GR_DEV void matmul_tile_sm90(const struct gr_matmul_sm90_args &a, const struct sm90_work &work)
{
    GR_SMEM;
    if (threadIdx.x == 0) {
        sm90_rings<T, N>(smem).init();
        tma_prefetch_map(&a.map);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0)
            sm90_bring_weights<T, N>(work, smem);
        if (threadIdx.x != 32)
            return;
        griddep_begin();
        sm90_bring_x<T, N>(a.map, work, smem);
    } else {
        setmaxnreg_inc<232>();
        griddep_begin();
        sm90_consume<T, N>(a, work, smem);
    }
}

// The width for as many tokens as there are.
template <uint32_t T> GR_DEV void matmul_tile_sm90(const struct gr_matmul_sm90_args &a)
{
    if (a.part[0].tiles)
        griddep_wait(); // they are the launch in front's
    const struct sm90_work work = sm90_work(a);
    int width = gr_sm90_width(work.item.n);
    if (work.item.n == 0)
        return;
    if (width == 32)
        matmul_tile_sm90<T, 32>(a, work);
    else if (width == 64)
        matmul_tile_sm90<T, 64>(a, work);
    else
        matmul_tile_sm90<T, 128>(a, work);
}

#define KERNEL(T, name)                                                                            \
    GR_KERNEL_EARLY(gr_matmul_tile_sm90_##name, struct gr_matmul_sm90_args, 384, 1)                \
    {                                                                                              \
        matmul_tile_sm90<T>(a);                                                                    \
    }
GR_MATMUL_TYPES(KERNEL)
