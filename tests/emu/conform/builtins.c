/* Cases of CUDA C++'s own functions and variables that kernels use, by the words of its programming
 * guide. */
#include "tests/emu/conform/conform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- functions of three words --- */

enum { N = 8192 };

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Words as they come, or floats of many sizes with the edges in front. */
static void fill_words(uint32_t *in, int n, uint32_t *seed)
{
    for (int i = 0; i < n; i++)
        in[i] = conform_random(seed);
}
static void fill_floats(uint32_t *in, int n, double most, uint32_t *seed)
{
    static const float edges[] = {0,    -0.0f, 1,    -1,    0.5f,   1.5f,
                                  2.5f, -2.5f, 3e9f, -3e9f, 1e-40f, 0x1p127f};
    const int n_edge = sizeof edges / sizeof edges[0];
    for (int i = 0; i < n; i++) {
        const double part = (double)conform_random(seed) / 4294967296.0 * 2 - 1;
        const int scale = i % 3 ? 0 : -conform_random_in(seed, 0, 20);
        in[i] = bits_of((float)ldexp(part * most, scale));
    }
    for (int i = 0; i < 3 * n_edge * n_edge; i += 3) { /* of two, every pair */
        in[i] = bits_of(edges[i / 3 % n_edge]);
        in[i + 1] = bits_of(edges[i / 3 / n_edge]);
    }
}

static uint32_t byte_perm(uint32_t x, uint32_t y, uint32_t s)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    uint32_t r = 0;
    for (int i = 0; i < 4;
         i++) /* three bits of each nibble: no sign, as prmt has with the fourth */
        r |= (uint32_t)(both >> (s >> 4 * i & 7) * 8 & 255) << 8 * i;
    return r;
}

static uint32_t dot(uint32_t x, uint32_t y, uint32_t z, bool is_signed)
{
    for (int i = 0; i < 4; i++) {
        const uint8_t p = (uint8_t)(x >> 8 * i), q = (uint8_t)(y >> 8 * i);
        z += is_signed ? (uint32_t)((int8_t)p * (int8_t)q) : (uint32_t)p * q;
    }
    return z;
}

/* The nearest integer (ties to even), or towards 0, of what fits; the nearest end of the range of
 * what does not; NaN: 0. */
static int64_t whole(double v, bool nearest, double lo, double hi)
{
    v = isnan(v) ? 0 : nearest ? rint(v) : trunc(v);
    return (int64_t)(v < lo ? lo : v > hi ? hi : v);
}

static int first_bit(uint64_t v) /* 1 is the lowest; 0: none */
{
    for (int i = 0; i < 64; i++)
        if (v >> i & 1)
            return i + 1;
    return 0;
}
static int leading(uint64_t v, int bits)
{
    int n = 0;
    while (n < bits && !(v >> (bits - 1 - n) & 1))
        n++;
    return n;
}

static uint32_t of_words(const char *name, uint32_t x, uint32_t y, uint32_t z)
{
    const uint64_t all = (uint64_t)(x & y & z);
    uint32_t r = 0;
#define IS(text) (strcmp(name, text) == 0)
    if (IS("byte_perm"))
        return byte_perm(x, y, z);
    if (IS("dp4a"))
        return dot(x, y, z, true);
    if (IS("dp4a_unsigned"))
        return dot(x, y, z, false);
    if (IS("funnelshift_l")) /* (y : x) << (z mod 32), the high word */
        return (uint32_t)((((uint64_t)y << 32 | x) << (z & 31)) >> 32);
    if (IS("funnelshift_r"))
        return (uint32_t)(((uint64_t)y << 32 | x) >> (z & 31));
    if (IS("mulhi"))
        return (uint32_t)(((int64_t)(int32_t)x * (int32_t)y) >> 32);
    if (IS("umulhi"))
        return (uint32_t)(((uint64_t)x * y) >> 32);
    if (IS("clz"))
        return (uint32_t)leading(all, 32);
    if (IS("ffs"))
        return (uint32_t)first_bit(all);
    if (IS("clzll"))
        return (uint32_t)leading(all << 32 | (y & z), 64);
    if (IS("ffsll"))
        return (uint32_t)first_bit((uint64_t)y << 32 | all);
    if (IS("int2float_rn"))
        return bits_of((float)(int32_t)x);
    if (IS("uint2float_rn"))
        return bits_of((float)x);
    for (int i = 0; i < 32; i++)
        r = IS("brev") ? r | (x >> i & 1) << (31 - i) : r + ((x & y) >> i & 1); /* brev, popc */
    return r;
}

