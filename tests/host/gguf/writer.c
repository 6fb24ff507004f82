/* The writer: what is written is read back the same, and what would be refused is not written. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "bytes.h"
#include "gr/dtype.h"
#include "support/cpu_time.h"

static struct gr_str str(const char *s)
{
    return (struct gr_str){s, strlen(s)};
}

static const char *out_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/%s", GR_BINARY_DIR, name);
    unlink(path);
    return path;
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* Same keys, types and bytes, in the same order. */
static void same_keys(const struct gr_gguf *a, const struct gr_gguf *b)
{
    cr_assert_eq(gr_gguf_n_kv(a), gr_gguf_n_kv(b));
    for (uint64_t i = 0; i < gr_gguf_n_kv(a); i++) {
        const struct gr_gguf_kv *x = gr_gguf_kv_at(a, i), *y = gr_gguf_kv_at(b, i);
        cr_assert(x->key.n == y->key.n && memcmp(x->key.p, y->key.p, x->key.n) == 0);
        cr_assert(x->type == y->type && x->item == y->item && x->n == y->n && x->bytes == y->bytes);
        cr_assert(memcmp(x->data, y->data, x->bytes) == 0);
    }
}

static void set_all_types(struct gr_gguf_writer *w)
{
    static const double d[3] = {M_PI, -INFINITY, 0x1p-1074};
    static const struct gr_str s[3] = {{"one", 3}, {"", 0}, {"a\0b", 3}};
    static const uint64_t u64 = UINT64_MAX;
    for (enum gr_gguf_type t = 0; t < GR_GGUF_N_TYPE; t++) {
        char key[32];
        if (gr_gguf_type_bytes(t) == 0)
            continue;
        snprintf(key, sizeof key, "scalar.%s", gr_gguf_type_name(t));
        cr_assert_eq(gr_gguf_set_scalar(
                         w, key, t, t == GR_GGUF_BOOL ? (const void *)"\1" : (const void *)&u64),
                     0);
        snprintf(key, sizeof key, "array.%s", gr_gguf_type_name(t));
        cr_assert_eq(gr_gguf_set_array(w, key, t,
                                       t == GR_GGUF_BOOL ? (const void *)"\1\0\1" : (const void *)d,
                                       3),
                     0);
    }
    cr_assert_eq(gr_gguf_set_strs(w, "array.string", s, 3), 0);
    cr_assert_eq(gr_gguf_set_strs(w, "array.empty", NULL, 0), 0);
    cr_assert_eq(gr_gguf_set_str(w, "string", "text"), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "u32", 17), 0);
    cr_assert_eq(gr_gguf_set_f32(w, "f32", 0.25f), 0);
    cr_assert_eq(gr_gguf_set_bool(w, "bool", true), 0);
}

Test(gguf_writer, every_type_round_trips)
{
    const char *path = out_path("writer-types.gguf");
    struct gr_gguf_writer *w;
    struct gr_gguf *g, *h;
    struct gr_str s;
    const struct gr_gguf_kv *kv;
    double d;
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    set_all_types(w);
    cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
    cr_assert(!exists(path), "the name appears with the whole file");
    cr_assert_eq(gr_gguf_commit(w), 0);
    gr_gguf_writer_free(&w);
    cr_assert_eq(gr_gguf_open(&g, path, true), 0, "%s", gr_error());
    cr_assert_eq(gr_gguf_n_kv(g), 2 * 11 + 6);
    cr_assert(!gr_gguf_array(g, "array.f64", GR_GGUF_F64, &kv) && kv->n == 3);
    cr_assert(gr_gguf_item_f64(kv, 2, &d) && d == 0x1p-1074);
    cr_assert(!gr_gguf_array(g, "array.string", GR_GGUF_STR, &kv));
    struct gr_gguf_strs it = gr_gguf_strs(kv);
    cr_assert(gr_gguf_str_next(&it, &s) && gr_str_is(s, "one"));
    cr_assert(gr_gguf_str_next(&it, &s) && s.n == 0);
    cr_assert(gr_gguf_str_next(&it, &s) && s.n == 3 && memcmp(s.p, "a\0b", 3) == 0);
    cr_assert(!gr_gguf_str_next(&it, &s));
    /* and a copy of the copy is equal in every byte */
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_copy_all(w, g), 0);
    cr_assert(gr_gguf_begin(w, out_path("writer-copy.gguf")) == 0 && gr_gguf_commit(w) == 0);
    gr_gguf_writer_free(&w);
    char copy[512];
    snprintf(copy, sizeof copy, "%s/tests/writer-copy.gguf", GR_BINARY_DIR);
    cr_assert_eq(gr_gguf_open(&h, copy, false), 0);
    same_keys(g, h);
    gr_gguf_close(&g);
    gr_gguf_close(&h);
}

