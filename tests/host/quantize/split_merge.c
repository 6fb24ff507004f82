/* Split files, merged again. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "gguf/gguf.h"
#include "gpurun.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "support/behind.h"

enum { N_TENSOR = 7 };
static char dir[64], in[96], prefix[96], out[96];

static char *part(int no, int count)
{
    static char path[160];
    snprintf(path, sizeof path, "%s-%05d-of-%05d.gguf", prefix, no, count);
    return path;
}

/* Seven tensors of 1 to 7 rows of 64 numbers; keys of three kinds. */
static void write_model(void)
{
    struct gr_gguf_writer *w;
    const float items[] = {1, 2, 3};
    char name[32];
    float row[64];
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_set_str(w, "general.architecture", "llama"), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "general.alignment", 64), 0);
    cr_assert_eq(gr_gguf_set_array(w, "some.numbers", GR_GGUF_F32, items, 3), 0);
    for (uint64_t i = 0; i < N_TENSOR; i++) {
        const uint64_t ne[] = {64, i + 1};
        int n = snprintf(name, sizeof name, "blk.%d.weight", (int)i);
        cr_assert_eq(gr_gguf_add_tensor(w, (struct gr_str){name, (size_t)n}, GR_F32, 2, ne), 0);
    }
    cr_assert_eq(gr_gguf_begin(w, in), 0, "%s", gr_error());
    for (int i = 0; i < N_TENSOR; i++)
        for (int r = 0; r <= i; r++) {
            for (int c = 0; c < 64; c++)
                row[c] = (float)(i * 1000 + r * 64 + c);
            cr_assert_eq(gr_gguf_write(w, row, sizeof row), 0);
        }
    cr_assert_eq(gr_gguf_commit(w), 0);
    gr_gguf_writer_free(&w);
}

