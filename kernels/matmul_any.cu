// MATMUL, MATMUL_ID and HEAD_MATMUL with weights whose blocks are kept whole (gr/pack.h), all types
// in one kernel of each form.
//
// Traffic and grids: as kernels/matmul_mv.cuh and kernels/matmul_tile.cu, whose activations and
// results these are. Bound: up to 24 tokens, unpacking: a unit of 32 columns and 16 rows is some 90
// instructions of a warp, whatever the type, 8 clocks of a multiprocessor for each byte that a row
// has at 2 bits; tiles: tensor cores, beside 150 instructions on 256 clocks of them.
// Reason: a lane's columns stand in several places of a block and their values in a table, so
// blocks are fetched whole into shared memory by cp.async, each warp its own, three (tiles: two)
// chunks in turn, and read there byte by byte; the table is copied in front of them. Nothing is
// unrolled over units or types, so there is one copy of each type's unpacking.
#include "kernels/matmul_mv.cuh"
#include "kernels/matmul_tile.cuh"
#include "kernels/whole.cuh"

// Chunks of M tiles in turn, of one warp. Fetching is part of the caller's groups of cp.async.
template <int M> struct whole_ring {
    const uint8_t *tile[M];
    unsigned char *mem; // [slots][M][slot]
    int slot, units;    // bytes; of a row

    GR_METHOD int units_of(int c) const
    {
        return min(8, units - 8 * c);
    }
    GR_METHOD const uint8_t *chunk(int c_slot, int m) const
    {
        return mem + (c_slot * M + m) * slot;
    }
    GR_METHOD void fetch(uint32_t type, int c, int c_slot) const
    {
        if (8 * c >= units)
            return;
        int bytes = (int)gr_pack_chunk_bytes(type, units_of(c));
#pragma unroll
        for (int m = 0; m < M; m++)
            for (int o = threadIdx.x % 32 * 16; o < bytes; o += 512)
                cp_async_16(smem_u32(chunk(c_slot, m)) + o, tile[m] + (int64_t)c * slot + o);
    }
};

// The block's copy of the type's grid, at the beginning of shared memory.
GR_DEV const void *whole_grid_copy(uint32_t type, unsigned char *smem)
{
    const uint4 *from = (const uint4 *)whole_grid(type);
    for (int i = threadIdx.x; i < gr_whole_grid_bytes(type) / 16; i += blockDim.x)
        ((uint4 *)smem)[i] = from[i];
    return smem;
}

// Operands of this lane's columns of unit u of one row, without the scale, which is returned.
GR_DEV float whole_operand(uint32_t type, const struct gr_pack_type &k, const uint8_t *chunk, int n,
                           int r, int u, const void *grid, uint32_t (&a)[2][4])
{
    int lane = threadIdx.x % 32;
    struct whole8 e = whole_columns(type, k, chunk, n, lane / 4 + 8 * r, u, lane % 4, grid);
    uint32_t pairs[2] = {__byte_perm(e.lo, e.hi, 0x5410), __byte_perm(e.lo, e.hi, 0x7632)};
    uint32_t signs = e.signs | e.signs << 12, zero = twice(0x6400 + (uint32_t)k.zero);
    uint32_t factor = sub_f16x2(twice(0x6400 + e.factor), 0x64006400);
#pragma unroll
    for (int s = 0; s < 4; s++) { // columns s and s + 4: 1024 + code, as f16
        uint32_t v = and_or(pairs[s / 2] >> s % 2 * 8, 0x00ff00ff, 0x64006400);
        v = mul_f16x2(sub_f16x2(v, zero), factor);
        a[s / 2][s % 2 * 2 + r] = v ^ (signs << (15 - s) & 0x80008000);
    }
    return e.scale;
}

// acc += the chunks in a slot, n units, times activations, as product() of kernels/matmul.cuh.
template <int M, int NT, class X>
GR_DEV void product_whole(uint32_t type, const struct whole_ring<M> &ring, int slot, int n,
                          const void *grid, X &&x, float (&acc)[M][NT][4])
{
    struct gr_pack_type k = gr_pack_type(type);
#pragma unroll 1
    for (int u = 0; u < n; u++) {
        x.enter(u);
        uint32_t a[M][2][4];
        float scale[M][2];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                scale[m][r] = whole_operand(type, k, ring.chunk(slot, m), n, r, u, grid, a[m]);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            uint4 b = x.unit(u, i);
#pragma unroll
            for (int m = 0; m < M; m++) {
                float unit[4] = {};
                mma<GR_F16>(unit, a[m][0], b.x, b.y);
                mma<GR_F16>(unit, a[m][1], b.z, b.w);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    acc[m][i][j] = fmaf(scale[m][j / 2], unit[j], acc[m][i][j]);
            }
        }
    }
}

