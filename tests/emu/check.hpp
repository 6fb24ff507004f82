// What the core tells the checker. Without it (EMU_CHECK 0) nothing of this is there.
#pragma once

#include "core.hpp"

#ifndef EMU_CHECK
#define EMU_CHECK 0
#endif

namespace emu
{
static inline void check_block()
{
}
static inline void check_begin(Thread &)
{
}
static inline void check_arrive(Barrier &, Thread &)
{
}
static inline void check_release(Barrier &)
{
}
} // namespace emu
