/* ROPE, KV_STORE and KV_SHIFT. Once per token a row of cos and sin pairs is expanded into two rows
 * in column order: y[i] = x[i] * cosines[i] + partner(x)[i] * sines[i]; `sines` includes the sign
 * of -b sin. */
#include <string.h>

#include "cpu/fast/fast.h"
#include "quant/planes.h"
#include "quant/quant.h"

/* cos and sin of one token for the first n_rot columns of a head, [n_rot] each. */
struct turn {
    float *cosines, *sines;
    int64_t n_rot, d;
    int kind;
};

static size_t turn_bytes(const struct gr_ten *cs)
{
    return (size_t)GR_PAD(cs->cols, VL) * 2 * sizeof(float);
}

static struct turn turn_of(void *memory, const struct gr_ten *cs, int64_t d, int kind)
{
    float *p = memory;
    return (struct turn){p, p + GR_PAD(cs->cols, VL), cs->cols, d, kind};
}

static void turn_set(const struct turn *u, const float *cs)
{
    int64_t half = u->n_rot / 2, step = u->kind == GR_ROPE_NEOX ? 1 : 2,
            other = u->kind == GR_ROPE_NEOX ? half : 1;
    for (int64_t i = 0; i < half; i++) {
        int64_t p = i * step, q = p + other;
        u->cosines[p] = u->cosines[q] = cs[2 * i];
        u->sines[p] = -cs[2 * i + 1];
        u->sines[q] = cs[2 * i + 1];
    }
}

/* Rotates a head; y may be x: both partners are read before either is written. */
static void turn_head(const struct turn *u, const float *x, float *y)
{
    int64_t half = u->n_rot / 2;
    for (int64_t i = 0; u->kind == GR_ROPE_NEOX && i < half; i += VL) {
        int64_t k = GR_MIN(VL, half - i);
        vf a = vf_load_n(x + i, k), b = vf_load_n(x + half + i, k);
        vf c = vf_load_n(u->cosines + i, k), s = vf_load_n(u->sines + half + i, k);
        vf_store_n(y + i, a * c - b * s, k);
        vf_store_n(y + half + i, a * s + b * c, k);
    }
    for (int64_t i = 0; u->kind != GR_ROPE_NEOX && i < u->n_rot; i += VL) {
        int64_t k = GR_MIN(VL, u->n_rot - i);
        vf a = vf_load_n(x + i, k);
        vf_store_n(y + i,
                   a * vf_load_n(u->cosines + i, k) + vf_swap(a) * vf_load_n(u->sines + i, k), k);
    }
    if (y != x)
        memcpy(y + u->n_rot, x + u->n_rot, (size_t)(u->d - u->n_rot) * sizeof *y);
}

static void turn_row(const struct turn *u, const float *x, int64_t n, float *y)
{
    for (int64_t h = 0; h < n; h += u->d)
        turn_head(u, x + h, y + h);
}

static void rope(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_rope *a = &node->a.rope;
    struct turn u = turn_of(w->local, &a->cs, a->d_head, a->kind);
    struct gr_cpu_share s = gr_cpu_share(a->x.rows, 1, w);
    for (int64_t t = s.lo; t < s.hi; t++) {
        turn_set(&u, gr_cpu_f32(&a->cs, t));
        turn_row(&u, gr_cpu_f32(&a->x, t), a->x.cols, gr_cpu_f32(&a->y, t));
    }
}

static struct gr_cpu_need rope_need(const struct gr_node *node)
{
    return (struct gr_cpu_need){0, turn_bytes(&node->a.rope.cs)};
}

const struct gr_cpu_impl FN(rope) = {rope, rope_need, NULL};

/* ---- caches ---- */

static void store_row(const struct gr_ten *cache, int64_t r, const float *src)
{
    void *row = gr_ten_row(cache, 0, r);
    if (cache->planes) {
        gr_planes_store(cache->dtype, cache->cols, src, row);
        return;
    }
    int64_t n = cache->dtype == GR_F16 ? cache->cols / VL * VL : 0;
    for (int64_t i = 0; i < n; i += VL)
        vf_store_half((gr_half *)row + i, vf_load(src + i));
    if (n < cache->cols)
        gr_quant_find(cache->dtype)
            ->quantize(src + n, (char *)row + n * (int64_t)sizeof(gr_half),
                       (size_t)(cache->cols - n), NULL);
}

static void load_row(const struct gr_ten *cache, int64_t r, float *dst)
{
    const void *row = gr_ten_row(cache, 0, r);
    if (cache->planes)
        gr_planes_load(cache->dtype, cache->cols, row, 0, cache->cols, dst);
    else
        FN(load_row)(cache->dtype, row, cache->cols, dst);
}

static void kv_store(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_kv_store *a = &node->a.kv_store;
    const int32_t *cell = gr_cpu_i32(&a->cells, 0);
    struct turn u = turn_of(w->local, &a->cs, a->d_head_k, a->kind);
    float *roped = (float *)(void *)((char *)w->local + turn_bytes(&a->cs));
    struct gr_cpu_share s = gr_cpu_share(a->k.rows, 1, w);
    for (int64_t t = s.lo; t < s.hi; t++) {
        const float *k = gr_cpu_f32(&a->k, t);
        if (a->kind != GR_ROPE_NONE) {
            turn_set(&u, gr_cpu_f32(&a->cs, t));
            turn_row(&u, k, a->k.cols, roped);
            k = roped;
        }
        store_row(&a->k_cache, cell[t], k);
        if (gr_ten_is(&a->v))
            store_row(&a->v_cache, cell[t], gr_cpu_f32(&a->v, t));
    }
}

static struct gr_cpu_need kv_store_need(const struct gr_node *node)
{
    const struct gr_args_kv_store *a = &node->a.kv_store;
    return (struct gr_cpu_need){0, turn_bytes(&a->cs) + (size_t)a->k.cols * sizeof(float)};
}

const struct gr_cpu_impl FN(kv_store) = {kv_store, kv_store_need, NULL};

static void kv_shift(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_kv_shift *a = &node->a.kv_shift;
    const int32_t *delta = gr_cpu_i32(&a->delta, 0);
    struct turn u = turn_of(w->local, &a->cs, a->d_head, a->kind);
    float *k = (float *)(void *)((char *)w->local + turn_bytes(&a->cs));
    struct gr_cpu_share s = gr_cpu_share(a->delta.cols, 1, w);
    for (int64_t j = s.lo; j < s.hi; j++) {
        if (delta[j] == 0)
            continue;
        load_row(&a->k_cache, j, k);
        turn_set(&u, gr_cpu_f32(&a->cs, j));
        turn_row(&u, k, a->k_cache.cols, k);
        store_row(&a->k_cache, j, k);
    }
}

static struct gr_cpu_need kv_shift_need(const struct gr_node *node)
{
    const struct gr_args_kv_shift *a = &node->a.kv_shift;
    return (struct gr_cpu_need){0, turn_bytes(&a->cs) +
                                       (size_t)GR_PAD(a->k_cache.cols, VL) * sizeof(float)};
}

const struct gr_cpu_impl FN(kv_shift) = {kv_shift, kv_shift_need, NULL};
