/* Storage types of tensors: one enum for files, weights, caches and activations. */
#ifndef GR_DTYPE_H
#define GR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gr_dtype {
#define QUANT(NAME, name, id, n, bytes, codec) GR_##NAME = id,
#include "gr/quant.def"
#undef QUANT
};

/* Facts of one storage type. `name` is lower case as users type it ("q4_K"). */
struct gr_dtype_info {
    const char *name;
    uint32_t id;
    uint32_t block;       /* elements a block; rows hold whole blocks */
    uint32_t block_bytes; /* bytes a block */
    bool codec;           /* host/quant converts it to and from f32 */
    bool importance;      /* not to be made without importances */
};

/* The facts of type `id`, or NULL when the id is unknown. */
const struct gr_dtype_info *gr_dtype_find(uint32_t id);

/* The i-th type of the table, or NULL past the last one. */
const struct gr_dtype_info *gr_dtype_at(int i);

/* The type called `name` (case does not matter), or NULL. */
const struct gr_dtype_info *gr_dtype_find_name(const char *name);

/* Name of a type, "?" when unknown. */
const char *gr_dtype_name(uint32_t id);

/* Bytes of a row of n elements, n a multiple of the block; 0 when the id is unknown, n is not a
 * multiple, or the product overflows. Every tensor size in the system comes from here or from
 * gr_tensor_bytes. */
size_t gr_row_bytes(uint32_t id, uint64_t n);

/* Bytes of a tensor of shape ne[0..n_dim) (innermost first, as in GGUF), n_dim 1 to 4.
 * False when a dimension is 0, the first one is no multiple of the block, or any product overflows
 * int64. */
bool gr_tensor_bytes(uint32_t id, const uint64_t *ne, uint32_t n_dim, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
