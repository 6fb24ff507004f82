/* Calls of functions in C: their arguments. */
#include <string.h>

#include "base/checked.h"
#include "chat/value.h"

/* Index of a parameter in a list of names, -1: it has none of that name. */
static int param_index(const char *params, const struct gr_string *name)
{
    int i = 0;
    for (const char *p = params; *p; i++) {
        p += *p == '!';
        size_t n = strcspn(p, " ");
        if (n == name->n && !memcmp(p, name->p, n))
            return i;
        p += n + (p[n] == ' ');
    }
    return -1;
}

/* Checks that required parameters were given; *n receives the number of all. */
static void check_params(struct gr_render *r, const struct gr_native *f, const char *params,
                         const struct gr_val *v, size_t *n)
{
    *n = 0;
    for (const char *p = params; *p; ++*n) {
        bool required = *p == '!';
        p += required;
        size_t len = strcspn(p, " ");
        if (required && v && !gr_is_given(v[*n]))
            gr_render_fail(r, "%s: the argument '%.*s' is missing", f->name, (int)len, p);
        p += len + (p[len] == ' ');
    }
}

struct gr_val gr_native_call(struct gr_render *r, const struct gr_native *f, struct gr_val self,
                             const struct gr_args *a)
{
    struct gr_val v[GR_MAX_PARAMS] = {{.type = GR_VAL_ABSENT}};
    if (!f->params)
        return f->fn(r, self, v, a);
    bool named = *f->params != '/';
    const char *params = f->params + !named;
    size_t n;
    check_params(r, f, params, NULL, &n);
    if (a->n > n)
        return gr_render_fail(r, "%s: %zu arguments, at most %zu are expected", f->name, a->n, n);
    if (a->n)
        memcpy(v, a->v, a->n * sizeof *v);
    for (size_t i = 0; i < a->n_kw && gr_render_ok(r); i++) {
        const struct gr_string *name = a->kw[i].name.str;
        int at = named ? param_index(params, name) : -1;
        if (at < 0 || gr_is_given(v[at]))
            gr_render_fail(r, "%s: the argument '%.*s' is %s", f->name, (int)GR_MIN(name->n, 60),
                           name->p, at < 0 ? "unknown" : "given twice");
        else
            v[at] = a->kw[i].value;
    }
    check_params(r, f, params, v, &n);
    return gr_render_ok(r) ? f->fn(r, self, v, a) : gr_none();
}

bool gr_int_arg(struct gr_render *r, struct gr_val v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (!gr_is_given(v) || v.type == GR_VAL_NONE)
        return true;
    if (!gr_is_int(v)) {
        gr_render_fail(r, "'%s' object cannot be interpreted as an integer", gr_type_name(v));
        return false;
    }
    *out = gr_int_of(v);
    return true;
}
