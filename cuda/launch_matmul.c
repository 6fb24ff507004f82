/* MATMUL, MATMUL_ID and HEAD_MATMUL: the choice of a kernel.
 *
 * F32 weights are multiplied in f32. All others meet activations of 16 bits, written as packed x
 * (gr/kernel/matmul.h) by a launch in front: once for all products of the same x. Few tokens are a
 * stream of weights, many are tiles, on wgmma where the device has it, or a library's product
 * (cuda/matmul_plain.h); gr_packed_x_order (cuda/packed_x.h) decides which are few. */
#include <string.h>

#include "base/checked.h"
#include "cuda/grid.h"
#include "cuda/matmul_name.h"
#include "cuda/matmul_plain.h"
#include "cuda/packed_x.h"
#include "gr/kernel/epilogue.h"
#include "gr/kernel/packed_x.h"
#include "gr/pack.h"
#include "gr/status.h"

/* Constants of the kernels, with the same values there. */
enum {
    WARPS = 8,
    BLOCKS_EACH = 2,       /* of so many warps, a multiprocessor */
    RING_BYTES = 64 << 10, /* of weights on their way to a multiprocessor */
    F32_TILE = 64,
    F32_MV_TOKENS = 32,
    F32_BLOCKS = 128, /* that columns are divided for: about a multiprocessor each */
    F32_AHEAD = 2,    /* units that a warp asks for at once */
    TILE_TOKENS = 64,
    TILE_ROWS = 128,
    TILE_X_SMEM = 4 * TILE_TOKENS * 128,
    TILE_SUM_SMEM = 2 * TILE_TOKENS * 64,
    TILE_SMEM = TILE_X_SMEM + TILE_SUM_SMEM,
    X_THREADS = GR_PACKED_X_THREADS,
};

static uint32_t up(int64_t n, int64_t per)
{
    return (uint32_t)((n + per - 1) / per);
}

static int64_t n_tile(const struct gr_ten *w)
{
    return up(w->offset + w->rows, GR_PACK_ROWS);
}

/* Arguments that all forms of product have. */
static struct gr_matmul_args base(const struct gr_ten *w, const struct gr_ten *y)
{
    return (struct gr_matmul_args){.w = *w,
                                   .x.units = (int32_t)gr_pack_units(w->cols),
                                   .n_tok = (int32_t)y->rows,
                                   .scale = 1,
                                   .y = y->data,
                                   .y_row_bytes = y->row_bytes};
}

/* ---- one launch of a product ---- */

/* Bytes of shared memory for the grid and n chunks of a type whose blocks are kept whole. */
static uint32_t whole_bytes(const struct gr_ten *w, uint32_t n)
{
    return (uint32_t)gr_whole_grid_bytes(w->dtype) + n * (uint32_t)gr_pack_chunk_bytes(w->dtype, 8);
}

/* Warps of a streaming kernel's block, which take turns at the chunks of a tile. */
static uint32_t stream_warps(const struct gr_matmul_args *m)
{
    return GR_MIN(WARPS, up(m->x.units, gr_mv_slot_units(m->w.dtype)));
}

/* Bytes of shared memory for the sums of a tile. */
static uint32_t stream_sums(uint32_t warps, int group)
{
    return warps * GR_PACK_ROWS * (uint32_t)group * 4;
}

/* A product of few tokens an item, `group` of them a block; a block for each tile and item. */
static int stream(struct gr_launcher *l, const struct gr_matmul_args *m, int64_t n_item)
{
    bool few = m->n_tok <= GR_MV_TOKENS;
    int group = few ? GR_MV_TOKENS : GR_MV3_TOKENS;
    struct gr_grid grid = {(uint32_t)(n_tile(&m->w) * n_item), up(m->n_tok, group), 1};
    uint32_t warps = stream_warps(m), smem = stream_sums(warps, group);
    if (gr_pack_is_whole(m->w.dtype))
        smem = GR_MAX(smem, whole_bytes(&m->w, warps * GR_WHOLE_SLOTS));
    return gr_launch(l, gr_matmul_name(few ? "mv" : "mv3", &m->w).text, grid, 32 * warps, smem, m,
                     sizeof *m);
}

/* Number of parts that the columns of F32 weights are divided in: the same for every number of
 * tokens, as sums depend on it. */
static uint32_t f32_splits(const struct gr_matmul_args *m, uint32_t tiles, uint32_t warps)
{
    uint32_t most = up(m->x.units, (int64_t)warps * F32_AHEAD);
    return m->ids || 2 * tiles > F32_BLOCKS ? 1 : GR_MIN(F32_BLOCKS / GR_MAX(tiles, 1), most);
}

