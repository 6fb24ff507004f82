/* Names of the kernels of matrix products. */
#ifndef GR_CUDA_MATMUL_NAME_H
#define GR_CUDA_MATMUL_NAME_H

#include <stdio.h>

#include "gr/pack.h"
#include "gr/tensor.h"

struct gr_matmul_name {
    char text[48];
};

/* Returns "gr_matmul_<form>_<type>"; types whose blocks are kept whole share a kernel for each
 * form, "gr_matmul_any_<form>" of kernels/matmul_any.cu. */
static inline struct gr_matmul_name gr_matmul_name(const char *form, const struct gr_ten *w)
{
    struct gr_matmul_name n;
    if (gr_pack_is_whole(w->dtype))
        snprintf(n.text, sizeof n.text, "gr_matmul_any_%s", form);
    else
        snprintf(n.text, sizeof n.text, "gr_matmul_%s_%s", form, gr_dtype_name(w->dtype));
    return n;
}

#endif
