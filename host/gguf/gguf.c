/* Opening a model of one file or of several, and reading the data of its tensors. */
#include "gguf/gguf.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "gguf/gguf_impl.h"
#include "gr/status.h"

static bool less_name(const void *items, uint32_t a, uint32_t b)
{
    const struct gr_gguf_tensor *t = items;
    return gr_str_compare(t[a].name, t[b].name) < 0;
}

static bool less_place(const void *items, uint32_t a, uint32_t b)
{
    const struct gr_gguf_tensor *t = items;
    return t[a].part != t[b].part ? t[a].part < t[b].part : t[a].offset < t[b].offset;
}

/* Checks that no two tensors of a part overlap and no two of the model have the same name. */
static int check_tensors(struct gr_gguf *g)
{
    const struct gr_gguf_tensor *t = g->tensor;
    uint32_t *place = gr_sorted(t, g->n_tensor, less_place);
    g->tensor_order = gr_sorted(t, g->n_tensor, less_name);
    int rc = place && g->tensor_order ? 0 : GR_E_NOMEM_HOST;
    for (uint64_t i = 1; i < g->n_tensor && !rc; i++) {
        const struct gr_gguf_tensor *a = &t[g->tensor_order[i - 1]], *b = &t[g->tensor_order[i]];
        if (gr_str_compare(a->name, b->name) == 0)
            rc = gr_fail(GR_E_CORRUPT,
                         "%s: tensor %s: occurs twice (data at bytes %" PRIu64 " and %" PRIu64 ")",
                         g->part[b->part]->rd.name, gr_quote(a->name.p, a->name.n),
                         GR_MIN(a->offset, b->offset), GR_MAX(a->offset, b->offset));
    }
    for (uint64_t i = 1; i < g->n_tensor && !rc; i++) {
        const struct gr_gguf_tensor *a = &t[place[i - 1]], *b = &t[place[i]];
        if (a->part == b->part && b->offset - a->offset < a->bytes)
            rc =
                gr_fail(GR_E_CORRUPT,
                        "%s: tensor %s: its data overlaps tensor %s: expected it to end at or "
                        "before byte %" PRIu64 ", found %" PRIu64 " (byte %" PRIu64 ")",
                        g->part[a->part]->rd.name, gr_quote(a->name.p, a->name.n),
                        gr_quote(b->name.p, b->name.n), b->offset, a->offset + a->bytes, a->offset);
    }
    gr_free(place);
    return rc;
}

/* Second pass over the tensor tables of all parts. */
static int read_tensors(struct gr_gguf *g)
{
    for (uint32_t k = 0; k < g->n_part; k++)
        g->n_tensor += g->part[k]->n_tensor;
    g->tensor = gr_calloc(g->n_tensor, sizeof *g->tensor);
    if (!g->tensor)
        return GR_E_NOMEM_HOST;
    struct gr_gguf_tensor *t = g->tensor;
    for (uint32_t k = 0; k < g->n_part; k++) {
        int rc = gr_gguf_part_tensors(g->part[k], t);
        if (rc)
            return rc;
        for (uint64_t i = 0; i < g->part[k]->n_tensor; i++, t++)
            t->part = k;
    }
    return check_tensors(g);
}

/* Allocates a model with room for one part, not open yet. */
static struct gr_gguf *model_new(void)
{
    struct gr_gguf *g = gr_calloc(1, sizeof *g);
    if (g && (g->part = gr_calloc(1, sizeof *g->part)) &&
        (*g->part = gr_calloc(1, sizeof **g->part)))
        g->n_part = 1;
    else
        gr_gguf_close(&g);
    return g;
}

int gr_gguf_too_much(const char *path)
{
    return gr_fail(GR_E_CORRUPT,
                   "%s: its metadata and what is made of it take more than %zu MiB of memory", path,
                   GR_GGUF_MAX_HELD >> 20);
}

