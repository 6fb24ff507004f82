/* What the emulated driver has besides libcuda's functions (tests/emu/libcuda.h), for tests that
 * drive it through the engine. */
#ifndef TESTS_EMU_SESSION_EMULATOR_H
#define TESTS_EMU_SESSION_EMULATOR_H

#include <criterion/criterion.h>
#include <dlfcn.h>

#include "cuda/build.h"

/* A function of the library that the CUDA backend opens here. */
static inline void *emu_symbol(const char *name)
{
    void *library = dlopen(gr_cuda_build.library, RTLD_NOW | RTLD_LOCAL), *symbol = NULL;
    cr_assert_not_null(library, "%s", dlerror());
    symbol = dlsym(library, name);
    cr_assert_not_null(symbol, "%s", name);
    return symbol;
}

#endif
