/* The loader that brings weights to the device: of upload.c, and another one of offload.c. */
#ifndef CUDA_UPLOAD_H
#define CUDA_UPLOAD_H

#include "cuda/runtime.h"

#define GR_LOADER_SLOTS 4
#define GR_LOADER_THREADS 4 /* one core does not read a mapping as fast as the bus takes it */

struct gr_cuda_loader {
    size_t slot;
    struct gr_cuda_ring ring;
    cu_stream stream, pack;
    cu_pointer staging;               /* as many slots as the ring has */
    cu_event packed[GR_LOADER_SLOTS]; /* recorded when a slot of staging has been read */
    struct gr_cuda_notes notes;
    struct gr_threads *pool; /* copy to pinned memory; the caller is one of them */
};

/* Makes a loader with slots of at least `least` bytes; packing is queued on the steps' stream, or
 * on one of its own. */
int gr_cuda_loader_new(struct gr_cuda_backend *c, struct gr_cuda_loader **loader, size_t least,
                       bool own_stream);
void gr_cuda_loader_free(struct gr_cuda_backend *c, struct gr_cuda_loader **loader);

/* Queues a weight, which is there for what is queued on l->pack from then on. Waits for a slot of
 * pinned memory. */
int gr_cuda_send_weight(struct gr_cuda_backend *c, struct gr_cuda_loader *l,
                        const struct gr_ten *host, bool matrix, cu_pointer dst);

#endif
