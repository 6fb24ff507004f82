#include "base/checked.h"
#include "batch/batch.h"

int32_t gr_batch_split(const struct gr_full_batch *b, int32_t n_ubatch, struct gr_ubatch *ub)
{
    int32_t n = 0;
    for (int32_t first = 0; first < b->n_tok; n++) {
        ub[n] = (struct gr_ubatch){b, first, GR_MIN(n_ubatch, b->n_tok - first), 0};
        for (int32_t i = 0; i < ub[n].n_tok; i++)
            ub[n].n_out += b->logits[first + i];
        first += ub[n].n_tok;
    }
    return n;
}
