/* ATTN: which kernel takes which shapes.
 *
 * attn_decode takes head sizes that are multiples of 16, up to 512 columns of V, of caches of f16,
 * bf16 and quants. Of those, runs of more than GR_ATTN_FEW tokens go to attn_prefill_sm90 (64,
 * 128, 256 columns; compute capability 9.0) or to attn_prefill (these and a few more), where there
 * are so many tokens; attn_decode has no launch where the step is one such run, and
 * attn_prefill_sm90 then turns its queries. Everything else goes to attn_any: f32 rows, other head
 * sizes, rows that do not stand on 16 bytes, tiles that shared memory does not hold, biases by
 * distance. */
#include "cuda/launch_attn.h"
#include "base/checked.h"
#include "cuda/grid.h"
#include "cuda/packed_x.h"
#include "gr/dtype.h"
#include "gr/kernel/attn.h"
#include "gr/planes.h"
#include "gr/status.h"

enum {
    ANY_THREADS = 128,
    DECODE_THREADS = 128,
    DECODE_QUERIES = 16,
    DECODE_HEADS = 4,    /* of a block of attn_decode_join */
    DECODE_ROUNDS = 4,   /* of blocks that a device holds at once */
    DECODE_BLOCKS = 256, /* of a token, each with one chunk: two a multiprocessor of an H200 */
    PREFILL_THREADS = 128,
    PREFILL_QUERIES = 64, /* of a tile */
    PREFILL_SM90_THREADS = 384,
    PREFILL_SM90_QUERIES = 128,
    PREFILL_SM90_BARRIERS = 64, /* bytes */
};

/* Heads of d columns from column `first` of the rows on. */
static struct gr_kernel_rows rows_of(const struct gr_ten *t, int64_t first, int64_t d)
{
    if (!gr_ten_is(t))
        return (struct gr_kernel_rows){0};
    struct gr_kernel_rows r = {.data = t->data, .row = t->row_bytes, .type = (int32_t)t->dtype};
    if (t->planes) {
        r.step = r.data + gr_planes_step(t->dtype, t->cols, first);
        r.end = r.data + gr_planes_row(t->dtype, t->cols);
        r.data += gr_planes_codes(t->dtype, first);
        r.head = (int32_t)gr_planes_codes(t->dtype, d);
        r.head_step = (int32_t)(d / GR_QK * gr_planes_record(t->dtype));
    } else {
        r.data += gr_row_bytes(t->dtype, (uint64_t)first);
        r.head = (int32_t)gr_row_bytes(t->dtype, (uint64_t)d);
    }
    return r;
}

/* The operand that values are read from: V, or K's rows. */
static const struct gr_ten *values(const struct gr_args_attn *a)
{
    return gr_ten_is(&a->v) ? &a->v : &a->k;
}

static struct gr_kernel_attn args_of(const struct gr_args_attn *a)
{
    return (struct gr_kernel_attn){
        .q = {a->q_far.data, a->q.data},
        .q_row = {a->q_far.row_bytes, a->q.row_bytes},
        .k = {rows_of(&a->k_far, 0, a->d_k), rows_of(&a->k, 0, a->d_k)},
        .v = rows_of(values(a), values(a)->cols - a->n_head_kv * a->d_v, a->d_v),
        .list = a->list.data,
        .span = a->span.data,
        .pos = a->pos.data,
        .key_pos = a->key_pos.data,
        .sinks = gr_ten_is(&a->sinks) ? a->sinks.data : NULL,
        .y = a->y.data,
        .span_row = a->span.row_bytes,
        .y_row = a->y.row_bytes,
        .n_tok = (int32_t)a->q.rows,
        .n_head = (int32_t)a->n_head,
        .n_head_kv = (int32_t)a->n_head_kv,
        .d_k = (int32_t)a->d_k,
        .d_v = (int32_t)a->d_v,
        .scale = a->scale,
        .softcap = a->softcap,
        .max_alibi = a->max_alibi,
        .first_head = (int32_t)a->first_head,
        .n_head_all = (int32_t)a->n_head_all,
        .rel = gr_ten_is(&a->rel) ? a->rel.data : NULL,
        .rel_row = a->rel.row_bytes,
        .n_rel = (int32_t)(a->rel.rows / 2),
        .one_run = a->one_run,
    };
}

