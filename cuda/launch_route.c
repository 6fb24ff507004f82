/* ROUTE where no product's launch does it: a warp a token, as many in a block as shared memory
 * holds without asking for more. */
#include "cuda/grid.h"

int gr_cuda_route(struct gr_launcher *l, const struct gr_args_route *a)
{
    int64_t bytes = gr_route_bytes(a), most = gr_launch_facts(l)->smem_max;
    if (bytes > most)
        return gr_fail(GR_E_UNSUPPORTED,
                       "route: expected at most %lld experts on this device, found %lld",
                       (long long)(most / 24), (long long)a->logits.cols);
    int64_t warps = gr_route_warps(a, 4);
    return gr_launch_items(l, "gr_route_warp", a->logits.rows, warps, (uint32_t)warps * 32,
                           (uint32_t)(warps * bytes), a, sizeof *a);
}