/* Keys that are set again keep their place and have the last value. */
Test(gguf_writer, keys_set_again)
{
    const char *path = out_path("writer-again.gguf");
    static const char *const keys[] = {"b", "a", "bb", "b", "a", "b"};
    struct gr_gguf_writer *w;
    struct gr_gguf *g;
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    for (uint32_t i = 0; i < 6; i++)
        cr_assert_eq(gr_gguf_set_u32(w, keys[i], i), 0);
    cr_assert(gr_gguf_begin(w, path) == 0 && gr_gguf_commit(w) == 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
    cr_assert_eq(gr_gguf_open(&g, path, false), 0, "%s", gr_error());
    cr_assert_eq(gr_gguf_n_kv(g), 3);
    for (uint64_t i = 0; i < 3; i++) {
        static const uint32_t want[] = {5, 4, 2};
        uint32_t value = 0;
        cr_assert(gr_str_is(gr_gguf_kv_at(g, i)->key, keys[i]));
        cr_assert(gr_gguf_u32(g, keys[i], &value) == 0 && value == want[i]);
    }
    gr_gguf_close(&g);
}

/* Processor time of a file of n keys that differ at their ends. */
static double seconds_of_keys(int n)
{
    char key[256];
    struct gr_gguf_writer *w;
    double begin = cpu_seconds();
    memset(key, 'k', sizeof key);
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    for (int i = 0; i < n; i++) {
        snprintf(key + 240, 16, "%d", 1000000 - i);
        cr_assert_eq(gr_gguf_set_u32(w, key, 1), 0);
    }
    cr_assert_eq(gr_gguf_begin(w, out_path("writer-many.gguf")), 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
    return cpu_seconds() - begin;
}

Test(gguf_writer, many_keys)
{
    double once = seconds_of_keys(15000), four = seconds_of_keys(60000);
    cr_assert(is_linear(once, four), "%f s, four times as many %f s", once, four);
}

/* Random tensors of every storage type, written in pieces, at several alignments. */
Test(gguf_writer, tensors_of_every_storage_type)
{
    static const uint32_t alignments[] = {8, 32, 4096};
    for (size_t a = 0; a < 3; a++) {
        const char *path = out_path("writer-tensors.gguf");
        struct gr_rng rng = gr_rng_new(a);
        struct gr_gguf_writer *w;
        struct gr_gguf *g;
        uint8_t data[2048], got[2048];
        cr_assert_eq(gr_gguf_writer_new(&w), 0);
        cr_assert_eq(gr_gguf_set_u32(w, "general.alignment", alignments[a]), 0);
        for (uint32_t id = 0; id < 64; id++)
            if (gr_dtype_find(id)) {
                uint64_t ne[4] = {gr_dtype_find(id)->block, 1 + id % 3, 1, 2};
                cr_assert_eq(gr_gguf_add_tensor(w, str(gr_dtype_name(id)), id, 1 + id % 4, ne), 0);
            }
        cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
        for (uint32_t id = 0; id < 64; id++)
            if (gr_dtype_find(id)) {
                uint64_t ne[4] = {gr_dtype_find(id)->block, 1 + id % 3, 1, 2}, n;
                cr_assert(gr_tensor_bytes(id, ne, 1 + id % 4, &n) && n <= sizeof data);
                for (uint64_t i = 0; i < n; i++)
                    data[i] = (uint8_t)(i * 7 + id);
                size_t cut = gr_rng_u32(&rng) % (n + 1);
                cr_assert_eq(gr_gguf_write(w, data, cut), 0);
                if (cut < n)
                    cr_assert_eq(gr_gguf_write(w, data + cut, n - cut), 0);
            }
        cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
        gr_gguf_writer_free(&w);
        cr_assert_eq(gr_gguf_open(&g, path, true), 0, "%s", gr_error());
        cr_assert_eq(gr_gguf_bytes(g) % alignments[a], 0);
        for (uint64_t k = 0; k < gr_gguf_n_tensor(g); k++) {
            const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, k);
            cr_assert(gr_str_is(t->name, gr_dtype_name(t->dtype)) &&
                      t->offset % alignments[a] == 0);
            cr_assert_eq(gr_gguf_read_tensor(g, t, got), 0);
            cr_assert(memcmp(got, t->data, t->bytes) == 0);
            for (uint64_t i = 0; i < t->bytes; i++)
                cr_assert_eq(got[i], (uint8_t)(i * 7 + t->dtype));
        }
        gr_gguf_close(&g);
    }
}

Test(gguf_writer, setting_again_replaces)
{
    const char *path = out_path("writer-replace.gguf");
    struct gr_gguf_writer *w;
    struct gr_gguf *g;
    uint32_t u;
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_set_str(w, "a", "x"), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "b", 1), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "a", 2), 0);
    cr_assert(gr_gguf_begin(w, path) == 0 && gr_gguf_commit(w) == 0);
    gr_gguf_writer_free(&w);
    cr_assert_eq(gr_gguf_open(&g, path, false), 0);
    cr_assert(gr_gguf_n_kv(g) == 2 && !gr_gguf_u32(g, "a", &u) && u == 2);
    cr_assert(gr_str_is(gr_gguf_kv_at(g, 0)->key, "a"));
    gr_gguf_close(&g);
}

