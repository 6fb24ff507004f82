/* The names that this version supports, from its tables. */
#include <stdio.h>

#include "base/checked.h"
#include "gpurun.h"
#include "gr/dtype.h"
#include "model/model.h"
#include "quantize/recipe.h"
#include "registry/registry.h"
#include "text/pre.h"
#include "text/vocab.h"

static const char *arch_at(int32_t i, char *about, size_t n)
{
    const struct gr_arch *a = gr_arch_at(i);
    if (!a)
        return NULL;
    gr_arch_about(a, about, n);
    return a->name;
}

/* The i-th storage type that matrices can have. */
static const char *type_at(int32_t i, char *about, size_t n)
{
    const struct gr_dtype_info *t;
    int k = 0;
    while ((t = gr_dtype_at(k++)) && (!t->codec || i-- > 0))
        continue;
    if (!t || i >= 0)
        return NULL;
    double bits = 8.0 * t->block_bytes / t->block;
    if (t->block == 1)
        snprintf(about, n, "%g bits", bits);
    else
        snprintf(about, n, "%g bits in blocks of %u", bits, t->block);
    return t->name;
}

static const char *tokenizer_at(int32_t i, char *about, size_t n)
{
    const char *name = i < 0 ? NULL : gr_vocab_kind_name((size_t)i);
    if (name)
        snprintf(about, n, "%s", gr_vocab_kind_meaning((size_t)i));
    return name;
}

const char *gr_supported(enum gr_supported kind, int32_t i, char *about, size_t n)
{
    char none[1];
    if (!about || n == 0)
        about = none, n = sizeof none;
    *about = 0;
    switch (kind) {
    case GR_SUPPORTED_ARCH:
        return arch_at(i, about, n);
    case GR_SUPPORTED_TYPE:
        return type_at(i, about, n);
    case GR_SUPPORTED_TOKENIZER:
        return tokenizer_at(i, about, n);
    case GR_SUPPORTED_PRE_TOKENIZER:
        return i < 0 ? NULL : gr_pre_name((size_t)i);
    case GR_SUPPORTED_RECIPE:
        return gr_recipe_name(i, about, n);
    case GR_SUPPORTED_TEMPLATE:
        return gr_template_known(i, NULL);
    }
    return NULL;
}
