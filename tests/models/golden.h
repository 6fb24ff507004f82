/* The tiny models whose logits another implementation computed, and the session it ran. */
#ifndef TESTS_MODELS_GOLDEN_H
#define TESTS_MODELS_GOLDEN_H

#include <stdio.h>

#include "models/tiny.h"

#define GOLDEN_N 11

/* The i-th model and its name, "llama", "llama-moe" and so on. */
static inline struct tiny golden_model(int i, char name[32])
{
    bool moe = i == GOLDEN_N - 1;
    const struct gr_arch *arch = gr_arch_at(moe ? 0 : i);
    struct tiny t = tiny_default(arch);
    t.seed = 7;
    t.first_expert = 0;
    t.fused = arch->norm == GR_NORM_LAYER;
    t.n_expert = moe || arch->spec[arch->n_spec - 1].slot == GR_W_FFN_DOWN_EXPS ? 3 : 0;
    if (i == 0)
        t.n_expert = 0;
    snprintf(name, 32, "%s%s", arch->name, moe ? "-moe" : "");
    return t;
}

#endif
