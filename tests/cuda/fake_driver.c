/* A driver's library as far as it is asked before a device is used: FAKE_VERSION, what cuInit
 * returns (FAKE_INIT), and FAKE_DEVICES; and what asking for the version and the number returns. */
#include <stddef.h>

#include "cuda/driver.h"

#ifndef FAKE_VERSION_RESULT
#define FAKE_VERSION_RESULT CU_OK
#endif
#ifndef FAKE_DEVICES_RESULT
#define FAKE_DEVICES_RESULT CU_OK
#endif

int cuInit(unsigned flags)
{
    return flags == 0 ? FAKE_INIT : CU_INVALID_VALUE;
}

int cuDriverGetVersion(int *version)
{
    *version = FAKE_VERSION;
    return FAKE_VERSION_RESULT;
}

int cuDeviceGetCount(int *n)
{
    *n = FAKE_DEVICES;
    return FAKE_DEVICES_RESULT;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == CU_SYSTEM_DRIVER_MISMATCH ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
            : error == CU_UNKNOWN              ? "CUDA_ERROR_UNKNOWN"
                                               : NULL;
    return *name ? CU_OK : CU_INVALID_VALUE;
}
