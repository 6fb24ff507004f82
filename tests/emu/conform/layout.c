#include "tests/emu/conform/layout.h"

void layout_a(int lane, int r, int e, int each, int *row, int *k)
{
    *row = lane / 4 + r % 2 * 8;
    *k = lane % 4 * each + e + r / 2 * 4 * each;
}
void layout_b(int lane, int r, int e, int each, int *k, int *column)
{
    *k = lane % 4 * each + e + r * 4 * each;
    *column = lane / 4;
}
void layout_d(int lane, int r, int *row, int *column)
{
    *row = lane / 4 + r / 2 * 8;
    *column = lane % 4 * 2 + r % 2;
}

void layout_group_a(int thread, int r, int e, int *row, int *k)
{
    layout_a(thread % 32, r, e, 2, row, k);
    *row += thread / 32 * 16;
}
void layout_group_d(int thread, int i, int *row, int *column)
{
    *row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
    *column = i / 4 * 8 + thread % 4 * 2 + i % 2;
}

void layout_8x8(int lane, int h, bool transposed, int *row, int *column)
{
    *row = transposed ? lane % 4 * 2 + h : lane / 4;
    *column = transposed ? lane / 4 : lane % 4 * 2 + h;
}

struct layout_tile layout_make(bool mn_major, int swizzle, int mn, int k)
{
    struct layout_tile l = {.mn_major = mn_major, .swizzle = swizzle};
    if (swizzle && !mn_major) { /* rows of `swizzle` bytes, 8 of them make a period */
        l.lbo = 16;
        l.sbo = 8 * swizzle;
        l.step = 32;
        l.bytes = mn * swizzle;
    } else if (swizzle) { /* rows of k, `swizzle` bytes of mn; then the next mn */
        l.sbo = 8 * swizzle;
        l.lbo = k / 8 * l.sbo;
        l.step = 2 * l.sbo;
        l.bytes = (mn * 2 + swizzle - 1) / swizzle * l.lbo;
    } else { /* blocks of 8 x 8, k fastest, with a gap of 128 bytes behind each 8 of mn */
        const int along_k = 128, along_mn = k / 8 * 128 + 128;
        l.lbo = along_k;
        l.sbo = along_mn;
        l.step = 2 * along_k;
        l.bytes = mn / 8 * along_mn;
    }
    return l;
}

/* Offset of element (mn, k), swizzled: within each period, the 16-byte chunk of a row is exchanged
 * by the number of its row of 128 bytes. */
int layout_tile_at(const struct layout_tile *l, int mn, int k)
{
    int at;
    if (!l->swizzle)
        at = mn / 8 * l->sbo + k / 8 * l->lbo +
             (l->mn_major ? k % 8 * 16 + mn % 8 * 2 : mn % 8 * 16 + k % 8 * 2);
    else if (!l->mn_major)
        at = mn / 8 * l->sbo + mn % 8 * l->swizzle + k * 2;
    else
        at = mn * 2 / l->swizzle * l->lbo + k / 8 * l->sbo + k % 8 * l->swizzle +
             mn * 2 % l->swizzle;
    const int chunks = l->swizzle / 16;
    return chunks ? at ^ (at / 128 % 8 & (chunks - 1)) * 16 : at;
}

size_t layout_box_at(int swizzle, uint32_t width, int64_t row, uint32_t x)
{
    const size_t chunks = width / 8, at = (size_t)row;
    size_t chunk = x / 8;
    if (swizzle == 128)
        chunk ^= at % 8;
    else if (swizzle == 64)
        chunk ^= at / 2 % 4;
    else if (swizzle == 32)
        chunk ^= at / 4 % 2;
    return (at * chunks + chunk) * 8 + x % 8;
}
