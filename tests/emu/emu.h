/* The emulated device: what its parts know of each other.
 *
 *   device/      what kernels are compiled with instead of nvcc: device/builtins.hpp
 * (force-included: threadIdx, __syncthreads, shuffles, atomics, math, float4 ..),
 * device/kernels/ptx.cuh and mma.cuh (models of the instructions; same interface as kernels/'s own)
 *   core         fibers, warps, blocks, barriers, the schedule, launches, and the checker
 *   ptx/         kernels as nvcc's PTX instead, executed by an interpreter with models of its own
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

/* --- kernels: compiled as C++, which device/kernels/ptx.cuh's GR_KERNEL registers, or of PTX ---
 */
struct emu_kernel {
    const char *name;
    void (*run)(const void *args); /* one thread of it; NULL: of PTX */
    const char *file;              /* that it was compiled of, "../kernels/NAME.cu"; "": of PTX */
    uint32_t max_threads, min_blocks; /* the launch bounds */
    size_t args_bytes;                /* of all parameters, as they lie in memory */
    /* The rest belongs to PTX (0 otherwise): */
    uint32_t n_param;
    const uint32_t *param_at, *param_bytes; /* of each: offset and size */
    uint32_t static_bytes;                  /* of shared memory */
    void *entry;
};
void emu_register(const struct emu_kernel *k);       /* before main; k stays */
const struct emu_kernel *emu_find(const char *name); /* of those registered */

/* Images. Open one for devices of a compute capability (90), and find kernels in it: they stay
 * until it is closed. NULL: the image has no code for these devices, or no such kernel (*why is
 * NULL), or it is refused (*why is a line that stays until the next call). */
struct emu_image;
struct emu_image *emu_image_open(const void *image, int cc, const char **why);
const struct emu_kernel *emu_image_find(struct emu_image *image, const char *name,
                                        const char **why);
void emu_image_close(struct emu_image *image);
int emu_has_clusters(void); /* 1: blocks of a cluster run at the same time */

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

struct emu_shape {
    uint32_t grid[3], block[3];
    uint32_t cluster[3]; /* blocks; 0: what the kernel says, or none */
    uint32_t smem_bytes; /* dynamic */
    int cooperative;     /* all blocks run at the same time */
};
/* Runs a launch to its end. 0, or 1 with what was found in emu_report(): kernel, block, threads,
 * file and line; findings that do not stop a launch (races) are reported the same way at its end.
 * Clusters and cooperative launches need a kernel of PTX: those compiled as C++ run one block after
 * another.
 */
int emu_launch(const struct emu_kernel *k, const struct emu_shape *shape, const void *args);
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
