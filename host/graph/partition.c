/* One plan over several devices: which nodes run in sequence on one device, which values are moved
 * between devices, and which are recomputed instead. */
#include "base/checked.h"
#include "gr/status.h"
#include "graph/plan.h"

/* A plan being partitioned. Values keep their index on the device of the node that writes them. */
struct partition {
    struct gr_plan *p;
    struct gr_vec node; /* the new list */
    size_t n_value;     /* number of values before any was added */
    /* [n_value] */
    uint32_t (*on)[GR_MAX_DEVICE]; /* its value on each device, 0 = none yet */
    int32_t *home;                 /* device whose node writes it */
    int32_t *repeat;    /* node that is repeated on every device that needs the value, or -1 */
    int32_t *at;        /* [old nodes] index in the new list, -1 = none yet */
    int32_t offloading; /* layer of the weights that the last segment offloads */
};

static int find_homes(struct partition *s)
{
    struct gr_node *node = s->p->node.data;
    for (size_t v = 0; v < s->n_value; v++)
        s->home[v] = s->repeat[v] = -1;
    for (int32_t i = 0; i < (int32_t)s->p->node.n; i++) {
        bool repeatable = gr_plan_repeats(&node[i]);
        for (const struct gr_operand *o = gr_op_info(node[i].op)->operands; o->role; o++) {
            uint32_t v = gr_node_ten(&node[i], o)->value;
            if (o->role != GR_ROLE_OUT || !gr_plan_find(s->p, gr_node_ten(&node[i], o)))
                continue;
            if (s->home[v] >= 0 && (s->home[v] != node[i].device || repeatable))
                return gr_fail(GR_E_INTERNAL, "%s, layer %d: its %s is written on two devices",
                               gr_op_info(node[i].op)->name, node[i].layer, o->name);
            s->home[v] = node[i].device;
            s->repeat[v] = repeatable ? i : -1;
        }
    }
    return 0;
}

static bool offloads(const struct partition *s, struct gr_node *n)
{
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role; o++)
        if (gr_plan_offload_item(s->p, gr_node_ten(n, o)))
            return true;
    return false;
}

/* The last segment; NULL: there is none yet. */
static struct gr_plan_segment *last_segment(const struct partition *s)
{
    struct gr_plan_segment *all = s->p->segment.data;
    return s->p->segment.n ? all + s->p->segment.n - 1 : NULL;
}

/* The segment for the next node of a device, a new one if necessary. An EXCHANGE has a segment of
 * its own, and a segment offloads weights of one layer only. */
static struct gr_plan_segment *segment_for(struct partition *s, struct gr_node *n, int32_t device)
{
    struct gr_plan_segment *last = last_segment(s);
    bool exchange = n->op == GR_OP_EXCHANGE;
    bool full = last && last->exchange && last->run.n_node > 0;
    full |= last && last->n_offload && n->layer >= 0 && n->layer != s->offloading && offloads(s, n);
    if (last && !full && last->device == device && last->exchange == exchange)
        return last;
    struct gr_plan_segment *seg = gr_vec_push(&s->p->segment, sizeof *seg);
    if (seg)
        *seg = (struct gr_plan_segment){.device = device,
                                        .exchange = exchange,
                                        .node = (int32_t)s->node.n,
                                        .move = (int32_t)s->p->move.n,
                                        .offload = (int32_t)s->p->offload.n};
    return seg;
}

/* Adds a value on another device with the shape of `v`; 0 when out of memory. */
static uint32_t value_like(struct partition *s, uint32_t v, int32_t device)
{
    struct gr_value *new = gr_vec_push(&s->p->value, sizeof *new);
    if (!new)
        return 0;
    *new = ((struct gr_value *)s->p->value.data)[v];
    new->device = device;
    return (uint32_t)(s->p->value.n - 1);
}

/* Moves value `from`, a copy of v, to a device at the beginning of the last segment. */
static int move_one(struct partition *s, uint32_t v, uint32_t from, int32_t device)
{
    uint32_t to = value_like(s, v, device);
    struct gr_move *m = to ? gr_vec_push(&s->p->move, sizeof *m) : NULL;
    if (!m)
        return GR_E_NOMEM_HOST;
    *m = (struct gr_move){from, to};
    s->on[v][device] = to;
    last_segment(s)->n_move++;
    return 0;
}

/* Moves value v from its home to a device; between two GPUs through the CPU. */
static int move_to(struct partition *s, uint32_t v, int32_t device)
{
    bool through = s->home[v] && device;
    int rc = through && !s->on[v][0] ? move_one(s, v, v, 0) : 0;
    return rc ? rc : move_one(s, v, through ? s->on[v][0] : v, device);
}

/* Adds a weight to those offloaded for the last segment, unless it is there already. */
static int offload(struct partition *s, const struct gr_offload_item *w, const struct gr_node *n)
{
    struct gr_plan_segment *seg = last_segment(s);
    const struct gr_offload *all = s->p->offload.data;
    for (int32_t i = seg->offload; i < seg->offload + seg->n_offload; i++)
        if (all[i].weight == w)
            return 0;
    if (seg->device == 0)
        return gr_fail(GR_E_INTERNAL, "%s, layer %d, runs on the CPU with weights of a device",
                       gr_op_info(n->op)->name, n->layer);
    struct gr_value *v = gr_vec_push(&s->p->value, sizeof *v);
    struct gr_offload *f = v ? gr_vec_push(&s->p->offload, sizeof *f) : NULL;
    if (!f)
        return GR_E_NOMEM_HOST;
    *v = (struct gr_value){
        .bytes = w->bytes, .first = -1, .last = -1, .device = seg->device, .offloaded = true};
    *f = (struct gr_offload){w, (uint32_t)(s->p->value.n - 1)};
    seg->n_offload++;
    s->offloading = n->layer < 0 ? s->offloading : n->layer;
    return 0;
}

