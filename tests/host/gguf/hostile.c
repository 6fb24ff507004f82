/* Files broken on purpose: whatever the bytes are, the reader refuses them or gives a model that
 * holds together. */
#include <fcntl.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/rng.h"
#include "bytes.h"
#include "gr/dtype.h"
#include "support/model_fault.h"

#define N_KEY 9
#define N_TENSOR 3

/* A small file with every form of value and of tensor. */
static void put_sample(struct bytes *b)
{
    *b = (struct bytes){.n = 0};
    put_head(b, 3, N_TENSOR, N_KEY);
    put_kv_u32(b, "general.alignment", 16);
    put_kv_str(b, "general.architecture", "llama");
    put_key(b, "flag", GR_GGUF_BOOL), put_int(b, 1, 1);
    put_key(b, "eps", GR_GGUF_F32), put_int(b, 0x3727c5ac, 4);
    put_key(b, "big", GR_GGUF_U64), put_int(b, 1ull << 40, 8);
    put_array(b, "tokens", GR_GGUF_STR, 3), put_str(b, "a"), put_str(b, ""), put_str(b, "ccc");
    put_array(b, "flags", GR_GGUF_BOOL, 3), put_int(b, 0x010001, 3);
    put_array(b, "heads", GR_GGUF_I32, 2), put_int(b, 8, 4), put_int(b, 4, 4);
    put_array(b, "none", GR_GGUF_F64, 0);
    put_tensor(b, "x", 4, 3, GR_F32, 48);
    put_tensor(b, "y", 32, 1, GR_Q8_0, 0);
    put_tensor(b, "z", 8, 1, GR_BF16, 96);
    put_record(b);
    put_pad(b, 16);
    for (int i = 0; i < 96 + 16; i++)
        b->p[b->n++] = (uint8_t)i;
}

static void sound(const struct gr_gguf *g, uint64_t n_byte)
{
    const char *fault = model_fault(g, n_byte);
    cr_assert(!fault, "%s", fault);
}

/* Opens n bytes at p: refused in one line, or whole; memory stays in bounds and all comes back. */
static int verdict(const uint8_t *p, size_t n, const char *name)
{
    struct gr_gguf *g;
    size_t peak, before = gr_alloc_held(&peak);
    int rc = gr_gguf_open_memory(&g, p, n, name);
    gr_alloc_held(&peak);
    cr_assert_leq(peak - before, 8 * n + 4096);
    if (rc == 0)
        sound(g, n);
    else
        cr_assert((rc == GR_E_CORRUPT || rc == GR_E_UNSUPPORTED) && !g && !strchr(gr_error(), '\n'),
                  "%d %s", rc, gr_error());
    gr_gguf_close(&g);
    cr_assert_eq(gr_alloc_held(NULL), before);
    return rc;
}

/* The same bytes as a file, mapped and not, must get the same verdict in the same words. */
static void same_from_file(int fd, const char *path, const uint8_t *p, size_t n)
{
    char said[1024];
    int rc = verdict(p, n, path);
    snprintf(said, sizeof said, "%s", rc ? gr_error() : "");
    if (p)
        cr_assert(ftruncate(fd, 0) == 0 && pwrite(fd, p, n, 0) == (ssize_t)n);
    for (int mapped = 0; mapped < 2; mapped++) {
        struct gr_gguf *g;
        cr_assert_eq(gr_gguf_open(&g, path, mapped), rc);
        cr_assert(rc == 0 || strcmp(gr_error(), said) == 0, "'%s' and '%s'", gr_error(), said);
        if (g)
            sound(g, n);
        gr_gguf_close(&g);
    }
}

/* A copy without slack, so that a sanitizer sees the first byte read beyond it. */
static void same_exact(int fd, const char *path, const uint8_t *p, size_t n)
{
    uint8_t *exact = gr_calloc(n, 1);
    memcpy(exact, p, n);
    same_from_file(fd, path, exact, n);
    gr_free(exact);
}

