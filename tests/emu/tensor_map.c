#include "tests/emu/tensor_map.h"

#include <string.h>

static int bytes_of(int type)
{
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 0;
}

static const char *check_dims(unsigned rank, const uint64_t *dim, const uint64_t *stride)
{
    for (unsigned i = 0; i < rank; i++)
        if (dim[i] == 0 || dim[i] > (uint64_t)1 << 32)
            return "tensor map: a dimension is not in 1 .. 2^32";
    for (unsigned i = 0; i + 1 < rank; i++) {
        if (stride[i] % 16 || stride[i] >= (uint64_t)1 << 40)
            return "tensor map: a stride is not a multiple of 16 below 2^40";
        if (i && stride[i] % stride[i - 1])
            return "tensor map: a stride is not a multiple of the one before it";
    }
    return NULL;
}

static const char *check_box(unsigned rank, int bytes, const uint32_t *box,
                             const uint32_t *element_stride, int swizzle)
{
    for (unsigned i = 0; i < rank; i++) {
        if (box[i] == 0 || box[i] > 256)
            return "tensor map: a box dimension is not in 1 .. 256";
        if (element_stride[i] != 1)
            return "tensor map: an element stride is not 1";
    }
    const uint32_t inner = box[0] * (uint32_t)bytes;
    if (inner % 16)
        return "tensor map: the box's inner dimension is not a multiple of 16 bytes";
    if (swizzle && inner != 16u << swizzle)
        return "tensor map: the box's inner dimension is not as wide as the swizzle";
    return NULL;
}

const char *emu_tensor_map_encode(void *map, int type, unsigned rank, const void *data,
                                  const uint64_t *dim, const uint64_t *stride, const uint32_t *box,
                                  const uint32_t *element_stride, int interleave, int swizzle,
                                  int promotion, int fill)
{
    const int bytes = bytes_of(type);
    if (!map || (uintptr_t)map % 64)
        return "tensor map: its address is not a multiple of 64";
    if (!data || (uintptr_t)data % 16)
        return "tensor map: the tensor's address is not a multiple of 16";
    if (!bytes || rank < 1 || rank > 5 || swizzle < 0 || swizzle > 3 || promotion < 0 ||
        promotion > 3 || fill < 0 || fill > 1)
        return "tensor map: type, rank, swizzle, promotion or fill has no such value";
    if (interleave)
        return "tensor map: interleaved layouts are not emulated";
    const int is_float = type >= EMU_MAP_F16;
    if (fill && !is_float)
        return "tensor map: NaN cannot fill integers";
    const char *error = check_dims(rank, dim, stride);
    if (!error)
        error = check_box(rank, bytes, box, element_stride, swizzle);
    if (error)
        return error;
    struct emu_tensor_map m = {.magic = EMU_MAP_MAGIC,
                               .rank = (uint8_t)rank,
                               .element_bytes = (uint8_t)bytes,
                               .swizzle = (uint8_t)swizzle,
                               .nan_fill = (uint8_t)fill,
                               .data = (uintptr_t)data};
    for (unsigned i = 0; i < 5; i++) {
        m.dim[i] = i < rank ? dim[i] : 1;
        m.box[i] = (uint16_t)(i < rank ? box[i] : 1);
        if (i && i < rank)
            m.stride[i - 1] = stride[i - 1];
    }
    _Static_assert(sizeof m <= 128, "a tensor map has 128 bytes");
    memset(map, 0, 128);
    memcpy(map, &m, sizeof m);
    return NULL;
}
