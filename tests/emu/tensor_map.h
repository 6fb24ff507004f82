/* Tensor maps of the emulated device: what cuTensorMapEncodeTiled writes into a struct
 * gr_tensor_map and the models of TMA read. */
#ifndef TESTS_EMU_TENSOR_MAP_H
#define TESTS_EMU_TENSOR_MAP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_MAP_MAGIC = 0x50414d54 };
/* Codes of the driver API (CUtensorMapDataType, CUtensorMapSwizzle). */
enum {
    EMU_MAP_U8 = 0,
    EMU_MAP_U16 = 1,
    EMU_MAP_U32 = 2,
    EMU_MAP_F16 = 6,
    EMU_MAP_F32 = 7,
    EMU_MAP_BF16 = 9
};
enum { EMU_SWIZZLE_NONE, EMU_SWIZZLE_32, EMU_SWIZZLE_64, EMU_SWIZZLE_128 };

struct emu_tensor_map { /* at most 128 bytes */
    uint32_t magic;
    uint8_t rank, element_bytes, swizzle, nan_fill; /* swizzle: EMU_SWIZZLE_.. */
    uint64_t data;
    uint64_t dim[5];
    uint64_t stride[4]; /* bytes from one to the next of dimensions 1 .. */
    uint16_t box[5];
};

/* Encodes a map; NULL, or a sentence that says which rule of the driver API is broken ("Tensor Map
 * Object Management"). Strides of elements other than 1, interleaving and a swizzled box narrower
 * than its swizzle are refused as well: nothing here uses them. */
const char *emu_tensor_map_encode(void *map, int type, unsigned rank, const void *data,
                                  const uint64_t *dim, const uint64_t *stride, const uint32_t *box,
                                  const uint32_t *element_stride, int interleave, int swizzle,
                                  int promotion, int fill);

/* Where the swizzle (16 << swizzle bytes wide, EMU_SWIZZLE_..) puts the byte of this shared
 * address: within each period of 8 rows, bits 4 .. of the address are exchanged by bits 7 .. . */
static inline uint32_t emu_swizzle(uint32_t address, int swizzle)
{
    static const uint32_t mask[] = {0, 0x10, 0x30, 0x70};
    return address ^ ((address >> 3) & mask[swizzle]);
}

#ifdef __cplusplus
}
#endif
#endif
