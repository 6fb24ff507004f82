/* Tensor cores: mma, ldmatrix, stmatrix, wgmma. Matrices of small integers, so that sums are exact
 * in whatever order they are made; fragments and images laid out by the tables of the PTX text. */
#include "tests/emu/conform/conform.h"
#include "tests/emu/conform/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct conform_format *format_of(const char *wrapper)
{
    return strstr(wrapper, "bf16") ? &conform_bf16 : &conform_f16;
}

/* --- mma: "Matrix Fragments for mma.m16n8k16", "... mma.m16n8k32" --- */

struct fragments { /* as the kernels of products.cu read them */
    uint32_t a[32][4], b[32][2], c[32][4];
};

static void fill(int8_t *m, int n, uint32_t *seed)
{
    for (int i = 0; i < n; i++)
        m[i] = (int8_t)conform_random_in(seed, -9, 9);
}

static uint32_t element_bits(const struct conform_format *f, int v)
{
    return f ? conform_bits(f, v) : (uint8_t)v;
}

/* "mma_f16 tiny": a is 2^-24 times the integers, below the normal numbers of f16. */
static int run_mma(struct conform *c, const char *wrapper)
{
    const bool tiny = strstr(wrapper, " tiny");
    const float unit = tiny ? 0x1p-24f : 1;
    const struct conform_format *f = strstr(wrapper, "s8") ? NULL : format_of(wrapper);
    const int each = f ? 2 : 4, bits = 32 / each, k_all = 8 * each;
    int8_t a[16 * 32], b[32 * 8], start[16 * 8];
    uint32_t seed = 41, out[32][4], expected[32][4];
    struct fragments in = {0};
    char name[64];
    fill(a, 16 * k_all, &seed);
    fill(b, k_all * 8, &seed);
    fill(start, 16 * 8, &seed);
    for (int lane = 0; lane < 32; lane++) {
        int row, k, column;
        for (int i = 0; i < 4 * each; i++) {
            layout_a(lane, i / each, i % each, each, &row, &k);
            const int v = a[row * k_all + k];
            in.a[lane][i / each] |= (tiny ? (uint32_t)(v < 0 ? 0x8000 - v : v) : element_bits(f, v))
                                    << i % each * bits;
        }
        for (int i = 0; i < 2 * each; i++) {
            layout_b(lane, i / each, i % each, each, &k, &column);
            in.b[lane][i / each] |= element_bits(f, b[k * 8 + column]) << i % each * bits;
        }
        for (int r = 0; r < 4; r++) {
            layout_d(lane, r, &row, &column);
            int sum = start[row * 8 + column];
            const float from = (float)sum * unit;
            for (k = 0; k < k_all; k++)
                sum += a[row * k_all + k] * b[k * 8 + column];
            const float to = (float)sum * unit;
            memcpy(&in.c[lane][r], f ? (const void *)&from : (const void *)&(int){(int)from}, 4);
            memcpy(&expected[lane][r], f ? (const void *)&to : (const void *)&sum, 4);
        }
    }
    snprintf(name, sizeof name, "conform_%.*s", (int)strcspn(wrapper, " "), wrapper);
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = name,
                                                   .blocks = 1,
                                                   .threads = 32,
                                                   .in = &in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 128, 4);
}

/* --- ldmatrix, stmatrix: lane 8 i + r points at row r of matrix i --- */

/* A row of 64 for each lane, all different. */
static void choose_rows(uint32_t rows[32], uint32_t *seed)
{
    uint32_t all[64];
    for (uint32_t i = 0; i < 64; i++)
        all[i] = i;
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t j = (uint32_t)conform_random_in(seed, (int)i, 63), t = all[j];
        all[j] = all[i];
        rows[i] = all[i] = t;
    }
}

