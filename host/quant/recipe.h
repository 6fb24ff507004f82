/* Which type each tensor of a file gets when it is quantised (see recipe.def). */
#ifndef GR_QUANT_RECIPE_H
#define GR_QUANT_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "gguf/gguf.h"
#include "gpurun.h"

struct gr_recipe {
    const char *name;
    uint32_t file_type; /* general.file_type */
    uint32_t type;      /* of all that has no other one */
    uint64_t bit;       /* 1 << its number */
};

/* The recipe of that name (case does not matter), or NULL. */
const struct gr_recipe *gr_recipe_find(const char *name);
/* The i-th name of those whose types can be written, aliases and COPY behind them, with a few words
 * on it (of n bytes, cut to them); NULL past the last one. */
const char *gr_recipe_name(int32_t i, char *about, size_t n);
/* " F32 F16 ..": those whose types can be written. */
const char *gr_recipe_names(void);

/* type[i] for every tensor i of the file, as params say; `recipe` NULL: all stay as they are. In a
 * model file of an architecture that is not known nothing is special. GR_E_INVALID: a type or a
 * pattern of the parameters is none; GR_E_UNSUPPORTED: no type fits a tensor's rows, or its type
 * needs an importance matrix and there is none (`imatrix` says whether there is). */
int gr_recipe_choose(const struct gr_gguf *g, const struct gr_recipe *recipe,
                     const struct gr_quantize_params *params, bool imatrix, uint32_t *type);

/* Whether a tensor of this name as this type is worth nothing without importances of its own. */
bool gr_recipe_needs_imatrix(const struct gr_recipe *recipe, struct gr_str name, uint32_t type);

#endif
