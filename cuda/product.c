/* Products of plain matrices by cuBLASLt: its handle, the plans of the shapes that were asked for,
 * and the launch. It takes matrices as column-major: a row-major one [n, m] is its [m, n]. So y^T =
 * w x^T has w transposed, x and y as they are.
 *
 * Equal bits from run to run: a plan is made once and kept, and no algorithm is taken whose parts
 * of a sum are added in place. */
#include <string.h>

#include "base/checked.h"
#include "cuda/cublaslt.h"
#include "cuda/launcher.h"
#include "gr/status.h"

#define ALIGN 256

struct gr_product_plan {
    struct gr_product_shape shape;
    bool found; /* the library computes it */
    cublaslt_desc desc;
    cublaslt_layout w, x, y;
    struct cublaslt_algo algo;
};

struct gr_cuda_products {
    const struct gr_cublaslt *lt;
    cublaslt_handle handle;
    struct gr_vec plan; /* struct gr_product_plan * */
};

/* Bytes that cuBLAS's documentation recommends for 9.0 and for older devices ("Workspace"). */
static size_t workspace_bytes(const struct gr_cuda_backend *c)
{
    return (size_t)(c->device->facts.cc >= 90 ? 32 : 4) << 20;
}

#define LT(c, call, ...)                                                                           \
    gr_cublaslt_said((c)->products->lt, (c)->name, GR_CUBLASLT_##call,                             \
                     (c)->products->lt->call(__VA_ARGS__))

/* ---- which products ---- */

struct shape_row {
    int cc;
    uint32_t dtype;
    int64_t rows, cols, n_tok;
};
static const struct shape_row shape_rows[] = {
#define SHAPE(cc, type, rows, cols, n_tok) {cc, GR_##type, rows, cols, n_tok},
#include "cuda/matmul_shapes.def"
#undef SHAPE
    {0, 0, 0, 0, 0},
};

static bool any_shape(int cc)
{
    for (const struct shape_row *s = shape_rows; s->cc; s++)
        if (s->cc == cc)
            return true;
    return false;
}

static bool in_table(int cc, uint32_t dtype, int64_t rows, int64_t cols, int64_t n_tok)
{
    for (const struct shape_row *s = shape_rows; s->cc; s++)
        if (s->cc == cc && s->dtype == dtype && s->rows == rows && s->cols == cols)
            return n_tok >= s->n_tok;
    return false;
}

/* True when a backend with these options has the library, or fails without it. */
static bool has_library(const struct gr_cuda_backend *c)
{
    return c->opt.matmul == GR_DEVICE_MATMUL_LIBRARY ||
           (c->opt.matmul == GR_DEVICE_MATMUL_AUTO && any_shape(c->device->facts.cc) &&
            gr_cublaslt_state()->version);
}

/* Measured for a session whose backend is another one, c->products may be NULL. */
bool gr_launch_by_library(const struct gr_launcher *l, uint32_t dtype, int64_t rows, int64_t cols,
                          int64_t n_tok)
{
    const struct gr_cuda_backend *c = l->c;
    return has_library(c) && (c->opt.matmul == GR_DEVICE_MATMUL_LIBRARY ||
                              in_table(c->device->facts.cc, dtype, rows, cols, n_tok));
}

/* ---- opening ---- */

int gr_cuda_products_open(struct gr_cuda_backend *c)
{
    if (!has_library(c))
        return 0;
    const struct gr_cublaslt_state *s = gr_cublaslt_state();
    if (!s->version)
        return gr_fail(GR_E_UNSUPPORTED, "%s: --matmul cublas: %s, or use --matmul own", c->name,
                       s->what);
    c->products = gr_calloc(1, sizeof *c->products);
    if (!c->products)
        return GR_E_NOMEM_HOST;
    c->products->lt = &s->lt;
    return LT(c, create, &c->products->handle);
}

static void free_plan(const struct gr_cublaslt *lt, struct gr_product_plan *p)
{
    cublaslt_layout layout[] = {p->w, p->x, p->y};
    for (size_t i = 0; i < GR_COUNT(layout); i++)
        if (layout[i])
            (void)lt->layout_destroy(layout[i]);
    if (p->desc)
        (void)lt->desc_destroy(p->desc);
    gr_free(p);
}

void gr_cuda_products_close(struct gr_cuda_backend *c)
{
    struct gr_cuda_products *s = c->products;
    if (!s)
        return;
    struct gr_product_plan **plan = s->plan.data;
    for (size_t i = 0; i < s->plan.n; i++)
        free_plan(s->lt, plan[i]);
    gr_vec_fini(&s->plan);
    if (s->handle)
        (void)s->lt->destroy(s->handle);
    gr_free(s);
    c->products = NULL;
}

/* ---- plans ---- */

