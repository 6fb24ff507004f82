// A warp's ring of slots in shared memory, which weights are copied to while it multiplies: one
// barrier for each slot, whose phase ends when the slot's bytes have come. The copy engine brings
// them, asked by one lane, or all lanes do by cp.async where there is none.
#pragma once

#include "kernels/decode.cuh"

// SLOT: bytes of a slot, a multiple of 16. KEEP: registers suffice for its addresses.
template <uint32_t SLOT, bool KEEP> struct mv_ring {
    unsigned char *slots; // of the warp
    uint32_t bars;
    int n, filled = 0, taken = 0;
    uint32_t phase = 0; // of the slot that is taken next
    bool engine;

    GR_METHOD mv_ring(unsigned char *mem, int n_slot, bool copy_engine)
        : n(n_slot), engine(copy_engine)
    {
        uint32_t warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
        uint32_t at = warp * n * SLOT, bars_at = smem_u32(mem + n_warp * n * SLOT) + warp * n * 8;
        slots = mem + (KEEP ? kept(at) : at);
        bars = KEEP ? kept(bars_at) : bars_at;
        if ((int)threadIdx.x % 32 < n)
            mbar_init(bars + threadIdx.x % 32 * 8, engine ? 1 : 32);
        fence_mbar_init();
        __syncwarp();
    }
    // Starts the copy of `bytes`, a multiple of 16, from an address aligned to 16, to the next
    // slot, which is free.
    GR_METHOD void fetch(const uint8_t *from, uint32_t bytes)
    {
        uint32_t to = smem_u32(slots) + filled * SLOT, bar = bars + filled * 8;
        if (engine) {
            if (threadIdx.x % 32 == 0) {
                mbar_arrive_expect_tx(bar, bytes);
                bulk_load(to, from, bytes, bar);
            }
        } else {
            for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 512)
                cp_async_16(to + at, from + at);
            cp_async_mbar_arrive(bar);
        }
        filled = filled + 1 < n ? filled + 1 : 0;
    }
    // Waits for the bytes of the oldest slot, and returns it.
    GR_METHOD const uint8_t *wait() const
    {
        mbar_wait(bars + taken * 8, phase);
        return slots + taken * SLOT;
    }
    // Frees the slot that wait() returned, when all lanes have read it.
    GR_METHOD void release()
    {
        __syncwarp();
        phase ^= taken + 1 == n;
        taken = taken + 1 < n ? taken + 1 : 0;
    }
};
