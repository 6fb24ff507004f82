// Tiles of K and V in shared memory: fetched by row number, brought to f16.
//
// All products of the fast attention kernels are f16 with f32 sums. bf16 and quants become f16 in
// shared memory once a tile: bf16 exactly from 2^-14 up, quants to 2^-11 of their value.
// Values beyond f16 become NaN, and so do outputs that depend on them: the kernel that writes an
// output computes such a one again with attn_exact.
#pragma once

#include "kernels/attn.cuh"
#include "kernels/mma.cuh"

#define ATTN_LOG2E 1.4426950408889634f

// Factor of a query before it becomes f16: logits are then in powers of two, or, with a cap,
// fractions of it.
GR_DEV float attn_q_factor(const gr_kernel_attn &a)
{
    return a.softcap > 0 ? a.scale / a.softcap : a.scale * ATTN_LOG2E;
}
GR_DEV float attn_f16_or_nan(float x)
{
    return fabsf(x) <= 65504.0f ? x : NAN;
}
// The logit in powers of two; slope with log2 e in it.
GR_DEV float attn_finish(const gr_kernel_attn &a, float x, float slope, int t, int item)
{
    if (a.softcap > 0) // tanh to 2^-22 of its largest value
        x = a.softcap * ATTN_LOG2E * (1 - __fdividef(2, exp2_fast(x * (2 * ATTN_LOG2E)) + 1));
    if (a.max_alibi > 0)
        x -= slope * attn_distance(a, t, item);
    return x;
}

// --- rows into shared memory ---

// Address of the pieces of 16 bytes that hold the steps of a head of row 0; none lies behind the
// row, which may be the last of the memory. And the offset of the steps in a row of a tile.
GR_DEV const char *attn_step_piece(const gr_kernel_rows &r, const gr_attn_stage &s, int h_kv)
{
    const uintptr_t at = (uintptr_t)(r.step + h_kv * r.head_step) / 16 * 16;
    return (const char *)min(at, (uintptr_t)r.end - (s.n16 - s.codes) * 16);
}
GR_DEV int attn_step_at(const gr_kernel_rows &r, const gr_attn_stage &s, int h_kv)
{
    return s.codes * 16 + (int)(r.step + h_kv * r.head_step - attn_step_piece(r, s, h_kv));
}

// A warp fetches the rows of N keys, key i of row number `row` in lane i (below 0: zeros), to dst +
// i * pitch: four lanes a row, 64 bytes of it at a time.
template <int N>
GR_DEV void attn_fetch(const gr_kernel_rows &r, const gr_attn_stage &s, int h_kv, int row,
                       uint32_t dst)
{
    const int key = threadIdx.x % 32 / 4, first = threadIdx.x % 4;
    const char *head = r.data + h_kv * r.head, *from[N / 8];
    const int gap = (int)(attn_step_piece(r, s, h_kv) - head) - s.codes * 16; // of planes
    int bytes[N / 8];
#pragma unroll
    for (int k = 0; k < N / 8; k++) {
        const int at = __shfl_sync(0xffffffffu, row, k * 8 + key);
        bytes[k] = at < 0 ? 0 : 16;
        from[k] = head + (uint64_t)(uint32_t)max(at, 0) * (uint32_t)r.row;
    }
    dst += key * s.pitch;
#pragma unroll 1
    for (int p = first; p < s.n16; p += 4) {
        const int at = p * 16 + (p < s.codes ? 0 : gap);
#pragma unroll
        for (int k = 0; k < N / 8; k++)
            cp_async_16(dst + k * 8 * s.pitch + p * 16, from[k] + at, bytes[k]);
    }
}

// Four bytes 0 .. 255 less `zero`, times d: four f16. 0x6400 + n is 1024 + n.
GR_DEV uint2 attn_scaled(uint32_t bytes, uint32_t zero, uint32_t d)
{
    uint32_t lo = __byte_perm(bytes, 0x64646464, 0x4140),
             hi = __byte_perm(bytes, 0x64646464, 0x4342);
    return {mul_f16x2(sub_f16x2(lo, zero), d), mul_f16x2(sub_f16x2(hi, zero), d)};
}

// A step twice; NaN where a quant of it may not be an f16.
GR_DEV uint32_t attn_twice(uint32_t d)
{
    return ((d & 0x7fff) < 0x5ff0 ? d : 0x7fff) * 0x10001; // 0x5ff0 is 508
}

