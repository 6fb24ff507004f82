// The part of kernels/ptx.cuh that compute capability 9.0 brought, for the emulated device.
#pragma once

#include "gr/kernel/tensor_map.h"
#include "thread.hpp"

namespace emu
{
void mbar_init(uint32_t bar, uint32_t count, Site site);
void mbar_inval(uint32_t bar, Site site);
void fence_mbar_init();
void mbar_arrive(uint32_t bar, Site site);
void mbar_arrive_expect_tx(uint32_t bar, uint32_t bytes, Site site);
void mbar_expect_tx(uint32_t bar, uint32_t bytes, Site site);
void cp_async_mbar_arrive(uint32_t bar, Site site);
bool mbar_try_wait(uint32_t bar, uint32_t parity, Site site);
void mbar_wait(uint32_t bar, uint32_t parity, Site site);
void fence_proxy_async();
void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, Site site);
void bulk_store(void *dst, uint32_t src, uint32_t bytes, Site site);
void tma_load(uint32_t dst, const struct gr_tensor_map *map, int rank, const int at[3],
              uint32_t bar, Site site);
void tma_store(const struct gr_tensor_map *map, int rank, const int at[3], uint32_t src, Site site);
void one_block(uint32_t blocks, const char *what, Site site);
void bulk_commit();
void bulk_wait(uint32_t pending, bool read_only);
void tma_prefetch_map(const struct gr_tensor_map *map, Site site);
void bulk_prefetch(const void *src, uint32_t bytes, Site site);
void setmaxnreg(uint32_t registers, bool more, Site site);
void griddep_wait();
void griddep_launch();
} // namespace emu

GR_DEV void mbar_init(uint32_t bar, uint32_t count, EMU_SITE)
{
    emu::mbar_init(bar, count, site);
}
GR_DEV void mbar_inval(uint32_t bar, EMU_SITE)
{
    emu::mbar_inval(bar, site);
}
GR_DEV void fence_mbar_init()
{
    emu::fence_mbar_init();
}
GR_DEV void mbar_arrive(uint32_t bar, EMU_SITE)
{
    emu::mbar_arrive(bar, site);
}
GR_DEV void mbar_arrive_expect_tx(uint32_t bar, uint32_t bytes, EMU_SITE)
{
    emu::mbar_arrive_expect_tx(bar, bytes, site);
}
GR_DEV void mbar_expect_tx(uint32_t bar, uint32_t bytes, EMU_SITE)
{
    emu::mbar_expect_tx(bar, bytes, site);
}
GR_DEV void cp_async_mbar_arrive(uint32_t bar, EMU_SITE)
{
    emu::cp_async_mbar_arrive(bar, site);
}
GR_DEV bool mbar_try_wait(uint32_t bar, uint32_t parity, EMU_SITE)
{
    return emu::mbar_try_wait(bar, parity, site);
}
GR_DEV void mbar_wait(uint32_t bar, uint32_t parity, EMU_SITE)
{
    emu::mbar_wait(bar, parity, site);
}
GR_DEV void fence_proxy_async()
{
    emu::fence_proxy_async();
}
GR_DEV void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, EMU_SITE)
{
    emu::bulk_load(dst, src, bytes, bar, site);
}
GR_DEV void bulk_store(void *dst, uint32_t src, uint32_t bytes, EMU_SITE)
{
    emu::bulk_store(dst, src, bytes, site);
}
GR_DEV void tma_load_2d(uint32_t dst, const struct gr_tensor_map *map, int x, int y, uint32_t bar,
                        EMU_SITE)
{
    const int at[3] = {x, y, 0};
    emu::tma_load(dst, map, 2, at, bar, site);
}
GR_DEV void tma_load_3d(uint32_t dst, const struct gr_tensor_map *map, int x, int y, int z,
                        uint32_t bar, EMU_SITE)
{
    const int at[3] = {x, y, z};
    emu::tma_load(dst, map, 3, at, bar, site);
}
// Every block is a cluster by itself here, and the only one that runs; so there is nothing to wait
// for.
GR_DEV void tma_load_2d_cluster(uint32_t dst, const struct gr_tensor_map *map, int x, int y,
                                uint32_t bar, uint16_t blocks, EMU_SITE)
{
    emu::one_block(blocks, "tma_load_2d_cluster", site);
    tma_load_2d(dst, map, x, y, bar, site);
}
GR_DEV uint32_t cluster_address(uint32_t addr, uint32_t i, EMU_SITE)
{
    emu::one_block(1u << i, "cluster_address", site);
    return addr;
}
GR_DEV void mbar_arrive_cluster(uint32_t at, EMU_SITE)
{
    emu::mbar_arrive(at, site);
}
GR_DEV void cluster_arrive()
{
}
GR_DEV void cluster_wait()
{
}
GR_DEV void tma_store_2d(const struct gr_tensor_map *map, int x, int y, uint32_t src, EMU_SITE)
{
    const int at[3] = {x, y, 0};
    emu::tma_store(map, 2, at, src, site);
}
GR_DEV void tma_store_3d(const struct gr_tensor_map *map, int x, int y, int z, uint32_t src,
                         EMU_SITE)
{
    const int at[3] = {x, y, z};
    emu::tma_store(map, 3, at, src, site);
}
GR_DEV void bulk_commit()
{
    emu::bulk_commit();
}
template <int N> GR_DEV void bulk_wait()
{
    emu::bulk_wait(N, false);
}
template <int N> GR_DEV void bulk_wait_read()
{
    emu::bulk_wait(N, true);
}
GR_DEV void tma_prefetch_map(const struct gr_tensor_map *map, EMU_SITE)
{
    emu::tma_prefetch_map(map, site);
}
GR_DEV void bulk_prefetch(const void *src, uint32_t bytes, EMU_SITE)
{
    emu::bulk_prefetch(src, bytes, site);
}

template <int R> GR_DEV void setmaxnreg_inc(EMU_SITE)
{
    static_assert(R >= 24 && R <= 256 && R % 8 == 0, "a multiple of 8 in 24 .. 256");
    emu::setmaxnreg(R, true, site);
}
template <int R> GR_DEV void setmaxnreg_dec(EMU_SITE)
{
    static_assert(R >= 24 && R <= 256 && R % 8 == 0, "a multiple of 8 in 24 .. 256");
    emu::setmaxnreg(R, false, site);
}
// Launches come one after another here; the checker looks who has waited when.
GR_DEV void griddep_wait()
{
    emu::griddep_wait();
}
GR_DEV void griddep_launch()
{
    emu::griddep_launch();
}
GR_DEV void griddep_begin()
{
    griddep_wait();
    griddep_launch();
}
