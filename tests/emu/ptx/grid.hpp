// Running a grid.
#pragma once

#include "machine.hpp"

namespace ptx
{
struct Shape {
    uint32_t grid[3], block[3], cluster[3]; // cluster: 1 where there is none
    uint32_t dynamic_bytes;                 // of shared memory
    bool all_resident;                      // a cooperative launch
};
// Runs a grid of a decoded entry, whose parameters are in its memory. Throws Fault.
void run_grid(const Entry &e, const Shape &shape, uint64_t number);
// Bytes of shared memory of a block: static, dynamic, and between them.
uint32_t shared_size(const Entry &e, uint32_t dynamic_bytes, uint32_t *dynamic_at);
void forget_constant_reads(); // addresses.cc: a launch begins
} // namespace ptx
