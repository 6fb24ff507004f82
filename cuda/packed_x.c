/* Packed x: its memory, the launch that writes it, and the node in front that can write it. */
#include "cuda/packed_x.h"

#include "cuda/grid.h"
#include "cuda/matmul_name.h"
#include "gr/kernel/packed_x.h"
#include "gr/pack.h"

/* Bytes of packed x that stay in L1 while weights are streamed: 256 KiB, less the shared memory of
 * two blocks. */
enum { MV_X_BYTES = 128 << 10 };

/* ---- layout ---- */

static int64_t packed_x_bytes(const struct gr_packed_x *x)
{
    int64_t chunks = gr_packed_x_chunks(x->units);
    return x->n * (8 + 1) * chunks * 64 + chunks * gr_packed_x_pitch(x->n) * 4;
}

/* Sets the addresses of n rows within memory of packed_x_bytes. */
static void lay_packed_x(struct gr_packed_x *x, void *p)
{
    x->x = p;
    x->sums = x->x + (int64_t)x->n * gr_packed_x_chunks(x->units) * 8 * 64;
    x->factor = (float *)(void *)(x->sums + (int64_t)x->n * gr_packed_x_chunks(x->units) * 64);
}

void gr_packed_x_scratch(struct gr_launcher *l, struct gr_packed_x *x)
{
    lay_packed_x(x, gr_launch_scratch(l, (size_t)packed_x_bytes(x)));
}

bool gr_packed_x_on_wgmma(const struct gr_launcher *l, const struct gr_ten *w)
{
    return gr_launch_sm90(l) && gr_launch_has(l, gr_matmul_name("tile_sm90", w).text);
}

enum gr_x_order gr_packed_x_order(const struct gr_launcher *l, const struct gr_ten *w,
                                  int64_t n_tok)
{
    const int64_t bytes =
        n_tok * gr_packed_x_chunks((int32_t)gr_pack_units(w->cols)) * (8 + 1) * 64;
    if (n_tok > GR_MV3_TOKENS)
        return GR_BY_STEP;
    return n_tok > 1 && bytes > MV_X_BYTES && gr_packed_x_on_wgmma(l, w) ? GR_BY_STEP : GR_BY_LANE;
}

/* ---- writing ---- */

int gr_packed_x_write(struct gr_launcher *l, const struct gr_matmul_x_args *a)
{
    return gr_launch(l, "gr_matmul_x", (struct gr_grid){(uint32_t)a->to.n, 1, 1},
                     GR_PACKED_X_THREADS, 0, a, sizeof *a);
}

/* Returns the name of this form of packed x among what is derived from a tensor. */
static const char *kind(bool bf16, enum gr_x_order order)
{
    static const char *const kinds[2][2] = {{"f16 by lane", "f16 by step"},
                                            {"bf16 by lane", "bf16 by step"}};
    return kinds[bf16][order];
}

/* Describes the packed x of x, which later nodes may read as well. True when it is still to be
 * written, as *a says. */
static bool lay_rows(struct gr_launcher *l, const struct gr_ten *x, const struct gr_ten *w,
                     enum gr_x_order order, struct gr_matmul_x_args *a)
{
    bool bf16 = w->dtype == GR_BF16, fresh;
    *a = (struct gr_matmul_x_args){.to.units = (int32_t)gr_pack_units(w->cols),
                                   .to.n = (int32_t)x->rows,
                                   .x = x->data,
                                   .row_bytes = x->row_bytes,
                                   .cols = (int32_t)x->cols,
                                   .n_row = (int32_t)x->rows,
                                   .bf16 = bf16,
                                   .by_step = order};
    lay_packed_x(&a->to, gr_launch_derived(l, x, kind(bf16, order), (size_t)packed_x_bytes(&a->to),
                                           order == GR_BY_LANE, &fresh));
    return fresh;
}

int gr_packed_x_of(struct gr_launcher *l, const struct gr_ten *x, const struct gr_ten *w,
                   enum gr_x_order order, struct gr_packed_x *to)
{
    struct gr_matmul_x_args a;
    bool fresh = lay_rows(l, x, w, order, &a);
    *to = a.to;
    return fresh ? gr_packed_x_write(l, &a) : 0;
}

/* ---- by the node in front ---- */

/* The next product behind node k that reads packed x; a router may stand before it. */
static const struct gr_node *next_product(const struct gr_launcher *l, int k)
{
    for (int i = 1; i <= 3; i++) {
        const struct gr_node *n = gr_launch_behind(l, k + i);
        if (!n || (n->op != GR_OP_ROUTE && n->op != GR_OP_MATMUL && n->op != GR_OP_MATMUL_ID))
            return NULL;
        if ((n->op == GR_OP_MATMUL && n->a.matmul.w.dtype != GR_F32) ||
            (n->op == GR_OP_MATMUL_ID && n->a.matmul_id.w.dtype != GR_F32))
            return n;
    }
    return NULL;
}

