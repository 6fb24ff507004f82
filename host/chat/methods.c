/* Methods of dicts, lists and loops; the table of all methods. */
#include "chat/methods.h"

#include <string.h>

#include "base/checked.h"

enum { STR, DICT, LIST, LOOP };
static const struct {
    int type;
    struct gr_native native;
} methods[] = {
#define METHOD(type, name, fn, params) {type, {#name, gr_method_##fn, params}},
#include "chat/methods.def"
#undef METHOD
};

static int kind_of(struct gr_val v)
{
    return gr_is_str(v)            ? STR
           : v.type == GR_VAL_DICT ? DICT
           : gr_is_sequence(v)     ? LIST
           : v.type == GR_VAL_LOOP ? LOOP
                                   : -1;
}

struct gr_val gr_method_find(struct gr_render *r, struct gr_val v, const char *p, size_t n)
{
    struct gr_val none = {.type = GR_VAL_ABSENT};
    int kind = kind_of(v);
    for (size_t i = 0; i < GR_COUNT(methods); i++) {
        const char *name = methods[i].native.name;
        if (methods[i].type != kind || strlen(name) != n || memcmp(name, p, n) != 0)
            continue;
        if (v.type == GR_VAL_TUPLE && strcmp(name, "count") != 0 && strcmp(name, "index") != 0)
            return none;
        struct gr_method *m = gr_render_alloc(r, 1, sizeof *m);
        if (!m)
            return none;
        *m = (struct gr_method){&methods[i].native, v};
        return (struct gr_val){.type = GR_VAL_METHOD, .method = m};
    }
    return none;
}

/* ---- dicts ---- */

static struct gr_val view(struct gr_render *r, struct gr_val self, enum gr_view_kind kind)
{
    struct gr_view *x = gr_render_alloc(r, 1, sizeof *x);
    if (!x)
        return gr_none();
    *x = (struct gr_view){kind, self.dict};
    return (struct gr_val){.type = GR_VAL_VIEW, .view = x};
}

struct gr_val gr_method_dict_keys(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                  const struct gr_args *a)
{
    (void)v, (void)a;
    return view(r, self, GR_VIEW_KEYS);
}

struct gr_val gr_method_dict_values(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                    const struct gr_args *a)
{
    (void)v, (void)a;
    return view(r, self, GR_VIEW_VALUES);
}

struct gr_val gr_method_dict_items(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                   const struct gr_args *a)
{
    (void)v, (void)a;
    return view(r, self, GR_VIEW_ITEMS);
}

struct gr_val gr_method_dict_get(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                 const struct gr_args *a)
{
    (void)a;
    const struct gr_pair *p = gr_dict_find(r, self.dict, v[0]);
    return p ? p->value : gr_is_given(v[1]) ? v[1] : gr_none();
}

struct gr_val gr_method_dict_copy(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                  const struct gr_args *a)
{
    (void)v, (void)a;
    struct gr_dict *d = gr_dict_new(r);
    for (size_t i = 0; i < self.dict->n && gr_render_ok(r); i++)
        gr_dict_set(r, d, self.dict->v[i].key, self.dict->v[i].value);
    return gr_dict_value(d);
}

struct gr_val gr_method_dict_pop(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                 const struct gr_args *a)
{
    (void)a;
    struct gr_pair *p = gr_dict_find(r, self.dict, v[0]);
    if (!p && !gr_is_given(v[1]))
        return gr_render_fail(r, "pop: the dict has no such key");
    if (!p)
        return v[1];
    struct gr_val value = p->value;
    size_t at = (size_t)(p - self.dict->v);
    gr_render_step(r, (self.dict->n - at) / 16);
    memmove(p, p + 1, (self.dict->n - at - 1) * sizeof *p);
    self.dict->n--;
    return value;
}

struct gr_val gr_method_dict_setdefault(struct gr_render *r, struct gr_val self,
                                        const struct gr_val *v, const struct gr_args *a)
{
    (void)a;
    const struct gr_pair *p = gr_dict_find(r, self.dict, v[0]);
    if (p)
        return p->value;
    struct gr_val value = gr_is_given(v[1]) ? v[1] : gr_none();
    gr_dict_set(r, self.dict, v[0], value);
    return value;
}

