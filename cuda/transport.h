/* The common part of the transports of this folder: copies within a process (transport_peer.c) and
 * NCCL (transport_nccl.c). */
#ifndef CUDA_TRANSPORT_H
#define CUDA_TRANSPORT_H

#include <stdbool.h>

#include "cuda/runtime.h"

/* A member; the first field of either kind's own struct. */
struct gr_cuda_transport {
    struct gr_transport base;
    struct gr_transport_opt opt;
    const struct gr_cuda_driver *cu;
    const char *name;              /* of the device */
    struct gr_cuda_device *device; /* held until the member has left */
    int failed;                    /* by what, for all later calls */
    char failed_text[1024];
};

static inline struct gr_cuda_transport *gr_cuda_transport_of(struct gr_transport *n)
{
    return (struct gr_cuda_transport *)(void *)n;
}

/* Checks the options and fills in n for a member with this device, which it holds from then on. */
int gr_cuda_transport_init(struct gr_cuda_transport *n, struct gr_cuda_backend *c,
                           const struct gr_transport_opt *opt);

/* Begins a call: returns the error that the transport has failed by, or makes b's context current
 * for a visit. */
int gr_cuda_transport_enter(struct gr_cuda_transport *n, struct gr_backend *b,
                            struct gr_cuda_visit *v);
/* Ends a call: an error is remembered. `suspect`: the member to blame for it. */
int gr_cuda_transport_leave(struct gr_cuda_transport *n, int rc, int32_t suspect);

/* Marks the member as aborted: every later call says so. */
void gr_cuda_transport_end(struct gr_cuda_transport *n);

/* Returns 0 while it is right to go on waiting for `what` ("room for what goes to member 2"), which
 * began at `since`; GR_E_PEER_LOST when the world is lost or the deadline has passed. */
int gr_cuda_transport_patience(const struct gr_cuda_transport *n, const char *what, int64_t since,
                               int64_t deadline_ns);

/* A place in a list of spans. */
struct gr_cuda_spans {
    const struct gr_transport_span *span;
    int n_span;
    size_t at; /* in span[0] */
};
size_t gr_cuda_spans_bytes(const struct gr_transport_span *span, int n_span);
/* The next contiguous piece of memory, at most `most` bytes; the place moves behind it. */
cu_pointer gr_cuda_spans_next(struct gr_cuda_spans *s, size_t most, size_t *bytes);

int gr_cuda_transport_join(struct gr_backend *b, const struct gr_transport_opt *opt,
                           struct gr_transport **out);
bool gr_cuda_transport_find(enum gr_transport_kind kind, const char **what);
int gr_cuda_transport_ticket(enum gr_transport_kind kind, struct gr_transport_ticket *t);

int gr_peer_join(struct gr_cuda_backend *c, const struct gr_transport_opt *opt,
                 struct gr_transport **out);
void gr_peer_ticket(struct gr_transport_ticket *t);
int gr_nccl_join(struct gr_cuda_backend *c, const struct gr_transport_opt *opt,
                 struct gr_transport **out);
int gr_nccl_ticket(struct gr_transport_ticket *t);

#endif
