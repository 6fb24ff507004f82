/* Devices that are asked for and those that there are: none, unusable ones, a name, a number. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"

#define PLENTY (64u << 20)

static int try_params(struct gr_model_params p)
{
    struct gr_model *m;
    int rc = gr_model_open(&m, NULL, &p);
    if (!rc)
        rc = gr_model_load(m, NULL);
    struct gr_model_info info = {0};
    if (!rc)
        gr_model_info(m, &info);
    gr_model_close(&m);
    return rc ? -rc : info.n_gpu_layers;
}

static int try_open(const char *device, int32_t n_gpu, bool require)
{
    struct gr_model_params p = gr_model_params_default();
    p.device = device, p.n_gpu_layers = n_gpu, p.require_gpu = require;
    return try_params(p);
}

static int try_main(const char *device, int32_t main_gpu)
{
    struct gr_model_params p = gr_model_params_default();
    p.device = device, p.main_gpu = main_gpu, p.split_mode = GR_SPLIT_MODE_NONE;
    return try_params(p);
}

Test(device_choice, D2_none_unusable_and_named)
{
    fake_use(0, 0);
    cr_expect_eq(try_open("auto", -1, false), 0);
    cr_expect_eq(try_open("auto", 99, false), 0);
    cr_expect_eq(try_open("auto", -1, true), -GR_E_DEVICE);
    cr_expect_eq(try_open("fake", -1, false), -GR_E_DEVICE);
    cr_expect_eq(try_open("none", -1, true), -GR_E_DEVICE);
    fake_use(2, PLENTY);
    cr_expect_gt(try_open("auto", -1, true), 1);
    cr_expect_eq(try_open("FAKE1", 1, false), 1);
    cr_expect_eq(try_open("FAKE2", 1, false), -GR_E_DEVICE);
    cr_expect_eq(try_open("FAKEx", 1, false), -GR_E_INVALID);
    cr_expect_eq(try_open("gpu", 1, false), -GR_E_INVALID);
    cr_expect_eq(try_open("cpu", 99, false), 0);
    cr_expect_eq(try_open("auto", 0, false), 0);
    fake_break(0, "it is on fire");
    cr_expect_gt(try_open("auto", -1, false), 1, "the other one can be used");
    cr_expect_gt(try_main("auto", -1), 1, "the other one can be used");
    cr_expect_eq(try_main("auto", 0), -GR_E_DEVICE);
    cr_expect(strstr(gr_error(), "it is on fire") && strstr(gr_error(), "FAKE0"), "%s", gr_error());
    cr_expect_eq(try_main("fake", 2), -GR_E_DEVICE);
    fake_break(1, "it is in the water");
    cr_expect_eq(try_open("auto", -1, false), -GR_E_DEVICE);
    cr_expect(strstr(gr_error(), "it is on fire"), "%s", gr_error());
    cr_expect_eq(try_open("auto", 0, false), 0);
    cr_expect_eq(try_open("none", -1, false), 0);
    fake_use(1, 4096);
    cr_expect_eq(try_open("auto", -1, false), 0, "not one layer fits");
    cr_expect_eq(try_open("auto", -1, true), -GR_E_DEVICE);
    cr_expect_eq(try_open("auto", 99, false), -GR_E_NOMEM_DEV);
}