GR_DEV uint32_t attn_pair(uint32_t two) // bf16 to f16
{
    float lo = __uint_as_float(two << 16), hi = __uint_as_float(two & 0xffff0000u);
    return f16x2(attn_f16_or_nan(lo), attn_f16_or_nan(hi));
}

// A minimum twice; NaN where a sum with a quant may not be an f16.
GR_DEV uint32_t attn_twice_min(uint32_t m)
{
    return ((m & 0x7fff) < 0x7600 ? m : 0x7fff) * 0x10001; // 0x7600 is 24576
}

// attn_sixteen of the types with records.
GR_DEV void attn_sixteen_records(int type, const unsigned char *row, const uint16_t *record, int i,
                                 uint32_t *o)
{
    const bool min = type == GR_Q4_1 || type == GR_Q5_1, iq4 = type == GR_IQ4_NL;
    record += i / 2 * (int)(gr_planes_record(type) / 2);
    const uint4 four = *(const uint4 *)(row + i / 2 * 16);
    const uint32_t w[4] = {four.x, four.y, four.z, four.w}, d = attn_twice(record[0]),
                   m = min ? attn_twice_min(record[1]) : 0,
                   fifth = type == GR_Q5_0   ? record[1 + i % 2]
                           : type == GR_Q5_1 ? record[2 + i % 2]
                                             : 0,
                   zero = iq4               ? 0x64806480u
                          : type == GR_Q5_0 ? 0x64106410u
                                            : 0x64006400u;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t n = w[k] >> i % 2 * 4 & 0x0f0f0f0fu;
        if (iq4) {
            n = (n | n >> 4) & 0x00ff00ffu;
            n = iq4_values<false>()(iq4_turned(n | n >> 8)).x;
        } else {
            n |= spread_1(fifth >> 4 * k) << 4;
        }
        o[2 * k] = fma_f16x2(sub_f16x2(__byte_perm(n, 0x64646464, 0x4140), zero), d, m);
        o[2 * k + 1] = fma_f16x2(sub_f16x2(__byte_perm(n, 0x64646464, 0x4342), zero), d, m);
    }
}

// 16 elements of a row of a type, from the 16 i th, as f16 in two pieces.
template <int TYPE>
GR_DEV void attn_sixteen(int type, const unsigned char *row, const uint16_t *step, int i,
                         uint4 out[2])
{
    uint32_t *o = (uint32_t *)out;
    if constexpr (TYPE == ATTN_RECORDS) {
        attn_sixteen_records(type, row, step, i, o);
    } else if constexpr (TYPE == GR_BF16) {
        const uint32_t *w = (const uint32_t *)(row + i * 32);
#pragma unroll
        for (int k = 0; k < 8; k++)
            o[k] = attn_pair(w[k]);
    } else {
        const uint4 four = *(const uint4 *)(row + (TYPE == GR_Q8_0 ? i : i / 2) * 16);
        const uint32_t w[4] = {four.x, four.y, four.z, four.w}, d = attn_twice(step[i / 2]);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint2 x = TYPE == GR_Q8_0
                          ? attn_scaled(w[k] ^ 0x80808080u, 0x64806480u, d)
                          : attn_scaled(w[k] >> i % 2 * 4 & 0x0f0f0f0fu, 0x64086408u, d);
            o[2 * k] = x.x, o[2 * k + 1] = x.y;
        }
    }
}

// d columns (a multiple of 16) of KEYS rows to f16, rows to_pitch apart, by THREADS threads; the
// records `step` bytes into a row.
template <int TYPE, int KEYS, int THREADS>
GR_DEV void attn_convert(int type, const unsigned char *from, const gr_attn_stage &s, int step,
                         int d, unsigned char *to, int to_pitch)
{
    int n = d / 16;
    for (int i = threadIdx.x % THREADS; i < KEYS * n; i += THREADS) {
        int key = i / n, at = i - key * n;
        const unsigned char *row = from + key * s.pitch;
        uint4 out[2];
        attn_sixteen<TYPE>(type, row, (const uint16_t *)(row + step), at, out);
        uint4 *dst = (uint4 *)(to + key * to_pitch + at * 32);
        dst[0] = out[0], dst[1] = out[1];
    }
}

