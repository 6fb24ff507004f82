#include "quantize/imatrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/sort.h"
#include "gr/dtype.h"
#include "gr/status.h"

#define MAX_LEGACY ((size_t)4 << 30) /* bytes of a file in the older format */
#define SUMS ".in_sum2"
#define COUNTS ".counts"

struct entry {
    char *name;
    size_t name_n;
    uint64_t n_in, n_matrix;
    float *sum;    /* [n_matrix, n_in] */
    double *count; /* [n_matrix] rows added to each */
};

struct gr_imatrix {
    struct gr_vec entry;   /* struct entry, sorted by name; in file order while a file is read */
    struct gr_vec dataset; /* char * */
    uint32_t n_chunk, chunk_size;
};

static void entry_fini(struct entry *e)
{
    gr_free(e->name);
    gr_free(e->sum);
    gr_free(e->count);
}

int gr_imatrix_new(struct gr_imatrix **out)
{
    *out = gr_calloc(1, sizeof **out);
    return *out ? 0 : GR_E_NOMEM_HOST;
}

void gr_imatrix_free(struct gr_imatrix **m)
{
    struct gr_imatrix *p = m ? *m : NULL;
    if (!p)
        return;
    for (size_t i = 0; i < p->entry.n; i++)
        entry_fini((struct entry *)p->entry.data + i);
    for (size_t i = 0; i < p->dataset.n; i++)
        gr_free(((char **)p->dataset.data)[i]);
    gr_vec_fini(&p->entry);
    gr_vec_fini(&p->dataset);
    gr_free(p);
    *m = NULL;
}

static int compare(struct gr_str a, const struct entry *e)
{
    int c = memcmp(a.p, e->name, GR_MIN(a.n, e->name_n));
    return c ? c : (a.n > e->name_n) - (a.n < e->name_n);
}

