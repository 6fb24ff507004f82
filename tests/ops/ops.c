#include "ops/ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "gr/status.h"
#include "ops/matrix.h"
#include "quant/planes.h"
#include "quant/quant.h"
#include "support/cases.h"
#include "support/cuda_words.h"

const int ops_cache_types[] = {GR_F32,  GR_F16,  GR_BF16, GR_Q8_0,   GR_Q4_0,
                               GR_Q4_1, GR_Q5_0, GR_Q5_1, GR_IQ4_NL, -1};

#define LAID_OUT_TYPES                                                                             \
    GR_F32, GR_F16, GR_BF16, GR_Q4_0, GR_Q4_1, GR_Q5_0, GR_Q5_1, GR_Q8_0, GR_Q2_K, GR_Q3_K,        \
        GR_Q4_K, GR_Q5_K, GR_Q6_K, GR_IQ4_XS, GR_MXFP4, GR_NVFP4, GR_IQ1_M, GR_IQ3_S, GR_Q1_0
const int ops_layout_types[] = {LAID_OUT_TYPES, -1};

/* tests/ops/matmul.c holds them against what matrices can be made of. */
const int ops_weight_types[] = {LAID_OUT_TYPES, GR_IQ4_NL, GR_IQ1_S,   GR_IQ2_XXS,
                                GR_IQ2_XS,      GR_IQ2_S,  GR_IQ3_XXS, GR_TQ1_0,
                                GR_TQ2_0,       GR_Q2_0,   -1};

/* ---- memory of a case ---- */

void ops_case_init(struct ops_case *c, enum gr_op op, uint64_t seed, const char *fmt, ...)
{
    va_list ap;
    memset(c, 0, sizeof *c);
    c->node.op = op;
    c->rng = gr_rng_new(seed);
    c->arena = gr_calloc(1, sizeof(struct gr_arena));
    int n = snprintf(c->label, sizeof c->label, "%s ", gr_op_info(op)->name);
    va_start(ap, fmt);
    vsnprintf(c->label + n, sizeof c->label - (size_t)n, fmt, ap);
    va_end(ap);
}

void ops_case_fini(struct ops_case *c)
{
    for (int i = 0; i < c->n_buf; i++) {
        gr_free(c->buf[i].host);
        gr_free(c->buf[i].result);
    }
    gr_arena_fini(c->arena);
    gr_free(c->arena);
}

double *ops_doubles(struct ops_case *c, int64_t n)
{
    double *p = gr_arena_alloc(c->arena, (size_t)n * sizeof *p);
    cr_assert_not_null(p);
    return p;
}

/* Rows `row` bytes apart in memory of so many bytes. */
static struct gr_ten new_tensor(struct ops_case *c, uint32_t dtype, int64_t batch, int64_t rows,
                                int64_t cols, size_t row, size_t bytes)
{
    struct ops_buf *b = &c->buf[c->n_buf++];
    cr_assert(c->n_buf <= OPS_MAX_BUF && row >= gr_row_bytes(dtype, (uint64_t)cols));
    b->bytes = bytes;
    b->host = gr_calloc(b->bytes, 1);
    b->result = gr_calloc(b->bytes, 1);
    cr_assert(b->host && b->result);
    memset(b->host, 0xff, b->bytes);
    return (struct gr_ten){.data = b->host,
                           .batch = batch,
                           .rows = rows,
                           .cols = cols,
                           .row_bytes = (int64_t)row,
                           .dtype = dtype};
}

struct gr_ten ops_new(struct ops_case *c, uint32_t dtype, int64_t batch, int64_t rows, int64_t cols)
{
    const struct gr_dtype_info *info = gr_dtype_find(dtype);
    size_t gap =
        info->block_bytes * GR_PAD(16, info->block) / info->block; /* 16 elements or a block */
    size_t row = gr_row_bytes(dtype, (uint64_t)cols) + gap;
    return new_tensor(c, dtype, batch, rows, cols, row, (size_t)(batch * rows) * row + 64);
}

