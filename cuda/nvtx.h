/* Ranges and names for profilers: NVTX, domain "gpurun". Without NVTX's headers at build time, or
 * without a profiler at run time, these do nothing. */
#ifndef CUDA_NVTX_H
#define CUDA_NVTX_H

#include <stdint.h>

#include "gr/backend.h"

void gr_nvtx_begin(enum gr_range range, uint64_t payload);
void gr_nvtx_end(void);
void gr_nvtx_name_stream(void *stream, const char *name);
void gr_nvtx_name_thread(const char *name); /* the calling one */

#endif
