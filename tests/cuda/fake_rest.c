/* Every entry point of a driver that fake_driver.c does not have: all of them fail. */
#include "cuda/driver.h"

#define FN(name, symbol, params)                                                                   \
    __attribute__((weak)) int symbol params                                                        \
    {                                                                                              \
        return CU_UNKNOWN;                                                                         \
    }
#include "cuda/driver.def"