struct gr_ten ops_cache(struct ops_case *c, uint32_t dtype, int64_t rows, int64_t cols)
{
    if (!gr_planes_are(dtype))
        return ops_new(c, dtype, 1, rows, cols);
    size_t row = (size_t)gr_planes_row(dtype, cols) + GR_PLANES_ALIGN;
    struct gr_ten t =
        new_tensor(c, dtype, 1, rows, cols, row, (size_t)rows * row - GR_PLANES_ALIGN);
    t.planes = 1;
    return t;
}

/* ---- data ---- */

static double draw(struct gr_rng *r, enum ops_data data)
{
    double x = (double)gr_rng_normal(r);
    switch (data) {
    case OPS_TINY:
        return x * 1e-30;
    case OPS_HUGE:
        return x * 1e12;
    case OPS_ZERO:
        return 0;
    case OPS_SPIKES:
        return gr_rng_below(r, 16) ? x * 1e-3 : x * 1e3;
    default:
        return x;
    }
}

/* Offset of a block's f16 scales (its minimum is the second), and the largest quant. IQ1_M spreads
 * its scale, MXFP4 has an exponent there. Any bytes are scales of NVFP4. */
struct scales {
    uint32_t dtype;
    int n;
    size_t at;
    double largest;
};
static const struct scales scales[] = {
    {GR_Q4_0, 1, 0, 8},          {GR_Q4_1, 2, 0, 15},          {GR_Q5_0, 1, 0, 16},
    {GR_Q5_1, 2, 0, 31},         {GR_Q8_0, 1, 0, 128},         {GR_Q2_K, 2, 80, 15 * 3},
    {GR_Q3_K, 1, 108, 32 * 4},   {GR_Q4_K, 2, 0, 63 * 15},     {GR_Q5_K, 2, 0, 63 * 31},
    {GR_Q6_K, 1, 208, 128 * 32}, {GR_IQ4_NL, 1, 0, 127},       {GR_IQ4_XS, 1, 0, 32 * 127},
    {GR_MXFP4, 1, 0, 12},        {GR_IQ1_S, 1, 0, 15 * 1.125}, {GR_IQ1_M, 1, 48, 15 * 1.125},
    {GR_IQ2_XXS, 1, 0, 4 * 43},  {GR_IQ2_XS, 1, 0, 4 * 43},    {GR_IQ2_S, 1, 0, 4 * 43},
    {GR_IQ3_XXS, 1, 0, 8 * 62},  {GR_IQ3_S, 1, 0, 31 * 15},    {GR_TQ1_0, 1, 52, 1},
    {GR_TQ2_0, 1, 64, 2},        {GR_Q1_0, 1, 0, 1},           {GR_Q2_0, 1, 0, 2},
};

static void put_scale(uint32_t dtype, double d, uint8_t *at)
{
    uint16_t half = gr_f32_to_f16((float)fmax(fmin(d, 1e4), -1e4)), words[4];
    int e;
    switch (dtype) {
    case GR_MXFP4:
        frexp(d, &e);
        *at = (uint8_t)(128 + GR_MAX(e, -30));
        break;
    case GR_IQ1_M:
        memcpy(words, at, sizeof words);
        for (int i = 0; i < 4; i++)
            words[i] = (uint16_t)((words[i] & 0xfff) | (half >> 4 * i & 15) << 12);
        memcpy(at, words, sizeof words);
        break;
    default:
        memcpy(at, &half, sizeof half);
    }
}

/* Random bytes are a valid block of every quantised type once its scales are sane. */
static void draw_block(struct gr_rng *r, const struct gr_dtype_info *info, enum ops_data data,
                       uint8_t *block)
{
    for (uint32_t i = 0; i < info->block_bytes; i++)
        block[i] = (uint8_t)gr_rng_u32(r);
    for (size_t k = 0; k < GR_COUNT(scales); k++)
        for (int s = 0; scales[k].dtype == info->id && s < scales[k].n; s++)
            put_scale(info->id, 2 * draw(r, data) / scales[k].largest,
                      block + scales[k].at + 2 * (size_t)s);
}

static void draw_planes(struct gr_rng *r, const struct gr_ten *t, enum ops_data data, char *row)
{
    char block[sizeof(struct gr_q8_0)];
    for (int64_t i = 0; i < t->cols; i += GR_QK) {
        draw_block(r, gr_dtype_find(t->dtype), data, (uint8_t *)block);
        size_t record = (size_t)gr_planes_record(t->dtype);
        memcpy(row + gr_planes_step(t->dtype, t->cols, i), block, record);
        memcpy(row + gr_planes_codes(t->dtype, i), block + record,
               (size_t)gr_planes_codes(t->dtype, GR_QK));
    }
}