// The constants of a step that mv_x and tile_x use.
struct whole_step {
    static constexpr int UNITS = 8, STEPS = 1;
    static constexpr bool SUMS = false;
    static constexpr float AFTER = 1;
};

template <int NT> GR_DEV void matmul_mv_any(const struct gr_matmul_args &a)
{
    GR_SMEM;
    uint32_t type = a.w.dtype;
    int n_warp = blockDim.x / 32, warp = threadIdx.x / 32;
    int units = a.x.units, n_chunk = (units + 7) / 8;
    struct mm_block block = mm_block(a, blockIdx.x);
    struct mm_item item = mm_item(a, block.item, blockIdx.y * NT * 8, NT * 8);
    struct mv_x<whole_step, NT> x(a, item);
    struct whole_ring<1> ring;
    ring.slot = (int)gr_pack_chunk_bytes(type, 8), ring.units = units;
    ring.mem = smem + gr_whole_grid_bytes(type) + warp * GR_WHOLE_SLOTS * ring.slot;
    ring.tile[0] = mm_tile_at(a, item, block.tile, gr_pack_tile_bytes(type, a.w.cols));
    for (int i = 0; i < GR_WHOLE_SLOTS - 1; i++) {
        ring.fetch(type, warp + i * n_warp, i);
        cp_async_commit();
    }
    const void *grid = whole_grid_copy(type, smem);
    __syncthreads();

    float acc[1][NT][4] = {};
    for (int c = warp, slot = 0; c < n_chunk; c += n_warp) {
        cp_async_wait<GR_WHOLE_SLOTS - 2>();
        __syncwarp(); // the chunk has arrived, and the one before is read
        ring.fetch(type, c + (GR_WHOLE_SLOTS - 1) * n_warp,
                   (slot + GR_WHOLE_SLOTS - 1) % GR_WHOLE_SLOTS);
        cp_async_commit();
        x.step = c;
        float part[1][NT][4] = {};
        product_whole<1, NT>(type, ring, slot, ring.units_of(c), grid, x, part);
        mv_add<whole_step, NT>(acc, part, a, item, c);
        slot = (slot + 1) % GR_WHOLE_SLOTS;
    }
    cp_async_wait<0>();
    __syncthreads(); // shared memory is free for sums
    mv_store<NT>(a, block.tile * GR_PACK_ROWS, item, acc, 0);
}

GR_KERNEL(gr_matmul_any_mv, struct gr_matmul_args, 256, 2)
{
    matmul_mv_any<1>(a);
}
GR_KERNEL(gr_matmul_any_mv3, struct gr_matmul_args, 256, 2)
{
    matmul_mv_any<3>(a);
}

GR_KERNEL(gr_matmul_any_tile, struct gr_matmul_args, 128, 2)
{
    constexpr int M = 2, NT = TOKENS / 8;
    GR_SMEM;
    uint32_t type = a.w.dtype;
    struct mm_item item = tile_item(a);
    if (item.n == 0)
        return;
    int units = a.x.units, warp = threadIdx.x / 32;
    struct whole_ring<M> ring;
    unsigned char *table = smem + STAGES * STAGE_BYTES;
    ring.slot = (int)gr_pack_chunk_bytes(type, 8), ring.units = units;
    ring.mem = table + gr_whole_grid_bytes(type) + warp * 2 * M * ring.slot;
#pragma unroll
    for (int m = 0; m < M; m++)
        ring.tile[m] = mm_tile_at(a, item, (int64_t)blockIdx.y * (ROWS / 16) + warp * M + m,
                                  gr_pack_tile_bytes(type, a.w.cols));
    float acc[M][NT][4] = {};
    ring.fetch(type, 0, 0); // of the first group of x
    struct tile_x<whole_step> x;
    x.begin(a, item);
    const void *grid = whole_grid_copy(type, table);
    for (int c = 0; 8 * c < units; c++) {
        __syncwarp();                         // the chunk before is read
        ring.fetch(type, c + 1, (c + 1) % 2); // of the group that enter(0) ends: two come after it
        x.step = c;
        product_whole<M, NT>(type, ring, c % 2, ring.units_of(c), grid, x, acc);
    }
    tile_store<M, NT>(a, item, acc);
}
