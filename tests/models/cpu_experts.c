/* Experts on the CPU before whole layers: what -ngl auto chooses, what it counts, what messages
 * offer, and how patterns and devices that are none are refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

enum { N_LAYER = 8 };

/* Experts are most of it. */
static struct tiny larger(void)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"qwen3moe", 8}));
    t.n_layer = N_LAYER, t.no_optional = true, t.n_expert = 24;
    return t;
}

static struct gr_session_params some_context(void)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 2048, p.n_threads = 1, p.n_ubatch = 64, p.offload_from = -1;
    return p;
}

static struct gr_model *open_on(const char *path, const char *device, int32_t n_gpu,
                                int32_t n_cpu_experts)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    p.device = device, p.n_gpu_layers = n_gpu, p.n_cpu_experts = n_cpu_experts;
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s", gr_error());
    return m;
}

static struct gr_model *open_model(const char *path, int32_t n_gpu, int32_t n_cpu_experts)
{
    return open_on(path, "FAKE0", n_gpu, n_cpu_experts);
}

/* The most memory that the device has given is the amount computed before. */
static void taken_as_planned(const struct gr_fit *fit)
{
    const struct gr_fit_device *d = &fit->device[1];
    uint64_t planned = d->weights + d->cache + d->work, peak;
    fake_used(0, &peak);
    cr_expect(peak <= planned && planned - peak < 4096, "%llu planned, %llu taken",
              (unsigned long long)planned, (unsigned long long)peak);
}

/* More memory: first more layers without experts, then, once all layers are there, fewer experts on
 * the CPU, and in the end none. */
Test(cpu_experts, auto_takes_them_before_layers, .timeout = 120)
{
    struct tiny t = larger();
    struct gr_session_params p = some_context();
    char path[256];
    int32_t last_layers = 0, last_experts = N_LAYER + 1;
    uint64_t seen = 0;
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    for (uint64_t bytes = 256 << 10; bytes < 32 << 20; bytes += bytes / 8) {
        struct gr_fit fit, now;
        fake_use(1, bytes);
        struct gr_model *m = open_model(path, -1, -1);
        cr_assert_eq(gr_model_fit(m, &p, &fit), 0, "%s", gr_error());
        cr_expect_eq(fake_used(0, NULL), 0, "a plan takes nothing");
        struct gr_session *s = tiny_session(m, &p);
        struct gr_model_info info;
        gr_model_info(m, &info);
        cr_assert_eq(gr_session_fit(s, &now), 0, "%s", gr_error());
        cr_expect_eq(info.n_gpu_layers, fit.n_gpu_layers);
        cr_expect_eq(now.n_cpu_experts, fit.n_cpu_experts);
        cr_expect_eq(strstr(info.where, "experts of 0-") != NULL, fit.n_cpu_experts > 0);
        cr_expect(fit.n_gpu_layers >= last_layers, "%llu bytes: %d layers, %d before",
                  (unsigned long long)bytes, fit.n_gpu_layers, last_layers);
        if (fit.n_gpu_layers == N_LAYER + 1 && last_layers == N_LAYER + 1)
            cr_expect(fit.n_cpu_experts <= last_experts, "%llu bytes: %d, %d before",
                      (unsigned long long)bytes, fit.n_cpu_experts, last_experts);
        if (fit.n_gpu_layers && fit.n_gpu_layers <= N_LAYER)
            cr_expect(fit.n_cpu_experts == N_LAYER || fit.n_gpu_layers == 1);
        if (fit.n_gpu_layers)
            taken_as_planned(&fit);
        seen |= UINT64_C(1) << (fit.n_gpu_layers * 6 % 60 + fit.n_cpu_experts % 6);
        last_layers = fit.n_gpu_layers, last_experts = fit.n_cpu_experts;
        gr_session_close(&s);
        gr_model_close(&m);
    }
    cr_expect_eq(last_layers, N_LAYER + 1);
    cr_expect_eq(last_experts, 0);
    cr_expect(__builtin_popcountll(seen) > 6, "%llx", (unsigned long long)seen);
    unlink(path);
}

/* Two devices, a rank each: what is chosen fits on both, and more memory brings more there. */
Test(cpu_experts, auto_on_two_devices, .timeout = 120)
{
    struct tiny t = larger();
    struct gr_session_params p = some_context();
    char path[256];
    int32_t last = 0, n_apart = 0;
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    for (uint64_t bytes = 256 << 10; bytes < 16 << 20; bytes += bytes / 3) {
        struct gr_fit fit;
        fake_use(2, bytes);
        struct gr_model *m = open_on(path, "FAKE0,FAKE1", -1, -1);
        cr_assert_eq(gr_model_fit(m, &p, &fit), 0, "%s", gr_error());
        struct gr_session *s = tiny_session(m, &p);
        uint64_t on_host = fit.device[0].weights, peak[2];
        for (int d = 0; d < 2; d++) {
            fake_used(d, &peak[d]);
            cr_expect(peak[d] <= bytes, "%llu of %llu", (unsigned long long)peak[d],
                      (unsigned long long)bytes);
        }
        n_apart += fit.n_gpu_layers == N_LAYER + 1 && fit.n_cpu_experts > 0;
        cr_expect(fit.n_gpu_layers >= last, "%llu bytes: %d layers, %d before",
                  (unsigned long long)bytes, fit.n_gpu_layers, last);
        if (fit.n_gpu_layers == N_LAYER + 1)
            cr_expect_eq(on_host > 0, fit.n_cpu_experts > 0);
        last = fit.n_gpu_layers;
        gr_session_close(&s);
        gr_model_close(&m);
    }
    cr_expect_eq(last, N_LAYER + 1);
    cr_expect(n_apart > 1, "%d", n_apart);
    unlink(path);
}