/* Finds the entry of that name; NULL: none. *at receives its index, or where to insert it. */
static struct entry *find(const struct gr_imatrix *m, struct gr_str name, size_t *at)
{
    struct entry *e = m->entry.data;
    size_t lo = 0, hi = m->entry.n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (compare(name, e + mid) <= 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    *at = lo;
    return lo < m->entry.n && compare(name, e + lo) == 0 ? e + lo : NULL;
}

/* Appends an entry of zeros; *out is valid until the next one is appended. */
static int append(struct gr_imatrix *m, struct gr_str name, uint64_t n_in, uint64_t n_matrix,
                  struct entry **out)
{
    uint64_t n;
    if (!gr_mul(&n, n_in, n_matrix) || n > INT32_MAX)
        return gr_fail(GR_E_TOO_LARGE, "importances of %s: %llu times %llu columns",
                       gr_quote(name.p, name.n), (unsigned long long)n_matrix,
                       (unsigned long long)n_in);
    struct entry new = {
        gr_strndup(name.p, name.n),         name.n, n_in, n_matrix, gr_calloc(n, sizeof(float)),
        gr_calloc(n_matrix, sizeof(double))};
    *out = new.name &&new.sum &&new.count ? gr_vec_push(&m->entry, sizeof new) : NULL;
    if (!*out) {
        entry_fini(&new);
        return GR_E_NOMEM_HOST;
    }
    **out = new;
    return 0;
}

static int check_shape(const struct entry *e, struct gr_str name, uint64_t n_in, uint64_t n_matrix)
{
    if (e->n_in == n_in && e->n_matrix == n_matrix)
        return 0;
    return gr_fail(
        GR_E_INVALID, "importances of %s: %llu matrices of %llu columns here, %llu of %llu there",
        gr_quote(name.p, name.n), (unsigned long long)e->n_matrix, (unsigned long long)e->n_in,
        (unsigned long long)n_matrix, (unsigned long long)n_in);
}

/* Finds or inserts the entry of that name; GR_E_INVALID when its shape differs. A model has few
 * tensors, which come in the order of its layers, so inserting by moving entries is cheap. */
static int need(struct gr_imatrix *m, struct gr_str name, uint64_t n_in, uint64_t n_matrix,
                struct entry **out)
{
    size_t at;
    *out = find(m, name, &at);
    if (*out)
        return check_shape(*out, name, n_in, n_matrix);
    int rc = append(m, name, n_in, n_matrix, out);
    if (rc)
        return rc;
    struct entry new = **out;
    *out = (struct entry *)m->entry.data + at;
    memmove(*out + 1, *out, (m->entry.n - 1 - at) * sizeof new);
    **out = new;
    return 0;
}

static struct gr_str name_of(const struct entry *e)
{
    return (struct gr_str){e->name, e->name_n};
}

/* Orders entries by name, then by their order in the file. */
static bool less_entry(const void *items, uint32_t a, uint32_t b)
{
    const struct entry *e = items;
    int c = compare(name_of(e + a), e + b);
    return c ? c < 0 : a < b;
}

/* Adds `from` to an entry of the same name and empties it. */
static int fold(struct entry *to, struct entry *from)
{
    int rc = check_shape(to, name_of(from), from->n_in, from->n_matrix);
    for (uint64_t i = 0; !rc && i < from->n_in * from->n_matrix; i++)
        to->sum[i] += from->sum[i];
    for (uint64_t i = 0; !rc && i < from->n_matrix; i++)
        to->count[i] += from->count[i];
    if (!rc) {
        entry_fini(from);
        *from = (struct entry){0};
    }
    return rc;
}

/* Moves the entries of `from`, which may be in any order and repeat names, to m, which stays
 * sorted. On failure the rest stays in `from`. */
static int merge_entries(struct gr_imatrix *m, struct gr_imatrix *from)
{
    struct entry *e = from->entry.data, *mine = m->entry.data;
    size_t n = from->entry.n, n_mine = m->entry.n, at = 0, k = 0;
    struct entry *to = gr_calloc(n_mine + n, sizeof *to);
    uint32_t *order = gr_sorted(e, n, less_entry);
    int rc = 0;
    if (!to || !order) {
        gr_free(to);
        gr_free(order);
        return GR_E_NOMEM_HOST;
    }
    for (size_t i = 0; i < n && !rc; i++) {
        struct entry *next = e + order[i];
        while (at < n_mine && compare(name_of(next), mine + at) >= 0)
            to[k++] = mine[at++];
        if (k && compare(name_of(next), to + k - 1) == 0)
            rc = fold(to + k - 1, next);
        else
            to[k++] = *next, *next = (struct entry){0};
    }
    while (at < n_mine)
        to[k++] = mine[at++];
    gr_vec_fini(&m->entry);
    m->entry = (struct gr_vec){to, k, n_mine + n, sizeof *to};
    gr_free(order);
    return rc;
}

/* Adds the contents of a file. */
static int merge(struct gr_imatrix *m, struct gr_imatrix *from)
{
    int rc = merge_entries(m, from);
    if (!rc)
        rc = gr_vec_append(&m->dataset, from->dataset.data, from->dataset.n, sizeof(char *));
    if (rc)
        return rc;
    from->dataset.n = 0; /* owned by m now */
    gr_imatrix_chunks(m, from->n_chunk, from->chunk_size);
    return 0;
}

int gr_imatrix_add(struct gr_imatrix *m, const char *name, int32_t i, int32_t n_matrix,
                   const float *x, int64_t n_row, int64_t n_in, int64_t stride)
{
    struct entry *e;
    int rc = need(m, (struct gr_str){name, strlen(name)}, (uint64_t)n_in, (uint64_t)n_matrix, &e);
    if (rc)
        return rc;
    float *sum = e->sum + (size_t)i * (size_t)n_in;
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t c = 0; c < n_in; c++)
            sum[c] += x[r * stride + c] * x[r * stride + c];
    e->count[i] += (double)n_row;
    for (int64_t c = 0; c < n_in; c++)
        if (!isfinite(sum[c]))
            return gr_fail(GR_E_CHECK, "tensor %s: what it is multiplied with is not finite", name);
    return 0;
}

void gr_imatrix_chunks(struct gr_imatrix *m, uint32_t n, uint32_t size)
{
    m->n_chunk += n;
    m->chunk_size = size;
}

