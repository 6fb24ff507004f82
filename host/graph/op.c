#include "gr/op.h"

#include <math.h>
#include <stddef.h>

#define IN(args, field) {#field, offsetof(struct gr_args_##args, field), GR_ROLE_IN},
#define OUT(args, field) {#field, offsetof(struct gr_args_##args, field), GR_ROLE_OUT},
#define INOUT(args, field) {#field, offsetof(struct gr_args_##args, field), GR_ROLE_INOUT},
#define OP(NAME, args, operands, meaning)                                                          \
    static const struct gr_operand operands_##args[] = {operands{NULL, 0, GR_ROLE_END}};
#include "gr/op.def"
#undef OP

static const struct gr_op_info table[GR_N_OP] = {
#define OP(NAME, args, operands, meaning) {#args, meaning, operands_##args},
#include "gr/op.def"
#undef OP
};

const struct gr_op_info *gr_op_info(enum gr_op op)
{
    return &table[op];
}

float gr_alibi_slope(float max_alibi, int64_t n_head, int64_t h)
{
    int64_t n2 = 1;
    while (n2 * 2 <= n_head)
        n2 *= 2;
    float e = h < n2 ? -max_alibi * (float)(h + 1) / (float)n2
                     : -max_alibi / 2 * (float)(2 * (h - n2) + 1) / (float)n2;
    return exp2f(e);
}
