/* Cases of which some fail: `check` looks at what becomes of the others. */
#include "ops/ops.h"

#include <criterion/criterion.h>

/* y = -x; `off` is added to what is expected. */
static void negate(const char *label, double off)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_ACT, 1, "%s", label);
    struct gr_args_act *n = &c.node.a.act;
    *n = (struct gr_args_act){
        .x = ops_random(&c, GR_F32, 1, 2, 8, OPS_NORMAL), .a = -1, .kind = GR_LINEAR};
    n->y = ops_new(&c, GR_F32, 1, 2, 8);
    const double *x = ops_values(&c, &n->x);
    struct ops_out *o = ops_expect(&c, &n->y);
    for (int64_t i = 0; i < ops_count(&n->y); i++)
        o->want[i] = -x[i] + off;
    ops_round_to_f32(o);
    ops_check(&c);
    ops_case_fini(&c);
}

Test(planted, first)
{
    negate("right", 0);
    negate("wrong", 1);
    negate("right", 0);
    negate("wrong", 2);
    negate("right", 0);
}

Test(planted, second)
{
    negate("right", 0);
    negate("right", 0);
}
