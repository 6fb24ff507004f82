/* Session parameters: ranges, and the command that sends them to other ranks. */
#include "ranks/params.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gpurun.h"
#include "session_params.h"

static const struct gr_session_param list[] = GR_SESSION_PARAM_ROWS;

/* Opening a session with parameter q set to `value` is refused, and the message names it. */
static void refused(const struct gr_model *model, const struct gr_session_param *q, double value)
{
    struct gr_session_params p = gr_session_params_default();
    struct gr_session_size size;
    gr_session_param_set(&p, q, value);
    cr_expect_eq(gr_session_size(model, &p, &size), GR_E_INVALID, "%s = %g", q->name, value);
    cr_expect(strstr(gr_error_message(), q->name), "%s = %g: %s", q->name, value,
              gr_error_message());
}

Test(params, values_out_of_range)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_model *model = NULL;
    int n_refused = 0;
    mp.device = "cpu";
    cr_assert_eq(gr_model_open(&model, NULL, &mp), 0);
    for (size_t i = 0; i < GR_COUNT(list); i++) {
        const struct gr_session_param *q = &list[i];
        bool real = q->kind == GR_PARAM_F32 || q->kind == GR_PARAM_SCALES;
        double least = q->kind == GR_PARAM_U32 ? 0 : INT32_MIN;
        double most = q->kind == GR_PARAM_U32 ? UINT32_MAX : INT32_MAX;
        if (q->kind == GR_PARAM_BOOL || q->kind == GR_PARAM_TYPE)
            continue;
        if (real || q->lo > least)
            refused(model, q, real ? -(double)INFINITY : q->lo - 1), n_refused++;
        if (real || q->hi < most)
            refused(model, q, real ? (double)INFINITY : q->hi + 1), n_refused++;
        if (q->kind == GR_PARAM_F32)
            refused(model, q, -0.5), n_refused++;
    }
    cr_expect_geq(n_refused, 33);
    gr_model_close(&model);
}

/* A value that the parameter can have, not its default but by chance. */
static double random_value(const struct gr_session_param *q, struct gr_rng *rng)
{
    if (q->kind == GR_PARAM_BOOL || q->kind == GR_PARAM_ENUM)
        return gr_rng_below(rng, (uint32_t)q->hi + 1);
    if (q->kind == GR_PARAM_F32 || q->kind == GR_PARAM_SCALES)
        return gr_rng_below(rng, 4) ? (double)(float)gr_rng_double(rng) : (double)NAN;
    return q->lo + gr_rng_below(rng, (uint32_t)GR_MIN(q->hi - q->lo, UINT32_MAX - 1.0));
}

Test(params, command_and_back)
{
    static const char *const types[] = {NULL, "f32", "q8_0"};
    struct gr_rng rng = gr_rng_new(1);
    for (int trial = 0; trial < 100; trial++) {
        struct gr_session_params p = gr_session_params_default();
        for (size_t i = 0; i < GR_COUNT(list); i++)
            gr_session_param_set(&p, &list[i], random_value(&list[i], &rng));
        p.type_k = types[trial % 3], p.type_v = types[trial / 3 % 3];
        p.adapter_scale[trial % GR_MAX_ADAPTER] = 2;
        struct gr_command_open sent = gr_command_open_of(&p), received;
        struct gr_vec bytes = {0};
        cr_assert_eq(gr_command_write(&bytes, GR_COMMAND_OPEN, &sent), 0);
        cr_assert_eq(gr_command_read(&received, GR_COMMAND_OPEN, bytes.data, bytes.n), 0);
        struct gr_session_params back = gr_command_open_params(&received);
        for (size_t i = 0; i < GR_COUNT(list); i++) {
            int n = 1;
            for (int k = 0; k < n; k++) {
                double a = gr_session_param_get(&p, &list[i], k, &n);
                double b = gr_session_param_get(&back, &list[i], k, &n);
                cr_expect(a == b || (isnan(a) && isnan(b)), "%s: %g, %g", list[i].name, a, b);
            }
        }
        const char *a[] = {p.type_k, p.type_v}, *b[] = {back.type_k, back.type_v};
        for (int k = 0; k < 2; k++)
            cr_expect(a[k] ? b[k] && !strcmp(a[k], b[k]) : !b[k]);
        gr_vec_fini(&bytes);
    }
}
