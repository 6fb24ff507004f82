/* KV_STORE, KV_SHIFT, KV_COPY: rows of the cache written, rotated to another position, copied. */
#include <string.h>

#include "cpu/ref/ref.h"

/* The heads of a row rotated by cs into dst, which may be src. */
static void rotate_row(const float *src, const float *cs, int64_t n_rot, int64_t n, int64_t d,
                       int kind, float *dst)
{
    for (int64_t h = 0; h < n; h += d)
        gr_ref_rotate(src + h, cs, n_rot, d, kind, dst + h);
}

static void kv_store(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_kv_store *a = &node->a.kv_store;
    const int32_t *cell = gr_cpu_i32(&a->cells, 0);
    float *roped = w->local;
    struct gr_cpu_share s = gr_cpu_share(a->k.rows, 1, w);
    for (int64_t t = s.lo; t < s.hi; t++) {
        const float *k = gr_cpu_f32(&a->k, t);
        if (a->kind != GR_ROPE_NONE) {
            rotate_row(k, gr_cpu_f32(&a->cs, t), a->cs.cols, a->k.cols, a->d_head_k, a->kind,
                       roped);
            k = roped;
        }
        gr_ref_store(&a->k_cache, cell[t], k);
        if (gr_ten_is(&a->v))
            gr_ref_store(&a->v_cache, cell[t], gr_cpu_f32(&a->v, t));
    }
}

static struct gr_cpu_need kv_store_need(const struct gr_node *node)
{
    return (struct gr_cpu_need){0, (size_t)node->a.kv_store.k.cols * sizeof(float)};
}

const struct gr_cpu_impl gr_ref_kv_store = {kv_store, kv_store_need, NULL};

static void kv_shift(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_kv_shift *a = &node->a.kv_shift;
    const int32_t *delta = gr_cpu_i32(&a->delta, 0);
    int64_t n = a->k_cache.cols;
    float *k = w->local;
    struct gr_cpu_share s = gr_cpu_share(a->delta.cols, 1, w);
    for (int64_t j = s.lo; j < s.hi; j++) {
        if (delta[j] == 0)
            continue;
        gr_ref_load(&a->k_cache, 0, j, 0, n, k);
        rotate_row(k, gr_cpu_f32(&a->cs, j), a->cs.cols, n, a->d_head, a->kind, k);
        gr_ref_store(&a->k_cache, j, k);
    }
}

static struct gr_cpu_need kv_shift_need(const struct gr_node *node)
{
    return (struct gr_cpu_need){0, (size_t)node->a.kv_shift.k_cache.cols * sizeof(float)};
}

const struct gr_cpu_impl gr_ref_kv_shift = {kv_shift, kv_shift_need, NULL};

static void kv_copy(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_kv_copy *a = &node->a.kv_copy;
    const int32_t *src = gr_cpu_i32(&a->src, 0), *dst = gr_cpu_i32(&a->dst, 0);
    size_t bytes = gr_row_bytes(a->cache.dtype, (uint64_t)a->cache.cols);
    struct gr_cpu_share s = gr_cpu_share(a->src.cols, 1, w);
    for (int64_t i = s.lo; i < s.hi; i++)
        memcpy(gr_ten_row(&a->cache, 0, dst[i]), gr_ten_row(&a->cache, 0, src[i]), bytes);
}

const struct gr_cpu_impl gr_ref_kv_copy = {kv_copy, NULL, NULL};
