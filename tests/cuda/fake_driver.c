/* A driver's library as far as it is asked before a device is used: FAKE_VERSION, what cuInit
 * returns (FAKE_INIT), and FAKE_DEVICES. */
#include <stddef.h>

#include "cuda/driver.h"

int cuInit(unsigned flags)
{
    return flags == 0 ? FAKE_INIT : CU_INVALID_VALUE;
}

int cuDriverGetVersion(int *version)
{
    *version = FAKE_VERSION;
    return CU_OK;
}

int cuDeviceGetCount(int *n)
{
    *n = FAKE_DEVICES;
    return CU_OK;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == CU_SYSTEM_DRIVER_MISMATCH ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
            : error == CU_UNKNOWN              ? "CUDA_ERROR_UNKNOWN"
                                               : NULL;
    return *name ? CU_OK : CU_INVALID_VALUE;
}
