/* Launchers that ask for what launch.h offers, in the place of the library's own. */
#include "launchers.h"

#include "cuda/grid.h"

int launchers_ask;
size_t launchers_scratch;
uint32_t launchers_smem, launchers_most;
int32_t launchers_resident;

#define REFUSE(args)                                                                               \
    int gr_cuda_##args(struct gr_launcher *l, const struct gr_args_##args *a)                      \
    {                                                                                              \
        (void)l, (void)a;                                                                          \
        return gr_fail(GR_E_UNSUPPORTED, #args ": not in this test");                              \
    }
REFUSE(embed)
REFUSE(norm)
REFUSE(matmul_id)
REFUSE(head_matmul)
REFUSE(rope_table)
REFUSE(temper)
REFUSE(rope)
REFUSE(kv_store)
REFUSE(attn)
REFUSE(route)
REFUSE(expert_sum)
REFUSE(sum)
REFUSE(pool)
REFUSE(xielu)
REFUSE(kv_shift)
REFUSE(kv_copy)
REFUSE(ssm_scan)
REFUSE(delta_rule)
REFUSE(linear_attn)
REFUSE(token_shift)
REFUSE(blend)

/* y = x + add, rows without gaps. */
static int add(struct gr_launcher *l, const struct gr_ten *x, struct gr_ten y, float b)
{
    struct gr_args_act a = {.x = *x, .y = y, .a = 1, .b = b, .kind = GR_LINEAR};
    return gr_launch_items(l, "gr_elementwise_act_1", y.rows * y.cols, 256, 256, 0, &a, sizeof a);
}

static struct gr_ten at(const struct gr_ten *shape, void *data)
{
    struct gr_ten t = *shape;
    t.data = data;
    t.row_bytes = t.cols * 4;
    return t;
}

/* y = ((x + 1) + 1) - 1, the steps between in two pieces of scratch memory. */
int gr_cuda_act(struct gr_launcher *l, const struct gr_args_act *a)
{
    size_t bytes = (size_t)(a->y.rows * a->y.cols) * 4;
    struct gr_ten s = at(&a->y, gr_launch_scratch(l, bytes));
    struct gr_ten t = at(&a->y, gr_launch_scratch(l, bytes));
    int rc = add(l, &a->x, s, 1);
    if (!rc)
        rc = add(l, &s, t, 1);
    return rc ? rc : add(l, &t, a->y, -1);
}

/* y = (a + 1) * b, with a + 1 derived. */
int gr_cuda_glu(struct gr_launcher *l, const struct gr_args_glu *a)
{
    bool fresh;
    size_t bytes = (size_t)(a->y.rows * a->y.cols) * 4;
    struct gr_ten d = at(&a->y, gr_launch_derived(l, &a->a, "test", bytes, false, &fresh));
    int rc = fresh ? add(l, &a->a, d, 1) : 0;
    struct gr_args_binary mul = {.a = d, .b = a->b, .y = a->y, .kind = GR_MUL};
    return rc ? rc
              : gr_launch_items(l, "gr_elementwise_binary_1", a->y.rows * a->y.cols, 256, 256, 0,
                                &mul, sizeof mul);
}

int gr_cuda_binary(struct gr_launcher *l, const struct gr_args_binary *a)
{
    return gr_launch_items(l, "gr_elementwise_binary_1", a->y.rows * a->y.cols, 256, 256, 0, a,
                           sizeof *a);
}

/* Rows of a file from a packed matrix. */
int gr_cuda_gather(struct gr_launcher *l, const struct gr_args_gather *a)
{
    return gr_cuda_unpack(l, &a->x, &a->y);
}

/* Nothing is launched. */
int gr_cuda_ssm_conv(struct gr_launcher *l, const struct gr_args_ssm_conv *a)
{
    (void)l, (void)a;
    return 0;
}

/* Whatever launchers_ask says. */
int gr_cuda_matmul(struct gr_launcher *l, const struct gr_args_matmul *a)
{
    const struct gr_grid one = {1, 1, 1};
    const struct gr_args_norm norm = {.x = a->x, .y = a->y, .group = a->x.cols, .eps = 1};
    const struct gr_args_act copy = {.x = a->x, .y = a->y, .a = 1, .kind = GR_LINEAR};
    switch (launchers_ask) {
    case ASK_NOTHING:
        return 0;
    case ASK_MUCH_SHARED_MEMORY: /* y = x */
        return gr_launch(l, "gr_elementwise_act_1", one, 256, 64 << 10, &copy, sizeof copy);
    case ASK_UNKNOWN_KERNEL:
        return gr_launch(l, "gr_elementwise_no_such", one, 256, 0, a, sizeof *a);
    case ASK_UNKNOWN_FAMILY:
        return gr_launch_has(l, "gr_no_such_family_x")
                   ? 0
                   : gr_launch(l, "gr_no_such_family_x", one, 256, 0, a, sizeof *a);
    case ASK_SHARED_MEMORY:
        return gr_launch(l, "gr_elementwise_act_1", one, 256, 1 << 20, a, sizeof *a);
    case ASK_BESIDE_STATIC:
        launchers_most = gr_launch_smem(l, "gr_norm_any");
        launchers_resident = gr_launch_resident(l, "gr_norm_any", launchers_smem);
        return gr_launch(l, "gr_norm_any", one, 256, launchers_smem, &norm, sizeof norm);
    case ASK_BLOCKS:
        return gr_launch(l, "gr_elementwise_act_1", (struct gr_grid){1, 65536, 1}, 256, 0, a,
                         sizeof *a);
    default:
        (void)gr_launch_scratch(l, launchers_scratch += 256);
        return 0;
    }
}
