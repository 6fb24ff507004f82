/* The driver of matrix products: groups of entries, conversion of x, work items. */
#include "cpu/fast/matmul.h"

#include <string.h>

#include "cpu/fast/unit.h"

static struct mm mm_of_heads(const struct gr_args_head_matmul *a)
{
    return (struct mm){.x = &a->x,
                       .w = &a->w,
                       .y = &a->y,
                       .scale = 1,
                       .n_entry = a->x.rows,
                       .share = 1,
                       .n_in = a->w.cols,
                       .n_out = a->w.rows,
                       .n_pass = a->x.cols / a->w.batch - a->w.cols,
                       .heads = true};
}

static struct mm operands_of(const struct gr_node *node)
{
    if (node->op == GR_OP_HEAD_MATMUL)
        return mm_of_heads(&node->a.head_matmul);
    if (node->op == GR_OP_MATMUL) {
        const struct gr_args_matmul *a = &node->a.matmul;
        return (struct mm){.x = &a->x,
                           .w = &a->w,
                           .b = &a->b,
                           .res = &a->res,
                           .y = &a->y,
                           .scale = a->scale,
                           .n_entry = a->x.rows,
                           .share = 1,
                           .n_in = a->w.cols,
                           .n_out = a->w.rows};
    }
    const struct gr_args_matmul_id *a = &node->a.matmul_id;
    return (struct mm){.x = &a->x,
                       .w = &a->w,
                       .s = &a->s,
                       .b = &a->b,
                       .y = &a->y,
                       .ids = &a->ids,
                       .scale = 1,
                       .n_entry = a->y.rows,
                       .share = a->y.rows / a->x.rows,
                       .n_in = a->w.cols,
                       .n_out = a->w.rows};
}

static struct mm mm_of(const struct gr_node *node)
{
    struct mm m = operands_of(node);
    m.each = node->by_row ? INT64_MAX
             : m.ids      ? (m.n_entry + m.w->batch - 1) / m.w->batch
                          : m.n_entry;
    return m;
}

/* Returns the engine for the weights' type; NULL: the reference is used. */
static const struct mm_engine *engine_of(const struct mm *m, const struct mm_engines *engines)
{
    switch (m->w->dtype) {
    case GR_F32:
    case GR_F16:
        return engines->floats;
    case GR_BF16:
        return FN(mm_has_bf16)() ? engines->bf16 : engines->floats;
#define TYPE(name) case GR_##name:
        UNIT_TYPES(TYPE)
#undef TYPE
        return engines->int8;
    default:
        return NULL;
    }
}

static const struct mm_engines own = {&FN(mm_float), &FN(mm_bf16), &FN(mm_int8)};

bool FN(mm_takes)(const struct gr_node *node)
{
    struct mm m = mm_of(node);
    return engine_of(&m, &own);
}

/* ---- groups ---- */

static int64_t max_groups(const struct mm *m)
{
    return m->heads ? m->w->batch : m->ids ? GR_MIN(m->w->batch, m->n_entry) : 1;
}

/* Returns the number of places for converted rows: each group begins at a multiple of 4 and has a
 * multiple of 4. */
static int64_t n_places(const struct mm *m)
{
    return m->n_entry * (m->heads ? m->w->batch : 1) + 4 * max_groups(m);
}

static size_t groups_bytes(const struct mm *m)
{
    size_t n_expert = (size_t)m->w->batch;
    size_t order = m->ids ? (size_t)m->n_entry * sizeof(int32_t) + n_expert * sizeof(int64_t) : 0;
    return GR_PAD((size_t)max_groups(m) * sizeof(struct mm_group), 64) + GR_PAD(order, 64);
}

static int32_t expert_of(const struct mm *m, int64_t entry)
{
    return gr_cpu_i32(m->ids, entry / m->ids->cols)[entry % m->ids->cols];
}

/* Sorts the entries by expert, stably. Every thread does it redundantly, which is quicker than
 * waiting. Returns the number of groups. */
