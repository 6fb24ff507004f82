// Products of matrices of a warp: formats of elements, sums of products.
//
// Source: PTX ISA 9, "Matrix Fragments for mma.m16n8k4" to "mma.m16n8k32", "Asynchronous Warpgroup
// Level Matrix Shared Memory Layout".
#pragma once

#include "machine.hpp"
#include "statement.hpp"

namespace ptx
{
// A core matrix is 8 rows of 16 bytes. A register over the 32 lanes of a fragment of A or B is one,
// row by row: lane 4 g + t has bytes 4 t to 4 t + 3 of row g. Shared tiles consist of them as well.
//
// A row is 16 bytes of consecutive k of one line (a row of A, a column of B) or, in the transposed
// tiles of 16-bit types, 8 lines at one k. Either becomes a part of a panel of 8 lines, which is
// double [depth][8]; the columns of B are in the order of split_lines there.
constexpr uint32_t core_rows = 8, core_bytes = 16, panel_lines = 8;
constexpr uint32_t max_depth_of_product = 32;
constexpr uint32_t split_lines[panel_lines] = {0, 2, 4, 6, 1, 3, 5, 7};

using Unpack = void (*)(const unsigned char *const *rows, double *panel);
struct Element {
    Type type;
    uint32_t bytes;      // of an element
    Unpack from_lines;   // a row is a line
    Unpack from_k;       // a row is one k of lines 0 to 7; null: there is no such layout
    Unpack from_k_split; // the same, with the lines in the order of split_lines
};
const Element *element_of(Type t); // null: no type of elements

// Transposes a core matrix of 16-bit elements; `to` may not overlap the rows.
void transpose_core(const unsigned char *const *rows, uint16_t *to);

// D = A * B + C for the 8 columns of one panel of B and the 8 * n_panel rows of the panels of A.
// The products of a sum are exact and are added in float64 by ascending k, then C; the result is
// rounded once. Integers are exact and wrap at 32 bits, or saturate. d and c are the words of the
// registers of the accumulator's fragment: row g + 8 p, columns 2 t and 2 t + 1 are in lane 4 g +
// t, in registers 2 p and 2 p + 1, of f16 both in register p. A null c stands for zeros; c may be
// d.
using Multiply = void (*)(const double *a, const double *b, uint32_t n_panel, uint32_t depth,
                          uint32_t *const *d, const uint32_t *const *c);
Multiply multiply_of(Type sum, bool saturates); // f32, f16, s32
static inline uint32_t registers_a_panel(Type sum)
{
    return sum == Type::f16 ? 1 : 2;
}

// Takes .sync.aligned, which all instructions on matrices must have.
void take_aligned(Statement &s);
// True when all lanes of the warp execute the instruction; a fault when some have returned.
bool whole_warp(Warp &w, const Inst &i, uint32_t lanes);
} // namespace ptx