bool gr_packed_x_ahead(struct gr_launcher *l, int k, const struct gr_ten *y,
                       struct gr_matmul_x_args *packed_x)
{
    const struct gr_node *n = next_product(l, k);
    if (!n || (n->op == GR_OP_MATMUL_ID && n->a.matmul_id.ids.rows > GR_MV_TOKENS))
        return false;
    bool id = n->op == GR_OP_MATMUL_ID;
    const struct gr_ten *x = id ? &n->a.matmul_id.x : &n->a.matmul.x;
    const struct gr_ten *w = id ? &n->a.matmul_id.w : &n->a.matmul.w;
    if (!gr_ten_same(x, y))
        return false;
    gr_launch_renew(l);
    return lay_rows(l, y, w, id ? GR_BY_LANE : gr_packed_x_order(l, w, x->rows), packed_x);
}

bool gr_packed_x_ahead_by_lane(struct gr_launcher *l, int k, const struct gr_ten *y,
                               struct gr_matmul_x_args *packed_x)
{
    const struct gr_node *n = next_product(l, k);
    const bool id = n && n->op == GR_OP_MATMUL_ID;
    return n && (id || gr_packed_x_order(l, &n->a.matmul.w, n->a.matmul.x.rows) == GR_BY_LANE) &&
           gr_packed_x_ahead(l, k, y, packed_x);
}

enum { X = 1 }; /* of gr_node.ends: the first operand of MATMUL */

bool gr_packed_x_alone(const struct gr_launcher *l, int k, const struct gr_ten *y)
{
    const struct gr_node *first = gr_launch_behind(l, k + 1), *n;
    for (; (n = gr_launch_behind(l, k + 1)) && n->op == GR_OP_MATMUL &&
           gr_ten_same(&n->a.matmul.x, y) && n->a.matmul.w.dtype != GR_F32 &&
           (n->a.matmul.w.dtype == GR_BF16) == (first->a.matmul.w.dtype == GR_BF16);
         k++)
        if (n->ends & X)
            return true;
    return false;
}

/* ---- by groups ---- */

/* True when the node behind the k-th one is a product on wgmma, with f16, and y is read by nothing
 * else. */
static bool only_reader(const struct gr_launcher *l, int k, const struct gr_ten *y)
{
    const struct gr_node *n = gr_launch_behind(l, k + 1);
    if (!n || n->op != GR_OP_MATMUL || !(n->ends & X) || !gr_ten_same(&n->a.matmul.x, y))
        return false;
    const struct gr_ten *w = &n->a.matmul.w;
    return gr_packed_x_order(l, w, y->rows) == GR_BY_STEP && w->dtype != GR_BF16 &&
           gr_packed_x_on_wgmma(l, w) &&
           !gr_launch_by_library(l, w->dtype, w->rows, w->cols, y->rows);
}

bool gr_packed_x_groups_ahead(struct gr_launcher *l, int k, const struct gr_ten *y,
                              struct gr_matmul_x_args *packed_x)
{
    return only_reader(l, k, y) && gr_packed_x_ahead(l, k, y, packed_x);
}

bool gr_packed_x_groups_in_place(struct gr_launcher *l, int k, const struct gr_ten *y,
                                 struct gr_packed_x_groups *x)
{
    struct gr_packed_x to = {.units = (int32_t)gr_pack_units(y->cols), .n = (int32_t)y->rows};
    const int64_t bytes = packed_x_bytes(&to), groups = to.units * 32 / GR_PACKED_X_GROUP;
    if (!only_reader(l, k, y) || y->row_bytes != y->cols * 4 || (uintptr_t)y->data % 16 ||
        bytes + groups * to.n > y->rows * y->row_bytes)
        return false;
    lay_packed_x(&to, y->data);
    *x = (struct gr_packed_x_groups){to, (int8_t *)y->data + bytes};
    gr_launch_derive_in_place(l, y, kind(false, GR_BY_STEP), (size_t)bytes);
    return true;
}

int gr_packed_x_level(struct gr_launcher *l, const struct gr_packed_x_groups *x)
{
    return gr_launch(l, "gr_matmul_x_level", (struct gr_grid){(uint32_t)x->to.n, 1, 1},
                     GR_LEVEL_THREADS, 0, x, sizeof *x);
}
