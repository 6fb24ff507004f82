/* What the launcher of MATMUL in launchers.c asks for. */
#ifndef TESTS_CUDA_LAUNCHERS_H
#define TESTS_CUDA_LAUNCHERS_H

#include <stddef.h>

enum launchers_ask {
    ASK_NOTHING,
    ASK_MUCH_SHARED_MEMORY, /* more than a kernel has without asking */
    ASK_UNKNOWN_KERNEL,
    ASK_UNKNOWN_FAMILY,
    ASK_SHARED_MEMORY,
    ASK_BLOCKS,
    ASK_MORE_SCRATCH, /* at each call: 256 bytes more than launchers_scratch, which grows */
};
extern int launchers_ask;
extern size_t launchers_scratch;

#endif
