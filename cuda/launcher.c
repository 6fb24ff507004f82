/* The services of launch.h, and the walk over a segment's nodes that notes their launches. */
#include "cuda/launch.h"

#include <string.h>

#include "base/checked.h"
#include "cuda/build.h"
#include "cuda/runtime.h"
#include "gr/status.h"

#define ALIGN 256
#define NOWHERE ((char *)(uintptr_t)ALIGN) /* scratch while measuring */
#define ARGS_ALIGN 64
#define GRID_YZ 65535 /* CUDA C++ Programming Guide, "Technical specifications" */

/* A scratch piece has what is derived at its beginning and the node's own behind it. */
struct gr_launcher {
    struct gr_cuda_backend *c;
    struct gr_cuda_notes *notes; /* NULL while measuring */
    struct gr_cuda_need need;    /* most that is asked for of each, padded */
    const struct gr_node *node;  /* that is noted, and how many stand behind it */
    int n_behind;
    int n_skip; /* of these are done already */
    bool keep;
    size_t node_used;
    struct gr_ten x; /* what is derived now, of this kind and size; x.data NULL: nothing */
    const char *kind;
    size_t bytes;
    int rc; /* of a call that returns none */
};

const struct gr_cuda_facts *gr_launch_facts(const struct gr_launcher *l)
{
    return &l->c->device->facts;
}

/* ---- tensors ---- */

bool gr_ten_same(const struct gr_ten *a, const struct gr_ten *b)
{
    return a->data == b->data && a->batch == b->batch && a->rows == b->rows && a->cols == b->cols &&
           a->row_bytes == b->row_bytes && a->dtype == b->dtype && a->packed == b->packed;
}

/* Bytes from a tensor's first to behind its last. */
static uint64_t extent(const struct gr_ten *t)
{
    uint64_t rows = (uint64_t)(t->batch * t->rows);
    return (rows - 1) * (uint64_t)t->row_bytes + gr_row_bytes(t->dtype, (uint64_t)t->cols);
}

bool gr_ten_overlap(const struct gr_ten *a, const struct gr_ten *b)
{
    uint64_t pa = (uintptr_t)a->data, pb = (uintptr_t)b->data;
    return gr_ten_is(a) && gr_ten_is(b) && pa < pb + extent(b) && pb < pa + extent(a);
}

/* ---- launches ---- */

static int note(struct gr_cuda_notes *n, const struct gr_cuda_launch *launch, const void *args,
                size_t args_bytes)
{
    static const char zero[ARGS_ALIGN] = {0};
    size_t pad = GR_PAD(n->args.n, ARGS_ALIGN) - n->args.n;
    int rc = gr_vec_append(&n->args, zero, pad, 1);
    struct gr_cuda_launch l = *launch;
    l.args = n->args.n;
    if (!rc)
        rc = gr_vec_append(&n->args, args, args_bytes, 1);
    return rc ? rc : gr_vec_append(&n->launch, &l, 1, sizeof l);
}

int gr_launch(struct gr_launcher *l, const char *kernel, struct gr_grid grid, uint32_t threads,
              uint32_t smem, const void *args, size_t args_bytes)
{
    struct gr_cuda_device *d = l->c->device;
    struct gr_cuda_kernel *k;
    int rc = gr_cuda_kernel(d, kernel, l->c->opt.no_sm90, &k);
    if (rc)
        return rc;
    if (!k)
        return gr_fail(GR_E_UNSUPPORTED,
                       "%s: this build has no kernel %s that the driver loads on it: there is code "
                       "for %s",
                       d->name, kernel, gr_cuda_build.archs);
    if (grid.x > INT32_MAX || grid.y > GRID_YZ || grid.z > GRID_YZ)
        return gr_fail(GR_E_UNSUPPORTED, "%s: %s needs %u x %u x %u blocks, more than a launch has",
                       d->name, kernel, grid.x, grid.y, grid.z);
    if ((uint64_t)smem + k->fixed > (uint64_t)d->facts.smem_max)
        return gr_fail(GR_E_INTERNAL,
                       "%s: %s asks for %u bytes of shared memory beside %u of its own, there are "
                       "%d",
                       d->name, kernel, smem, k->fixed, d->facts.smem_max);
    if (!l->notes || !grid.x || !grid.y || !grid.z) /* a grid of nothing has nothing to do */
        return 0;
    rc = gr_cuda_kernel_smem(d, k, smem);
    struct gr_cuda_launch launch = {k, grid, threads, smem, 0};
    return rc ? rc : note(l->notes, &launch, args, args_bytes);
}

bool gr_launch_has(const struct gr_launcher *l, const char *kernel)
{
    struct gr_cuda_kernel *k = NULL;
    return gr_cuda_kernel(l->c->device, kernel, l->c->opt.no_sm90, &k) == 0 && k;
}