static int run_ldmatrix(struct conform *c, const char *wrapper)
{
    struct {
        uint16_t row[64][8];
        uint32_t points[32];
    } in;
    uint16_t out[32][4][2], expected[32][4][2];
    uint32_t seed = 43;
    char name[64];
    for (int i = 0; i < 64 * 8; i++)
        in.row[i / 8][i % 8] = (uint16_t)conform_random(&seed);
    choose_rows(in.points, &seed);
    for (int i = 0; i < 32 * 4 * 2; i++) {
        const int lane = i / 8, matrix = i / 2 % 4, h = i % 2;
        int row, column;
        layout_8x8(lane, h, strstr(wrapper, "trans") != NULL, &row, &column);
        expected[lane][matrix][h] = in.row[in.points[8 * matrix + row]][column];
    }
    snprintf(name, sizeof name, "conform_%s", wrapper);
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = name,
                                                   .blocks = 1,
                                                   .threads = 32,
                                                   .smem = 1024,
                                                   .in = &in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 128, 4);
}

static int run_stmatrix(struct conform *c, const char *wrapper)
{
    struct {
        uint16_t r[32][4][2];
        uint32_t points[32];
    } in;
    uint16_t out[64][8], expected[64][8] = {{0}};
    uint32_t seed = 47;
    char name[64];
    choose_rows(in.points, &seed);
    for (int i = 0; i < 32 * 4 * 2; i++) {
        const int lane = i / 8, matrix = i / 2 % 4, h = i % 2;
        int row, column;
        in.r[lane][matrix][h] = (uint16_t)conform_random(&seed);
        layout_8x8(lane, h, strstr(wrapper, "trans") != NULL, &row, &column);
        expected[in.points[8 * matrix + row]][column] = in.r[lane][matrix][h];
    }
    snprintf(name, sizeof name, "conform_%s", wrapper);
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = name,
                                                   .blocks = 1,
                                                   .threads = 32,
                                                   .smem = 1024,
                                                   .in = &in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 64 * 8, 2);
}

/* --- wgmma: "Shared Memory Matrix Layout", "Strides", "Matrix Descriptor" --- */

enum { MAX_K = 64, MAX_N = 256, MAX_IMAGE = MAX_N * MAX_K * 2 + 2048 };

struct product {
    const struct conform_format *f;
    int n, k, steps;
    bool a_mn, b_mn, a_registers, accumulate;
    int swizzle_a, swizzle_b;
    int8_t a[64 * MAX_K], b[MAX_K * MAX_N];
};

static size_t lay_out(const struct conform_format *f, const struct layout_tile *l, const int8_t *m,
                      int mn_all, int k_all, bool k_first, unsigned char *image)
{
    memset(image, 0x7f, (size_t)l->bytes); /* NaN in the gaps */
    for (int mn = 0; mn < mn_all; mn++)
        for (int k = 0; k < k_all; k++) {
            const uint16_t bits = conform_bits(f, k_first ? m[k * mn_all + mn] : m[mn * k_all + k]);
            memcpy(image + layout_tile_at(l, mn, k), &bits, 2);
        }
    return (size_t)l->bytes;
}

/* [step][thread][4]: of each warp's 16 rows, as mma has it. */
static size_t lay_out_registers(const struct product *x, unsigned char *image)
{
    uint16_t *to = (uint16_t *)image;
    for (int i = 0; i < x->steps * 128 * 8; i++) {
        const int step = i / 1024, thread = i / 8 % 128;
        int row, k;
        layout_group_a(thread, i / 2 % 4, i % 2, &row, &k);
        to[i] = conform_bits(x->f, x->a[row * x->k + step * 16 + k]);
    }
    return (size_t)x->steps * 2048;
}

static void expect(const struct product *x, float *d)
{
    for (int thread = 0; thread < 128; thread++)
        for (int i = 0; i < x->n / 2; i++) {
            int row, column;
            layout_group_d(thread, i, &row, &column);
            int sum = x->accumulate ? (thread * 7 + i) % 13 : 0;
            for (int k = 0; k < x->k; k++)
                sum += x->a[row * x->k + k] * x->b[k * x->n + column];
            d[thread * (x->n / 2) + i] = (float)sum;
        }
}

