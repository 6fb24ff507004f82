/* The layouts that the conformance suite believes in (layout.c, from the PTX text) beside those
 * that CuTe publishes for the same instructions, element for element. CuTe writes a layout as
 * shapes and strides: an index counts through the shapes, the first one fastest, and each digit
 * counts its stride (CUTLASS 3: cute/atom/mma_traits_sm80.hpp, mma_traits_sm90_gmma.hpp). */
#include "tests/emu/conform/layout.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_RANK = 6 };
struct cute { /* shapes of one mode, ended by 0 */
    int shape[MAX_RANK], stride[MAX_RANK];
};

static int n_wrong, n_compared;

static int offset(const struct cute *l, int index)
{
    int at = 0;
    for (int i = 0; i < MAX_RANK && l->shape[i]; i++) {
        at += index % l->shape[i] * l->stride[i];
        index /= l->shape[i];
    }
    return at;
}

static void same(const char *what, int i, int j, int got, int expected)
{
    n_compared++;
    if (got == expected)
        return;
    if (n_wrong++ < 20)
        printf("%s: (%d, %d) is at %d, CuTe says %d\n", what, i, j, got, expected);
}

/* --- fragments: (thread, value) to row + rows * column --- */

/* of_d: value i, else element i % each of register i / each. */
struct fragment {
    const char *what;
    struct cute thread, value;
    int n_thread, n_value, rows, each;
    void (*at)(int thread, int value, int each, int *row, int *column);
};

static void at_a(int t, int v, int each, int *row, int *k)
{
    layout_a(t, v / each, v % each, each, row, k);
}
static void at_b(int t, int v, int each, int *column, int *k)
{
    layout_b(t, v / each, v % each, each, k, column);
}
static void at_d(int t, int v, int each, int *row, int *column)
{
    (void)each;
    layout_d(t, v, row, column);
}
static void at_group_a(int t, int v, int each, int *row, int *k)
{
    layout_group_a(t, v / each, v % each, row, k);
}
static void at_group_d(int t, int v, int each, int *row, int *column)
{
    (void)each;
    layout_group_d(t, v, row, column);
}

static void check_fragments(void)
{
    static const struct fragment all[] = {
        {"mma 16-bit a", {{4, 8}, {32, 1}}, {{2, 2, 2}, {16, 8, 128}}, 32, 8, 16, 2, at_a},
        {"mma 16-bit b", {{4, 8}, {16, 1}}, {{2, 2}, {8, 64}}, 32, 4, 8, 2, at_b},
        {"mma d", {{4, 8}, {32, 1}}, {{2, 2}, {16, 8}}, 32, 4, 16, 1, at_d},
        {"mma 8-bit a", {{4, 8}, {64, 1}}, {{4, 2, 2}, {16, 8, 256}}, 32, 16, 16, 4, at_a},
        {"mma 8-bit b", {{4, 8}, {32, 1}}, {{4, 2}, {8, 128}}, 32, 8, 8, 4, at_b},
        {"wgmma a",
         {{4, 8, 4}, {128, 1, 16}},
         {{2, 2, 2}, {64, 8, 512}},
         128,
         8,
         64,
         2,
         at_group_a},
        {"wgmma d",
         {{4, 8, 4}, {128, 1, 16}},
         {{2, 2, 32}, {64, 8, 512}},
         128,
         128,
         64,
         1,
         at_group_d},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int t = 0; t < all[i].n_thread; t++)
            for (int v = 0; v < all[i].n_value; v++) {
                int row, column;
                all[i].at(t, v, all[i].each, &row, &column);
                same(all[i].what, t, v, row + all[i].rows * column,
                     offset(&all[i].thread, t) + offset(&all[i].value, v));
            }
}

/* --- tiles: Swizzle<bits, 4, 3> of bytes, over elements of 2 bytes, T = 8 of them --- */

static int swizzle(int bits, int at)
{
    const int from = ((1 << bits) - 1) << 7;
    return at ^ (at & from) >> 3;
}

/* "Canonical layouts" of wgmma descriptors. w: 16-byte chunks in a swizzled row. */
static void canonical(const struct layout_tile *l, int w, struct cute *mn, struct cute *k)
{
    const int lbo = l->lbo / 2, sbo = l->sbo / 2, many = 1 << 20;
    if (!l->mn_major) { /* ((8, m), (T, 2)) : ((w T, SBO), (1, T)); without a swizzle ((T, SBO), (1,
                           LBO)) */
        *mn = (struct cute){{8, many}, {8 * (w ? w : 1), sbo}};
        *k = (struct cute){{8, many}, {1, w ? 8 : lbo}};
    } else if (w) { /* ((T, w, m), (8, k)) : ((1, T, LBO), (w T, SBO)) */
        *mn = (struct cute){{8, w, many}, {1, 8, lbo}};
        *k = (struct cute){{8, many}, {8 * w, sbo}};
    } else { /* ((T, 1, m), (8, k)) : ((1, T, SBO), (T, LBO)) */
        *mn = (struct cute){{8, 1, many}, {1, 8, sbo}};
        *k = (struct cute){{8, many}, {8, lbo}};
    }
}

static void check_tiles(void)
{
    static const struct {
        int width, bits;
    } swizzles[] = {{0, 0}, {32, 1}, {64, 2}, {128, 3}};
    for (int i = 0; i < 8; i++) {
        const int width = swizzles[i / 2].width, n_k = i % 2 || !width ? 64 : width / 2;
        const struct layout_tile l = layout_make(i % 2, width, 256, n_k);
        struct cute mn, k;
        char what[64];
        canonical(&l, width / 16, &mn, &k);
        snprintf(what, sizeof what, "tile, %s-major, swizzle %d", i % 2 ? "mn" : "k", width);
        for (int a = 0; a < 256; a++)
            for (int b = 0; b < n_k; b++)
                same(what, a, b, layout_tile_at(&l, a, b),
                     swizzle(swizzles[i / 2].bits, 2 * (offset(&mn, a) + offset(&k, b))));
    }
    for (int i = 0; i < 4; i++) { /* boxes: Swizzle<bits, 4, 3> o (rows, width) : (width, 1) */
        const int width = i ? swizzles[i].width / 2 : 24;
        for (int row = 0; row < 64; row++)
            for (int x = 0; x < width; x++)
                same("box", row, x,
                     2 * (int)layout_box_at(swizzles[i].width, (uint32_t)width, row, (uint32_t)x),
                     swizzle(swizzles[i].bits, 2 * (row * width + x)));
    }
}

int main(void)
{
    check_fragments();
    check_tiles();
    printf("%d of %d places differ from CuTe's\n", n_wrong, n_compared);
    return n_wrong != 0 || n_compared == 0;
}
