// Functions of one number in f32. expf and log1pf are off by 1 unit in the last place (CUDA math
// functions' table); divisions and sums round once. Written so that no digits cancel.
#pragma once

#include "kernels/ptx.cuh"

GR_DEV float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

GR_DEV float silu(float x)
{
    return x / (1 + expf(-x));
}

GR_DEV float softplus(float x) // log(1 + exp(x))
{
    return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}
