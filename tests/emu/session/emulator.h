/* Functions of the emulated driver beside those of libcuda (tests/emu/libcuda.h), for tests that
 * drive it through the engine. */
#ifndef TESTS_EMU_SESSION_EMULATOR_H
#define TESTS_EMU_SESSION_EMULATOR_H

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>

#include "cuda/build.h"
#include "cuda/runtime.h"
#include "support/tiny.h"

/* A function of the library that the CUDA backend opens here. */
static inline void *emu_symbol(const char *name)
{
    void *library = dlopen(gr_cuda_build.library, RTLD_NOW | RTLD_LOCAL), *symbol = NULL;
    cr_assert_not_null(library, "%s", dlerror());
    symbol = dlsym(library, name);
    cr_assert_not_null(symbol, "%s", name);
    return symbol;
}

/* Writes a tiny llama to a file, which is the caller's to unlink, and has its weights uploaded in
 * small pieces. */
static inline void emu_llama(char path[256])
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    snprintf(path, 256, "%s", tiny_write(&t, NULL));
    gr_cuda_load_slot = 1 << 16;
}

#endif
