#include "quantize/rewrite.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/threads.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"

enum { CHUNK = 1 << 20 }; /* elements read, converted and written together */

/* A rewrite in progress. */
struct work {
    struct gr_rewrite *r;
    struct gr_gguf_writer **out; /* [n_part] */
    struct gr_threads *pool;
    uint8_t *src, *dst;
    float *x, *weight; /* [CHUNK] elements and their weights */
    float *mean; /* importances of the current tensor, for each column and matrix; NULL: all weights
                    1 */
};

/* A chunk in progress. */
struct chunk {
    struct work *w;
    const struct gr_gguf_tensor *t;
    const struct gr_dtype_info *from, *to;
    uint64_t at;
    size_t n;
    size_t bad[GR_THREADS_MAX]; /* [threads] first element that cannot be stored, or n */
};

int gr_rewrite_init(struct gr_rewrite *r, const struct gr_gguf *in, const char *out)
{
    uint64_t n = gr_gguf_n_tensor(in);
    *r = (struct gr_rewrite){.in = in, .out = out, .n_part = gr_gguf_n_part(in)};
    r->type = gr_calloc(n, sizeof *r->type);
    r->part = gr_calloc(n, sizeof *r->part);
    if (!r->type || !r->part)
        return GR_E_NOMEM_HOST;
    for (uint64_t i = 0; i < n; i++) {
        r->type[i] = gr_gguf_tensor_at(in, i)->dtype;
        r->part[i] = gr_gguf_tensor_at(in, i)->part;
    }
    return 0;
}

void gr_rewrite_fini(struct gr_rewrite *r)
{
    gr_free(r->type);
    gr_free(r->part);
    *r = (struct gr_rewrite){0};
}

/* ---- files ---- */

static uint32_t part_of(const struct gr_rewrite *r, uint64_t i)
{
    return r->n_part > 1 ? r->part[i] : 0;
}

static int set_split_keys(const struct gr_rewrite *r, struct gr_gguf_writer *w, uint32_t part)
{
    uint16_t no = (uint16_t)part, count = (uint16_t)r->n_part;
    int32_t n = (int32_t)gr_gguf_n_tensor(r->in);
    int rc = gr_gguf_set_scalar(w, "split.no", GR_GGUF_U16, &no);
    if (!rc)
        rc = gr_gguf_set_scalar(w, "split.count", GR_GGUF_U16, &count);
    return rc ? rc : gr_gguf_set_scalar(w, "split.tensors.count", GR_GGUF_I32, &n);
}

static int new_part(const struct gr_rewrite *r, struct gr_gguf_writer **out, uint32_t part)
{
    int rc = gr_gguf_writer_new(out);
    if (!rc && part == 0)
        rc = gr_gguf_copy_all(*out, r->in);
    if (!rc && part == 0 && r->set_keys)
        rc = r->set_keys(*out, r->user);
    if (!rc && r->n_part > 1)
        rc = set_split_keys(r, *out, part);
    for (uint64_t i = 0; !rc && i < gr_gguf_n_tensor(r->in); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(r->in, i);
        if (part_of(r, i) == part)
            rc = gr_gguf_add_tensor(*out, t->name, r->type[i], t->n_dim, t->ne);
    }
    return rc;
}

static int begin_part(const struct gr_rewrite *r, struct gr_gguf_writer *w, uint32_t part)
{
    char *path = gr_gguf_part_name(r->out, part, r->n_part);
    int rc = path ? gr_output_check(path, r->overwrite ? 0 : GR_OUTPUT_KEEP) : GR_E_NOMEM_HOST;
    if (!rc && !r->dry_run)
        rc = gr_gguf_begin(w, path);
    gr_free(path);
    return rc;
}

/* ---- tensors ---- */

/* Returns the largest magnitude that a type can store; block types have scales of f16 or less. */
static float limit(uint32_t type)
{
    switch (type) {
    case GR_F32:
        return 0x1.fffffep127f;
    case GR_BF16:
        return 0x1.fep127f;
    case GR_NVFP4:
        return 2688; /* 448 * 6; there is no scale per tensor */
    default:
        return 65504;
    }
}

