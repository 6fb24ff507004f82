/* The argument struct of the kernels of ceilings.cu. */
#ifndef TESTS_GPU_CEILINGS_H
#define TESTS_GPU_CEILINGS_H

#include <stdint.h>

#include "gr/tensor.h"

struct ceilings_args {
    uint32_t *data; /* [n_vec][4] */
    uint32_t *out;  /* of each thread */
    uint64_t n_vec; /* of 16 bytes */
};

/* Word i of the data: no zeros, nothing that repeats. */
GR_FN uint32_t ceilings_word(uint32_t i)
{
    uint32_t x = i * 2654435761u + 12345u;
    return x ^ x >> 15;
}

#endif
