// Correct kernels give right results, whatever the schedule.
#include <math.h>

#include "base/f16.h"
#include "test/device.hpp"
#include "test/kernels/basic.h"
#include "test/test.hpp"

// Small whole numbers: sums are exact in any order.
static std::vector<float> whole(size_t n, uint32_t seed)
{
    std::vector<float> v(n);
    for (float &x : v) {
        seed = seed * 1664525u + 1013904223u;
        x = (float)(int)(seed >> 24) - 128.0f;
    }
    return v;
}

static void scale(uint32_t n)
{
    std::vector<float> x = whole(n, 1);
    Buffer<float> dx(x), dy(n);
    std::string why = run("test_scale", {{(n + 255) / 256, 1, 1}, {256, 1, 1}, 0},
                          scale_args{dx.p, dy.p, n, 3.0f});
    CHECK(why.empty(), "scale: %s", why.c_str());
    std::vector<float> y = dy.get();
    for (uint32_t i = 0; i < n; i++)
        if (y[i] != 3 * x[i]) {
            CHECK(false, "scale: %u: %g", i, (double)y[i]);
            break;
        }
}

static void sum(uint32_t rows, uint32_t n, uint32_t threads)
{
    std::vector<float> x = whole((size_t)rows * n, 2);
    Buffer<float> dx(x), dy(rows);
    std::string why = run("test_sum", {{rows, 1, 1}, {threads, 1, 1}, 0}, sum_args{dx.p, dy.p, n});
    CHECK(why.empty(), "sum: %s", why.c_str());
    std::vector<float> y = dy.get();
    for (uint32_t r = 0; r < rows; r++) {
        double want = 0;
        for (uint32_t i = 0; i < n; i++)
            want += x[(size_t)r * n + i];
        CHECK(y[r] == want, "sum: row %u: %g, expected %g", r, (double)y[r], want);
    }
}

static void gemm(uint32_t m, uint32_t n, uint32_t k)
{
    std::vector<float> a = whole((size_t)m * k, 3), b = whole((size_t)n * k, 4);
    std::vector<uint16_t> ha, hb;
    for (float &v : a)
        ha.push_back(gr_f32_to_f16(v = floorf(v / 16)));
    for (float &v : b)
        hb.push_back(gr_f32_to_f16(v = floorf(v / 16)));
    Buffer<uint16_t> da(ha), db(hb);
    Buffer<float> dc((size_t)m * n);
    std::string why =
        run("test_gemm", {{(n + 63) / 64, (m + 63) / 64, 1}, {128, 1, 1}, 3 * 2 * 64 * 40 * 2},
            gemm_args{da.p, db.p, dc.p, m, n, k});
    CHECK(why.empty(), "gemm: %s", why.c_str());
    std::vector<float> c = dc.get();
    int wrong = 0;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            double want = 0;
            for (uint32_t l = 0; l < k; l++)
                want += (double)a[(size_t)i * k + l] * b[(size_t)j * k + l];
            wrong += !(c[(size_t)i * n + j] == want);
        }
    CHECK(!wrong, "gemm %u x %u x %u: %d elements are wrong", m, n, k, wrong);
}

void test_kernels()
{
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct emu_options o = {seed, (enum emu_policy)(seed % 3), 0};
        emu_set(&o);
        scale(1000);
        sum(3, 777, 256);
        sum(2, 100, 32);
        gemm(70, 130, 96);
    }
}
