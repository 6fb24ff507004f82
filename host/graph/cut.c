/* One plan over several pipeline stages: which nodes belong to this rank, and which values are
 * passed between stages. Everything follows from the whole plan, which is the same on every
 * rank. */
#include "base/checked.h"
#include "gr/status.h"
#include "graph/plan.h"

/* The stages that a value is needed in. */
struct span {
    int32_t from, until; /* the stage that writes it, and the last one that reads it; -1 = none */
};

struct cut {
    struct gr_plan *p;
    struct span *span; /* [values]; values of repeated nodes count as written by no stage */
    int32_t *kept;     /* [nodes] */
};

static int refuse(const struct gr_node *n, const struct gr_operand *o, int32_t writer)
{
    return gr_fail(GR_E_INTERNAL,
                   "%s, layer %d, of stage %d: its %s is of stage %d; no cut may be there",
                   gr_op_info(n->op)->name, n->layer, n->stage, o->name, writer);
}

/* Notes that a node reads or writes one of its tensors. Data may go to later stages only. */
static int note(struct cut *c, struct gr_node *n, const struct gr_operand *o, bool repeats)
{
    struct gr_ten *t = gr_node_ten(n, o);
    if (!gr_plan_find(c->p, t))
        return 0;
    struct span *s = &c->span[t->value];
    bool writes = o->role == GR_ROLE_OUT;
    if (s->from > n->stage || (writes && s->from >= 0 && s->from != n->stage))
        return refuse(n, o, s->from);
    if (!writes)
        s->until = GR_MAX(s->until, n->stage);
    else if (!repeats)
        s->from = n->stage;
    return 0;
}

static int find_spans(struct cut *c)
{
    struct gr_node *node = c->p->node.data;
    int rc = 0;
    for (size_t v = 0; v < c->p->value.n; v++)
        c->span[v] = (struct span){-1, -1};
    for (size_t i = 0; i < c->p->node.n && !rc; i++) {
        bool repeats = gr_plan_repeats(&node[i]);
        for (const struct gr_operand *o = gr_op_info(node[i].op)->operands; o->role && !rc; o++)
            rc = note(c, &node[i], o, repeats);
    }
    if (!rc && gr_plan_find(c->p, &c->p->result)) /* the result is read after the last stage */
        c->span[c->p->result.value].until = c->p->n_stage - 1;
    return rc;
}

/* Lists the values that `stage` passes to the next one. */
static int boundary(const struct cut *c, int32_t stage, struct gr_vec *values)
{
    int rc = 0;
    for (uint32_t v = 1; v < c->p->value.n && !rc; v++)
        if (c->span[v].from >= 0 && c->span[v].from <= stage && c->span[v].until > stage)
            rc = gr_vec_append(values, &v, 1, sizeof v);
    return rc;
}

/* Returns whether a node belongs to this stage, in which case its values are marked as wanted, or
 * is repeated for a node that does. */
static bool is_own(const struct cut *c, struct gr_node *n, bool *wanted)
{
    bool repeats = gr_plan_repeats(n), own = !repeats && n->stage == c->p->stage;
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(n, o);
        if (!gr_plan_find(c->p, t))
            continue;
        if (repeats)
            own |= wanted[t->value];
        else
            wanted[t->value] |= own;
    }
    return own;
}

static int keep_own(struct cut *c)
{
    struct gr_node *node = c->p->node.data;
    bool *wanted = gr_calloc(c->p->value.n + 1, sizeof *wanted);
    if (!wanted)
        return GR_E_NOMEM_HOST;
    for (size_t i = c->p->node.n; i-- > 0;)
        c->kept[i] = is_own(c, &node[i], wanted);
    gr_plan_keep(c->p, c->kept);
    gr_free(wanted);
    return 0;
}

static int cut(struct cut *c)
{
    struct gr_plan *p = c->p;
    int rc = find_spans(c);
    if (!rc)
        rc = boundary(c, p->stage - 1, &p->in);
    if (!rc)
        rc = boundary(c, p->stage, &p->out);
    if (!rc)
        rc = keep_own(c);
    if (p->stage < p->n_stage - 1)
        p->result = (struct gr_ten){0};
    return rc;
}

int gr_plan_cut(struct gr_plan *p)
{
    struct cut c = {.p = p};
    c.span = gr_calloc(p->value.n + 1, sizeof *c.span);
    c.kept = gr_calloc(p->node.n + 1, sizeof *c.kept);
    int rc = c.span && c.kept ? cut(&c) : GR_E_NOMEM_HOST;
    gr_free(c.span);
    gr_free(c.kept);
    return rc;
}