static int begin_only(struct gr_gguf_writer **w, const char *path)
{
    int rc = gr_gguf_begin(*w, path);
    gr_gguf_writer_free(w);
    cr_assert(!exists(path));
    return rc;
}

Test(gguf_writer, refuses_what_the_reader_refuses)
{
    const char *path = out_path("writer-bad.gguf");
    static char longest[GR_GGUF_MAX_NAME + 2];
    struct gr_gguf_writer *w;
    uint64_t ne[4] = {32, 0, 1, 1}, huge[2] = {1ull << 40, 1ull << 30}, one = 1;
    memset(longest, 'x', sizeof longest - 1);
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_add_tensor(w, str("t"), GR_F32, 2, ne), GR_E_INVALID);
    cr_assert_eq(gr_gguf_add_tensor(w, str("t"), GR_F32, 0, ne), GR_E_INVALID);
    cr_assert_eq(gr_gguf_add_tensor(w, str("t"), GR_F32, 5, ne), GR_E_INVALID);
    cr_assert_eq(gr_gguf_add_tensor(w, str("t"), GR_Q4_K, 1, ne), GR_E_INVALID);
    cr_assert_eq(gr_gguf_add_tensor(w, str("t"), 4, 1, ne), GR_E_INVALID);
    cr_assert_eq(gr_gguf_add_tensor(w, str("t"), GR_F32, 2, huge), GR_E_INVALID);
    cr_assert_eq(gr_gguf_set_scalar(w, "k", GR_GGUF_STR, "x"), GR_E_INVALID);
    cr_assert_eq(gr_gguf_set_array(w, "k", GR_GGUF_ARRAY, "x", 1), GR_E_INVALID);
    cr_assert_eq(gr_gguf_set_array(w, "k", GR_GGUF_U64, "x", UINT64_MAX / 4), GR_E_INVALID);
    cr_assert_eq(gr_gguf_write(w, "x", 1), GR_E_INVALID);
    cr_assert_eq(gr_gguf_commit(w), GR_E_INVALID);
    cr_assert_eq(gr_gguf_set_scalar(w, "k", GR_GGUF_BOOL, "\2"), 0);
    cr_assert_eq(begin_only(&w, path), GR_E_INVALID, "a bool of 2");
    cr_assert(strstr(gr_error(), "key 'k': expected a bool of 0 or 1, found 2"), "%s", gr_error());
    for (int bad = 0; bad < 6; bad++) {
        cr_assert_eq(gr_gguf_writer_new(&w), 0);
        cr_assert_eq(gr_gguf_add_tensor(w, str("t"), GR_F32, 1, &one), 0);
        if (bad == 0)
            cr_assert_eq(gr_gguf_add_tensor(w, str("t"), GR_F32, 1, &one), 0);
        if (bad == 1)
            cr_assert_eq(gr_gguf_add_tensor(w, str(""), GR_F32, 1, &one), 0);
        if (bad == 2)
            cr_assert_eq(gr_gguf_set_u32(w, longest, 1), 0);
        if (bad >= 3)
            cr_assert_eq(gr_gguf_set_u32(w, "general.alignment",
                                         bad == 3   ? 0
                                         : bad == 4 ? 48
                                                    : 1u << 30),
                         0);
        cr_assert_eq(begin_only(&w, path), GR_E_INVALID, "case %d", bad);
    }
}