/* ---- tiles in shared memory ---- */

static bool aligned(const struct gr_ten *t)
{
    return (uintptr_t)t->data % 16 == 0 && t->row_bytes % 16 == 0;
}

static int32_t pitch_f16(int64_t d)
{
    return (int32_t)d * 2 + 16;
}

/* Pieces of 16 bytes that a head's records may touch: they begin anywhere in one or divide it. */
static int32_t step_pieces(const struct gr_kernel_rows *r)
{
    int32_t n = r->head_step;
    bool whole = n && 16 % n == 0 && (uintptr_t)r->step % (unsigned)n == 0;
    return whole ? 1 : n ? (n + 14 + 15) / 16 : 0;
}

/* Rows of planes are an odd number of pieces apart, so that ldmatrix meets every bank. */
static struct gr_attn_stage stage_of(const struct gr_kernel_rows *r, int64_t d)
{
    struct gr_attn_stage s = {.codes = r->head / 16};
    s.n16 = s.codes + step_pieces(r);
    s.pitch = r->type == GR_F16 ? pitch_f16(d) : r->head_step ? (s.n16 | 1) * 16 : s.n16 * 16;
    return s;
}

/* The column, within K's rows as fetched for the keys, at which values begin; -1 when values are
 * fetched by themselves. */
static int32_t column_in_k(const struct gr_args_attn *a)
{
    bool shared = !gr_ten_is(&a->v) && a->n_head_kv == 1 && !gr_ten_is(&a->k_far);
    int64_t column = a->k.cols - a->d_v;
    return shared && column % 8 == 0 ? (int32_t)column : -1;
}

/* True when tiles become f16 before they are multiplied; attn_decode multiplies some planes as
 * such. */
static bool converted(const struct gr_kernel_rows *r, bool keep_planes)
{
    return r->type != GR_F16 && !(keep_planes && gr_attn_by_planes(r->type));
}

/* Tiles of n_q queries and n_k keys; n_stage stages as they come. Queries that go to registers may
 * stand where the stages are. */
static void set_smem(struct gr_kernel_attn *k, int32_t n_q, bool keep_q, int32_t n_k,
                     int32_t n_stage)
{
    struct gr_attn_smem *s = &k->smem;
    bool own = k->v_in_k < 0, planes = n_q == DECODE_QUERIES;
    s->q_pitch = s->k_pitch = pitch_f16(k->d_k);
    s->v_pitch = pitch_f16(k->d_v);
    s->k = keep_q ? 0 : n_q * s->q_pitch;
    s->v = s->k + (converted(&k->k[1], planes) ? n_k * s->k_pitch : 0);
    s->stage = s->v + (own && converted(&k->v, planes) ? n_k * s->v_pitch : 0);
    s->stage_v = n_k * k->k_stage.pitch;
    s->stage_bytes = s->stage_v + (own ? n_k * k->v_stage.pitch : 0);
    s->n_stage = n_stage;
    s->q = keep_q ? s->stage : 0;
    s->bytes = s->stage + GR_MAX(n_stage * s->stage_bytes, keep_q ? n_q * s->q_pitch : 0);
}

/* Lays out as many stages as `most` bytes hold; false when that is none. */
static bool fit_smem(struct gr_kernel_attn *k, int32_t n_q, bool keep_q, int32_t n_k,
                     int32_t n_stage, int32_t most)
{
    do
        set_smem(k, n_q, keep_q, n_k, n_stage);
    while (k->smem.bytes > most && --n_stage > 0);
    return n_stage > 0;
}

/* ---- few tokens a sequence ---- */

