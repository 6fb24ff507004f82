/* Products of many tokens by a library: weights are unpacked to rows of 16-bit floats (f32 of F32
 * weights) in scratch memory, a slab of rows at a time, the library multiplies a slab, and a kernel
 * makes y of the sums. One path for all types: in memory every matrix is packed (gr/pack.h). */
#include <stdio.h>

#include "base/checked.h"
#include "cuda/matmul_plain.h"
#include "gr/kernel/matmul_plain.h"
#include "gr/status.h"

/* A slab of a matrix with 4096 columns has 4096 rows: tiles of 128 by 128 for every multiprocessor
 * at 512 tokens, and the L2 cache of a 9.0 device holds most of it. */
int64_t gr_plain_slab_bytes = 32 << 20;

struct plain {
    const struct gr_matmul_args *m;
    struct gr_product_shape shape; /* of a whole slab */
    int64_t n_tile, slab;          /* tiles of the matrix, of a slab */
    int64_t row_bytes;             /* of an unpacked row */
    const void *x;
    uint8_t *w;
    float *sum;
    void *workspace;
};

static int64_t up(int64_t n, int64_t per)
{
    return (n + per - 1) / per;
}

/* Largest power of two, up to 256, that x and its rows are aligned to. */
static uint32_t alignment(const void *x, int64_t row_bytes)
{
    uint64_t bits = (uintptr_t)x | (uint64_t)row_bytes | 256;
    return (uint32_t)(bits & (~bits + 1));
}

/* Slabs are as equal as tiles allow, and of the same rows for any number of tokens: a plan of fewer
 * needs no more memory. */
static struct plain lay(struct gr_launcher *l, const struct gr_matmul_args *m)
{
    bool f32 = m->w.dtype == GR_F32;
    int64_t pitch = gr_pack_units(m->w.cols) * GR_PACK_UNIT, bytes = pitch * (f32 ? 4 : 2);
    struct plain p = {.m = m, .row_bytes = bytes, .x = f32 ? m->x32 : m->x.x};
    p.n_tile = up(m->w.offset + m->w.rows, GR_PACK_ROWS);
    int64_t most = GR_MAX(1, gr_plain_slab_bytes / (bytes * GR_PACK_ROWS));
    p.slab = up(p.n_tile, up(p.n_tile, most));
    int64_t rows = p.slab * GR_PACK_ROWS;
    p.shape = (struct gr_product_shape){
        .dtype = f32 || m->w.dtype == GR_BF16 ? m->w.dtype : GR_F16,
        .x_align = f32 ? alignment(m->x32, m->x_row_bytes) : 128,
        .rows = rows,
        .n_tok = m->n_tok,
        .cols = f32 ? m->w.cols : pitch,
        .w_pitch = pitch,
        .x_pitch = f32 ? m->x_row_bytes / 4 : pitch,
    };
    p.workspace = gr_launch_scratch(l, gr_launch_workspace(l));
    p.w = gr_launch_scratch(l, (size_t)(rows * bytes));
    p.sum = gr_launch_scratch(l, (size_t)(rows * m->n_tok) * 4);
    return p;
}

static int64_t tiles_from(const struct plain *p, int64_t tile)
{
    return GR_MIN(p->slab, p->n_tile - tile);
}

static int find(struct gr_launcher *l, const struct plain *p, int64_t tile,
                const struct gr_product_plan **plan)
{
    struct gr_product_shape shape = p->shape;
    shape.rows = tiles_from(p, tile) * GR_PACK_ROWS;
    return gr_launch_product_find(l, &shape, plan);
}

static int unpack(struct gr_launcher *l, const struct plain *p, int64_t tile)
{
    const uint32_t type = p->m->w.dtype;
    struct gr_matmul_plain_args a = {p->m->w, p->w, tile, (int32_t)gr_pack_units(p->m->w.cols)};
    bool whole = gr_pack_is_whole(type);
    char name[48];
    snprintf(name, sizeof name, "gr_matmul_plain_%s", whole ? "any" : gr_dtype_name(type));
    int64_t units = whole || type == GR_F32 ? 1 : gr_pack_step_units(type); /* of a warp */
    struct gr_grid grid = {(uint32_t)tiles_from(p, tile),
                           (uint32_t)up(a.units, units * GR_PLAIN_WARPS), 1};
    return gr_launch(l, name, grid, 32 * GR_PLAIN_WARPS, 0, &a, sizeof a);
}

static int finish(struct gr_launcher *l, const struct plain *p, int64_t tile)
{
    const struct gr_matmul_plain_y_args a = {*p->m, p->sum, tile * GR_PACK_ROWS - p->m->w.offset,
                                             (int32_t)(tiles_from(p, tile) * GR_PACK_ROWS)};
    struct gr_grid grid = {(uint32_t)p->m->n_tok, (uint32_t)up(a.n_col, GR_PLAIN_COLS), 1};
    return gr_launch(l, "gr_matmul_plain_y", grid, 256, 0, &a, sizeof a);
}

/* MXFP4 has powers of two that f16 has not. */
static bool is_wanted(const struct gr_launcher *l, const struct gr_matmul_args *m)
{
    return m->w.dtype != GR_MXFP4 &&
           gr_launch_by_library(l, m->w.dtype, m->w.rows, m->w.cols, m->n_tok);
}

int gr_matmul_plain(struct gr_launcher *l, const struct gr_matmul_args *m, bool *done)
{
    const struct gr_product_plan *plan;
    *done = false;
    if (!is_wanted(l, m))
        return 0;
    struct plain p = lay(l, m);
    for (int64_t tile = 0; tile < p.n_tile; tile += p.slab) { /* whole slabs, and the last */
        int rc = find(l, &p, tile, &plan);
        if (rc || !plan)
            return rc;
    }
    int rc = 0;
    for (int64_t tile = 0; tile < p.n_tile && !rc; tile += p.slab) {
        rc = unpack(l, &p, tile);
        if (!rc)
            rc = find(l, &p, tile, &plan);
        if (!rc)
            rc = gr_launch_product(l, plan, p.w, p.x, p.sum, p.workspace);
        if (!rc)
            rc = finish(l, &p, tile);
    }
    *done = true;
    return rc;
}
