/* Models split into several files: NAME-00001-of-00003.gguf and so on. Each part has the keys
 * split.no (from 0), split.count and split.tensors.count (of all parts together); the keys of the
 * model are in the first one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "gguf/gguf_impl.h"
#include "gr/status.h"

#define SUFFIX_BYTES 32 /* enough for "-65535-of-65535.gguf" */

static void suffix_of(char dst[SUFFIX_BYTES], int64_t no, int64_t count)
{
    snprintf(dst, SUFFIX_BYTES, "-%05d-of-%05d.gguf", (int)no + 1, (int)count);
}

char *gr_gguf_part_name(const char *prefix, uint32_t part, uint32_t n_part)
{
    char suffix[SUFFIX_BYTES] = "";
    size_t n = strlen(prefix);
    if (n_part > 1)
        suffix_of(suffix, part, n_part);
    char *path = gr_calloc(n + sizeof suffix, 1);
    if (path) {
        memcpy(path, prefix, n);
        memcpy(path + n, suffix, sizeof suffix);
    }
    return path;
}

/* Checks the name of the first part; *prefix receives the length of the name before the suffix. */
static int split_prefix(const struct gr_gguf_part *p, int64_t no, int64_t count, size_t *prefix)
{
    char suffix[SUFFIX_BYTES];
    size_t n = strlen(p->rd.name);
    if (!p->rd.file)
        return gr_fail(GR_E_UNSUPPORTED,
                       "%s: part %" PRId64 " of %" PRId64 ", expected a whole model", p->rd.name,
                       no + 1, count);
    suffix_of(suffix, no, count);
    *prefix = n - strlen(suffix);
    if (n < strlen(suffix) || strcmp(p->rd.name + *prefix, suffix) != 0)
        return gr_fail(GR_E_CORRUPT,
                       "%s: part %" PRId64 " of %" PRId64 ": expected a name that ends in '%s'",
                       p->rd.name, no + 1, count, suffix);
    if (no == 0)
        return 0;
    suffix_of(suffix, 0, count);
    return gr_fail(GR_E_INVALID,
                   "%s: part %" PRId64 " of %" PRId64 ": open the first part instead, '%.*s%s'",
                   p->rd.name, no + 1, count, (int)*prefix, p->rd.name, suffix);
}

static int open_one(struct gr_gguf *g, int64_t no, int64_t count, size_t prefix, bool mapped)
{
    char suffix[SUFFIX_BYTES], want[48];
    const char *first = g->part[0]->rd.name;
    struct gr_gguf_part *p = gr_calloc(1, sizeof *p);
    int64_t x;
    suffix_of(suffix, no, count);
    if (!p)
        return GR_E_NOMEM_HOST;
    g->part[g->n_part++] = p;
    char *path = gr_calloc(prefix + strlen(suffix) + 1, 1);
    if (!path)
        return GR_E_NOMEM_HOST;
    memcpy(path, first, prefix);
    memcpy(path + prefix, suffix, strlen(suffix));
    int rc = gr_gguf_part_open(p, path, mapped);
    if (rc == GR_E_NO_MODEL)
        rc = gr_fail(rc, "%s: part %" PRId64 " of %" PRId64 " is missing", path, no + 1, count);
    gr_free(path);
    snprintf(want, sizeof want, "%" PRId64 " in this part", no);
    if (!rc)
        rc = gr_gguf_part_int(p, "split.no", want, no, no, &x);
    snprintf(want, sizeof want, "%" PRId64 " as in the first part", count);
    return rc ? rc : gr_gguf_part_int(p, "split.count", want, count, count, &x);
}

int gr_gguf_split_open(struct gr_gguf *g, bool mapped)
{
    int64_t no, count = 1, total, found = 0;
    size_t prefix = 0;
    int rc = 0;
    if (gr_gguf_find(g, "split.count"))
        rc = gr_gguf_part_int(g->part[0], "split.count", "an integer from 0 to 65535", 0,
                              UINT16_MAX, &count);
    if (rc || count <= 1)
        return rc;
    rc =
        gr_gguf_part_int(g->part[0], "split.no", "an integer below split.count", 0, count - 1, &no);
    if (!rc)
        rc = split_prefix(g->part[0], no, count, &prefix);
    if (rc)
        return rc;
    struct gr_gguf_part **part = gr_realloc(g->part, (size_t)count, sizeof *part);
    if (!part)
        return GR_E_NOMEM_HOST;
    g->part = part;
    for (int64_t k = 1; k < count && !rc; k++)
        rc = open_one(g, k, count, prefix, mapped);
    for (int64_t k = 0; k < count && !rc; k++)
        found += (int64_t)part[k]->n_tensor;
    char want[48];
    snprintf(want, sizeof want, "%" PRId64 ", the tensors of all parts", found);
    for (int64_t k = 0; k < count && !rc; k++)
        rc = gr_gguf_part_int(part[k], "split.tensors.count", want, found, found, &total);
    return rc;
}