/* The ROUTE that is the next node and reads the product's result, so that the product's last block
 * can do it; or NULL. */
static const struct gr_args_route *route_behind(const struct gr_launcher *l)
{
    const struct gr_node *n = gr_launch_behind(l, 0), *next = gr_launch_behind(l, 1);
    if (!next || n->op != GR_OP_MATMUL || next->op != GR_OP_ROUTE)
        return NULL;
    const struct gr_args_route *a = &next->a.route;
    bool goes = gr_ten_same(&n->a.matmul.y, &a->logits) && a->logits.rows <= GR_MV_TOKENS &&
                gr_route_bytes(a) <= gr_launch_facts(l)->smem_max;
    return goes ? a : NULL;
}

/* A product with F32 weights, of at most F32_MV_TOKENS tokens an item. */
static int stream_f32(struct gr_launcher *l, const struct gr_matmul_args *m, int64_t n_item)
{
    uint32_t tiles = (uint32_t)(n_tile(&m->w) * n_item), groups = up(m->n_tok, GR_MV_TOKENS);
    uint32_t warps = GR_MIN(WARPS, (uint32_t)m->x.units), smem = stream_sums(warps, GR_MV_TOKENS);
    struct gr_matmul_f32_args a = {
        .m = *m, .n_split = f32_splits(m, tiles, warps), .count = gr_launch_counters(l)};
    const struct gr_args_route *route = route_behind(l);
    if (a.n_split > 1) /* for the most tokens, so that plans of fewer have asked for as much */
        a.part = gr_launch_scratch(l, (size_t)(a.n_split * tiles) * 16 * F32_MV_TOKENS * 4);
    if (route) {
        a.route = *route;
        a.n_router = (uint32_t)gr_route_warps(route, GR_MIN(warps, route->logits.rows));
        smem = GR_MAX(smem, a.n_router * (uint32_t)gr_route_bytes(route));
        gr_launch_skip(l, 1);
    }
    return gr_launch(l, "gr_matmul_f32_mv", (struct gr_grid){tiles * a.n_split, groups, 1},
                     32 * warps, smem, &a, sizeof a);
}

/* True when a kernel that takes several products multiplies few tokens of it. */
static bool has_parts(const struct gr_matmul_args *m)
{
    return m->w.dtype != GR_F32 && !gr_pack_is_whole(m->w.dtype);
}

/* Counts the tiles of a launch, as one slice. */
static void lay_work(struct gr_matmul_mv_args *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->n; i++)
        n += n_tile(&p->part[i].w) * p->n_item;
    p->epilogue.n_slice = 1, p->epilogue.n_work = (uint32_t)n;
}

/* Number of blocks for n pieces of work: one for each, or else as many as the device holds at once
 * but one. Where the launch in front does its epilogue, that place is not free yet, and a block
 * that came into it late would be late with an equal share. */
static uint32_t stream_blocks(const struct gr_launcher *l, const char *kernel, uint32_t warps,
                              uint32_t smem, uint32_t n)
{
    uint32_t each = BLOCKS_EACH * WARPS / warps,
             held = (uint32_t)gr_launch_resident(l, kernel, smem),
             places = (uint32_t)gr_launch_facts(l)->n_sm * GR_MAX(1, GR_MIN(each, held));
    return n <= places ? n : places - 1;
}

/* Bytes of shared memory for n slots of each warp's ring, with their barriers. */
static uint32_t ring_bytes(uint32_t dtype, uint32_t warps, uint32_t n)
{
    return warps * n * (gr_mv_slot_bytes(dtype, gr_mv_slot_units(dtype)) + 8);
}

/* Number of slots that bring RING_BYTES to a multiprocessor, at least two; fewer where its shared
 * memory would not hold all blocks. */
static uint32_t ring_slots(const struct gr_launcher *l, const char *kernel, uint32_t dtype,
                           uint32_t warps, uint32_t sums)
{
    uint32_t n = GR_MAX(2, up(RING_BYTES, ring_bytes(dtype, BLOCKS_EACH * WARPS, 1)));
    while (n > 1 && (uint32_t)gr_launch_resident(l, kernel, sums + ring_bytes(dtype, warps, n)) <
                        BLOCKS_EACH * WARPS / warps)
        n--;
    return n;
}

