/* Calls: arguments, macros, functions in C, and the functions of every template. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/checked.h"
#include "chat/run.h"

/* ---- arguments ---- */

static void add_list(struct gr_render *r, struct gr_args *a, struct gr_val list)
{
    const struct gr_list *items = gr_items(r, list);
    struct gr_val *v = gr_render_alloc(r, a->n + items->n + 1, sizeof *v);
    if (!v)
        return;
    if (a->n)
        memcpy(v, a->v, a->n * sizeof *v);
    if (items->n)
        memcpy(v + a->n, items->v, items->n * sizeof *v);
    a->v = v, a->n += items->n;
}

static void add_keywords(struct gr_render *r, struct gr_args *a, const struct gr_pair *p, size_t n)
{
    struct gr_keyword *kw = gr_render_alloc(r, a->n_kw + n + 1, sizeof *kw);
    if (!kw)
        return;
    if (a->n_kw)
        memcpy(kw, a->kw, a->n_kw * sizeof *kw);
    for (size_t i = 0; i < n; i++) {
        if (!gr_is_str(p[i].key))
            gr_render_fail(r, "keywords must be strings");
        kw[a->n_kw++] = (struct gr_keyword){p[i].key, p[i].value};
    }
    a->kw = kw;
}

static void check_keywords(struct gr_render *r, const struct gr_args *a)
{
    for (size_t i = 0; i < a->n_kw; i++) {
        for (size_t k = 0; k < i && gr_render_step(r, k % 8 == 7); k++) {
            if (gr_equal(r, a->kw[i].name, a->kw[k].name)) {
                gr_render_fail(r, "the argument '%.*s' is given twice",
                               (int)GR_MIN(a->kw[i].name.str->n, 60), a->kw[i].name.str->p);
                return;
            }
        }
    }
}

struct gr_args gr_take_args(struct gr_render *r, const struct gr_instr *in)
{
    struct gr_args a = {0};
    size_t n_kw = (size_t)in->b;
    struct gr_val caller = in->flags & GR_CALL_CALLER ? gr_pop(r) : gr_none();
    struct gr_val dict = in->flags & GR_CALL_DICT ? gr_pop(r) : gr_none();
    struct gr_val list = in->flags & GR_CALL_LIST ? gr_pop(r) : gr_none();
    if (r->rc || r->n_stack < in->n + 2 * n_kw)
        return a;
    r->n_stack -= in->n + 2 * n_kw;
    const struct gr_val *from = r->stack + r->n_stack;
    a.v = gr_render_alloc(r, in->n + 1u, sizeof *a.v);
    a.kw = gr_render_alloc(r, n_kw + 1, sizeof *a.kw);
    if (r->rc)
        return (struct gr_args){0};
    a.n = in->n, a.n_kw = n_kw;
    memcpy(a.v, from, in->n * sizeof *a.v);
    for (size_t i = 0; i < n_kw; i++)
        a.kw[i] = (struct gr_keyword){from[in->n + 2 * i], from[in->n + 2 * i + 1]};
    if (in->flags & GR_CALL_LIST)
        add_list(r, &a, list);
    if (in->flags & GR_CALL_DICT) {
        if (dict.type == GR_VAL_DICT)
            add_keywords(r, &a, dict.dict->v, dict.dict->n);
        else
            gr_render_fail(r, "the argument after ** is no dict");
    }
    if (in->flags & GR_CALL_CALLER)
        add_keywords(r, &a, &(struct gr_pair){gr_str_text(r, "caller"), caller}, 1);
    check_keywords(r, &a);
    return a;
}

/* ---- macros ---- */

static struct gr_val *keyword(const struct gr_args *a, struct gr_name name)
{
    for (size_t i = 0; i < a->n_kw; i++) {
        const struct gr_string *s = a->kw[i].name.str;
        if (s->n == name.n && !memcmp(s->p, name.p, name.n))
            return &a->kw[i].value;
    }
    return NULL;
}

static bool has_default(const struct gr_macro_code *m, uint32_t i)
{
    return m->has_default[i / 8] >> i % 8 & 1;
}

