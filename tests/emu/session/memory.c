/* Device memory of a session: as much as was computed before, and no more later. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "cuda/runtime.h"
#include "engine/session.h"
#include "support/tiny.h"
#include "tests/emu/session/emulator.h"

#define N_VOCAB 96

static int64_t (*count)(const char *symbol);

static void setup(void)
{
    *(void **)(void *)&count = emu_symbol("emu_driver_count");
    gr_cuda_load_slot = 1 << 20;
}

TestSuite(memory, .init = setup);

static struct gr_model *open_model(const char *arch, int n_layer, int n_embd, int32_t n_gpu)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_model *m;
    tiny_set_layers(&t, n_layer);
    t.n_ctx = 512, t.n_embd = n_embd;
    mp.n_gpu_layers = n_gpu;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    unlink(path);
    return m;
}

static struct gr_session *open_session(struct gr_model *m, const struct gr_session_params *p)
{
    struct gr_session *s;
    cr_assert_eq(gr_session_open(&s, m, p), 0, "%s", gr_error());
    return s;
}

static struct gr_batch text(int n)
{
    static int32_t id[512];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * i) % N_VOCAB;
    return (struct gr_batch){.n_tok = n, .token = id};
}

static uint64_t free_bytes(void)
{
    struct gr_device d;
    cr_assert_eq(gr_device_get(0, &d), 0, "%s", gr_error());
    return d.free_bytes;
}

/* Layers of the CPU that compute prompts on the device: what their weights come through is counted,
 * with the layers that were asked for and with those that were found, on the device and pinned. The
 * runtime's own counters and roundings are some KiB. */
static void fits(int32_t n_gpu, int32_t offload_from, enum gr_matmul matmul)
{
    enum { OWN = 64 << 10 };
    struct gr_session_params p = gr_session_params_default();
    const int n_tok = matmul == GR_MATMUL_CUBLAS ? 40 : 30;
    p.n_ctx = 256, p.n_threads = 1, p.n_ubatch = (uint32_t)n_tok + 2, p.offload_from = offload_from;
    p.matmul = matmul;
    struct gr_model *m = open_model("llama", 4, 64, n_gpu);
    struct gr_fit plan, is;
    cr_assert_eq(gr_model_fit(m, &p, &plan), 0, "%s", gr_error());
    cr_assert_eq(plan.n_device, 2);
    uint64_t before = free_bytes();
    struct gr_session *s = open_session(m, &p);
    struct gr_batch b = text(n_tok);
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    uint64_t takes = before - free_bytes();
    const struct gr_fit_device *d = &plan.device[1];
    uint64_t planned = d->weights + d->cache + d->work;
    cr_expect(takes >= planned && takes - planned < OWN, "%d layers, %d: %llu planned, %llu taken",
              n_gpu, offload_from, (unsigned long long)planned, (unsigned long long)takes);
    cr_assert_eq(gr_session_fit(s, &is), 0, "%s", gr_error());
    for (int i = 0; i < 2; i++)
        cr_expect_eq(is.device[i].work, plan.device[i].work, "device %d, %llu planned, %llu", i,
                     (unsigned long long)plan.device[i].work,
                     (unsigned long long)is.device[i].work);
    cr_expect_eq(plan.device[0].work > 4 << 20, offload_from > 0 && n_gpu < 5);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(memory, what_offloading_takes_is_planned)
{
    for (int32_t n_gpu = 1; n_gpu <= 5; n_gpu += 2) {
        fits(n_gpu, -1, GR_MATMUL_OWN);
        fits(n_gpu, 12, GR_MATMUL_OWN);
    }
}

/* Unpacked weights, sums and the library's workspace. */
Test(memory, what_a_library_takes_is_planned)
{
    fits(5, -1, GR_MATMUL_CUBLAS);
    fits(1, 12, GR_MATMUL_CUBLAS);
}

static int64_t allocations(void)
{
    return count("cuMemAlloc_v2") + count("cuMemHostAlloc");
}

/* Texts of every length, the shortest first, after a session was opened. Few tokens are multiplied
 * with rows of so many columns in parts, which are memory that more tokens do not take. */
Test(memory, encoding_takes_no_more)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.n_ubatch = 40;
    struct gr_model *m = open_model("t5", 1, 576, 99);
    struct gr_session *s = open_session(m, &p);
    int64_t before = allocations();
    for (int n = 1; n <= 40; n += n < 12 ? 1 : 7) {
        struct gr_batch b = text(n);
        cr_assert_eq(gr_encode(s, &b), 0, "%s", gr_error());
        cr_expect_eq(allocations(), before, "%d tokens", n);
        before = allocations();
    }
    gr_session_close(&s);
    gr_model_close(&m);
}

/* Scratch memory is that of the most tokens: a product of fewer has no more sums of segments of its
 * columns. */
Test(memory, products_of_fewer_tokens_take_no_more)
{
    static const int64_t n_out[] = {1024, 4096, 16384};
    enum { N_IN = 1024, MOST = 4096 };
    struct gr_backend *b;
    cr_assert_eq(gr_cuda_devices.open(&b, 0, &(struct gr_device_opt){0}), 0, "%s", gr_error());
    for (size_t i = 0; i < GR_COUNT(n_out); i++) {
        size_t most = 0;
        for (int64_t n = 25; n <= MOST; n += n < 200 ? 1 : 100) {
            struct gr_ten x = {.batch = 1, .rows = n, .cols = N_IN, .row_bytes = N_IN * 4},
                          y = {.batch = 1, .rows = n, .cols = n_out[i], .row_bytes = n_out[i] * 4},
                          w = {.batch = 1, .rows = n_out[i], .cols = N_IN, .row_bytes = N_IN * 2};
            x.dtype = y.dtype = GR_F32, w.dtype = GR_F16;
            const struct gr_node node = {.op = GR_OP_MATMUL,
                                         .a.matmul = {.x = x, .w = w, .y = y, .scale = 1}};
            const struct gr_segment s = {&node, 1, NULL, 0};
            size_t bytes = b->api->segment_scratch(b, &s, NULL);
            cr_expect(bytes >= most, "%lld rows, %lld tokens: %zu bytes, fewer took %zu",
                      (long long)n_out[i], (long long)n, bytes, most);
            most = bytes;
        }
        cr_expect(most > 0);
    }
    b->api->close(&b);
}
