/* Importance matrices: collected, written, read, damaged, and what they do to a quantised file. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/rng.h"
#include "gguf/gguf.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"
#include "quantize/imatrix.h"
#include "support/behind.h"
#include "support/cpu_time.h"

static char dir[64], file[96], in[96], out[96];

static void setup(void)
{
    strcpy(dir, "/tmp/gpurun-imatrix-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/im", dir);
    snprintf(in, sizeof in, "%s/in.gguf", dir);
    snprintf(out, sizeof out, "%s/out.gguf", dir);
}

static void teardown(void)
{
    unlink(file);
    unlink(in);
    unlink(out);
    expect_behind(rmdir(dir) == 0, "a file was left behind");
}

TestSuite(imatrix, .init = setup, .fini = teardown);

static struct gr_str str(const char *s)
{
    return (struct gr_str){s, strlen(s)};
}

static void expect_means(const struct gr_imatrix *m, const char *name, const float *want,
                         uint64_t n)
{
    float *got;
    uint64_t k;
    cr_assert_eq(gr_imatrix_means(m, str(name), &got, &k), 0);
    cr_assert_eq(k, n, "%s", name);
    for (uint64_t i = 0; i < n; i++)
        cr_expect_float_eq(got[i], want[i], 1e-6, "%s[%d]", name, (int)i);
    gr_free(got);
}

static const float x[] = {1, 2, 9, 3, 4, 9}; /* two rows of two, three apart */

static struct gr_imatrix *collected(void)
{
    struct gr_imatrix *m;
    cr_assert_eq(gr_imatrix_new(&m), 0);
    cr_assert_eq(gr_imatrix_add(m, "b.weight", 0, 1, x, 2, 2, 3), 0);
    cr_assert_eq(gr_imatrix_add(m, "a.weight", 1, 3, x, 1, 2, 0), 0);
    cr_assert_eq(gr_imatrix_add(m, "a.weight", 2, 3, x + 3, 1, 2, 0), 0);
    cr_assert_eq(gr_imatrix_add(m, "a.weight", 2, 3, x, 1, 2, 0), 0);
    gr_imatrix_chunks(m, 5, 64);
    cr_assert_eq(gr_imatrix_add_dataset(m, "some text"), 0);
    return m;
}

static const float of_a[] = {1, 1, 1, 4, 5, 10}, of_b[] = {5, 10};

Test(imatrix, written_and_read)
{
    struct gr_imatrix *m = collected(), *n;
    expect_means(m, "a.weight", of_a, 6);
    expect_means(m, "b.weight", of_b, 2);
    expect_means(m, "c.weight", NULL, 0);
    cr_assert_eq(gr_imatrix_save(m, file, false), 0, "%s", gr_error());
    cr_expect_eq(gr_imatrix_save(m, file, false), GR_E_INVALID);
    cr_expect_eq(gr_imatrix_save(m, "/nowhere/im", true), GR_E_IO);
    cr_assert_eq(gr_imatrix_new(&n), 0);
    for (int twice = 0; twice < 2; twice++) { /* means stay when all counts twice */
        cr_assert_eq(gr_imatrix_load(n, file), 0, "%s", gr_error());
        expect_means(n, "a.weight", of_a, 6);
        expect_means(n, "b.weight", of_b, 2);
    }
    cr_expect_eq(gr_imatrix_n_entry(n), 2);
    cr_expect_eq(gr_imatrix_n_chunk(n), 10);
    cr_expect_str_eq(gr_imatrix_dataset(n), "some text");
    cr_expect_eq(gr_imatrix_add(n, "a.weight", 0, 2, x, 1, 3, 0), GR_E_INVALID);
    const float bad[] = {1, INFINITY};
    cr_expect_eq(gr_imatrix_add(n, "a.weight", 0, 3, bad, 1, 2, 0), GR_E_CHECK);
    gr_imatrix_free(&n);
    gr_imatrix_free(&m);
}

struct bytes {
    unsigned char p[256];
    size_t n;
};

