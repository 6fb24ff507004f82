/* SSM_CONV, SSM_SCAN, DELTA_RULE, LINEAR_ATTN, TOKEN_SHIFT, BLEND: the choice of a kernel. */
#include "cuda/grid.h"
#include "gr/kernel/ssm.h"

int gr_cuda_ssm_conv(struct gr_launcher *l, const struct gr_args_ssm_conv *a)
{
    int64_t past = a->w.cols - 1, chunk = past > 16 ? past : 16, n_seq = a->src.cols;
    int64_t n_chunk = (a->x.rows / n_seq + chunk - 1) / chunk;
    const char *kernel = past == 3   ? "gr_ssm_conv_4"
                         : past == 2 ? "gr_ssm_conv_3"
                                     : "gr_ssm_conv_any";
    struct gr_kernel_ssm_conv c = {*a, (uint32_t)chunk};
    return gr_launch_items(l, kernel, n_seq * n_chunk * a->x.cols, 256, 256, 0, &c, sizeof c);
}

/* Kernels by the most states of a column that they hold. */
struct scan {
    int64_t n_state, lanes;
    const char *shared, *each; /* one rate a head, or one a state */
};
static const struct scan scans[] = {
    {16, 4, "gr_ssm_scan_16", "gr_ssm_scan_each_16"},
    {128, 8, "gr_ssm_scan_128", "gr_ssm_scan_each_128"},
    {512, 32, "gr_ssm_scan_512", "gr_ssm_scan_each_512"},
};

int gr_cuda_ssm_scan(struct gr_launcher *l, const struct gr_args_ssm_scan *a)
{
    for (size_t i = 0; i < sizeof scans / sizeof *scans; i++) {
        const struct scan *s = &scans[i];
        int64_t cols = 32 / s->lanes, n_tile = (a->x.cols + cols - 1) / cols;
        if (a->n_state <= s->n_state)
            return gr_launch_items(l, a->a.cols == 1 ? s->shared : s->each, a->src.cols * n_tile,
                                   GR_SCAN_WARPS, GR_SCAN_WARPS * 32, 0, a, sizeof *a);
    }
    return gr_fail(GR_E_UNSUPPORTED, "scan: expected at most 512 states a column, found %lld",
                   (long long)a->n_state);
}

int gr_cuda_delta_rule(struct gr_launcher *l, const struct gr_args_delta_rule *a)
{
    int64_t d_k = a->q.cols / a->n_head_k, d_v = a->v.cols / a->n_head;
    int64_t n = a->src.cols * a->n_head * ((d_v + GR_DELTA_COLS - 1) / GR_DELTA_COLS);
    const char *kernel = d_k <= 64 ? "gr_delta_64" : d_k <= 128 ? "gr_delta_128" : "gr_delta_256";
    if (d_k > 256)
        return gr_fail(GR_E_UNSUPPORTED, "delta rule: expected keys of at most 256, found %lld",
                       (long long)d_k);
    return gr_launch_items(l, kernel, n, 1, GR_DELTA_WARPS * 32, 0, a, sizeof *a);
}

int gr_cuda_linear_attn(struct gr_launcher *l, const struct gr_args_linear_attn *a)
{
    int64_t d_k = a->q.cols / a->n_head, d_v = a->v.cols / a->n_head_kv;
    int64_t n = a->src.cols * a->n_head * ((d_v + GR_DELTA_COLS - 1) / GR_DELTA_COLS);
    const char *kernel = d_k <= 64    ? "gr_linear_attn_64"
                         : d_k <= 128 ? "gr_linear_attn_128"
                                      : "gr_linear_attn_256";
    if (d_k > 256)
        return gr_fail(GR_E_UNSUPPORTED,
                       "linear attention: expected keys of at most 256, found %lld",
                       (long long)d_k);
    return gr_launch_items(l, kernel, n, 1, GR_DELTA_WARPS * 32, 0, a, sizeof *a);
}

int gr_cuda_token_shift(struct gr_launcher *l, const struct gr_args_token_shift *a)
{
    return gr_launch_items(l, "gr_linear_attn_shift", a->src.cols * a->x.cols, 256, 256, 0, a,
                           sizeof *a);
}

int gr_cuda_blend(struct gr_launcher *l, const struct gr_args_blend *a)
{
    return gr_launch_items(l, "gr_blend", a->x.rows, 1, 256, 0, a, sizeof *a);
}
