// BLEND: one step of a softmax over several sources of a row.
// Memory: x twice (the second time from L1 or L2), acc and y once, 12 bytes an element. Bound by
// it, and for a few rows by latency. Grid: a block a row.
#include "kernels/block.cuh"
#include "kernels/math.cuh"

enum { THREADS = 256 };

// The sum over a block, the same in every thread.
GR_DEV float all_sum(float x, float *shared)
{
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < THREADS / WARP; i++)
        sum += shared[i];
    return sum;
}

GR_KERNEL(gr_blend, struct gr_args_blend, THREADS, 4)
{
    __shared__ float shared[2][THREADS / WARP];
    uint32_t r = blockIdx.x, n = (uint32_t)a.x.cols;
    const float *x = row_of<float>(a.x, r), *w = row_of<float>(a.w, 0);
    const float *acc = gr_ten_is(&a.acc) ? row_of<float>(a.acc, r) : nullptr;
    float dot = 0, squares = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        dot = fmaf(x[i], w[i], dot), squares = fmaf(x[i], x[i], squares);
    dot = all_sum(dot, shared[0]), squares = all_sum(squares, shared[1]);
    float s = dot / sqrtf(squares / (float)n + a.eps), most = s, before = 0, sum = 0;
    if (acc) {
        const float *stat = row_of<float>(a.stat, r);
        most = fmaxf(s, stat[0]);
        before = expf(stat[0] - most), sum = before * stat[1];
    }
    float own = expf(s - most);
    sum += own;
    float f = a.last ? 1 / sum : 1, *y = row_of<float>(a.y, r),
          *stat_y = row_of<float>(a.stat_y, r);
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        y[i] = f * fmaf(own, x[i], acc ? before * acc[i] : 0);
    __syncthreads(); // stat_y may be stat
    if (threadIdx.x == 0)
        stat_y[0] = most, stat_y[1] = sum;
}
