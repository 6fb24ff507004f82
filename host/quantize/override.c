#include "quantize/override.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"

#define MATCH_LIMIT 1000000 /* backtracking steps for one name */

struct pattern {
    const char *text; /* owned by the caller */
    pcre2_code *code;
    uint32_t type;
};

int gr_overrides_type(const char *name, size_t n, uint32_t *type)
{
#define KNOWN_0(name)
#define KNOWN_1(name) " " name
#define KNOWN_3(NAME) KNOWN_1(NAME)
#define QUANT(NAME, name, id, n, bytes, codec) KNOWN_##codec(name)
    static const char known[] =
#include "gr/quant.def"
        ;
#undef QUANT
    char word[32];
    snprintf(word, sizeof word, "%.*s", (int)GR_MIN(n, sizeof word - 1), name);
    const struct gr_dtype_info *d = n < sizeof word ? gr_dtype_find_name(word) : NULL;
    const struct gr_quant *q = d ? gr_quant_find(d->id) : NULL;
    if (!q || !q->quantize)
        return gr_fail(GR_E_INVALID, "storage type %s cannot be written, use one of:%s",
                       gr_quote(name, n), known);
    *type = d->id;
    return 0;
}

static int optional(const char *name, uint32_t *type)
{
    *type = UINT32_MAX;
    return name ? gr_overrides_type(name, strlen(name), type) : 0;
}

static int add_pattern(struct gr_overrides *o, const char *text)
{
    const char *eq = strrchr(text, '=');
    int error = 0;
    PCRE2_SIZE at = 0;
    uint32_t type;
    if (!eq || eq == text)
        return gr_fail(GR_E_INVALID, "tensor type %s: expected PATTERN=TYPE",
                       gr_quote(text, strlen(text)));
    int rc = gr_overrides_type(eq + 1, strlen(eq + 1), &type);
    struct pattern *p = rc ? NULL : gr_vec_push(&o->pattern, sizeof *p);
    if (!p)
        return rc ? rc : GR_E_NOMEM_HOST;
    p->text = text, p->type = type;
    p->code = pcre2_compile((PCRE2_SPTR)text, (size_t)(eq - text), 0, &error, &at, NULL);
    if (p->code)
        return 0;
    char why[128] = "";
    (void)pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
    return gr_fail(GR_E_INVALID, "tensor type %s: no regular expression at character %zu: %s",
                   gr_quote(text, strlen(text)), (size_t)at + 1, why);
}

int gr_overrides_init(struct gr_overrides *o, const struct gr_quantize_params *params)
{
    *o = (struct gr_overrides){0};
    int rc = optional(params->output_type, &o->output);
    if (!rc)
        rc = optional(params->embedding_type, &o->embedding);
    for (const char *const *t = params->tensor_types; !rc && t && *t; t++)
        rc = add_pattern(o, *t);
    return rc;
}

void gr_overrides_fini(struct gr_overrides *o)
{
    struct pattern *p = o->pattern.data;
    for (size_t i = 0; i < o->pattern.n; i++)
        pcre2_code_free(p[i].code);
    gr_vec_fini(&o->pattern);
}

static bool occurs(const pcre2_code *code, struct gr_str name)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *ctx = pcre2_match_context_create(NULL);
    int rc = PCRE2_ERROR_NOMEMORY;
    if (data && ctx) {
        pcre2_set_match_limit(ctx, MATCH_LIMIT);
        rc = pcre2_match(code, (PCRE2_SPTR)name.p, name.n, 0, 0, data, ctx);
    }
    pcre2_match_context_free(ctx);
    pcre2_match_data_free(data);
    return rc >= 0;
}

uint32_t gr_overrides_find(const struct gr_overrides *o, struct gr_str name)
{
    const struct pattern *p = o->pattern.data;
    for (size_t i = 0; i < o->pattern.n; i++)
        if (occurs(p[i].code, name))
            return p[i].type;
    return UINT32_MAX;
}

/* Returns the number of tensors whose names match; `converted` (unless NULL) selects tensors. */
static uint64_t count(const struct pattern *p, const struct gr_gguf *g, gr_converted_fn *converted,
                      const struct gr_quantize_params *params)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
        n += (!converted || converted(t, params)) && occurs(p->code, t->name);
    }
    return n;
}

int gr_overrides_check(const struct gr_overrides *o, const struct gr_gguf *g,
                       gr_converted_fn *converted, const struct gr_quantize_params *params)
{
    const struct pattern *p = o->pattern.data;
    for (size_t i = 0; i < o->pattern.n; i++) {
        const char *text = gr_quote(p[i].text, strlen(p[i].text));
        if (!count(&p[i], g, NULL, params))
            return gr_fail(GR_E_INVALID,
                           "tensor type %s: the regular expression occurs in no tensor's name; "
                           "gpurun inspect FILE lists the names",
                           text);
        if (!count(&p[i], g, converted, params))
            gr_log(GR_LOG_WARN,
                   "tensor type %s changes nothing: all tensors of such names stay as they are",
                   text);
    }
    return 0;
}
