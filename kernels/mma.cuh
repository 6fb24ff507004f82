// Tensor cores: fragments and products. g = lane / 4, t = lane % 4; a register holds two f16 or
// bf16 (or four s8), the first element low. Layouts: PTX ISA 9, "Warp Level Matrix Instructions".
// Products of warpgroups: wgmma.cuh.
#pragma once

#include "kernels/ptx.cuh"

// d [16, 8] += a [16, 16] b [16, 8]: a[0] (row g, k 2t, 2t + 1), a[1] row g + 8, a[2] k + 8, a[3]
// both; b[0] (k 2t, 2t + 1; column g), b[1] k + 8; d[0], d[1] (row g, columns 2t, 2t + 1), d[2],
// d[3] row g + 8.
GR_DEV void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
GR_DEV void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// d [16, 8] += a [16, 32] b [32, 8] in s32: a[0] (row g, k 4t .. 4t + 3), a[1] row g + 8, a[2] k +
// 16, a[3] both; b[0] k 4t .., b[1] k + 16, column g.
GR_DEV void mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four 8 x 8 matrices of 16-bit elements: lane 8 i + r gives the shared address of row r of
// matrix i, aligned to 16; a lane gets of matrix i (row g, columns 2t, 2t + 1), transposed (rows
// 2t, 2t + 1; column g).
GR_DEV void ldmatrix_x4(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
GR_DEV void ldmatrix_x4_trans(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
// The inverse: stores what ldmatrix_x4 would load.
GR_DEV void stmatrix_x4(uint32_t addr, const uint32_t r[4])
{
    GR_SM90(
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr),
                     "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory"));
}
GR_DEV void stmatrix_x4_trans(uint32_t addr, const uint32_t r[4])
{
    GR_SM90(asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory"));
}