/* Appends an old node to the new list; the values it reads must be on the device. */
static int put(struct partition *s, int32_t old, int32_t device)
{
    struct gr_node n = ((struct gr_node *)s->p->node.data)[old];
    int rc = segment_for(s, &n, device) ? 0 : GR_E_NOMEM_HOST;
    n.device = device;
    for (const struct gr_operand *o = gr_op_info(n.op)->operands; o->role && !rc; o++) {
        struct gr_ten *t = gr_node_ten(&n, o);
        const struct gr_offload_item *w = gr_plan_offload_item(s->p, t);
        uint32_t v = t->value;
        if (w)
            rc = offload(s, w, &n);
        if (!v || v >= s->n_value)
            continue;
        if (o->role == GR_ROLE_OUT && !s->on[v][device]) /* first write on this device */
            s->on[v][device] = s->at[old] < 0 ? v : value_like(s, v, device);
        t->value = s->on[v][device];
        if (!t->value)
            rc = GR_E_NOMEM_HOST;
        if (o->role == GR_ROLE_OUT && t->value == v) {
            s->home[v] = device;
            ((struct gr_value *)s->p->value.data)[v].device = device;
        }
    }
    if (!rc)
        rc = gr_vec_append(&s->node, &n, 1, sizeof n);
    if (!rc) {
        s->at[old] = s->at[old] < 0 ? (int32_t)s->node.n - 1 : s->at[old];
        last_segment(s)->run.n_node++;
    }
    return rc;
}

/* Makes value v available on a device, by a move or by repeating its node, which reads no value. */
static int bring(struct partition *s, uint32_t v, int32_t device)
{
    if (s->home[v] < 0) { /* no node writes it: its home is the device that reads it first */
        s->home[v] = ((struct gr_value *)s->p->value.data)[v].device = device;
        s->on[v][device] = v;
    }
    if (s->on[v][device])
        return 0;
    return s->repeat[v] >= 0 ? put(s, s->repeat[v], device) : move_to(s, v, device);
}

/* Appends an old node after making its inputs available on the device. */
static int append(struct partition *s, int32_t old, int32_t device)
{
    struct gr_node n = ((struct gr_node *)s->p->node.data)[old];
    int rc = segment_for(s, &n, device) ? 0 : GR_E_NOMEM_HOST;
    for (const struct gr_operand *o = gr_op_info(n.op)->operands; o->role && !rc; o++) {
        uint32_t v = gr_node_ten(&n, o)->value;
        if (v && v < s->n_value && o->role != GR_ROLE_OUT)
            rc = bring(s, v, device);
    }
    return rc ? rc : put(s, old, device);
}

/* Sorts the taps in the order of the new nodes, makes their node numbers relative to the segment,
 * and gives each segment its own. */
static void place_taps(struct partition *s)
{
    struct gr_tap *tap = s->p->tap.data;
    struct gr_plan_segment *seg = s->p->segment.data;
    for (size_t i = 0; i < s->p->tap.n; i++) {
        struct gr_tap t = tap[i];
        size_t k = i;
        t.node = s->at[t.node];
        for (; k > 0 && tap[k - 1].node > t.node; k--)
            tap[k] = tap[k - 1];
        tap[k] = t;
    }
    for (size_t i = 0, k = 0; i < s->p->tap.n; i++) {
        while (tap[i].node >= seg[k].node + seg[k].run.n_node)
            k++;
        if (!seg[k].run.n_tap++)
            seg[k].run.tap = &tap[i];
        gr_plan_refresh_tap(&tap[i], (struct gr_node *)s->node.data + tap[i].node);
        tap[i].node -= seg[k].node;
    }
}

static int rewrite(struct partition *s)
{
    struct gr_node *node = s->p->node.data;
    int32_t n = (int32_t)s->p->node.n;
    int rc = find_homes(s);
    for (int32_t i = 0; i < n; i++)
        s->at[i] = -1;
    for (int32_t i = 0; i < n && !rc; i++)
        if (!gr_plan_repeats(&node[i]))
            rc = append(s, i, node[i].device);
    if (rc)
        return rc;
    place_taps(s);
    gr_vec_fini(&s->p->node);
    s->p->node = s->node;
    s->node = (struct gr_vec){0};
    for (size_t i = 0; i < s->p->segment.n; i++) {
        struct gr_plan_segment *seg = (struct gr_plan_segment *)s->p->segment.data + i;
        seg->run.node = (const struct gr_node *)s->p->node.data + seg->node;
    }
    return 0;
}

int gr_plan_partition(struct gr_plan *p)
{
    size_t n = GR_MAX(p->value.n, 1);
    struct partition s = {.p = p, .n_value = p->value.n};
    s.on = gr_calloc(n, sizeof *s.on);
    s.home = gr_calloc(n, sizeof *s.home);
    s.repeat = gr_calloc(n, sizeof *s.repeat);
    s.at = gr_calloc(p->node.n + 1, sizeof *s.at);
    int rc = s.on && s.home && s.repeat && s.at ? rewrite(&s) : GR_E_NOMEM_HOST;
    gr_free(s.on);
    gr_free(s.home);
    gr_free(s.repeat);
    gr_free(s.at);
    gr_vec_fini(&s.node);
    return rc;
}