/* Some types have a kernel for one token an item. */
static int stream_parts(struct gr_launcher *l, struct gr_matmul_mv_args *p)
{
    const struct gr_matmul_args *m = &p->part[0];
    struct gr_matmul_name name = gr_matmul_name("mv1", &m->w);
    int group = 1; /* tokens of an item */
    const bool one = m->ids || m->n_tok == 1;
    if (!one || !gr_launch_has(l, name.text)) {
        bool few = m->n_tok <= GR_MV_TOKENS;
        name = gr_matmul_name(few ? "mv" : "mv3", &m->w);
        group = few ? GR_MV_TOKENS : GR_MV3_TOKENS;
    }
    uint32_t warps = stream_warps(m), smem = 2 * stream_sums(warps, group);
    p->n_slot = (int32_t)ring_slots(l, name.text, m->w.dtype, warps, smem);
    p->copy_engine = gr_launch_sm90(l);
    smem += ring_bytes(m->w.dtype, warps, (uint32_t)p->n_slot);
    const struct gr_grid grid = {
        stream_blocks(l, name.text, warps, smem, p->epilogue.n_slice * p->epilogue.n_work), 1, 1};
    return gr_launch(l, name.text, grid, 32 * warps, smem, p, sizeof *p);
}

/* A product of at most GR_MV3_TOKENS tokens an item, F32_MV_TOKENS with F32 weights. */
static int stream_one(struct gr_launcher *l, const struct gr_matmul_args *m, int64_t n_item)
{
    if (m->w.dtype == GR_F32)
        return stream_f32(l, m, n_item);
    if (has_parts(m)) {
        struct gr_matmul_mv_args p = {.part = {*m}, .n = 1, .n_item = (int32_t)n_item};
        lay_work(&p);
        return stream_parts(l, &p);
    }
    return stream(l, m, n_item);
}

/* Cuts those pieces of n launches beside each other that are left when each of 66 clusters has had
 * its turns, on every device, so that sums do not depend on its number of multiprocessors: into
 * halves of their rows of x where there is a cluster for each, as one takes 0.6 of the whole's
 * time; and into segments of columns. A tile's sums take as long to write and to read as a chunk or
 * two to multiply, so where other pieces are whole a segment has four chunks at least. Scratch
 * memory for sums is asked for where any number of rows of x up to n_x_row, or any of the products
 * alone, could be cut: plans of fewer tokens, and launches of more products, find it there. */
static void cut_sm90(struct gr_launcher *l, struct gr_matmul_sm90_args *a, int n, int64_t n_x_row,
                     int64_t n_item)
{
    enum { CLUSTERS = GR_NOMINAL_SM / GR_SM90_CLUSTER, LEAST = 2, LEAST_BESIDE = 4 };
    const int64_t chunks = up(a->part[0].x.units, 8), n_least = a->n_row / GR_SM90_CLUSTER * n_item;
    const uint32_t tile = (uint32_t)gr_sm90_width((int32_t)n_x_row) * GR_SM90_ROWS;
    uint32_t all = 0, first = 0; /* of the tiles that are cut */
    for (int i = 0; i < n; i++)
        all += a[i].n_whole;
    uint32_t left = all % CLUSTERS, n_segment = 1;
    const uint32_t n_half = n_x_row > GR_SM90_HALF && left <= CLUSTERS / 2 ? 2 : 1;
    if (left)
        n_segment = (uint32_t)gr_launch_segments(left * n_half * GR_SM90_CLUSTER, chunks,
                                                 all > left ? LEAST_BESIDE : LEAST);
    float *sums = NULL;
    if (chunks >= 2 * LEAST_BESIDE || (chunks >= 2 * LEAST && n_least <= CLUSTERS / 2))
        sums = gr_launch_scratch(l, tile * GR_NOMINAL_SM * sizeof(float));
    for (int i = n; i-- > 0;) {
        const uint32_t mine = n_half * n_segment > 1 ? GR_MIN(left, a[i].n_whole) : 0;
        a[i].n_half = (int32_t)n_half, a[i].n_segment = (int32_t)n_segment;
        a[i].half = (int32_t)(n_x_row + GR_SM90_BOX - 1) / (2 * GR_SM90_BOX) * GR_SM90_BOX;
        a[i].n_whole -= mine;
        a[i].n_work = a[i].n_whole + mine * n_half * n_segment;
        a[i].sums = n_segment > 1 ? sums + (size_t)first * n_segment * tile : NULL;
        a[i].count = gr_launch_counters(l) + first;
        left -= mine, first += mine * n_half * GR_SM90_CLUSTER;
    }
}

/* Number of tiles of rows of n products: with GLU half of a tile's are of each of two. */
static int32_t rows_sm90(const struct gr_matmul_args *part, int n, bool glu)
{
    int64_t n_row = 0;
    if (glu)
        return (int32_t)up(n_tile(&part->w) * GR_PACK_ROWS, GR_SM90_ROWS / 2);
    for (int i = 0; i < n; i++)
        n_row += up(n_tile(&part[i].w) * GR_PACK_ROWS, GR_SM90_ROWS);
    return (int32_t)n_row;
}

