// `t_emu speed`: what things cost on this machine, in nanoseconds.
#include <stdio.h>
#include <time.h>

#include "test/device.hpp"
#include "test/kernels/basic.h"
#include "test/test.hpp"

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

template <class Args>
static void tell(const char *what, const char *kernel, const Shape &s, const Args &args,
                 double units)
{
    double best = 1e30;
    for (int i = 0; i < 3; i++) {
        double start = now();
        std::string why = run(kernel, s, args);
        double took = now() - start;
        if (!why.empty())
            printf("%s\n", why.c_str());
        best = took < best ? took : best;
    }
    printf("  %-44s %9.2f ns, %8.3f ms in all\n", what, best / units, best / 1e6);
}

void tell_speed()
{
    static const char *const names[] = {"in order", "random", "priorities"};
    uint32_t n = 1 << 20;
    Buffer<float> x(n), y(n);
    Buffer<uint16_t> a(256 * 512), b(256 * 512);
    for (int policy = 0; policy < 3; policy++) {
        struct emu_options o = {1, (enum emu_policy)policy, 0};
        emu_set(&o);
        printf("%s\n", names[policy]);
        tell("elementwise, a thread", "test_scale", {{n / 256, 1, 1}, {256, 1, 1}, 0},
             scale_args{x.p, y.p, n, 2}, n);
        for (uint32_t threads = 128; threads <= 1024; threads *= 2) {
            char what[64];
            snprintf(what, sizeof what, "__syncthreads of %u, a thread", threads);
            tell(what, "test_barriers", {{1, 1, 1}, {threads, 1, 1}, 0}, repeat_args{y.p, 1000},
                 threads * 1e3);
        }
        tell("__shfl_xor_sync, a lane", "test_shuffles", {{1, 1, 1}, {128, 1, 1}, 0},
             repeat_args{y.p, 10000}, 128e4);
        tell("mma_f16, a lane", "test_products", {{1, 1, 1}, {128, 1, 1}, 0},
             repeat_args{y.p, 10000}, 128e4);
        tell("sums of 1024 rows of 1024 by 256, an element", "test_sum",
             {{1024, 1, 1}, {256, 1, 1}, 0}, sum_args{x.p, y.p, 1024}, n);
        tell("gemm 256 x 256 x 512, a product", "test_gemm", {{4, 4, 1}, {128, 1, 1}, 30720},
             gemm_args{a.p, b.p, y.p, 256, 256, 512}, 256 * 256 * 512.0);
    }
}
