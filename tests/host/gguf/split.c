/* Models of several files. */
#include <unistd.h>

#include "bytes.h"
#include "gr/dtype.h"

/* Keys by which a part describes itself. */
struct part {
    int no, count, total, n_tensor;
};

/* Writes one part whose tensors are named <no>.<i> and hold the byte 16 * no + i. */
static void put_part(const char *name, struct part p)
{
    struct bytes b = {.n = 0};
    put_head(&b, 3, (uint64_t)p.n_tensor, p.no == 0 ? 5 : 3);
    put_key(&b, "split.no", GR_GGUF_U16), put_int(&b, (uint64_t)p.no, 2);
    put_key(&b, "split.count", GR_GGUF_U16), put_int(&b, (uint64_t)p.count, 2);
    put_key(&b, "split.tensors.count", GR_GGUF_I32), put_int(&b, (uint64_t)p.total, 4);
    if (p.no == 0) {
        put_kv_str(&b, "general.architecture", "none");
        put_kv_u32(&b, "general.alignment", 64);
    }
    for (int i = 0; i < p.n_tensor; i++) {
        char tensor[16];
        snprintf(tensor, sizeof tensor, "%d.%d", p.no, i);
        put_tensor(&b, tensor, 8, 2, GR_F32, 64 * (uint64_t)i);
    }
    put_pad(&b, p.no == 0 ? 64 : 32);
    for (int i = 0; i < p.n_tensor; i++)
        for (int k = 0; k < 64; k++)
            put_int(&b, (uint64_t)(16 * p.no + i), 1);
    put_file(&b, name);
}

static void put_three(const char *stem)
{
    static const int n_tensor[3] = {2, 3, 1};
    char name[64];
    for (int no = 0; no < 3; no++) {
        snprintf(name, sizeof name, "%s-%05d-of-00003.gguf", stem, no + 1);
        put_part(name, (struct part){no, 3, 6, n_tensor[no]});
    }
}

static void fails(const char *name, int status, const char *text)
{
    char path[512];
    struct gr_gguf *g;
    snprintf(path, sizeof path, GR_BINARY_DIR "/tests/%s", name);
    for (int mapped = 0; mapped < 2; mapped++) {
        int rc = gr_gguf_open(&g, path, mapped);
        cr_assert(rc == status && !g, "%d %s", rc, rc ? gr_error() : "accepted");
        cr_assert(strstr(gr_error(), text), "'%s' lacks '%s'", gr_error(), text);
    }
}

Test(gguf_split, three_parts_are_one_model)
{
    put_three("three");
    for (int mapped = 0; mapped < 2; mapped++) {
        struct gr_gguf *g;
        struct gr_str s;
        uint8_t got[64];
        cr_assert_eq(gr_gguf_open(&g, GR_BINARY_DIR "/tests/three-00001-of-00003.gguf", mapped), 0,
                     "%s", gr_error());
        cr_assert(gr_gguf_n_part(g) == 3 && gr_gguf_n_tensor(g) == 6);
        cr_assert(!gr_gguf_str(g, "general.architecture", &s) && gr_str_is(s, "none"));
        cr_assert(strstr(gr_gguf_path(g, 2), "three-00003-of-00003.gguf"));
        for (uint32_t no = 0; no < 3; no++) {
            const struct gr_gguf_tensor *t = gr_gguf_find_tensor(g, no == 0   ? "0.1"
                                                                    : no == 1 ? "1.2"
                                                                              : "2.0");
            uint8_t want = no == 0 ? 1 : no == 1 ? 18 : 32;
            cr_assert(t && t->part == no && !t->data == !mapped);
            cr_assert(gr_gguf_read_tensor(g, t, got) == 0 && got[0] == want && got[63] == want);
            cr_assert(!t->data || memcmp(t->data, got, 64) == 0);
        }
        cr_assert_eq(gr_gguf_unchanged(g), 0);
        cr_assert_eq(truncate(gr_gguf_path(g, 2), 100), 0);
        cr_assert_eq(gr_gguf_unchanged(g), GR_E_CORRUPT);
        cr_assert_eq(gr_gguf_read_tensor(g, gr_gguf_find_tensor(g, "2.0"), got), GR_E_IO);
        cr_assert_eq(got[0], 0);
        gr_gguf_close(&g);
        put_three("three");
    }
}

