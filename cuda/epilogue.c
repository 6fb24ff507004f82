/* The nodes that a launch of products does in its epilogue (gr/kernel/epilogue.h).
 *
 * A slice of columns is done while other blocks still multiply. So a node is cut into slices where
 * each reads only its own columns of the launch's results and of the nodes in front, and writes
 * nothing that the others still read or write. */
#include "gr/kernel/epilogue.h"
#include "cuda/grid.h"
#include "cuda/packed_x.h"

enum {
    PER_SLICE = 4096, /* numbers that a block does without holding up the others */
    WHOLE = 16384,    /* the same for a node as a whole, by the last block, and for packed x */
    WARP_COLS = 1024, /* of a norm's group in a warp's registers; 32 in a thread's */
    THREAD_COLS = 32,
};

struct epilogue {
    const struct gr_node *step[GR_EPILOGUE_STEPS];
    const struct gr_epilogue_made *made;
    int n_step, n_made;
    uint32_t threads;
};

static bool goes(const struct gr_ten *t, int64_t n, int64_t most)
{
    return t->rows * t->cols / n <= most;
}

static bool norm_goes(const struct gr_args_norm *a, int64_t n, uint32_t threads)
{
    return gr_norm_vec4(a) && a->x.cols / a->group % n == 0 &&
           (a->group <= WARP_COLS || a->group <= THREAD_COLS * (int64_t)threads) &&
           (goes(&a->x, n, n > 1 ? PER_SLICE : WHOLE));
}

static bool kv_store_goes(const struct gr_args_kv_store *a, int64_t n)
{
    return gr_cache_type(a->k_cache.dtype) &&
           (!gr_ten_is(&a->v) || gr_cache_type(a->v_cache.dtype)) &&
           a->k.cols / a->d_head_k % n == 0 &&
           (n == 1 || (a->k.cols % (32 * n) == 0 && a->v.cols % (32 * n) == 0)) &&
           goes(&a->k, n, PER_SLICE);
}

/* True when a node's shapes let it be done in n slices. */
static bool cuts(const struct gr_node *o, int64_t n, uint32_t threads)
{
    switch (o->op) {
    case GR_OP_NORM:
        return norm_goes(&o->a.norm, n, threads);
    case GR_OP_GLU:
        return gr_glu_vec4(&o->a.glu) && o->a.glu.y.cols % (4 * n) == 0 &&
               goes(&o->a.glu.y, n, PER_SLICE);
    case GR_OP_EXPERT_SUM:
        return gr_expert_sum_vec4(&o->a.expert_sum) && o->a.expert_sum.y.cols % (4 * n) == 0 &&
               goes(&o->a.expert_sum.x, n, n > 1 ? PER_SLICE : WHOLE);
    case GR_OP_KV_STORE:
        return kv_store_goes(&o->a.kv_store, n);
    case GR_OP_ROPE:
        return gr_rope_vec4(&o->a.rope) && o->a.rope.x.cols / o->a.rope.d_head % n == 0 &&
               goes(&o->a.rope.x, n, PER_SLICE);
    default:
        return false;
    }
}

static bool apart(const struct gr_ten *a, const struct gr_ten *b)
{
    return !gr_ten_overlap(a, b) || gr_ten_same(a, b);
}

static const struct gr_ten *operand(const struct gr_node *n, const struct gr_operand *o)
{
    return (const void *)((const char *)&n->a + o->offset);
}

/* True when a tensor of a step can be sliced beside those of the step `before`. */
static bool beside(const struct gr_ten *t, bool written, const struct gr_node *before)
{
    for (const struct gr_operand *o = gr_op_info(before->op)->operands; o->role; o++)
        if ((written || o->role != GR_ROLE_IN) && !apart(t, operand(before, o)))
            return false;
    return true;
}

/* True when node n's operands let it be the next step in slices. */
static bool follows(const struct epilogue *s, const struct gr_node *n)
{
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role; o++) {
        const struct gr_ten *t = operand(n, o);
        const bool written = o->role != GR_ROLE_IN;
        for (int i = 0; i < s->n_made; i++)
            if (!apart(t, &s->made[i].y) || (written && !apart(t, &s->made[i].res)) ||
                (written && gr_ten_overlap(t, &s->made[i].ids)))
                return false;
        for (int i = 0; i < s->n_step; i++)
            if (!beside(t, written, s->step[i]))
                return false;
    }
    return true;
}

