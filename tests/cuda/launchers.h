/* Requests of the launcher of MATMUL in launchers.c. */
#ifndef TESTS_CUDA_LAUNCHERS_H
#define TESTS_CUDA_LAUNCHERS_H

#include <stddef.h>
#include <stdint.h>

enum launchers_ask {
    ASK_NOTHING,
    ASK_MUCH_SHARED_MEMORY, /* more than a kernel has without asking */
    ASK_UNKNOWN_KERNEL,
    ASK_UNKNOWN_FAMILY,
    ASK_SHARED_MEMORY,
    ASK_BESIDE_STATIC, /* launchers_smem bytes for a kernel that has some of itself */
    ASK_BLOCKS,
    ASK_MORE_SCRATCH, /* at each call: 256 bytes more than launchers_scratch, which grows */
};
extern int launchers_ask;
extern size_t launchers_scratch;
extern uint32_t launchers_smem, launchers_most; /* the latter: what that kernel could have */
extern int32_t launchers_resident;              /* and how many such blocks are held at once */

#endif
