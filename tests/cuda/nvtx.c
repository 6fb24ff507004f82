/* Ranges and names that a profiler is told, with nvtx_tool.c in its place. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "fixture.h"
#include "gr/status.h"
#include "ranks.h"

#define TOOL GR_BINARY_DIR "/tests/libnvtx_tool.so"

static const char *told(void)
{
    void *tool = dlopen(TOOL, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(tool, "%s", dlerror());
    const char *(*text)(void);
    *(void **)(void *)&text = dlsym(tool, "nvtx_tool_log");
    return text();
}

/* Compares the profiler's lines; names of loading threads are left out, as their number depends on
 * the machine. */
static void expect(const char *lines)
{
    static const char thread[] = "thread gpurun load\n";
    char text[16384];
    (void)strncpy(text, told(), sizeof text - 1);
    for (char *p; (p = strstr(text, thread));)
        memmove(p, p + sizeof thread - 1, strlen(p + sizeof thread - 1) + 1);
    cr_expect_str_eq(text, lines, "told:\n%s", text);
}

static struct gr_node in_layer(struct gr_node n, int layer)
{
    n.layer = layer;
    return n;
}

/* Loads a weight and does two steps of two layers, the first with something that mixes tokens and
 * a matrix product behind it. */
static void steps(int nvtx, bool no_graphs)
{
    struct gr_backend *b =
        device_open(NULL, (struct gr_device_opt){.no_graphs = no_graphs, .nvtx = nvtx});
    struct gr_ten out, x = device_ten(b, 16, 64, NULL), y = device_ten(b, 16, 64, NULL);
    float v[64 * 16] = {0};
    struct gr_ten w = x;
    w.data = v;
    cr_assert_eq(b->api->weight_upload(b, &w, false, x.data, &out), 0);
    cr_assert_eq(b->api->sync(b), 0);
    const struct gr_node node[] = {node_act(x, y),
                                   in_layer(node_act(x, y), 0),
                                   in_layer(node_act(y, y), -1),
                                   {.op = GR_OP_SSM_CONV, .layer = 0},
                                   {.op = GR_OP_MATMUL, .layer = 0},
                                   in_layer(node_binary(GR_ADD, x, y, y), 0),
                                   in_layer(node_act(x, y), 1)};
    void *exec = device_segment(b, node, 7);
    for (int i = 0; i < 2; i++) {
        b->api->range_begin(b, i ? GR_RANGE_DECODE : GR_RANGE_PREFILL, 7);
        cr_assert_eq(b->api->segment_run(b, exec, NULL, NULL), 0);
        b->api->range_end(b);
    }
    b->api->segment_free(b, &exec);
    b->api->free(b, x.data);
    b->api->free(b, y.data);
    device_close(&b);
}

static void setup(void)
{
    cr_assert_eq(setenv("NVTX_INJECTION64_PATH", TOOL, 1), 0);
}

Test(nvtx, off, .init = setup)
{
    steps(0, false);
    expect("");
}

#define LOAD "stream gpurun steps\npush gpurun:load 4096\nstream gpurun load\npop gpurun\n"

Test(nvtx, steps, .init = setup)
{
    steps(1, false);
    expect(LOAD "push gpurun:step/prefill 7\npop gpurun\n"
                "push gpurun:step/decode 7\npush gpurun:graph 7\npop gpurun\npop gpurun\n");
}

#define LAYERS                                                                                     \
    "push gpurun:layer/attn 0\npop gpurun\npush gpurun:layer/ffn 0\npop gpurun\n"                  \
    "push gpurun:layer/ffn 1\npop gpurun\n"

Test(nvtx, layers, .init = setup)
{
    steps(2, true);
    expect(LOAD "push gpurun:step/prefill 7\n" LAYERS "pop gpurun\n"
                "push gpurun:step/decode 7\n" LAYERS "pop gpurun\n");
}

/* Messages from rank to rank, with their bytes. */
static void transport(enum gr_transport_kind kind)
{
    struct script s = {.n_message = 1};
    struct world w = {.kind = kind,
                      .n = 4,
                      .n_device = 4,
                      .n_group = 2,
                      .piece_bytes = 1 << 20,
                      .run = rank_gather_and_pass,
                      .user = &s,
                      .device = {.nvtx = 1}};
    device_configure("devices=4");
    world_run(&w);
    world_expect(&w);
    const char *text = told();
    cr_expect_not_null(strstr(text, "push gpurun:transport/exchange 1000\n"), "%s", text);
    cr_expect_not_null(strstr(text, "push gpurun:transport/send 1000\n"), "%s", text);
    cr_expect_not_null(strstr(text, "push gpurun:transport/recv 1000\n"), "%s", text);
    cr_expect_eq(strstr(text, "stream gpurun nccl\n") != NULL, kind == GR_TRANSPORT_NCCL, "%s",
                 text);
}

Test(nvtx, copies_between_devices, .init = setup)
{
    transport(GR_TRANSPORT_PEER);
}

Test(nvtx, nccl, .init = setup)
{
    transport(GR_TRANSPORT_NCCL);
}
