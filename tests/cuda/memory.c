/* Memory and copies of a backend. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "cuda/driver.h"
#include "fixture.h"
#include "gr/status.h"

static const struct gr_device_opt plain = {0};

static void fill(unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)((i * 2654435761u + seed) >> 7);
}

/* Uploads, overwrites the source, and compares what comes back. */
static void round_trip(struct gr_backend *b, size_t bytes)
{
    unsigned char *src = gr_calloc(bytes, 1), *back = gr_calloc(bytes, 1);
    void *dst = b->api->alloc(b, bytes);
    cr_assert(src && back && dst, "%s", gr_error());
    cr_expect_eq((uintptr_t)dst % 256, 0);
    fill(src, bytes, 1);
    cr_assert_eq(b->api->upload(b, dst, src, bytes), 0);
    memset(src, 0xee, bytes);
    cr_assert_eq(b->api->download(b, back, dst, bytes), 0);
    fill(src, bytes, 1);
    cr_expect_eq(memcmp(src, back, bytes), 0, "%zu bytes", bytes);
    b->api->free(b, dst);
    gr_free(src);
    gr_free(back);
}

Test(memory, round_trips_of_all_sizes)
{
    static const size_t sizes[] = {1, 255, 4096, 262143, 262144, 262145, 3 * 1024 * 1024 + 17};
    struct gr_backend *b = device_open(NULL, plain);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        round_trip(b, sizes[i]);
    device_close(&b);
}

Test(memory, slots_are_not_taken_back_early)
{
    enum { N = 40, BYTES = 5000 };
    unsigned char src[BYTES], want[BYTES];
    struct gr_backend *b = device_open(NULL, plain);
    char *dst = b->api->alloc(b, (size_t)N * BYTES);
    for (unsigned i = 0; i < N; i++) {
        fill(src, BYTES, i);
        cr_assert_eq(b->api->upload(b, dst + (size_t)i * BYTES, src, BYTES), 0);
    }
    for (unsigned i = 0; i < N; i++) {
        cr_assert_eq(b->api->download(b, src, dst + (size_t)i * BYTES, BYTES), 0);
        fill(want, BYTES, i);
        cr_expect_eq(memcmp(src, want, BYTES), 0, "upload %u", i);
    }
    b->api->free(b, dst);
    device_close(&b);
}

Test(memory, pinned_memory_is_copied_as_it_stands)
{
    const size_t bytes = 3 * 1024 * 1024;
    struct gr_backend *b = device_open(NULL, plain);
    unsigned char *src = b->api->host_alloc(b, bytes), *back = gr_calloc(bytes, 1);
    void *dst = b->api->alloc(b, bytes);
    for (size_t i = 0; i < bytes; i++)
        cr_assert_eq(src[i], 0);
    fill(src, bytes, 3);
    int64_t copies = emu()->count("cuMemcpyHtoDAsync_v2");
    cr_assert_eq(b->api->upload(b, dst, src + 7, bytes - 7), 0);
    expect_count(emu()->count("cuMemcpyHtoDAsync_v2") - copies, 1);
    cr_assert_eq(b->api->download(b, back, dst, bytes - 7), 0);
    cr_expect_eq(memcmp(src + 7, back, bytes - 7), 0);
    b->api->host_free(b, src);
    b->api->free(b, dst);
    gr_free(back);
    device_close(&b);
}