/* Sets the parameters of m in scope s. Returns the number of keywords used. */
static size_t bind(struct gr_render *r, const struct gr_macro_code *m, struct gr_scope *s,
                   const struct gr_args *a)
{
    size_t used = 0;
    for (uint32_t i = 0; i < m->n_params && !r->rc; i++) {
        struct gr_name name = r->prog->names[m->params[i]];
        const struct gr_val *kw = keyword(a, name);
        used += kw != NULL;
        if (i < a->n && kw)
            gr_render_fail(r, "the argument '%.*s' is given twice", (int)GR_MIN(name.n, 60),
                           name.p);
        else if (i < a->n || kw)
            gr_scope_set(r, s, m->params[i], kw ? *kw : a->v[i]);
        else if (!has_default(m, i))
            gr_scope_set(r, s, m->params[i], gr_undefined_name(r, name.p, name.n));
    }
    return used;
}

/* Sets `caller`, `varargs` and `kwargs` where the macro uses them. */
static size_t bind_rest(struct gr_render *r, const struct gr_macro_code *m, struct gr_scope *s,
                        const struct gr_args *a)
{
    const struct gr_val *caller = keyword(a, (struct gr_name){"caller", 6});
    size_t used = 0;
    if (m->takes_caller && !gr_scope_find(s, r->prog->caller)) {
        gr_scope_set(r, s, r->prog->caller,
                     caller ? *caller : gr_undefined_name(r, "No caller defined", 17));
        used = caller != NULL;
    }
    if (m->takes_varargs) {
        struct gr_list *rest = gr_list_new(r, 0);
        for (size_t i = m->n_params; i < a->n; i++)
            gr_list_push(r, rest, a->v[i]);
        gr_scope_set(r, s, r->prog->varargs, gr_tuple_value(rest));
    }
    if (!m->takes_kwargs)
        return used;
    struct gr_dict *rest = gr_dict_new(r);
    for (size_t i = 0; i < a->n_kw && !r->rc; i++) {
        const struct gr_string *n = a->kw[i].name.str;
        bool known = used && gr_val_is(a->kw[i].name, "caller");
        for (uint32_t k = 0; k < m->n_params && !known; k++) {
            struct gr_name p = r->prog->names[m->params[k]];
            known = p.n == n->n && !memcmp(p.p, n->p, n->n);
        }
        if (!known)
            gr_dict_set(r, rest, a->kw[i].name, a->kw[i].value), used++;
    }
    gr_scope_set(r, s, r->prog->kwargs, gr_dict_value(rest));
    return used;
}

static void call_macro(struct gr_render *r, const struct gr_macro *m, const struct gr_args *a)
{
    struct gr_scope *s = gr_scope_new(r, m->scope);
    size_t depth = 0;
    for (size_t i = 0; i < r->n_frames; i++)
        depth += r->frames[i].call;
    if (depth == GR_RENDER_MAX_DEPTH)
        gr_render_fail(r, "macros call each other deeper than %u", GR_RENDER_MAX_DEPTH);
    if (r->rc)
        return;
    size_t used = bind(r, m->code, s, a);
    used += bind_rest(r, m->code, s, a);
    int n = (int)GR_MIN(m->name.n, 60);
    if (used < a->n_kw)
        gr_render_fail(r, "macro '%.*s' takes no such keyword argument as given", n, m->name.p);
    if (a->n > m->code->n_params && !m->code->takes_varargs)
        gr_render_fail(r, "macro '%.*s' takes not more than %u argument(s)", n, m->name.p,
                       m->code->n_params);
    gr_frame_push(r, m->code->start - 1, s, true);
}

void gr_call(struct gr_render *r, struct gr_val f, const struct gr_args *a)
{
    switch (f.type) {
    case GR_VAL_MACRO:
        call_macro(r, f.macro, a);
        return;
    case GR_VAL_GLOBAL:
        gr_push(r, gr_native_call(r, f.global, gr_none(), a));
        return;
    case GR_VAL_METHOD:
        gr_push(r, gr_native_call(r, f.method->native, f.method->self, a));
        return;
    case GR_VAL_UNDEFINED:
        gr_undefined_fail(r, f);
        return;
    default:
        gr_render_fail(r, "'%s' object is not callable", gr_type_name(f));
    }
}

/* ---- functions of every template ---- */

