/* From recorded nodes to a plan that can run: drops what is of no use, cuts the rest, and gives
 * every value its place in an arena and its address. */
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "graph/plan.h"

/* Number of nodes by which the reuse of memory is delayed in a step of few tokens. */
enum { LATER = 2 };

/* Returns whether a node has an effect: it changes a cache, or writes a value in `wanted`. */
static bool is_useful(struct gr_plan *p, struct gr_node *n, const bool *wanted)
{
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(n, o);
        if (o->role == GR_ROLE_INOUT ||
            (o->role == GR_ROLE_OUT && gr_plan_find(p, t) && wanted[t->value]))
            return true;
    }
    return false;
}

/* The last of the first n nodes that writes t; -1 = none. */
static int32_t writer_of(struct gr_plan *p, const struct gr_ten *t, int32_t n)
{
    struct gr_node *node = p->node.data;
    while (n-- > 0)
        for (const struct gr_operand *o = gr_op_info(node[n].op)->operands; o->role; o++)
            if (o->role == GR_ROLE_OUT && gr_node_ten(&node[n], o)->value == t->value)
                return n;
    return -1;
}

/* Keeps the taps of values that are computed, each at the node that writes the value. */
static void drop_taps(struct gr_plan *p, const bool *wanted, const int32_t *kept)
{
    struct gr_tap *tap = p->tap.data;
    size_t n = 0;
    for (size_t i = 0; i < p->tap.n; i++) {
        int32_t writer =
            tap[i].kind == GR_TAP_RESULT ? writer_of(p, &tap[i].ten, tap[i].node + 1) : tap[i].node;
        if (writer < 0 || !kept[writer] ||
            (tap[i].kind == GR_TAP_RESULT && !wanted[tap[i].ten.value]))
            continue;
        tap[n] = tap[i];
        tap[n++].node = writer;
    }
    p->tap.n = n;
}

/* Drops nodes without effect, and their taps, such as those behind the last cache when no logits
 * are wanted. */
static int drop_useless(struct gr_plan *p)
{
    struct gr_node *node = p->node.data;
    bool *wanted = gr_calloc(p->value.n + 1, sizeof *wanted);
    int32_t *kept = gr_calloc(p->node.n + 1, sizeof *kept);
    if (!wanted || !kept) {
        gr_free(wanted);
        gr_free(kept);
        return GR_E_NOMEM_HOST;
    }
    wanted[p->result.value] = true;
    for (size_t i = p->node.n; i-- > 0;) {
        if (!is_useful(p, &node[i], wanted))
            continue;
        kept[i] = 1;
        for (const struct gr_operand *o = gr_op_info(node[i].op)->operands; o->role; o++)
            if (gr_plan_find(p, gr_node_ten(&node[i], o)))
                wanted[gr_node_ten(&node[i], o)->value] = true;
    }
    drop_taps(p, wanted, kept);
    gr_plan_keep(p, kept);
    gr_free(wanted);
    gr_free(kept);
    return 0;
}

static void live_at(struct gr_value *v, int32_t i)
{
    v->first = v->first < 0 ? i : GR_MIN(v->first, i);
    v->last = GR_MAX(v->last, i);
}

/* ---- weights that are offloaded ---- */

/* The value that stands for an offloaded weight in a segment. */
static struct gr_value *offloaded(const struct gr_plan *p, const struct gr_plan_segment *seg,
                                  const struct gr_offload_item *w)
{
    const struct gr_offload *f = (const struct gr_offload *)p->offload.data + seg->offload;
    while (f->weight != w)
        f++;
    return (struct gr_value *)p->value.data + f->value;
}

/* Calls fn for each operand in segment i that is offloaded for it. */
static void each_offloaded(struct gr_plan *p, int32_t i,
                           void (*fn)(struct gr_ten *t, struct gr_value *v,
                                      const struct gr_offload_item *w, int32_t node, void *user),
                           void *user)
{
    const struct gr_plan_segment *seg = (const struct gr_plan_segment *)p->segment.data + i;
    struct gr_node *node = p->node.data;
    for (int32_t k = seg->node; seg->n_offload && k < seg->node + seg->run.n_node; k++)
        for (const struct gr_operand *o = gr_op_info(node[k].op)->operands; o->role; o++) {
            struct gr_ten *t = gr_node_ten(&node[k], o);
            const struct gr_offload_item *w = gr_plan_offload_item(p, t);
            if (w)
                fn(t, offloaded(p, seg, w), w, k, user);
        }
}

