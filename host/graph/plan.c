#include "graph/plan.h"

#include "base/checked.h"

#define ALIGN 256

void gr_plan_init(struct gr_plan *p, const struct gr_step_shape *shape)
{
    *p = (struct gr_plan){.shape = *shape, .layout = gr_step_layout(shape)};
}

void gr_plan_fini(struct gr_plan *p)
{
    gr_vec_fini(&p->node);
    gr_vec_fini(&p->value);
    gr_vec_fini(&p->tap);
    gr_vec_fini(&p->segment);
    gr_vec_fini(&p->move);
    gr_vec_fini(&p->offload);
    gr_vec_fini(&p->in);
    gr_vec_fini(&p->out);
}

struct gr_ten gr_plan_value(struct gr_plan *p, int64_t rows, int64_t cols, uint32_t dtype)
{
    struct gr_ten none = {0};
    if (p->value.n == 0 && !gr_vec_push(&p->value, sizeof(struct gr_value)))
        return none;
    int64_t row_bytes = (int64_t)gr_row_bytes(dtype, (uint64_t)cols);
    struct gr_value *v = gr_vec_push(&p->value, sizeof *v);
    if (!v)
        return none;
    *v = (struct gr_value){
        .bytes = GR_PAD(rows * row_bytes, ALIGN), .first = -1, .last = -1, .writer = -1};
    return (struct gr_ten){.batch = 1,
                           .rows = rows,
                           .cols = cols,
                           .row_bytes = row_bytes,
                           .value = (uint32_t)(p->value.n - 1),
                           .dtype = dtype};
}

int gr_plan_add(struct gr_plan *p, const struct gr_node *node)
{
    return gr_vec_append(&p->node, node, 1, sizeof *node);
}

int gr_plan_tap(struct gr_plan *p, const char *name, int layer, const struct gr_ten *t)
{
    struct gr_tap tap = {.node = (int32_t)p->node.n - 1, .name = name, .layer = layer, .ten = *t};
    return gr_vec_append(&p->tap, &tap, 1, sizeof tap);
}

/* The operands of a product: its input, its matrices, and their ids (NULL: it uses all of them). */
static void product_of(struct gr_node *n, struct gr_ten **x, struct gr_ten **w, struct gr_ten **ids)
{
    *ids = n->op == GR_OP_MATMUL_ID ? &n->a.matmul_id.ids : NULL;
    if (n->op == GR_OP_MATMUL_ID)
        *x = &n->a.matmul_id.x, *w = &n->a.matmul_id.w;
    else if (n->op == GR_OP_HEAD_MATMUL)
        *x = &n->a.head_matmul.x, *w = &n->a.head_matmul.w;
    else
        *x = &n->a.matmul.x, *w = &n->a.matmul.w;
}

int gr_plan_tap_operands(struct gr_plan *p, int32_t weight, int layer)
{
    struct gr_node *all = p->node.data;
    int32_t i = (int32_t)p->node.n - 1;
    struct gr_ten *x, *w, *ids;
    while (all[i].op == GR_OP_ACT) /* a copy of its result */
        i--;
    product_of(&all[i], &x, &w, &ids);
    struct gr_tap tap = {.node = i,
                         .layer = layer,
                         .kind = GR_TAP_IDS,
                         .weight = weight,
                         .n_matrix = (int32_t)w->batch,
                         .n_in = (int32_t)w->cols};
    int rc = 0;
    if (ids) {
        tap.ten = *ids;
        rc = gr_vec_append(&p->tap, &tap, 1, sizeof tap);
    }
    tap.ten = *x, tap.kind = GR_TAP_INPUT;
    return rc ? rc : gr_vec_append(&p->tap, &tap, 1, sizeof tap);
}

void gr_plan_refresh_tap(struct gr_tap *tap, struct gr_node *node)
{
    struct gr_ten *x, *w, *ids;
    if (tap->kind == GR_TAP_RESULT)
        return;
    product_of(node, &x, &w, &ids);
    tap->ten = tap->kind == GR_TAP_IDS ? *ids : *x;
}

bool gr_plan_repeats(struct gr_node *n)
{
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(n, o);
        bool everywhere = t->value == GR_VALUE_STEP || t->value == GR_VALUE_CONST;
        if (o->role == GR_ROLE_INOUT || (o->role == GR_ROLE_IN && gr_ten_is(t) && !everywhere))
            return false;
    }
    return true;
}

const struct gr_offload_item *gr_plan_offload_item(const struct gr_plan *p, const struct gr_ten *t)
{
    uintptr_t at = (uintptr_t)t->data;
    size_t lo = 0, hi = p->offload_items.n;
    if (t->value || at < GR_OFFLOAD_ADDRESS)
        return NULL;
    while (lo < hi) { /* the last one that begins at or before it */
        size_t mid = (lo + hi) / 2;
        if (p->offload_items.item[mid].at <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo ? &p->offload_items.item[lo - 1] : NULL;
}

void gr_plan_keep(struct gr_plan *p, int32_t *kept)
{
    struct gr_node *node = p->node.data;
    struct gr_tap *tap = p->tap.data;
    int32_t n = 0;
    size_t n_tap = 0;
    for (size_t i = 0; i < p->node.n; i++)
        if (kept[i]) { /* from here on the new index + 1 */
            kept[i] = n + 1;
            node[n++] = node[i];
        }
    for (size_t i = 0; i < p->tap.n; i++)
        if (kept[tap[i].node]) {
            tap[n_tap] = tap[i];
            tap[n_tap++].node = kept[tap[i].node] - 1;
        }
    p->node.n = (size_t)n, p->tap.n = n_tap;
}

int32_t gr_plan_segment_before(const struct gr_plan *p, int32_t i)
{
    const struct gr_plan_segment *seg = p->segment.data;
    int32_t device = seg[i].device;
    while (--i >= 0 && (seg[i].device != device || seg[i].exchange))
        ;
    return i;
}