/* Sets the weights of the elements [lo, hi) of a chunk. */
static void set_weights(const struct chunk *k, size_t lo, size_t hi)
{
    uint64_t n_in = k->t->ne[0], n_matrix = n_in * k->t->ne[1];
    for (size_t i = lo; k->w->mean && i < hi; i++) {
        uint64_t at = k->at + i;
        k->w->weight[i] = k->w->mean[at / n_matrix * n_in + at % n_in];
    }
}

/* Converts the share of thread i of n of a chunk, in units of the largest block (256). */
static void convert_share(void *arg, int i, int n)
{
    struct chunk *k = arg;
    struct work *c = k->w;
    size_t share = GR_PAD((k->n + (size_t)n - 1) / (size_t)n, 256);
    size_t lo = GR_MIN((size_t)i * share, k->n), hi = GR_MIN(lo + share, k->n);
    float most = limit(k->to->id);
    gr_quant_find(k->from->id)
        ->dequantize(c->src + lo / k->from->block * k->from->block_bytes, c->x + lo, hi - lo);
    k->bad[i] = k->n;
    for (size_t at = hi; at-- > lo;)
        if (!(fabsf(c->x[at]) <= most))
            k->bad[i] = at;
    set_weights(k, lo, hi);
    gr_quant_find(k->to->id)->quantize(c->x + lo, c->dst + lo / k->to->block * k->to->block_bytes,
                                       hi - lo, c->weight + lo);
}

static int refuse(const struct gr_rewrite *r, const struct gr_gguf_tensor *t, uint64_t at, float x,
                  uint32_t type)
{
    const char *path = gr_gguf_path(r->in, t->part), *name = gr_quote(t->name.p, t->name.n);
    if (!isfinite(x))
        return gr_fail(GR_E_CORRUPT,
                       "%s: tensor %s: element %" PRIu64 " is %g, expected a finite number", path,
                       name, at, (double)x);
    return gr_fail(GR_E_UNSUPPORTED,
                   "%s: tensor %s: element %" PRIu64
                   " is %g, and %s holds magnitudes up to %g; use bf16 or f32",
                   path, name, at, (double)x, gr_dtype_name(type), (double)limit(type));
}

static int convert_chunk(struct work *c, struct chunk *k, struct gr_gguf_writer *out)
{
    int n_threads = gr_threads_count(c->pool);
    int e = gr_gguf_read(c->r->in, k->t, k->at / k->from->block * k->from->block_bytes, c->src,
                         gr_row_bytes(k->from->id, k->n));
    if (e)
        return e;
    gr_threads_run(c->pool, n_threads, convert_share, k);
    for (int i = 0; i < n_threads; i++)
        if (k->bad[i] < k->n)
            return refuse(c->r, k->t, k->at + k->bad[i], c->x[k->bad[i]], k->to->id);
    e = gr_gguf_write(out, c->dst, gr_row_bytes(k->to->id, k->n));
    return e ? e : gr_progress_add(&c->r->progress, gr_row_bytes(k->from->id, k->n));
}

/* Sets c->mean to the importances of a tensor, or NULL; GR_E_INVALID when their shape differs. */
static int find_means(struct work *c, const struct gr_gguf_tensor *t)
{
    uint64_t n = 0, want = t->ne[0] * t->ne[2] * t->ne[3];
    gr_free(c->mean);
    c->mean = NULL;
    int rc = c->r->imatrix ? gr_imatrix_means(c->r->imatrix, t->name, &c->mean, &n) : 0;
    if (rc || !c->mean || n == want)
        return rc;
    return gr_fail(GR_E_INVALID,
                   "importances of tensor %s: %" PRIu64 " of them, expected %" PRIu64
                   "; the matrix was made for another model",
                   gr_quote(t->name.p, t->name.n), n, want);
}

static int convert_tensor(struct work *c, const struct gr_gguf_tensor *t, uint32_t type,
                          struct gr_gguf_writer *out)
{
    struct chunk k = {.w = c, .t = t, .from = gr_dtype_find(t->dtype), .to = gr_dtype_find(type)};
    uint64_t n = t->bytes / k.from->block_bytes * k.from->block;
    int e = find_means(c, t);
    for (size_t i = 0; !e && !c->mean && i < CHUNK; i++)
        c->weight[i] = 1;
    for (k.at = 0; k.at < n && !e; k.at += k.n) {
        k.n = (size_t)GR_MIN(n - k.at, (uint64_t)CHUNK);
        e = convert_chunk(c, &k, out);
    }
    return e;
}