static void find_offloaded_life(struct gr_ten *t, struct gr_value *v,
                                const struct gr_offload_item *w, int32_t node, void *user)
{
    (void)t, (void)w;
    live_at(v, node);
    live_at(v, *(const int32_t *)user);
}

static void find_offloaded_lives(struct gr_plan *p)
{
    const struct gr_plan_segment *seg = p->segment.data;
    for (int32_t i = 0; i < (int32_t)p->segment.n; i++) {
        int32_t from = seg[i].ask < 0 ? 0 : seg[seg[i].ask].node;
        each_offloaded(p, i, find_offloaded_life, &from);
    }
}

/* Bytes that are offloaded for segment i; 0 if i < 0. */
static int64_t offloaded_bytes(const struct gr_plan *p, int32_t i)
{
    const struct gr_value *v = p->value.data;
    const struct gr_offload *f = p->offload.data;
    int64_t sum = 0;
    if (i < 0)
        return 0;
    const struct gr_plan_segment *seg = (const struct gr_plan_segment *)p->segment.data + i;
    for (int32_t k = seg->offload; k < seg->offload + seg->n_offload; k++)
        sum += v[f[k].value].bytes;
    return sum;
}

/* Sets `ask` of all segments. Memory for offloaded weights is what two consecutive segments of a
 * device need. A third one may add up to a quarter: then the weights before a layer's attention are
 * requested before the attention of the previous layer, which the CPU computes, is done. Memory for
 * two whole layers would not make the link finish earlier: transferring weights takes as long as
 * the larger segment of a layer runs. */
static void find_asks(struct gr_plan *p)
{
    struct gr_plan_segment *seg = p->segment.data;
    int64_t two = 0;
    for (int32_t i = 0; i < (int32_t)p->segment.n; i++) {
        seg[i].ask = gr_plan_segment_before(p, i);
        two = GR_MAX(two, offloaded_bytes(p, i) + offloaded_bytes(p, seg[i].ask));
    }
    for (int32_t i = (int32_t)p->segment.n - 1; i >= 0; i--) {
        int32_t ask = seg[i].ask, before = ask < 0 ? -1 : seg[ask].ask;
        int64_t three =
            offloaded_bytes(p, i) + offloaded_bytes(p, ask) + offloaded_bytes(p, before);
        seg[i].ask = three <= two + two / 4 ? before : ask;
    }
}

static void bind_offloaded(struct gr_ten *t, struct gr_value *v, const struct gr_offload_item *w,
                           int32_t node, void *user)
{
    const struct gr_plan_memory *memory = user;
    (void)node;
    t->data = (char *)memory[v->device].arena + v->offset + ((uintptr_t)t->data - w->at);
}

/* ---- lives and places ---- */

/* Marks the operands that a node is the last to use. */
static void find_ends(struct gr_plan *p)
{
    struct gr_node *node = p->node.data;
    for (int32_t i = 0; i < (int32_t)p->node.n; i++) {
        const struct gr_operand *all = gr_op_info(node[i].op)->operands;
        for (const struct gr_operand *o = all; o->role; o++) {
            const struct gr_value *v = gr_plan_find(p, gr_node_ten(&node[i], o));
            if (v && v->last == i)
                node[i].ends |= 1u << (o - all);
        }
    }
}

/* Attention of a step that is one run may turn its queries itself: what ROPE in front of it reads
 * stays until then. */
static void keep_queries(struct gr_plan *p)
{
    struct gr_node *node = p->node.data;
    for (int32_t i = 0; p->shape.one_run && i + 1 < (int32_t)p->node.n; i++) {
        struct gr_value *q = node[i].op == GR_OP_ROPE && node[i + 1].op == GR_OP_ATTN
                                 ? gr_plan_find(p, &node[i].a.rope.x)
                                 : NULL;
        if (q)
            live_at(q, i + 1);
    }
}

