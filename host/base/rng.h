/* A small seeded generator (PCG32, pcg-random.org), equal on every machine. Not for secrets. */
#ifndef GR_BASE_RNG_H
#define GR_BASE_RNG_H

#include <stdint.h>

struct gr_rng {
    uint64_t state, inc;
};

static inline uint32_t gr_rng_u32(struct gr_rng *r)
{
    uint64_t s = r->state;
    r->state = s * 6364136223846793005ull + r->inc;
    uint32_t x = (uint32_t)(((s >> 18) ^ s) >> 27), rot = (uint32_t)(s >> 59);
    return x >> rot | x << (-rot & 31);
}

static inline struct gr_rng gr_rng_new(uint64_t seed)
{
    struct gr_rng r = {0, (seed << 1) | 1};
    (void)gr_rng_u32(&r);
    r.state += seed ^ 0x853c49e6748fea9bull;
    (void)gr_rng_u32(&r);
    return r;
}

/* Uniform in [0, 1), 53 bits. */
static inline double gr_rng_double(struct gr_rng *r)
{
    uint64_t hi = gr_rng_u32(r);
    return (double)((hi << 32 | gr_rng_u32(r)) >> 11) * 0x1p-53;
}

/* Uniform in [0, n), n > 0; the bias is below n / 2^32. */
static inline uint32_t gr_rng_below(struct gr_rng *r, uint32_t n)
{
    return (uint32_t)((uint64_t)gr_rng_u32(r) * n >> 32);
}

/* Normal, mean 0, variance 1 (sum of twelve uniforms: tails end at 6). */
static inline float gr_rng_normal(struct gr_rng *r)
{
    double s = -6;
    for (int i = 0; i < 12; i++)
        s += gr_rng_double(r);
    return (float)s;
}

#endif
