// Tests of the interpreter: PTX text that is launched as the driver would launch it.
#pragma once

#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

#include "tests/emu/emu.h"

// Counts what is not true, and says where.
void expect_at(bool is, const char *file, int line, const char *form, ...)
    __attribute__((format(printf, 4, 5)));
#define EXPECT(is, ...) expect_at(is, __FILE__, __LINE__, __VA_ARGS__)

// Device memory with n elements.
template <class T> class Array
{
  public:
    explicit Array(size_t n) : count(n), p(static_cast<T *>(emu_alloc(n * sizeof(T))))
    {
    }
    explicit Array(const std::vector<T> &v) : Array(v.size())
    {
        put(v);
    }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;
    ~Array()
    {
        emu_free(p);
    }
    void put(const std::vector<T> &v)
    {
        emu_open();
        memcpy(p, v.data(), v.size() * sizeof(T));
        emu_close();
    }
    std::vector<T> get() const
    {
        emu_open();
        std::vector<T> v(p, p + count);
        emu_close();
        return v;
    }
    uint64_t at() const // its address, a parameter .u64
    {
        return (uint64_t)(uintptr_t)p;
    }

  private:
    size_t count;
    T *p;
};

// A module of sm_90a with one entry `k`, whose parameters are .u64 p0, p1, ..; `outside` stands in
// front of the entry, `body` is what its braces hold: registers are declared there.
class Kernel
{
  public:
    Kernel(int n_param, const std::string &body, const std::string &outside = "");
    Kernel(const Kernel &) = delete;
    Kernel &operator=(const Kernel &) = delete;
    ~Kernel();
    // The reason why the text was refused; "": it was not.
    const std::string &refused() const
    {
        return why;
    }
    // Launches it; the report, "" when nothing was found. The text must not have been refused.
    std::string run(const std::vector<uint64_t> &params, uint32_t threads, uint32_t blocks = 1,
                    uint32_t smem_bytes = 0, uint32_t cluster = 0) const;

  private:
    struct emu_image *image = nullptr;
    const struct emu_kernel *kernel = nullptr;
    std::string why;
};

// Runs f with each of the schedules: in order, and three random ones.
template <class F> void each_schedule(F f)
{
    const struct emu_options schedules[] = {
        {0, EMU_IN_ORDER, 0}, {1, EMU_RANDOM, 0}, {2, EMU_RANDOM, 0}, {3, EMU_PRIORITIES, 0}};
    for (const struct emu_options &o : schedules) {
        emu_set(&o);
        f();
    }
    emu_set(&schedules[0]);
}

// A test by its name; tests run in the order of files and lines.
struct Test {
    Test(const char *name, void (*run)());
};
#define TEST(name)                                                                                 \
    static void test_##name();                                                                     \
    static const Test name##_test(#name, test_##name);                                             \
    static void test_##name()
