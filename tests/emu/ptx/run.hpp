// Functions of a warp (warp.cc) that the schedule of a grid (grid.cc) calls.
#pragma once

#include "machine.hpp"

namespace ptx
{
bool can_run(const Warp &w); // a group has something to do
void end_polls(Warp &w);     // groups that poll go on, although nothing has happened
// Executes up to `budget` instructions, until no group can go on; returns their number.
uint64_t run_warp(Warp &w, uint64_t budget);
} // namespace ptx
