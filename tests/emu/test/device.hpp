// Launches on the emulated device, for its tests.
#pragma once

#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

#include "emu.h"

// Device memory that holds a vector.
template <class T> struct Buffer {
    size_t n;
    T *p;
    explicit Buffer(size_t n) : n(n), p((T *)emu_alloc(n * sizeof(T)))
    {
    }
    explicit Buffer(const std::vector<T> &v) : Buffer(v.size())
    {
        emu_open();
        memcpy(p, v.data(), n * sizeof(T));
        emu_close();
    }
    Buffer(const Buffer &) = delete;
    ~Buffer()
    {
        emu_free(p);
    }
    std::vector<T> get() const
    {
        emu_open();
        std::vector<T> v(p, p + n);
        emu_close();
        return v;
    }
};

struct Shape {
    uint32_t grid[3], block[3], smem;
};

// Runs it; the report when it failed, else empty.
template <class Args> std::string run(const char *kernel, const Shape &s, const Args &args)
{
    const struct emu_kernel *k = emu_find(kernel);
    if (!k)
        return std::string("no kernel ") + kernel;
    if (k->args_bytes != sizeof(Args))
        return "arguments of another size";
    const struct emu_shape shape = {{s.grid[0], s.grid[1], s.grid[2]},
                                    {s.block[0], s.block[1], s.block[2]},
                                    {0, 0, 0},
                                    s.smem,
                                    0};
    return emu_launch(k, &shape, &args) ? emu_report() : "";
}