static void find_lives(struct gr_plan *p)
{
    struct gr_node *node = p->node.data;
    struct gr_value *all = p->value.data;
    for (int32_t i = 0; i < (int32_t)p->node.n; i++)
        for (const struct gr_operand *o = gr_op_info(node[i].op)->operands; o->role; o++) {
            struct gr_value *v = gr_plan_find(p, gr_node_ten(&node[i], o));
            if (v)
                live_at(v, i);
        }
    const struct gr_plan_segment *seg = p->segment.data;
    const struct gr_move *move = p->move.data;
    for (size_t k = 0; k < p->segment.n; k++) /* moves precede its first node */
        for (int32_t m = seg[k].move; m < seg[k].move + seg[k].n_move; m++) {
            live_at(&all[move[m].src], seg[k].node);
            live_at(&all[move[m].dst], seg[k].node);
        }
    find_offloaded_lives(p);
    const uint32_t *in = p->in.data, *out = p->out.data;
    for (size_t i = 0; i < p->in.n; i++)
        live_at(&all[in[i]], 0);
    for (size_t i = 0; i < p->out.n; i++)
        all[out[i]].keep = true;
    struct gr_value *result = gr_plan_find(p, &p->result);
    if (result)
        result->keep = true;
    for (size_t i = 1; i < p->value.n; i++)
        if (all[i].keep)
            all[i].last = INT32_MAX;
    find_ends(p);
    keep_queries(p);
    for (size_t i = 1; i < p->value.n; i++)
        if (!all[i].keep && p->shape.n_tok <= GR_PLAN_FEW)
            all[i].last += LATER;
}

/* The lowest offset from `at` on at which `v` overlaps no value placed before it that is on the
 * same device, of the same kind (offloaded or not) and alive at the same time. */
static int64_t lowest_offset(const struct gr_value *all, size_t n_placed, const struct gr_value *v,
                             int64_t at)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 1; i < n_placed; i++) {
            const struct gr_value *o = &all[i];
            bool alive = o->device == v->device && o->offloaded == v->offloaded && o->first >= 0 &&
                         o->first <= v->last && v->first <= o->last;
            if (alive && at < o->offset + o->bytes && o->offset < at + v->bytes) {
                at = o->offset + o->bytes;
                moved = true;
            }
        }
    }
    return at;
}

/* Places values in the arenas. Offloaded weights have memory of their own at the beginning, so that
 * the size of a step grows with its tokens and the largest step needs most. */
static void place(struct gr_plan *p, bool offloaded)
{
    struct gr_value *v = p->value.data;
    int64_t from[GR_MAX_DEVICE] = {0};
    if (!offloaded)
        memcpy(from, p->arena_bytes, sizeof from);
    for (size_t i = 1; i < p->value.n; i++) {
        if (v[i].first < 0 || v[i].offloaded != offloaded)
            continue;
        v[i].offset = lowest_offset(v, i, &v[i], from[v[i].device]);
        int64_t *bytes = &p->arena_bytes[v[i].device];
        *bytes = GR_MAX(*bytes, v[i].offset + v[i].bytes);
    }
}

int gr_plan_finish(struct gr_plan *p)
{
    int rc = drop_useless(p);
    if (!rc && p->n_stage > 1)
        rc = gr_plan_cut(p);
    if (!rc)
        rc = gr_plan_partition(p);
    if (rc)
        return rc;
    find_asks(p);
    find_lives(p);
    place(p, true);
    place(p, false);
    return 0;
}

/* base + offset; NULL when there is no memory because a plan is only measured. */
static void *add(void *base, int64_t offset)
{
    return base ? (char *)base + offset : NULL;
}

static void bind_ten(const struct gr_plan *p, struct gr_ten *t, int32_t device,
                     const struct gr_plan_memory memory[GR_MAX_DEVICE])
{
    const struct gr_value *v = gr_plan_find(p, t);
    if (t->value == GR_VALUE_STEP)
        t->data = add(memory[device].step, t->offset);
    else if (t->value == GR_VALUE_CONST)
        t->data = add(memory[device].constants, t->offset);
    else if (v)
        t->data = add(memory[v->device].arena, v->offset + t->offset);
}

void gr_plan_bind(struct gr_plan *p, const struct gr_plan_memory memory[GR_MAX_DEVICE])
{
    struct gr_node *node = p->node.data;
    struct gr_plan_memory each[GR_MAX_DEVICE];
    memcpy(each, memory, sizeof each);
    for (int32_t i = 0; i < (int32_t)p->segment.n; i++)
        each_offloaded(p, i, bind_offloaded, each);
    for (size_t i = 0; i < p->node.n; i++)
        for (const struct gr_operand *o = gr_op_info(node[i].op)->operands; o->role; o++)
            bind_ten(p, gr_node_ten(&node[i], o), node[i].device, memory);
    struct gr_tap *tap = p->tap.data;
    for (size_t i = 0; i < p->tap.n; i++)
        bind_ten(p, &tap[i].ten, 0, memory);
    bind_ten(p, &p->result, 0, memory);
}