static struct gr_val call_range(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                const struct gr_args *a)
{
    (void)self;
    struct gr_range x = {.step = 1};
    for (size_t i = 0; i < a->n; i++) {
        if (!gr_is_int(v[i]))
            return gr_render_fail(r, "'%s' object cannot be interpreted as an integer",
                                  gr_type_name(v[i]));
    }
    x.stop = gr_int_of(v[a->n > 1 ? 1 : 0]);
    x.start = a->n > 1 ? gr_int_of(v[0]) : 0;
    x.step = a->n > 2 ? gr_int_of(v[2]) : 1;
    if (!x.step)
        return gr_render_fail(r, "range() arg 3 must not be zero");
    bool up = x.step > 0;
    uint64_t span =
        up ? (uint64_t)x.stop - (uint64_t)x.start : (uint64_t)x.start - (uint64_t)x.stop;
    uint64_t by = up ? (uint64_t)x.step : -(uint64_t)x.step;
    uint64_t n = up == (x.start < x.stop) && x.start != x.stop ? (span - 1) / by + 1 : 0;
    if (n > GR_RANGE_MAX)
        return gr_render_fail(r, "a range of more than %d items", GR_RANGE_MAX);
    x.n = (int64_t)n;
    struct gr_range *range = gr_render_alloc(r, 1, sizeof *range);
    if (!range)
        return gr_none();
    *range = x;
    return (struct gr_val){.type = GR_VAL_RANGE, .range = range};
}

/* dict(x, a=..) and namespace(x, a=..): x is a dict or pairs. */
static struct gr_val call_dict(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                               const struct gr_args *a)
{
    (void)self, (void)v;
    struct gr_dict *d = gr_dict_new(r);
    if (a->n > 1)
        return gr_render_fail(r, "at most one argument without a name is expected");
    if (a->n && a->v[0].type == GR_VAL_DICT) {
        for (size_t i = 0; i < a->v[0].dict->n; i++)
            gr_dict_set(r, d, a->v[0].dict->v[i].key, a->v[0].dict->v[i].value);
    } else if (a->n) {
        const struct gr_list *pairs = gr_items(r, a->v[0]);
        for (size_t i = 0; i < pairs->n && gr_render_ok(r); i++) {
            const struct gr_list *p = gr_items(r, pairs->v[i]);
            if (gr_render_ok(r) && p->n != 2)
                return gr_render_fail(r, "an item of %zu values; a key and a value are expected",
                                      p->n);
            if (gr_render_ok(r))
                gr_dict_set(r, d, p->v[0], p->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_kw; i++)
        gr_dict_set(r, d, a->kw[i].name, a->kw[i].value);
    return gr_dict_value(d);
}

static struct gr_val call_namespace(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                    const struct gr_args *a)
{
    struct gr_val d = call_dict(r, self, v, a);
    d.type = gr_render_ok(r) ? GR_VAL_NAMESPACE : GR_VAL_NONE;
    return d;
}

static struct gr_val call_raise(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                const struct gr_args *a)
{
    (void)self, (void)a;
    struct gr_val text = gr_to_str(r, v[0]);
    if (gr_render_ok(r))
        gr_render_raise(r, text.str->p, text.str->n);
    return gr_none();
}

static struct gr_val call_strftime(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                   const struct gr_args *a)
{
    (void)self, (void)a;
    char format[256], out[4096];
    time_t now = (time_t)gr_render_now(r);
    struct tm tm;
    if (!gr_is_str(v[0]) || v[0].str->n > sizeof format - 2 || memchr(v[0].str->p, 0, v[0].str->n))
        return gr_render_fail(r, "strftime_now takes a text of at most %zu bytes",
                              sizeof format - 2);
    memcpy(format, v[0].str->p, v[0].str->n);
    memcpy(format + v[0].str->n, ".", 2); /* no result is empty, so that 0 is an error */
    if (!localtime_r(&now, &tm))
        return gr_render_fail(r, "the time %lld has no date", (long long)now);
    size_t n = strftime(out, sizeof out, format, &tm);
    if (!n)
        return gr_render_fail(r, "strftime_now makes more than %zu bytes", sizeof out - 2);
    const uint8_t *mark = v[0].str->mark;
    struct gr_text t = {0};
    gr_text_put_as(r, &t, out, n - 1, mark && memchr(mark, 1, v[0].str->n));
    return gr_text_value(r, &t);
}

static const struct gr_native globals[] = {
    {"range", call_range, "/!start stop step"}, {"dict", call_dict, NULL},
    {"namespace", call_namespace, NULL},        {"raise_exception", call_raise, "!message"},
    {"strftime_now", call_strftime, "!format"},
};

struct gr_val gr_global_find(const char *p, size_t n)
{
    for (size_t i = 0; i < GR_COUNT(globals); i++) {
        if (strlen(globals[i].name) == n && !memcmp(globals[i].name, p, n))
            return (struct gr_val){.type = GR_VAL_GLOBAL, .global = &globals[i]};
    }
    return (struct gr_val){.type = GR_VAL_ABSENT};
}
