// Functions of one number (enum gr_act_kind), of a gate and the value it gates, and sums of
// experts' outputs.
#pragma once

#include "kernels/block.cuh"
#include "kernels/math.cuh"

// The tanh form, 0.5 x (1 + tanh(u)) = x sigmoid(2 u).
GR_DEV float gelu(float x)
{
    const float two_sqrt_2_over_pi = 1.5957691216057308f;
    return x / (1 + expf(-two_sqrt_2_over_pi * (x + 0.044715f * x * x * x)));
}

// 0.5 x (1 + erf(x / sqrt(2)))
GR_DEV float gelu_erf(float x)
{
    return 0.5f * x * erfcf(-0.70710678118654752f * x);
}

GR_DEV float gelu_quick(float x)
{
    return x / (1 + expf(-1.702f * x));
}

template <int V> GR_DEV void apply(int kind, float (&v)[V], float a, float b)
{
#define EACH(value)                                                                                \
    for (int i = 0; i < V; i++) {                                                                  \
        float x = v[i];                                                                            \
        v[i] = value;                                                                              \
    }                                                                                              \
    break
    switch (kind) {
    case GR_SILU:
        EACH(silu(x));
    case GR_GELU:
        EACH(gelu(x));
    case GR_GELU_ERF:
        EACH(gelu_erf(x));
    case GR_GELU_QUICK:
        EACH(gelu_quick(x));
    case GR_RELU:
        EACH(x > 0 ? x : 0);
    case GR_RELU2:
        EACH(x > 0 ? x * x : 0);
    case GR_SIGMOID:
        EACH(sigmoid(x));
    case GR_TANH:
        EACH(tanhf(x));
    case GR_SOFTCAP:
        EACH(a * tanhf(x / a));
    case GR_LINEAR:
        EACH(fmaf(a, x, b));
    case GR_CLAMP:
        EACH(x < a ? a : x > b ? b : x);
    case GR_SOFTPLUS:
        EACH(softplus(x));
    }
#undef EACH
}

template <int V> GR_DEV void join_gate(int kind, float (&gate)[V], float (&up)[V])
{
    const float limit = 7;
    if (kind == GR_SWIGLU_OAI) {
        for (int i = 0; i < V; i++) {
            float g = gate[i] > limit ? limit : gate[i], u = up[i];
            gate[i] = gelu_quick(g) * ((u < -limit ? -limit : u > limit ? limit : u) + 1);
        }
        return;
    }
    apply(kind, gate, 0, 0);
    for (int i = 0; i < V; i++)
        gate[i] *= up[i];
}

template <int V> GR_DEV void glu_at(const struct gr_args_glu &a, struct place at)
{
    float gate[V], up[V];
    load<V>(row_of<float>(a.a, at.row) + at.col, gate);
    load<V>(row_of<float>(a.b, at.row) + at.col, up);
    join_gate(a.kind, gate, up);
    store<V>(row_of<float>(a.y, at.row) + at.col, gate);
}

template <int V> GR_DEV void expert_sum_at(const struct gr_args_expert_sum &a, struct place at)
{
    float sum[V] = {0}, x[V];
    const float *w = row_of<float>(a.weights, at.row);
    uint32_t n_used = (uint32_t)a.weights.cols;
    for (uint32_t j = 0; j < n_used; j++) {
        load<V>(row_of<float>(a.x, (int64_t)at.row * n_used + j) + at.col, x);
        for (int i = 0; i < V; i++)
            sum[i] = fmaf(w[j], x[i], sum[i]);
    }
    if (gr_ten_is(&a.res)) {
        load<V>(row_of<float>(a.res, at.row) + at.col, x);
        for (int i = 0; i < V; i++)
            sum[i] += x[i];
    }
    store<V>(row_of<float>(a.y, at.row) + at.col, sum);
}
