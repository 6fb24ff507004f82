/* The architectures of models.def. */
#ifndef GR_MODELS_REGISTRY_H
#define GR_MODELS_REGISTRY_H

#include "arch/arch.h"
#include "gguf/gguf.h"

/* gr_arch_find returns the architecture called `name`, or NULL; gr_arch_nearest the known names
 * most similar to it; gr_arch_about a short description, derived from its table; gr_arch_at the
 * i-th architecture. */
#define GR_N_NEAREST 3
const struct gr_arch *gr_arch_find(struct gr_str name);
void gr_arch_nearest(struct gr_str name, const char *nearest[GR_N_NEAREST]);
void gr_arch_about(const struct gr_arch *a, char *about, size_t n);
const struct gr_arch *gr_arch_at(int i); /* NULL past the end */

#endif