/* An empty file of that name; *path is its path. */
static int scratch(const char *name, char path[512])
{
    snprintf(path, 512, "%s/tests/%s", GR_BINARY_DIR, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0);
    return fd;
}

Test(gguf_hostile, every_truncation)
{
    static struct bytes b;
    char path[512];
    int fd = scratch("truncated.gguf", path);
    put_sample(&b);
    for (size_t n = 0; n <= b.n; n++) {
        same_exact(fd, path, b.p, n);
        int rc = verdict(b.p, n, path);
        cr_assert(n == b.n ? rc == 0 : rc == GR_E_CORRUPT, "%zu of %zu bytes: %d", n, b.n, rc);
    }
    close(fd);
}

/* Values that break parsers, for a field of n bytes. */
static size_t nasty(uint64_t now, uint64_t out[256])
{
    size_t n = 0;
    uint64_t fixed[] = {0,       1,       2,       3,   UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 7,
                        now + 1, now - 1, now * 2, ~now};
    for (size_t i = 0; i < GR_COUNT(fixed); i++)
        out[n++] = fixed[i];
    for (int k = 2; k < 64; k++)
        out[n++] = 1ull << k, out[n++] = (1ull << k) - 1, out[n++] = (1ull << k) + 1;
    return n;
}

static void store(uint8_t *p, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t load(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

Test(gguf_hostile, every_field_times_every_nasty_value)
{
    static struct bytes b, m;
    char path[512];
    int fd = scratch("mutated.gguf", path), n_accepted = 0, n_refused = 0;
    uint64_t values[256];
    put_sample(&b);
    cr_assert_geq(b.n_field, 60);
    for (size_t f = 0; f < b.n_field; f++) {
        size_t n = nasty(load(b.p + b.field[f].at, b.field[f].n), values);
        for (size_t v = 0; v < n; v++) {
            m = b;
            store(m.p + b.field[f].at, values[v], b.field[f].n);
            if (v % 16 == f % 16)
                same_exact(fd, path, m.p, m.n);
            verdict(m.p, m.n, path) ? n_refused++ : n_accepted++;
        }
    }
    cr_assert(n_refused > 4000 && n_accepted > 1000, "%d refused, %d accepted", n_refused,
              n_accepted);
    close(fd);
}

/* Two or three fields at once, seeded. */
Test(gguf_hostile, random_fields_together)
{
    static struct bytes b, m;
    struct gr_rng rng = gr_rng_new(3);
    uint64_t values[256];
    put_sample(&b);
    for (int i = 0; i < 30000; i++) {
        m = b;
        for (uint32_t k = 0, n = 2 + gr_rng_u32(&rng) % 2; k < n; k++) {
            size_t f = gr_rng_u32(&rng) % b.n_field;
            size_t n_value = nasty(load(m.p + b.field[f].at, b.field[f].n), values);
            store(m.p + b.field[f].at, values[gr_rng_u32(&rng) % n_value], b.field[f].n);
        }
        verdict(m.p, m.n, "x.gguf");
    }
}

/* Each record dropped, doubled or exchanged with another; counts as before or put right. */
Test(gguf_hostile, records_dropped_doubled_exchanged)
{
    static struct bytes b;
    static uint8_t m[sizeof b.p * 2];
    put_sample(&b);
    cr_assert_eq(b.n_record, N_KEY + N_TENSOR + 1);
    for (size_t r = 0; r < b.n_record - 1; r++) {
        size_t lo = b.record[r], hi = b.record[r + 1], n = hi - lo, count_at = r < N_KEY ? 16 : 8;
        for (int fix = 0; fix < 2; fix++) {
            memcpy(m, b.p, lo), memcpy(m + lo, b.p + hi, b.n - hi);
            store(m + count_at, load(b.p + count_at, 8) - (uint64_t)fix, 8);
            int rc = verdict(m, b.n - n, "x.gguf");
            cr_assert(fix || rc, "a record less than counted, %zu", r);
            memcpy(m, b.p, hi), memcpy(m + hi, b.p + lo, b.n - lo);
            store(m + count_at, load(b.p + count_at, 8) + (uint64_t)fix, 8);
            rc = verdict(m, b.n + n, "x.gguf");
            bool in_padding = !fix && r + 2 == b.n_record; /* after the last record counted */
            cr_assert((rc != 0) != in_padding, "record %zu twice", r);
        }
        if (r + 2 < b.n_record && r + 1 != N_KEY) {
            size_t next = b.record[r + 2] - hi;
            memcpy(m, b.p, b.n), memcpy(m + lo, b.p + hi, next), memcpy(m + lo + next, b.p + lo, n);
            cr_assert_eq(verdict(m, b.n, "x.gguf"), 0, "the order of records is free, %zu: %s", r,
                         gr_error());
        }
    }
}

Test(gguf_hostile, random_bytes)
{
    static struct bytes b, m;
    struct gr_rng rng = gr_rng_new(4);
    put_sample(&b);
    for (int i = 0; i < 30000; i++) {
        m = b;
        for (uint32_t k = 0, n = 1 + gr_rng_u32(&rng) % 8; k < n; k++)
            m.p[4 + gr_rng_u32(&rng) % (b.n - 4)] = (uint8_t)gr_rng_u32(&rng);
        verdict(m.p, m.n, "x.gguf");
    }
}

/* Every allocation fails, once or from there on: a status, nothing lost, and afterwards it works.
 */
Test(gguf_hostile, survives_each_failing_allocation)
{
    static struct bytes b;
    put_sample(&b);
    const char *path = put_file(&b, "oom.gguf");
    size_t before = gr_alloc_held(NULL);
    for (int how = 0; how < 6; how++) {
        int rc = -1;
        for (uint64_t k = 1; rc; k++) {
            struct gr_gguf *g;
            cr_assert_lt(k, 100);
            gr_alloc_fail_at(k, how & 1);
            rc = how < 2 ? gr_gguf_open_memory(&g, b.p, b.n, "x.gguf")
                         : gr_gguf_open(&g, path, how < 4);
            gr_alloc_fail_at(0, 0);
            cr_assert(rc == 0 || (rc == GR_E_NOMEM_HOST && !g), "%d %s", rc, gr_error());
            if (rc == 0)
                sound(g, b.n);
            gr_gguf_close(&g);
            cr_assert_eq(gr_alloc_held(NULL), before);
        }
    }
}

/* A file of `n` bytes that says it has one key, an array of items that fill all of it but `less`
 * bytes. */
static void put_sparse(const char *path, int fd, uint64_t n, uint32_t item, uint64_t count)
{
    struct bytes b = {.n = 0};
    put_head(&b, 3, 0, 1);
    put_array(&b, "a", item, count);
    cr_assert(ftruncate(fd, 0) == 0 && ftruncate(fd, (off_t)n) == 0, "%s", path);
    cr_assert_eq(pwrite(fd, b.p, b.n, 0), (ssize_t)b.n);
}

/* However large the file and the counts in it, metadata over the limit is refused before it is
 * read. */
Test(gguf_hostile, memory_is_bounded_for_huge_files)
{
    char path[512];
    int fd = scratch("sparse.gguf", path);
    size_t peak;
    struct gr_gguf *g;
    gr_alloc_held(&peak);
    put_sparse(path, fd, 1ull << 36, GR_GGUF_U8, 1ull << 35);
    cr_assert_eq(gr_gguf_open(&g, path, false), GR_E_CORRUPT);
    cr_assert(
        strstr(gr_error(),
               "key 'a': the value of 34359738368 bytes makes the metadata longer than 134217728"));
    put_sparse(path, fd, 1ull << 36, GR_GGUF_U64, UINT64_MAX / 8);
    cr_assert_eq(gr_gguf_open(&g, path, false), GR_E_CORRUPT);
    gr_alloc_held(&peak);
    cr_assert_lt(peak, 1u << 20, "nothing was read");
    put_sparse(path, fd, 1ull << 36, GR_GGUF_U32, 25000);
    cr_assert_eq(gr_gguf_open(&g, path, false), 0, "%s", gr_error());
    gr_gguf_close(&g);
    gr_alloc_held(&peak);
    cr_assert_lt(peak, 8u * 4 * 25000, "what follows the metadata is not read");
    put_sparse(path, fd, 1ull << 36, GR_GGUF_STR, 1ull << 32);
    cr_assert_eq(gr_gguf_open(&g, path, true), GR_E_CORRUPT);
    put_sparse(path, fd, 1ull << 36, GR_GGUF_U8, GR_GGUF_MAX_META - 64);
    cr_assert_eq(gr_gguf_open(&g, path, true), 0, "%s", gr_error());
    gr_gguf_close(&g);
    gr_alloc_held(&peak);
    cr_assert_lt(peak, 512u << 20);
    close(fd);
    unlink(path);
}

/* Counts over the limit, in a file that could hold so many. */
Test(gguf_hostile, counts_are_limited)
{
    char path[512];
    int fd = scratch("counts.gguf", path);
    struct gr_gguf *g;
    for (int tensors = 0; tensors < 2; tensors++) {
        struct bytes b = {.n = 0};
        put_head(&b, 3, tensors ? GR_GGUF_MAX_TENSOR + 1 : 0, tensors ? 0 : GR_GGUF_MAX_KV + 1);
        cr_assert_eq(ftruncate(fd, 1 << 30), 0);
        cr_assert_eq(pwrite(fd, b.p, b.n, 0), (ssize_t)b.n);
        cr_assert_eq(gr_gguf_open(&g, path, false), GR_E_CORRUPT);
        cr_assert(strstr(gr_error(),
                         tensors ? "number of tensors: expected at most 1048576, found 1048577"
                                 : "number of keys: expected at most 65536, found 65537"));
    }
    close(fd);
    unlink(path);
}

/* The densest metadata there is: at most eight bytes of memory for each byte of it, and time that
 * does not explode. */
Test(gguf_hostile, memory_is_bounded_for_dense_files)
{
    enum { N = 60000, KEY = 16, TENSOR = 35, META = 24 + N * (KEY + TENSOR) };
    static uint8_t p[META + 32 + 32 * N];
    struct bytes head = {.n = 0};
    size_t peak, before;
    struct gr_gguf *g;
    char path[512];
    int fd = scratch("dense.gguf", path);
    put_head(&head, 3, N, N);
    memcpy(p, head.p, 24);
    for (uint32_t i = 0; i < N; i++) {
        uint8_t *key = p + 24 + KEY * i, *tensor = p + 24 + KEY * N + TENSOR * i;
        store(key, 3, 8), store(key + 8, 0x202020 + i, 3);
        store(tensor, 3, 8), store(tensor + 8, 0x202020 + N - i, 3);
        store(tensor + 11, 1, 4), store(tensor + 15, 1, 8);
        store(tensor + 23, GR_I8, 4), store(tensor + 27, 32ull * i, 8);
    }
    cr_assert_eq(pwrite(fd, p, sizeof p, 0), (ssize_t)sizeof p);
    before = gr_alloc_held(&peak);
    cr_assert_eq(gr_gguf_open(&g, path, true), 0, "%s", gr_error());
    gr_alloc_held(&peak);
    cr_assert_eq(gr_gguf_meta_bytes(g), META);
    cr_assert_leq(peak - before, 8 * (size_t)META, "%zu for %d", peak - before, META);
    cr_assert_eq(gr_gguf_find_tensor(g, "!  "), gr_gguf_tensor_at(g, N - 1));
    gr_gguf_close(&g);
    close(fd);
    unlink(path);
}