/* Adds a dataset's name unless it is listed: continuing with the same dataset lists it once. */
static int add_dataset(struct gr_imatrix *m, struct gr_str name)
{
    for (size_t i = 0; i < m->dataset.n; i++) {
        const char *known = ((char **)m->dataset.data)[i];
        if (strlen(known) == name.n && !memcmp(known, name.p, name.n))
            return 0;
    }
    char *copy = gr_strndup(name.p, name.n);
    int rc = copy ? gr_vec_append(&m->dataset, &copy, 1, sizeof copy) : GR_E_NOMEM_HOST;
    if (rc)
        gr_free(copy);
    return rc;
}

int gr_imatrix_add_dataset(struct gr_imatrix *m, const char *name)
{
    return add_dataset(m, (struct gr_str){name, strlen(name)});
}

/* ---- for quantising ---- */

int gr_imatrix_means(const struct gr_imatrix *m, struct gr_str name, float **out, uint64_t *n)
{
    size_t at;
    const struct entry *e = find(m, name, &at);
    *out = NULL, *n = 0;
    if (!e)
        return 0;
    *n = e->n_in * e->n_matrix;
    *out = gr_calloc(*n, sizeof **out);
    if (!*out)
        return GR_E_NOMEM_HOST;
    for (uint64_t i = 0; i < *n; i++) {
        double count = e->count[i / e->n_in];
        (*out)[i] = count > 0 ? e->sum[i] / (float)count : 1;
    }
    return 0;
}

bool gr_imatrix_has(const struct gr_imatrix *m, struct gr_str name)
{
    size_t at;
    return find(m, name, &at) != NULL;
}

uint64_t gr_imatrix_n_entry(const struct gr_imatrix *m)
{
    return m->entry.n;
}

uint32_t gr_imatrix_n_chunk(const struct gr_imatrix *m)
{
    return m->n_chunk;
}

const char *gr_imatrix_dataset(const struct gr_imatrix *m)
{
    return m->dataset.n ? *(char **)m->dataset.data : NULL;
}

/* ---- reading ---- */

static bool is_good(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(x[i]) || x[i] < 0)
            return false;
    return true;
}

static int bad_values(const char *path, struct gr_str name)
{
    return gr_fail(GR_E_CORRUPT, "%s: %s: sums and counts are finite and not negative", path,
                   gr_quote(name.p, name.n));
}

/* Reads both tensors of an entry, f32, and appends the entry. */
static int add_pair(struct gr_imatrix *m, const struct gr_gguf *g, const struct gr_gguf_tensor *t,
                    struct gr_str name, const struct gr_gguf_tensor *counts)
{
    struct entry *e = NULL;
    uint64_t n = t->bytes / 4, n_matrix = counts->bytes / 4;
    float *sum = gr_calloc(n, sizeof *sum), *count = gr_calloc(n_matrix, sizeof *count);
    int rc = sum && count ? gr_gguf_read_tensor(g, t, sum) : GR_E_NOMEM_HOST;
    if (!rc)
        rc = gr_gguf_read_tensor(g, counts, count);
    if (!rc && (!is_good(sum, n) || !is_good(count, n_matrix)))
        rc = bad_values(gr_gguf_path(g, 0), name);
    if (!rc)
        rc = append(m, name, n / n_matrix, n_matrix, &e);
    for (uint64_t i = 0; !rc && i < n; i++)
        e->sum[i] += sum[i];
    for (uint64_t i = 0; !rc && i < n_matrix; i++)
        e->count[i] += (double)count[i];
    gr_free(sum);
    gr_free(count);
    return rc;
}

static int add_entry(struct gr_imatrix *m, const struct gr_gguf *g, const struct gr_gguf_tensor *t)
{
    char name[512];
    size_t tail = strlen(SUMS);
    if (t->name.n <= tail || memcmp(t->name.p + t->name.n - tail, SUMS, tail) != 0)
        return 0;
    struct gr_str stem = {t->name.p, t->name.n - tail};
    snprintf(name, sizeof name, "%.*s" COUNTS, (int)GR_MIN(stem.n, (size_t)400), stem.p);
    const struct gr_gguf_tensor *counts = gr_gguf_find_tensor(g, name);
    if (!counts || t->dtype != GR_F32 || counts->dtype != GR_F32 ||
        (t->bytes / 4) % (counts->bytes / 4))
        return gr_fail(GR_E_CORRUPT, "%s: tensor %s: expected f32, and %s in f32 beside it",
                       gr_gguf_path(g, 0), gr_quote(t->name.p, t->name.n), name);
    return add_pair(m, g, t, stem, counts);
}