static int run_product(struct conform *c, const char *kernel, struct product *x, uint32_t *seed)
{
    static unsigned char image[2 * MAX_IMAGE] __attribute__((aligned(4)));
    static float out[128 * MAX_N / 2], expected[128 * MAX_N / 2];
    struct conform_launch l = {.kernel = kernel, .blocks = 1, .threads = 128};
    fill(x->a, 64 * x->k, seed);
    fill(x->b, x->k * x->n, seed);
    const struct layout_tile a = layout_make(x->a_mn, x->swizzle_a, 64, x->k);
    const struct layout_tile b = layout_make(x->b_mn, x->swizzle_b, x->n, x->k);
    const size_t n_a = x->a_registers ? lay_out_registers(x, image)
                                      : lay_out(x->f, &a, x->a, 64, x->k, false, image);
    const size_t n_b = lay_out(x->f, &b, x->b, x->n, x->k, true, image + n_a);
    expect(x, expected);
    l.p[CONFORM_STEPS] = x->steps;
    l.p[CONFORM_ACCUMULATE] = x->accumulate;
    l.p[CONFORM_A_BYTES] = x->a_registers ? 0 : a.bytes;
    l.p[CONFORM_A_LBO] = a.lbo;
    l.p[CONFORM_A_SBO] = a.sbo;
    l.p[CONFORM_A_SWIZZLE] = a.swizzle;
    l.p[CONFORM_A_STEP] = a.step;
    l.p[CONFORM_B_BYTES] = b.bytes;
    l.p[CONFORM_B_LBO] = b.lbo;
    l.p[CONFORM_B_SBO] = b.sbo;
    l.p[CONFORM_B_SWIZZLE] = b.swizzle;
    l.p[CONFORM_B_STEP] = b.step;
    l.smem = (unsigned)(l.p[CONFORM_A_BYTES] + 1023) / 1024 * 1024 + (unsigned)b.bytes;
    l.in = image;
    l.in_bytes = n_a + n_b;
    l.out = out;
    l.out_bytes = (size_t)(128 * x->n / 2) * sizeof *out;
    memset(out, 0xee, l.out_bytes);
    return conform_run(c, &l) || conform_same(c, out, expected, l.out_bytes / 4, 4);
}

/* "wgmma_f16<64> k_mn", "wgmma_f16_ra<64> r_k": all forms of swizzle, k as far as one row goes. */
static int run_wgmma(struct conform *c, const char *wrapper)
{
    static const int swizzles[] = {128, 64, 32, 0};
    static struct product x;
    const char *form = strrchr(wrapper, ' ') + 1;
    char kernel[128];
    uint32_t seed = 53;
    memset(&x, 0, sizeof x);
    x.f = format_of(wrapper);
    x.n = atoi(strchr(wrapper, '<') + 1);
    x.a_registers = form[0] == 'r';
    x.a_mn = form[0] == 'm';
    x.b_mn = strstr(form, "_mn") != NULL;
    snprintf(kernel, sizeof kernel, "conform_wgmma_%s_%d_%s", x.f == &conform_f16 ? "f16" : "bf16",
             x.n, form);
    for (int i = 0; i < 16; i++) {
        x.swizzle_a = swizzles[i % 4];
        x.swizzle_b = swizzles[i / 4];
        if (x.a_registers && i % 4)
            continue;
        x.k = MAX_K; /* K-major tiles are as wide as their swizzle */
        if (!x.a_mn && !x.a_registers && x.swizzle_a && x.swizzle_a / 2 < x.k)
            x.k = x.swizzle_a / 2;
        if (!x.b_mn && x.swizzle_b && x.swizzle_b / 2 < x.k)
            x.k = x.swizzle_b / 2;
        x.steps = x.k / 16;
        x.accumulate = i % 3 == 1;
        if (x.b_mn && x.swizzle_b && x.n * 2 % x.swizzle_b) /* n narrower than a swizzled row */
            continue;
        if (run_product(c, kernel, &x, &seed))
            return 1;
    }
    return 0;
}