static int copy_tensor(struct work *c, const struct gr_gguf_tensor *t, struct gr_gguf_writer *out)
{
    for (uint64_t at = 0; at < t->bytes;) {
        size_t n = (size_t)GR_MIN(t->bytes - at, (uint64_t)CHUNK);
        int e = gr_gguf_read(c->r->in, t, at, c->src, n);
        if (!e)
            e = gr_gguf_write(out, c->src, n);
        if (!e)
            e = gr_progress_add(&c->r->progress, n);
        if (e)
            return e;
        at += n;
    }
    return 0;
}

static int write_tensors(struct work *c)
{
    struct gr_rewrite *r = c->r;
    uint64_t n = gr_gguf_n_tensor(r->in), bytes = 0;
    for (uint64_t i = 0; i < n && !r->dry_run; i++)
        bytes += gr_gguf_tensor_at(r->in, i)->bytes;
    int e = gr_progress_begin(&r->progress, bytes);
    for (uint64_t i = 0; i < n && !e; i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(r->in, i);
        struct gr_gguf_writer *out = c->out[part_of(r, i)];
        bool same = r->type[i] == t->dtype;
        gr_log(GR_LOG_INFO, "%" PRIu64 "/%" PRIu64 " %s: %s%s%s", i + 1, n,
               gr_quote(t->name.p, t->name.n), gr_dtype_name(t->dtype), same ? "" : " -> ",
               same ? "" : gr_dtype_name(r->type[i]));
        if (!r->dry_run)
            e = same ? copy_tensor(c, t, out) : convert_tensor(c, t, r->type[i], out);
    }
    return e ? e : gr_progress_end(&r->progress);
}

/* ---- the whole rewrite ---- */

static int alloc_buffers(struct work *c)
{
    c->out = gr_calloc(c->r->n_part, sizeof(struct gr_gguf_writer *));
    c->src = gr_calloc(CHUNK, sizeof(float));
    c->dst = gr_calloc(CHUNK, sizeof(float));
    c->x = gr_calloc(CHUNK, sizeof(float));
    c->weight = gr_calloc(CHUNK, sizeof(float));
    return c->out && c->src && c->dst && c->x && c->weight ? 0 : GR_E_NOMEM_HOST;
}

static void free_work(struct work *c)
{
    for (uint32_t p = 0; c->out && p < c->r->n_part; p++)
        gr_gguf_writer_free(&c->out[p]);
    gr_threads_free(&c->pool);
    gr_free(c->mean);
    gr_free(c->weight);
    gr_free(c->x);
    gr_free(c->dst);
    gr_free(c->src);
    gr_free(c->out);
}

static int report(const struct gr_rewrite *r)
{
    uint64_t before = 0, after = 0, n_elem = 0, bytes;
    for (uint64_t i = 0; i < gr_gguf_n_tensor(r->in); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(r->in, i);
        if (!gr_tensor_bytes(r->type[i], t->ne, t->n_dim, &bytes) || !gr_add(&after, after, bytes))
            return gr_fail(GR_E_TOO_LARGE, "tensor %s is too large as %s",
                           gr_quote(t->name.p, t->name.n), gr_dtype_name(r->type[i]));
        before += t->bytes;
        n_elem += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    gr_log(GR_LOG_INFO, "weights: %.2f MiB before, %.2f MiB now, %.2f bits each",
           (double)before * 0x1p-20, (double)after * 0x1p-20,
           n_elem ? (double)after * 8 / (double)n_elem : 0);
    return 0;
}

int gr_rewrite_run(struct gr_rewrite *r)
{
    struct work c = {.r = r};
    int n = r->n_threads > 0 ? GR_MIN(r->n_threads, GR_THREADS_MAX) : gr_threads_online();
    int e = alloc_buffers(&c);
    for (uint32_t p = 0; p < r->n_part && !e; p++)
        e = new_part(r, &c.out[p], p);
    if (!e)
        e = gr_threads_new(&c.pool, n, NULL);
    for (uint32_t p = 0; p < r->n_part && !e; p++)
        e = begin_part(r, c.out[p], p);
    if (!e)
        e = write_tensors(&c);
    if (!e)
        e = gr_gguf_unchanged(r->in);
    for (uint32_t p = 0; p < r->n_part && !e && !r->dry_run; p++)
        e = gr_gguf_commit(c.out[p]);
    free_work(&c);
    return e ? e : report(r);
}
