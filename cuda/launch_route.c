/* ROUTE: a warp a token, as many in a block as shared memory holds without asking for more. */
#include "cuda/grid.h"

int gr_cuda_route(struct gr_launcher *l, const struct gr_args_route *a)
{
    int64_t bytes = a->logits.cols * 3 * (int64_t)sizeof(double),
            most = gr_launch_facts(l)->smem_max;
    if (bytes > most)
        return gr_fail(GR_E_UNSUPPORTED,
                       "route: expected at most %lld experts on this device, found %lld",
                       (long long)(most / 24), (long long)a->logits.cols);
    int64_t warps = 4;
    while (warps > 1 && warps * bytes > 48 * 1024)
        warps /= 2;
    return gr_launch_items(l, "gr_route_warp", a->logits.rows, warps, (uint32_t)warps * 32,
                           (uint32_t)(warps * bytes), a, sizeof *a);
}
