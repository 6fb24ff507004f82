/* Weights on their way to the device: rows as they are, and matrices that are packed there. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "cuda/runtime.h"
#include "fixture.h"
#include "gr/pack.h"
#include "gr/status.h"

static const struct gr_device_opt plain = {0};

static struct gr_ten weight(uint32_t dtype, int64_t batch, int64_t rows, int64_t cols, int64_t gap)
{
    int64_t row_bytes = (int64_t)gr_row_bytes(dtype, (uint64_t)cols) + gap;
    size_t bytes = (size_t)(batch * rows * row_bytes);
    unsigned char *p = gr_calloc(bytes, 1);
    cr_assert_not_null(p);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)((i * 2654435761u) >> 11);
    return (struct gr_ten){.data = p,
                           .batch = batch,
                           .rows = rows,
                           .cols = cols,
                           .row_bytes = row_bytes,
                           .dtype = dtype};
}

/* Rows of `t` on the host (with the gaps that it has) against rows at dst without. */
static void same_rows(struct gr_backend *b, const struct gr_ten *t, const void *dst)
{
    size_t row = gr_row_bytes(t->dtype, (uint64_t)t->cols), n = (size_t)(t->batch * t->rows);
    char *back = gr_calloc(n, row);
    cr_assert_eq(b->api->download(b, back, dst, n * row), 0, "%s", gr_error());
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(memcmp(back + i * row, gr_ten_row(t, 0, (int64_t)i), row), 0, "row %zu", i);
    gr_free(back);
}

static void upload_rows(uint32_t dtype, int64_t batch, int64_t rows, int64_t cols, int64_t gap)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct gr_ten t = weight(dtype, batch, rows, cols, gap), out;
    size_t bytes = b->api->weight_bytes(b, &t, false);
    void *dst = b->api->alloc(b, bytes);
    cr_expect_eq(bytes % 256, 0);
    cr_assert_eq(b->api->weight_upload(b, &t, false, dst, &out), 0, "%s", gr_error());
    cr_expect_eq(out.data, dst);
    cr_expect_eq(out.row_bytes, t.row_bytes - gap);
    cr_expect_eq(out.packed, 0);
    same_rows(b, &t, dst); /* downloads come behind it without a sync */
    cr_assert_eq(b->api->sync(b), 0);
    gr_free(t.data);
    b->api->free(b, dst);
    device_close(&b);
}

Test(weights, rows)
{
    upload_rows(GR_F32, 1, 7, 33, 0);
}

Test(weights, rows_with_gaps_between)
{
    upload_rows(GR_F16, 2, 5, 12, 10);
}

Test(weights, rows_in_many_pieces)
{
    gr_cuda_load_slot = 4096;
    upload_rows(GR_F32, 1, 100, 301, 0);
}

Test(weights, long_rows_with_gaps_in_many_pieces)
{
    gr_cuda_load_slot = 1024;
    upload_rows(GR_F32, 1, 3, 2000, 4);
}

/* Uploads a matrix as tiles, and turns them back on the device. `first`, `n`: its columns that
 * count; the last row ends with them where memory does. */
static void upload_columns(uint32_t dtype, int64_t batch, int64_t rows, int64_t cols, int64_t first,
                           int64_t n)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct gr_ten all = weight(dtype, batch, rows, cols, 0), t = all, out;
    size_t skip = gr_row_bytes(dtype, (uint64_t)first);
    size_t end = (size_t)(batch * rows * t.row_bytes) - gr_row_bytes(dtype, (uint64_t)cols) + skip +
                 gr_row_bytes(dtype, (uint64_t)n);
    t.data = gr_calloc(end - skip, 1);
    memcpy(t.data, (char *)all.data + skip, end - skip);
    t.cols = cols = n;
    gr_free(all.data);
    size_t bytes = b->api->weight_bytes(b, &t, true);
    void *dst = b->api->alloc(b, bytes),
         *back = b->api->alloc(b, b->api->weight_bytes(b, &t, false));
    cr_expect_eq(bytes, GR_PAD((size_t)(batch * gr_pack_bytes(dtype, rows, cols)), 256));
    cr_assert_eq(b->api->weight_upload(b, &t, true, dst, &out), 0, "%s", gr_error());
    cr_expect_eq(out.data, dst);
    cr_expect_eq(out.packed, 1);
    cr_expect_eq(out.row_bytes, 0);
    cr_expect(out.batch == batch && out.rows == rows && out.cols == cols && out.dtype == dtype);
    struct gr_ten plain_rows = t;
    plain_rows.data = back;
    plain_rows.row_bytes = (int64_t)gr_row_bytes(dtype, (uint64_t)cols);
    const struct gr_node node = node_unpack(out, plain_rows);
    void *exec = device_segment(b, &node, 1);
    cr_assert_eq(b->api->segment_run(b, exec, NULL, NULL), 0, "%s", gr_error());
    same_rows(b, &t, back);
    cr_assert_eq(b->api->sync(b), 0);
    b->api->segment_free(b, &exec);
    gr_free(t.data);
    b->api->free(b, dst);
    b->api->free(b, back);
    device_close(&b);
}

