/* Plans of models from which optional tensors are missing: refused, or every node has operands that
 * fit each other. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "graph/graph.h"
#include "support/tiny.h"

static bool absent_or(const struct gr_ten *t, int64_t rows, int64_t cols)
{
    return !gr_ten_is(t) || (t->rows == rows && t->cols == cols);
}

static bool matmul_fits(const struct gr_args_matmul *a)
{
    return a->x.cols == a->w.cols && a->y.rows == a->x.rows && a->y.cols == a->w.rows &&
           absent_or(&a->b, 1, a->y.cols) && absent_or(&a->res, a->y.rows, a->y.cols);
}

static bool matmul_id_fits(const struct gr_args_matmul_id *a)
{
    int64_t n_row = a->ids.rows * a->ids.cols;
    return a->x.cols == a->w.cols && (a->x.rows == a->ids.rows || a->x.rows == n_row) &&
           a->y.rows == n_row && a->y.cols == a->w.rows && absent_or(&a->b, a->w.batch, a->y.cols);
}

static bool head_matmul_fits(const struct gr_args_head_matmul *a)
{
    int64_t n_pass = a->x.cols / a->w.batch - a->w.cols;
    return n_pass >= 0 && a->x.cols == a->w.batch * (a->w.cols + n_pass) &&
           a->y.cols == a->w.batch * (n_pass + a->w.rows) && a->y.rows == a->x.rows;
}

static bool attn_fits(const struct gr_args_attn *a)
{
    return a->q.cols == a->n_head * a->d_k && a->y.cols == a->n_head * a->d_v;
}

static bool delta_rule_fits(const struct gr_args_delta_rule *a)
{
    int64_t d_k = a->q.cols / a->n_head_k, d_v = a->v.cols / a->n_head;
    return a->k.cols == a->q.cols && a->state.cols == a->n_head * d_k * d_v &&
           a->beta.cols == a->n_head && a->a.cols == a->n_head &&
           (a->alpha.cols == a->n_head || a->alpha.cols == a->n_head * d_k) &&
           absent_or(&a->dt_bias, 1, a->alpha.cols) && a->y.cols == a->v.cols;
}

static bool ssm_scan_fits(const struct gr_args_ssm_scan *a)
{
    return a->state.cols == a->n_state * a->x.cols && a->x.cols % a->dt.cols == 0 &&
           a->b.cols % a->n_state == 0 && a->b.cols == a->c.cols && a->a.rows == a->dt.cols &&
           absent_or(&a->d, 1, a->dt.cols) && absent_or(&a->z, a->x.rows, a->x.cols) &&
           absent_or(&a->dt_bias, 1, a->dt.cols) && a->y.cols == a->x.cols;
}

static bool ssm_conv_fits(const struct gr_args_ssm_conv *a)
{
    return a->w.rows == a->x.cols && a->state.cols == (a->w.cols - 1) * a->x.cols &&
           absent_or(&a->b, 1, a->x.cols) && a->y.cols == a->x.cols;
}

static bool fits(const struct gr_node *n)
{
    const struct gr_args_norm *norm = &n->a.norm;
    const struct gr_args_glu *glu = &n->a.glu;
    const struct gr_args_expert_sum *sum = &n->a.expert_sum;
    switch (n->op) {
    case GR_OP_MATMUL:
        return matmul_fits(&n->a.matmul);
    case GR_OP_MATMUL_ID:
        return matmul_id_fits(&n->a.matmul_id);
    case GR_OP_HEAD_MATMUL:
        return head_matmul_fits(&n->a.head_matmul);
    case GR_OP_ATTN:
        return attn_fits(&n->a.attn);
    case GR_OP_SSM_CONV:
        return ssm_conv_fits(&n->a.ssm_conv);
    case GR_OP_SSM_SCAN:
        return ssm_scan_fits(&n->a.ssm_scan);
    case GR_OP_DELTA_RULE:
        return delta_rule_fits(&n->a.delta_rule);
    case GR_OP_NORM:
        return norm->x.cols % norm->group == 0 && norm->x.rows == norm->y.rows &&
               absent_or(&norm->b, norm->w.rows, norm->w.cols) &&
               absent_or(&norm->res, norm->y.rows, norm->y.cols);
    case GR_OP_GLU:
        return glu->a.cols == glu->b.cols && glu->a.rows == glu->b.rows;
    case GR_OP_EXPERT_SUM:
        return sum->x.rows == sum->weights.rows * sum->weights.cols &&
               absent_or(&sum->res, sum->y.rows, sum->y.cols);
    case GR_OP_SUM:
        return n->a.sum.parts.rows % n->a.sum.y.rows == 0 &&
               n->a.sum.parts.cols == n->a.sum.y.cols &&
               absent_or(&n->a.sum.res, n->a.sum.y.rows, n->a.sum.y.cols);
    case GR_OP_POOL:
        return n->a.pool.at.cols == n->a.pool.y.rows + 1 && n->a.pool.x.cols == n->a.pool.y.cols;
    default:
        return true;
    }
}

static void check_plan(const struct gr_model *m, const char *missing)
{
    int32_t n_layer = m->hp.n_layer;
    struct gr_ten *cache = gr_calloc(3 * (size_t)n_layer, sizeof *cache);
    const struct gr_ten distances = {.rows = 1, .cols = 2 * GR_REL_MAX_DISTANCE + 1};
    struct gr_graph_env env = {.hp = &m->hp,
                               .scale = m->scale,
                               .arch = m->arch,
                               .k_cache = cache,
                               .v_cache = cache,
                               .conv_state = cache + n_layer,
                               .ssm_state = cache + 2 * n_layer,
                               .rel_rows = {distances, distances},
                               .vectors = m->arch->no_logits};
    for (int il = 0; il < n_layer; il++) {
        cache[n_layer + il] = (struct gr_ten){.rows = 1, .cols = m->hp.ssm.n_conv_state};
        cache[2 * n_layer + il] = (struct gr_ten){.rows = 1, .cols = m->hp.ssm.n_ssm_state};
    }
    struct gr_step_shape shape = {.n_tok = 3,
                                  .n_out = 2,
                                  .n_pos = 1,
                                  .n_full = 3,
                                  .n_swa = 3,
                                  .n_seq = 1,
                                  .n_list = 32,
                                  .n_list_swa = 32,
                                  .n_alibi = 32};
    struct gr_plan p;
    env.weight = m->weight, env.bias = m->bias;
    env.rope[0].freq.cols = m->hp.rope.n_rot / 2, env.rope[1].freq.cols = m->hp.rope.n_rot_swa / 2;
    for (int encode = 0; encode <= (m->hp.enc.n_layer > 0); encode++) {
        int rc = (encode ? gr_graph_build_encode : gr_graph_build)(&p, &env, &shape);
        cr_assert_eq(rc, 0, "%s without %s: %s", m->arch->name, missing, gr_error());
        const struct gr_node *node = p.node.data;
        for (size_t i = 0; i < p.node.n; i++)
            cr_expect(fits(&node[i]), "%s without %s: node %zu, %s of layer %d", m->arch->name,
                      missing, i, gr_op_info(node[i].op)->name, node[i].layer);
        gr_plan_fini(&p);
    }
    gr_free(cache);
}

/* t with tensor t->drop left out. */
static void try_model(const struct tiny *t)
{
    char name[96] = "nothing";
    struct gr_model *m;
    const char *path = tiny_write(t, name);
    int rc = gr_model_open(&m, path, NULL);
    unlink(path);
    cr_expect(rc == 0 || (rc == GR_E_CORRUPT && t->drop >= 0), "%s without %s: %d %s",
              t->arch->name, name, rc, gr_error());
    if (!rc)
        check_plan(m, name);
    gr_model_close(&m);
}

Test(shapes, fit_whatever_optional_tensor_is_missing)
{
    for (int i = 0; gr_arch_at(i); i++)
        for (int fused = 0; fused < 2; fused++) {
            struct tiny t = tiny_default(gr_arch_at(i));
            t.fused = fused, t.zeros = true;
            try_model(&t);
            for (int k = 0; k < tiny_n_tensor(&t); k++) {
                t.drop = k;
                if (!tiny_required(&t, k))
                    try_model(&t);
            }
        }
}

/* A gate that is missing is named; the matrices after it would be too wide. */
Test(shapes, a_missing_gate_is_named)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    char name[96] = "";
    struct gr_model *m;
    const char *gate = "blk.0.ffn_gate.weight";
    while (strcmp(name, gate) != 0 && ++t.drop < tiny_n_tensor(&t))
        tiny_write(&t, name);
    const char *path = tiny_write(&t, name);
    cr_expect_eq(gr_model_open(&m, path, NULL), GR_E_CORRUPT);
    unlink(path);
    cr_expect(strstr(gr_error(), gate), "%s", gr_error());
}
