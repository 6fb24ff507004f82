/* .init and .fini of suites whose tests give all memory back. */
#ifndef TESTS_SUPPORT_HELD_H
#define TESTS_SUPPORT_HELD_H

#include "base/alloc.h"
#include "support/behind.h"

static size_t held_before; /* bytes */

static inline void held_begin(void)
{
    held_before = gr_alloc_held(NULL);
}

static inline void held_end(void)
{
    expect_behind(gr_alloc_held(NULL) == held_before, "memory is not given back");
}

#endif