/* A split model is written as one file. */
Test(gguf_split, copied_into_one)
{
    put_three("joined");
    struct gr_gguf *g;
    struct gr_gguf_writer *w;
    const char *path = GR_BINARY_DIR "/tests/joined.gguf";
    uint8_t got[64];
    cr_assert_eq(gr_gguf_open(&g, GR_BINARY_DIR "/tests/joined-00001-of-00003.gguf", false), 0);
    cr_assert(gr_gguf_writer_new(&w) == 0 && gr_gguf_copy_all(w, g) == 0);
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
        cr_assert_eq(gr_gguf_add_tensor(w, t->name, t->dtype, t->n_dim, t->ne), 0);
    }
    cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g); i++) {
        cr_assert_eq(gr_gguf_read_tensor(g, gr_gguf_tensor_at(g, i), got), 0);
        cr_assert_eq(gr_gguf_write(w, got, 64), 0);
    }
    cr_assert_eq(gr_gguf_commit(w), 0);
    gr_gguf_writer_free(&w);
    gr_gguf_close(&g);
    cr_assert_eq(gr_gguf_open(&g, path, true), 0, "%s", gr_error());
    cr_assert(gr_gguf_n_part(g) == 1 && gr_gguf_n_tensor(g) == 6 && gr_gguf_n_kv(g) == 2);
    cr_assert(*(const uint8_t *)gr_gguf_find_tensor(g, "1.2")->data == 18);
    gr_gguf_close(&g);
}

/* The limit of memory is that of a model, not of each of its files: five parts of nearly the most
 * metadata that one may have, all of it zeros that take no room on the disk. */
Test(gguf_split, metadata_of_all_parts)
{
    enum { PARTS = 5, BYTES = 127 << 20 };
    struct gr_gguf *g;
    size_t peak, before;
    char path[512];
    for (int no = 0; no < PARTS; no++) {
        struct bytes b = {.n = 0};
        char name[64];
        snprintf(name, sizeof name, "much-%05d-of-%05d.gguf", no + 1, PARTS);
        put_head(&b, 3, 0, 4);
        put_key(&b, "split.no", GR_GGUF_U16), put_int(&b, (uint64_t)no, 2);
        put_key(&b, "split.count", GR_GGUF_U16), put_int(&b, PARTS, 2);
        put_key(&b, "split.tensors.count", GR_GGUF_I32), put_int(&b, 0, 4);
        put_array(&b, "zeros", GR_GGUF_U8, BYTES);
        size_t n = b.n + BYTES;
        cr_assert_eq(truncate(put_file(&b, name), (off_t)n), 0);
    }
    before = gr_alloc_held(&peak);
    int rc = gr_gguf_open(&g, GR_BINARY_DIR "/tests/much-00001-of-00005.gguf", false);
    cr_assert(rc == GR_E_CORRUPT && !g, "%d %s", rc, gr_error());
    cr_assert(strstr(gr_error(), "much-00001-of-00005.gguf: its metadata and what is made of it "
                                 "take more than 512 MiB"),
              "%s", gr_error());
    (void)gr_alloc_held(&peak);
    cr_assert_leq(peak - before, (size_t)512 << 20);
    for (int no = 0; no < PARTS; no++) {
        snprintf(path, sizeof path, GR_BINARY_DIR "/tests/much-%05d-of-%05d.gguf", no + 1, PARTS);
        unlink(path);
    }
}

