/* Each entry point: what it does, and what it refuses. */
#include <stdlib.h>

#include "tests/emu/driver/driver.h"

enum {
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    CONTEXT_IS_DESTROYED = 709,
    NOT_SUPPORTED = 801
};

static void test_start(void)
{
    int count = -1, version = 0;
    const char *text = NULL;
    EXPECT_EQ(emu.configure("quiet,driver=11.4"), 0);
    EXPECT_EQ(cu.device_count(&count), NOT_INITIALIZED);
    OK(cu.driver_version(&version));
    EXPECT_EQ(version, 11040);
    EXPECT_EQ(cu.init(1), CU_INVALID_VALUE);
    OK(cu.init(0));
    OK(cu.device_count(&count));
    EXPECT_EQ(count, 1);
    OK(cu.error_name(CU_OUT_OF_MEMORY, &text));
    EXPECT(!strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"));
    OK(cu.error_string(CU_ILLEGAL_ADDRESS, &text));
    EXPECT(!strcmp(text, "an illegal memory access was encountered"));
    EXPECT_EQ(cu.error_name(12345, &text), CU_INVALID_VALUE);
    EXPECT(!text);
    EXPECT_EQ(cu.error_string(12345, &text), CU_INVALID_VALUE);
    emu.configure("quiet,no-device");
    EXPECT_EQ(cu.init(0), CU_NO_DEVICE);
    static const char *const bad[] = {"nonsense",        "devices=x", "memory=1T",
                                      "driver=12",       "order=odd", "fail=cuInit:0:3",
                                      "fail=cuNone:1:3", "cc=1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char options[64];
        snprintf(options, sizeof options, "quiet,%s", bad[i]);
        EXPECT_EQ(emu.configure(options), 1);
        EXPECT_EQ(cu.init(0), CU_INVALID_VALUE);
        REPORTED(bad[i]);
    }
}

static void test_devices(void)
{
    char name[64], id[16];
    int value;
    cu_device device;
    size_t bytes;
    EXPECT_EQ(emu.configure("quiet,devices=2,cc=80,memory=64M,name=Test Device"), 0);
    OK(cu.init(0));
    OK(cu.device_count(&value));
    EXPECT_EQ(value, 2);
    OK(cu.device_get(&device, 1));
    EXPECT_EQ(cu.device_get(&device, 2), INVALID_DEVICE);
    EXPECT_EQ(cu.device_get(NULL, 0), CU_INVALID_VALUE);
    OK(cu.device_name(name, sizeof name, 1));
    EXPECT(!strcmp(name, "Test Device"));
    OK(cu.device_name(name, 5, 1));
    EXPECT(!strcmp(name, "Test"));
    OK(cu.device_bus_id(id, sizeof id, 1));
    EXPECT(!strcmp(id, "0000:02:00.0"));
    EXPECT_EQ(cu.device_bus_id(id, 12, 1), CU_INVALID_VALUE);
    OK(cu.device_total(&bytes, 0));
    EXPECT_EQ(bytes, 64 << 20);
    static const struct {
        int attribute, value;
    } of_80[] = {{CU_ATTR_CC_MAJOR, 8},        {CU_ATTR_CC_MINOR, 0},
                 {CU_ATTR_N_SM, 108},          {CU_ATTR_MAX_SMEM, 163 << 10},
                 {CU_ATTR_L2_BYTES, 40 << 20}, {CU_ATTR_MEMORY_BITS, 5120}};
    for (size_t i = 0; i < sizeof of_80 / sizeof of_80[0]; i++) {
        OK(cu.device_attribute(&value, of_80[i].attribute, 0));
        EXPECT_EQ(value, of_80[i].value);
    }
    EXPECT_EQ(cu.device_attribute(&value, 9999, 0), CU_INVALID_VALUE);
    EXPECT_EQ(cu.device_attribute(&value, CU_ATTR_N_SM, 2), INVALID_DEVICE);
}

static void test_contexts(void)
{
    cu_context one, again;
    cu_stream s;
    EXPECT_EQ(emu.configure("quiet"), 0);
    OK(cu.init(0));
    EXPECT_EQ(cu.stream_create(&s, 0), INVALID_CONTEXT);
    EXPECT_EQ(cu.context_retain(&one, 1), INVALID_DEVICE);
    OK(cu.context_retain(&one, 0));
    OK(cu.context_retain(&again, 0));
    EXPECT(one == again);
    OK(cu.context_get(&again));
    EXPECT(!again);
    OK(cu.context_set(one));
    OK(cu.context_get(&again));
    EXPECT(again == one);
    EXPECT_EQ(cu.context_get(NULL), CU_INVALID_VALUE);
    OK(cu.context_release(0));
    OK(cu.stream_create(&s, 0));
    EXPECT_EQ(emu.live("stream"), 1);
    REPORTED("");
    OK(cu.context_release(0));
    REPORTED("goes with 1 streams");
    EXPECT_EQ(emu.live(NULL), 0);
    EXPECT_EQ(cu.stream_create(&s, 0), CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cu.context_release(0), INVALID_CONTEXT);
    REPORTED("more often than retained");
    EXPECT_EQ(cu.context_set(one), INVALID_CONTEXT);
    REPORTED("gone");
    OK(cu.context_set(NULL));
}

/* A fatbin as nvcc 13.0 writes it, as far as drivers choose by it: PTX of 8.0, machine code for
 * sm_80 and sm_90a. And what a driver says to it on devices of a compute capability. */
static void test_fatbins(void)
{
    static const struct {
        const char *options;
        bool ptx;
        int result;
    } cases[] = {
        {"driver=12.0", true, CU_INVALID_IMAGE},
        {"driver=12.8", true, CU_INVALID_IMAGE},
        {"driver=13.0", true, CU_OK},
        {"driver=12.0,cc=86", true, CU_INVALID_IMAGE},
        {"driver=13.0,cc=86", true, CU_OK},
        {"driver=12.8,cc=120", true, CU_UNSUPPORTED_PTX_VERSION},
        {"driver=13.0,cc=120", true, CU_OK},
        {"driver=13.0,cc=120", false, CU_NO_BINARY_FOR_GPU},
        {"driver=13.0,cc=75", true, CU_NO_BINARY_FOR_GPU},
    };
    static const struct piece {
        uint16_t kind, attributes;
        uint32_t header, bytes[2], packed, options;
        uint16_t minor, major;
        uint32_t arch, name[2], flags[2];
    } ptx = {1, 0x101, sizeof ptx, {0, 0}, 0, 0, 0, 9, 80, {0, 0}, {0x11, 0}},
      sm_80 = {2, 0x101, sizeof ptx, {0, 0}, 0, 0, 8, 1, 80, {0, 0}, {0x11, 0}},
      sm_90a = {2, 0x101, sizeof ptx, {0, 0}, 0, 0, 8, 1, 90, {0, 0}, {0x100011, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct {
            uint32_t magic;
            uint16_t version, header;
            uint64_t bytes;
            struct piece piece[3];
        } image = {0xba55ed50, 1, 16, (cases[i].ptx ? 3 : 2) * sizeof ptx, {sm_80, sm_90a, ptx}};
        cu_context context;
        cu_module module;
        EXPECT_EQ(emu.configure(cases[i].options), 0);
        OK(cu.init(0));
        OK(cu.context_retain(&context, 0));
        OK(cu.context_set(context));
        int result = cu.module_load(&module, &image);
        EXPECT_EQ(result, cases[i].result);
        if (result == CU_OK)
            OK(cu.module_unload(module));
        OK(cu.context_set(NULL));
        OK(cu.context_release(0));
    }
}

static void test_modules(void)
{
    struct bench t = bench_open("quiet");
    cu_function f;
    int value = 0;
    EXPECT_EQ(cu.module_function(&f, t.module, "no_such_kernel"), CU_NOT_FOUND);
    OK(cu.module_function(&f, t.module, "test_add"));
    EXPECT(f == t.add);
    OK(cu.function_attribute(&value, 0, f));
    EXPECT_EQ(value, 128);
    EXPECT_EQ(cu.function_set(f, CU_FUNC_MAX_DYNAMIC_SMEM, (227 << 10) + 1), CU_INVALID_VALUE);
    OK(cu.function_set(f, CU_FUNC_MAX_DYNAMIC_SMEM, 227 << 10));
    OK(cu.function_attribute(&value, CU_FUNC_MAX_DYNAMIC_SMEM, f));
    EXPECT_EQ(value, 227 << 10);
    EXPECT_EQ(cu.function_attribute(&value, 77, f), CU_INVALID_VALUE);
    EXPECT_EQ(cu.module_load(&t.module, NULL), CU_INVALID_VALUE);
    cu_module other;
    OK(cu.module_load(&other, "image"));
    OK(cu.module_unload(other));
    EXPECT_EQ(cu.module_unload(other), INVALID_HANDLE);
    REPORTED("cuModuleUnload: the module is destroyed");
    EXPECT_EQ(cu.module_function(&f, other, "test_add"), INVALID_HANDLE);
    REPORTED("the module is destroyed");
    OK(cu.module_load(&other, "kernels/other.cu")); /* it has gr_other.. alone */
    EXPECT_EQ(cu.module_function(&f, other, "test_add"), CU_NOT_FOUND);
    OK(cu.module_unload(other));
    OK(cu.module_load(&other, "kernels/some_sm90.cu"));
    OK(cu.module_unload(other));
    OK(cu.profiler_start());
    OK(cu.profiler_stop());
    bench_close(&t);
}

/* Code that a device does not run. */
static void test_images(void)
{
    static const struct {
        const char *options, *image;
        int result;
    } cases[] = {{"quiet,cc=75", "kernels/any.cu", CU_NO_BINARY_FOR_GPU},
                 {"quiet,cc=80", "kernels/any_sm90.cu", CU_NO_BINARY_FOR_GPU},
                 {"quiet,cc=100", "kernels/any_sm90.cu", CU_NO_BINARY_FOR_GPU},
                 {"quiet,cc=89", "kernels/any.cu", CU_OK},
                 {"quiet,cc=100", "kernels/any.cu", CU_OK}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cu_context context;
        cu_module module;
        EXPECT_EQ(emu.configure(cases[i].options), 0);
        OK(cu.init(0));
        OK(cu.context_retain(&context, 0));
        OK(cu.context_set(context));
        EXPECT_EQ(cu.module_load(&module, cases[i].image), cases[i].result);
        if (cases[i].result == CU_OK)
            OK(cu.module_unload(module));
        OK(cu.context_release(0));
        OK(cu.context_set(NULL));
    }
}

static void test_memory(void)
{
    struct bench t = bench_open("quiet,memory=64M,busy=1M");
    size_t left, total, now;
    cu_pointer p, q;
    OK(cu.mem_info(&left, &total));
    EXPECT_EQ(total, 64 << 20);
    EXPECT_EQ(left, (63 << 20) - 2 * n * sizeof(uint32_t));
    EXPECT_EQ(cu.alloc(&p, 0), CU_INVALID_VALUE);
    EXPECT_EQ(cu.alloc(&p, 63 << 20), CU_OUT_OF_MEMORY);
    OK(cu.alloc(&p, 32 << 20));
    EXPECT_EQ(p % 256, 0);
    EXPECT_EQ(cu.alloc(&q, 32 << 20), CU_OUT_OF_MEMORY);
    EXPECT_EQ(emu.live("memory"), 3);
    OK(cu.free(p));
    OK(cu.mem_info(&now, &total));
    EXPECT_EQ(now, left);
    EXPECT_EQ(cu.free(p), CU_INVALID_VALUE);
    REPORTED("not the beginning of an allocation");
    EXPECT_EQ(cu.free(t.x + 4), CU_INVALID_VALUE);
    REPORTED("not the beginning of an allocation");
    EXPECT_EQ(cu.host_free(&t), CU_INVALID_VALUE);
    REPORTED("not the beginning of an allocation");
    uint32_t fresh[n];
    OK(cu.copy_out(fresh, t.x, sizeof fresh, t.a)); /* fresh memory is 0xff */
    EXPECT_EQ(fresh[0] & fresh[n - 1], 0xffffffff);
    EXPECT_EQ(t.host[0], 0xffffffff);
    bench_close(&t);
}

static void test_copies(void)
{
    struct bench t = bench_open("quiet");
    uint32_t pageable[n], back[n];
    const size_t bytes = sizeof pageable;
    fill_host(&t, 7);
    memcpy(pageable, t.host, bytes);
    OK(cu.copy_in(t.x, pageable, bytes, t.a));
    memset(pageable, 0, bytes); /* it was staged */
    OK(cu.copy(t.y, t.x, bytes, t.a));
    OK(cu.copy_out(back, t.y, bytes, t.a)); /* pageable: there at once */
    EXPECT_EQ(n_wrong(back, 7), 0);
    OK(cu.fill(t.x, 0x11, 8, t.a));
    OK(cu.copy_out(t.host, t.x, bytes, t.a));
    OK(cu.stream_sync(t.a));
    EXPECT_EQ(t.host[1], 0x11111111);
    EXPECT_EQ(t.host[2], 9);
    OK(cu.copy_in(t.x, NULL, 0, t.a));
    REPORTED("");
    EXPECT_EQ(cu.copy_in(t.x + 4, pageable, bytes, t.a), CU_INVALID_VALUE);
    REPORTED("the destination");
    EXPECT_EQ(cu.copy_out(pageable, t.x + 4, bytes, t.a), CU_INVALID_VALUE);
    REPORTED("the source");
    EXPECT_EQ(cu.fill(1234, 0, 4, t.a), CU_INVALID_VALUE);
    REPORTED("the destination");
    EXPECT_EQ(cu.copy_in(t.x, (const void *)(uintptr_t)t.y, 4, t.a), CU_INVALID_VALUE);
    REPORTED("not memory of the host");
    EXPECT_EQ(cu.copy_in(t.x, t.host + 1, bytes, t.a), CU_INVALID_VALUE);
    REPORTED("not memory of the host");
    EXPECT_EQ(emu.bytes("cuMemcpyDtoDAsync_v2"), bytes);
    EXPECT_EQ(emu.count("cuMemcpyDtoDAsync_v2"), 1);
    EXPECT_EQ(emu.count("cuNone"), -1);
    EXPECT_EQ(emu.live("nothing"), -1);
    bench_close(&t);
}

static int launch(const struct bench *t, unsigned x, unsigned threads, unsigned smem,
                  struct cu_launch_attribute *attribute)
{
    struct test_add_args args = {(uint32_t *)(uintptr_t)t->y, (const uint32_t *)(uintptr_t)t->x, n,
                                 1};
    void *params[] = {&args};
    struct cu_launch l = {{x, 1, 1}, {threads, 1, 1}, smem, t->a, attribute, attribute ? 1 : 0};
    return cu.launch(&l, t->add, params, NULL);
}

static void test_launches(void)
{
    struct bench t = bench_open("quiet");
    OK(cu.fill(t.x, 0, n * sizeof(uint32_t), t.a));
    OK(launch_add(&t, t.a, t.y, t.x, 5));
    OK(cu.copy_out(t.host, t.y, n * sizeof(uint32_t), t.a));
    OK(cu.stream_sync(t.a));
    EXPECT_EQ(t.host[0] + t.host[n - 1], 10);
    EXPECT_EQ(emu.count("kernel"), 1);
    EXPECT_EQ(launch(&t, 0, 128, 0, NULL), CU_INVALID_VALUE);
    REPORTED("a grid of 0");
    EXPECT_EQ(launch(&t, 8, 129, 0, NULL), CU_INVALID_VALUE);
    REPORTED("its bound is 128");
    EXPECT_EQ(launch(&t, 8, 128, (48 << 10) + 1, NULL), CU_INVALID_VALUE);
    REPORTED("49153 bytes of shared memory, 49152 are allowed");
    struct cu_launch_attribute early = {.id = 6}, cluster = {.id = 4};
    early.value.value = 1;
    OK(launch(&t, 8, 128, 48 << 10, &early));
    EXPECT_EQ(launch(&t, 8, 128, 0, &cluster), NOT_SUPPORTED);
    REPORTED("run one block after another");
    struct cu_launch l = {{1, 1, 1}, {1, 1, 1}, 0, t.a, NULL, 0};
    EXPECT_EQ(cu.launch(&l, t.add, NULL, NULL), CU_INVALID_VALUE);
    EXPECT_EQ(cu.launch(&l, (cu_function)(uintptr_t)t.module, NULL, NULL), INVALID_HANDLE);
    REPORTED("the function is not one");
    bench_close(&t);
}

static void test_events(void)
{
    struct bench t = bench_open("quiet,order=late");
    cu_event other;
    float ms = -1;
    OK(cu.event_create(&other, 0));
    EXPECT_EQ(cu.event_time(&ms, t.event, other), INVALID_HANDLE);
    REPORTED("were not recorded");
    OK(cu.event_record(t.event, t.a));
    OK(launch_add(&t, t.a, t.y, t.x, 1));
    OK(cu.event_record(other, t.a));
    EXPECT_EQ(cu.event_time(&ms, t.event, other), CU_NOT_READY);
    OK(cu.event_sync(other));
    OK(cu.event_query(other));
    OK(cu.event_query(t.event));
    OK(cu.event_time(&ms, t.event, other));
    EXPECT(ms >= 0);
    OK(cu.event_record(other, t.a));
    while (cu.event_query(other) == CU_NOT_READY)
        ;
    OK(cu.event_query(other));
    OK(cu.event_destroy(other));
    OK(cu.event_create(&other, CU_EVENT_NO_TIMING));
    OK(cu.event_sync(other));
    REPORTED("never recorded");
    OK(cu.event_query(other));
    REPORTED("never recorded");
    OK(cu.stream_wait(t.a, other, 0));
    REPORTED("never recorded: no wait");
    OK(cu.event_record(other, t.a));
    EXPECT_EQ(cu.event_time(&ms, t.event, other), INVALID_HANDLE);
    REPORTED("take no time");
    OK(cu.event_destroy(other));
    EXPECT_EQ(cu.event_record(other, t.a), INVALID_HANDLE);
    REPORTED("cuEventRecord: the event is destroyed");
    EXPECT_EQ(cu.event_create(&other, 8), CU_INVALID_VALUE);
    EXPECT_EQ(cu.stream_create(&t.b, 2), CU_INVALID_VALUE);
    bench_close(&t);
}

static void test_streams(void)
{
    struct bench t = bench_open("quiet");
    cu_stream s;
    OK(cu.stream_create(&s, 0));
    OK(cu.stream_destroy(s));
    EXPECT_EQ(cu.stream_sync(s), INVALID_HANDLE);
    REPORTED("cuStreamSynchronize: the stream is destroyed");
    EXPECT_EQ(cu.copy_in(t.x, t.host, 4, s), INVALID_HANDLE);
    REPORTED("the stream is destroyed");
    EXPECT_EQ(cu.stream_destroy((cu_stream)(uintptr_t)1), INVALID_HANDLE);
    REPORTED("the stream is not one");
    bench_close(&t);
}

/* A map of [rows 100, cols 64] f16 in boxes of [16, 64], and each requirement broken once. */
struct map_args {
    int type;
    unsigned rank;
    uint64_t address, dim[5], stride[4];
    uint32_t box[5], element_stride[5];
    int interleave, swizzle, promotion, fill, offset;
};

static int encode(const struct map_args *m)
{
    static _Alignas(64) unsigned char map[256];
    return cu.tensor_map(map + m->offset, m->type, m->rank, (void *)(uintptr_t)m->address, m->dim,
                         m->stride, m->box, m->element_stride, m->interleave, m->swizzle,
                         m->promotion, m->fill);
}

static void test_tensor_map(void)
{
    struct bench t = bench_open("quiet");
    const struct map_args good = {6, 2, t.x, {64, 100}, {128}, {64, 16}, {1, 1}, 0, 3, 2, 0, 0};
    OK(encode(&good));
    REPORTED("");
    struct map_args bad[20];
    for (int i = 0; i < 20; i++)
        bad[i] = good;
    int k = 0;
    bad[k++].offset = 32;
    bad[k++].type = 16;
    bad[k++].rank = 0;
    bad[k++].rank = 6;
    bad[k].interleave = 1, bad[k++].rank = 2;
    bad[k++].address += 8;
    bad[k++].address = 0;
    bad[k++].dim[1] = 0;
    bad[k++].dim[0] = (1ull << 32) + 1;
    bad[k++].stride[0] = 136;
    bad[k++].stride[0] = 1ull << 40;
    bad[k++].stride[0] = 112;
    bad[k++].box[1] = 257;
    bad[k++].box[1] = 0;
    bad[k].swizzle = 0, bad[k++].box[0] = 4;
    bad[k++].swizzle = 2; /* 64 bytes, the box has 128 */
    bad[k++].swizzle = 7;
    bad[k++].element_stride[1] = 9;
    bad[k++].promotion = 4;
    bad[k].type = 2, bad[k].box[0] = 32, bad[k++].fill = 1;
    for (int i = 0; i < k; i++) {
        EXPECT_EQ(encode(&bad[i]), CU_INVALID_VALUE);
        REPORTED("cuTensorMapEncodeTiled: ");
    }
    bench_close(&t);
    t = bench_open("quiet,cc=80");
    EXPECT_EQ(encode(&good), NOT_SUPPORTED);
    bench_close(&t);
}

static void test_two_devices(void)
{
    struct bench t = bench_open("quiet,devices=2");
    cu_context second;
    cu_stream s;
    cu_pointer p;
    OK(cu.context_retain(&second, 1));
    OK(cu.context_set(second));
    OK(cu.stream_create(&s, CU_STREAM_NON_BLOCKING));
    OK(cu.alloc(&p, n * sizeof(uint32_t)));
    EXPECT_EQ(launch_add(&t, s, t.y, t.x, 1), INVALID_HANDLE);
    REPORTED("not of one device");
    EXPECT_EQ(cu.event_record(t.event, s), INVALID_HANDLE);
    REPORTED("not of one device");
    OK(cu.event_record(t.event, t.a)); /* but waiting for another device's event is fine */
    OK(cu.stream_wait(s, t.event, 0));
    OK(cu.copy(p, t.x, 64, s));
    OK(cu.stream_sync(s));
    OK(cu.free(p));
    OK(cu.stream_destroy(s));
    OK(cu.context_release(1));
    OK(cu.context_set(t.context));
    bench_close(&t);
}

/* Copies between two devices, in the order of a stream of either, and access to each other. */
static void test_peers(void)
{
    struct bench t = bench_open("quiet,devices=2");
    cu_context second;
    cu_stream s;
    cu_pointer p;
    int can = 0;
    OK(cu.can_access(&can, 0, 1));
    EXPECT_EQ(can, 1);
    OK(cu.can_access(&can, 1, 1));
    EXPECT_EQ(can, 0);
    EXPECT_EQ(cu.can_access(&can, 0, 2), INVALID_DEVICE);
    OK(cu.context_retain(&second, 1));
    OK(cu.context_set(second));
    OK(cu.stream_create(&s, CU_STREAM_NON_BLOCKING));
    OK(cu.alloc(&p, n * sizeof(uint32_t)));
    OK(cu.context_set(t.context));
    fill_host(&t, 5);
    OK(cu.copy_in(t.x, t.host, n * sizeof(uint32_t), t.a));
    OK(cu.copy_peer(p, second, t.x, t.context, n * sizeof(uint32_t), t.a));
    OK(cu.event_record(t.event, t.a));
    OK(cu.context_set(second));
    OK(cu.stream_wait(s, t.event, 0));
    OK(cu.copy_peer(t.y, t.context, p, second, n * sizeof(uint32_t), s));
    OK(cu.stream_sync(s));
    OK(cu.context_set(t.context));
    memset(t.host, 0, n * sizeof(uint32_t));
    OK(cu.copy_out(t.host, t.y, n * sizeof(uint32_t), t.a));
    OK(cu.stream_sync(t.a));
    EXPECT_EQ(n_wrong(t.host, 5), 0);
    EXPECT_EQ(cu.copy_peer(p, t.context, t.x, t.context, 4, t.a), CU_INVALID_VALUE);
    REPORTED("the contexts say 0 and 0");
    EXPECT_EQ(cu.copy_peer(p + n * sizeof(uint32_t) - 4, second, t.x, t.context, 8, t.a),
              CU_INVALID_VALUE);
    REPORTED("does not lie in one allocation");
    OK(launch_add(&t, t.a, p, t.x, 1)); /* before there is access: as it runs */
    EXPECT_EQ(cu.stream_sync(t.a), CU_ILLEGAL_ADDRESS);
    REPORTED("is memory of another device");
    emu.configure("quiet");
}

/* With access, a kernel may write there; it has to be asked for once, and possible. */
static void test_access(void)
{
    struct bench t = bench_open("quiet,devices=2");
    cu_context second;
    cu_pointer p;
    OK(cu.context_retain(&second, 1));
    OK(cu.context_set(second));
    OK(cu.alloc(&p, n * sizeof(uint32_t)));
    OK(cu.context_set(t.context));
    OK(cu.enable_access(second, 0));
    EXPECT_EQ(cu.enable_access(second, 0), CU_PEER_ACCESS_ALREADY_ENABLED);
    EXPECT_EQ(cu.enable_access(second, 1), CU_INVALID_VALUE);
    EXPECT_EQ(cu.enable_access(t.context, 0), INVALID_CONTEXT);
    REPORTED("the context is gone, or the current one");
    fill_host(&t, 1);
    OK(cu.copy_in(t.x, t.host, n * sizeof(uint32_t), t.a));
    OK(launch_add(&t, t.a, p, t.x, 6));
    OK(cu.copy_peer(t.y, t.context, p, second, n * sizeof(uint32_t), t.a));
    OK(cu.copy_out(t.host, t.y, n * sizeof(uint32_t), t.a));
    OK(cu.stream_sync(t.a));
    EXPECT_EQ(n_wrong(t.host, 7), 0);
    OK(cu.context_set(second));
    OK(cu.free(p));
    OK(cu.context_set(t.context));
    OK(cu.context_release(1));
    bench_close(&t);
}

static void test_no_access(void)
{
    struct bench t = bench_open("quiet,devices=2,no-peer");
    cu_context second;
    int can = 1;
    OK(cu.can_access(&can, 0, 1));
    EXPECT_EQ(can, 0);
    OK(cu.context_retain(&second, 1));
    EXPECT_EQ(cu.enable_access(second, 0), 217);
    OK(cu.context_release(1));
    bench_close(&t);
}

void test_entries(void)
{
    test_start();
    test_devices();
    test_contexts();
    test_fatbins();
    test_modules();
    test_images();
    test_memory();
    test_copies();
    test_launches();
    test_events();
    test_streams();
    test_tensor_map();
    test_two_devices();
    test_peers();
    test_access();
    test_no_access();
}