static void upload_matrix(uint32_t dtype, int64_t batch, int64_t rows, int64_t cols)
{
    upload_columns(dtype, batch, rows, cols, 0, cols);
}

/* A shard's columns of a larger matrix. */
Test(weights, columns_of_a_matrix)
{
    upload_columns(GR_F16, 1, 37, 64, 10, 20);
    upload_columns(GR_Q8_0, 3, 40, 128, 96, 32);
    gr_cuda_load_slot = 32 * 144;
    upload_columns(GR_Q4_K, 1, 16 * 11 + 5, 1024, 256, 256);
}

Test(weights, matrix)
{
    upload_matrix(GR_Q8_0, 1, 48, 128);
}

Test(weights, matrix_of_odd_rows)
{
    upload_matrix(GR_F16, 1, 37, 64);
}

Test(weights, matrix_in_many_pieces)
{
    gr_cuda_load_slot = 32 * 144; /* two tiles of one block */
    upload_matrix(GR_Q4_K, 1, 16 * 11 + 5, 256);
}

Test(weights, experts_in_many_pieces)
{
    gr_cuda_load_slot = 16 * 2 * 210 + 100; /* one tile of two blocks, and something */
    upload_matrix(GR_Q6_K, 3, 40, 512);
}

Test(weights, rows_too_long_for_a_slot)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct gr_ten out, t = weight(GR_F32, 1, 16, 64, 0);
    gr_cuda_load_slot = 1024;
    void *dst = b->api->alloc(b, b->api->weight_bytes(b, &t, true));
    cr_expect_eq(b->api->weight_upload(b, &t, true, dst, &out), GR_E_UNSUPPORTED);
    cr_expect_not_null(strstr(gr_error(), "rows of 256 bytes"), "%s", gr_error());
    b->api->free(b, dst);
    gr_free(t.data);
    device_close(&b);
}

Test(weights, described_before_they_are_moved)
{
    struct gr_backend *b = device_open(NULL, plain);
    const struct gr_ten t = {.batch = 2, .rows = 3, .cols = 64, .row_bytes = 256, .dtype = GR_F32};
    const struct gr_ten no = {.batch = 1, .rows = 1, .cols = 8, .row_bytes = 64, .dtype = GR_F64};
    struct gr_ten out;
    const int64_t allocated = emu()->count("cuMemAlloc_v2");
    cr_assert_eq(b->api->weight_upload(b, &t, true, NULL, &out), 0);
    cr_expect(!out.data && out.packed == 1 && out.row_bytes == 0 && out.rows == 3);
    cr_assert_eq(b->api->weight_upload(b, &t, false, NULL, &out), 0);
    cr_expect(!out.data && out.packed == 0 && out.row_bytes == 256);
    cr_expect_eq(b->api->weight_upload(b, &no, true, NULL, &out), GR_E_UNSUPPORTED);
    cr_expect_not_null(strstr(gr_error(), "f64"), "%s", gr_error());
    expect_count(emu()->count("cuMemAlloc_v2"), allocated);
    device_close(&b);
}

Test(weights, what_loading_needed_goes_with_a_sync)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct gr_ten out, t = weight(GR_F32, 1, 16, 64, 0);
    void *dst = b->api->alloc(b, 4096);
    cr_assert_eq(b->api->sync(b), 0);
    int64_t before = emu()->live(NULL);
    cr_assert_eq(b->api->weight_upload(b, &t, false, dst, &out), 0);
    cr_expect(!emulated() || emu()->live(NULL) > before);
    cr_assert_eq(b->api->sync(b), 0);
    expect_count(emu()->live(NULL), before);
    same_rows(b, &t, dst);
    gr_free(t.data);
    b->api->free(b, dst);
    device_close(&b);
}

