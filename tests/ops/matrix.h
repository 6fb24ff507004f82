/* Operands of a node that are matrices, which a device may keep in a layout of its own. */
#ifndef TESTS_OPS_MATRIX_H
#define TESTS_OPS_MATRIX_H

#include <stdbool.h>
#include <string.h>

#include "gr/op.h"

static inline bool ops_is_matrix(enum gr_op op, const struct gr_operand *o)
{
    bool product = op == GR_OP_MATMUL || op == GR_OP_MATMUL_ID || op == GR_OP_HEAD_MATMUL;
    return (product && strcmp(o->name, "w") == 0) ||
           (op == GR_OP_EMBED && strstr(o->name, "table") != NULL);
}

#endif
