// Models of the tensor core's instructions. Over the 32 lanes, one register of a 16-bit fragment is
// an 8 x 8 block in row-major order (PTX ISA, "Matrix Fragments for mma.m16n8k16"), one of an 8-bit
// fragment an 8 x 16 block: lane 4 g + t holds row g. So a register's row of lanes in warp.in is
// the block itself. Products are summed in f32 in the order of k; real devices round differently.
#include <string.h>

#include "base/f16.h"
#include "check.hpp"
#include "core.hpp"
#include "device/kernels/mma.cuh"

namespace emu
{
typedef float float8 __attribute__((vector_size(32)));

template <Mma type> struct Element;
template <> struct Element<Mma::f16> {
    using stored = uint16_t;
    static float value(uint16_t v)
    {
        return ::f16_to_f32(v);
    }
};
template <> struct Element<Mma::bf16> {
    using stored = uint16_t;
    static float value(uint16_t v)
    {
        return gr_bf16_to_f32(v);
    }
};
template <> struct Element<Mma::s8> {
    using stored = int8_t;
    static float value(int8_t v)
    {
        return v;
    }
};

// A block of 8 rows of `from` as f32, rows `pitch` apart.
template <Mma type> static void widen(float *to, int pitch, const uint32_t from[32])
{
    using T = typename Element<type>::stored;
    constexpr int n = 16 / sizeof(T);
    T v[8][n];
    memcpy(v, from, sizeof v);
#ifdef __F16C__
    if (type == Mma::f16) {
        for (int r = 0; r < 8; r++)
            __asm__("vcvtph2ps %1, %0" : "=x"(*(float8 *)(to + r * pitch)) : "m"(v[r]));
        return;
    }
#endif
    for (int r = 0; r < 8; r++)
        for (int i = 0; i < n; i++)
            to[r * pitch + i] = Element<type>::value(v[r][i]);
}

// a: in[0 .. 4), b: in[4 .. 6), d: in[6 .. 10) and out[0 .. 4). Sums of 32 products of s8 are exact
// in f32.
template <Mma type> static void compute_mma(Warp &w, uint32_t)
{
    constexpr int half = 16 / sizeof(typename Element<type>::stored), k = 2 * half;
    alignas(64) float a[16][k], bt[8][k], b[k][8], d[16][8];
    for (int i = 0; i < 4; i++)
        widen<type>(&a[i % 2 * 8][i / 2 * half], k, w.in[i]);
    for (int i = 0; i < 2; i++)
        widen<type>(&bt[0][i * half], k, w.in[4 + i]);
    for (int i = 0; i < k; i++)
        for (int c = 0; c < 8; c++)
            b[i][c] = bt[c][i];
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 32; l++)
            d[i / 2 * 8 + l / 4][l % 4 * 2 + i % 2] =
                type == Mma::s8 ? 0.0f : gr_bits_f32(w.in[6 + i][l]);
    for (int r = 0; r < 16; r += 4) {
        float8 *out = (float8 *)d[r], s0 = out[0], s1 = out[1], s2 = out[2], s3 = out[3];
        for (int i = 0; i < k; i++) {
            float8 bi = *(const float8 *)b[i];
            s0 += a[r][i] * bi;
            s1 += a[r + 1][i] * bi;
            s2 += a[r + 2][i] * bi;
            s3 += a[r + 3][i] * bi;
        }
        out[0] = s0, out[1] = s1, out[2] = s2, out[3] = s3;
    }
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 32; l++) {
            float v = d[i / 2 * 8 + l / 4][l % 4 * 2 + i % 2];
            w.out[i][l] = type == Mma::s8 ? w.in[6 + i][l] + (uint32_t)(int32_t)v : gr_f32_bits(v);
        }
}

void mma(Mma type, uint32_t d[4], const uint32_t a[4], const uint32_t b[2], Site site)
{
    static const Together what[] = {{"mma_f16", compute_mma<Mma::f16>, true},
                                    {"mma_bf16", compute_mma<Mma::bf16>, true},
                                    {"mma_s8", compute_mma<Mma::s8>, true}};
    Thread &t = self();
    Warp &w = *t.warp;
    for (int i = 0; i < 4; i++) {
        w.in[i][t.lane] = a[i];
        w.in[6 + i][t.lane] = d[i];
    }
    w.in[4][t.lane] = b[0];
    w.in[5][t.lane] = b[1];
    meet(what[(int)type], ~0u, site);
    for (int i = 0; i < 4; i++)
        d[i] = w.out[i][t.lane];
}

// in[0], in[1]: where the rows are. Lane 4 g + t gets word t of row g of each matrix.
template <bool transposed> static void compute_ldmatrix(Warp &w, uint32_t)
{
    for (int m = 0; m < 4; m++) {
        uint16_t v[8][8], to[8][8];
        for (int r = 0; r < 8; r++)
            memcpy(v[r], get_pointer(w, 8 * m + r), 16);
        for (int r = 0; r < 8; r++)
            for (int c = 0; c < 8; c++)
                to[r][c] = transposed ? v[c][r] : v[r][c];
        memcpy(w.out[m], to, sizeof to);
    }
}

void ldmatrix_x4(uint32_t r[4], uint32_t addr, bool transposed, Site site)
{
    static const Together what[] = {{"ldmatrix_x4", compute_ldmatrix<false>, true},
                                    {"ldmatrix_x4_trans", compute_ldmatrix<true>, true}};
    Thread &t = self();
    const unsigned char *row = shared_memory(addr, 16, 16, what[transposed].name, site);
    check_access(t, row, 16, false, site);
    put_pointer(t, row);
    meet(what[transposed], ~0u, site);
    for (int i = 0; i < 4; i++)
        r[i] = t.warp->out[i][t.lane];
}

// in[0], in[1]: where the rows are, in[2 .. 6): the registers.
template <bool transposed> static void compute_stmatrix(Warp &w, uint32_t)
{
    for (int m = 0; m < 4; m++) {
        uint16_t v[8][8], to[8][8];
        memcpy(v, w.in[2 + m], sizeof v);
        for (int r = 0; r < 8; r++)
            for (int c = 0; c < 8; c++)
                to[r][c] = transposed ? v[c][r] : v[r][c];
        for (int r = 0; r < 8; r++)
            memcpy(get_pointer(w, 8 * m + r), to[r], 16);
    }
}

void stmatrix_x4(uint32_t addr, const uint32_t r[4], bool transposed, Site site)
{
    static const Together what[] = {{"stmatrix_x4", compute_stmatrix<false>, true},
                                    {"stmatrix_x4_trans", compute_stmatrix<true>, true}};
    Thread &t = self();
    unsigned char *row = shared_memory(addr, 16, 16, what[transposed].name, site);
    check_access(t, row, 16, true, site);
    put_pointer(t, row);
    for (int i = 0; i < 4; i++)
        t.warp->in[2 + i][t.lane] = r[i];
    meet(what[transposed], ~0u, site);
}
} // namespace emu