static int run_words(struct conform *c, const char *wrapper)
{
    static uint32_t in[3 * N], out[N], expected[N];
    uint32_t seed = 61;
    char kernel[64];
    fill_words(in, 3 * N, &seed);
    for (int i = 0; i < N; i++)
        expected[i] = of_words(wrapper, in[3 * i], in[3 * i + 1], in[3 * i + 2]);
    snprintf(kernel, sizeof kernel, "conform_%s", wrapper);
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = kernel,
                                                   .blocks = N / 256,
                                                   .threads = 256,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out,
                                                   .p = {N}}) ||
           conform_same(c, out, expected, N, 4);
}

/* --- floats: exact ones, and functions with the error that the guide states ("Mathematical
 * Functions", single precision) --- */

struct function {
    const char *name;
    double most; /* of the arguments */
    int ulp;     /* 0: the nearest float; -1: an integer */
};
static const struct function functions[] = {
    {"fadd_rn", 1e6, 0},
    {"fmul_rn", 1e6, 0},
    {"fmaf", 1e6, 0},
    {"fmaxf", 1e6, 0},
    {"fminf", 1e6, 0},
    {"sqrtf", 1e6, 0},
    {"divide", 1e6, 0},
    {"rintf", 1e4, 0},
    {"expf", 80, 2},
    {"exp2f", 120, 2},
    {"tanhf", 5, 2},
    {"log1pf", 100, 1},
    {"erfcf", 5, 4},
    {"rsqrtf", 1e6, 2},
    {"float2int_rn", 3e9, -1},
    {"float2int_rz", 3e9, -1},
    {"float2uint_rn", 5e9, -1},
};

static double of_floats(const char *name, double x, double y, double z)
{
    if (IS("fadd_rn"))
        return x + y;
    if (IS("fmul_rn"))
        return x * y;
    if (IS("fmaf"))
        return fmaf((float)x, (float)y, (float)z);
    if (IS("fmaxf"))
        return fmax(x, y);
    if (IS("fminf"))
        return fmin(x, y);
    if (IS("sqrtf"))
        return sqrt(x);
    if (IS("divide"))
        return x / y;
    if (IS("rintf"))
        return rint(x);
    if (IS("expf"))
        return exp(x);
    if (IS("exp2f"))
        return exp2(x);
    if (IS("tanhf"))
        return tanh(x);
    if (IS("log1pf"))
        return log1p(x);
    if (IS("erfcf"))
        return erfc(x);
    if (IS("rsqrtf"))
        return 1 / sqrt(x);
    if (IS("float2uint_rn"))
        return (double)whole(x, true, 0, 4294967295.0);
    return (double)whole(x, IS("float2int_rn"), -2147483648.0, 2147483647.0);
}

/* True when a result is as close as required. Zeros of either sign are equal where the greater or
 * smaller of two is taken. */
static bool near(const struct function *f, uint32_t got, double expected)
{
    if (f->ulp < 0)
        return got == (uint32_t)(int64_t)expected;
    const float e = (float)expected, g = float_of(got);
    if (isnan(e) || isnan(g))
        return isnan(e) && isnan(g);
    if (f->ulp == 0)
        return got == bits_of(e) || (strncmp(f->name, "fm", 2) == 0 && e == 0 && g == 0);
    if (isinf(e) || isinf(g) || e == 0)
        return e == g;
    const double least = fmax(fabs(expected), 0x1p-126);
    return fabs(g - expected) <= (f->ulp + 0.5) * ldexp(1, ilogb(least) - 23);
}