/* Finds the nodes from the k-th on that can be done in n slices; returns their number. */
static int sliced(const struct gr_launcher *l, int k, int64_t n, struct epilogue *s)
{
    s->n_step = 0;
    for (int i = 0; n > 1 && i < s->n_made; i++)
        if (s->made[i].n_tile % n || s->made[i].y.cols != s->made[i].n_tile * GR_PACK_ROWS)
            return 0;
    while (s->n_step < GR_EPILOGUE_STEPS) {
        const struct gr_node *next = gr_launch_behind(l, k + s->n_step);
        if (!next || !cuts(next, n, s->threads) || (n > 1 && !follows(s, next)))
            break;
        s->step[s->n_step++] = next;
    }
    return s->n_step;
}

/* The number of slices in which most nodes can be done; of several such numbers the largest. */
static int64_t slices_of(const struct gr_launcher *l, int k, struct epilogue *s)
{
    int64_t best = 1;
    int most = sliced(l, k, 1, s);
    for (int64_t n = 2; n <= GR_EPILOGUE_SLICES; n++) {
        int found = sliced(l, k, n, s);
        if (found && found >= most)
            most = found, best = n;
    }
    return best;
}

/* The largest number of slices that are whole chunks of columns of y in which all n_step nodes can
 * be done; 0: there is none. */
static int64_t chunk_slices(const struct gr_launcher *l, int k, struct epilogue *s,
                            const struct gr_ten *y)
{
    const int n_step = s->n_step;
    for (int64_t n = GR_EPILOGUE_SLICES; n > 1; n--)
        if (y->cols % (n * GR_PACK_COLS) == 0 && sliced(l, k, n, s) == n_step)
            return n;
    s->n_step = n_step; /* the nodes are the same */
    return 0;
}

static void set_step(struct gr_epilogue_step *to, const struct gr_node *n)
{
    to->op = n->op;
    switch (n->op) {
    case GR_OP_NORM:
        to->a.norm = n->a.norm;
        break;
    case GR_OP_GLU:
        to->a.glu = n->a.glu;
        break;
    case GR_OP_EXPERT_SUM:
        to->a.expert_sum = n->a.expert_sum;
        break;
    case GR_OP_KV_STORE:
        to->a.kv_store = n->a.kv_store;
        break;
    default:
        to->a.rope = n->a.rope;
    }
}

/* The result of a node that packed x may be wanted of, or NULL. */
static const struct gr_ten *result(const struct gr_node *n)
{
    return n->op == GR_OP_NORM         ? &n->a.norm.y
           : n->op == GR_OP_GLU        ? &n->a.glu.y
           : n->op == GR_OP_EXPERT_SUM ? &n->a.expert_sum.y
                                       : NULL;
}

int gr_epilogue_behind(struct gr_launcher *l, int k, const struct gr_epilogue_made *made, int n,
                       uint32_t threads, struct gr_epilogue *t)
{
    struct epilogue s = {.made = made, .n_made = n, .threads = threads};
    int64_t n_slice = slices_of(l, k, &s);
    int n_sliced = sliced(l, k, n_slice, &s);
    const struct gr_node *next;
    while (s.n_step < GR_EPILOGUE_STEPS && (next = gr_launch_behind(l, k + s.n_step)) &&
           next->op == GR_OP_NORM && cuts(next, 1, threads))
        s.step[s.n_step++] = next;
    const struct gr_ten *y = s.n_step ? result(s.step[s.n_step - 1]) : &made[n - 1].y;
    struct gr_matmul_x_args packed_x;
    bool has_packed_x = y && (y->rows == 1 || goes(y, 1, WHOLE)) &&
                        gr_packed_x_ahead(l, k + s.n_step - 1, y, &packed_x);
    if (!s.n_step && !has_packed_x)
        return 0;
    bool all_sliced = has_packed_x && n_slice > 1 && n_sliced == s.n_step;
    int64_t n_chunk = all_sliced ? chunk_slices(l, k, &s, y) : 0;
    n_slice = n_chunk ? n_chunk : n_slice;
    *t = (struct gr_epilogue){.count = gr_launch_counters(l),
                              .n_slice = (uint32_t)n_slice,
                              .n_work = t->n_work / (uint32_t)n_slice,
                              .n_sliced = n_slice > 1 ? (uint32_t)n_sliced : 0,
                              .n_step = (uint32_t)s.n_step};
    for (int i = 0; i < s.n_step; i++)
        set_step(&t->step[i], s.step[i]);
    if (has_packed_x)
        t->packed_x = packed_x;
    if (n_chunk)
        t->slice_chunks = (uint32_t)(y->cols / (n_chunk * GR_PACK_COLS));
    return s.n_step;
}
