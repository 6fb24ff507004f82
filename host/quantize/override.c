#include "quantize/override.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "base/regex.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"

struct pattern {
    const char *text; /* owned by the caller */
    struct gr_regex *regex;
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
    char what[160];
    uint32_t type;
    snprintf(what, sizeof what, "tensor type %s", gr_quote(text, strlen(text)));
    if (!eq || eq == text)
        return gr_fail(GR_E_INVALID, "%s: expected PATTERN=TYPE", what);
    int rc = gr_overrides_type(eq + 1, strlen(eq + 1), &type);
    struct pattern *p = rc ? NULL : gr_vec_push(&o->pattern, sizeof *p);
    if (!p)
        return rc ? rc : GR_E_NOMEM_HOST;
    p->text = text, p->type = type;
    return gr_regex_new(&p->regex, text, (size_t)(eq - text), what);
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
        gr_regex_free(&p[i].regex);
    gr_vec_fini(&o->pattern);
}

uint32_t gr_overrides_find(const struct gr_overrides *o, struct gr_str name)
{
    const struct pattern *p = o->pattern.data;
    for (size_t i = 0; i < o->pattern.n; i++)
        if (gr_regex_occurs(p[i].regex, name.p, name.n))
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
        n +=
            (!converted || converted(t, params)) && gr_regex_occurs(p->regex, t->name.p, t->name.n);
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
