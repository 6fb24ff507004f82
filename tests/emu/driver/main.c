/* Opens the library, runs the tests, says what failed. Takes the library's path. */
#include <dlfcn.h>
#include <stdlib.h>

#include "cuda/cublaslt.h"
#include "cuda/nccl.h"
#include "tests/emu/driver/driver.h"

struct gr_cuda_driver cu;
struct emu_control emu;
int n_failed;
const char *library_path;
extern struct gr_nccl nccl;
extern struct gr_cublaslt lt;

void failed(const char *file, int line, const char *what, long long got, long long expected)
{
    fprintf(stderr, "%s:%d: %s is %lld, expected %lld\n", file, line, what, got, expected);
    n_failed++;
}

bool reported(const char *text)
{
    const char *report = emu.report();
    bool is = *text ? strstr(report, text) != NULL : !*report;
    if (!is)
        fprintf(stderr, "expected in the report: \"%s\", found:\n%s\n", text, report);
    emu.report_clear();
    return is;
}

struct bench bench_open(const char *options)
{
    struct bench t = {0};
    EXPECT_EQ(emu.configure(options), 0);
    OK(cu.init(0));
    OK(cu.context_retain(&t.context, 0));
    OK(cu.context_set(t.context));
    OK(cu.module_load(&t.module, "image"));
    OK(cu.module_function(&t.add, t.module, "test_add"));
    OK(cu.stream_create(&t.a, CU_STREAM_NON_BLOCKING));
    OK(cu.stream_create(&t.b, CU_STREAM_NON_BLOCKING));
    OK(cu.event_create(&t.event, 0));
    OK(cu.alloc(&t.x, n * sizeof(uint32_t)));
    OK(cu.alloc(&t.y, n * sizeof(uint32_t)));
    OK(cu.host_alloc((void **)&t.host, n * sizeof(uint32_t), 0));
    return t;
}

void bench_close(struct bench *t)
{
    OK(cu.stream_sync(t->a));
    OK(cu.stream_sync(t->b));
    OK(cu.host_free(t->host));
    OK(cu.free(t->x));
    OK(cu.free(t->y));
    OK(cu.event_destroy(t->event));
    OK(cu.stream_destroy(t->a));
    OK(cu.stream_destroy(t->b));
    OK(cu.module_unload(t->module));
    OK(cu.context_release(0));
    OK(cu.context_set(NULL));
    EXPECT_EQ(emu.live(NULL), 0);
    REPORTED("");
}

int launch_add(const struct bench *t, cu_stream s, cu_pointer y, cu_pointer x, uint32_t number)
{
    struct test_add_args args = {(uint32_t *)(uintptr_t)y, (const uint32_t *)(uintptr_t)x, n,
                                 number};
    void *params[] = {&args};
    struct cu_launch l = {.grid = {n / 128, 1, 1}, .block = {128, 1, 1}, .stream = s};
    int error = cu.launch(&l, t->add, params, NULL);
    memset(&args, 0xee, sizeof args); /* they were copied */
    return error;
}

cu_graph capture_adds(const struct bench *t, int count)
{
    cu_graph graph = NULL;
    OK(cu.capture_begin(t->a, CU_CAPTURE_THREAD_LOCAL));
    for (int i = 0; i < count; i++)
        OK(launch_add(t, t->a, t->x, t->x, 1));
    OK(cu.capture_end(t->a, &graph));
    return graph;
}

void fill_host(const struct bench *t, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++)
        t->host[i] = first + i;
}

int n_wrong(const uint32_t *p, uint32_t first)
{
    int wrong = 0;
    for (uint32_t i = 0; i < n; i++)
        wrong += p[i] != first + i;
    return wrong;
}

static void *symbol(void *library, const char *name)
{
    void *p = dlsym(library, name);
    if (!p) {
        fprintf(stderr, "%s is not there\n", name);
        exit(1);
    }
    return p;
}

int main(int argc, char **argv)
{
    void *library = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW | RTLD_LOCAL);
    if ((argc != 2 && argc != 4) || !library) {
        fprintf(stderr, "usage: %s libcuda_emu_test.so: %s\n", argv[0], dlerror());
        return 1;
    }
#define FN(name, sym, params) *(void **)&cu.name = symbol(library, #sym);
#include "cuda/driver.def"
#undef FN
#define FN(type, name, sym, since, params) *(void **)&nccl.name = symbol(library, #sym);
#include "cuda/nccl.def"
#undef FN
#define FN(type, name, sym, params) *(void **)&lt.name = symbol(library, #sym);
#include "cuda/cublaslt.def"
#undef FN
#define CONTROL(name) *(void **)&emu.name = symbol(library, "emu_driver_" #name);
    CONTROL(configure)
    CONTROL(fail)
    CONTROL(count)
    CONTROL(bytes)
    CONTROL(live)
    CONTROL(report)
    CONTROL(report_clear)
    library_path = argv[1];
    if (argc == 4)
        return far_rank(argv[2], argv[3]) != 0;
    test_entries();
    test_order();
    test_capture();
    test_faults();
    test_nccl();
    test_cublaslt();
    test_far();
    printf("%s\n", n_failed ? "failed" : "all passed");
    return n_failed != 0;
}
