// MATMUL, MATMUL_ID and HEAD_MATMUL for many tokens on wgmma.
//
// Traffic: weights once for 128 tokens, activations once for 128 rows, both by the copy engine.
// Bound: tensor cores. A step of 256 columns is 2048 of their cycles; a warp decodes it in about
// 500 instructions, a quarter of what it may issue meanwhile.
// Grid: (tile of 128 tokens, 128 rows, item), or for experts (tile of pairs, 128 rows).
// Why: one warp asks for packed chunks as they lie, and for activations (lines by_step, 64 columns
// a stage, swizzled); two warpgroups with 64 rows each take turns at the tensor cores: one decodes
// weights into the registers wgmma reads while the other's products run. Weights are f16 relative
// to a power of two of each row and step, which keeps any scale in range; the step's products are
// then added in f32. So a weight is off by 2^-11 of scale * (code - zero), of its minimum and of
// itself; those of F16 and BF16 are exact, and add up all along the row.
#include "kernels/matmul.cuh"
#include "kernels/wgmma.cuh"

#define ROWS 128
#define TOKENS 128
#define STAGES 6
#define STAGE_BYTES (TOKENS * 128)
#define SLOTS 2 // of chunks of weights

// Barriers, addresses in shared memory.
struct sm90_bars {
    uint32_t x_full, x_empty, w_full, w_empty;
};

template <uint32_t T> GR_DEV struct sm90_bars sm90_bars(unsigned char *smem)
{
    uint32_t at = smem_u32(smem) + STAGES * STAGE_BYTES +
                  SLOTS * (ROWS / 16) * (uint32_t)gr_pack_chunk_bytes(T, 8);
    return {at, at + 8 * STAGES, at + 16 * STAGES, at + 16 * STAGES + 8 * SLOTS};
}

// One thread: every chunk of the block's 8 tiles of weights, and the activations it meets.
template <uint32_t T>
GR_DEV void sm90_produce(const struct gr_matmul_sm90_args &a, const struct mm_item &item,
                         unsigned char *smem)
{
    const uint32_t chunk_bytes = (uint32_t)gr_pack_chunk_bytes(T, 8);
    struct sm90_bars bar = sm90_bars<T>(smem);
    uint32_t x_at = smem_u32(smem), w_at = x_at + STAGES * STAGE_BYTES;
    int units = a.m.x.units, q = 0;
    int64_t tile_bytes = gr_pack_tile_bytes(T, a.m.w.cols);
    for (int c = 0; 8 * c < units; c++) {
        uint32_t slot = c % SLOTS, bytes = (uint32_t)gr_pack_chunk_bytes(T, min(8, units - 8 * c));
        mbar_wait(bar.w_empty + 8 * slot, c / SLOTS % 2 ^ 1);
        mbar_arrive_expect_tx(bar.w_full + 8 * slot, ROWS / 16 * bytes);
        for (int i = 0; i < ROWS / 16; i++)
            bulk_load(w_at + (slot * (ROWS / 16) + i) * chunk_bytes,
                      mm_tile_at(a.m, item, (int64_t)blockIdx.y * (ROWS / 16) + i, tile_bytes) +
                          (int64_t)c * chunk_bytes,
                      bytes, bar.w_full + 8 * slot);
        for (; q < min(4 * c + 4, units / 2); q++) {
            uint32_t stage = q % STAGES;
            mbar_wait(bar.x_empty + 8 * stage, q / STAGES % 2 ^ 1);
            mbar_arrive_expect_tx(bar.x_full + 8 * stage, STAGE_BYTES);
            tma_load_2d(x_at + stage * STAGE_BYTES, &a.map, q * 64, (int)item.line,
                        bar.x_full + 8 * stage);
        }
    }
}

