/* The walk over a segment's nodes, which measures their scratch memory or notes their launches. */
#include "cuda/launcher.h"
#include "gr/status.h"

/* Forgets what was derived from a tensor that a node has written to. */
static void forget(struct gr_launcher *l, const struct gr_node *n)
{
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role && l->x.data; o++) {
        const struct gr_ten *t = (const void *)((const char *)&n->a + o->offset);
        if (o->role != GR_ROLE_IN && gr_ten_overlap(t, &l->x))
            l->x.data = NULL;
    }
}

static int dispatch(struct gr_launcher *l, const struct gr_node *n)
{
    switch (n->op) {
#define OP(NAME, args, operands, meaning)                                                          \
    case GR_OP_##NAME:                                                                             \
        return gr_cuda_##args(l, &n->a.args);
#define BETWEEN(NAME, args, operands, meaning)
#include "gr/op.def"
#undef OP
    default:
        return gr_fail(GR_E_INTERNAL, "there is no operation %d", (int)n->op);
    }
}

static int check_bound(const struct gr_node *n)
{
    const struct gr_op_info *op = gr_op_info(n->op);
    for (const struct gr_operand *o = op->operands; o->role; o++) {
        const struct gr_ten *t = (const void *)((const char *)&n->a + o->offset);
        if (gr_ten_is(t) && !t->data)
            return gr_fail(GR_E_INTERNAL, "%s, layer %d: %s has no memory", op->name, n->layer,
                           o->name);
    }
    return 0;
}

static int note_node(struct gr_launcher *l, const struct gr_node *n)
{
    int rc = l->notes ? check_bound(n) : 0;
    l->node_used = 0;
    if (!rc && l->n_skip) { /* the last derivation of its launch stays */
        l->n_skip--;
    } else if (!rc) {
        l->keep = false;
        rc = dispatch(l, n);
    }
    if (!rc)
        rc = l->rc;
    if (!rc && l->notes && !l->keep)
        forget(l, n);
    return rc;
}

int gr_cuda_measure(struct gr_cuda_backend *c, const struct gr_node *node, int n_node,
                    struct gr_cuda_need *need)
{
    struct gr_launcher l = {.c = c};
    int rc = 0;
    for (int i = 0; i < n_node && !rc; i++)
        rc = note_node(&l, &node[i]);
    *need = l.need;
    return rc;
}

int gr_cuda_note(struct gr_cuda_backend *c, struct gr_cuda_exec *e)
{
    struct gr_launcher l = {.c = c, .notes = &e->notes, .need = e->need};
    int rc = 0;
    e->notes.launch.n = e->notes.args.n = 0;
    for (int i = 0; i < e->n_node && !rc; i++) {
        e->first[i] = (int32_t)e->notes.launch.n;
        l.node = &e->node[i], l.n_behind = e->alone ? -1 : e->n_node - 1 - i;
        rc = note_node(&l, &e->node[i]);
    }
    e->first[e->n_node] = (int32_t)e->notes.launch.n;
    return rc;
}

int gr_cuda_note_pack(struct gr_cuda_backend *c, struct gr_cuda_notes *notes,
                      const struct gr_ten *rows, struct gr_ten *packed)
{
    struct gr_launcher l = {.c = c, .notes = notes};
    notes->launch.n = notes->args.n = 0;
    int rc = gr_cuda_pack(&l, rows, packed);
    return rc ? rc : l.rc;
}