static void draw_row(struct gr_rng *r, const struct gr_ten *t, enum ops_data data, char *row)
{
    const struct gr_dtype_info *info = gr_dtype_find(t->dtype);
    for (int64_t i = 0; i < t->cols / info->block; i++) {
        float x = (float)draw(r, data);
        uint16_t f16 = gr_f32_to_f16(x), bf16 = gr_f32_to_bf16(x);
        double f64 = (double)x;
        void *p = row + (size_t)i * info->block_bytes;
        if (t->dtype == GR_F32)
            memcpy(p, &x, sizeof x);
        else if (t->dtype == GR_F64)
            memcpy(p, &f64, sizeof f64);
        else if (t->dtype == GR_F16)
            memcpy(p, (f16 & 0x7fff) == 0x7c00 ? &(uint16_t){0x7bff} : &f16, sizeof f16);
        else if (t->dtype == GR_BF16)
            memcpy(p, &bf16, sizeof bf16);
        else
            draw_block(r, info, data, p);
    }
}

struct gr_ten ops_random(struct ops_case *c, uint32_t dtype, int64_t batch, int64_t rows,
                         int64_t cols, enum ops_data data)
{
    struct gr_ten t = ops_new(c, dtype, batch, rows, cols);
    for (int64_t i = 0; i < batch * rows; i++)
        draw_row(&c->rng, &t, data, gr_ten_row(&t, 0, i));
    return t;
}

struct gr_ten ops_random_cache(struct ops_case *c, uint32_t dtype, int64_t rows, int64_t cols)
{
    struct gr_ten t = ops_cache(c, dtype, rows, cols);
    for (int64_t i = 0; i < rows; i++)
        (t.planes ? draw_planes : draw_row)(&c->rng, &t, OPS_NORMAL, gr_ten_row(&t, 0, i));
    return t;
}

struct gr_ten ops_integers(struct ops_case *c, int64_t n, int32_t lo, int32_t hi)
{
    size_t bytes = (size_t)n * sizeof(int32_t);
    struct gr_ten t = new_tensor(c, GR_I32, 1, 1, n, bytes, bytes);
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)t.data)[i] = lo + (int32_t)gr_rng_below(&c->rng, (uint32_t)(hi - lo));
    return t;
}

static void row_values(const struct gr_ten *t, const void *row, float *tmp, double *out)
{
    if (t->planes)
        gr_planes_load(t->dtype, t->cols, row, 0, t->cols, tmp);
    else if (t->dtype != GR_I32 && t->dtype != GR_F64)
        gr_quant_find(t->dtype)->dequantize(row, tmp, (size_t)t->cols);
    for (int64_t i = 0; i < t->cols; i++)
        out[i] = t->dtype == GR_I32   ? (double)((const int32_t *)row)[i]
                 : t->dtype == GR_F64 ? ((const double *)row)[i]
                                      : (double)tmp[i];
}

double *ops_values(struct ops_case *c, const struct gr_ten *t)
{
    double *out = ops_doubles(c, ops_count(t));
    float *tmp = gr_calloc((size_t)t->cols, sizeof *tmp);
    cr_assert_not_null(tmp);
    for (int64_t i = 0; i < t->batch * t->rows; i++)
        row_values(t, gr_ten_row(t, 0, i), tmp, out + i * t->cols);
    gr_free(tmp);
    return out;
}

/* ---- expectations ---- */

struct ops_out *ops_expect(struct ops_case *c, const struct gr_ten *t)
{
    struct ops_out *o = &c->out[c->n_out++];
    cr_assert(c->n_out <= OPS_MAX_OUT);
    o->ten = *t;
    o->want = ops_doubles(c, ops_count(t));
    o->tol_ref = ops_doubles(c, ops_count(t));
    o->tol_fast = ops_doubles(c, ops_count(t));
    return o;
}

double *ops_device_tolerance(struct ops_case *c, struct ops_out *o)
{
    o->tol_device = ops_doubles(c, ops_count(&o->ten));
    for (int64_t i = 0; i < ops_count(&o->ten); i++)
        o->tol_device[i] = 0;
    return o->tol_device;
}