static int run_wgmma_wait(struct conform *c, const char *wrapper)
{
    static struct product x = {.f = &conform_f16, .n = 8, .k = 32, .steps = 2};
    (void)wrapper;
    static unsigned char image[2 * MAX_IMAGE];
    float out[1024], expected[1024];
    const struct layout_tile a = layout_make(false, 64, 64, 32), b = layout_make(false, 64, 8, 32);
    uint32_t seed = 59;
    fill(x.a, 64 * 32, &seed);
    fill(x.b, 32 * 8, &seed);
    size_t n = lay_out(x.f, &a, x.a, 64, 32, false, image);
    n += lay_out(x.f, &b, x.b, 8, 32, true, image + n);
    for (int i = 0; i < 1024; i++) {
        const int step = i / 512, thread = i / 4 % 128;
        int row, column, sum = 0;
        layout_group_d(thread, i % 4, &row, &column);
        for (int k = 16 * step; k < 16 * step + 16; k++)
            sum += x.a[row * 32 + k] * x.b[k * 8 + column];
        expected[i] = (float)sum;
    }
    memset(out, 0xee, sizeof out);
    return conform_run(
               c, &(struct conform_launch){.kernel = "conform_wgmma_wait",
                                           .blocks = 1,
                                           .threads = 128,
                                           .smem = 8192,
                                           .in = image,
                                           .in_bytes = n,
                                           .out = out,
                                           .out_bytes = sizeof out,
                                           .p = {2, 0, a.bytes, a.lbo, a.sbo, a.swizzle, a.step,
                                                 b.bytes, b.lbo, b.sbo, b.swizzle, b.step}}) ||
           conform_same(c, out, expected, 1024, 4);
}

/* "Matrix Descriptor": address, leading and stride offset, each without its 4 low bits, at bits 0,
 * 16 and 32; the swizzle at 62: 0 none, 1 128, 2 64, 3 32 bytes. */
static uint64_t descriptor(uint64_t addr, uint64_t lbo, uint64_t sbo, uint64_t mode)
{
    return addr / 16 | lbo / 16 << 16 | sbo / 16 << 32 | mode << 62;
}

static int run_desc(struct conform *c, const char *wrapper)
{
    (void)wrapper;
    enum { ADDR = 0x2fc00, N_K = 64 };
    const uint64_t expected[4] = {
        descriptor(ADDR, 16, 1024, 1), descriptor(ADDR, 128 * N_K, 1024, 1),
        descriptor(ADDR, 4096, 512, 2), descriptor(ADDR + 96, 16, 1024, 1)};
    uint64_t out[4] = {0};
    return conform_run(c, &(struct conform_launch){.kernel = "conform_wgmma_desc",
                                                   .blocks = 1,
                                                   .threads = 32,
                                                   .out = out,
                                                   .out_bytes = sizeof out,
                                                   .p = {ADDR, N_K}}) ||
           conform_same(c, out, expected, 4, 8);
}

#define FORMS(type, n)                                                                             \
    {"wgmma_" #type "<" #n "> k_k", 90, run_wgmma},                                                \
        {"wgmma_" #type "<" #n "> k_mn", 90, run_wgmma},                                           \
        {"wgmma_" #type "<" #n "> mn_k", 90, run_wgmma},                                           \
        {"wgmma_" #type "<" #n "> mn_mn", 90, run_wgmma},                                          \
        {"wgmma_" #type "_ra<" #n "> r_k", 90, run_wgmma},                                         \
        {"wgmma_" #type "_ra<" #n "> r_mn", 90, run_wgmma},
#define TYPES(n) FORMS(f16, n) FORMS(bf16, n)

const struct conform_case conform_products[] = {
    {"mma_f16", 80, run_mma},
    {"mma_f16 tiny", 80, run_mma},
    {"mma_bf16", 80, run_mma},
    {"mma_s8", 80, run_mma},
    {"ldmatrix_x4", 80, run_ldmatrix},
    {"ldmatrix_x4_trans", 80, run_ldmatrix},
    {"stmatrix_x4", 90, run_stmatrix},
    {"stmatrix_x4_trans", 90, run_stmatrix},
    TYPES(8) TYPES(16) TYPES(32) TYPES(64) TYPES(96) TYPES(128) TYPES(192)
        TYPES(256){"wgmma_wait", 90, run_wgmma_wait},
    {"wgmma_desc, wgmma_step", 90, run_desc},
    {0},
};
