/* ceilings [MIB [REPEATS [LIBRARY]]]: what the first GPU does at most, a JSON object a line in the
 * form of bench_ops -j 1: reading MIB of memory (default 4096), copying a half of it to the other
 * (bytes: read and written), copies from the host out of pinned and pageable memory, and what a
 * launch in a graph of 200 that do nothing takes, when each waits for the end of the one before
 * ("graph") and when it may begin before that ("early"). LIBRARY: the driver, default that of the
 * build. Each row is a case of tests/support/cases.h, "ceilings OP SHAPE". Exits 2 when there is no
 * device or a call fails. */
#include "tests/gpu/ceilings.h"

#include "cuda/build.h"
#include "cuda/driver.h"
#include "tests/support/cases.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPEATS = 1000, THREADS = 256, BLOCKS_EACH = 8, N_LAUNCH = 200, HOST_MIB = 512 };

struct ceilings {
    struct gr_cuda_driver cu;
    cu_module module;
    cu_stream stream;
    cu_event event[2];
    cu_pointer data, out;
    size_t bytes;
    unsigned n_sm, n_block;
    int n_rep;
    const char *name; /* of the row that has begun, or NULL */
};

static void check(struct ceilings *c, int result, const char *what)
{
    const char *text = NULL;
    char why[256];
    if (result == CU_OK)
        return;
    if (c->cu.error_string(result, &text) != CU_OK || !text)
        text = "unknown error";
    snprintf(why, sizeof why, "%s: error %d: %s", what, result, text);
    if (c->name)
        cases_end(c->name, why);
    fprintf(stderr, "ceilings: %s\n", why);
    exit(2);
}
#define CHECK(c, call, ...) check(c, (c)->cu.call(__VA_ARGS__), #call)

/* ---- a row ---- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* True when the row is to be measured. */
static bool begin(struct ceilings *c, const char *op, const char *shape)
{
    char label[64];
    snprintf(label, sizeof label, "ceilings %s %s", op, shape);
    c->name = cases_begin(NULL, label);
    return c->name != NULL;
}

static void row(struct ceilings *c, const char *op, const char *shape, float *us, double bytes,
                int wrong)
{
    qsort(us, (size_t)c->n_rep, sizeof *us, by_value);
    printf(
        "{\"op\": \"%s\", \"type\": \"u32\", \"shape\": \"%s\", \"n_tok\": 0, \"impl\": "
        "\"device\", "
        "\"median_us\": %.4f, \"p10_us\": %.4f, \"p90_us\": %.4f, \"bytes\": %.0f, \"flops\": 0, "
        "\"rel_err\": %d, \"rotated_mb\": %.0f}\n",
        op, shape, (double)us[c->n_rep / 2], (double)us[c->n_rep / 10],
        (double)us[c->n_rep * 9 / 10], bytes, wrong, (double)c->bytes / 1e6);
    fflush(stdout);
    cases_end(c->name, wrong ? "other words than were filled in" : NULL);
    c->name = NULL;
}

/* us[]: microseconds of each run of fn, after one to warm up. */
static void measure(struct ceilings *c, void (*fn)(struct ceilings *c, void *arg), void *arg,
                    double n_each, float *us)
{
    for (int i = -1; i < c->n_rep; i++) {
        float ms;
        CHECK(c, event_record, c->event[0], c->stream);
        fn(c, arg);
        CHECK(c, event_record, c->event[1], c->stream);
        CHECK(c, event_sync, c->event[1]);
        CHECK(c, event_time, &ms, c->event[0], c->event[1]);
        if (i >= 0)
            us[i] = (float)((double)ms * 1000 / n_each);
    }
}

/* ---- kernels ---- */

static void launch(struct ceilings *c, const char *kernel, unsigned blocks, int early)
{
    struct cu_launch_attribute attribute = {.id = CU_LAUNCH_PROGRAMMATIC, .value.value = 1};
    struct cu_launch how = {.grid = {blocks, 1, 1},
                            .block = {THREADS, 1, 1},
                            .stream = c->stream,
                            .attribute = &attribute,
                            .n_attribute = (unsigned)early};
    struct ceilings_args args = {(uint32_t *)(uintptr_t)c->data, (uint32_t *)(uintptr_t)c->out,
                                 c->bytes / 16};
    void *params[] = {&args};
    cu_function f;
    CHECK(c, module_function, &f, c->module, kernel);
    CHECK(c, launch, &how, f, params, NULL);
}

static void read_all(struct ceilings *c, void *arg)
{
    (void)arg;
    launch(c, "ceilings_read", c->n_block, 0);
}

/* True when the bytes read differ from those filled in. */
static int is_wrong(struct ceilings *c)
{
    size_t n = (size_t)c->n_block * THREADS;
    uint32_t *out = malloc(n * sizeof *out), x = 0;
    if (!out)
        check(c, CU_OUT_OF_MEMORY, "host memory");
    CHECK(c, copy_out, out, c->out, n * sizeof *out, c->stream);
    CHECK(c, stream_sync, c->stream);
    for (size_t i = 0; i < n; i++)
        x ^= out[i];
    for (size_t i = 0; i < c->bytes / 4; i++)
        x ^= ceilings_word((uint32_t)i);
    free(out);
    return x != 0;
}

static void copy_half(struct ceilings *c, void *arg)
{
    (void)arg;
    CHECK(c, copy, c->data + c->bytes / 2, c->data, c->bytes / 2, c->stream);
}

/* ---- from the host ---- */

struct host {
    void *p;
    size_t bytes;
};

static void copy_in(struct ceilings *c, void *arg)
{
    const struct host *h = arg;
    CHECK(c, copy_in, c->data, h->p, h->bytes, c->stream);
}

