/* Types of single tensors as the caller of gr_quantize_file names them. */
#ifndef GR_QUANT_OVERRIDE_H
#define GR_QUANT_OVERRIDE_H

#include "base/alloc.h"
#include "gguf/gguf.h"
#include "gpurun.h"

struct gr_overrides {
    uint32_t output, embedding; /* UINT32_MAX: nothing is said */
    struct gr_vec pattern;      /* compiled ones with their types, in order */
};

/* Reads output_type, embedding_type and tensor_types ("PATTERN=TYPE PATTERN=TYPE ..") of the
 * parameters; GR_E_INVALID when one of them is none. gr_overrides_fini frees it in any case. */
int gr_overrides_init(struct gr_overrides *o, const struct gr_quantize_params *params);
void gr_overrides_fini(struct gr_overrides *o);

/* The type of the first pattern that occurs in the name; UINT32_MAX: none does. */
uint32_t gr_overrides_find(const struct gr_overrides *o, struct gr_str name);

typedef bool gr_converted_fn(const struct gr_gguf_tensor *t, const struct gr_quantize_params *p);
/* GR_E_INVALID when a pattern occurs in no name of the model's tensors; a warning when in none of
 * those that are converted. */
int gr_overrides_check(const struct gr_overrides *o, const struct gr_gguf *g,
                       gr_converted_fn *converted, const struct gr_quantize_params *params);

/* A storage type by its name, which must be one that can be written. */
int gr_overrides_type(const char *name, size_t n, uint32_t *type);

#endif