/* Products that share a launch on wgmma. */
struct group {
    struct gr_matmul_args part[GR_MATMUL_PARTS];
    int n;
    int32_t glu; /* as the argument struct has it */
    struct gr_packed_x_groups glu_x;
    struct gr_args_kv_store kv;
    int8_t kept[GR_MATMUL_PARTS];
};

/* True when the copy engine can bring residuals: by what it asks of addresses, to slots that hold
 * them, of tiles that are whole, a pair for each cluster: a tile behind the last would read rows
 * that another block writes. */
static bool res_ahead(const struct gr_matmul_args *m)
{
    return m->res && (uintptr_t)m->res % 16 == 0 && m->res_row_bytes % 16 == 0 &&
           m->w.offset == 0 && m->w.rows % (GR_SM90_CLUSTER * GR_SM90_ROWS) == 0 &&
           gr_sm90_smem(m->w.dtype).slot_bytes >= GR_SM90_PIECE * GR_SM90_ROWS * 4;
}

/* The arguments of their launch, in n_x tiles of rows of x, none of which is cut. */
static struct gr_matmul_sm90_args args_sm90(const struct group *g, uint32_t n_x, int64_t n_item)
{
    struct gr_matmul_sm90_args a = {.n = g->n,
                                    .glu = g->glu,
                                    .glu_x = g->glu_x,
                                    .kv = g->kv,
                                    .n_x = (int32_t)n_x,
                                    .n_half = 1,
                                    .n_segment = 1};
    for (int i = 0; i < g->n; i++)
        a.part[i] = g->part[i], a.kept[i] = g->kept[i];
    a.n_row = rows_sm90(g->part, g->n, g->glu != 0);
    a.n_row = GR_PAD(a.n_row, GR_SM90_CLUSTER);
    a.res_ahead = g->n == 1 && res_ahead(g->part);
    a.n_work = a.n_whole = n_x * ((uint32_t)a.n_row / GR_SM90_CLUSTER) * (uint32_t)n_item;
    return a;
}

/* The kernel of a group: a narrow one for tokens that make one tile, neither half full nor full. */
static struct gr_matmul_name name_sm90(const struct gr_launcher *l, const struct gr_matmul_args *m,
                                       uint32_t n_x, int64_t n_x_row)
{
    const struct gr_matmul_name narrow = gr_matmul_name("tile_narrow_sm90", &m->w);
    const bool one = n_x == 1 && !m->tiles && n_x_row > GR_SM90_HALF && n_x_row <= GR_SM90_NARROW;
    return one && gr_launch_has(l, narrow.text) ? narrow : gr_matmul_name("tile_sm90", &m->w);
}

/* Notes n groups of products of the same packed x on wgmma, in n_x tiles of up to n_x_row rows
 * each: a launch a group, beside the one in front. Clusters are of neighbours: the two
 * multiprocessors of a TPC, which all devices have whole. */
static int tiles_sm90(struct gr_launcher *l, const struct group *g, int n, uint32_t n_x,
                      int64_t n_x_row, int64_t n_item)
{
    const struct gr_cuda_facts *facts = gr_launch_facts(l);
    const uint32_t n_block = facts->clusters ? GR_SM90_CLUSTER : 1;
    const struct gr_packed_x *x = &g->part[0].x;
    struct gr_matmul_sm90_args a[GR_MATMUL_PARTS];
    int rc = 0;
    for (int i = 0; i < n; i++)
        a[i] = args_sm90(&g[i], n_x, n_item);
    if (!g->part[0].tiles)
        cut_sm90(l, a, n, GR_MIN(n_x_row, GR_SM90_X_ROWS), n_item);
    for (int i = 0; i < n && !rc; i++) {
        const struct gr_ten *w = &g[i].part[0].w;
        rc = gr_launch_tensor_map(l, &a[i].map, x->x, w->dtype == GR_BF16, x->n,
                                  (int64_t)x->units * 32, (int64_t)x->units * 64, GR_SM90_BOX, 64);
        a[i].beside = i > 0, a[i].n_block = (int32_t)n_block;
        a[i].n_work *= GR_SM90_CLUSTER / n_block;
        a[i].n_cluster = GR_MIN(a[i].n_work, GR_MAX(1, (uint32_t)facts->n_sm / n_block));
        const struct gr_grid grid = {a[i].n_cluster * n_block, 1, 1};
        if (!rc)
            rc =
                gr_launch_clusters(l, name_sm90(l, g[i].part, n_x, n_x_row).text, grid, n_block,
                                   384, (uint32_t)gr_sm90_smem(w->dtype).bytes, &a[i], sizeof a[i]);
    }
    return rc;
}