/* The number that is asked for is taken, and the experts' bytes go from one place to the other. */
Test(cpu_experts, count_on_the_cpu, .timeout = 60)
{
    struct tiny t = larger();
    struct gr_session_params p = some_context();
    char path[256];
    uint64_t all = 0, before = 0;
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    fake_use(1, 64 << 20);
    for (int32_t n = 0; n <= N_LAYER + 1; n++) {
        struct gr_fit fit;
        struct gr_model *m = open_model(path, 99, n);
        cr_assert_eq(gr_model_fit(m, &p, &fit), 0, "%s", gr_error());
        uint64_t device = fit.device[1].weights;
        all = n ? all : device;
        cr_expect_eq(fit.n_cpu_experts, n < N_LAYER ? n : N_LAYER);
        cr_expect_eq(fit.n_gpu_layers, N_LAYER + 1);
        cr_expect(n > 0 || !fit.device[0].weights, "%llu",
                  (unsigned long long)fit.device[0].weights);
        if (n > 0 && n <= N_LAYER)
            cr_expect(device < before && fit.device[0].weights, "%d", n);
        if (n == N_LAYER + 1)
            cr_expect_eq(device, before);
        before = device;
        gr_model_close(&m);
    }
    cr_expect(before < all / 2, "%llu of %llu", (unsigned long long)before,
              (unsigned long long)all);
    unlink(path);
}

/* A model that does not fit is told how many experts would have to move, which is enough, and one
 * fewer is not. */
Test(cpu_experts, are_offered, .timeout = 120)
{
    struct tiny t = larger();
    struct gr_session_params p = some_context();
    char path[256];
    int n_tried = 0;
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    for (uint64_t bytes = 1 << 20; bytes < 24 << 20; bytes += bytes / 5) {
        struct gr_session *s;
        fake_use(1, bytes);
        struct gr_model *m = open_model(path, 99, -1);
        int rc = gr_session_open(&s, m, &p);
        const char *line = rc ? strstr(gr_error(), "-ncmoe ") : NULL;
        int32_t n = line ? atoi(line + strlen("-ncmoe ")) : 0;
        gr_session_close(&s);
        gr_model_close(&m);
        for (int less = 0; less < 2 && n > less; less++) {
            m = open_model(path, 99, n - less);
            rc = gr_session_open(&s, m, &p);
            cr_expect_eq(rc, less ? GR_E_NOMEM_DEV : 0, "%llu bytes, %d: %s",
                         (unsigned long long)bytes, n - less, gr_error());
            gr_session_close(&s);
            gr_model_close(&m);
            n_tried++;
        }
    }
    cr_expect(n_tried > 6, "%d", n_tried);
    unlink(path);
}

static int n_warned;
static void count_warnings(enum gr_log_level level, const char *line, void *user)
{
    n_warned += level == GR_LOG_WARN && strstr(line, user) != NULL;
}

/* Opens with one pattern; returns the status, of a session where the model can be opened. */
static int try_home(const char *path, const char *device, int32_t n_rank, const char *pattern,
                    const char *where)
{
    const struct gr_weight_home home = {pattern, where};
    struct gr_model_params p = gr_model_params_default();
    struct gr_session_params sp = some_context();
    struct gr_model *m;
    struct gr_session *s = NULL;
    p.device = device, p.n_rank = n_rank, p.n_gpu_layers = 99;
    p.weight_homes = &home, p.n_weight_home = 1;
    int rc = gr_model_open(&m, path, &p);
    if (!rc)
        rc = gr_session_open(&s, m, &sp);
    gr_session_close(&s);
    gr_model_close(&m);
    return rc;
}

Test(cpu_experts, patterns_and_devices_that_are_none, .timeout = 60)
{
    struct tiny t = larger();
    char path[256], far[96] = "no such weight";
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    fake_use(3, 64 << 20);
    cr_expect_eq(try_home(path, "FAKE0", 0, "ffn_[", "CPU"), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "no regular expression at character"), "%s", gr_error());
    cr_expect_eq(try_home(path, "FAKE0", 0, "ffn", "CUDA_Host"), GR_E_DEVICE);
    cr_expect(strstr(gr_error(), "there is no device 'CUDA_Host'"), "%s", gr_error());
    cr_expect_eq(try_home(path, "FAKE0", 0, "ffn", "FAKE2"), GR_E_DEVICE);
    cr_expect(strstr(gr_error(), "FAKE2 is none of the devices of rank 0"), "%s", gr_error());
    /* one rank has both devices, unless there are to be two */
    cr_expect_eq(try_home(path, "FAKE0,FAKE1", 0, "blk\\.0.*ffn", "FAKE1"), 0, "%s", gr_error());
    cr_expect_eq(try_home(path, "FAKE0,FAKE1", 2, "blk\\.0.*ffn", "FAKE1"), GR_E_DEVICE);
    cr_expect(strstr(gr_error(), "--ranks 1"), "%s", gr_error());
    cr_expect_eq(try_home(path, "FAKE0,FAKE1", 2, "token_embd", "FAKE1"), GR_E_DEVICE);
    cr_expect_eq(try_home(path, "FAKE0,FAKE1", 2, "^output", "FAKE1"), 0, "%s", gr_error());
    /* a search that would go on for ever ends */
    cr_expect_eq(try_home(path, "FAKE0", 0, "^(.*.*.*.*.*.*.*.*.*)*x$", "CPU"), 0);
    gr_log_set(count_warnings, far);
    cr_expect_eq(try_home(path, "FAKE0", 0, far, "CPU"), 0, "%s", gr_error());
    gr_log_set(NULL, NULL);
    cr_expect_eq(n_warned, 1);
    unlink(path);
}