// The same of any type but f32 and f16.
template <int KEYS, int THREADS>
GR_DEV void attn_to_f16(const gr_kernel_rows &r, const unsigned char *from, const gr_attn_stage &s,
                        int h_kv, int d, unsigned char *to, int to_pitch)
{
    const int step = attn_step_at(r, s, h_kv);
    if (r.type == GR_BF16)
        attn_convert<GR_BF16, KEYS, THREADS>(r.type, from, s, step, d, to, to_pitch);
    else if (r.type == GR_Q8_0)
        attn_convert<GR_Q8_0, KEYS, THREADS>(r.type, from, s, step, d, to, to_pitch);
    else if (r.type == GR_Q4_0)
        attn_convert<GR_Q4_0, KEYS, THREADS>(r.type, from, s, step, d, to, to_pitch);
    else
        attn_convert<ATTN_RECORDS, KEYS, THREADS>(r.type, from, s, step, d, to, to_pitch);
}

// --- a range of the list, tile by tile, by four warps ---

// Tiles of KT items of [lo, hi), K by the rows k, V beside it unless it is part of K. The next one
// or two are on their way while one is used, if there are stages for them.
struct attn_pipe {
    const gr_kernel_rows *k;
    int h_kv, lo, hi, next; // next: row number of this lane's key in the tile to fetch next
    int in, out;            // stages of the tile to fetch next, of that to take next
};
GR_DEV void attn_pipe_turn(const gr_kernel_attn &a, int &stage)
{
    stage = stage + 1 < a.smem.n_stage ? stage + 1 : 0;
}

template <int KT> GR_DEV int attn_pipe_row(const gr_kernel_attn &a, const attn_pipe &p, int tile)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
        item = p.lo + tile * KT + warp * KT / 4 + lane;
    return lane < KT / 4 && item < p.hi ? a.list[item] : -1;
}

template <int KT>
GR_DEV void attn_pipe_fetch(const gr_kernel_attn &a, attn_pipe &p, int tile, int row,
                            unsigned char *smem)
{
    const gr_attn_smem &at = a.smem;
    const int first = threadIdx.x / 32 * KT / 4;
    if (p.lo + tile * KT < p.hi) {
        uint32_t stage = smem_u32(smem) + at.stage + p.in * at.stage_bytes;
        attn_fetch<KT / 4>(*p.k, a.k_stage, p.h_kv, row, stage + first * a.k_stage.pitch);
        if (a.v_in_k < 0)
            attn_fetch<KT / 4>(a.v, a.v_stage, p.h_kv, row,
                               stage + at.stage_v + first * a.v_stage.pitch);
    }
    attn_pipe_turn(a, p.in);
    cp_async_commit();
}

template <int KT>
GR_DEV attn_pipe attn_pipe_begin(const gr_kernel_attn &a, int plane, int h_kv, int lo, int hi,
                                 unsigned char *smem)
{
    attn_pipe p = {&a.k[plane], h_kv, lo, hi, 0, 0, 0};
    for (int i = 0; i < a.smem.n_stage - 1; i++)
        attn_pipe_fetch<KT>(a, p, i, attn_pipe_row<KT>(a, p, i), smem);
    p.next = attn_pipe_row<KT>(a, p, a.smem.n_stage - 1);
    return p;
}

// True when a tile of such rows is converted to f16; with PLANES some quants are not.
template <bool PLANES> GR_DEV bool attn_converts(const gr_kernel_rows &r)
{
    return r.type != GR_F16 && !(PLANES && gr_attn_by_planes(r.type));
}