static int load_gguf(struct gr_imatrix *m, const char *path)
{
    struct gr_gguf *g;
    const struct gr_gguf_kv *names = NULL;
    uint32_t n_chunk = 0, size = 0;
    int rc = gr_gguf_open(&g, path, false);
    if (!rc)
        rc = gr_gguf_u32(g, "imatrix.chunk_count", &n_chunk);
    if (!rc)
        rc = gr_gguf_u32(g, "imatrix.chunk_size", &size);
    if (!rc)
        rc = gr_gguf_opt_array(g, "imatrix.datasets", GR_GGUF_STR, &names);
    for (uint64_t i = 0; !rc && i < gr_gguf_n_tensor(g); i++)
        rc = add_entry(m, g, gr_gguf_tensor_at(g, i));
    if (!rc && names) {
        struct gr_gguf_strs it = gr_gguf_strs(names);
        for (struct gr_str s; !rc && gr_gguf_str_next(&it, &s);)
            rc = add_dataset(m, s);
    }
    if (!rc)
        gr_imatrix_chunks(m, n_chunk, size);
    gr_gguf_close(&g);
    return rc;
}

/* Reader of the older format. */
struct cursor {
    const char *p, *path;
    size_t left;
};

static int take(struct cursor *c, void *dst, size_t n)
{
    if (n > c->left)
        return gr_fail(
            GR_E_CORRUPT,
            "%s: neither GGUF nor a whole importance matrix file; gpurun imatrix makes one",
            c->path);
    if (dst)
        memcpy(dst, c->p, n);
    c->p += n, c->left -= n;
    return 0;
}

static int take_str(struct cursor *c, struct gr_str *s)
{
    int32_t n = 0;
    int rc = take(c, &n, sizeof n);
    if (!rc && n < 0)
        return take(c, NULL, SIZE_MAX);
    if (rc)
        return rc;
    *s = (struct gr_str){c->p, (size_t)n};
    return take(c, NULL, s->n);
}

/* Reads one tensor's means times calls; the number of rows of a call is not stored, so each call
 * counts as one row. */
static int take_entry(struct gr_imatrix *m, struct cursor *c)
{
    struct gr_str name = {NULL, 0};
    struct entry *e;
    int32_t n_call = 0, n = 0;
    int rc = take_str(c, &name);
    if (!rc)
        rc = take(c, &n_call, sizeof n_call);
    if (!rc)
        rc = take(c, &n, sizeof n);
    if (!rc && (n < 1 || n_call < 0 || (size_t)n > c->left / sizeof(float)))
        rc = take(c, NULL, SIZE_MAX);
    if (!rc)
        rc = append(m, name, (uint64_t)n, 1, &e);
    for (int32_t i = 0; !rc && i < n; i++) {
        float x = 0;
        rc = take(c, &x, sizeof x);
        if (!rc && !is_good(&x, 1))
            rc = bad_values(c->path, name);
        else if (!rc)
            e->sum[i] += x;
    }
    if (!rc)
        e->count[0] += n_call > 0 ? n_call : 1;
    return rc;
}

static int load_legacy(struct gr_imatrix *m, const char *path)
{
    char *data = NULL;
    size_t n = 0;
    int32_t n_entry = 0, n_chunk = 0;
    struct gr_str dataset = {NULL, 0};
    int rc = gr_file_slurp(path, MAX_LEGACY, &data, &n);
    if (rc)
        return rc;
    struct cursor c = {data, path, n};
    rc = take(&c, &n_entry, sizeof n_entry);
    if (!rc && n_entry < 1)
        rc = take(&c, NULL, SIZE_MAX);
    for (int32_t i = 0; !rc && i < n_entry; i++)
        rc = take_entry(m, &c);
    if (!rc && c.left) {
        rc = take(&c, &n_chunk, sizeof n_chunk);
        if (!rc)
            rc = take_str(&c, &dataset);
        if (!rc)
            rc = add_dataset(m, dataset);
    }
    if (!rc)
        gr_imatrix_chunks(m, n_chunk > 0 ? (uint32_t)n_chunk : 0, m->chunk_size);
    gr_free(data);
    return rc;
}