Test(memory, cleared)
{
    unsigned char bytes[1000];
    struct gr_backend *b = device_open(NULL, plain);
    unsigned char *p = b->api->alloc(b, sizeof bytes);
    memset(bytes, 0x55, sizeof bytes);
    cr_assert_eq(b->api->upload(b, p, bytes, sizeof bytes), 0);
    cr_assert_eq(b->api->clear(b, p + 10, sizeof bytes - 20), 0);
    cr_assert_eq(b->api->clear(b, p, 0), 0);
    cr_assert_eq(b->api->download(b, bytes, p, sizeof bytes), 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        cr_expect_eq(bytes[i], i < 10 || i >= sizeof bytes - 10 ? 0x55 : 0);
    b->api->free(b, p);
    device_close(&b);
}

Test(memory, too_little_of_it_is_no_end)
{
    struct gr_backend *b = device_open("memory=64M", plain);
    cr_expect_null(b->api->alloc(b, (size_t)1 << 30));
    cr_expect_not_null(strstr(gr_error(), "EMU0: out of memory: 1024.0 MiB asked for"), "%s",
                       gr_error());
    cr_expect_not_null(strstr(gr_error(), "of 64.0 free"), "%s", gr_error());
    cr_assert_eq(emu()->fail("cuMemHostAlloc", 1, CU_OUT_OF_MEMORY), 0);
    cr_expect_null(b->api->host_alloc(b, 4096));
    cr_expect_not_null(strstr(gr_error(), "cuMemHostAlloc"), "%s", gr_error());
    round_trip(b, 4096);
    device_close(&b);
}

Test(memory, nothing_to_copy)
{
    struct gr_backend *b = device_open(NULL, plain);
    cr_expect_eq(b->api->upload(b, NULL, NULL, 0), 0);
    cr_expect_eq(b->api->download(b, NULL, NULL, 0), 0);
    cr_expect_eq(b->api->sync(b), 0);
    b->api->free(b, NULL);
    b->api->host_free(b, NULL);
    cr_expect_not(b->api->can_borrow(b));
    device_close(&b);
}

Test(device, what_it_is)
{
    struct gr_device_info info;
    const char *why;
    bool broken;
    device_configure("devices=2,cc=90,memory=1G");
    cr_assert_eq(gr_cuda_devices.count(&why, &broken), 2);
    cr_expect_null(why);
    cr_expect_not(broken);
    cr_assert_eq(gr_cuda_devices.info(1, &info), 0, "%s", gr_error());
    cr_expect_str_eq(info.name, "EMU1");
    cr_expect_str_not_empty(info.description);
    cr_expect_str_not_empty(info.bus_id);
    cr_expect_eq(info.cc, 90);
    cr_expect_eq(info.total_bytes, (uint64_t)1 << 30);
    cr_expect_eq(info.free_bytes, info.total_bytes);
    cr_expect_gt(info.n_sm, 0);
    cr_expect_gt(info.bytes_per_s, 0);
    cr_expect_null(info.unusable);
    cr_expect_eq(gr_cuda_devices.info(2, &info), GR_E_INVALID);
    cr_expect_not_null(strstr(gr_error(), "EMU2"), "%s", gr_error());
    cr_expect_str_empty(emu()->report());
}

Test(device, that_was_looked_at_is_opened_without_another_context)
{
    struct gr_device_info info;
    struct gr_backend *b;
    device_configure("devices=2");
    size_t held = gr_alloc_held(NULL);
    cr_assert_eq(gr_cuda_devices.info(0, &info), 0);
    cr_assert_eq(gr_cuda_devices.info(1, &info), 0);
    cr_assert_eq(gr_cuda_devices.info(1, &info), 0);
    expect_count(emu()->live("context"), 1);
    expect_count(emu()->live(NULL), 1);
    cr_assert_eq(gr_cuda_devices.open(&b, 1, &plain), 0);
    cr_assert_eq(gr_cuda_devices.info(1, &info), 0);
    expect_count(emu()->live("context"), 1);
    round_trip(b, 1000);
    b->api->close(&b);
    expect_count(emu()->live(NULL), 0);
    cr_expect_eq(gr_alloc_held(NULL), held);
    cr_expect_str_empty(emu()->report());
}

/* Neither described as usable nor opened, and why. */
static void unusable(const char *options, const char *what, const char *remedy)
{
    struct gr_device_info info;
    struct gr_backend *b;
    device_configure(options);
    cr_assert_eq(gr_cuda_devices.info(0, &info), 0, "%s", gr_error());
    cr_assert_not_null(info.unusable);
    cr_expect_not_null(strstr(info.unusable, what), "%s", info.unusable);
    cr_expect_not_null(strstr(info.unusable, remedy), "%s", info.unusable);
    cr_expect_null(strstr(info.unusable, "EMU0"), "%s", info.unusable);
    cr_expect_eq(gr_cuda_devices.open(&b, 0, &plain), GR_E_DEVICE);
    cr_expect_eq(strncmp(gr_error(), "EMU0: ", 6), 0, "%s", gr_error());
    cr_expect_str_eq(gr_error() + 6, info.unusable);
    cr_expect_null(b);
    expect_count(emu()->live(NULL), 0);
}

Test(device, too_old)
{
    unusable("cc=75", "it has 7.5", "8.0 or newer is needed");
}

Test(device, without_code_for_it)
{
    unusable("cc=120", "compute capability 12.0", "GPURUN_CUDA_ARCHS=120");
}

Test(device, shared_by_its_backends)
{
    struct gr_device_info info;
    struct gr_backend *a = device_open("devices=2", plain), *b, *c;
    void *p = a->api->alloc(a, 1 << 20);
    cr_assert_eq(gr_cuda_devices.open(&b, 0, &plain), 0);
    cr_assert_eq(gr_cuda_devices.open(&c, 1, &plain), 0);
    expect_count(emu()->live("context"), 2);
    cr_assert_eq(gr_cuda_devices.info(0, &info), 0);
    cr_expect_lt(info.free_bytes, info.total_bytes);
    c->api->close(&c);
    expect_count(emu()->live("context"), 1);
    a->api->free(a, p);
    a->api->close(&a);
    round_trip(b, 1000);
    device_close(&b);
}
