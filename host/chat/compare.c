/* Truth, equality, order, membership, length and items of values. Recursion ends at
 * GR_VALUE_MAX_DEPTH. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "chat/value.h"
#include "text/utf8.h"

/* NOLINTBEGIN(misc-no-recursion) */

bool gr_truth(struct gr_render *r, struct gr_val v)
{
    (void)r;
    switch (v.type) {
    case GR_VAL_STR: /* without counting its characters */
        return v.str->n > 0;
    case GR_VAL_ABSENT:
    case GR_VAL_UNDEFINED:
    case GR_VAL_NONE:
        return false;
    case GR_VAL_BOOL:
        return v.b;
    case GR_VAL_INT:
        return v.i != 0;
    case GR_VAL_FLOAT:
        return v.f != 0;
    case GR_VAL_LOOP:
        return v.loop->items->n > 0;
    default: {
        int64_t n = gr_length(v);
        return n != 0;
    }
    }
}

int64_t gr_length(struct gr_val v)
{
    switch (v.type) {
    case GR_VAL_UNDEFINED:
        return 0;
    case GR_VAL_STR:
        return (int64_t)gr_str_length(v.str);
    case GR_VAL_LIST:
    case GR_VAL_TUPLE:
        return (int64_t)v.list->n;
    case GR_VAL_DICT:
        return (int64_t)v.dict->n;
    case GR_VAL_RANGE:
        return v.range->n;
    case GR_VAL_VIEW:
        return (int64_t)v.view->dict->n;
    case GR_VAL_LOOP:
        return (int64_t)v.loop->items->n;
    default:
        return -1;
    }
}

bool gr_is_iterable(struct gr_val v)
{
    return gr_is_str(v) || v.type == GR_VAL_LAZY || gr_length(v) >= 0;
}

/* ---- equality and order ---- */

/* Compares an integer with a float exactly. */
static int order_mixed(int64_t i, double f)
{
    if (isnan(f))
        return GR_UNORDERED;
    if (f >= 9223372036854775808.0)
        return -1;
    if (f < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)f;
    double rest = f - (double)whole;
    return i < whole ? -1 : i > whole ? 1 : rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int order_numbers(struct gr_val a, struct gr_val b)
{
    if (gr_is_int(a) && gr_is_int(b)) {
        int64_t x = gr_int_of(a), y = gr_int_of(b);
        return (x > y) - (x < y);
    }
    if (gr_is_int(a))
        return order_mixed(gr_int_of(a), b.f);
    if (gr_is_int(b)) {
        int c = order_mixed(gr_int_of(b), a.f);
        return c == GR_UNORDERED ? c : -c;
    }
    return isnan(a.f) || isnan(b.f) ? GR_UNORDERED : (a.f > b.f) - (a.f < b.f);
}

static int order_strings(struct gr_render *r, const struct gr_string *a, const struct gr_string *b)
{
    size_t n = GR_MIN(a->n, b->n);
    gr_render_step(r, n / 256);
    int c = n ? memcmp(a->p, b->p, n) : 0; /* bytes of UTF-8 have the order of code points */
    return c ? (c > 0) - (c < 0) : (a->n > b->n) - (a->n < b->n);
}

static bool equal(struct gr_render *r, struct gr_val a, struct gr_val b, unsigned depth);

static bool equal_lists(struct gr_render *r, const struct gr_list *a, const struct gr_list *b,
                        unsigned depth)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        if (!equal(r, a->v[i], b->v[i], depth + 1))
            return false;
    }
    return true;
}

static bool equal_dicts(struct gr_render *r, const struct gr_dict *a, const struct gr_dict *b,
                        unsigned depth)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct gr_pair *p = gr_dict_find(r, b, a->v[i].key);
        if (!p || !equal(r, a->v[i].value, p->value, depth + 1))
            return false;
    }
    return true;
}