void ops_round_to_f32(struct ops_out *o)
{
    for (int64_t i = 0; i < ops_count(&o->ten); i++)
        o->tol_ref[i] = o->tol_fast[i] = fabs(o->want[i]) * (0x1p-24 + 1e-12) + 0x1p-149;
}

/* ---- what is wrong with a case ---- */

static void test_name(char *name, size_t size)
{
    snprintf(name, size, "%s/%s", criterion_current_test->category, criterion_current_test->name);
}

bool ops_begin(struct ops_case *c)
{
    char group[CASES_NAME_BYTES];
    test_name(group, sizeof group);
    c->name = cases_begin(group, c->label);
    return c->name != NULL;
}

int ops_wrong(struct ops_case *c, const char *fmt, ...)
{
    va_list ap;
    if (c->why[0])
        return 1;
    va_start(ap, fmt);
    vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
    return 1;
}

void ops_end(struct ops_case *c)
{
    const size_t n = strlen(c->why);
    if (c->lost)
        snprintf(c->why + n, sizeof c->why - n, " (the device is lost)");
    cases_end(c->name, n ? c->why : NULL);
    cr_expect(n == 0, "%s: %s", c->label, c->why);
    if (c->lost)
        cr_assert_fail("the device is lost: the cases behind this one have not been run");
}

/* ---- running ---- */

static const struct ops_buf *buf_of(const struct ops_case *c, const void *p)
{
    const struct ops_buf *u = c->buf, *end = u + c->n_buf;
    while (u < end && ((const char *)p < u->host || (const char *)p >= u->host + u->bytes))
        u++;
    cr_assert(u < end, "%s: a tensor outside the case", c->label);
    return u;
}

static int bring_weight(struct ops_case *c, struct gr_backend *b, struct gr_ten *t)
{
    struct ops_buf *u = &c->buf[buf_of(c, t->data) - c->buf];
    struct gr_ten host = *t;
    size_t bytes = b->api->weight_bytes(b, &host, true);
    u->weight = true;
    u->device = b->api->alloc(b, bytes);
    return u->device ? b->api->weight_upload(b, &host, true, u->device, t) : GR_E_NOMEM_DEV;
}

static int bring(struct ops_case *c, struct gr_backend *b, struct gr_ten *t)
{
    struct ops_buf *u = &c->buf[buf_of(c, t->data) - c->buf];
    if (!u->device) {
        u->device = b->api->alloc(b, u->bytes);
        if (!u->device)
            return GR_E_NOMEM_DEV;
        cr_assert((uintptr_t)u->device % 256 == 0, "%s: alignment", c->label);
        int rc = b->api->upload(b, u->device, u->host, u->bytes);
        if (rc)
            return rc;
    }
    t->data = (char *)u->device + ((char *)t->data - u->host);
    return 0;
}

static int bring_all(struct ops_case *c, struct gr_backend *b, struct gr_node *node)
{
    int rc = 0;
    for (const struct gr_operand *o = gr_op_info(node->op)->operands; o->role && !rc; o++) {
        struct gr_ten *t = gr_node_ten(node, o);
        if (gr_ten_is(t) && ops_is_matrix(node->op, o) && !b->api->can_borrow(b))
            rc = bring_weight(c, b, t);
        else if (gr_ten_is(t))
            rc = bring(c, b, t);
    }
    return rc;
}

static int fetch(struct ops_case *c, struct gr_backend *b)
{
    int rc = 0;
    for (int i = 0; i < c->n_buf && !rc; i++) {
        struct ops_buf *u = &c->buf[i];
        if (!u->device || u->weight)
            memcpy(u->result, u->host, u->bytes);
        else
            rc = b->api->download(b, u->result, u->device, u->bytes);
    }
    return rc;
}

static void drop(struct ops_case *c, struct gr_backend *b)
{
    for (int i = 0; i < c->n_buf; i++) {
        struct ops_buf *u = &c->buf[i];
        if (u->device)
            b->api->free(b, u->device);
        u->device = NULL, u->weight = false;
    }
}

enum { MAX_DEVICES = 8, RUNS = 2 };

static struct gr_backend *device[MAX_DEVICES]; /* the open ones */