/* Notes a product in tiles of x (n_x of them along the grid, of up to n rows), of rows of weights,
 * of items. */
static int tiles(struct gr_launcher *l, const struct gr_matmul_args *m, uint32_t n_x, int64_t n,
                 int64_t n_item)
{
    if (gr_packed_x_on_wgmma(l, &m->w)) {
        const struct group g = {.part = {*m}, .n = 1};
        return tiles_sm90(l, &g, 1, n_x, n, n_item);
    }
    struct gr_grid grid = {n_x, up(n_tile(&m->w) * GR_PACK_ROWS, TILE_ROWS), (uint32_t)n_item};
    uint32_t whole = gr_pack_is_whole(m->w.dtype) ? whole_bytes(&m->w, 2 * TILE_ROWS / 16) : 0;
    return gr_launch(l, gr_matmul_name("tile", &m->w).text, grid, 128,
                     whole ? TILE_X_SMEM + GR_MAX(whole, TILE_SUM_SMEM) : TILE_SMEM, m, sizeof *m);
}

/* True when the streaming kernels take a product. */
static bool is_few(const struct gr_launcher *l, const struct gr_matmul_args *m)
{
    return m->w.dtype == GR_F32 ? m->n_tok <= F32_MV_TOKENS
                                : gr_packed_x_order(l, &m->w, m->n_tok) == GR_BY_LANE;
}

/* A product of n_item items of n_tok tokens each. */
static int product(struct gr_launcher *l, const struct gr_matmul_args *m, int64_t n_item)
{
    if (is_few(l, m))
        return stream_one(l, m, n_item);
    if (m->w.dtype == GR_F32)
        return gr_launch(l, "gr_matmul_f32_tile",
                         (struct gr_grid){up(m->n_tok, F32_TILE),
                                          up(n_tile(&m->w) * GR_PACK_ROWS, F32_TILE),
                                          (uint32_t)n_item},
                         256, 0, m, sizeof *m);
    return tiles(l, m, up(m->n_tok, gr_packed_x_on_wgmma(l, &m->w) ? GR_SM90_X_ROWS : TILE_TOKENS),
                 m->n_tok, n_item);
}

/* ---- products of the same packed x ---- */

/* The arguments of a product of few tokens as its node has it. */
static struct gr_matmul_args matmul_of(const struct gr_args_matmul *a)
{
    struct gr_matmul_args m = base(&a->w, &a->y);
    m.scale = a->scale;
    m.b = a->b.data;
    m.res = a->res.data, m.res_row_bytes = a->res.row_bytes;
    m.x32 = a->x.data, m.x_row_bytes = a->x.row_bytes;
    return m;
}

static struct gr_matmul_args matmul_id_of(const struct gr_args_matmul_id *a)
{
    struct gr_matmul_args m = base(&a->w, &a->y);
    m.s = a->s.data;
    m.b = a->b.data, m.b_row_bytes = a->b.row_bytes;
    m.ids = a->ids.data, m.ids_row_bytes = a->ids.row_bytes;
    m.n_used = (int32_t)a->ids.cols;
    m.x_row_div = a->x.rows == a->ids.rows ? m.n_used : 1;
    m.x32 = a->x.data, m.x_row_bytes = a->x.row_bytes;
    return m;
}

/* True when product b, behind a, reads the same x, and nothing that the other writes. */
static bool goes_with(const struct gr_node *a, const struct gr_node *b)
{
    if (b->op != a->op)
        return false;
    if (a->op == GR_OP_MATMUL) {
        const struct gr_args_matmul *p = &a->a.matmul, *q = &b->a.matmul;
        return gr_ten_same(&p->x, &q->x) && !gr_ten_overlap(&p->y, &q->y) &&
               !gr_ten_overlap(&p->y, &q->res) && !gr_ten_overlap(&q->y, &p->res) &&
               !gr_ten_overlap(&q->y, &p->x);
    }
    const struct gr_args_matmul_id *p = &a->a.matmul_id, *q = &b->a.matmul_id;
    return gr_ten_same(&p->x, &q->x) && gr_ten_same(&p->ids, &q->ids) &&
           !gr_ten_overlap(&p->y, &q->y) && !gr_ten_overlap(&q->y, &p->x) &&
           !gr_ten_overlap(&q->y, &p->ids);
}

/* The weights of a product. */
static const struct gr_ten *weights(const struct gr_node *n)
{
    return n->op == GR_OP_MATMUL ? &n->a.matmul.w : &n->a.matmul_id.w;
}

/* The k-th node behind this one where it is a product that goes with all in front of it; or NULL.
 */
