// ROPE_TABLE: cos and sin of each token's angles. Memory: 8 bytes a pair written; bound by
// arithmetic, about 40 f64 instructions, but tiny: n_tok * n_rot / 2 threads, once a step.
// ROPE: heads turned by it. Memory: x and y once, 8 bytes an element; the table stays in cache.
// TEMPER: a number a token, once a step.
// Grid: a thread for V pairs, or 2 V of the columns that do not turn (V = 4: aligned to 16 bytes).
#include "kernels/rope.cuh"

enum { THREADS = 256, BLOCKS = 4 };

// cos and sin of any angle whose multiple of pi / 2 is below 2^52, off by a few units of 2^-53:
// angle - k pi / 2 is exact with the leading 53 bits of pi / 2, as both are multiples of 2^-53 and
// the difference is below 1; then the next 53 bits.
GR_DEV void cos_sin(double angle, double &c, double &s)
{
    const double pi_half = 0x1.921fb54442d18p+0, rest = 0x1.1a62633145c07p-54;
    double k = rint(angle * 0x1.45f306dc9c883p-1);
    double x = fma(-k, rest, fma(-k, pi_half, angle)), x2 = x * x;
    // Taylor series up to x^16; |x| <= pi / 4, so the next terms are below 2^-54
    double even = 1.0 / 20922789888000.0, odd = -1.0 / 1307674368000.0;
    even = fma(even, x2, -1.0 / 87178291200.0), odd = fma(odd, x2, 1.0 / 6227020800.0);
    even = fma(even, x2, 1.0 / 479001600.0), odd = fma(odd, x2, -1.0 / 39916800.0);
    even = fma(even, x2, -1.0 / 3628800.0), odd = fma(odd, x2, 1.0 / 362880.0);
    even = fma(even, x2, 1.0 / 40320.0), odd = fma(odd, x2, -1.0 / 5040.0);
    even = fma(even, x2, -1.0 / 720.0), odd = fma(odd, x2, 1.0 / 120.0);
    even = fma(even, x2, 1.0 / 24.0), odd = fma(odd, x2, -1.0 / 6.0);
    even = fma(even, x2, -0.5), odd = fma(odd, x2, 1.0) * x;
    even = fma(even, x2, 1.0);
    long long turn = (long long)k & 3;
    c = turn & 1 ? odd : even, s = turn & 1 ? even : odd;
    c = turn == 1 || turn == 2 ? -c : c;
    s = turn & 2 ? -s : s;
}

GR_KERNEL(gr_rope_table, struct gr_args_rope_table, THREADS, BLOCKS)
{
    uint32_t n_pair = (uint32_t)a.cs.cols / 2, i = thread_id(), t = i / n_pair, pair = i % n_pair;
    if (t >= a.cs.rows)
        return;
    int32_t section = gr_ten_is(&a.section) ? row_of<int32_t>(a.section, 0)[pair] : 0;
    int32_t pos = section < a.pos.rows ? row_of<int32_t>(a.pos, section)[t] : 0;
    double c, s;
    cos_sin(pos * row_of<double>(a.freq, 0)[pair], c, s);
    float *cs = row_of<float>(a.cs, t) + 2 * pair;
    cs[0] = (float)((double)a.mag * c);
    cs[1] = (float)((double)a.mag * s);
}

GR_KERNEL(gr_rope_temper, struct gr_args_temper, THREADS, BLOCKS)
{
    uint32_t t = thread_id();
    if (t >= a.y.rows)
        return;
    double n = floor(((double)row_of<int32_t>(a.pos, 0)[t] + a.first) / a.length);
    *row_of<float>(a.y, t) = (float)(1 + (double)a.scale * log(1 + n));
}

GR_KERNEL(gr_rope_heads_1, struct gr_args_rope, THREADS, BLOCKS)
{
    heads<1>(a, thread_id());
}
GR_KERNEL(gr_rope_heads_4, struct gr_args_rope, THREADS, BLOCKS)
{
    heads<4>(a, thread_id());
}