// A step whose weights are whole f16 numbers, relative to a power of two for each of a lane's rows.
template <uint32_t T> struct sm90_step : pack_step<T> {
    using S = pack_step<T>;
    float power[2];
    uint32_t d16[2], m16[2]; // K types: the block's scale and minimum
    uint32_t largest[2];     // MXFP4: exponent

    // The largest scale or minimum of a block becomes 2^room() or a little more: what it makes of
    // the largest code is below 2^15 then, and scales down to 2^-14 keep all their bits.
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

template <uint32_t T>
GR_DEV void sm90_mma(float (&d)[TOKENS / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate)
{
    if constexpr (T == GR_BF16)
        wgmma_bf16_ra<TOKENS>(d, a, b, accumulate);
    else
        wgmma_f16_ra<TOKENS>(d, a, b, accumulate);
}

// A consumer's place in the rings.
struct sm90_ring {
    struct sm90_bars bar;
    uint32_t x_at;
    int q;    // the next pair of units
    int held; // pairs whose stages are not given back yet: those before q

    GR_METHOD void release() // all but the newest that may still be read
    {
        __syncwarp(); // lane 0 speaks for all that have waited
        if (held && threadIdx.x % 32 == 0)
            mbar_arrive(bar.x_empty + 8 * ((q - 1) % STAGES));
        held = 0;
    }
};

// acc += the step's n units times activations. a: two pairs of units, one that is multiplied and
// one that is decoded.
template <uint32_t T>
GR_DEV void sm90_multiply(const sm90_step<T> &w, int n, struct sm90_ring &ring,
                          uint32_t (&a)[2][2][2][4], float (&acc)[TOKENS / 2])
{
    using S = pack_step<T>;
    float part[TOKENS / 2];
    float(&d)[TOKENS / 2] = S::IS_FLOAT ? acc : part;
#pragma unroll
    for (int p = 0; p < S::UNITS / 2; p++) {
        if (2 * p >= n)
            break;
        w.unit16(2 * p, a[p % 2][0]);
        w.unit16(2 * p + 1, a[p % 2][1]);
        uint32_t stage = ring.q % STAGES;
        mbar_wait(ring.bar.x_full + 8 * stage, ring.q / STAGES % 2);
        uint64_t desc = wgmma_desc_k(ring.x_at + stage * STAGE_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            sm90_mma<T>(d, a[p % 2][k / 2][k % 2], wgmma_step(desc, 32 * k),
                        S::IS_FLOAT ? true : p > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>(); // the pair before is done
        ring.release();
        ring.q++, ring.held = 1;
    }
    if constexpr (!S::IS_FLOAT) {
        wgmma_wait<0>(part);
        ring.release();
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++)
            acc[i] = fmaf(w.power[i / 2 % 2], part[i], acc[i]);
    }
}

// Two warpgroups, 64 rows each.
template <uint32_t T>
GR_DEV void sm90_consume(const struct gr_matmul_args &a, const struct mm_item &item,
                         unsigned char *smem)
{
    using S = pack_step<T>;
    const uint32_t chunk_bytes = (uint32_t)gr_pack_chunk_bytes(T, 8);
    int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32, units = a.x.units;
    struct sm90_ring ring = {sm90_bars<T>(smem), smem_u32(smem), 0, 0};
    uint32_t pairs[2][2][2][4];
    float acc[TOKENS / 2] = {};
    for (int c = 0; 8 * c < units; c++) {
        int slot = c % SLOTS, n = units - 8 * c;
        const uint8_t *codes =
            smem + STAGES * STAGE_BYTES + (slot * (ROWS / 16) + warp) * chunk_bytes;
        mbar_wait(ring.bar.w_full + 8 * slot, c / SLOTS % 2);
#pragma unroll
        for (int s = 0; s < S::STEPS; s++) {
            sm90_step<T> w;
            if (s * S::UNITS >= n)
                break;
            w.template load_chunk<from_shared>(codes, s * S::UNITS, n);
            if (s == S::STEPS - 1 || (s + 1) * S::UNITS >= n) {
                __syncwarp();
                if (lane == 0)
                    mbar_arrive(ring.bar.w_empty + 8 * slot);
            }
            w.arrived();
            w.relate();
            sm90_multiply<T>(w, n - s * S::UNITS, ring, pairs, acc);
        }
    }
    wgmma_wait<0>(acc);
    bar_sync(1, 256); // both warpgroups are done with the ring: it becomes [token][ROWS + 4]
    float *sum = (float *)smem;
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++)
        sum[(i / 4 * 8 + lane % 4 * 2 + i % 2) * (ROWS + 4) + warp * 16 + lane / 4 +
            i / 2 % 2 * 8] = acc[i];
    bar_sync(1, 256);
    for (int e = threadIdx.x - 128; e < ROWS * item.n; e += 256)
        mm_store(a, item, (int64_t)blockIdx.y * ROWS + e % ROWS - a.w.offset, e / ROWS,
                 sum[e / ROWS * (ROWS + 4) + e % ROWS]);
}

template <uint32_t T> GR_DEV void matmul_tile_sm90(const struct gr_matmul_sm90_args &a)
{
    GR_SMEM;
    struct mm_item item = a.m.tiles ? mm_tile(a.m, blockIdx.x)
                                    : mm_item(a.m, blockIdx.z, blockIdx.x * TOKENS, TOKENS);
    if (item.n == 0)
        return;
    if (threadIdx.x == 0) {
        struct sm90_bars bar = sm90_bars<T>(smem);
        for (int i = 0; i < STAGES; i++)
            mbar_init(bar.x_full + 8 * i, 1), mbar_init(bar.x_empty + 8 * i, 8);
        for (int i = 0; i < SLOTS; i++)
            mbar_init(bar.w_full + 8 * i, 1), mbar_init(bar.w_empty + 8 * i, 8);
        fence_mbar_init();
        tma_prefetch_map(&a.map);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0)
            sm90_produce<T>(a, item, smem);
    } else {
        setmaxnreg_inc<232>();
        sm90_consume<T>(a.m, item, smem);
    }
}

#define KERNEL(T, name)                                                                            \
    GR_KERNEL(gr_matmul_tile_sm90_##name, struct gr_matmul_sm90_args, 384, 1)                      \
    {                                                                                              \
        matmul_tile_sm90<T>(a);                                                                    \
    }
GR_MATMUL_TYPES(KERNEL)
