/* The emulated device: what its parts know of each other.
 *
 *   device/      what kernels are compiled with instead of nvcc: device/builtins.hpp
 * (force-included: threadIdx, __syncthreads, shuffles, atomics, math, float4 ..),
 * device/kernels/ptx.cuh and mma.cuh (models of the instructions; same interface as kernels/'s own)
 *   core         fibers, warps, blocks, barriers, the schedule, launches, and the checker
 *   libcuda      the driver's entry points (cuda/driver.def): memory, streams, events, graphs,
 * faults
 *
 * Kernels and all of this become one shared object, libcuda_emu.so, which cuda/driver.c opens in
 * the driver's place; a second one, libcuda_emu_check.so, has the kernels compiled for the checker.
 */
#ifndef TESTS_EMU_EMU_H
#define TESTS_EMU_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* --- kernels: device/kernels/ptx.cuh's GR_KERNEL registers each --- */
struct emu_kernel {
    const char *name;
    void (*run)(const void *args);    /* one thread of it */
    uint32_t max_threads, min_blocks; /* the launch bounds */
    size_t args_bytes;
};
void emu_register(const struct emu_kernel *k); /* before main; k stays */
const struct emu_kernel *emu_find(const char *name);

/* --- how things run --- */
enum emu_policy {
    EMU_IN_ORDER,   /* threads, warps and blocks in their order */
    EMU_RANDOM,     /* any runnable thread next */
    EMU_PRIORITIES, /* random priorities of warps, now and then a demotion */
};
struct emu_options {
    uint64_t seed;
    enum emu_policy policy;
    uint32_t preempt; /* with the checker: a switch at one in so many memory accesses; 0 = none */
};
/* Options of all launches from now on. From the environment at start: GR_EMU=policy:seed[:preempt].
 */
void emu_set(const struct emu_options *o);

/* Runs a launch to its end. 0, or 1 with what was found in emu_report(): kernel, block, threads,
 * file and line; findings that do not stop a launch (races) are reported the same way at its end.
 */
int emu_launch(const struct emu_kernel *k, const uint32_t grid[3], const uint32_t block[3],
               uint32_t smem_bytes, const void *args);
const char *emu_report(void); /* of the last failed launch */
/* The next launch is of this stream (else of stream 0), and if `early` may begin before the one in
 * front of it is over (programmatic dependent launch). It does not, but the checker finds what it
 * touches before griddep_wait of those that could still run. */
void emu_launch_next(uint32_t stream, int early);

/* --- device memory: ends at a guard page, fresh memory is 0xff; not accessible outside launches
 *     (emu_open .. emu_close) --- */
void *emu_alloc(size_t bytes); /* NULL: no memory */
void emu_free(void *p);
int emu_owns(const void *p, size_t bytes); /* 1: all of it lies in one allocation */
void emu_open(void);                       /* copies and launches run between these two */
void emu_close(void);

/* Counts from now on what launches ask of [p, p + bytes) of device memory: bytes that are read, or
 * written, in sectors of 32, each once a block. 1: without the checker there are no such counts. */
int emu_watch(const void *p, size_t bytes);
int64_t emu_watched(int write);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