static void setup(void)
{
    strcpy(dir, "/tmp/gpurun-parts-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(in, sizeof in, "%s/in.gguf", dir);
    snprintf(prefix, sizeof prefix, "%s/p", dir);
    snprintf(out, sizeof out, "%s/out.gguf", dir);
    write_model();
}

static void teardown(void)
{
    for (int count = 2; count <= N_TENSOR; count++)
        for (int no = 1; no <= count; no++)
            unlink(part(no, count));
    unlink(in);
    unlink(out);
    expect_behind(rmdir(dir) == 0, "a file was left behind");
}

TestSuite(split_merge, .init = setup, .fini = teardown);

static int split(uint32_t max_tensors, uint64_t max_bytes, bool overwrite)
{
    const struct gr_split_params p = {
        .max_tensors = max_tensors, .max_bytes = max_bytes, .overwrite = overwrite};
    return gr_split_file(in, prefix, &p);
}

static void same_model(const char *path)
{
    struct gr_gguf *a, *b;
    const struct gr_gguf_kv *numbers;
    cr_assert_eq(gr_gguf_open(&a, in, false), 0);
    cr_assert_eq(gr_gguf_open(&b, path, false), 0, "%s", gr_error());
    cr_assert_eq(gr_gguf_n_tensor(b), N_TENSOR);
    for (uint64_t i = 0; i < N_TENSOR; i++) {
        const struct gr_gguf_tensor *s = gr_gguf_tensor_at(a, i), *t = gr_gguf_tensor_at(b, i);
        float x[7 * 64], y[7 * 64];
        cr_assert(s->name.n == t->name.n && !memcmp(s->name.p, t->name.p, s->name.n));
        cr_assert(s->bytes == t->bytes && s->dtype == t->dtype && s->n_dim == t->n_dim);
        cr_assert_eq(gr_gguf_read_tensor(a, s, x), 0);
        cr_assert_eq(gr_gguf_read_tensor(b, t, y), 0);
        cr_assert_arr_eq(x, y, t->bytes);
    }
    cr_assert_eq(gr_gguf_array(b, "some.numbers", GR_GGUF_F32, &numbers), 0);
    cr_assert_eq(numbers->n, 3);
    gr_gguf_close(&b);
    gr_gguf_close(&a);
}

/* By number, by size (rows of 256 bytes), and with parts that one tensor overfills. */
Test(split_merge, split_and_merged)
{
    static const struct {
        uint32_t max_tensors;
        uint64_t max_bytes;
        int count;
    } cases[] = {{3, 0, 3}, {1, 0, 7}, {6, 0, 2}, {0, 1800, 5}, {0, 1, 7}, {2, 1u << 30, 4}};
    for (size_t i = 0; i < GR_COUNT(cases); i++) {
        cr_assert_eq(split(cases[i].max_tensors, cases[i].max_bytes, false), 0, "%s", gr_error());
        cr_assert_eq(access(part(cases[i].count, cases[i].count), F_OK), 0, "case %zu", i);
        same_model(part(1, cases[i].count));
        cr_assert_eq(gr_merge_file(part(1, cases[i].count), out, false), 0, "%s", gr_error());
        same_model(out);
        char *a, *b;
        size_t n, m;
        cr_assert_eq(gr_file_slurp(in, 1 << 20, &a, &n), 0);
        cr_assert_eq(gr_file_slurp(out, 1 << 20, &b, &m), 0);
        cr_assert_eq(n, m);
        cr_assert_arr_eq(a, b, n, "a merged file is the one that was split");
        gr_free(b);
        gr_free(a);
        unlink(out);
        for (int no = 1; no <= cases[i].count; no++)
            unlink(part(no, cases[i].count));
    }
}

static void says(int rc, int status, const char *what)
{
    cr_expect_eq(rc, status, "%d %s", rc, gr_error());
    cr_expect(strstr(gr_error(), what), "%s", gr_error());
}

Test(split_merge, refusals)
{
    says(split(7, 0, false), GR_E_INVALID, "nothing to split");
    says(gr_merge_file(in, out, false), GR_E_INVALID, "nothing to merge");
    cr_assert_eq(split(4, 0, false), 0);
    says(split(4, 0, false), GR_E_INVALID, "exists");
    cr_expect_eq(split(4, 0, true), 0, "%s", gr_error());
    says(gr_merge_file(part(2, 2), out, false), GR_E_INVALID, "open the first part");
    says(gr_merge_file(part(1, 2), in, false), GR_E_INVALID, "exists");
    says(gr_merge_file(part(1, 2), "/nowhere/out.gguf", false), GR_E_IO, "/nowhere/out.gguf");
    unlink(part(2, 2));
    says(gr_merge_file(part(1, 2), out, false), GR_E_NO_MODEL, "part 2 of 2 is missing");
    cr_expect_neq(access(out, F_OK), 0);
}

/* A part that is longer than files may be: none of the parts is left. */
Test(split_merge, no_room)
{
    struct rlimit old, small;
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old, small.rlim_cur = 2048;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = split(4, 0, false);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    cr_expect_eq(rc, GR_E_IO, "%d %s", rc, gr_error());
    cr_expect_neq(access(part(1, 2), F_OK), 0);
    cr_expect_neq(access(part(2, 2), F_OK), 0);
}

/* Types change and parts stay. */
Test(split_merge, quantised_in_parts)
{
    struct gr_quantize_params p = {.type = "f16", .keep_split = true};
    struct gr_gguf *g;
    char result[160];
    cr_assert_eq(split(4, 0, false), 0);
    snprintf(result, sizeof result, "%s/q.gguf", dir);
    cr_assert_eq(gr_quantize_file(part(1, 2), result, &p), 0, "%s", gr_error());
    snprintf(result, sizeof result, "%s/q-00001-of-00002.gguf", dir);
    cr_assert_eq(gr_gguf_open(&g, result, false), 0, "%s", gr_error());
    cr_expect_eq(gr_gguf_n_part(g), 2);
    cr_expect_eq(gr_gguf_tensor_at(g, 5)->part, 1);
    cr_expect_eq(gr_gguf_tensor_at(g, 5)->dtype, GR_F16);
    gr_gguf_close(&g);
    p = (struct gr_quantize_params){.type = "COPY"};
    cr_assert_eq(gr_quantize_file(result, out, &p), 0, "%s", gr_error());
    says(gr_quantize_file(result, out, &p), GR_E_INVALID, "exists");
    unlink(result);
    snprintf(result, sizeof result, "%s/q-00002-of-00002.gguf", dir);
    unlink(result);
}
