// kernels/wgmma.cuh for the emulated device: the same interface, each instruction a model.
#pragma once

#include "kernels/wgmma_desc.cuh"

namespace emu
{
struct WgmmaForm {
    bool bf16;
    int n;
    bool a_mn, b_mn, a_registers;
};
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(uint32_t pending, Site site);
// d: n / 2 accumulators; registers: 4, or null and desc_a.
void wgmma(const WgmmaForm &form, float *d, const uint32_t *registers, uint64_t desc_a,
           uint64_t desc_b, bool accumulate, Site site);
} // namespace emu

GR_DEV void wgmma_fence()
{
    emu::wgmma_fence();
}
GR_DEV void wgmma_commit()
{
    emu::wgmma_commit();
}
template <int R> GR_DEV void wgmma_pin(float (&)[R])
{
}
template <int N> GR_DEV void wgmma_wait(EMU_SITE)
{
    emu::wgmma_wait(N, site);
}
template <int N, int R> GR_DEV void wgmma_wait(float (&)[R], EMU_SITE)
{
    emu::wgmma_wait(N, site);
}

#define EMU_WGMMA(name, bf16)                                                                      \
    template <int N, int B_MN = 0, int A_MN = 0>                                                   \
    GR_DEV void name(float(&d)[N / 2], uint64_t a, uint64_t b, bool accumulate, EMU_SITE)          \
    {                                                                                              \
        static_assert(wgmma_has<N>, "an N that wgmma.cuh lacks");                                  \
        emu::wgmma({bf16, N, A_MN != 0, B_MN != 0, false}, d, nullptr, a, b, accumulate, site);    \
    }                                                                                              \
    template <int N, int B_MN = 0>                                                                 \
    GR_DEV void name##_ra(float(&d)[N / 2], const uint32_t(&a)[4], uint64_t b, bool accumulate,    \
                          EMU_SITE)                                                                \
    {                                                                                              \
        static_assert(wgmma_has<N>, "an N that wgmma.cuh lacks");                                  \
        emu::wgmma({bf16, N, false, B_MN != 0, true}, d, a, 0, b, accumulate, site);               \
    }
EMU_WGMMA(wgmma_f16, false)
EMU_WGMMA(wgmma_bf16, true)