static int64_t group_entries(const struct mm *m, void *memory, struct mm_group *group)
{
    int64_t *first = memory, n_group = 0, at = 0, sum = 0;
    int32_t *order = (int32_t *)(first + m->w->batch);
    memset(first, 0, (size_t)m->w->batch * sizeof *first);
    for (int64_t i = 0; i < m->n_entry; i++)
        first[expert_of(m, i)]++;
    for (int64_t e = 0; e < m->w->batch; e++) {
        int64_t n = first[e];
        first[e] = sum;
        if (n)
            group[n_group++] =
                (struct mm_group){.expert = e, .n = n, .at = at, .entry = order + sum};
        sum += n, at += GR_PAD(n, 4);
    }
    for (int64_t i = 0; i < m->n_entry; i++)
        order[first[expert_of(m, i)]++] = (int32_t)i;
    return n_group;
}

static int64_t groups_of(const struct mm *m, char *memory, struct mm_group **group)
{
    *group = (struct mm_group *)(void *)memory;
    for (int64_t h = 0; m->heads && h < m->w->batch; h++)
        (*group)[h] = (struct mm_group){.expert = h,
                                        .n = m->n_entry,
                                        .x_at = h * (m->n_in + m->n_pass),
                                        .y_at = h * (m->n_pass + m->n_out) + m->n_pass,
                                        .at = h * GR_PAD(m->n_entry, 4)};
    if (m->heads)
        return m->w->batch;
    if (m->ids)
        return group_entries(m, memory + GR_PAD((size_t)max_groups(m) * sizeof **group, 64),
                             *group);
    **group = (struct mm_group){.n = m->n_entry};
    return 1;
}

/* ---- running ---- */

static void convert(const struct mm *m, const struct mm_engine *e, const struct mm_group *group,
                    int64_t n_group, const struct gr_cpu_work *w, void *local)
{
    int64_t n = 0; /* pieces so far, assigned to the threads round-robin */
    for (int64_t k = 0; k < n_group; k++)
        for (int64_t lo = 0; lo < group[k].n; lo += e->grain)
            for (int64_t col = 0; col < m->n_in; col += GR_MIN(e->columns, m->n_in))
                if (n++ % w->nth == w->ith)
                    e->convert(m, &group[k], lo, GR_MIN(lo + e->grain, group[k].n), col, w->shared,
                               local);
}

/* Copies the columns of heads that are not multiplied; rows are divided among the threads. */
static void pass_on(const struct mm *m, const struct gr_cpu_work *w)
{
    struct gr_cpu_share s = gr_cpu_share(m->n_entry, 1, w);
    for (int64_t t = s.lo; t < s.hi; t++)
        for (int64_t h = 0; h < m->w->batch; h++)
            memcpy(gr_cpu_f32(m->y, t) + h * (m->n_pass + m->n_out),
                   gr_cpu_f32(m->x, t) + h * (m->n_in + m->n_pass) + m->n_in,
                   (size_t)m->n_pass * sizeof(float));
}

void FN(mm_run)(const struct gr_node *node, const struct gr_cpu_work *w,
                const struct mm_engines *engines)
{
    struct mm m = mm_of(node);
    m.n_thread = w->nth;
    const struct mm_engine *e = engine_of(&m, engines);
    struct mm_group *group;
    int64_t n_group = groups_of(&m, w->local, &group);
    char *local = (char *)w->local + groups_bytes(&m);
    int64_t chunk = e->chunk(&m), n_chunk = (m.n_out + chunk - 1) / chunk;
    if (m.n_pass)
        pass_on(&m, w);
    if (e->convert) {
        convert(&m, e, group, n_group, w, local);
        gr_cpu_barrier(w);
    }
    for (int64_t i; (i = gr_cpu_take(w, n_group, n_chunk)) < n_group * n_chunk;) {
        int64_t lo = i % n_chunk * chunk;
        e->multiply(&m, &group[i / n_chunk], lo, GR_MIN(lo + chunk, m.n_out), w->shared, local);
    }
}

struct gr_cpu_need FN(mm_need)(const struct gr_node *node)
{
    struct mm m = mm_of(node);
    const struct mm_engine *e = engine_of(&m, &own);
    return (struct gr_cpu_need){e->shared_bytes ? e->shared_bytes(&m, n_places(&m)) : 0,
                                groups_bytes(&m) + e->local_bytes(&m)};
}

static void run(const struct gr_node *node, const struct gr_cpu_work *w)
{
    FN(mm_run)(node, w, &own);
}

const struct gr_cpu_impl FN(matmul) = {run, FN(mm_need), FN(mm_takes)},
                         FN(matmul_id) = {run, FN(mm_need), FN(mm_takes)},
                         FN(head_matmul) = {run, FN(mm_need), FN(mm_takes)};