uint32_t gr_launch_smem(const struct gr_launcher *l, const char *kernel)
{
    struct gr_cuda_device *d = l->c->device;
    struct gr_cuda_kernel *k = NULL;
    uint32_t most = (uint32_t)d->facts.smem_max;
    return gr_cuda_kernel(d, kernel, l->c->opt.no_sm90, &k) || !k || k->fixed > most
               ? 0
               : most - k->fixed;
}

int32_t gr_launch_resident(const struct gr_launcher *l, const char *kernel, uint32_t smem)
{
    struct gr_cuda_device *d = l->c->device;
    struct gr_cuda_kernel *k = NULL;
    const struct gr_cuda_facts *f = &d->facts;
    if (gr_cuda_kernel(d, kernel, l->c->opt.no_sm90, &k) || !k)
        return 0;
    return f->smem_sm / GR_MAX(1, (int32_t)(smem + k->fixed) + f->smem_reserved);
}

/* ---- scratch ---- */

/* What lies `at` bytes into the scratch piece; more than was measured is an error of a launcher. */
static void *place(struct gr_launcher *l, size_t at, size_t bytes, size_t end)
{
    if (!l->notes)
        return NOWHERE;
    if (gr_in(at, bytes, end))
        return (char *)(uintptr_t)l->c->scratch + at;
    l->rc = gr_fail(GR_E_INTERNAL, "a launcher asks for more scratch memory than it measured");
    return NOWHERE;
}

void *gr_launch_scratch(struct gr_launcher *l, size_t bytes)
{
    size_t at = l->node_used;
    l->node_used += GR_PAD(bytes, ALIGN);
    if (!l->notes)
        l->need.node = GR_MAX(l->need.node, l->node_used);
    return place(l, l->need.derived + at, bytes, l->need.derived + l->need.node);
}

/* While measuring, nothing is ever derived already: that takes the most. */
void *gr_launch_derived(struct gr_launcher *l, const struct gr_ten *x, const char *kind,
                        size_t bytes, bool *fresh)
{
    *fresh =
        !l->x.data || !gr_ten_same(&l->x, x) || l->bytes != bytes || strcmp(l->kind, kind) != 0;
    if (!l->notes)
        l->need.derived = GR_MAX(l->need.derived, GR_PAD(bytes, ALIGN));
    else
        l->x = *x, l->kind = kind, l->bytes = bytes;
    return place(l, 0, bytes, l->need.derived);
}

/* What a node wrote is no longer what something was derived from. */
static void forget(struct gr_launcher *l, const struct gr_node *n)
{
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role && l->x.data; o++) {
        const struct gr_ten *t = (const void *)((const char *)&n->a + o->offset);
        if (o->role != GR_ROLE_IN && gr_ten_overlap(t, &l->x))
            l->x.data = NULL;
    }
}

/* ---- fusions ---- */

const struct gr_node *gr_launch_behind(const struct gr_launcher *l, int k)
{
    return l->notes && k <= l->n_behind ? l->node + k : NULL;
}

void gr_launch_skip(struct gr_launcher *l, int n)
{
    l->n_skip = n;
}

uint32_t *gr_launch_counters(const struct gr_launcher *l)
{
    return (uint32_t *)(uintptr_t)l->c->counters;
}

void gr_launch_renew(struct gr_launcher *l)
{
    l->x.data = NULL, l->keep = true;
}

/* ---- tensor maps ---- */

enum { MAP_F16 = 6, MAP_BF16 = 9, MAP_SWIZZLE_128 = 3, MAP_L2_256 = 3 }; /* CUtensorMap* */

int gr_launch_tensor_map(struct gr_launcher *l, void *map, const void *data, bool bf16,
                         int64_t rows, int64_t cols, int64_t row_bytes, int box_rows, int box_cols)
{
    const uint64_t dim[2] = {(uint64_t)cols, (uint64_t)rows}, stride[1] = {(uint64_t)row_bytes};
    const uint32_t box[2] = {(uint32_t)box_cols, (uint32_t)box_rows}, step[2] = {1, 1};
    if (!l->notes)
        return 0;
    return CU(l->c, tensor_map, map, bf16 ? MAP_BF16 : MAP_F16, 2, (void *)(uintptr_t)data, dim,
              stride, box, step, 0, MAP_SWIZZLE_128, MAP_L2_256, 0);
}

/* ---- walking a segment ---- */

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
    if (!rc && l->n_skip) { /* what its launch derived last stays */
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

void gr_cuda_notes_fini(struct gr_cuda_notes *n)
{
    gr_vec_fini(&n->launch);
    gr_vec_fini(&n->args);
}
