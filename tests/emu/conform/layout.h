/* Places of the elements of fragments, tiles and boxes by the PTX text (PTX ISA 9: "Matrix
 * Fragments", "Register Fragments", "Shared Memory Matrix Layout", "Tensor Swizzling Modes"). */
#ifndef TESTS_EMU_CONFORM_LAYOUT_H
#define TESTS_EMU_CONFORM_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* mma: element e of register r of a lane is at this row, k or column; a register has `each`
 * elements, 2 of 16 bits or 4 of 8. */
void layout_a(int lane, int r, int e, int each, int *row, int *k);
void layout_b(int lane, int r, int e, int each, int *k, int *column);
void layout_d(int lane, int r, int *row, int *column);
/* wgmma: a in registers, and accumulator i, of a thread of the warpgroup. */
void layout_group_a(int thread, int r, int e, int *row, int *k);
void layout_group_d(int thread, int i, int *row, int *column);
/* ldmatrix, stmatrix: 16-bit element h of a lane's register, in its matrix of 8 x 8. */
void layout_8x8(int lane, int h, bool transposed, int *row, int *column);

/* wgmma: a tile [mn, k] of 16-bit elements in shared memory; strides in bytes, before the swizzle.
 */
struct layout_tile {
    bool mn_major;
    int swizzle, lbo, sbo; /* bytes */
    int step;              /* bytes from one 16 of k to the next */
    int bytes;
};
/* The usual one: densely packed, but without a swizzle with gaps between blocks of 8 of mn. */
struct layout_tile layout_make(bool mn_major, int swizzle, int mn, int k);
/* Byte of element (mn, k), swizzled: within each period, the 16-byte chunk of a row is exchanged by
 * the number of its row of 128 bytes. */
int layout_tile_at(const struct layout_tile *l, int mn, int k);

/* TMA: which 16-bit element of shared memory element x of a row of a box is; rows of `width`
 * elements, whose chunks of 16 bytes are permuted by the row's number in a period of 1024, 512 or
 * 256 bytes. */
size_t layout_box_at(int swizzle, uint32_t width, int64_t row, uint32_t x);

#endif