int gr_imatrix_load(struct gr_imatrix *m, const char *path)
{
    struct gr_file f;
    char magic[4] = "";
    int rc = gr_file_open(&f, path, false);
    if (rc)
        return rc;
    if (f.size >= sizeof magic)
        rc = gr_file_read(&f, 0, magic, sizeof magic);
    gr_file_close(&f);
    if (rc)
        return rc;
    struct gr_imatrix *read;
    rc = gr_imatrix_new(&read);
    if (rc)
        return rc;
    read->chunk_size = m->chunk_size;
    rc = memcmp(magic, "GGUF", 4) == 0 ? load_gguf(read, path) : load_legacy(read, path);
    if (!rc)
        rc = merge(m, read);
    gr_imatrix_free(&read);
    return rc;
}

/* ---- writing ---- */

static int declare(struct gr_gguf_writer *w, const struct entry *e)
{
    char name[512];
    const uint64_t sums[] = {e->n_in, e->n_matrix}, counts[] = {1, e->n_matrix};
    int n = snprintf(name, sizeof name, "%.400s" SUMS, e->name);
    int rc = gr_gguf_add_tensor(w, (struct gr_str){name, (size_t)n}, GR_F32, 2, sums);
    n = snprintf(name, sizeof name, "%.400s" COUNTS, e->name);
    return rc ? rc : gr_gguf_add_tensor(w, (struct gr_str){name, (size_t)n}, GR_F32, 2, counts);
}

static int write_entry(struct gr_gguf_writer *w, const struct entry *e)
{
    int rc = gr_gguf_write(w, e->sum, e->n_in * e->n_matrix * sizeof *e->sum);
    for (uint64_t i = 0; !rc && i < e->n_matrix; i++) {
        float x = (float)e->count[i];
        rc = gr_gguf_write(w, &x, sizeof x);
    }
    return rc;
}

static int set_keys(const struct gr_imatrix *m, struct gr_gguf_writer *w)
{
    struct gr_str *names = gr_calloc(m->dataset.n, sizeof *names);
    int rc = names ? gr_gguf_set_str(w, "general.type", "imatrix") : GR_E_NOMEM_HOST;
    for (size_t i = 0; !rc && i < m->dataset.n; i++)
        names[i] =
            (struct gr_str){((char **)m->dataset.data)[i], strlen(((char **)m->dataset.data)[i])};
    if (!rc)
        rc = gr_gguf_set_strs(w, "imatrix.datasets", names, m->dataset.n);
    if (!rc)
        rc = gr_gguf_set_u32(w, "imatrix.chunk_count", m->n_chunk);
    if (!rc)
        rc = gr_gguf_set_u32(w, "imatrix.chunk_size", m->chunk_size);
    gr_free(names);
    return rc;
}

int gr_imatrix_save(const struct gr_imatrix *m, const char *path, bool overwrite)
{
    struct gr_gguf_writer *w;
    const struct entry *e = m->entry.data;
    int rc = gr_output_check(path, overwrite ? 0 : GR_OUTPUT_KEEP);
    if (rc)
        return rc;
    if (m->entry.n == 0)
        return gr_fail(GR_E_INVALID, "%s: there are no importances to write", path);
    rc = gr_gguf_writer_new(&w);
    if (!rc)
        rc = set_keys(m, w);
    for (size_t i = 0; !rc && i < m->entry.n; i++)
        rc = declare(w, e + i);
    if (!rc)
        rc = gr_gguf_begin(w, path);
    for (size_t i = 0; !rc && i < m->entry.n; i++)
        rc = write_entry(w, e + i);
    if (!rc)
        rc = gr_gguf_commit(w);
    gr_gguf_writer_free(&w);
    return rc;
}
