/* The kinds of transports that there are. */
#include "cuda/transport.h"

#include "cuda/nccl.h"
#include "gr/status.h"

static int no_kind(enum gr_transport_kind kind)
{
    return gr_fail(GR_E_INVALID, "there is no transport of kind %d", (int)kind);
}

int gr_cuda_transport_join(struct gr_backend *b, const struct gr_transport_opt *opt,
                           struct gr_transport **out)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    *out = NULL;
    int rc = gr_cuda_enter(c, &v);
    if (rc)
        return rc;
    switch (opt->kind) {
    case GR_TRANSPORT_PEER:
        return gr_peer_join(c, opt, out);
    case GR_TRANSPORT_NCCL:
        return gr_nccl_join(c, opt, out);
    default:
        return no_kind(opt->kind);
    }
}

bool gr_cuda_transport_find(enum gr_transport_kind kind, const char **what)
{
    const struct gr_nccl_state *nccl = kind == GR_TRANSPORT_NCCL ? gr_nccl_state() : NULL;
    *what = nccl                        ? nccl->what
            : kind == GR_TRANSPORT_PEER ? "copies between devices"
                                        : "no such transport";
    return nccl ? nccl->version != 0 : kind == GR_TRANSPORT_PEER;
}

int gr_cuda_transport_ticket(enum gr_transport_kind kind, struct gr_transport_ticket *t)
{
    *t = (struct gr_transport_ticket){{0}};
    switch (kind) {
    case GR_TRANSPORT_PEER:
        gr_peer_ticket(t);
        return 0;
    case GR_TRANSPORT_NCCL:
        return gr_nccl_ticket(t);
    default:
        return no_kind(kind);
    }
}
