/* Sampling parameters that a model's file recommends. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "gr/status.h"
#include "model/model.h"
#include "sample/params.h"

#define PREFIX "general.sampling."

static const struct {
    const char *key;
    bool is_integer;
    size_t offset;
} numbers[] = {
    {PREFIX "temp", false, offsetof(struct gr_sampler_params, temp)},
    {PREFIX "top_k", true, offsetof(struct gr_sampler_params, top_k)},
    {PREFIX "top_p", false, offsetof(struct gr_sampler_params, top_p)},
    {PREFIX "min_p", false, offsetof(struct gr_sampler_params, min_p)},
    {PREFIX "xtc_probability", false, offsetof(struct gr_sampler_params, xtc_probability)},
    {PREFIX "xtc_threshold", false, offsetof(struct gr_sampler_params, xtc_threshold)},
    {PREFIX "penalty_last_n", true, offsetof(struct gr_sampler_params, penalty_last_n)},
    {PREFIX "penalty_repeat", false, offsetof(struct gr_sampler_params, penalty_repeat)},
    {PREFIX "mirostat", true, offsetof(struct gr_sampler_params, mirostat)},
    {PREFIX "mirostat_tau", false, offsetof(struct gr_sampler_params, mirostat_tau)},
    {PREFIX "mirostat_eta", false, offsetof(struct gr_sampler_params, mirostat_eta)},
};

/* Reads a scalar of any type of number. */
static bool read_number(const struct gr_gguf_kv *kv, double *x)
{
    int64_t i;
    if (kv->type == GR_GGUF_ARRAY || kv->n != 1)
        return false;
    if (gr_gguf_item_f64(kv, 0, x))
        return true;
    bool is_integer = gr_gguf_item_i64(kv, 0, &i);
    if (is_integer)
        *x = (double)i;
    return is_integer;
}

/* Takes the changed parameters when they are valid. */
static bool take(struct gr_sampler_params *p, const struct gr_sampler_params *changed,
                 const char *key)
{
    struct gr_sampler_params check = *changed;
    check.n_logit_bias = 0, check.n_vocab = GR_MAX(check.n_vocab, 1);
    if (gr_sampler_check(&check)) {
        gr_log(GR_LOG_WARN, "%s of the model's file is ignored: %s", key, gr_error());
        return false;
    }
    *p = *changed;
    return true;
}

static bool set_number(struct gr_sampler_params *p, const struct gr_gguf_kv *kv, size_t i)
{
    struct gr_sampler_params changed = *p;
    char *field = (char *)&changed + numbers[i].offset;
    double x;
    if (!read_number(kv, &x) || !(fabs(x) <= INT32_MAX) ||
        (numbers[i].is_integer && x != floor(x))) {
        gr_log(GR_LOG_WARN, "%s of the model's file is ignored: a %snumber is expected",
               numbers[i].key, numbers[i].is_integer ? "whole " : "");
        return false;
    }
    if (numbers[i].is_integer)
        *(int32_t *)(void *)field = (int32_t)x;
    else
        *(float *)(void *)field = (float)x;
    return take(p, &changed, numbers[i].key);
}

static bool set_order(struct gr_sampler_params *p, const struct gr_gguf *g)
{
    static const char key[] = PREFIX "sequence";
    struct gr_sampler_params changed = *p;
    struct gr_str text;
    char names[512];
    int rc = gr_gguf_str(g, key, &text);
    if (!rc && text.n >= sizeof names)
        rc = gr_fail(GR_E_INVALID, "%zu bytes, at most %zu are expected", text.n, sizeof names - 1);
    if (!rc) {
        memcpy(names, text.p, text.n), names[text.n] = 0;
        rc = gr_sampler_letters(names, changed.samplers);
    }
    if (!rc)
        return take(p, &changed, key);
    gr_log(GR_LOG_WARN, "%s of the model's file is ignored: %s", key, gr_error());
    return false;
}

int32_t gr_model_sampling(const struct gr_model *model, struct gr_sampler_params *params)
{
    int32_t n = 0;
    if (!model->gguf)
        return 0;
    for (size_t i = 0; i < GR_COUNT(numbers); i++) {
        const struct gr_gguf_kv *kv = gr_gguf_find(model->gguf, numbers[i].key);
        n += kv && set_number(params, kv, i);
    }
    return n + (gr_gguf_find(model->gguf, PREFIX "sequence") && set_order(params, model->gguf));
}