// Waits for tile i in shared memory, as f16 or planes: K at k, V at v, valid for all threads
// until the next call.
template <int KT, bool PLANES = false>
GR_DEV void attn_pipe_take(const gr_kernel_attn &a, attn_pipe &p, int i, unsigned char *smem,
                           unsigned char *&k, unsigned char *&v)
{
    const gr_attn_smem &at = a.smem;
    const int ahead = at.n_stage - 1;
    if (ahead == 2)
        cp_async_wait<1>();
    else
        cp_async_wait<0>();
    __syncthreads();
    attn_pipe_fetch<KT>(a, p, i + ahead, p.next, smem);
    p.next = attn_pipe_row<KT>(a, p, i + ahead + 1);
    if (ahead == 0) {
        cp_async_wait<0>();
        __syncthreads();
    }
    const bool v_own = a.v_in_k < 0, k_other = attn_converts<PLANES>(*p.k),
               v_other = v_own && attn_converts<PLANES>(a.v);
    unsigned char *stage = smem + at.stage + p.out * at.stage_bytes;
    attn_pipe_turn(a, p.out);
    if (k_other)
        attn_to_f16<KT, 128>(*p.k, stage, a.k_stage, p.h_kv, a.d_k, smem + at.k, at.k_pitch);
    if (v_other)
        attn_to_f16<KT, 128>(a.v, stage + at.stage_v, a.v_stage, p.h_kv, a.d_v, smem + at.v,
                             at.v_pitch);
    if (k_other || v_other)
        __syncthreads();
    k = k_other ? smem + at.k : stage;
    const int column = PLANES && gr_attn_by_planes(p.k->type) ? gr_planes_codes(p.k->type, a.v_in_k)
                                                              : 2 * a.v_in_k;
    v = !v_own ? k + column : v_other ? smem + at.v : stage + at.stage_v;
}

// Frees the shared memory for other uses.
GR_DEV void attn_pipe_end()
{
    cp_async_wait<0>();
    __syncthreads();
}

// q [n_row][d_k] as f16 at `to`, pitch smem.q_pitch, by four warps; token_of(row, t, h): false when
// there is no such row. With PLANES, where K has them, column 4 t + r of each 16 stands at
// 2 t + r / 2 + r % 2 * 8 (attn_planes.cuh).
template <bool PLANES = false, class F>
GR_DEV void attn_load_q(const gr_kernel_attn &a, int plane, int n_row, unsigned char *to,
                        F token_of)
{
    const float f = attn_q_factor(a);
    const bool apart = PLANES && gr_attn_by_planes(a.k[plane].type);
    for (int r = threadIdx.x / 32; r < n_row; r += 4) {
        int t, h;
        bool there = token_of(r, t, h);
        const float4 *q =
            (const float4 *)((const float *)(a.q[plane] + t * a.q_row[plane]) + h * a.d_k);
        uint32_t *dst = (uint32_t *)(to + r * a.smem.q_pitch);
        for (int i = threadIdx.x % 32; i < a.d_k / 4; i += 32) {
            float4 x = there ? q[i] : make_float4(0, 0, 0, 0);
            float y = apart ? x.z : x.y, z = apart ? x.y : x.z;
            int at = apart ? i / 4 * 8 + i % 4 : 2 * i;
            dst[at] = f16x2(attn_f16_or_nan(x.x * f), attn_f16_or_nan(y * f));
            dst[at + (apart ? 4 : 1)] = f16x2(attn_f16_or_nan(z * f), attn_f16_or_nan(x.w * f));
        }
    }
}

// --- fragments of 16-bit tiles in shared memory, rows `pitch` bytes apart ---

// a [16, 16] from row 0 and column `col` of a tile.
GR_DEV void attn_frag_a(uint32_t f[4], uint32_t tile, int pitch, int col)
{
    int lane = threadIdx.x % 32;
    ldmatrix_x4(f, tile + (lane & 15) * pitch + (col + (lane >> 4) * 8) * 2);
}
// b [16, 16] of K: b[0], b[1] for keys 0 .. 7, b[2], b[3] for 8 .. 15; k from `col`. With ONE the
// first eight keys alone.
template <bool ONE = false>
GR_DEV void attn_frag_k(uint32_t f[4], uint32_t tile, int pitch, int col)
{
    int lane = threadIdx.x % 32, key = (lane & 7) + (ONE ? 0 : (lane >> 4) * 8);
    ldmatrix_x4(f, tile + key * pitch + (col + (lane >> 3 & 1) * 8) * 2);
}
// b [16, 16] of V: b[0], b[1] for columns col .. + 7, b[2], b[3] for the next eight; k are keys.
GR_DEV void attn_frag_v(uint32_t f[4], uint32_t tile, int pitch, int col)
{
    int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(f, tile + (lane & 15) * pitch + (col + (lane >> 4) * 8) * 2);
}

// The largest of the four lanes that share a row, and their sum.
GR_DEV float attn_quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
GR_DEV float attn_quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
