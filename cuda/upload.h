/* A way for weights to the device: between upload.c, whose it is, and offload.c, which has one of
 * its own. */
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
    cu_event packed[GR_LOADER_SLOTS]; /* of each slot of staging: its rows have been read */
    struct gr_cuda_notes notes;
    struct gr_threads *pool; /* that copy to pinned memory, who calls among them */
};

/* Packing is queued on the steps' stream, or on one of its own. Slots are of `least` bytes at
 * least. */
int gr_cuda_loader_new(struct gr_cuda_backend *c, struct gr_cuda_loader **loader, size_t least,
                       bool own_stream);
void gr_cuda_loader_free(struct gr_cuda_backend *c, struct gr_cuda_loader **loader);

/* Queues a weight; what is queued on l->pack from then on finds it there. Waits for a slot of
 * pinned memory. */
int gr_cuda_send_weight(struct gr_cuda_backend *c, struct gr_cuda_loader *l,
                        const struct gr_ten *host, bool matrix, cu_pointer dst);

#endif