/* True when shapes and operands suit the tiled kernels. */
static bool tiled_shape(const struct gr_args_attn *a)
{
    return a->d_k % 16 == 0 && a->d_v % 16 == 0 && a->d_v <= 512 && a->k.dtype != GR_F32 &&
           values(a)->dtype != GR_F32 && !gr_ten_is(&a->rel);
}

/* True when addresses suit the tiled kernels. */
static bool tiled(const struct gr_args_attn *a)
{
    bool far = gr_ten_is(&a->k_far);
    return aligned(&a->q) && aligned(&a->y) && aligned(&a->k) && aligned(values(a)) &&
           (!far || (aligned(&a->q_far) && aligned(&a->k_far) && a->k_far.dtype == a->k.dtype));
}

/* Chunks of the longest span: those of all heads are DECODE_BLOCKS, whatever the device holds.
 * A block joins all chunks of a head, so 64 at most. */
static int64_t most_chunks(const struct gr_args_attn *a)
{
    int64_t gqa = a->n_head / a->n_head_kv, tiles = (gqa + DECODE_QUERIES - 1) / DECODE_QUERIES;
    return GR_MAX(8, GR_MIN(64, DECODE_BLOCKS / (a->n_head_kv * tiles)));
}

/* Number of chunks of what a token may see, and scratch memory for their results, of at most
 * 64 MiB. The list's capacity bounds them, as its length is not known here. Fewer tokens never ask
 * for more scratch. */
static void set_chunks(struct gr_launcher *l, const struct gr_args_attn *a,
                       struct gr_kernel_attn *k)
{
    int64_t result = a->q.rows * a->n_head * (a->d_v + 4) * 4, most = INT64_C(64) << 20,
            need = GR_MIN(most_chunks(a), (a->list.cols + GR_ATTN_CHUNK - 1) / GR_ATTN_CHUNK);
    k->n_chunk = (int32_t)GR_MAX(1, GR_MIN(most / result, need));
    k->part = gr_launch_scratch(l, (size_t)GR_MAX(result, GR_MIN(most, need * result)));
}

/* Number of blocks that walk over the chunks that a token sees by a head. The number of chunks is
 * not known, and texts may differ: one of them by itself can fill a device that holds `at_once`
 * blocks, and all of them fill it up to four times over. A block without a chunk leaves once it has
 * read spans, in under a microsecond, beside those that have one, as it comes last. */
static int32_t walkers(int32_t tokens, int32_t heads, int32_t at_once, int32_t n_chunk)
{
    int32_t z = GR_MIN(at_once / heads, DECODE_ROUNDS * at_once / (tokens * heads));
    return GR_MAX(1, GR_MIN(z, n_chunk));
}

static const char *decode_kernel(const struct gr_kernel_attn *k)
{
    return k->d_v <= 64    ? "gr_attn_decode_64"
           : k->d_v <= 128 ? "gr_attn_decode_128"
           : k->d_v <= 256 ? "gr_attn_decode_256"
                           : "gr_attn_decode_512";
}

/* Lets the blocks that join chunks write y as packed x by lane, where a product of it is next. */
static void set_packed_x(struct gr_launcher *l, struct gr_kernel_attn *k, const struct gr_ten *y)
{
    int32_t group = k->n_head / k->n_head_kv;
    bool alone = group % k->n_pack == 0 && k->n_pack * k->d_v % GR_PACK_COLS == 0;
    if ((k->n_tok > 1 && !alone) || !gr_packed_x_ahead_by_lane(l, 0, y, &k->packed_x))
        k->packed_x.to.n = 0;
    k->packed_alone = alone && k->packed_x.to.n;
}

