/* Rows of any storage type, from and to f32. */
#include "cpu/ref/ref.h"
#include "quant/planes.h"
#include "quant/quant.h"

void gr_ref_load(const struct gr_ten *t, int64_t m, int64_t r, int64_t first, int64_t n, float *dst)
{
    const char *row = gr_ten_row(t, m, r);
    if (t->planes) {
        gr_planes_load(t->dtype, t->cols, row, first, n, dst);
        return;
    }
    gr_quant_find(t->dtype)->dequantize(row + gr_row_bytes(t->dtype, (uint64_t)first), dst,
                                        (size_t)n);
}

double gr_ref_dot(const float *x, const float *w, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)w[i];
    return sum;
}

void gr_ref_store(const struct gr_ten *t, int64_t r, const float *src)
{
    if (t->planes)
        gr_planes_store(t->dtype, t->cols, src, gr_ten_row(t, 0, r));
    else
        gr_quant_find(t->dtype)->quantize(src, gr_ten_row(t, 0, r), (size_t)t->cols, NULL);
}
