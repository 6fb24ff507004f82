/* Vectors that stand for tokens of a tiny model. */
#ifndef TESTS_SUPPORT_TOKEN_VECTORS_H
#define TESTS_SUPPORT_TOKEN_VECTORS_H

#include <criterion/criterion.h>

#include "support/tiny.h"

#define TOKEN_VECTORS_EMBD 96 /* at most, of a tiny model */

/* Rows of n tokens in the model's table, [n][n_embd] f32; with its factor where vectors are used
 * without it. */
static inline void token_vectors(const struct gr_model *m, const int32_t *id, int32_t n,
                                 float *vector)
{
    const struct gr_ten *table = &m->weight[GR_W_TOKEN_EMBD];
    float scale = m->hp.embd.scales_tokens ? m->hp.embd.scale : 1;
    cr_assert(table->dtype == GR_F32 && table->cols <= TOKEN_VECTORS_EMBD, "%s: %d columns",
              m->arch->name, (int)table->cols);
    for (int32_t i = 0; i < n; i++)
        for (int64_t k = 0; k < table->cols; k++)
            *vector++ = scale * ((const float *)gr_ten_row(table, 0, id[i]))[k];
}

#endif