static int decode(struct gr_launcher *l, struct gr_kernel_attn *k, const struct gr_ten *y)
{
    const char *kernel = decode_kernel(k);
    int32_t heads = k->n_head_kv * k->n_tile, tokens = (k->n_tok + k->n_each - 1) / k->n_each,
            exact = GR_ATTN_EXACT_BYTES(k->d_k, k->d_v, DECODE_THREADS),
            smem = GR_MAX(k->smem.bytes, exact),
            each = GR_MIN(gr_launch_resident(l, kernel, (uint32_t)smem), k->d_v <= 128 ? 3 : 2),
            at_once = gr_launch_facts(l)->n_sm * GR_MAX(each, 1),
            z = walkers(tokens, heads, at_once, k->n_chunk);
    struct gr_grid grid = {(uint32_t)tokens, (uint32_t)heads, (uint32_t)z};
    if (k->all && (int64_t)k->n_tok * heads < GR_LAUNCH_COUNTERS)
        k->count = gr_launch_counters(l);
    if (k->count)
        set_packed_x(l, k, y);
    int err = gr_launch(l, kernel, grid, DECODE_THREADS, (uint32_t)smem, k, sizeof *k);
    if (err || k->count)
        return err;
    if (k->packed_x.to.n)
        return gr_launch(l, "gr_attn_decode_level", (struct gr_grid){(uint32_t)k->n_tok, 1, 1},
                         DECODE_THREADS, (uint32_t)exact, k, sizeof *k);
    grid = (struct gr_grid){(uint32_t)(k->n_head + DECODE_HEADS - 1) / DECODE_HEADS,
                            (uint32_t)tokens, 1};
    return gr_launch(l, "gr_attn_decode_join", grid, DECODE_THREADS, (uint32_t)exact, k, sizeof *k);
}

/* Lays out the tiles of attn_decode; false when shared memory does not hold them. */
static bool set_decode(const struct gr_launcher *l, struct gr_kernel_attn *k)
{
    int32_t gqa = k->n_head / k->n_head_kv, n_k = k->d_v <= 128 ? 64 : 32;
    int32_t most = (int32_t)gr_launch_smem(l, decode_kernel(k));
    k->n_pack = GR_MIN(gqa, DECODE_QUERIES);
    k->n_tile = (gqa + k->n_pack - 1) / k->n_pack;
    return fit_smem(k, DECODE_QUERIES, false, n_k, 3, most);
}

/* ---- many ---- */

/* Head sizes that attn_prefill and attn_prefill_sm90 are compiled for, and keys of their tiles. */
static const struct size {
    int32_t d_k, d_v, n_k;
    const char *kernel;
    int32_t n_k_sm90;
    const char *kernel_sm90;
} sizes[] = {
    {64, 64, 64, "gr_attn_prefill_64", 128, "gr_attn_prefill_sm90_64"},
    {80, 80, 64, "gr_attn_prefill_80", 0, NULL},
    {96, 96, 64, "gr_attn_prefill_96", 0, NULL},
    {112, 112, 64, "gr_attn_prefill_112", 0, NULL},
    {128, 128, 64, "gr_attn_prefill_128", 128, "gr_attn_prefill_sm90_128"},
    {192, 128, 64, "gr_attn_prefill_192_128", 0, NULL},
    {256, 256, 32, "gr_attn_prefill_256", 64, "gr_attn_prefill_sm90_256"},
};

/* Sets n_pack, the most heads of a group that divide both it and n_q. */
static void set_pack(struct gr_kernel_attn *k, int32_t n_q)
{
    int32_t gqa = k->n_head / k->n_head_kv;
    k->n_pack = n_q;
    while (gqa % k->n_pack)
        k->n_pack /= 2;
    k->n_tile = gqa / k->n_pack;
}

static int32_t raw_pitch(const struct gr_kernel_rows *r, const struct gr_attn_stage *s)
{
    return r->type == GR_F16 ? 0 : s->pitch;
}

/* Buffers that the copy of a tile of K or V into shared memory needs while it is not f16 yet: one
 * or two. */
