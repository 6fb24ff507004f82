/* Types of the tensors of a quantised file (see recipe.def). */
#ifndef GR_QUANTIZE_RECIPE_H
#define GR_QUANTIZE_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "gguf/gguf.h"
#include "gpurun.h"

struct gr_recipe {
    const char *name;
    uint32_t file_type; /* general.file_type */
    uint32_t type;      /* default type */
    uint64_t bit;       /* 1 << index of the recipe */
};

/* Returns the recipe of that name or alias, ignoring case, or NULL. */
const struct gr_recipe *gr_recipe_find(const char *name);
/* Returns the i-th name of the recipes whose types can be written, then of the aliases and COPY;
 * NULL past the last one. about [n] receives a short description, cut to n bytes. */
const char *gr_recipe_name(int32_t i, char *about, size_t n);
/* Returns " F32 F16 ..", recipes of types that can be written; until the thread's next call. */
const char *gr_recipe_names(void);

/* Sets type[i] for every tensor i of the file, according to params; `recipe` NULL: types stay as
 * they are. Files of unknown architectures get no architecture-specific rules. GR_E_INVALID: a type
 * or pattern of the parameters is not valid; GR_E_UNSUPPORTED: no type fits a tensor's rows, or its
 * type needs an importance matrix and there is none (`imatrix` false). */
int gr_recipe_choose(const struct gr_gguf *g, const struct gr_recipe *recipe,
                     const struct gr_quantize_params *params, bool imatrix, uint32_t *type);

/* Returns whether a tensor of this name and type needs importances to be of any use. */
bool gr_recipe_needs_imatrix(const struct gr_recipe *recipe, struct gr_str name, uint32_t type);

#endif
