/* SAMPLE: a block a row. */
#include "cuda/grid.h"
#include "gr/sample.h"

int gr_cuda_sample(struct gr_launcher *l, const struct gr_args_sample *a)
{
    if (a->logits.cols > GR_SAMPLE_VOCAB)
        return gr_fail(GR_E_UNSUPPORTED, "sample: expected at most %d logits a row, found %lld",
                       GR_SAMPLE_VOCAB, (long long)a->logits.cols);
    return gr_launch_items(l, "gr_sample_rows", a->logits.rows, 1, 1024, 0, a, sizeof *a);
}