static int open_device(struct gr_backend **b, int i)
{
    const struct gr_device_opt opt = cuda_words((struct gr_device_opt){.no_graphs = true});
    return gr_cuda_devices.open(b, i, &opt);
}

/* Any error of the driver ends a backend, but not all of them end the context: then another backend
 * can be opened in it. */
static bool reopen(struct gr_backend *b)
{
    struct gr_backend *fresh;
    int i = 0;
    while (i < MAX_DEVICES && device[i] != b)
        i++;
    if (i == MAX_DEVICES || open_device(&fresh, i))
        return false;
    device[i] = fresh;
    b->api->close(&b);
    return fresh->api->sync(fresh) == 0;
}

int ops_try(struct ops_case *c, struct gr_backend *b)
{
    struct gr_node node = c->node;
    struct gr_segment seg = {&node, 1, NULL, 0};
    void *exec = NULL;
    int rc = bring_all(c, b, &node);
    if (!rc)
        rc = b->api->segment_new(b, &seg, &exec);
    if (!rc)
        rc = b->api->segment_run(b, exec, NULL, NULL);
    if (!rc)
        rc = fetch(c, b);
    if (rc)
        ops_wrong(c, "%s", gr_error());
    drop(c, b);
    if (exec)
        b->api->segment_free(b, &exec);
    if (rc && b->api->sync(b) != 0)
        c->lost = !reopen(b);
    return rc != 0;
}

void ops_run(struct ops_case *c, struct gr_backend *b)
{
    cr_assert_eq(ops_try(c, b), 0, "%s: %s", c->label, c->why);
}

/* ---- comparing ---- */

enum judge { JUDGE_REF, JUDGE_FAST, JUDGE_DEVICE };

static int compare_out(struct ops_case *c, const struct ops_out *o, enum judge judge,
                       const char *where)
{
    bool own = judge == JUDGE_DEVICE && o->tol_device;
    const struct ops_buf *u = buf_of(c, o->ten.data);
    struct gr_ten got = o->ten;
    got.data = u->result + ((char *)o->ten.data - u->host);
    const double *x = ops_values(c, &got), *tol = own                  ? o->tol_device
                                                  : judge == JUDGE_REF ? o->tol_ref
                                                                       : o->tol_fast;
    size_t row_bytes = gr_row_bytes(got.dtype, (uint64_t)got.cols);
    double squares = 0;
    for (int64_t i = 0; i < ops_count(&got); i++) {
        int64_t r = i / got.cols;
        double error = x[i] - o->want[i];
        if (isnan(o->want[i])) {
            if (memcmp(gr_ten_row(&got, 0, r), gr_ten_row(&o->ten, 0, r), row_bytes) != 0)
                return ops_wrong(c, "[%s]: row %lld changed", where, (long long)r);
            i += got.cols - 1;
            continue;
        }
        if (!(fabs(error) <= tol[i]))
            return ops_wrong(c, "[%s]: row %lld, column %lld: %.9g, expected %.9g +- %.3g", where,
                             (long long)r, (long long)(i % got.cols), x[i], o->want[i], tol[i]);
        squares += error * error;
    }
    double expected = own ? o->squares_device : o->squares;
    double most = expected * (ops_count(&got) < 64 ? 16 : 3);
    if (judge == JUDGE_REF || expected == 0 || squares <= most)
        return 0;
    return ops_wrong(c, "[%s]: squared errors %.3g, about %.3g are expected", where, squares,
                     expected);
}

/* Outputs put back to what they were, nothing else may differ. */
static int compare_rest(struct ops_case *c, const char *where)
{
    for (int k = 0; k < c->n_out; k++) {
        const struct gr_ten *t = &c->out[k].ten;
        const struct ops_buf *u = buf_of(c, t->data);
        for (int64_t r = 0; r < t->batch * t->rows; r++) {
            char *row = gr_ten_row(t, 0, r);
            memcpy(u->result + (row - u->host), row, gr_row_bytes(t->dtype, (uint64_t)t->cols));
        }
    }
    for (int i = 0; i < c->n_buf; i++)
        if (memcmp(c->buf[i].result, c->buf[i].host, c->buf[i].bytes) != 0)
            return ops_wrong(c, "[%s]: wrote outside its outputs (tensor %d)", where, i);
    return 0;
}

