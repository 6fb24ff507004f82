#include "graph/plan.h"

#include <inttypes.h>

#include "base/checked.h"
#include "gr/dtype.h"
#include "gr/status.h"

#define ALIGN 64

void gr_plan_init(struct gr_plan *p, const struct gr_step_shape *shape)
{
    *p = (struct gr_plan){.shape = *shape, .layout = gr_step_layout(shape)};
}

void gr_plan_fini(struct gr_plan *p)
{
    gr_vec_fini(&p->node);
    gr_vec_fini(&p->value);
    gr_vec_fini(&p->tap);
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
    *v = (struct gr_value){.bytes = GR_PAD(rows * row_bytes, ALIGN), .first = -1, .last = -1};
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
    struct gr_tap tap = {(int32_t)p->node.n - 1, name, layer, *t};
    return gr_vec_append(&p->tap, &tap, 1, sizeof tap);
}

static struct gr_value *value_of(struct gr_plan *p, const struct gr_ten *t)
{
    return t->value ? (struct gr_value *)p->value.data + t->value : NULL;
}

/* Whether a node leaves something behind: it changes a cache, or writes a value that `wanted`
 * marks. */
static bool is_useful(struct gr_plan *p, struct gr_node *n, const bool *wanted)
{
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(n, o);
        if (o->role == GR_ROLE_INOUT ||
            (o->role == GR_ROLE_OUT && value_of(p, t) && wanted[t->value]))
            return true;
    }
    return false;
}

/* Drops nodes of which nothing is used, and their taps: what follows the last cache when no logits
 * are wanted. */
static int drop_useless(struct gr_plan *p)
{
    struct gr_node *node = p->node.data;
    bool *wanted = gr_calloc(p->value.n + 1, sizeof *wanted);
    int32_t *moved = gr_calloc(p->node.n + 1, sizeof *moved); /* new index + 1, 0 = dropped */
    if (!wanted || !moved) {
        gr_free(wanted);
        gr_free(moved);
        return GR_E_NOMEM_HOST;
    }
    wanted[p->result.value] = true;
    for (size_t i = p->node.n; i-- > 0;) {
        if (!is_useful(p, &node[i], wanted))
            continue;
        moved[i] = 1;
        for (const struct gr_operand *o = gr_op_info(node[i].op)->operands; o->role; o++)
            wanted[gr_node_ten(&node[i], o)->value] = true;
    }
    int32_t n = 0;
    for (size_t i = 0; i < p->node.n; i++)
        if (moved[i]) {
            moved[i] = n + 1;
            node[n++] = node[i];
        }
    struct gr_tap *tap = p->tap.data;
    size_t n_tap = 0;
    for (size_t i = 0; i < p->tap.n; i++)
        if (moved[tap[i].node] && wanted[tap[i].ten.value]) {
            tap[n_tap] = tap[i];
            tap[n_tap++].node = moved[tap[i].node] - 1;
        }
    p->node.n = (size_t)n, p->tap.n = n_tap;
    gr_free(wanted);
    gr_free(moved);
    return 0;
}

static void find_lives(struct gr_plan *p)
{
    struct gr_node *node = p->node.data;
    for (int32_t i = 0; i < (int32_t)p->node.n; i++)
        for (const struct gr_operand *o = gr_op_info(node[i].op)->operands; o->role; o++) {
            struct gr_value *v = value_of(p, gr_node_ten(&node[i], o));
            if (!v)
                continue;
            v->first = v->first < 0 ? i : v->first;
            v->last = i;
        }
    struct gr_value *result = value_of(p, &p->result);
    if (result)
        result->keep = true;
    struct gr_value *v = p->value.data;
    for (size_t i = 1; i < p->value.n; i++)
        if (v[i].keep)
            v[i].last = INT32_MAX;
}

/* The lowest offset at which `v` overlaps none of the values placed before it whose life meets its
 * own. */
static int64_t lowest_offset(const struct gr_value *all, size_t n_placed, const struct gr_value *v)
{
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 1; i < n_placed; i++) {
            const struct gr_value *o = &all[i];
            bool alive = o->first >= 0 && o->first <= v->last && v->first <= o->last;
            if (alive && at < o->offset + o->bytes && o->offset < at + v->bytes) {
                at = o->offset + o->bytes;
                moved = true;
            }
        }
    }
    return at;
}

int gr_plan_finish(struct gr_plan *p)
{
    int rc = drop_useless(p);
    if (rc)
        return rc;
    find_lives(p);
    struct gr_value *v = p->value.data;
    for (size_t i = 1; i < p->value.n; i++) {
        if (v[i].first < 0)
            continue;
        v[i].offset = lowest_offset(v, i, &v[i]);
        p->arena_bytes = GR_MAX(p->arena_bytes, v[i].offset + v[i].bytes);
    }
    return 0;
}

static void bind_ten(struct gr_plan *p, struct gr_ten *t, char *arena)
{
    struct gr_value *v = value_of(p, t);
    if (v)
        t->data = arena + v->offset + t->offset;
}

void gr_plan_bind(struct gr_plan *p, void *arena)
{
    struct gr_node *node = p->node.data;
    for (size_t i = 0; i < p->node.n; i++)
        for (const struct gr_operand *o = gr_op_info(node[i].op)->operands; o->role; o++)
            bind_ten(p, gr_node_ten(&node[i], o), arena);
    struct gr_tap *tap = p->tap.data;
    for (size_t i = 0; i < p->tap.n; i++)
        bind_ten(p, &tap[i].ten, arena);
    bind_ten(p, &p->result, arena);
}

void gr_plan_print(const struct gr_plan *p, FILE *out)
{
    const struct gr_node *node = p->node.data;
    const struct gr_value *v = p->value.data;
    fprintf(out,
            "plan of %zu nodes, %zu values, %" PRId64 " bytes: n_tok %d, n_list %d, n_out %d\n",
            p->node.n, p->value.n ? p->value.n - 1 : 0, p->arena_bytes, p->shape.n_tok,
            p->shape.n_list, p->shape.n_out);
    for (size_t i = 0; i < p->node.n; i++) {
        struct gr_node n = node[i];
        const struct gr_op_info *info = gr_op_info(n.op);
        fprintf(out, "%4zu layer %3d %-11s", i, n.layer, info->name);
        for (const struct gr_operand *o = info->operands; o->role; o++) {
            const struct gr_ten *t = gr_node_ten(&n, o);
            if (gr_ten_is(t) && t->value)
                fprintf(out, " %s=%u[%" PRId64 ",%" PRId64 "]@%" PRId64, o->name, t->value, t->rows,
                        t->cols, v[t->value].offset + t->offset);
            else if (gr_ten_is(t))
                fprintf(out, " %s=[%" PRId64 ",%" PRId64 "]%s", o->name, t->rows, t->cols,
                        gr_dtype_name(t->dtype));
        }
        fputc('\n', out);
    }
}
