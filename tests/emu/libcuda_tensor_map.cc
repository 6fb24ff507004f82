// The emulated driver: cuTensorMapEncodeTiled, with every requirement that its documentation lists
// (CUDA Driver API, "Tensor Map Object Management"), but for the packed 4- and 6-bit types, which
// are refused.
#include "tests/emu/libcuda_state.hpp"
#include "tests/emu/tensor_map.h"

#include <cstring>

namespace drv
{

static const uint8_t element_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
static bool is_float(int type) // f16 .. f64, bf16, tf32
{
    return type >= 6;
}

struct tiled {
    int type;
    unsigned rank;
    const uint64_t *dim, *stride;
    const uint32_t *box, *element_stride;
    int interleave, swizzle, promotion, fill;
};

static const char *bad_kinds(const tiled &t, const void *map, const void *data)
{
    if (!map || (uintptr_t)map % 64)
        return "the map is not aligned to 64 bytes";
    if (t.type < 0 || t.type >= (int)sizeof element_bytes)
        return "the data type is not one of the first 13";
    if (t.rank < 1 || t.rank > 5 || (t.interleave && t.rank < 3))
        return "the rank is not 1 .. 5, or 3 .. 5 when interleaved";
    if (t.interleave < 0 || t.interleave > 2 || t.swizzle < 0 || t.swizzle > 3 || t.promotion < 0 ||
        t.promotion > 3 || t.fill < 0 || t.fill > 1)
        return "interleave, swizzle, promotion or fill is not one of its values";
    if (t.interleave == 2 && t.swizzle != EMU_SWIZZLE_32B)
        return "an interleave of 32 bytes needs the 32-byte swizzle";
    if (t.fill && !is_float(t.type))
        return "NaN fill needs a floating-point type";
    if (!data || (uintptr_t)data % (t.interleave == 2 ? 32 : 16))
        return "the address is not aligned to 16 bytes (32 with an interleave of 32 bytes)";
    if (!t.dim || !t.box || !t.element_stride || (t.rank > 1 && !t.stride))
        return "an array is missing";
    return nullptr;
}

static const char *bad_shape(const tiled &t)
{
    for (unsigned i = 0; i < t.rank; i++) {
        if (!t.dim[i] || t.dim[i] > 1ull << 32)
            return "a dimension is not 1 .. 2^32";
        if (!t.box[i] || t.box[i] > 256)
            return "a dimension of the box is not 1 .. 256";
        if ((i || t.interleave) && (!t.element_stride[i] || t.element_stride[i] > 8))
            return "an element stride is not 1 .. 8";
    }
    for (unsigned i = 0; i + 1 < t.rank; i++) {
        if (t.stride[i] % (t.interleave == 2 ? 32 : 16) || t.stride[i] >= 1ull << 40)
            return "a stride is not a multiple of 16 (32 with an interleave of 32 bytes) below "
                   "2^40";
        if (i == 0 ? t.stride[0] < t.dim[0] * element_bytes[t.type] : t.stride[i] < t.dim[i])
            return "a stride is smaller than what it steps over";
    }
    unsigned inner = t.box[0] * element_bytes[t.type];
    if (!t.interleave && inner % 16)
        return "the box's inner dimension is not a multiple of 16 bytes";
    if (!t.interleave && t.swizzle && inner > 16u << t.swizzle)
        return "the box's inner dimension is wider than the swizzle";
    return nullptr;
}

static void encode(const tiled &t, const void *data, void *map)
{
    emu_tensor_map m = {};
    m.magic = EMU_TENSOR_MAP_MAGIC;
    m.base = (uintptr_t)data;
    for (unsigned i = 0; i < t.rank; i++) {
        m.last[i] = (uint32_t)(t.dim[i] - 1);
        m.box[i] = (uint16_t)t.box[i];
        m.element_stride[i] = i || t.interleave ? (uint8_t)t.element_stride[i] : 1;
        if (i)
            m.stride[i - 1] = t.stride[i - 1];
    }
    m.rank = (uint8_t)t.rank;
    m.element_bytes = element_bytes[t.type];
    m.type = (uint8_t)t.type;
    m.interleave = (uint8_t)t.interleave;
    m.swizzle = (uint8_t)t.swizzle;
    m.promotion = (uint8_t)t.promotion;
    m.fill = (uint8_t)t.fill;
    memcpy(map, &m, sizeof m);
}

} // namespace drv

using namespace drv;

int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *data, const uint64_t *dim,
                           const uint64_t *stride, const uint32_t *box,
                           const uint32_t *element_stride, int interleave, int swizzle,
                           int promotion, int fill)
{
    ENTER(current);
    if (S.opt.cc < 90)
        return c.done(NOT_SUPPORTED);
    tiled t = {type, rank, dim, stride, box, element_stride, interleave, swizzle, promotion, fill};
    const char *why = bad_kinds(t, map, data);
    if (!why)
        why = bad_shape(t);
    if (why) {
        misuse(c.ctx.get(), "%s: %s", c.symbol, why);
        return c.done(CU_INVALID_VALUE);
    }
    encode(t, data, map);
    return c.done(CU_OK);
}