Test(gguf_split, wrong_sets_are_refused)
{
    put_three("bad");
    fails("bad-00002-of-00003.gguf", GR_E_INVALID, "part 2 of 3: open the first part instead, '");
    fails("bad-00002-of-00003.gguf", GR_E_INVALID, "tests/bad-00001-of-00003.gguf'");
    unlink(GR_BINARY_DIR "/tests/bad-00003-of-00003.gguf");
    fails("bad-00001-of-00003.gguf", GR_E_NO_MODEL,
          "tests/bad-00003-of-00003.gguf: part 3 of 3 is missing");
    put_part("bad-00003-of-00003.gguf", (struct part){2, 3, 6, 2});
    fails("bad-00001-of-00003.gguf", GR_E_CORRUPT,
          "bad-00001-of-00003.gguf: key 'split.tensors.count': expected 7, the tensors of all "
          "parts, found i32 6");
    put_part("bad-00003-of-00003.gguf", (struct part){2, 3, 7, 1});
    fails("bad-00001-of-00003.gguf", GR_E_CORRUPT,
          "bad-00003-of-00003.gguf: key 'split.tensors.count': expected 6, the tensors of all "
          "parts, found i32 7");
    put_part("bad-00003-of-00003.gguf", (struct part){1, 3, 6, 1});
    fails("bad-00001-of-00003.gguf", GR_E_CORRUPT,
          "bad-00003-of-00003.gguf: key 'split.no': expected 2 in this part, found u16 1");
    put_part("bad-00003-of-00003.gguf", (struct part){2, 4, 6, 1});
    fails("bad-00001-of-00003.gguf", GR_E_CORRUPT,
          "key 'split.count': expected 3 as in the first part, found u16 4");
    put_part("other.gguf", (struct part){0, 3, 6, 2});
    fails("other.gguf", GR_E_CORRUPT, "expected a name that ends in '-00001-of-00003.gguf'");
    put_part("bad-00001-of-00003.gguf", (struct part){7, 3, 6, 2});
    fails("bad-00001-of-00003.gguf", GR_E_CORRUPT,
          "key 'split.no': expected an integer below split.count");
}

/* The same name in two parts is found. */
Test(gguf_split, names_are_unique_over_parts)
{
    struct bytes b = {.n = 0};
    put_part("twice-00001-of-00002.gguf", (struct part){0, 2, 2, 1});
    put_head(&b, 3, 1, 3);
    put_key(&b, "split.no", GR_GGUF_U16), put_int(&b, 1, 2);
    put_key(&b, "split.count", GR_GGUF_U16), put_int(&b, 2, 2);
    put_key(&b, "split.tensors.count", GR_GGUF_I32), put_int(&b, 2, 4);
    put_tensor(&b, "0.0", 1, 1, GR_F32, 0);
    put_pad(&b, 32), put_int(&b, 0, 4);
    put_file(&b, "twice-00002-of-00002.gguf");
    fails("twice-00001-of-00002.gguf", GR_E_CORRUPT, "tensor '0.0': occurs twice");
}

/* A count that no files stand behind costs no memory. */
Test(gguf_split, a_huge_count_is_cheap)
{
    size_t peak;
    put_part("many-00001-of-65535.gguf", (struct part){0, 65535, 2, 2});
    gr_alloc_held(&peak);
    fails("many-00001-of-65535.gguf", GR_E_NO_MODEL, "part 2 of 65535 is missing");
    gr_alloc_held(&peak);
    cr_assert_lt(peak, 1u << 20);
}

Test(gguf_split, a_part_in_memory_is_refused)
{
    struct bytes b = {.n = 0};
    put_head(&b, 3, 0, 2);
    put_key(&b, "split.no", GR_GGUF_U16), put_int(&b, 0, 2);
    put_key(&b, "split.count", GR_GGUF_U16), put_int(&b, 2, 2);
    refused(&b, GR_E_UNSUPPORTED, "part 1 of 2, expected a whole model");
}
