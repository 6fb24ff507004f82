/* Files that another implementation (PyPI's gguf) wrote, against what that implementation reads
 * from them. */
#include <ctype.h>
#include <stdlib.h>

#include "base/file.h"
#include "bytes.h"
#include "gr/dtype.h"

#define DIR GR_SOURCE_DIR "/tests/golden/gguf/"

static void hex(FILE *out, const void *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        fprintf(out, "%02x", ((const uint8_t *)p)[i]);
}

/* One line as golden.txt has it, see make.py there. */
static void dump_kv(FILE *out, const struct gr_gguf_kv *kv)
{
    struct gr_gguf_strs it = gr_gguf_strs(kv);
    struct gr_str s;
    fprintf(out, "kv %.*s %s%s %llu ", (int)kv->key.n, kv->key.p,
            kv->type == GR_GGUF_ARRAY ? "array of " : "", gr_gguf_type_name(kv->item),
            (unsigned long long)kv->n);
    if (kv->item != GR_GGUF_STR)
        hex(out, kv->data, kv->bytes);
    for (const char *comma = ""; gr_gguf_str_next(&it, &s); comma = ",") {
        fputs(comma, out);
        hex(out, s.p, s.n);
    }
    fputc('\n', out);
}

static void dump_tensor(FILE *out, const struct gr_gguf_tensor *t)
{
    fprintf(out, "tensor %.*s ", (int)t->name.n, t->name.p);
    for (const char *p = gr_dtype_name(t->dtype); *p; p++)
        fputc(toupper((unsigned char)*p), out);
    for (uint32_t i = 0; i < t->n_dim; i++)
        fprintf(out, "%c%llu", i ? ',' : ' ', (unsigned long long)t->ne[i]);
    fputc(' ', out);
    hex(out, t->data, t->bytes);
    fputc('\n', out);
}

static void dump(FILE *out, const char *name)
{
    struct gr_gguf *g;
    char path[512];
    snprintf(path, sizeof path, DIR "%s", name);
    cr_assert_eq(gr_gguf_open(&g, path, true), 0, "%s", gr_error());
    fprintf(out, "file %s\n", name);
    for (uint64_t i = 0; i < gr_gguf_n_kv(g); i++)
        dump_kv(out, gr_gguf_kv_at(g, i));
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g); i++)
        dump_tensor(out, gr_gguf_tensor_at(g, i));
    gr_gguf_close(&g);
}

Test(gguf_golden, reads_what_the_other_reads)
{
    static const char *names[] = {"types.gguf", "tensors.gguf", "align.gguf", "v2.gguf",
                                  "split-00001-of-00002.gguf"};
    char *got = NULL, *want = NULL, *save_got, *save_want;
    size_t n, lines = 0;
    FILE *out = open_memstream(&got, &n);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        dump(out, names[i]);
    fclose(out);
    cr_assert_eq(gr_file_slurp(DIR "golden.txt", 1 << 20, &want, &n), 0, "%s", gr_error());
    char *a = strtok_r(got, "\n", &save_got), *b = strtok_r(want, "\n", &save_want);
    for (; a && b; lines++) {
        cr_assert_str_eq(a, b);
        a = strtok_r(NULL, "\n", &save_got), b = strtok_r(NULL, "\n", &save_want);
    }
    cr_assert(!a && !b && lines > 60, "%zu lines", lines);
    free(got);
    gr_free(want);
}

/* Not even a big-endian file of the other is taken for a broken one. */
Test(gguf_golden, big_endian_is_named)
{
    struct gr_gguf *g;
    cr_assert_eq(gr_gguf_open(&g, DIR "big-endian.gguf", false), GR_E_UNSUPPORTED);
    cr_assert(
        strstr(gr_error(), "big-endian file: expected version 2 or 3, found 0x03000000 (byte 4)"));
}

/* The writer writes a file again byte for byte, its data too. */
Test(gguf_golden, writes_what_the_other_writes)
{
    static const char *names[] = {"types.gguf", "tensors.gguf", "align.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct gr_gguf *g;
        struct gr_gguf_writer *w;
        char path[512], *a, *b;
        size_t na, nb;
        snprintf(path, sizeof path, DIR "%s", names[i]);
        cr_assert_eq(gr_gguf_open(&g, path, true), 0, "%s", gr_error());
        cr_assert(gr_gguf_writer_new(&w) == 0 && gr_gguf_copy_all(w, g) == 0);
        for (uint64_t k = 0; k < gr_gguf_n_tensor(g); k++) {
            const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, k);
            cr_assert_eq(gr_gguf_add_tensor(w, t->name, t->dtype, t->n_dim, t->ne), 0);
        }
        cr_assert_eq(gr_gguf_begin(w, GR_BINARY_DIR "/tests/rewritten.gguf"), 0, "%s", gr_error());
        for (uint64_t k = 0; k < gr_gguf_n_tensor(g); k++)
            cr_assert_eq(
                gr_gguf_write(w, gr_gguf_tensor_at(g, k)->data, gr_gguf_tensor_at(g, k)->bytes), 0);
        cr_assert_eq(gr_gguf_commit(w), 0);
        gr_gguf_writer_free(&w);
        gr_gguf_close(&g);
        cr_assert_eq(gr_file_slurp(path, 1 << 20, &a, &na), 0);
        cr_assert_eq(gr_file_slurp(GR_BINARY_DIR "/tests/rewritten.gguf", 1 << 20, &b, &nb), 0);
        cr_assert(nb >= na && memcmp(a, b, na) == 0, "%s", names[i]);
        for (size_t k = na; k < nb; k++)
            cr_assert_eq(b[k], 0, "only padding follows");
        gr_free(a);
        gr_free(b);
    }
}
