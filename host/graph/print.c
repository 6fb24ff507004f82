/* gr_plan_print: a finished plan as text, for people. */
#include <inttypes.h>

#include "gr/dtype.h"
#include "graph/plan.h"

/* A plan that is being printed; device: the names of its devices, by number. */
struct printed {
    const struct gr_plan *plan;
    const char *const *device;
    FILE *out;
};

static const struct gr_value *value_of(const struct printed *x, uint32_t v)
{
    return (const struct gr_value *)x->plan->value.data + v;
}

static void print_memory(const struct printed *x)
{
    const char *between = "memory:";
    for (int32_t d = 0; d < GR_MAX_DEVICE; d++) {
        if (!x->plan->arena_bytes[d])
            continue;
        fprintf(x->out, "%s %s %" PRId64 " bytes", between, x->device[d], x->plan->arena_bytes[d]);
        between = ",";
    }
    fprintf(x->out, "%s step block %" PRId64 " bytes\n", between, x->plan->layout.bytes);
}

static void print_boundary(const struct printed *x, const char *name, const struct gr_vec *values)
{
    const uint32_t *v = values->data;
    if (values->n)
        fprintf(x->out, ", %s", name);
    for (size_t i = 0; i < values->n; i++)
        fprintf(x->out, " %u (%" PRId64 " bytes)", v[i], value_of(x, v[i])->bytes);
}

static void print_head(const struct printed *x)
{
    const struct gr_plan *p = x->plan;
    const struct gr_step_shape *s = &p->shape;
    fprintf(x->out, "n_tok %d, n_out %d, n_seq %d, n_list %d, n_list_swa %d\n", s->n_tok, s->n_out,
            s->n_seq, s->n_list, s->n_list_swa);
    fprintf(x->out, "%zu nodes in %zu segments, %zu values, %zu moves, %zu offloads\n", p->node.n,
            p->segment.n, p->value.n ? p->value.n - 1 : 0, p->move.n, p->offload.n);
    if (p->n_stage > 1) {
        fprintf(x->out, "stage %d of %d", p->stage, p->n_stage);
        print_boundary(x, "in", &p->in);
        print_boundary(x, "out", &p->out);
        fputc('\n', x->out);
    }
    print_memory(x);
}

/* " out=12:f32[5,256]@1024" of a value, " weight=f16[256,768]" of other memory; with the number of
 * matrices before rows and columns when there are several. */
static void print_operand(const struct printed *x, const char *name, const struct gr_ten *t)
{
    bool is_value = gr_plan_find(x->plan, t) != NULL;
    fprintf(x->out, " %s=", name);
    if (is_value)
        fprintf(x->out, "%u:", t->value);
    fprintf(x->out, "%s[", gr_dtype_name(t->dtype));
    if (t->batch > 1)
        fprintf(x->out, "%" PRId64 ",", t->batch);
    fprintf(x->out, "%" PRId64 ",%" PRId64 "]", t->rows, t->cols);
    if (is_value)
        fprintf(x->out, "@%" PRId64, value_of(x, t->value)->offset + t->offset);
}

static void print_node(const struct printed *x, int32_t i)
{
    struct gr_node n = ((const struct gr_node *)x->plan->node.data)[i];
    const struct gr_op_info *info = gr_op_info(n.op);
    fprintf(x->out, "%4d %-11s", i, info->name);
    if (n.layer >= 0)
        fprintf(x->out, " layer %d", n.layer);
    for (const struct gr_operand *o = info->operands; o->role; o++)
        if (gr_ten_is(gr_node_ten(&n, o)))
            print_operand(x, o->name, gr_node_ten(&n, o));
    fputc('\n', x->out);
}

/* Inputs that a segment waits for: values of other devices, weights of the host. */
static void print_arrivals(const struct printed *x, const struct gr_plan_segment *seg)
{
    const struct gr_move *m = (const struct gr_move *)x->plan->move.data + seg->move;
    const struct gr_offload *f = (const struct gr_offload *)x->plan->offload.data + seg->offload;
    for (int32_t i = 0; i < seg->n_move; i++)
        fprintf(x->out, "     move %u of %s to %u: %" PRId64 " bytes\n", m[i].src,
                x->device[value_of(x, m[i].src)->device], m[i].dst, value_of(x, m[i].src)->bytes);
    for (int32_t i = 0; i < seg->n_offload; i++) {
        fprintf(x->out, "     offload");
        print_operand(x, "weight", f[i].weight->host);
        fprintf(x->out, " to %u: %" PRId64 " bytes\n", f[i].value, value_of(x, f[i].value)->bytes);
    }
}

void gr_plan_print(const struct gr_plan *p, const char *const *device, FILE *out)
{
    const struct printed x = {p, device, out};
    const struct gr_plan_segment *seg = p->segment.data;
    print_head(&x);
    for (size_t i = 0; i < p->segment.n; i++) {
        fprintf(out, "segment %zu on %s%s\n", i, device[seg[i].device],
                seg[i].exchange ? ", an exchange between ranks" : "");
        print_arrivals(&x, &seg[i]);
        for (int32_t k = seg[i].node; k < seg[i].node + seg[i].run.n_node; k++)
            print_node(&x, k);
    }
}
