/* The last step of a product, the same for every engine: scale, bias and residual of its sums. */
#include "cpu/fast/matmul.h"

void FN(mm_finish)(const struct mm *m, const struct mm_group *g, int64_t i, int64_t lo, int64_t n,
                   const float *sum)
{
    int64_t entry = mm_entry(g, i);
    const float *b = m->b && gr_ten_is(m->b) ? gr_cpu_f32(m->b, g->expert) + lo : NULL;
    const float *res = m->res && gr_ten_is(m->res) ? gr_cpu_f32(m->res, entry) + lo : NULL;
    float *y = gr_cpu_f32(m->y, entry) + g->y_at + lo;
    float scale = m->scale * (m->s && gr_ten_is(m->s) ? gr_cpu_f32(m->s, 0)[g->expert] : 1);
    for (int64_t o = 0; o < n; o += VL) {
        int64_t k = GR_MIN(VL, n - o);
        vf v = vf_load_n(sum + o, k) * vf_set(scale);
        if (b)
            v = v + vf_load_n(b + o, k);
        if (res)
            v = v + vf_load_n(res + o, k);
        vf_store_n(y + o, v, k);
    }
}