/* A file that is not finished never gets its name, and the old one stays. */
Test(gguf_writer, unfinished_file_leaves_the_old_one)
{
    struct bytes old = {.n = 0};
    put(&old, "old", 3);
    const char *path = put_file(&old, "writer-old.gguf");
    struct gr_gguf_writer *w;
    uint64_t ne = 4;
    char got[8] = "";
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_add_tensor(w, str("t"), GR_F32, 1, &ne), 0);
    cr_assert_eq(gr_gguf_begin(w, path), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "late", 1), GR_E_INVALID);
    cr_assert_eq(gr_gguf_add_tensor(w, str("late"), GR_F32, 1, &ne), GR_E_INVALID);
    cr_assert_eq(gr_gguf_begin(w, path), GR_E_INVALID);
    cr_assert_eq(gr_gguf_write(w, "0123456789abcdef0", 17), GR_E_INVALID, "more than the tensor");
    cr_assert_eq(gr_gguf_write(w, "01234567", 8), 0);
    cr_assert_eq(gr_gguf_commit(w), GR_E_INVALID);
    cr_assert(strstr(gr_error(), "tensor 't': expected 8 more bytes of data"), "%s", gr_error());
    gr_gguf_writer_free(&w);
    FILE *f = fopen(path, "rb");
    cr_assert(f && fread(got, 1, sizeof got, f) == 3 && strcmp(got, "old") == 0);
    fclose(f);
}

/* Every allocation fails once: a status, nothing lost, no file; and then it works. */
Test(gguf_writer, survives_each_failing_allocation)
{
    const char *path = out_path("writer-oom.gguf");
    size_t before = gr_alloc_held(NULL);
    int rc = -1;
    for (uint64_t k = 1; rc; k++) {
        struct gr_gguf_writer *w = NULL;
        uint64_t ne = 2;
        cr_assert_lt(k, 200);
        gr_alloc_fail_at(k, k % 2);
        rc = gr_gguf_writer_new(&w);
        if (!rc)
            rc = gr_gguf_set_str(w, "a", "text");
        if (!rc)
            rc = gr_gguf_set_strs(w, "b", (struct gr_str[]){{"x", 1}}, 1);
        if (!rc)
            rc = gr_gguf_set_u32(w, "a", 2);
        if (!rc)
            rc = gr_gguf_add_tensor(w, str("t"), GR_F32, 1, &ne);
        if (!rc)
            rc = gr_gguf_begin(w, path);
        if (!rc)
            rc = gr_gguf_write(w, "01234567", 8);
        if (!rc)
            rc = gr_gguf_commit(w);
        gr_alloc_fail_at(0, 0);
        gr_gguf_writer_free(&w);
        cr_assert(rc == 0 || rc == GR_E_NOMEM_HOST, "%d %s", rc, gr_error());
        cr_assert_eq(gr_alloc_held(NULL), before, "allocation %d leaks", (int)k);
        cr_assert(exists(path) == (rc == 0));
    }
    unlink(path);
}