static const struct gr_node *next_of(const struct gr_launcher *l, int k)
{
    const struct gr_node *first = gr_launch_behind(l, 0), *next = gr_launch_behind(l, k);
    for (int i = 0; next && i < k; i++)
        if (!goes_with(first + i, next))
            return NULL;
    return next;
}

/* Fills in the epilogue of the products of p, the last of which is node p->n - 1. */
static int with_epilogue(struct gr_launcher *l, struct gr_matmul_mv_args *p)
{
    struct gr_epilogue_made made[GR_MATMUL_PARTS];
    const struct gr_node *first = gr_launch_behind(l, 0);
    if (!first || p->part[0].n_tok > GR_MV_TOKENS)
        return 0;
    for (int i = 0; i < p->n; i++) {
        const struct gr_node *n = first + i;
        made[i] = (struct gr_epilogue_made){.n_tile = n_tile(&p->part[i].w)};
        if (n->op == GR_OP_MATMUL)
            made[i].y = n->a.matmul.y, made[i].res = n->a.matmul.res;
        else
            made[i].y = n->a.matmul_id.y, made[i].ids = n->a.matmul_id.ids;
    }
    return gr_epilogue_behind(l, p->n, made, p->n, 32 * stream_warps(&p->part[0]), &p->epilogue);
}

/* Collects the product of node k, with packed x and all as m has it, and those behind it that can
 * share its launch; returns their number. */
static int gather(const struct gr_launcher *l, int k, const struct gr_matmul_args *m,
                  struct gr_matmul_args *part)
{
    const struct gr_node *first = gr_launch_behind(l, k), *next = first;
    int n = 0;
    if (!first) {
        part[0] = *m;
        return 1;
    }
    for (; n < GR_MATMUL_PARTS && next && weights(next)->dtype == weights(first)->dtype; n++) {
        part[n] = next->op == GR_OP_MATMUL ? matmul_of(&next->a.matmul)
                                           : matmul_id_of(&next->a.matmul_id);
        part[n].x = m->x, part[n].n_tok = m->n_tok;
        part[n].ids = m->ids, part[n].order = m->order, part[n].tiles = m->tiles;
        next = next_of(l, k + n + 1);
    }
    return n;
}

/* Notes all of these and their epilogue in one launch. */
static int stream_all(struct gr_launcher *l, const struct gr_matmul_args *m, int64_t n_item)
{
    struct gr_matmul_mv_args p = {.n_item = (int32_t)n_item};
    p.n = gather(l, 0, m, p.part);
    lay_work(&p);
    gr_launch_skip(l, p.n - 1 + with_epilogue(l, &p));
    return stream_parts(l, &p);
}

/* Turns the two products from node k on into GLU of them, where that is the next node and their
 * only use: part 0 is the gate then, and its y the result. Returns the kind + 1, or 0. */
static int32_t with_glu(const struct gr_launcher *l, int k, int n, struct gr_matmul_args *part)
{
    enum { A_AND_B = 3 }; /* the first operands of GLU */
    const struct gr_node *first = gr_launch_behind(l, k), *next = gr_launch_behind(l, k + n);
    if (n != 2 || !next || next->op != GR_OP_GLU || (next->ends & A_AND_B) != A_AND_B)
        return 0;
    const struct gr_args_glu *a = &next->a.glu;
    const bool id = first->op == GR_OP_MATMUL_ID;
    const struct gr_ten *y[2];
    for (int i = 0; i < 2; i++)
        y[i] = id ? &first[i].a.matmul_id.y : &first[i].a.matmul.y;
    const int gate = gr_ten_same(y[0], &a->a) ? 0 : 1;
    if (!gr_ten_same(y[gate], &a->a) || !gr_ten_same(y[1 - gate], &a->b) || part[0].res ||
        part[1].res || part[0].w.rows != part[1].w.rows || part[0].w.offset != part[1].w.offset)
        return 0;
    const struct gr_matmul_args m[2] = {part[gate], part[1 - gate]};
    part[0] = m[0], part[1] = m[1];
    part[0].y = a->y.data, part[0].y_row_bytes = a->y.row_bytes;
    return a->kind + 1;
}

/* True when the k-th node behind this one is a product that can run beside those in front of it:
 * weights of another type, and the same packed x. */
static bool runs_beside(const struct gr_launcher *l, int k)
{
    const struct gr_node *first = gr_launch_behind(l, 0), *next = first ? next_of(l, k) : NULL;
    if (!next || next->op != GR_OP_MATMUL)
        return false;
    const struct gr_args_matmul *a = &next->a.matmul;
    return (a->w.dtype == GR_BF16) == (weights(first)->dtype == GR_BF16) &&
           gr_packed_x_on_wgmma(l, &a->w) &&
           !gr_launch_by_library(l, a->w.dtype, a->w.rows, a->w.cols, a->y.rows);
}