static void from_host(struct ceilings *c, bool pinned, float *us)
{
    const char *shape = pinned ? "pinned" : "pageable";
    struct host h = {NULL, c->bytes < (size_t)HOST_MIB << 20 ? c->bytes : (size_t)HOST_MIB << 20};
    if (!begin(c, "h2d", shape))
        return;
    if (pinned)
        CHECK(c, host_alloc, &h.p, h.bytes, 0);
    else if (!(h.p = malloc(h.bytes)))
        check(c, CU_OUT_OF_MEMORY, "host memory");
    for (size_t i = 0; i < h.bytes / 4; i++)
        ((uint32_t *)h.p)[i] = ceilings_word((uint32_t)i);
    measure(c, copy_in, &h, 1, us);
    row(c, "h2d", shape, us, (double)h.bytes, 0);
    if (pinned)
        CHECK(c, host_free, h.p);
    else
        free(h.p);
}

/* ---- launches ---- */

static void replay(struct ceilings *c, void *arg)
{
    CHECK(c, graph_launch, arg, c->stream);
}

/* The first launch loads the kernel, which a capture does not allow. */
static void gap(struct ceilings *c, int early, float *us)
{
    cu_graph graph;
    cu_graph_exec exec;
    if (!begin(c, "launch", early ? "early" : "graph"))
        return;
    launch(c, "ceilings_step", c->n_sm, 0);
    CHECK(c, stream_sync, c->stream);
    CHECK(c, capture_begin, c->stream, CU_CAPTURE_THREAD_LOCAL);
    for (int i = 0; i < N_LAUNCH; i++)
        launch(c, "ceilings_step", c->n_sm, early && i > 0);
    CHECK(c, capture_end, c->stream, &graph);
    CHECK(c, graph_instantiate, &exec, graph, 0);
    measure(c, replay, exec, N_LAUNCH, us);
    row(c, "launch", early ? "early" : "graph", us, 0, 0);
    CHECK(c, graph_exec_destroy, exec);
    CHECK(c, graph_destroy, graph);
}

/* ---- the device ---- */

static void open_driver(struct ceilings *c, const char *library)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
#define FN(name, symbol, params)                                                                   \
    *(void **)&c->cu.name = handle ? dlsym(handle, #symbol) : NULL;                                \
    if (!c->cu.name) {                                                                             \
        fprintf(stderr, "ceilings: %s: no " #symbol "\n", library);                                \
        exit(2);                                                                                   \
    }
#include "cuda/driver.def"
#undef FN
}

static int open_device(struct ceilings *c, cu_device *device)
{
    cu_context context;
    int n_sm, major, version, toolkit = gr_cuda_build.toolkit;
    CHECK(c, init, 0);
    CHECK(c, driver_version, &version);
    if (version / 1000 < toolkit / 1000) {
        fprintf(stderr, "ceilings: the driver is of CUDA %d.%d, the kernels here of nvcc %d.%d\n",
                version / 1000, version % 1000 / 10, toolkit / 1000, toolkit % 1000 / 10);
        exit(2);
    }
    CHECK(c, device_get, device, 0);
    CHECK(c, device_attribute, &n_sm, CU_ATTR_N_SM, *device);
    CHECK(c, device_attribute, &major, CU_ATTR_CC_MAJOR, *device);
    CHECK(c, context_retain, &context, *device);
    CHECK(c, context_set, context);
    CHECK(c, stream_create, &c->stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 2; i++)
        CHECK(c, event_create, &c->event[i], 0);
    /* the emulated device has its kernels linked in: any image stands for them */
    CHECK(c, module_load, &c->module, gr_cuda_build.n_image ? gr_cuda_build.image[0].data : "");
    c->n_sm = (unsigned)n_sm;
    c->n_block = c->n_sm * (c->bytes < (size_t)64 << 20 ? 1 : BLOCKS_EACH);
    CHECK(c, alloc, &c->data, c->bytes);
    CHECK(c, alloc, &c->out, (size_t)c->n_block * THREADS * 4);
    return major;
}

static void close_device(struct ceilings *c, cu_device device)
{
    CHECK(c, free, c->data);
    CHECK(c, free, c->out);
    for (int i = 0; i < 2; i++)
        CHECK(c, event_destroy, c->event[i]);
    CHECK(c, module_unload, c->module);
    CHECK(c, stream_destroy, c->stream);
    CHECK(c, context_set, NULL);
    CHECK(c, context_release, device);
}

int main(int argc, char **argv)
{
    static struct ceilings c;
    static float us[MAX_REPEATS];
    cu_device device;
    long mib = argc > 1 ? atol(argv[1]) : 4096;
    c.n_rep = argc > 2 ? atoi(argv[2]) : 30;
    if (mib < 1 || c.n_rep < 1 || c.n_rep > MAX_REPEATS || argc > 4) {
        fprintf(stderr, "usage: ceilings [MIB [REPEATS [LIBRARY]]]\n");
        return 2;
    }
    c.bytes = (size_t)mib << 20;
    open_driver(&c, argc > 3 ? argv[3] : gr_cuda_build.library);
    int major = open_device(&c, &device);
    if (begin(&c, "read", "all")) {
        launch(&c, "ceilings_fill", c.n_block, 0);
        measure(&c, read_all, NULL, 1, us);
        row(&c, "read", "all", us, (double)c.bytes, is_wrong(&c));
    }
    if (begin(&c, "copy", "a half")) {
        measure(&c, copy_half, NULL, 1, us);
        row(&c, "copy", "a half", us, (double)c.bytes, 0);
    }
    from_host(&c, true, us);
    from_host(&c, false, us);
    gap(&c, 0, us);
    if (major >= 9)
        gap(&c, 1, us);
    close_device(&c, device);
    return 0;
}
