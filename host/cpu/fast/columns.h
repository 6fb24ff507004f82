/* Columns of states [d_k, d_v] as DELTA_RULE and LINEAR_ATTN divide them among threads: a thread
 * takes VL columns of a head through all tokens of a sequence, in a tile of its own. Lanes are
 * columns, which are independent. */
#ifndef GR_CPU_FAST_COLUMNS_H
#define GR_CPU_FAST_COLUMNS_H

#include "cpu/fast/fast.h"

/* The work to divide: all columns of all heads of all sequences. */
struct columns_of {
    const struct gr_ten *state, *src, *dst;
    int64_t n_tok, n_head, d_k, d_v;
};

/* Columns [first, first + n) of head h. */
struct columns {
    struct gr_cpu_seq seq;
    int64_t h, first, n;
};

GR_INLINE int64_t columns_per_head(const struct columns_of *u)
{
    return (u->d_v + VL - 1) / VL;
}

GR_INLINE struct gr_cpu_share columns_share(const struct columns_of *u,
                                            const struct gr_cpu_work *work)
{
    return gr_cpu_share(u->src->cols * u->n_head * columns_per_head(u), 1, work);
}

GR_INLINE struct columns columns_at(const struct columns_of *u, int64_t i)
{
    int64_t head = i / columns_per_head(u), first = i % columns_per_head(u) * VL;
    return (struct columns){.seq = gr_cpu_seq(u->state, u->src, u->dst, u->n_tok, head / u->n_head),
                            .h = head % u->n_head,
                            .first = first,
                            .n = GR_MIN(VL, u->d_v - first)};
}

/* Loads columns of the state to s [d_k, VL]. */
GR_INLINE void columns_load(const struct columns_of *u, const struct columns *c, float *s)
{
    int64_t at = c->h * u->d_k * u->d_v + c->first;
    for (int64_t i = 0; i < u->d_k; i++, at += u->d_v)
        vf_store(s + i * VL, c->seq.from ? vf_load_n(c->seq.from + at, c->n) : vf_set(0));
}

GR_INLINE void columns_store(const struct columns_of *u, const struct columns *c, const float *s)
{
    int64_t at = c->h * u->d_k * u->d_v + c->first;
    for (int64_t i = 0; i < u->d_k; i++, at += u->d_v)
        vf_store_n(c->seq.to + at, vf_load(s + i * VL), c->n);
}

/* Returns sum x^2 in f64, by eight partial sums so that the compiler can vectorise. */
GR_INLINE double squares(const float *x, int64_t n)
{
    double part[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            part[k] += (double)x[i + k] * (double)x[i + k];
    for (int k = 0; i + k < n; k++)
        part[k] += (double)x[i + k] * (double)x[i + k];
    return (part[0] + part[1] + part[2] + part[3]) + (part[4] + part[5] + part[6] + part[7]);
}

#endif
