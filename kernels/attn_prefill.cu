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
// taken run by run (neighbours of one sequence), so nothing is fetched that no span names; runs
// of at most GR_ATTN_FEW tokens are for attn_decode. Rounding as there; an output with values
// beyond f16 is computed again exactly.
#include "kernels/attn_many.cuh"

enum { THREADS = 128, QUERIES = 64 };

template <int DK, int DV> struct queries {
    static constexpr bool keep = DK <= 192; // q in registers
    uint32_t q[keep ? DK / 16 : 1][4];
    float o[DV / 2];
    attn_rows rows;
};

// One tile of keys at k and values at v, items from j on.
template <int DK, int DV, int KT>
GR_DEV void attend(const gr_kernel_attn &a, queries<DK, DV> &s, uint32_t q, uint32_t k, uint32_t v,
                   int j, bool full)
{
    const int k_pitch = a.smem.k_pitch, v_pitch = a.v_in_k < 0 ? a.smem.v_pitch : k_pitch;
    float x[KT / 2] = {}, down[2];
#pragma unroll
    for (int c = 0; c < DK / 16; c++) {
        uint32_t fq[4];
        if constexpr (!queries<DK, DV>::keep)
            attn_frag_a(fq, q, a.smem.q_pitch, c * 16);
#pragma unroll
        for (int n = 0; n < KT / 16; n++) {
            uint32_t f[4];
            attn_frag_k(f, k + n * 16 * k_pitch, k_pitch, c * 16);
            mma_f16(x + 8 * n, queries<DK, DV>::keep ? s.q[c] : fq, f);
            mma_f16(x + 8 * n + 4, queries<DK, DV>::keep ? s.q[c] : fq, f + 2);
        }
    }
    attn_weigh<KT>(a, s.rows, x, j, full, down);
    attn_rescale(s.o, down);
#pragma unroll
    for (int n = 0; n < KT / 16; n++) {
        uint32_t p[4];
        attn_frag_p(p, x + 8 * n);
#pragma unroll
        for (int c = 0; c < DV / 16; c++) {
            uint32_t f[4];
            attn_frag_v(f, v + n * 16 * v_pitch, v_pitch, c * 16);
            mma_f16(s.o + 8 * c, p, f);
            mma_f16(s.o + 8 * c + 4, p, f + 2);
        }
    }
}

template <int DK, int DV, int KT> GR_DEV void prefill(const gr_kernel_attn &a, unsigned char *smem)
{
    __shared__ bool bad[QUERIES];
    __shared__ attn_work work;
    const int group = a.n_head / a.n_head_kv, warp = threadIdx.x / 32;
    const int h_kv = blockIdx.x / a.n_tile, h0 = h_kv * group + blockIdx.x % a.n_tile * a.n_pack;
    const int n = QUERIES / a.n_pack, t0 = (gridDim.y - 1 - blockIdx.y) * n;
    const int row = warp * 16 + threadIdx.x % 32 / 4;
    const uint32_t q = smem_u32(smem) + a.smem.q + warp * 16 * a.smem.q_pitch;
    queries<DK, DV> s;
    s.rows = attn_rows_of(t0, h0, row);
#pragma unroll
    for (int c = 0; c < DV / 2; c++)
        s.o[c] = 0;

    if (warp == 0)
        attn_plan(a, t0, n, &work);
    __syncthreads();
    for (int w = 0; w < work.n; w++) {
        const int plane = work.part[w].plane, lo = work.part[w].lo, hi = work.part[w].hi;
        attn_load_q(a, plane, QUERIES, smem + a.smem.q, [&](int r, int &t, int &h) {
            t = t0 + r / a.n_pack, h = h0 + r % a.n_pack;
            return t < a.n_tok;
        });
        __syncthreads();
        if constexpr (queries<DK, DV>::keep) {
#pragma unroll
            for (int c = 0; c < DK / 16; c++)
                attn_frag_a(s.q[c], q, a.smem.q_pitch, c * 16);
            __syncthreads();
        }
        attn_look(a, s.rows, plane, work.part[w].first, work.part[w].end);
        const attn_seen seen = attn_seen_of(s.rows);
        attn_pipe pipe = attn_pipe_begin<KT>(a, plane, h_kv, lo, hi, smem);
        for (int i = 0, j = lo; j < hi; i++, j += KT) {
            unsigned char *k, *v;
            attn_pipe_take<KT>(a, pipe, i, smem, k, v);
            if (j < seen.any_hi && j + KT > seen.any_lo)
                attend<DK, DV, KT>(a, s, q, smem_u32(k), smem_u32(v), j,
                                   j >= seen.all_lo && j + KT <= seen.all_hi);
        }
        attn_pipe_end();
    }
    bool wrong[2];
    attn_write(a, s.rows, s.o, work.few, wrong);
    if (threadIdx.x % 4 == 0)
        bad[row] = wrong[0], bad[row + 8] = wrong[1];
    __syncthreads();
    for (int r = 0; r < QUERIES; r++)
        if (bad[r]) {
            const int t = t0 + r / a.n_pack, h = h0 + r % a.n_pack;
            attn_exact<THREADS>(a, t, h, (float *)smem);
            if (a.packed_x.to.n)
                attn_pack_head(a, t, h, THREADS / 32);
        }
}

#define PREFILL(name, DK, DV, KT, BLOCKS)                                                          \
    GR_KERNEL(gr_attn_prefill_##name, gr_kernel_attn, THREADS, BLOCKS)                             \
    {                                                                                              \
        GR_SMEM;                                                                                   \
        prefill<DK, DV, KT>(a, smem);                                                              \
    }
PREFILL(64, 64, 64, 64, 2)
PREFILL(80, 80, 80, 64, 2)
PREFILL(96, 96, 96, 64, 2)
PREFILL(112, 112, 112, 64, 2)
PREFILL(128, 128, 128, 64, 2)
PREFILL(192_128, 192, 128, 64, 2)
PREFILL(256, 256, 256, 32, 2)
