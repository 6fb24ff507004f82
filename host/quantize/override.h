/* Types of single tensors chosen by the caller of gr_quantize_file. */
#ifndef GR_QUANTIZE_OVERRIDE_H
#define GR_QUANTIZE_OVERRIDE_H

#include "base/alloc.h"
#include "gguf/gguf.h"
#include "gpurun.h"

struct gr_overrides {
    uint32_t output, embedding; /* UINT32_MAX: not set */
    struct gr_vec pattern;      /* compiled patterns with their types, in order */
};

/* Parses output_type, embedding_type and tensor_types (a NULL-terminated array of "PATTERN=TYPE")
 * of the parameters; GR_E_INVALID when one is not valid. Free with gr_overrides_fini, also after
 * failure. */
int gr_overrides_init(struct gr_overrides *o, const struct gr_quantize_params *params);
void gr_overrides_fini(struct gr_overrides *o);

/* Returns the type of the first pattern that matches a part of the name; UINT32_MAX: none does. */
uint32_t gr_overrides_find(const struct gr_overrides *o, struct gr_str name);

typedef bool gr_converted_fn(const struct gr_gguf_tensor *t, const struct gr_quantize_params *p);
/* GR_E_INVALID when a pattern matches no tensor of the model; logs a warning when it matches none
 * that is converted. */
int gr_overrides_check(const struct gr_overrides *o, const struct gr_gguf *g,
                       gr_converted_fn *converted, const struct gr_quantize_params *params);

/* Finds a storage type by name; it must be one that can be written. */
int gr_overrides_type(const char *name, size_t n, uint32_t *type);

#endif
