/* Conversions, arithmetic on pairs, global memory, cp.async and named barriers. */
#include "tests/emu/conform/conform.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "conform_" and the wrapper's name. */
static const char *kernel_of(const char *wrapper)
{
    static char name[128];
    snprintf(name, sizeof name, "conform_%s", wrapper);
    return name;
}

static int run_each(struct conform *c, const char *wrapper, int n, const void *in, size_t in_bytes,
                    void *out, size_t out_bytes)
{
    memset(out, 0xee, out_bytes);
    return conform_run(c, &(struct conform_launch){.kernel = kernel_of(wrapper),
                                                   .blocks = (unsigned)(n + 255) / 256,
                                                   .threads = 256,
                                                   .in = in,
                                                   .in_bytes = in_bytes,
                                                   .out = out,
                                                   .out_bytes = out_bytes,
                                                   .p = {n}});
}

static const struct conform_format *format_of(const char *wrapper)
{
    return strstr(wrapper, "bf16") ? &conform_bf16 : &conform_f16;
}

static bool is_nan16(const struct conform_format *f, uint16_t bits)
{
    return isnan(conform_value(f, bits));
}
static bool is_nan32(uint32_t bits)
{
    return (bits & 0x7fffffff) > 0x7f800000;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* --- conversions: all 65,536 values up; down, every value, the ties between neighbours and the
 * floats beside those --- */

static int to_f32(struct conform *c, const char *wrapper)
{
    enum { N = 65536 };
    static uint16_t in[N];
    static uint32_t out[N];
    const struct conform_format *f = format_of(wrapper);
    for (int i = 0; i < N; i++)
        in[i] = (uint16_t)i;
    if (run_each(c, wrapper, N, in, sizeof in, out, sizeof out))
        return 1;
    for (int i = 0; i < N; i++) {
        const float expected = (float)conform_value(f, in[i]);
        if (isnan(expected) ? !is_nan32(out[i]) : out[i] != bits_of(expected))
            return conform_fail(c, "0x%04x gives 0x%08x, expected %a", i, out[i], expected);
    }
    return 0;
}

/* Floats around value i of the format: itself, half way to the next one, one unit off that. */
static void around(const struct conform_format *f, uint16_t bits, float in[4])
{
    const double v = conform_value(f, bits), next = conform_value(f, (uint16_t)(bits + 1));
    const double middle = isfinite(next) ? (v + next) / 2 : v + v * ldexp(1, -2 - f->fraction);
    in[0] = (float)v;
    in[1] = (float)middle;
    in[2] = float_of(bits_of((float)middle) + 1);
    in[3] = float_of(bits_of((float)middle) - 1);
}

static int from_f32(struct conform *c, const char *wrapper)
{
    enum { N = 4 * 65536 };
    static float in[N];
    static uint16_t out[N];
    const struct conform_format *f = format_of(wrapper);
    for (int i = 0; i < 65536; i++)
        around(f, (uint16_t)i, in + 4 * i);
    if (run_each(c, wrapper, N, in, sizeof in, out, sizeof out))
        return 1;
    for (int i = 0; i < N; i++) {
        const uint16_t expected = conform_bits(f, in[i]);
        if (isnan(in[i]) ? !is_nan16(f, out[i]) : out[i] != expected)
            return conform_fail(c, "%a gives 0x%04x, expected 0x%04x", in[i], out[i], expected);
    }
    return 0;
}

static int pair_from_f32(struct conform *c, const char *wrapper)
{
    enum { N = 65536 };
    static float in[2 * N];
    static uint32_t out[N];
    const struct conform_format *f = format_of(wrapper);
    uint32_t seed = 1;
    for (int i = 0; i < N; i++) {
        float low[4], high[4];
        around(f, (uint16_t)i, low);
        around(f, (uint16_t)conform_random(&seed), high);
        in[2 * i] = low[i % 4];
        in[2 * i + 1] = high[conform_random_in(&seed, 0, 3)];
    }
    if (run_each(c, wrapper, N, in, sizeof in, out, sizeof out))
        return 1;
    for (int i = 0; i < 2 * N; i++) {
        const uint16_t got = (uint16_t)(out[i / 2] >> (i % 2 * 16));
        if (isnan(in[i]) ? !is_nan16(f, got) : got != conform_bits(f, in[i]))
            return conform_fail(c, "%s %a gives 0x%04x, expected 0x%04x", i % 2 ? "high" : "low",
                                in[i], got, conform_bits(f, in[i]));
    }
    return 0;
}

/* --- arithmetic on pairs --- */

/* a * b + c, rounded to odd: what that rounds to in a format of at most 11 bits is what the exact
 * sum rounds to. The product of two such numbers is exact. */
static double fma_odd(double a, double b, double c)
{
    const double product = a * b, sum = product + c;
    if (!isfinite(sum))
        return sum;
    const double c_part = sum - product, rest = (product - (sum - c_part)) + (c - c_part);
    if (rest == 0)
        return sum;
    const double below = rest < 0 ? nextafter(sum, -INFINITY) : sum;
    const double above = rest < 0 ? sum : nextafter(sum, INFINITY);
    uint64_t bits;
    memcpy(&bits, &below, sizeof bits);
    return bits & 1 ? below : above;
}

static double exact(const char *wrapper, double a, double b, double c)
{
    if (strncmp(wrapper, "mul", 3) == 0)
        return a * b;
    if (strncmp(wrapper, "sub", 3) == 0)
        return fma_odd(a, 1, -b);
    return fma_odd(a, b, c);
}

/* Random pairs; the first ones from the edges: zeros, the least and greatest numbers, infinities.
 */
static void fill_pairs(const struct conform_format *f, uint32_t *in, int n)
{
    const uint16_t one = (uint16_t)(-f->emin + 1) << f->fraction,
                   least = (uint16_t)1 << f->fraction;
    const uint16_t infinity = (uint16_t)((f->emax - f->emin + 2) << f->fraction);
    const uint16_t edges[] = {0,       0x8000,       1,        0x8001,
                              least,   least - 1,    one,      (uint16_t)(one | 0x8000),
                              one + 1, infinity - 1, infinity, (uint16_t)(infinity | 0x8000),
                              0x7fff};
    const uint32_t k = sizeof edges / sizeof edges[0];
    uint32_t seed = 7;
    for (int i = 0; i < n; i++) {
        uint32_t pair[2];
        for (int h = 0; h < 2; h++) {
            const uint32_t r = conform_random(&seed);
            pair[h] = i < n / 4 ? edges[r % k] : r & 0xffff;
        }
        in[i] = pair[0] | pair[1] << 16;
    }
    for (int i = n / 2; i + 2 < n; i += 3) /* sums that nearly vanish: c close to -a */
        in[i + 2] = (in[i] ^ 0x80008000) + 0x00010001;
}

static int pairs(struct conform *c, const char *wrapper)
{
    enum { N = 32768 };
    static uint32_t in[3 * N], out[N];
    const struct conform_format *f = format_of(wrapper);
    fill_pairs(f, in, 3 * N);
    if (run_each(c, wrapper, N, in, sizeof in, out, sizeof out))
        return 1;
    for (int i = 0; i < 2 * N; i++) {
        double x[3];
        for (int k = 0; k < 3; k++)
            x[k] = conform_value(f, (uint16_t)(in[i / 2 * 3 + k] >> (i % 2 * 16)));
        const double e = exact(wrapper, x[0], x[1], x[2]);
        const uint16_t got = (uint16_t)(out[i / 2] >> (i % 2 * 16)), expected = conform_bits(f, e);
        if (isnan(e) ? !is_nan16(f, got) : got != expected)
            return conform_fail(c, "%a, %a, %a give 0x%04x, expected 0x%04x", x[0], x[1], x[2], got,
                                expected);
    }
    return 0;
}

/* and_or and select_bits. */
static int run_bits(struct conform *c, const char *wrapper)
{
    enum { N = 4096 };
    static uint32_t in[3 * N], out[N], expected[N];
    const bool of = strcmp(wrapper, "select_bits") == 0;
    uint32_t seed = 3;
    for (int i = 0; i < 3 * N; i++)
        in[i] = conform_random(&seed);
    for (int i = 0; i < N; i++) {
        const uint32_t a = in[3 * i], b = in[3 * i + 1], d = in[3 * i + 2];
        expected[i] = of ? (a & d) | (b & ~d) : (a & b) | d;
    }
    return run_each(c, wrapper, N, in, sizeof in, out, sizeof out) ||
           conform_same(c, out, expected, N, 4);
}

static int run_permute(struct conform *c, const char *wrapper)
{
    enum { N = 4096 };
    static uint32_t in[3 * N], out[N], expected[N];
    uint32_t seed = 4;
    for (int i = 0; i < 3 * N; i++)
        in[i] = conform_random(&seed);
    for (int i = 0; i < N; i++) {
        const uint64_t from = (uint64_t)in[3 * i + 1] << 32 | in[3 * i];
        expected[i] = 0;
        for (int k = 0; k < 4; k++) {
            const uint32_t at = in[3 * i + 2] >> 4 * k & 15;
            const uint8_t byte = (uint8_t)(from >> 8 * (at & 7));
            expected[i] |= (at & 8 ? byte >= 128 ? 255u : 0u : byte) << 8 * k;
        }
    }
    return run_each(c, wrapper, N, in, sizeof in, out, sizeof out) ||
           conform_same(c, out, expected, N, 4);
}

/* ex2.approx.ftz.f32: at most 2 units in the last place off ("ex2"); subnormal results are 0. */
static int run_exp2(struct conform *c, const char *wrapper)
{
    enum { N = 65536 };
    static float in[N], out[N];
    uint32_t seed = 5;
    const float edges[] = {-INFINITY, INFINITY, 0,   -0.0f, 1,    -1,
                           127,       -126,     128, -150,  -127, 1e-40f};
    for (int i = 0; i < N; i++)
        in[i] = (float)conform_random_in(&seed, -8388608, 8388608) / (i % 2 ? 65536 : 8388608);
    memcpy(in, edges, sizeof edges);
    if (run_each(c, wrapper, N, in, sizeof in, out, sizeof out))
        return 1;
    for (int i = 0; i < N; i++) {
        const double e = exp2(in[i]);
        const double unit = ldexp(1, (e > 0 && isfinite(e) ? ilogb(e) : 0) - 23);
        const bool good = isinf(e) || e == 0 || e >= 0x1p128 ? (double)out[i] == (float)e
                          : e < 0x1p-126                     ? out[i] == 0
                                                             : fabs(out[i] - e) <= 2 * unit;
        if (!good)
            return conform_fail(c, "2^%a gives %a, expected %a", in[i], out[i], e);
    }
    return 0;
}

/* --- memory --- */

static int run_load_once(struct conform *c, const char *wrapper)
{
    enum { N = 1000 };
    static uint32_t in[4 * N], out[4 * N];
    uint32_t seed = 9;
    for (int i = 0; i < 4 * N; i++)
        in[i] = conform_random(&seed);
    return run_each(c, wrapper, N, in, sizeof in, out, sizeof out) ||
           conform_same(c, out, in, N, 16);
}

static int run_add(struct conform *c, const char *wrapper)
{
    enum { BLOCKS = 24, THREADS = 64, N = BLOCKS * THREADS };
    uint32_t out[N + 2] = {0}, expected[N + 2];
    uint32_t sum = 0;
    for (uint32_t i = 0; i < N; i++)
        sum += expected[i] = i / THREADS * 1000 + i % THREADS;
    expected[N] = BLOCKS;
    expected[N + 1] = sum;
    return conform_run(c, &(struct conform_launch){.kernel = kernel_of(wrapper),
                                                   .blocks = BLOCKS,
                                                   .threads = THREADS,
                                                   .smem = 16,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, N + 2, 4);
}

static int run_release(struct conform *c, const char *wrapper)
{
    (void)wrapper;
    uint32_t out[65] = {0}, expected[65];
    for (uint32_t i = 0; i < 64; i++)
        expected[i] = i % 32 * (i % 32);
    expected[64] = 77;
    return conform_run(c, &(struct conform_launch){.kernel = "conform_release_acquire",
                                                   .blocks = 1,
                                                   .threads = 64,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 65, 4);
}

/* cp.async of N bytes: the number behind the last '_'. */
static int run_cp_async(struct conform *c, const char *wrapper)
{
    enum { THREADS = 128 };
    const int n = atoi(strrchr(wrapper, '_') + 1);
    unsigned char in[16 * THREADS], out[16 * THREADS], expected[16 * THREADS];
    uint32_t seed = 11;
    for (int i = 0; i < n * THREADS; i++) {
        in[i] = (unsigned char)(conform_random(&seed) | 1);
        expected[i] = i % n < i / n % (n + 1) ? in[i] : 0;
    }
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = kernel_of(wrapper),
                                                   .blocks = 1,
                                                   .threads = THREADS,
                                                   .smem = (unsigned)n * THREADS,
                                                   .in = in,
                                                   .in_bytes = (size_t)n * THREADS,
                                                   .out = out,
                                                   .out_bytes = (size_t)n * THREADS}) ||
           conform_same(c, out, expected, (size_t)n * THREADS, 1);
}

static int run_cp_async_wait(struct conform *c, const char *wrapper)
{
    enum { N = 4 * 64 };
    uint32_t in[N], out[N], seed = 13;
    for (int i = 0; i < N; i++)
        in[i] = conform_random(&seed);
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = kernel_of(wrapper),
                                                   .blocks = 1,
                                                   .threads = 64,
                                                   .smem = sizeof in,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, in, N, 4);
}