static int compare(struct ops_case *c, enum judge judge, const char *where)
{
    for (int k = 0; k < c->n_out; k++)
        if (compare_out(c, &c->out[k], judge, where))
            return 1;
    return compare_rest(c, where);
}

static uint64_t hash_outs(const struct ops_case *c)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < c->n_buf; i++)
        for (size_t k = 0; k < c->buf[i].bytes; k++)
            h = (h ^ (uint8_t)c->buf[i].result[k]) * 0x100000001b3u;
    return h;
}

/* Backends of the process, opened at their first use: one a level and thread count. */
static struct gr_backend *backend_of(enum gr_cpu_level level, int n_threads)
{
    static struct gr_backend *open[GR_CPU_N_LEVEL][4];
    struct gr_backend **b = &open[level][n_threads];
    if (!*b)
        cr_assert_eq(gr_cpu_open(b, n_threads, n_threads, level), 0, "%s", gr_error());
    return *b;
}

#ifndef OPS_FIRST_LEVEL
#define OPS_FIRST_LEVEL GR_CPU_REF
#endif

/* Any number of threads gives the same bits. */
static int check_level(struct ops_case *c, enum gr_cpu_level level)
{
    uint64_t one_thread = 0;
    for (int n = 1; n <= 3; n++) {
        char where[40];
        snprintf(where, sizeof where, "%s, %d threads", gr_cpu_level_name(level), n);
        if (ops_try(c, backend_of(level, n)))
            return 1;
        uint64_t h = hash_outs(c);
        one_thread = n == 1 ? h : one_thread;
        if (h != one_thread)
            return ops_wrong(c, "[%s]: differs from one thread", where);
        if (n == 1 && compare(c, level == GR_CPU_REF ? JUDGE_REF : JUDGE_FAST, where))
            return 1;
    }
    return 0;
}

static int check_cpu(struct ops_case *c)
{
    int rc = 0;
    for (enum gr_cpu_level level = OPS_FIRST_LEVEL; level < GR_CPU_N_LEVEL && !rc; level++)
        rc = gr_cpu_has(level) ? check_level(c, level) : 0;
    return rc;
}

int ops_n_device(void)
{
    bool broken;
    const char *why;
    int n = gr_cuda_devices.count(&why, &broken);
    cr_assert(ops_on_cpu() || n > 0, "%s", why);
    return GR_MIN(n, MAX_DEVICES);
}

struct gr_backend *ops_device(struct ops_case *c, int i)
{
    if (!device[i] && open_device(&device[i], i)) {
        ops_wrong(c, "%s", gr_error());
        c->lost = true;
    }
    return device[i];
}

/* A node gives the same bytes each time. */
static int check_device(struct ops_case *c, int i)
{
    struct gr_backend *b = ops_device(c, i);
    uint64_t first = 0, ref = 0;
    char where[24];
    if (!b)
        return 1;
    snprintf(where, sizeof where, "%s%d", gr_cuda_devices.name, i);
    if (c->same_bits) {
        if (ops_try(c, backend_of(GR_CPU_REF, 1)))
            return 1;
        ref = hash_outs(c);
    }
    for (int run = 0; run < RUNS; run++) {
        if (ops_try(c, b))
            return 1;
        uint64_t h = hash_outs(c);
        first = run == 0 ? h : first;
        if (h != first)
            return ops_wrong(c, "[%s]: differs from run to run", where);
    }
    if (c->same_bits && first != ref)
        ops_wrong(c, "[%s]: not the reference's bits", where);
    return compare(c, JUDGE_DEVICE, where);
}

bool ops_on_cpu(void)
{
    const char *where = getenv("GR_TEST_OPS");
    cr_assert(!where || strcmp(where, "gpu") == 0, "GR_TEST_OPS=%s: gpu is expected", where);
    return !where && strcmp(gr_cuda_devices.name, "CUDA") == 0;
}

void ops_check(struct ops_case *c)
{
    if (!ops_begin(c))
        return;
    int n = ops_n_device(), rc = ops_on_cpu() ? check_cpu(c) : 0;
    for (int i = 0; i < n && !rc; i++)
        rc = check_device(c, i);
    ops_end(c);
}