int gr_gguf_open(struct gr_gguf **out, const char *path, bool mapped)
{
    struct gr_budget budget = {.limit = GR_GGUF_MAX_HELD};
    gr_budget_begin(&budget);
    struct gr_gguf *g = model_new();
    int rc = g ? gr_gguf_part_open(g->part[0], path, mapped) : GR_E_NOMEM_HOST;
    if (!rc)
        rc = gr_gguf_split_open(g, mapped);
    if (!rc)
        rc = read_tensors(g);
    if (rc)
        gr_gguf_close(&g);
    *out = g;
    return gr_budget_end(&budget) ? gr_gguf_too_much(path) : rc;
}

/* Opens a model of `size` bytes whose first n are at p; further parts of a split model are not
 * opened. */
static int open_bytes(struct gr_gguf **out, const void *p, size_t n, uint64_t size,
                      const char *name)
{
    struct gr_gguf *g = model_new();
    *out = g;
    if (!g)
        return GR_E_NOMEM_HOST;
    gr_rd_init_memory(&g->part[0]->rd, p, n, name, GR_GGUF_MAX_META);
    g->part[0]->rd.size = size;
    g->part[0]->base = n == size ? p : NULL;
    return gr_gguf_part_load(g->part[0]);
}

int gr_gguf_open_memory(struct gr_gguf **out, const void *p, size_t n, const char *name)
{
    int rc = open_bytes(out, p, n, n, name);
    if (!rc)
        rc = gr_gguf_split_open(*out, false);
    if (!rc)
        rc = read_tensors(*out);
    if (rc)
        gr_gguf_close(out);
    return rc;
}

int gr_gguf_check_meta(const void *meta, size_t n, uint64_t size, const char *name)
{
    struct gr_gguf *g;
    int rc = open_bytes(&g, meta, n, size, name);
    if (!rc)
        rc = read_tensors(g);
    gr_gguf_close(&g);
    return rc == GR_E_CORRUPT || rc == GR_E_UNSUPPORTED ? GR_E_INVALID : rc;
}

void gr_gguf_close(struct gr_gguf **g)
{
    struct gr_gguf *m = *g;
    if (!m)
        return;
    for (uint32_t k = 0; k < m->n_part; k++) {
        gr_free(m->part[k]->kv);
        gr_free(m->part[k]->kv_order);
        gr_rd_fini(&m->part[k]->rd);
        gr_file_close(&m->part[k]->file);
        gr_free(m->part[k]);
    }
    gr_free(m->part);
    gr_free(m->tensor);
    gr_free(m->tensor_order);
    for (size_t i = 0; i < m->owned.n; i++)
        gr_free(((char **)m->owned.data)[i]);
    gr_vec_fini(&m->owned);
    gr_free(m);
    *g = NULL;
}

int gr_gguf_read(const struct gr_gguf *g, const struct gr_gguf_tensor *t, uint64_t off, void *dst,
                 size_t n)
{
    const struct gr_gguf_part *p = g->part[t->part];
    if (!gr_in(off, n, t->bytes)) {
        memset(dst, 0, n);
        return gr_fail(GR_E_INVALID, "%s: tensor %s: %zu bytes at %" PRIu64 " of its %" PRIu64,
                       p->rd.name, gr_quote(t->name.p, t->name.n), n, off, t->bytes);
    }
    if (p->rd.file)
        return gr_file_read(&p->file, t->offset + off, dst, n);
    memcpy(dst, p->base + t->offset + off, n);
    return 0;
}

int gr_gguf_read_tensor(const struct gr_gguf *g, const struct gr_gguf_tensor *t, void *dst)
{
    return gr_gguf_read(g, t, 0, dst, t->bytes);
}

int gr_gguf_unchanged(const struct gr_gguf *g)
{
    int rc = 0;
    for (uint32_t k = 0; k < g->n_part && !rc; k++)
        rc = g->part[k]->rd.file ? gr_file_unchanged(&g->part[k]->file) : 0;
    return rc;
}