static int describe(struct gr_cuda_backend *c, struct gr_product_plan *p)
{
    const struct gr_product_shape *s = &p->shape;
    const int type = s->dtype == GR_F32    ? CUBLASLT_F32
                     : s->dtype == GR_BF16 ? CUBLASLT_BF16
                                           : CUBLASLT_F16;
    const int32_t transposed = CUBLASLT_OP_T;
    const uint64_t rows = (uint64_t)s->rows, n_tok = (uint64_t)s->n_tok, cols = (uint64_t)s->cols;
    int rc = LT(c, desc_create, &p->desc, CUBLASLT_COMPUTE_F32, CUBLASLT_F32);
    if (!rc)
        rc = LT(c, desc_set, p->desc, CUBLASLT_DESC_TRANS_A, &transposed, sizeof transposed);
    if (!rc)
        rc = LT(c, layout_create, &p->w, type, cols, rows, s->w_pitch);
    if (!rc)
        rc = LT(c, layout_create, &p->x, type, cols, n_tok, s->x_pitch);
    return rc ? rc : LT(c, layout_create, &p->y, CUBLASLT_F32, rows, n_tok, s->rows);
}

static int prefer(struct gr_cuda_backend *c, const struct gr_product_shape *s,
                  cublaslt_preference preference)
{
    const struct {
        int attribute;
        uint32_t value;
    } word[] = {{CUBLASLT_PREFER_REDUCTIONS, CUBLASLT_REDUCE_COMPUTE_TYPE},
                {CUBLASLT_PREFER_ALIGN_A, ALIGN},
                {CUBLASLT_PREFER_ALIGN_B, s->x_align},
                {CUBLASLT_PREFER_ALIGN_C, ALIGN},
                {CUBLASLT_PREFER_ALIGN_D, ALIGN}};
    const uint64_t workspace = workspace_bytes(c);
    int rc =
        LT(c, preference_set, preference, CUBLASLT_PREFER_WORKSPACE, &workspace, sizeof workspace);
    for (size_t i = 0; i < GR_COUNT(word) && !rc; i++)
        rc = LT(c, preference_set, preference, word[i].attribute, &word[i].value,
                sizeof word[i].value);
    return rc;
}

/* Asks for the algorithm that the library takes to be the fastest. */
static int choose(struct gr_cuda_backend *c, struct gr_product_plan *p)
{
    const struct gr_cublaslt *lt = c->products->lt;
    struct cublaslt_choice choice;
    cublaslt_preference preference = NULL;
    int n = 0, rc = LT(c, preference_create, &preference);
    if (rc)
        return rc;
    memset(&choice, 0, sizeof choice);
    rc = prefer(c, &p->shape, preference);
    int status = rc ? CUBLASLT_OK
                    : lt->heuristic(c->products->handle, p->desc, p->w, p->x, p->y, p->y,
                                    preference, 1, &choice, &n);
    (void)lt->preference_destroy(preference);
    p->found = !rc && status == CUBLASLT_OK && n > 0 && choice.state == CUBLASLT_OK;
    p->algo = choice.algo;
    return rc || status == CUBLASLT_NOT_SUPPORTED
               ? rc
               : gr_cublaslt_said(lt, c->name, GR_CUBLASLT_heuristic, status);
}

static bool same_shape(const struct gr_product_shape *a, const struct gr_product_shape *b)
{
    return a->dtype == b->dtype && a->x_align == b->x_align && a->rows == b->rows &&
           a->n_tok == b->n_tok && a->cols == b->cols && a->w_pitch == b->w_pitch &&
           a->x_pitch == b->x_pitch;
}

static int make(struct gr_cuda_backend *c, const struct gr_product_shape *shape,
                struct gr_product_plan **out)
{
    struct gr_product_plan *p = gr_calloc(1, sizeof *p);
    if (!p)
        return GR_E_NOMEM_HOST;
    p->shape = *shape;
    int rc = describe(c, p);
    if (!rc)
        rc = choose(c, p);
    if (!rc)
        rc = gr_vec_append(&c->products->plan, &p, 1, sizeof(struct gr_product_plan *));
    if (rc)
        free_plan(c->products->lt, p);
    else
        *out = p;
    return rc;
}

int gr_launch_product_find(struct gr_launcher *l, const struct gr_product_shape *shape,
                           const struct gr_product_plan **plan)
{
    *plan = NULL;
    if (!l->notes)
        return 0;
    struct gr_product_plan **known = l->c->products->plan.data, *p = NULL;
    for (size_t i = 0; i < l->c->products->plan.n && !p; i++)
        p = same_shape(&known[i]->shape, shape) ? known[i] : NULL;
    int rc = p ? 0 : make(l->c, shape, &p);
    if (!rc && p->found)
        *plan = p;
    return rc;
}

/* ---- launches ---- */

size_t gr_launch_workspace(const struct gr_launcher *l)
{
    return workspace_bytes(l->c);
}

int gr_cuda_product_run(struct gr_cuda_backend *c, cu_stream stream,
                        const struct gr_product_plan *plan, const struct gr_cuda_product *p)
{
    const float one = 1, zero = 0;
    return LT(c, matmul, c->products->handle, plan->desc, &one, p->w, plan->w, p->x, plan->x, &zero,
              p->y, plan->y, p->y, plan->y, &plan->algo, p->workspace, workspace_bytes(c), stream);
}