static bool equal_ranges(const struct gr_range *a, const struct gr_range *b)
{
    return a->n == b->n && (!a->n || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

/* Views: keys and items are equal as sets, values only to themselves. */
static bool equal_views(struct gr_render *r, const struct gr_view *a, const struct gr_view *b,
                        unsigned depth)
{
    if (a->kind != b->kind || a->kind == GR_VIEW_VALUES)
        return a == b;
    if (a->kind == GR_VIEW_ITEMS)
        return equal_dicts(r, a->dict, b->dict, depth);
    bool all = a->dict->n == b->dict->n;
    for (size_t i = 0; i < a->dict->n && all; i++)
        all = gr_dict_find(r, b->dict, a->dict->v[i].key);
    return all;
}

static bool equal(struct gr_render *r, struct gr_val a, struct gr_val b, unsigned depth)
{
    if (!gr_render_step(r, depth > 0))
        return false;
    if (depth > GR_VALUE_MAX_DEPTH)
        return gr_render_fail(r, "values are nested deeper than %u", GR_VALUE_MAX_DEPTH), false;
    if (gr_is_number(a) && gr_is_number(b))
        return order_numbers(a, b) == 0;
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case GR_VAL_STR:
        return a.str->n == b.str->n && !order_strings(r, a.str, b.str);
    case GR_VAL_LIST:
    case GR_VAL_TUPLE:
        return a.list == b.list || equal_lists(r, a.list, b.list, depth);
    case GR_VAL_DICT:
        return a.dict == b.dict || equal_dicts(r, a.dict, b.dict, depth);
    case GR_VAL_NAMESPACE:
        return a.dict == b.dict;
    case GR_VAL_RANGE:
        return equal_ranges(a.range, b.range);
    case GR_VAL_VIEW:
        return equal_views(r, a.view, b.view, depth);
    case GR_VAL_METHOD:
        return a.method->native == b.method->native &&
               equal(r, a.method->self, b.method->self, depth + 1);
    case GR_VAL_LAZY:
    case GR_VAL_MACRO:
    case GR_VAL_GLOBAL:
    case GR_VAL_LOOP:
        return a.lazy == b.lazy; /* the same object */
    default:
        return true; /* None, undefined */
    }
}

bool gr_equal(struct gr_render *r, struct gr_val a, struct gr_val b)
{
    return equal(r, a, b, 0);
}

static int order(struct gr_render *r, struct gr_val a, struct gr_val b, const char *op,
                 unsigned depth)
{
    gr_render_step(r, depth > 0);
    if (a.type == GR_VAL_UNDEFINED || b.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, a.type == GR_VAL_UNDEFINED ? a : b), 0;
    if (gr_is_number(a) && gr_is_number(b))
        return order_numbers(a, b);
    if (gr_is_str(a) && gr_is_str(b))
        return order_strings(r, a.str, b.str);
    if (!gr_is_sequence(a) || a.type != b.type || depth > GR_VALUE_MAX_DEPTH) {
        gr_render_fail(r, "'%s' not supported between instances of '%s' and '%s'", op,
                       gr_type_name(a), gr_type_name(b));
        return 0;
    }
    size_t n = GR_MIN(a.list->n, b.list->n);
    for (size_t i = 0; i < n && gr_render_ok(r); i++) {
        if (!equal(r, a.list->v[i], b.list->v[i], depth + 1))
            return order(r, a.list->v[i], b.list->v[i], op, depth + 1);
    }
    return (a.list->n > b.list->n) - (a.list->n < b.list->n);
}

int gr_order(struct gr_render *r, struct gr_val a, struct gr_val b, const char *op)
{
    return order(r, a, b, op, 0);
}

/* ---- keys of dicts ---- */

/* Returns whether a value can be a key; an error otherwise. */
static bool hashable(struct gr_render *r, struct gr_val v)
{
    struct gr_val all[GR_VALUE_MAX_DEPTH];
    size_t n = 0;
    all[n++] = v;
    while (n && gr_render_step(r, 1)) {
        v = all[--n];
        if (v.type == GR_VAL_LIST || v.type == GR_VAL_DICT)
            return gr_render_fail(r, "unhashable type: '%s'", gr_type_name(v)), false;
        if (v.type != GR_VAL_TUPLE)
            continue;
        if (v.list->n > GR_VALUE_MAX_DEPTH - n)
            return gr_render_fail(r, "a key of too many items"), false;
        for (size_t i = 0; i < v.list->n; i++)
            all[n++] = v.list->v[v.list->n - 1 - i];
    }
    return true;
}

struct gr_pair *gr_dict_find(struct gr_render *r, const struct gr_dict *d, struct gr_val key)
{
    if (key.type == GR_VAL_STR)
        return gr_dict_find_text(r, d, key.str->p, key.str->n);
    if (!hashable(r, key))
        return NULL;
    for (size_t i = 0; i < d->n && gr_render_step(r, i % 8 == 7); i++) {
        if (gr_equal(r, d->v[i].key, key))
            return &d->v[i];
    }
    return NULL;
}

struct gr_pair *gr_dict_find_text(struct gr_render *r, const struct gr_dict *d, const char *p,
                                  size_t n)
{
    for (size_t i = 0; i < d->n && gr_render_step(r, i % 64 == 63); i++) {
        struct gr_val k = d->v[i].key;
        if (k.type == GR_VAL_STR && k.str->n == n && gr_render_step(r, n / 256) &&
            !memcmp(k.str->p, p, n))
            return &d->v[i];
    }
    return NULL;
}

void gr_dict_set(struct gr_render *r, struct gr_dict *d, struct gr_val key, struct gr_val value)
{
    struct gr_pair *had = gr_dict_find(r, d, key);
    if (!gr_render_ok(r))
        return;
    if (had) {
        had->value = value;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = GR_MAX(2 * d->cap, 8);
        struct gr_pair *grown = gr_render_alloc(r, cap, sizeof *grown);
        if (!grown)
            return;
        if (d->n)
            memcpy(grown, d->v, d->n * sizeof *grown);
        d->v = grown, d->cap = cap;
    }
    d->v[d->n++] = (struct gr_pair){key, value};
}

/* ---- membership and items ---- */

static bool range_has(struct gr_render *r, const struct gr_range *range, struct gr_val item)
{
    if (item.type == GR_VAL_FLOAT && item.f == floor(item.f) && fabs(item.f) < 9e15)
        item = gr_int((int64_t)item.f);
    if (!gr_is_int(item) || !gr_render_ok(r))
        return false;
    int64_t d = gr_int_of(item), at;
    if (!gr_mul(&at, range->step, range->n) || __builtin_sub_overflow(d, range->start, &d))
        return false;
    return d % range->step == 0 && d / range->step >= 0 && d / range->step < range->n;
}

bool gr_contains(struct gr_render *r, struct gr_val container, struct gr_val item)
{
    if (gr_is_str(container)) {
        if (!gr_is_str(item))
            return gr_render_fail(r, "'in <string>' requires string as left operand, not %s",
                                  gr_type_name(item)),
                   false;
        return gr_str_find(r, container.str, item.str, 0) >= 0;
    }
    bool keys = container.type == GR_VAL_VIEW && container.view->kind == GR_VIEW_KEYS;
    if (container.type == GR_VAL_DICT || keys)
        return gr_dict_find(r, keys ? container.view->dict : container.dict, item);
    if (container.type == GR_VAL_RANGE)
        return range_has(r, container.range, item);
    if (!gr_is_iterable(container))
        return gr_render_fail(r, "argument of type '%s' is not iterable", gr_type_name(container)),
               false;
    const struct gr_list *l = gr_items(r, container);
    for (size_t i = 0; i < l->n && gr_render_step(r, 1); i++) {
        if (equal(r, l->v[i], item, 1))
            return true;
    }
    return false;
}

static struct gr_list *characters(struct gr_render *r, const struct gr_string *s)
{
    struct gr_list *l = gr_list_new(r, 0);
    for (size_t i = 0, k; i < s->n && gr_render_step(r, 1); i += k) {
        k = gr_utf8_step(s->p + i, s->n - i);
        gr_list_push(r, l, gr_str_view(r, s->p + i, k, s->mark ? s->mark + i : NULL));
    }
    return l;
}

static struct gr_list *entries(struct gr_render *r, const struct gr_dict *d, enum gr_view_kind kind)
{
    struct gr_list *l = gr_list_new(r, d->n);
    for (size_t i = 0; i < d->n && gr_render_ok(r); i++)
        gr_list_push(r, l,
                     kind == GR_VIEW_KEYS     ? d->v[i].key
                     : kind == GR_VIEW_VALUES ? d->v[i].value
                                              : gr_pair_value(r, d->v[i].key, d->v[i].value));
    return l;
}

const struct gr_list *gr_lazy_items(struct gr_render *r, struct gr_lazy *z)
{
    if (z->items)
        return z->items;
    if (!gr_render_enter(r))
        return gr_list_new(r, 0);
    z->items = z->make(r, z);
    gr_render_leave(r);
    return z->items;
}

/* What is left of an iterator, which is consumed. */
static struct gr_list *drain(struct gr_render *r, struct gr_lazy *z)
{
    const struct gr_list *all = gr_lazy_items(r, z);
    struct gr_list *rest = gr_list_new(r, all->n > z->at ? all->n - z->at : 0);
    for (; z->at < all->n && gr_render_ok(r); z->at++)
        gr_list_push(r, rest, all->v[z->at]);
    return rest;
}

struct gr_list *gr_items(struct gr_render *r, struct gr_val v)
{
    switch (v.type) {
    case GR_VAL_STR:
        return characters(r, v.str);
    case GR_VAL_LIST:
    case GR_VAL_TUPLE:
        return v.list;
    case GR_VAL_DICT:
        return entries(r, v.dict, GR_VIEW_KEYS);
    case GR_VAL_VIEW:
        return entries(r, v.view->dict, v.view->kind);
    case GR_VAL_LAZY:
        return drain(r, v.lazy);
    case GR_VAL_RANGE: {
        struct gr_list *l = gr_list_new(r, (size_t)v.range->n);
        for (int64_t i = 0; i < v.range->n && gr_render_ok(r); i++)
            gr_list_push(r, l, gr_int(v.range->start + i * v.range->step));
        return l;
    }
    case GR_VAL_UNDEFINED:
        break;
    default:
        gr_render_fail(r, "'%s' object is not iterable", gr_type_name(v));
    }
    return gr_list_new(r, 0);
}

struct gr_val gr_lazy_new(struct gr_render *r, struct gr_lazy lazy)
{
    struct gr_lazy *z = gr_render_alloc(r, 1, sizeof *z);
    if (!z)
        return gr_none();
    *z = lazy;
    return (struct gr_val){.type = GR_VAL_LAZY, .lazy = z};
}

struct gr_val gr_iterator(struct gr_render *r, struct gr_list *items, const char *what)
{
    return gr_lazy_new(r, (struct gr_lazy){.items = items, .what = what});
}

/* NOLINTEND(misc-no-recursion) */
