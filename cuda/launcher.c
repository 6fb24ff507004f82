/* The services that launchers ask for (launch.h). */
#include "cuda/launcher.h"

#include <string.h>

#include "base/checked.h"
#include "cuda/build.h"
#include "gr/status.h"

#define ALIGN 256
#define NOWHERE ((char *)(uintptr_t)ALIGN) /* scratch while measuring */
#define GRID_YZ 65535 /* CUDA C++ Programming Guide, "Technical specifications" */

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

/* Bytes from the first of a tensor to behind its last. */
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

int gr_launch(struct gr_launcher *l, const char *kernel, struct gr_grid grid, uint32_t threads,
              uint32_t smem, const void *args, size_t args_bytes)
{
    return gr_launch_clusters(l, kernel, grid, 1, threads, smem, args, args_bytes);
}

int gr_launch_clusters(struct gr_launcher *l, const char *kernel, struct gr_grid grid,
                       uint32_t n_block, uint32_t threads, uint32_t smem, const void *args,
                       size_t args_bytes)
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
    const struct gr_cuda_launch launch = {
        .kernel = k, .grid = grid, .n_block = n_block, .threads = threads, .smem = smem};
    return rc ? rc : gr_cuda_notes_add(l->notes, &launch, args, args_bytes);
}

int gr_launch_product(struct gr_launcher *l, const struct gr_product_plan *plan, const void *w,
                      const void *x, float *y, void *workspace)
{
    const struct gr_cuda_launch launch = {.plan = plan};
    const struct gr_cuda_product p = {w, x, y, workspace};
    return l->notes ? gr_cuda_notes_add(l->notes, &launch, &p, sizeof p) : 0;
}

bool gr_launch_sm90(const struct gr_launcher *l)
{
    return l->c->device->facts.cc == 90 && !l->c->opt.no_sm90;
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

/* The address `at` bytes into the scratch piece. More than was measured is a launcher's error. */
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

/* While measuring, nothing counts as derived already: that asks for the most scratch. */
void *gr_launch_derived(struct gr_launcher *l, const struct gr_ten *x, const char *kind,
                        size_t bytes, bool in_turn, bool *fresh)
{
    size_t half = l->need.derived / 2 / ALIGN * ALIGN;
    *fresh =
        !l->x.data || !gr_ten_same(&l->x, x) || l->bytes != bytes || strcmp(l->kind, kind) != 0;
    if (!l->notes)
        l->need.derived = GR_MAX(l->need.derived, GR_PAD(bytes, ALIGN) * (in_turn ? 2 : 1));
    else
        l->x = *x, l->kind = kind, l->bytes = bytes, l->in_second ^= *fresh, l->in_place &= !*fresh;
    if (l->in_place)
        return x->data;
    return place(l, in_turn && l->in_second ? half : 0, bytes, l->need.derived);
}

void gr_launch_derive_in_place(struct gr_launcher *l, const struct gr_ten *x, const char *kind,
                               size_t bytes)
{
    gr_launch_renew(l);
    l->x = *x, l->kind = kind, l->bytes = bytes, l->in_place = true;
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
