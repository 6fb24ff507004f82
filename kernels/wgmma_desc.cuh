// Descriptors of tiles in shared memory for wgmma ("Matrix Descriptor"), shared by wgmma.cuh of a
// GPU and of the emulated device.
//
// T = 8 elements = 16 bytes; a tile of a [mn, k] is K-major (k runs innermost) or MN-major. With a
// swizzle of S = 128, 64 or 32 bytes, rows are S bytes long and the tile is aligned to 8 S. Offset
// of element (mn, k) before the swizzle:
//   K-major   (mn % 8) S + (mn / 8) sbo + 2 k, k < S / 2
//   MN-major  (k % 8) S + (k / 8) sbo + 2 (mn % (S / 2)) + mn / (S / 2) lbo
// and without one:
//   K-major   (mn % 8) 16 + (mn / 8) sbo + 2 (k % 8) + (k / 8) lbo
//   MN-major  (k % 8) 16 + (k / 8) lbo + 2 (mn % 8) + (mn / 8) sbo
// tma_load writes a swizzled tile by a map of the same swizzle and an inner box of S bytes.
#pragma once

#include "kernels/ptx.cuh"

GR_DEV uint64_t wgmma_desc(uint32_t addr, uint32_t lbo, uint32_t sbo, int swizzle)
{
    const uint64_t mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    return mode << 62 | (uint64_t)((sbo & 0x3ffff) >> 4) << 32 |
           (uint64_t)((lbo & 0x3ffff) >> 4) << 16 | (addr & 0x3ffff) >> 4;
}
// Rows of 64 elements, swizzled by 128 bytes, one after another. K-major [mn, 64]: the next 16 of k
// are wgmma_step(desc, 32) away.
GR_DEV uint64_t wgmma_desc_k(uint32_t addr)
{
    return wgmma_desc(addr, 16, 1024, 128);
}
// MN-major: rows are k, n_k of them hold 64 of mn; the next 64 of mn stand behind them, n_k * 128
// bytes on. The next 16 of k are wgmma_step(desc, 2048) away.
GR_DEV uint64_t wgmma_desc_mn(uint32_t addr, int n_k)
{
    return wgmma_desc(addr, n_k * 128, 1024, 128);
}
GR_DEV uint64_t wgmma_step(uint64_t desc, uint32_t bytes)
{
    return desc + (bytes >> 4);
}

// The values of N that products have.
template <int N>
constexpr bool wgmma_has = N == 8 || N == 16 || N == 32 ||
                           (N >= 64 && N <= 128 && N % 8 == 0) || N == 192 || N == 256;
