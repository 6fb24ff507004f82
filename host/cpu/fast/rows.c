#include "cpu/fast/rows.h"

#include "cpu/fast/fast.h"

void FN(load_row)(uint32_t dtype, const void *src, int64_t n, float *dst)
{
    row_to_f32(dtype, src, NULL, n, dst);
}