struct gr_val gr_method_dict_update(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                    const struct gr_args *a)
{
    (void)v;
    if (a->n > 1 || (a->n && a->v[0].type != GR_VAL_DICT))
        return gr_render_fail(r, "update takes a dict");
    for (size_t i = 0; a->n && i < a->v[0].dict->n && gr_render_ok(r); i++)
        gr_dict_set(r, self.dict, a->v[0].dict->v[i].key, a->v[0].dict->v[i].value);
    for (size_t i = 0; i < a->n_kw; i++)
        gr_dict_set(r, self.dict, a->kw[i].name, a->kw[i].value);
    return gr_none();
}

/* ---- lists ---- */

struct gr_val gr_method_list_append(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                    const struct gr_args *a)
{
    (void)a;
    gr_list_push(r, self.list, v[0]);
    return gr_none();
}

struct gr_val gr_method_list_extend(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                    const struct gr_args *a)
{
    (void)a;
    const struct gr_list *items = gr_items(r, v[0]);
    size_t n = items->n; /* it may be the list itself */
    for (size_t i = 0; i < n && gr_render_step(r, i % 16 == 15); i++)
        gr_list_push(r, self.list, items->v[i]);
    return gr_none();
}

struct gr_val gr_method_list_copy(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                  const struct gr_args *a)
{
    (void)v, (void)a;
    return gr_slice(r, self, gr_none(), gr_none(), gr_none());
}

struct gr_val gr_method_list_count(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                   const struct gr_args *a)
{
    (void)a;
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n && gr_render_step(r, 1); i++)
        n += gr_equal(r, self.list->v[i], v[0]);
    return gr_int(n);
}

struct gr_val gr_method_list_index(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                   const struct gr_args *a)
{
    (void)a;
    int64_t n = (int64_t)self.list->n, lo, hi;
    if (!gr_int_arg(r, v[1], 0, &lo) || !gr_int_arg(r, v[2], n, &hi))
        return gr_none();
    lo = lo < 0 ? GR_MAX(lo + n, 0) : lo;
    hi = hi < 0 ? hi + n : GR_MIN(hi, n);
    for (int64_t i = lo; i < hi && gr_render_step(r, 1); i++) {
        if (gr_equal(r, self.list->v[i], v[0]))
            return gr_int(i);
    }
    return gr_render_fail(r, "index: the value is not in the list");
}

struct gr_val gr_method_list_insert(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                    const struct gr_args *a)
{
    (void)a;
    int64_t n = (int64_t)self.list->n, i;
    if (!gr_int_arg(r, v[0], 0, &i))
        return gr_none();
    i = i < 0 ? GR_MAX(i + n, 0) : GR_MIN(i, n);
    gr_list_push(r, self.list, v[1]);
    if (!gr_render_step(r, (uint64_t)(n - i) / 16))
        return gr_none();
    memmove(self.list->v + i + 1, self.list->v + i, (size_t)(n - i) * sizeof *self.list->v);
    self.list->v[i] = v[1];
    return gr_none();
}

struct gr_val gr_method_list_pop(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                 const struct gr_args *a)
{
    (void)a;
    int64_t n = (int64_t)self.list->n, i;
    if (!gr_int_arg(r, v[0], -1, &i))
        return gr_none();
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n)
        return gr_render_fail(r, "pop index out of range");
    struct gr_val value = self.list->v[i];
    gr_render_step(r, (uint64_t)(n - i) / 16);
    memmove(self.list->v + i, self.list->v + i + 1, (size_t)(n - i - 1) * sizeof value);
    self.list->n--;
    return value;
}

/* ---- loops ---- */

struct gr_val gr_method_loop_cycle(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                   const struct gr_args *a)
{
    (void)v;
    if (!a->n || a->n_kw)
        return gr_render_fail(r, "no items for cycling given");
    return a->v[(self.loop->at + a->n - 1) % a->n];
}

struct gr_val gr_method_loop_changed(struct gr_render *r, struct gr_val self,
                                     const struct gr_val *v, const struct gr_args *a)
{
    (void)v;
    struct gr_list *now = gr_list_new(r, a->n), *was = self.loop->changed;
    for (size_t i = 0; i < a->n; i++)
        gr_list_push(r, now, a->v[i]);
    self.loop->changed = now;
    return gr_bool(!was || !gr_equal(r, gr_list_value(was), gr_list_value(now)));
}
