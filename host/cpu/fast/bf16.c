/* The bf16 engine: pairs of columns multiplied by vdpbf16ps. */
#include "cpu/fast/matmul.h"

bool FN(mm_has_bf16)(void)
{
    return false;
}

const struct mm_engine FN(mm_bf16) = {.convert = NULL};