static bool set_sm90(struct gr_kernel_attn *k, int32_t n_k, int32_t most)
{
    struct gr_attn_smem *s = &k->smem;
    int32_t k_pitch = raw_pitch(&k->k[1], &k->k_stage), v_pitch = raw_pitch(&k->v, &k->v_stage);
    s->q = 0;
    s->stage = PREFILL_SM90_QUERIES * k->d_k * 2 + 4 * n_k * k->d_k * 2 + PREFILL_SM90_BARRIERS;
    s->stage_bytes = n_k * GR_MAX(k_pitch, v_pitch);
    s->n_stage = s->stage + 2 * s->stage_bytes <= most ? 2 : 1;
    s->bytes = s->stage + s->n_stage * s->stage_bytes;
    set_pack(k, PREFILL_SM90_QUERIES);
    return s->bytes <= most;
}

/* A kernel for long runs of tokens. */
struct many {
    const char *kernel; /* NULL: attn_decode has to take them */
    int32_t n_q;        /* queries of a tile */
    uint32_t threads;
};

static struct many set_prefill(const struct gr_launcher *l, struct gr_kernel_attn *k)
{
    const struct size *s = sizes, *end = s + GR_COUNT(sizes);
    while (s < end && (s->d_k != k->d_k || s->d_v != k->d_v))
        s++;
    if (s == end || k->n_tok <= GR_ATTN_FEW)
        return (struct many){NULL, 0, 0};
    if (s->kernel_sm90 && set_sm90(k, s->n_k_sm90, (int32_t)gr_launch_smem(l, s->kernel_sm90)))
        return (struct many){s->kernel_sm90, PREFILL_SM90_QUERIES, PREFILL_SM90_THREADS};
    set_pack(k, PREFILL_QUERIES);
    if (!fit_smem(k, PREFILL_QUERIES, k->d_k <= 192, s->n_k, 2,
                  (int32_t)gr_launch_smem(l, s->kernel)))
        return (struct many){NULL, 0, 0};
    return (struct many){s->kernel, PREFILL_QUERIES, PREFILL_THREADS};
}

/* Lets the tokens that this kernel takes be written as packed x of y where a product on wgmma is
 * next, behind node i, and the only one to read it. Outputs are sums of values with weights of at
 * most 1 in all, so f16 holds those of values of f16. */
static void set_groups(struct gr_launcher *l, struct gr_kernel_attn *k, int i,
                       const struct gr_ten *y)
{
    if (k->d_v % GR_PACKED_X_GROUP)
        return;
    const bool f16 = (k->v_in_k < 0 ? k->v.type : k->k[1].type) == GR_F16;
    int8_t *up = f16 ? NULL : gr_launch_scratch(l, (size_t)(y->rows * y->cols / GR_PACKED_X_GROUP));
    if (gr_packed_x_groups_ahead(l, i, y, &k->packed_x))
        k->up = up;
    else
        k->packed_x.to.n = 0;
}

static int prefill(struct gr_launcher *l, const struct gr_kernel_attn *k, const struct many *m)
{
    int32_t tokens = m->n_q / k->n_pack;
    struct gr_grid grid = {(uint32_t)(k->n_head_kv * k->n_tile),
                           (uint32_t)((k->n_tok + tokens - 1) / tokens), 1};
    return gr_launch(l, m->kernel, grid, m->threads, (uint32_t)k->smem.bytes, k, sizeof *k);
}

/* One factor a row for what a step that is one run has written as packed x. */
static int level(struct gr_launcher *l, const struct gr_kernel_attn *k)
{
    const struct gr_packed_x_groups x = gr_attn_groups(k);
    return x.up ? gr_packed_x_level(l, &x) : 0;
}

static int any(struct gr_launcher *l, const struct gr_kernel_attn *k)
{
    struct gr_grid grid = {(uint32_t)k->n_head, (uint32_t)k->n_tok, 1};
    int32_t bytes = GR_ATTN_EXACT_BYTES(k->d_k, k->d_v, ANY_THREADS);
    return gr_launch(l, "gr_attn_any", grid, ANY_THREADS, (uint32_t)bytes, k, sizeof *k);
}