static void put(struct bytes *b, const void *p, size_t n)
{
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_i32(struct bytes *b, int32_t i)
{
    put(b, &i, sizeof i);
}

/* Two entries: sums of means over three calls, and of one of none. */
static struct bytes legacy(void)
{
    struct bytes b = {.n = 0};
    const float sums[] = {3, 6, 9, 12};
    put_i32(&b, 2);
    put_i32(&b, 8), put(&b, "a.weight", 8), put_i32(&b, 3), put_i32(&b, 4), put(&b, sums, 16);
    put_i32(&b, 8), put(&b, "b.weight", 8), put_i32(&b, 0), put_i32(&b, 1), put(&b, sums, 4);
    put_i32(&b, 7);
    put_i32(&b, 4), put(&b, "text", 4);
    return b;
}

static int load(const void *p, size_t n)
{
    struct gr_imatrix *m;
    FILE *f = fopen(file, "wb");
    cr_assert(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
    cr_assert_eq(gr_imatrix_new(&m), 0);
    int rc = gr_imatrix_load(m, file);
    gr_imatrix_free(&m);
    return rc;
}

Test(imatrix, older_form)
{
    static const float a[] = {1, 2, 3, 4}, b[] = {3};
    struct bytes data = legacy();
    struct gr_imatrix *m;
    cr_assert_eq(load(data.p, data.n), 0, "%s", gr_error());
    cr_assert_eq(gr_imatrix_new(&m), 0);
    cr_assert_eq(gr_imatrix_load(m, file), 0);
    expect_means(m, "a.weight", a, 4);
    expect_means(m, "b.weight", b, 1);
    cr_expect_eq(gr_imatrix_n_chunk(m), 7);
    cr_expect_str_eq(gr_imatrix_dataset(m), "text");
    gr_imatrix_free(&m);
}

/* Cut anywhere but where its last, optional part begins; and with each byte changed. */
/* Processor time of n entries of the older form, in descending order, into a matrix with others. */
static double seconds_of_entries(struct gr_imatrix *m, int n)
{
    FILE *f = fopen(file, "wb");
    const int32_t len = 8, one = 1;
    const float value = 1;
    cr_assert(f && fwrite(&n, 4, 1, f) == 1);
    for (int i = n; i > 0; i--) {
        fwrite(&len, 4, 1, f), fprintf(f, "%08d", i);
        fwrite(&one, 4, 1, f), fwrite(&one, 4, 1, f), fwrite(&value, 4, 1, f);
    }
    cr_assert_eq(fclose(f), 0);
    double begin = cpu_seconds();
    cr_assert_eq(gr_imatrix_load(m, file), 0, "%s", gr_error());
    return cpu_seconds() - begin;
}

Test(imatrix, many_entries)
{
    struct gr_imatrix *m = collected();
    double once = seconds_of_entries(m, 40000), four = seconds_of_entries(m, 160000);
    uint64_t n = gr_imatrix_n_entry(m);
    cr_assert_geq(n, 160000);
    cr_assert(is_linear(once, four), "%f s, four times as many %f s", once, four);
    expect_means(m, "00000001", (float[]){1}, 1);
    expect_means(m, "00160000", (float[]){1}, 1);
    cr_assert(gr_imatrix_has(m, str("00020000")) && !gr_imatrix_has(m, str("00160001")));
    gr_imatrix_free(&m);
    unlink(file);
}

Test(imatrix, damaged_older_form)
{
    struct bytes data = legacy();
    for (size_t n = 0; n < data.n; n++) {
        int rc = load(data.p, n);
        bool whole = n == data.n - 12;
        cr_expect_eq(rc, whole ? 0 : GR_E_CORRUPT, "%zu bytes: %d %s", n, rc, gr_error());
    }
    for (size_t i = 0; i < data.n; i++) {
        struct bytes b = data;
        b.p[i] ^= 0xff;
        int rc = load(b.p, b.n);
        cr_expect(rc == 0 || rc == GR_E_CORRUPT || rc == GR_E_INVALID, "byte %zu: %d", i, rc);
    }
    cr_expect_eq(load("GGUF", 4), GR_E_CORRUPT);
    struct gr_imatrix *m;
    cr_assert_eq(gr_imatrix_new(&m), 0);
    cr_expect_eq(gr_imatrix_load(m, "/nowhere"), GR_E_NO_MODEL);
    cr_expect_eq(gr_imatrix_save(m, out, false), GR_E_INVALID);
    gr_imatrix_free(&m);
}

/* ---- what they are for ---- */

enum { N = 256, ROWS = 8, EXPERTS = 2 };

static void write_model(void)
{
    struct gr_gguf_writer *w;
    struct gr_rng r = gr_rng_new(3);
    const uint64_t ne[] = {N, ROWS, EXPERTS};
    float row[N];
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_set_str(w, "general.architecture", "llama"), 0);
    cr_assert_eq(gr_gguf_add_tensor(w, str("blk.0.ffn_up_exps.weight"), GR_F32, 3, ne), 0);
    cr_assert_eq(gr_gguf_begin(w, in), 0);
    for (int i = 0; i < ROWS * EXPERTS; i++) {
        for (int c = 0; c < N; c++)
            row[c] = gr_rng_normal(&r);
        cr_assert_eq(gr_gguf_write(w, row, sizeof row), 0);
    }
    cr_assert_eq(gr_gguf_commit(w), 0);
    gr_gguf_writer_free(&w);
}

/* Expert 0 sees the even columns only, expert 1 the odd ones. */
static void write_importances(const char *name)
{
    struct gr_imatrix *m;
    float row[2][N];
    for (int c = 0; c < N; c++)
        row[0][c] = c % 2 ? 0.01f : 1, row[1][c] = c % 2 ? 1 : 0.01f;
    cr_assert_eq(gr_imatrix_new(&m), 0);
    for (int e = 0; e < EXPERTS; e++)
        cr_assert_eq(gr_imatrix_add(m, name, e, EXPERTS, row[e], 1, N, 0), 0);
    cr_assert_eq(gr_imatrix_save(m, file, true), 0);
    gr_imatrix_free(&m);
}

/* Mean square error of the columns that an expert sees, and of the others. */
static void errors(double *seen, double *other)
{
    struct gr_gguf *a, *b;
    float *w = gr_calloc(N * ROWS * EXPERTS, sizeof *w),
          *q = gr_calloc(N * ROWS * EXPERTS, sizeof *q);
    cr_assert_eq(gr_gguf_open(&a, in, false), 0);
    cr_assert_eq(gr_gguf_open(&b, out, false), 0);
    const struct gr_gguf_tensor *t = gr_gguf_tensor_at(b, 0);
    void *raw = gr_calloc(t->bytes, 1);
    cr_assert_eq(gr_gguf_read_tensor(a, gr_gguf_tensor_at(a, 0), w), 0);
    cr_assert_eq(gr_gguf_read_tensor(b, t, raw), 0);
    gr_quant_find(t->dtype)->dequantize(raw, q, N * ROWS * EXPERTS);
    *seen = *other = 0;
    for (int i = 0; i < N * ROWS * EXPERTS; i++) {
        bool sees = (i % 2 == 0) == (i < N * ROWS);
        *(sees ? seen : other) += pow((double)w[i] - q[i], 2);
    }
    gr_free(raw), gr_free(q), gr_free(w);
    gr_gguf_close(&a), gr_gguf_close(&b);
}

Test(imatrix, errors_move_to_columns_that_do_not_matter)
{
    struct gr_quantize_params p = {.type = "Q4_K_S", .overwrite = true};
    double seen, other, seen_before, other_before;
    uint32_t n;
    struct gr_str text;
    struct gr_gguf *g;
    write_model();
    cr_assert_eq(gr_quantize_file(in, out, &p), 0, "%s", gr_error());
    errors(&seen_before, &other_before);
    write_importances("blk.0.ffn_up_exps.weight");
    p.imatrix = file;
    cr_assert_eq(gr_quantize_file(in, out, &p), 0, "%s", gr_error());
    errors(&seen, &other);
    cr_expect_lt(seen, 0.85 * seen_before);
    cr_expect_gt(other, other_before);
    cr_assert_eq(gr_gguf_open(&g, out, false), 0);
    cr_expect(!gr_gguf_u32(g, "quantize.imatrix.entries_count", &n) && n == 1);
    cr_expect(!gr_gguf_str(g, "quantize.imatrix.file", &text) && gr_str_is(text, file));
    gr_gguf_close(&g);
}

Test(imatrix, of_another_model)
{
    struct gr_quantize_params p = {.type = "Q2_K_S", .imatrix = file, .overwrite = true};
    struct gr_imatrix *m;
    write_model();
    write_importances("blk.1.ffn_up_exps.weight");
    cr_expect_eq(gr_quantize_file(in, out, &p), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), "the matrix has none of it"), "%s", gr_error());
    cr_assert_eq(gr_imatrix_new(&m), 0);
    cr_assert_eq(gr_imatrix_add(m, "blk.0.ffn_up_exps.weight", 0, 1, x, 1, 4, 0), 0);
    cr_assert_eq(gr_imatrix_save(m, file, true), 0);
    gr_imatrix_free(&m);
    cr_expect_eq(gr_quantize_file(in, out, &p), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "made for another model"), "%s", gr_error());
    cr_expect_neq(access(out, F_OK), 0);
}
