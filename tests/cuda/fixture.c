#include "fixture.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cuda/build.h"
#include "gr/status.h"
#include "support/cuda_words.h"

bool emulated(void)
{
    return strcmp(gr_cuda_kind, "CUDA") != 0;
}

void needs_emulated(void)
{
    if (!emulated())
        cr_skip("needs the emulated device");
}

static int64_t nothing(const char *name)
{
    (void)name;
    return 0;
}

static const char *no_report(void)
{
    return "";
}

const struct emu *emu(void)
{
    static struct emu e = {
        .count = nothing, .bytes = nothing, .live = nothing, .report = no_report};
    if (emulated() && !e.configure) {
        void *library = dlopen(gr_cuda_build.library, RTLD_NOW | RTLD_LOCAL);
        cr_assert_not_null(library, "%s", dlerror());
#define GET(name) *(void **)(void *)&e.name = dlsym(library, "emu_driver_" #name)
        GET(fail), GET(hold), GET(count), GET(bytes), GET(live), GET(report), GET(report_clear),
            GET(configure);
#undef GET
        cr_assert_not_null(e.configure);
    }
    return &e;
}

void device_configure(const char *options)
{
    const char *order = getenv("GR_TEST_ORDER");
    char all[256];
    if (options)
        needs_emulated();
    if (!emulated())
        return;
    (void)snprintf(all, sizeof all, "%s,%s", order ? order : "order=late", options ? options : "");
    cr_assert_eq(emu()->configure(all), 0, "%s", emu()->report());
}

static size_t held; /* on the host before a backend was opened */

struct gr_backend *device_open(const char *options, struct gr_device_opt opt)
{
    struct gr_backend *b;
    device_configure(options);
    held = gr_alloc_held(NULL);
    opt = cuda_words(opt);
    cr_assert_eq(gr_cuda_devices.open(&b, 0, &opt), 0, "%s", gr_error());
    return b;
}

void device_close(struct gr_backend **b)
{
    (*b)->api->close(b);
    cr_expect_null(*b);
    cr_expect_eq(emu()->live(NULL), 0, "objects are left on the device");
    cr_expect_eq(gr_alloc_held(NULL), held, "%zu bytes are left on the host, %zu before",
                 gr_alloc_held(NULL), held);
    cr_expect_str_empty(emu()->report());
}

struct gr_ten device_ten(struct gr_backend *b, int64_t rows, int64_t cols, const float *values)
{
    size_t bytes = (size_t)(rows * cols) * 4;
    struct gr_ten t = {.data = b->api->alloc(b, bytes),
                       .batch = 1,
                       .rows = rows,
                       .cols = cols,
                       .row_bytes = cols * 4,
                       .dtype = GR_F32};
    cr_assert_not_null(t.data, "%s", gr_error());
    if (values)
        cr_assert_eq(b->api->upload(b, t.data, values, bytes), 0, "%s", gr_error());
    return t;
}

float *device_values(struct gr_backend *b, const struct gr_ten *t)
{
    size_t bytes = (size_t)(t->rows * t->cols) * 4;
    float *values = gr_calloc(bytes, 1);
    cr_assert_not_null(values);
    cr_assert_eq(b->api->download(b, values, t->data, bytes), 0, "%s", gr_error());
    return values;
}

struct gr_node node_act(struct gr_ten x, struct gr_ten y)
{
    struct gr_node n = {.op = GR_OP_ACT, .layer = -1};
    n.a.act = (struct gr_args_act){.x = x, .y = y, .kind = GR_LINEAR};
    return n;
}

struct gr_node node_glu(struct gr_ten a, struct gr_ten b, struct gr_ten y)
{
    struct gr_node n = {.op = GR_OP_GLU, .layer = -1};
    n.a.glu = (struct gr_args_glu){.a = a, .b = b, .y = y};
    return n;
}

struct gr_node node_binary(enum gr_binary_kind kind, struct gr_ten a, struct gr_ten b,
                           struct gr_ten y)
{
    struct gr_node n = {.op = GR_OP_BINARY, .layer = -1};
    n.a.binary = (struct gr_args_binary){.a = a, .b = b, .y = y, .kind = (int32_t)kind};
    return n;
}

struct gr_node node_unpack(struct gr_ten packed, struct gr_ten rows)
{
    struct gr_node n = {.op = GR_OP_GATHER, .layer = -1};
    n.a.gather = (struct gr_args_gather){.x = packed, .y = rows};
    return n;
}

struct gr_node node_matmul(struct gr_ten x, struct gr_ten y)
{
    struct gr_node n = {.op = GR_OP_MATMUL, .layer = -1};
    n.a.matmul = (struct gr_args_matmul){.x = x, .w = x, .y = y};
    return n;
}

void *device_segment(struct gr_backend *b, const struct gr_node *node, int n_node)
{
    const struct gr_segment s = {.node = node, .n_node = n_node};
    void *exec;
    cr_assert_eq(b->api->segment_new(b, &s, &exec), 0, "%s", gr_error());
    return exec;
}