/* ---- the choice ---- */

struct choice {
    struct gr_kernel_attn few, many; /* arguments of attn_decode, and of `kernel` */
    struct many kernel;
};

/* Chooses kernels and their tiles; false: attn_any has to take all. */
static bool choose(const struct gr_launcher *l, const struct gr_args_attn *a, struct choice *c)
{
    struct gr_kernel_attn k = args_of(a);
    k.k_stage = stage_of(&k.k[1], a->d_k);
    k.v_stage = stage_of(&k.v, a->d_v);
    k.v_in_k = column_in_k(a);
    c->few = c->many = k;
    if (!tiled(a) || !set_decode(l, &c->few))
        return false;
    c->kernel = set_prefill(l, &c->many);
    return true;
}

/* A step that is one run, by a kernel for many tokens; node i behind this one. */
static int one_run(struct gr_launcher *l, struct choice *c, int i, const struct gr_ten *y)
{
    set_groups(l, &c->many, i, y);
    int err = prefill(l, &c->many, &c->kernel);
    return err ? err : level(l, &c->many);
}

static bool can_attend(const struct gr_args_attn *a)
{
    return gr_cache_type(a->k.dtype) && gr_cache_type(values(a)->dtype);
}

int gr_cuda_attn(struct gr_launcher *l, const struct gr_args_attn *a)
{
    if (!can_attend(a))
        return gr_fail(GR_E_UNSUPPORTED,
                       "attention: expected keys and values of types that a cache has, found %s "
                       "and %s",
                       gr_dtype_name(a->k.dtype), gr_dtype_name(values(a)->dtype));
    struct gr_kernel_attn k = args_of(a);
    struct choice c;
    if (!tiled_shape(a))
        return any(l, &k);
    set_chunks(l, a, &k); /* with one run as well, so that plans with several find it */
    if (!choose(l, a, &c))
        return any(l, &k);
    const bool many = c.kernel.kernel != NULL;
    if (many && a->one_run)
        return one_run(l, &c, 0, &a->y);
    c.few.n_chunk = k.n_chunk, c.few.part = k.part;
    if (many) {
        set_groups(l, &c.many, 0, &a->y);
        c.few.packed_x = c.many.packed_x, c.few.up = c.many.up;
    }
    c.few.all = !many;
    c.few.n_each = many ? 8 : 1;
    int err = many ? prefill(l, &c.many, &c.kernel) : 0;
    return err ? err : decode(l, &c.few, &a->y);
}

bool gr_attn_turns(const struct gr_launcher *l, int k)
{
    enum { Q = 1 }; /* of gr_node.ends */
    const struct gr_node *n = gr_launch_behind(l, k), *next = n ? gr_launch_behind(l, k + 1) : NULL;
    struct choice c;
    if (!next || n->op != GR_OP_ROPE || next->op != GR_OP_ATTN || !(next->ends & Q))
        return false;
    const struct gr_args_rope *r = &n->a.rope;
    const struct gr_args_attn *a = &next->a.attn;
    return a->one_run && gr_ten_same(&r->y, &a->q) && !gr_ten_is(&a->q_far) &&
           r->d_head == a->d_k && a->d_k <= GR_ATTN_TURNED && gr_rope_vec4(r) &&
           !gr_ten_overlap(&a->y, &r->x) && !gr_ten_overlap(&a->y, &r->cs) && can_attend(a) &&
           tiled_shape(a) && choose(l, a, &c) && c.kernel.threads == PREFILL_SM90_THREADS;
}

int gr_attn_turned(struct gr_launcher *l)
{
    const struct gr_args_attn *a = &gr_launch_behind(l, 1)->a.attn;
    struct choice c;
    (void)choose(l, a, &c);
    c.many.turn = gr_launch_behind(l, 0)->a.rope;
    gr_launch_skip(l, 1);
    return one_run(l, &c, 1, &a->y);
}
