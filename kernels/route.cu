// ROUTE where no product's launch does it (kernels/matmul_f32.cu).
// Memory: 4 n_expert bytes read a token; bound by latency: n_used rounds of a warp's vote.
// Grid: a warp a token (kernels/route.cuh).
#include "kernels/route.cuh"

enum { MAX_THREADS = 128 };

GR_KERNEL(gr_route_warp, struct gr_args_route, MAX_THREADS, 2)
{
    GR_SMEM; // 3 n_expert f64 of each warp
    uint32_t t = thread_id() / WARP;
    if (t < a.logits.rows)
        route_token(a, t, (double *)smem + threadIdx.x / WARP * 3 * a.logits.cols);
}