static int run_floats(struct conform *c, const char *wrapper)
{
    static uint32_t in[3 * N], out[N];
    const struct function *f = functions;
    uint32_t seed = 67;
    char kernel[64];
    while (strcmp(f->name, wrapper) != 0)
        f++;
    fill_floats(in, 3 * N, f->most, &seed);
    snprintf(kernel, sizeof kernel, "conform_%s", wrapper);
    memset(out, 0xee, sizeof out);
    if (conform_run(c, &(struct conform_launch){.kernel = kernel,
                                                .blocks = N / 256,
                                                .threads = 256,
                                                .in = in,
                                                .in_bytes = sizeof in,
                                                .out = out,
                                                .out_bytes = sizeof out,
                                                .p = {N}}))
        return 1;
    for (int i = 0; i < N; i++) {
        const float x = float_of(in[3 * i]), y = float_of(in[3 * i + 1]),
                    z = float_of(in[3 * i + 2]);
        const double e = of_floats(wrapper, x, y, z);
        if (!near(f, out[i], e))
            return conform_fail(c, "of %a, %a, %a: 0x%08x, expected %a", (double)x, (double)y,
                                (double)z, out[i], e);
    }
    return 0;
}

/* --- lanes --- */

/* The lane that `lane` reads: "Warp Shuffle Functions". Beyond its segment a lane reads itself. */
static int source(int way, int lane, int arg, int width)
{
    const int first = lane / width * width;
    switch (way) {
    case 0:
        return first + arg % width;
    case 1:
        return lane - arg < first ? lane : lane - arg;
    case 2:
        return lane + arg >= first + width ? lane : lane + arg;
    default: /* a lane of an earlier segment may be read, not one of a later */
        return (lane ^ arg) >= first + width ? lane : lane ^ arg;
    }
}

static int run_shuffle(struct conform *c, const char *wrapper)
{
    enum { WAYS = 4 * 4 + 2 };
    uint32_t in[64], out[WAYS][64], expected[WAYS][64], seed = 71;
    (void)wrapper;
    fill_words(in, 64, &seed);
    for (int i = 0; i < 64; i++) {
        const int lane = i % 32, warp = i - lane;
        for (int n = 0; n < 16; n++) {
            const int args[] = {(int)(in[i] % 64), 3, 5, 6};
            expected[n][i] = in[warp + source(n % 4, lane, args[n % 4], 32 >> n / 4)];
        }
        expected[16][i] = (uint32_t)(i ^ 1);
        expected[17][i] = in[warp + (lane ^ (lane < 16 ? 9 : 3))];
    }
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = "conform_shuffle",
                                                   .blocks = 1,
                                                   .threads = 64,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, WAYS * 64, 4);
}

struct votes {
    uint32_t odd, any, all, add, least, exclusive, twos, fours, same[5];
    int32_t most;
};
static struct votes count_votes(const uint32_t *v)
{
    struct votes r = {.all = 1, .least = ~0u, .most = INT32_MIN};
    for (int i = 0; i < 32; i++) {
        const uint32_t bit = 1u << i;
        r.odd |= v[i] & 1 ? bit : 0;
        r.any |= v[i] % 61 == 0;
        r.all &= v[i] % 61 != 0;
        r.add += v[i];
        r.least = v[i] < r.least ? v[i] : r.least;
        r.most = (int32_t)v[i] > r.most ? (int32_t)v[i] : r.most;
        r.exclusive ^= v[i];
        r.twos |= (v[i] & 3) == 3 ? bit : 0;
        r.fours |= (v[i] & 5) == 4 ? bit : 0;
        r.same[v[i] % 5] |= bit;
    }
    return r;
}

