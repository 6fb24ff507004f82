// A warp's ring of slots in shared memory, which weights are copied to while it multiplies: one
// barrier for each slot, whose phase ends when the slot's bytes have come. The copy engine brings
// them, asked by one lane, or all lanes do by cp.async where there is none.
#pragma once

#include "kernels/decode.cuh"

// SLOT: bytes of a slot, a multiple of 16.
template <uint32_t SLOT> struct mv_ring {
    unsigned char *slots; // of the warp
    uint32_t bars;
    int n, at = 0;      // the slot that is filled next, at first, then taken, then filled again
    uint32_t phase = 1; // of the slot that is taken next; filling all of them turns it to 0
    int lane;
    bool engine;

    // begin: bytes of shared memory in front.
    GR_METHOD mv_ring(uint32_t begin, int n_slot, bool copy_engine, int warp, int own_lane)
        : n(n_slot), lane(own_lane), engine(copy_engine)
    {
        GR_SMEM;
        const int n_warp = blockDim.x / 32;
        slots = smem + begin + warp * n * (int)SLOT;
        bars = smem_u32(smem) + begin + n_warp * n * SLOT + warp * n * 8;
        if (lane < n)
            mbar_init(bars + lane * 8, engine ? 1 : 32);
        fence_mbar_init();
        __syncwarp();
    }
    // Starts the copy of `bytes`, a multiple of 16, from an address aligned to 16, to the slot,
    // which is free.
    GR_METHOD void fetch(const uint8_t *from, uint32_t bytes)
    {
        uint32_t to = smem_u32(slots) + at * SLOT, bar = bars + at * 8;
        if (engine) {
            if (lane == 0) {
                mbar_arrive_expect_tx(bar, bytes);
                bulk_load(to, from, bytes, bar);
            }
        } else {
            for (uint32_t i = (uint32_t)lane * 16; i < bytes; i += 512)
                cp_async_16(to + i, from + i);
            cp_async_mbar_arrive(bar);
        }
    }
    // Waits for the bytes of the slot, and returns it.
    GR_METHOD const uint8_t *wait() const
    {
        mbar_wait(bars + at * 8, phase);
        return slots + at * SLOT;
    }
    // Frees the slot that wait() returned, when all lanes have read it.
    GR_METHOD void release()
    {
        __syncwarp();
    }
    // Goes on to the next slot.
    GR_METHOD void next()
    {
        if (++at == n)
            at = 0, phase ^= 1;
    }
};
