/* Content of a tensor map on the emulated device: cuTensorMapEncodeTiled (libcuda) writes it, the
 * copy engine's model reads it. Same size as the driver's opaque one. */
#ifndef TESTS_EMU_TENSOR_MAP_H
#define TESTS_EMU_TENSOR_MAP_H

#include <stdint.h>

#define EMU_TENSOR_MAP_MAGIC 0x70616d726f736e74u /* anything else is not a tensor map */

struct emu_tensor_map {
    uint64_t magic;
    uint64_t base;             /* address in device memory, a multiple of 16 */
    uint64_t stride[4];        /* bytes from element to element of dimensions 1 .. rank - 1 */
    uint32_t last[5];          /* number of elements - 1 of dimensions 0 .. rank - 1 */
    uint16_t box[5];           /* elements */
    uint8_t element_stride[5]; /* of 1 and up; that of dimension 0 is not looked at */
    uint8_t rank;
    uint8_t element_bytes;
    uint8_t type, interleave, swizzle, promotion, fill; /* the driver's values */
    uint8_t zero[38];
};

#ifdef __cplusplus
static_assert(sizeof(struct emu_tensor_map) == 128, "a CUtensorMap has 128 bytes");
#else
_Static_assert(sizeof(struct emu_tensor_map) == 128, "a CUtensorMap has 128 bytes");
#endif

enum { /* CUtensorMapSwizzle */
       EMU_SWIZZLE_NONE,
       EMU_SWIZZLE_32B,
       EMU_SWIZZLE_64B,
       EMU_SWIZZLE_128B
};

#endif
