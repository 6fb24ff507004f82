/* Nets as this folder makes them: what copies within a process (net_peer.c) and NCCL (net_nccl.c)
 * share. */
#ifndef CUDA_NET_H
#define CUDA_NET_H

#include <stdbool.h>

#include "cuda/runtime.h"

/* A member, as the first field of either kind. */
struct gr_cuda_net {
    struct gr_net base;
    struct gr_net_opt opt;
    const struct gr_cuda_driver *cu;
    const char *name;              /* of the device */
    struct gr_cuda_device *device; /* held until the member has left */
    int failed;                    /* by what, for all later calls */
    char failed_text[1024];
};

static inline struct gr_cuda_net *gr_cuda_net_of(struct gr_net *n)
{
    return (struct gr_cuda_net *)(void *)n;
}

/* Checks the options and fills in n for a member with this device, which it holds from then on. */
int gr_cuda_net_init(struct gr_cuda_net *n, struct gr_cuda_backend *c,
                     const struct gr_net_opt *opt);

/* Begins a call: the error that the net has failed by, or b's context made current for a
 * visit. */
int gr_cuda_net_enter(struct gr_cuda_net *n, struct gr_backend *b, struct gr_cuda_visit *v);
/* And end with: an error is remembered. `suspect`: the member to blame for it. */
int gr_cuda_net_leave(struct gr_cuda_net *n, int rc, int32_t suspect);

/* The member was aborted: every later call says so. */
void gr_cuda_net_end(struct gr_cuda_net *n);

/* 0 while there is reason to go on waiting, for `what` ("room for what goes to member 2"), since
 * `since`; GR_E_PEER_LOST when the world is lost or the deadline has passed. */
int gr_cuda_net_patience(const struct gr_cuda_net *n, const char *what, int64_t since,
                         int64_t deadline_ns);

/* A place in a list of spans. */
struct gr_cuda_spans {
    const struct gr_net_span *span;
    int n_span;
    size_t at; /* in span[0] */
};
size_t gr_cuda_spans_bytes(const struct gr_net_span *span, int n_span);
/* The next stretch that is in one piece, at most `most` bytes, which are then behind the place. */
cu_pointer gr_cuda_spans_next(struct gr_cuda_spans *s, size_t most, size_t *bytes);

int gr_cuda_net_join(struct gr_backend *b, const struct gr_net_opt *opt, struct gr_net **out);
bool gr_cuda_net_find(enum gr_net_kind kind, const char **what);
int gr_cuda_net_ticket(enum gr_net_kind kind, struct gr_net_ticket *t);

int gr_peer_join(struct gr_cuda_backend *c, const struct gr_net_opt *opt, struct gr_net **out);
void gr_peer_ticket(struct gr_net_ticket *t);
int gr_nccl_join(struct gr_cuda_backend *c, const struct gr_net_opt *opt, struct gr_net **out);
int gr_nccl_ticket(struct gr_net_ticket *t);

#endif
