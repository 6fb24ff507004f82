#include "device.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "cuda/runtime.h"
#include "emu/session/emulator.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/cases.h"

static struct {
    const char *name;
    char why[1024];
    struct gr_backend *held; /* keeps the context */
} now;

static bool emulated(void)
{
    return strcmp(gr_cuda_devices.name, "CUDA") != 0;
}

static void need_device(void)
{
    const char *why;
    bool broken;
    int n = gr_cuda_devices.count(&why, &broken);
    cr_assert(n > 0 || !emulated(), "%s", why);
    if (n == 0)
        cr_skip_test("%s", why);
}

bool device_begin(const char *fmt, ...)
{
    char group[CASES_NAME_BYTES], label[CASES_NAME_BYTES];
    va_list ap;
    need_device();
    va_start(ap, fmt);
    vsnprintf(label, sizeof label, fmt, ap);
    va_end(ap);
    snprintf(group, sizeof group, "%s/%s", criterion_current_test->category,
             criterion_current_test->name);
    now.why[0] = '\0';
    now.name = cases_begin(group, label);
    if (!now.name || now.held)
        return now.name != NULL;
    gr_cuda_load_slot = 1 << 20; /* the models are small, and there are hundreds */
    if (gr_cuda_devices.open(&now.held, 0, &(struct gr_device_opt){0}) == 0)
        return true;
    device_wrong("%s", gr_error());
    device_end();
    return false;
}

int device_wrong(const char *fmt, ...)
{
    va_list ap;
    if (now.why[0])
        return 1;
    va_start(ap, fmt);
    vsnprintf(now.why, sizeof now.why, fmt, ap);
    va_end(ap);
    return 1;
}

void device_end(void)
{
    const size_t n = strlen(now.why);
    const bool lost = n && (!now.held || now.held->api->sync(now.held) != 0);
    if (lost)
        snprintf(now.why + n, sizeof now.why - n, " (the device is lost)");
    cases_end(now.name, n ? now.why : NULL);
    cr_expect(n == 0, "%s: %s", now.name, now.why);
    if (lost)
        cr_assert_fail("the device is lost: the cases behind this one have not been run");
}

void device_release(void)
{
    int64_t (*count)(const char *symbol);
    if (!now.held)
        return;
    now.held->api->close(&now.held);
    if (!emulated())
        return;
    *(void **)(void *)&count = emu_symbol("emu_driver_count");
    int64_t n = count("cuDevicePrimaryCtxRetain");
    cr_expect(n == 1, "%lld contexts were made", (long long)n);
}

void device_names(int32_t n, char *names, size_t size)
{
    *names = 0;
    for (int32_t i = 0; i < GR_MAX(n, 1); i++)
        snprintf(names + strlen(names), size - strlen(names), "%s%s0", i ? "," : "",
                 gr_cuda_devices.name);
}

int device_session(struct gr_session **s, struct gr_model *m, const struct gr_session_params *p)
{
    if (gr_session_open(s, m, p))
        return device_wrong("%s", gr_error());
    if (tiny_try_encode(*s) == 0)
        return 0;
    device_wrong("%s", gr_error());
    gr_session_close(s);
    return 1;
}