Test(weights, into_the_last_memory_there_is)
{
    struct gr_backend *b = device_open("memory=64M", plain);
    struct gr_ten out, t = weight(GR_F32, 1, 64, 64, 0);
    void *dst = b->api->alloc(b, 16384), *most = b->api->alloc(b, 50 << 20);
    cr_assert(dst && most);
    cr_assert_eq(b->api->weight_upload(b, &t, false, dst, &out), 0, "%s", gr_error());
    same_rows(b, &t, dst);
    gr_free(t.data);
    b->api->free(b, most);
    b->api->free(b, dst);
    device_close(&b);
}

/* Work queued before, on the steps' own stream, is done before. */
Test(weights, come_behind_what_was_queued)
{
    struct gr_backend *b = device_open(NULL, plain);
    struct gr_ten out, t = weight(GR_F32, 1, 16, 64, 0);
    void *dst = b->api->alloc(b, 4096);
    cr_assert_eq(b->api->clear(b, dst, 4096), 0);
    cr_assert_eq(b->api->weight_upload(b, &t, false, dst, &out), 0);
    same_rows(b, &t, dst);
    gr_free(t.data);
    b->api->free(b, dst);
    device_close(&b);
}

/* ---- weights that do not stay ---- */

/* Unpacks an offloaded matrix and compares. */
static void expect_offloaded(struct gr_backend *b, const struct gr_ten *t, void *dst)
{
    struct gr_ten packed, rows = device_ten(b, t->rows, t->cols, NULL);
    cr_assert_eq(b->api->weight_upload(b, t, true, NULL, &packed), 0);
    packed.data = dst;
    const struct gr_node unpack = node_unpack(packed, rows);
    void *exec = device_segment(b, &unpack, 1);
    cr_assert_eq(b->api->segment_run(b, exec, NULL, NULL), 0);
    same_rows(b, t, rows.data);
    b->api->segment_free(b, &exec);
    b->api->free(b, rows.data);
}

/* More weights than the ring has slots come before a segment that was queued behind their being
 * asked for has begun: the device is one that does nothing before the host waits for it. Who asks
 * copies nothing and waits for nothing: all calls that would are held, but those of its thread. */
Test(weights, are_offloaded_beside_what_runs, .timeout = 60)
{
    enum { N = 6, FIRST = 4, ROWS = 64, COLS = 64 };
    struct gr_backend *b = device_open("order=late", plain);
    struct gr_ten x = device_ten(b, 16, 64, NULL), t = weight(GR_F32, 1, ROWS, COLS, 0);
    const struct gr_node work = node_act(x, x);
    void *dst[N], *exec = device_segment(b, &work, 1);
    size_t bytes = b->api->weight_bytes(b, &t, true);
    cr_assert_eq(b->api->offload(b, NULL, false, NULL, true), 0, "%s", gr_error());
    for (int i = 0; i < N; i++) {
        dst[i] = b->api->alloc(b, bytes);
        cr_assert_eq(b->api->clear(b, dst[i], bytes), 0);
    }
    int64_t before = emu()->count("kernel"), copies = emu()->count("cuMemcpyHtoDAsync_v2");
    cr_assert_eq(emu()->hold("cuMemcpyHtoDAsync_v2"), 0);
    for (int i = 0; i < N; i++) /* two groups */
        cr_assert_eq(b->api->offload(b, &t, true, dst[i], i + 1 == FIRST || i + 1 == N), 0, "%s",
                     gr_error());
    cr_assert_eq(b->api->segment_run(b, exec, NULL, NULL), 0);
    cr_expect_eq(emu()->count("cuMemcpyHtoDAsync_v2"), copies, "who asks has copied");
    cr_assert_eq(emu()->hold(NULL), 0);
    cr_assert_eq(b->api->offload_wait(b), 0, "%s", gr_error());
    cr_assert_eq(b->api->offload_wait(b), 0, "%s", gr_error());
    cr_expect_eq(emu()->count("cuMemcpyHtoDAsync_v2"), copies + N);
    cr_expect_eq(emu()->count("kernel"), before, "the segment ran before the weights came");
    for (int i = 0; i < N; i++) {
        expect_offloaded(b, &t, dst[i]);
        b->api->free(b, dst[i]);
    }
    cr_expect_geq(emu()->count("kernel"), before + 1 + N);
    b->api->segment_free(b, &exec);
    b->api->free(b, x.data);
    gr_free(t.data);
    device_close(&b);
}