static bool is_float(const struct gr_matmul_args *m)
{
    return m->w.dtype == GR_F16 || m->w.dtype == GR_BF16;
}

/* Finds among the n products of these groups the one whose y is t, whole heads of d columns, and
 * keeps it as `as`; false: there is none that can be kept so. */
static bool keep_part(struct group *g, int n_group, const struct gr_ten *t, int64_t d,
                      enum gr_sm90_kept as)
{
    for (int i = 0; i < n_group; i++)
        for (int k = 0; k < g[i].n; k++) {
            const struct gr_matmul_args *m = &g[i].part[k];
            if (m->y != t->data || m->y_row_bytes != t->row_bytes || m->w.rows != t->cols)
                continue;
            g[i].kept[k] = (int8_t)as;
            return !is_float(m) && !m->w.offset && !m->res && GR_SM90_ROWS % d == 0;
        }
    return false;
}

/* Lets products of these groups, up to the k-th node behind this one, go to a cache of f16, where
 * KV_STORE is that node and their only use. Of few tokens they do not: reading what turns K would
 * keep its tiles behind the others for as long as a launch takes. Returns the number of nodes that
 * this does. */
static int with_kv_store(const struct gr_launcher *l, int k, struct group *g, int n_group)
{
    enum { K_AND_V = 3 }; /* the first operands of KV_STORE */
    const struct gr_node *n = gr_launch_behind(l, k);
    if (!n || n->op != GR_OP_KV_STORE || (n->ends & K_AND_V) != K_AND_V ||
        n->a.kv_store.k.rows <= GR_ATTN_FEW)
        return 0;
    const struct gr_args_kv_store *a = &n->a.kv_store;
    const bool f16 = a->k_cache.dtype == GR_F16 && a->v_cache.dtype == GR_F16;
    if (!f16 || !keep_part(g, n_group, &a->k, a->d_head_k, GR_SM90_K) ||
        !keep_part(g, n_group, &a->v, 1, GR_SM90_V)) {
        for (int i = 0; i < n_group; i++)
            memset(g[i].kept, GR_SM90_Y, sizeof g[i].kept);
        return 0;
    }
    for (int i = 0; i < n_group; i++)
        g[i].kv = *a;
    return 1;
}

/* Notes all of these where they run on wgmma, those of one type in one launch. */
static int tiles_all(struct gr_launcher *l, const struct gr_matmul_args *m, uint32_t n_x, int64_t n)
{
    struct group g[GR_MATMUL_PARTS] = {0};
    int n_group = 0, n_node = 0;
    if (!gr_packed_x_on_wgmma(l, &m->w))
        return tiles(l, m, n_x, n, 1);
    do {
        struct group *next = &g[n_group];
        next->n = gather(l, n_node, m, next->part);
        next->glu = with_glu(l, n_node, next->n, next->part);
        if (next->glu && n_group) /* begins behind them, as its result may lie where theirs do */
            break;
        n_node += next->n + (next->glu != 0), n_group++;
    } while (!g->glu && n_group < GR_MATMUL_PARTS && runs_beside(l, n_node));
    if (!g->glu && !m->tiles)
        n_node += with_kv_store(l, n_node, g, n_group);
    if (g->glu && !m->tiles && !m->w.offset && !is_float(m)) {
        const int k = n_node - 1;
        (void)gr_packed_x_groups_in_place(l, k, &gr_launch_behind(l, k)->a.glu.y, &g->glu_x);
    }
    gr_launch_skip(l, n_node - 1);
    int rc = tiles_sm90(l, g, n_group, n_x, n, 1);
    return rc || !g->glu_x.to.n ? rc : gr_packed_x_level(l, &g->glu_x);
}

/* ---- the operations ---- */

int gr_cuda_matmul(struct gr_launcher *l, const struct gr_args_matmul *a)
{
    struct gr_matmul_args m = matmul_of(a);
    int rc = 0;
    if (a->w.dtype != GR_F32)
        rc = gr_packed_x_of(l, &a->x, &a->w, gr_packed_x_order(l, &a->w, m.n_tok), &m.x);
    if (rc)
        return rc;
    const bool few = is_few(l, &m);
    if (few && has_parts(&m))
        return stream_all(l, &m, 1);
    bool done = false;
    if (!few)
        rc = gr_matmul_plain(l, &m, &done);
    if (rc || done)
        return rc;
    return gr_packed_x_on_wgmma(l, &m.w) && !few
               ? tiles_all(l, &m, up(m.n_tok, GR_SM90_X_ROWS), m.n_tok)
               : product(l, &m, 1);
}

