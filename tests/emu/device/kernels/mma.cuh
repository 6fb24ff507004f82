// kernels/mma.cuh for the emulated device: the same interface, each instruction a model.
#pragma once

#include "kernels/ptx.cuh"

namespace emu
{
// Products of fragments; words of d in front, f32 or s32 as bits.
enum class Mma { f16, bf16, s8 };
void mma(Mma type, uint32_t d[4], const uint32_t a[4], const uint32_t b[2], Site site);
void ldmatrix_x4(uint32_t r[4], uint32_t addr, bool transposed, Site site);
void stmatrix_x4(uint32_t addr, const uint32_t r[4], bool transposed, Site site);
} // namespace emu

GR_DEV void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], EMU_SITE)
{
    emu::mma(emu::Mma::f16, (uint32_t *)d, a, b, site);
}
GR_DEV void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], EMU_SITE)
{
    emu::mma(emu::Mma::bf16, (uint32_t *)d, a, b, site);
}
GR_DEV void mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2], EMU_SITE)
{
    emu::mma(emu::Mma::s8, (uint32_t *)d, a, b, site);
}
GR_DEV void ldmatrix_x4(uint32_t r[4], uint32_t addr, EMU_SITE)
{
    emu::ldmatrix_x4(r, addr, false, site);
}
GR_DEV void ldmatrix_x4_trans(uint32_t r[4], uint32_t addr, EMU_SITE)
{
    emu::ldmatrix_x4(r, addr, true, site);
}
GR_DEV void stmatrix_x4(uint32_t addr, const uint32_t r[4], EMU_SITE)
{
    emu::stmatrix_x4(addr, r, false, site);
}
GR_DEV void stmatrix_x4_trans(uint32_t addr, const uint32_t r[4], EMU_SITE)
{
    emu::stmatrix_x4(addr, r, true, site);
}