/* --- barriers --- */

static int run_bar(struct conform *c, const char *wrapper)
{
    enum { TURNS = 9, N = TURNS * 64 };
    (void)wrapper;
    uint32_t in[N], out[N + 1], expected[N + 1], seed = 15;
    for (int i = 0; i < N; i++)
        in[i] = conform_random(&seed);
    for (int i = 0; i < N; i++)
        expected[i] = in[i / 64 * 64 + 63 - i % 64];
    memset(out, 0xee, sizeof out);
    out[N] = 0, expected[N] = TURNS;
    return conform_run(c, &(struct conform_launch){.kernel = "conform_bar",
                                                   .blocks = 1,
                                                   .threads = 128,
                                                   .smem = 256,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out,
                                                   .p = {TURNS}}) ||
           conform_same(c, out, expected, N + 1, 4);
}

static int run_bar_ids(struct conform *c, const char *wrapper)
{
    (void)wrapper;
    uint32_t in[128], out[128], expected[128];
    for (uint32_t i = 0; i < 128; i++)
        in[i] = i * i;
    for (uint32_t i = 0; i < 128; i++)
        expected[i] = in[i / 64 * 64 + 63 - i % 64];
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = "conform_bar_ids",
                                                   .blocks = 1,
                                                   .threads = 128,
                                                   .smem = 512,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 128, 4);
}

const struct conform_case conform_numbers[] = {
    {"f16_to_f32", 80, to_f32},
    {"bf16_to_f32", 80, to_f32},
    {"f32_to_f16", 80, from_f32},
    {"f32_to_bf16", 80, from_f32},
    {"f16x2", 80, pair_from_f32},
    {"bf16x2", 80, pair_from_f32},
    {"fma_f16x2", 80, pairs},
    {"mul_f16x2", 80, pairs},
    {"sub_f16x2", 80, pairs},
    {"fma_bf16x2", 80, pairs},
    {"and_or", 80, run_bits},
    {"select_bits", 80, run_bits},
    {"permute", 80, run_permute},
    {"exp2_fast", 80, run_exp2},
    {"load_once", 80, run_load_once},
    {"add_acq_rel", 80, run_add},
    {"load_acquire, store_release", 80, run_release},
    {"cp_async_4", 80, run_cp_async},
    {"cp_async_8", 80, run_cp_async},
    {"cp_async_16", 80, run_cp_async},
    {"cp_async_wait", 80, run_cp_async_wait},
    {"bar_sync, bar_arrive", 80, run_bar},
    {"bar_sync, two ids at once", 80, run_bar_ids},
    {0},
};
