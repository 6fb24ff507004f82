/* Dequantisation against gguf's quants.py, bit for bit: tests/golden/quant/make.py makes the
 * expected values. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/f16.h"
#include "base/rng.h"
#include "gr/dtype.h"
#include "quant/quant.h"

static uint64_t fnv(const void *data, size_t n)
{
    const uint32_t *w = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ w[i]) * 0x100000001b3u;
        h ^= h >> 32;
    }
    return h;
}

static uint64_t hash_of_random_blocks(uint32_t type, uint64_t seed, size_t n_blocks)
{
    const struct gr_dtype_info *t = gr_dtype_find(type);
    size_t n = n_blocks * t->block, n_words = (n_blocks * t->block_bytes + 3) / 4;
    uint32_t *raw = gr_calloc(n_words, sizeof *raw);
    float *x = gr_calloc(n, sizeof *x);
    struct gr_rng r = gr_rng_new(seed);
    for (size_t i = 0; i < n_words; i++)
        raw[i] = gr_rng_u32(&r);
    gr_quant_find(type)->dequantize(raw, x, n);
    for (size_t i = 0; i < n; i++)
        if (isnan(x[i]))
            x[i] = gr_bits_f32(0x7fc00000);
    uint64_t h = fnv(x, n);
    gr_free(x);
    gr_free(raw);
    return h;
}

static void check_block(uint32_t type, const char *name, const char *hex, const uint32_t *want)
{
    uint32_t raw[80];
    float x[256];
    size_t n = gr_dtype_find(type)->block;
    for (size_t i = 0; hex[2 * i]; i++) {
        unsigned byte;
        cr_assert_eq(sscanf(hex + 2 * i, "%2x", &byte), 1);
        ((uint8_t *)raw)[i] = (uint8_t)byte;
    }
    gr_quant_find(type)->dequantize(raw, x, n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(gr_f32_bits(x[i]), want[i], "%s element %zu: %a, expected %a", name, i,
                     (double)x[i], (double)gr_bits_f32(want[i]));
}

Test(dequant, blocks_in_clear)
{
#define DEQUANT(NAME, seed, n, hash)
#define QUANT_EXACT(NAME, seed, n, hash)
#define PEER(NAME, normal, real)
#define BLOCK(NAME, hex, ...) check_block(GR_##NAME, #NAME, hex, (const uint32_t[]){__VA_ARGS__});
#include "golden/quant/quant.inc"
#undef DEQUANT
#undef BLOCK
}

/* Every bit pattern of quants and scales: NaN, infinite, subnormal, negative. */
Test(dequant, random_blocks)
{
    int n_types = 0;
#define BLOCK(NAME, hex, ...)
#define DEQUANT(NAME, seed, n, hash)                                                               \
    cr_assert_eq(hash_of_random_blocks(GR_##NAME, seed, n), hash, #NAME);                          \
    n_types++;
#include "golden/quant/quant.inc"
    int n_codecs = 0;
#define QUANT(NAME, name, id, n, bytes, codec) n_codecs += codec != 0;
#include "gr/quant.def"
#undef QUANT
    cr_assert_eq(n_types, n_codecs, "a type has no golden values");
}

Test(dequant, no_codec)
{
    cr_assert_null(gr_quant_find(GR_I32));
    cr_assert_null(gr_quant_find(4));
    cr_assert_null(gr_quant_find(1000000));
}