int gr_cuda_head_matmul(struct gr_launcher *l, const struct gr_args_head_matmul *a)
{
    int64_t n_head = a->w.batch, x_head = a->x.cols / n_head * 4, y_head = a->y.cols / n_head * 4;
    int64_t n_pass = x_head / 4 - a->w.cols;
    struct gr_matmul_args m = base(&a->w, &a->y);
    m.y += n_pass * 4;
    m.y_item_bytes = y_head;
    m.x32 = a->x.data, m.x_row_bytes = a->x.row_bytes, m.x_item_bytes = x_head;
    int rc = 0;
    if (n_pass) {
        struct gr_matmul_pass_args p = {(const uint8_t *)a->x.data + a->w.cols * 4,
                                        a->y.data,
                                        a->x.row_bytes,
                                        x_head,
                                        a->y.row_bytes,
                                        y_head,
                                        (int32_t)n_pass};
        rc = gr_launch(l, "gr_matmul_x_pass",
                       (struct gr_grid){(uint32_t)n_head, (uint32_t)a->x.rows, 1}, 128, 0, &p,
                       sizeof p);
    }
    if (!rc && a->w.dtype != GR_F32) {
        m.x.n = (int32_t)(n_head * a->x.rows);
        gr_packed_x_scratch(l, &m.x);
        struct gr_matmul_x_args x = {.to = m.x,
                                     .x = a->x.data,
                                     .row_bytes = a->x.row_bytes,
                                     .head_bytes = x_head,
                                     .cols = (int32_t)a->w.cols,
                                     .n_row = (int32_t)a->x.rows,
                                     .bf16 = a->w.dtype == GR_BF16,
                                     .by_step = gr_packed_x_order(l, &a->w, m.n_tok)};
        rc = gr_packed_x_write(l, &x);
    }
    return rc ? rc : product(l, &m, n_head);
}

/* Sorts pairs (token, expert) by expert, writes their packed x in that order, and multiplies tiles
 * of them. The grid has as many tiles as there can be: every expert may end with a part of one. */
static int experts_in_tiles(struct gr_launcher *l, const struct gr_args_matmul_id *a,
                            struct gr_matmul_args *m)
{
    int64_t n = a->y.rows, n_expert = a->w.batch;
    int tile = gr_packed_x_on_wgmma(l, &a->w) ? GR_SM90_X_ROWS : TILE_TOKENS;
    uint32_t n_x = (uint32_t)GR_MIN(n, up(n, tile) + n_expert);
    int32_t *order = gr_launch_scratch(l, (size_t)n * 4);
    int32_t *table = gr_launch_scratch(l, (1 + 3 * (size_t)n_x) * 4);
    m->x.n = (int32_t)n;
    gr_packed_x_scratch(l, &m->x);
    m->ids = NULL, m->order = order, m->tiles = table;
    struct gr_matmul_group_args g = {a->ids.data,
                                     a->ids.row_bytes,
                                     (int32_t)n,
                                     (int32_t)a->ids.cols,
                                     (int32_t)n_expert,
                                     tile,
                                     order,
                                     table};
    struct gr_matmul_x_args x = {.to = m->x,
                                 .x = a->x.data,
                                 .row_bytes = a->x.row_bytes,
                                 .cols = (int32_t)a->x.cols,
                                 .n_row = (int32_t)a->x.rows,
                                 .order = order,
                                 .div = m->x_row_div,
                                 .bf16 = a->w.dtype == GR_BF16,
                                 .by_step = GR_BY_STEP};
    int rc = gr_launch(l, "gr_matmul_x_group", (struct gr_grid){(uint32_t)n_expert, 1, 1},
                       X_THREADS, (uint32_t)n_expert * 4, &g, sizeof g);
    if (!rc)
        rc = gr_packed_x_write(l, &x);
    return rc ? rc : tiles_all(l, m, n_x, n);
}

int gr_cuda_matmul_id(struct gr_launcher *l, const struct gr_args_matmul_id *a)
{
    struct gr_matmul_args m = matmul_id_of(a);
    if (a->w.dtype != GR_F32 && a->ids.rows > GR_MV_TOKENS)
        return experts_in_tiles(l, a, &m);
    int rc = 0;
    if (a->w.dtype != GR_F32)
        rc = gr_packed_x_of(l, &a->x, &a->w, GR_BY_LANE, &m.x);
    if (rc)
        return rc;
    m.n_tok = 1;
    return has_parts(&m) ? stream_all(l, &m, a->y.rows) : stream_one(l, &m, a->y.rows);
}
