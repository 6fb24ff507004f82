/* SAMPLE: three launches of a block a slice of each row. */
#include "cuda/grid.h"
#include "gr/kernel/sample.h"

int gr_cuda_sample(struct gr_launcher *l, const struct gr_args_sample *a)
{
    static const char *const kernels[] = {"gr_sample_first", "gr_sample_count", "gr_sample_draw"};
    int64_t n = a->logits.cols, n_row = a->logits.rows;
    int rc = 0;
    if (n > GR_SAMPLE_VOCAB)
        return gr_fail(GR_E_UNSUPPORTED, "sample: expected at most %d logits a row, found %lld",
                       GR_SAMPLE_VOCAB, (long long)n);
    struct gr_kernel_sample k = {.a = *a,
                                 .n_slice = (uint32_t)((n + GR_SAMPLE_SLICE - 1) / GR_SAMPLE_SLICE),
                                 .stride = (uint32_t)((n + 3) / 4 * 4),
                                 .work = gr_launch_scratch(l, (size_t)n_row * sizeof *k.work)};
    if (gr_ten_is(&a->edits) || gr_ten_is(&a->masks))
        k.edited = gr_launch_scratch(l, (size_t)n_row * k.stride * sizeof *k.edited);
    for (size_t i = 0; i < GR_COUNT(kernels) && !rc; i++)
        rc = gr_launch_items(l, kernels[i], n_row * k.n_slice, 1, GR_SAMPLE_SLICE / 4, 0, &k,
                             sizeof k);
    return rc;
}
