/* The cells that tokens see as a dense mask, computed cell by cell from the definition. */
#include <math.h>

#include "kv/cells.h"

static bool visible(const struct gr_kv *kv, int32_t seq, const struct gr_kv_cell_meta *t,
                    uint32_t c, bool causal)
{
    if (!gr_kv_has(kv, c, seq) || (causal && kv->pos[c] > t->pos))
        return false;
    if (causal && kv->row && kv->pos[c] == t->pos &&
        (kv->row[c] > t->row || (kv->row[c] == t->row && kv->col[c] > t->col)))
        return false;
    return kv->p.window <= 0 || kv->pos[c] >= gr_kv_first_seen(kv, t->pos);
}

void gr_kv_mask_dense(const struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_kv, bool causal,
                      bool alibi, int32_t n_pad_row, float *mask)
{
    size_t n_row = GR_PAD((size_t)ub->n_tok, (size_t)n_pad_row);
    for (size_t i = 0; i < n_row * (size_t)n_kv; i++)
        mask[i] = -INFINITY;
    for (int32_t i = 0; i < ub->n_tok; i++) {
        float *row = mask + (size_t)i * (size_t)n_kv;
        struct gr_kv_cell_meta t = gr_kv_tok_meta(kv, ub, i);
        for (int32_t c = 0; c < n_kv; c++)
            if (visible(kv, gr_kv_tok_seq(ub, i), &t, (uint32_t)c, causal))
                row[c] = alibi ? -fabsf((float)(kv->pos[c] - t.pos)) : 0.0f;
    }
}