static int run_vote(struct conform *c, const char *wrapper)
{
    enum { WAYS = 12 };
    uint32_t in[64], out[WAYS][64], expected[WAYS][64], seed = 73, n_odd = 0;
    (void)wrapper;
    fill_words(in, 64, &seed);
    in[40] = 61 * 1000;
    in[63] = 7007;
    for (int i = 0; i < 64; i++)
        n_odd += in[i] & 1;
    for (int i = 0; i < 64; i++) {
        const struct votes w = count_votes(in + i / 32 * 32);
        const uint32_t e[WAYS] = {w.odd,
                                  w.any,
                                  w.all,
                                  w.same[in[i] % 5],
                                  w.add,
                                  (uint32_t)w.most,
                                  w.least,
                                  w.exclusive,
                                  in[i] & 1 ? w.twos : w.fours,
                                  n_odd,
                                  1,
                                  1};
        for (int n = 0; n < WAYS; n++)
            expected[n][i] = e[n];
    }
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = "conform_vote",
                                                   .blocks = 1,
                                                   .threads = 64,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, WAYS * 64, 4);
}

static int run_atomics(struct conform *c, const char *wrapper)
{
    enum { BLOCKS = 5, THREADS = 128, ALL = BLOCKS * THREADS };
    uint32_t in[ALL], seed = 79;
    uint32_t out[16] __attribute__((aligned(8))) = {0, 0x80000000, ~0u, ~0u};
    uint32_t expected[16] = {0, 0x80000000, ~0u, ~0u};
    uint64_t sum = 0;
    (void)wrapper;
    fill_words(in, ALL, &seed);
    for (int i = 0; i < ALL; i++) {
        const uint32_t v = in[i];
        expected[0] += v;
        expected[1] = (int32_t)v > (int32_t)expected[1] ? v : expected[1];
        expected[2] = v < expected[2] ? v : expected[2];
        expected[3] &= v | 0xff;
        expected[4] |= v & 0xff00ff;
        expected[5] ^= v;
        expected[6] -= v;
        sum += (uint64_t)v << 8;
    }
    expected[7] = ALL;
    memcpy(expected + 8, &sum, sizeof sum);
    for (int i = 10; i < 14; i++)
        expected[i] = ALL / 4;
    expected[14] = 2 * ALL;
    expected[15] = 5;
    return conform_run(c, &(struct conform_launch){.kernel = "conform_atomics",
                                                   .blocks = BLOCKS,
                                                   .threads = THREADS,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 16, 4);
}

const struct conform_case conform_builtins[] = {
    {"byte_perm", 80, run_words},     {"dp4a", 80, run_words},
    {"dp4a_unsigned", 80, run_words}, {"funnelshift_l", 80, run_words},
    {"funnelshift_r", 80, run_words}, {"mulhi", 80, run_words},
    {"umulhi", 80, run_words},        {"brev", 80, run_words},
    {"popc", 80, run_words},          {"clz", 80, run_words},
    {"ffs", 80, run_words},           {"clzll", 80, run_words},
    {"ffsll", 80, run_words},         {"int2float_rn", 80, run_words},
    {"uint2float_rn", 80, run_words}, {"float2int_rn", 80, run_floats},
    {"float2int_rz", 80, run_floats}, {"float2uint_rn", 80, run_floats},
    {"fadd_rn", 80, run_floats},      {"fmul_rn", 80, run_floats},
    {"fmaf", 80, run_floats},         {"fmaxf", 80, run_floats},
    {"fminf", 80, run_floats},        {"sqrtf", 80, run_floats},
    {"divide", 80, run_floats},       {"rintf", 80, run_floats},
    {"expf", 80, run_floats},         {"exp2f", 80, run_floats},
    {"tanhf", 80, run_floats},        {"log1pf", 80, run_floats},
    {"erfcf", 80, run_floats},        {"rsqrtf", 80, run_floats},
    {"shuffles", 80, run_shuffle},    {"votes, reductions", 80, run_vote},
    {"atomics", 80, run_atomics},     {0},
};
