/* Messages about drivers that are missing, too old, or do not work: one line each. The build's
 * table is this file's, so that each test (a process of its own) names the library it wants. */
#include "cuda/driver.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "cuda/build.h"
#include "cuda/device.h"
#include "gr/backend.h"
#include "gr/status.h"

static char library[512];
const char gr_cuda_kind[] = "CUDA";
const struct gr_cuda_build gr_cuda_build = {.library = library, .archs = "sm_80"};

/* Asks for the devices of a fake driver. */
static const char *why(const char *name, bool *broken)
{
    const char *text = NULL;
    (void)snprintf(library, sizeof library, "%s/tests/%s", GR_BINARY_DIR, name);
    cr_assert_eq(gr_cuda_devices.count(&text, broken), 0);
    cr_assert_not_null(text);
    cr_expect_null(strchr(text, '\n'), "more than one line: %s", text);
    return text;
}

static void has(const char *text, const char *part)
{
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

Test(driver, none_is_no_fault)
{
    bool broken = true;
    const char *text = why("libcuda_that_is_not_there.so", &broken);
    cr_expect_not(broken);
    has(text, "no CUDA driver");
    has(text, "libcuda_that_is_not_there.so");
}

Test(driver, some_other_library)
{
    bool broken = false;
    const char *text = why("libcuda_other.so", &broken);
    cr_expect(broken);
    has(text, "is no CUDA driver");
}

Test(driver, too_old_by_a_missing_entry_point)
{
    bool broken = false;
    const char *text = why("libcuda_11_4.so", &broken);
    cr_expect(broken);
    has(text, "11.4");
    has(text, "12.0 or newer (NVIDIA driver 525)");
    has(text, "without cuTensorMapEncodeTiled");
    has(text, "update");
}

Test(driver, too_old_by_its_version)
{
    bool broken = false;
    const char *text = why("libcuda_11_8.so", &broken);
    cr_expect(broken);
    has(text, "11.8");
    has(text, "12.0 or newer");
    cr_expect_null(strstr(text, "without"));
}

/* The call that failed is the one that is named. */
Test(driver, no_version)
{
    bool broken = false;
    const char *text = why("libcuda_no_version.so", &broken);
    cr_expect(broken);
    has(text, "cuDriverGetVersion failed with CUDA_ERROR_UNKNOWN");
}

Test(driver, no_number_of_devices)
{
    bool broken = false;
    const char *text = why("libcuda_no_count.so", &broken);
    cr_expect(broken);
    has(text, "cuDeviceGetCount failed with CUDA_ERROR_UNKNOWN");
}

Test(driver, library_and_module_differ)
{
    bool broken = false;
    const char *text = why("libcuda_mismatch.so", &broken);
    cr_expect(broken);
    has(text, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
    has(text, "reboot");
}

Test(driver, cannot_start)
{
    bool broken = false;
    const char *text = why("libcuda_unknown.so", &broken);
    cr_expect(broken);
    has(text, "CUDA_ERROR_UNKNOWN");
    has(text, "nvidia_uvm");
}

/* Within a major version what a newer compiler made is loaded, beyond it nothing is. */
Test(driver, older_than_what_made_the_kernels)
{
    static const struct {
        int driver, toolkit;
        const char *needed; /* NULL: it loads them */
    } cases[] = {
        {12000, 12000, NULL},
        {12000, 12080, NULL},
        {12080, 12080, NULL},
        {13000, 12080, NULL},
        {12000, 13000, "13.0 or newer (NVIDIA driver 580)"},
        {12080, 13000, "13.0 or newer (NVIDIA driver 580)"},
        {12090, 13010, "13.0 or newer (NVIDIA driver 580)"},
        {13000, 13000, NULL},
        {13000, 13010, NULL},
        {13020, 14000, "14.0 or newer;"},
        {12000, 0, NULL}, /* the emulated device's */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = gr_cuda_check_toolkit(cases[i].driver, cases[i].toolkit);
        cr_expect_eq(rc, cases[i].needed ? GR_E_DEVICE : 0, "%d, %d", cases[i].driver,
                     cases[i].toolkit);
        if (!rc)
            continue;
        char is[32], by[32];
        (void)snprintf(is, sizeof is, "it is of CUDA %d.%d", cases[i].driver / 1000,
                       cases[i].driver % 1000 / 10);
        (void)snprintf(by, sizeof by, "made by nvcc %d.%d", cases[i].toolkit / 1000,
                       cases[i].toolkit % 1000 / 10);
        has(gr_error(), is);
        has(gr_error(), by);
        has(gr_error(), cases[i].needed);
        has(gr_error(), "update the NVIDIA driver");
        cr_expect_null(strchr(gr_error(), '\n'));
    }
}

Test(driver, without_a_device_is_no_fault)
{
    bool broken = true;
    const char *text = why("libcuda_no_device.so", &broken);
    cr_expect_not(broken);
    has(text, "no device");
}

Test(driver, counts_no_device)
{
    bool broken = true;
    const char *text = why("libcuda_zero.so", &broken);
    cr_expect_not(broken);
    has(text, "no device");
}

Test(driver, build_without_kernels)
{
    bool broken = false;
    const char *text = why("libcuda_good.so", &broken);
    cr_expect(broken);
    has(text, "no GPU kernels");
    has(text, "2 devices");
}

Test(driver, opening_says_the_same)
{
    struct gr_device_info info;
    struct gr_backend *b = (void *)1;
    const struct gr_device_opt opt = {0};
    bool broken;
    const char *text = why("libcuda_11_8.so", &broken);
    cr_expect_eq(gr_cuda_devices.open(&b, 0, &opt), GR_E_DEVICE);
    cr_expect_null(b);
    cr_expect_str_eq(gr_error(), text);
    cr_expect_eq(gr_cuda_devices.info(0, &info), GR_E_DEVICE);
    cr_expect_str_eq(gr_error(), text);
}

Test(device, code_that_runs_on_it)
{
    static const struct {
        const char *archs;
        int cc;
        bool runs;
    } cases[] = {
        {"sm_80", 80, true},
        {"sm_80", 86, true},
        {"sm_80", 75, false},
        {"sm_80", 90, false},
        {"sm_86", 80, false},
        {"sm_90a", 90, true},
        {"sm_90a", 91, false},
        {"sm_90a", 100, false},
        {"sm_80 sm_90a", 90, true},
        {"sm_80 sm_90a", 89, true},
        {"sm_80 sm_90a", 120, false},
        {"sm_80 sm_90a compute_80", 120, true},
        {"sm_80 sm_90a compute_80", 75, false},
        {"sm_100", 103, true},
        {"", 90, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(gr_cuda_runs(cases[i].archs, cases[i].cc), cases[i].runs, "\"%s\" on %d",
                     cases[i].archs, cases[i].cc);
}
