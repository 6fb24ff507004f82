/* Filters of sequences and dicts. Recursion (a filter that applies filters) ends with its
 * arguments. */
#include <ctype.h>
#include <string.h>

#include "base/checked.h"
#include "chat/filters.h"

static bool flag(struct gr_render *r, struct gr_val v)
{
    return gr_is_given(v) && gr_truth(r, v);
}

struct gr_val gr_fold_case(struct gr_render *r, struct gr_val v, struct gr_val case_sensitive)
{
    return gr_is_str(v) && !flag(r, case_sensitive) ? gr_str_case(r, v, GR_LOWER) : v;
}

/* One step of a path: the item or attribute `part`, a number where it consists of digits. */
static struct gr_val path_step(struct gr_render *r, struct gr_val v, const struct gr_string *part)
{
    int64_t i = 0;
    bool number = part->n > 0 && part->n < 18;
    for (size_t k = 0; k < part->n && number; k++) {
        number = isdigit((unsigned char)part->p[k]);
        i = i * 10 + (part->p[k] - '0');
    }
    struct gr_val key = {.type = GR_VAL_STR, .str = part};
    return gr_item(r, v, number ? gr_int(i) : key);
}

struct gr_val gr_path(struct gr_render *r, struct gr_val v, struct gr_val path)
{
    if (!gr_is_given(path) || path.type == GR_VAL_NONE)
        return v;
    if (!gr_is_str(path))
        return gr_item(r, v, path);
    const struct gr_string *s = path.str;
    for (size_t lo = 0, hi; lo <= s->n && gr_render_step(r, 1); lo = hi + 1) {
        for (hi = lo; hi < s->n && s->p[hi] != '.';)
            hi++;
        struct gr_val part = gr_str_part(r, s, lo, hi);
        if (gr_render_ok(r))
            v = path_step(r, v, part.str);
    }
    return v;
}

/* ---- length, ends, lists ---- */

GR_FILTER(filter_length)
{
    (void)v, (void)a;
    int64_t n = gr_length(self);
    if (gr_is_str(self))
        gr_render_step(r, self.str->n / 256);
    return n < 0 ? gr_render_fail(r, "object of type '%s' has no len()", gr_type_name(self))
                 : gr_int(n);
}

GR_FILTER(filter_default)
{
    (void)a;
    bool replaced = self.type == GR_VAL_UNDEFINED || (flag(r, v[1]) && !gr_truth(r, self));
    return !replaced ? self : gr_is_given(v[0]) ? v[0] : gr_str_view(r, "", 0, NULL);
}

GR_FILTER(filter_list)
{
    (void)v, (void)a;
    const struct gr_list *items = gr_items(r, self);
    struct gr_list *l = gr_list_new(r, items->n);
    for (size_t i = 0; i < items->n && gr_render_step(r, i % 16 == 15); i++)
        gr_list_push(r, l, items->v[i]);
    return gr_list_value(l);
}

GR_FILTER(filter_first)
{
    (void)v, (void)a;
    struct gr_val none = gr_undefined_name(r, "the first item of an empty sequence", 35);
    if (self.type == GR_VAL_LAZY) { /* one item is taken, the others stay */
        struct gr_lazy *z = self.lazy;
        const struct gr_list *all = gr_lazy_items(r, z);
        return z->at < all->n ? all->v[z->at++] : none;
    }
    const struct gr_list *items = gr_items(r, self);
    return items->n ? items->v[0] : none;
}

GR_FILTER(filter_last)
{
    (void)v, (void)a;
    if (self.type == GR_VAL_LAZY)
        return gr_render_fail(r, "'%s' object is not reversible", gr_type_name(self));
    const struct gr_list *items = gr_items(r, self);
    return items->n ? items->v[items->n - 1]
                    : gr_undefined_name(r, "the last item of an empty sequence", 34);
}

GR_FILTER(filter_reverse)
{
    (void)v, (void)a;
    if (gr_is_str(self))
        return gr_slice(r, self, gr_none(), gr_none(), gr_int(-1));
    const struct gr_list *items = gr_items(r, self);
    struct gr_list *l = gr_list_new(r, items->n);
    for (size_t i = items->n; i-- > 0 && gr_render_step(r, i % 16 == 15);)
        gr_list_push(r, l, items->v[i]);
    if (self.type == GR_VAL_LAZY)
        return gr_list_value(l);
    return gr_iterator(r, l, self.type == GR_VAL_LIST ? "list_reverseiterator" : "reversed");
}

GR_FILTER(filter_join)
{
    (void)a;
    const struct gr_list *items = gr_items(r, self);
    struct gr_val between = gr_is_given(v[0]) ? gr_to_str(r, v[0]) : gr_str_view(r, "", 0, NULL);
    if (gr_is_given(v[1]) && v[1].type != GR_VAL_NONE) {
        struct gr_list *parts = gr_list_new(r, items->n);
        for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++)
            gr_list_push(r, parts, gr_path(r, items->v[i], v[1]));
        items = parts;
    }
    return gr_render_ok(r) ? gr_str_join(r, between, items) : gr_none();
}

GR_FILTER(filter_sum)
{
    (void)a;
    const struct gr_list *items = gr_items(r, self);
    struct gr_val sum = gr_is_given(v[1]) ? v[1] : gr_int(0);
    if (gr_is_str(sum))
        return gr_render_fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++)
        sum = gr_operate(r, GR_ADD, sum, gr_path(r, items->v[i], v[0]));
    return sum;
}

GR_FILTER(filter_attr)
{
    (void)a;
    struct gr_val name = gr_to_str(r, v[0]);
    if (!gr_render_ok(r))
        return gr_none();
    if (self.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, self);
    if (self.type == GR_VAL_NAMESPACE || self.type == GR_VAL_LOOP)
        return gr_attribute(r, self, name);
    struct gr_val m = gr_method_find(r, self, name.str->p, name.str->n);
    return gr_is_given(m) ? m : gr_undefined_member(r, self, name);
}

/* ---- order ---- */

/* Sorts items by their keys, stable; both lists are changed. */
static void sort(struct gr_render *r, struct gr_list *keys, struct gr_list *items, bool reverse)
{
    size_t n = items->n;
    struct gr_val *k = keys->v, *v = items->v;
    struct gr_val *k2 = gr_render_alloc(r, n + 1, sizeof *k2);
    struct gr_val *v2 = gr_render_alloc(r, n + 1, sizeof *v2);
    for (size_t width = 1; gr_render_ok(r) && width < n; width *= 2) {
        for (size_t lo = 0; lo < n && gr_render_step(r, width); lo += 2 * width) {
            size_t mid = GR_MIN(lo + width, n), hi = GR_MIN(lo + 2 * width, n), i = lo, j = mid;
            for (size_t to = lo; to < hi; to++) {
                int c = i < mid && j < hi ? gr_order(r, k[j], k[i], "<") : 0;
                bool right = i >= mid || (j < hi && (reverse ? c == 1 : c == -1));
                size_t from = right ? j++ : i++;
                k2[to] = k[from], v2[to] = v[from];
            }
        }
        struct gr_val *t = k;
        k = k2, k2 = t, t = v, v = v2, v2 = t;
    }
    keys->v = k, items->v = v;
}

static struct gr_list *copy_of(struct gr_render *r, const struct gr_list *l)
{
    struct gr_list *copy = gr_list_new(r, l->n);
    for (size_t i = 0; i < l->n && gr_render_step(r, i % 16 == 15); i++)
        gr_list_push(r, copy, l->v[i]);
    return copy;
}

/* The key to sort by: a list of the values of all paths, which commas separate. */
static struct gr_val sort_key(struct gr_render *r, struct gr_val item, struct gr_val path,
                              struct gr_val case_sensitive)
{
    struct gr_list *key = gr_list_new(r, 1);
    if (!gr_is_str(path)) {
        gr_list_push(r, key, gr_fold_case(r, gr_path(r, item, path), case_sensitive));
        return gr_list_value(key);
    }
    const struct gr_string *s = path.str;
    for (size_t lo = 0, hi; lo <= s->n && gr_render_step(r, 1); lo = hi + 1) {
        for (hi = lo; hi < s->n && s->p[hi] != ',';)
            hi++;
        struct gr_val part = gr_path(r, item, gr_str_part(r, s, lo, hi));
        gr_list_push(r, key, gr_fold_case(r, part, case_sensitive));
    }
    return gr_list_value(key);
}

GR_FILTER(filter_sort)
{
    (void)a;
    struct gr_list *items = copy_of(r, gr_items(r, self)), *keys = gr_list_new(r, items->n);
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++)
        gr_list_push(r, keys, sort_key(r, items->v[i], v[2], v[1]));
    if (gr_render_ok(r))
        sort(r, keys, items, flag(r, v[0]));
    return gr_list_value(items);
}

GR_FILTER(filter_dictsort)
{
    (void)a;
    bool by_key = !gr_is_given(v[1]) || gr_val_is(v[1], "key");
    if (!by_key && !gr_val_is(v[1], "value"))
        return gr_render_fail(r, "dictsort: by is \"key\" or \"value\"");
    if (self.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, self);
    if (self.type != GR_VAL_DICT)
        return gr_render_fail(r, "'%s object' has no attribute 'items'", gr_type_name(self));
    const struct gr_dict *d = self.dict;
    struct gr_list *items = gr_list_new(r, d->n), *keys = gr_list_new(r, d->n);
    for (size_t i = 0; i < d->n && gr_render_step(r, 1); i++) {
        gr_list_push(r, items, gr_pair_value(r, d->v[i].key, d->v[i].value));
        gr_list_push(r, keys, gr_fold_case(r, by_key ? d->v[i].key : d->v[i].value, v[0]));
    }
    if (gr_render_ok(r))
        sort(r, keys, items, flag(r, v[2]));
    return gr_list_value(items);
}

static struct gr_val extreme(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                             int wanted)
{
    const struct gr_list *items = gr_items(r, self);
    if (!items->n)
        return gr_undefined_name(r, "No aggregated item, sequence was empty.", 39);
    struct gr_val best = items->v[0];
    struct gr_val best_key = gr_fold_case(r, gr_path(r, best, v[1]), v[0]);
    for (size_t i = 1; i < items->n && gr_render_step(r, 1); i++) {
        struct gr_val key = gr_fold_case(r, gr_path(r, items->v[i], v[1]), v[0]);
        if (gr_order(r, key, best_key, wanted < 0 ? "<" : ">") == wanted)
            best = items->v[i], best_key = key;
    }
    return best;
}

GR_FILTER(filter_min)
{
    (void)a;
    return extreme(r, self, v, -1);
}

GR_FILTER(filter_max)
{
    (void)a;
    return extreme(r, self, v, 1);
}

GR_FILTER(filter_groupby)
{
    (void)a;
    struct gr_list *items = copy_of(r, gr_items(r, self)), *keys = gr_list_new(r, items->n);
    struct gr_list *groups = gr_list_new(r, 0), *group = NULL;
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++) {
        struct gr_val key = gr_path(r, items->v[i], v[0]);
        if (key.type == GR_VAL_UNDEFINED && gr_is_given(v[1]) && v[1].type != GR_VAL_NONE)
            key = v[1];
        gr_list_push(r, keys, gr_fold_case(r, key, v[2]));
    }
    if (gr_render_ok(r))
        sort(r, keys, items, false);
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++) {
        if (!i || !gr_equal(r, keys->v[i], keys->v[i - 1])) {
            struct gr_val key = gr_path(r, items->v[i], v[0]);
            if (key.type == GR_VAL_UNDEFINED && gr_is_given(v[1]) && v[1].type != GR_VAL_NONE)
                key = v[1];
            group = gr_list_new(r, 0);
            gr_list_push(r, groups, gr_pair_value(r, key, gr_list_value(group)));
        }
        gr_list_push(r, group, items->v[i]);
    }
    return gr_list_value(groups);
}

/* ---- iterators: their items are made when they are first asked for ---- */

static struct gr_val lazy(struct gr_render *r, struct gr_val self, const struct gr_args *a,
                          struct gr_list *(*make)(struct gr_render *, struct gr_lazy *), int kind)
{
    return gr_lazy_new(
        r, (struct gr_lazy){
               .make = make, .what = "generator", .source = self, .args = *a, .kind = kind});
}

/* Value of a keyword argument, or absent. */
static struct gr_val named(const struct gr_args *a, const char *name)
{
    for (size_t i = 0; i < a->n_kw; i++) {
        if (gr_val_is(a->kw[i].name, name))
            return a->kw[i].value;
    }
    return (struct gr_val){.type = GR_VAL_ABSENT};
}

/* Parameters of a filter that reads its arguments when its items are made. */
static struct gr_val arg(const struct gr_args *a, size_t i, const char *name)
{
    return i < a->n ? a->v[i] : named(a, name);
}

static struct gr_list *make_attributes(struct gr_render *r, const struct gr_lazy *z,
                                       const struct gr_list *items)
{
    struct gr_list *l = gr_list_new(r, items->n);
    struct gr_val path = named(&z->args, "attribute"), other = named(&z->args, "default");
    if (z->args.n_kw > 1 + (size_t)gr_is_given(other))
        gr_render_fail(r, "map: an unknown argument");
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++) {
        struct gr_val x = gr_path(r, items->v[i], path);
        bool replaced =
            x.type == GR_VAL_UNDEFINED && gr_is_given(other) && other.type != GR_VAL_NONE;
        gr_list_push(r, l, replaced ? other : x);
    }
    return l;
}

/* Index of the filter or test that an argument names; -1 after an error. */
static int function_arg(struct gr_render *r, struct gr_val name, bool test)
{
    int at = !gr_is_str(name) ? -1
             : test           ? gr_test_find(name.str->p, name.str->n)
                              : gr_filter_find(name.str->p, name.str->n);
    if (at < 0)
        gr_render_fail(r, "no %s of the name that is given", test ? "test" : "filter");
    return at;
}

static struct gr_list *make_map(struct gr_render *r, struct gr_lazy *z)
{
    struct gr_list *l = gr_list_new(r, 0);
    if (!gr_truth(r, z->source))
        return l;
    if (!z->args.n && gr_is_given(named(&z->args, "attribute")))
        return make_attributes(r, z, gr_items(r, z->source));
    if (!z->args.n) {
        gr_render_fail(r, "map requires a filter argument");
        return l;
    }
    struct gr_args rest = {z->args.v + 1, z->args.n - 1, z->args.kw, z->args.n_kw};
    const struct gr_list *items = gr_items(r, z->source);
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++) {
        int f = function_arg(r, z->args.v[0], false);
        if (f >= 0)
            gr_list_push(r, l, gr_filter_run(r, f, items->v[i], &rest));
    }
    return l;
}

GR_FILTER(filter_map)
{
    (void)v;
    return lazy(r, self, a, make_map, 0);
}

enum { REJECT = 1, BY_ATTRIBUTE = 2 };

static struct gr_list *make_select(struct gr_render *r, struct gr_lazy *z)
{
    struct gr_list *l = gr_list_new(r, 0);
    size_t off = z->kind & BY_ATTRIBUTE ? 1 : 0;
    if (!gr_truth(r, z->source))
        return l;
    if (z->args.n < off) {
        gr_render_fail(r, "the name of an attribute is missing");
        return l;
    }
    struct gr_args rest = {z->args.v + off + 1, z->args.n > off ? z->args.n - off - 1 : 0,
                           z->args.kw, z->args.n_kw};
    const struct gr_list *items = gr_items(r, z->source);
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++) {
        struct gr_val x = off ? gr_path(r, items->v[i], z->args.v[0]) : items->v[i];
        bool keep = gr_truth(r, x);
        if (z->args.n > off) {
            int f = function_arg(r, z->args.v[off], true);
            keep = f >= 0 && gr_test_run(r, f, x, &rest);
        }
        if (keep != (z->kind & REJECT))
            gr_list_push(r, l, items->v[i]);
    }
    return l;
}

GR_FILTER(filter_select)
{
    (void)v;
    return lazy(r, self, a, make_select, 0);
}

GR_FILTER(filter_reject)
{
    (void)v;
    return lazy(r, self, a, make_select, REJECT);
}

GR_FILTER(filter_selectattr)
{
    (void)v;
    return lazy(r, self, a, make_select, BY_ATTRIBUTE);
}

GR_FILTER(filter_rejectattr)
{
    (void)v;
    return lazy(r, self, a, make_select, BY_ATTRIBUTE | REJECT);
}

static struct gr_list *make_items(struct gr_render *r, struct gr_lazy *z)
{
    struct gr_list *l = gr_list_new(r, 0);
    if (z->source.type == GR_VAL_UNDEFINED)
        return l;
    if (z->source.type != GR_VAL_DICT) {
        gr_render_fail(r, "Can only get item pairs from a mapping.");
        return l;
    }
    const struct gr_dict *d = z->source.dict;
    for (size_t i = 0; i < d->n && gr_render_step(r, 1); i++)
        gr_list_push(r, l, gr_pair_value(r, d->v[i].key, d->v[i].value));
    return l;
}

GR_FILTER(filter_items)
{
    (void)v;
    return lazy(r, self, a, make_items, 0);
}

static struct gr_list *make_unique(struct gr_render *r, struct gr_lazy *z)
{
    struct gr_list *l = gr_list_new(r, 0);
    struct gr_dict *seen = gr_dict_new(r);
    struct gr_val exact = arg(&z->args, 0, "case_sensitive"), path = arg(&z->args, 1, "attribute");
    const struct gr_list *items = gr_items(r, z->source);
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++) {
        struct gr_val key = gr_fold_case(r, gr_path(r, items->v[i], path), exact);
        if (gr_dict_find(r, seen, key))
            continue;
        gr_dict_set(r, seen, key, gr_none());
        gr_list_push(r, l, items->v[i]);
    }
    return l;
}

GR_FILTER(filter_unique)
{
    (void)v;
    return lazy(r, self, a, make_unique, 0);
}

static struct gr_list *make_batch(struct gr_render *r, struct gr_lazy *z)
{
    struct gr_list *l = gr_list_new(r, 0), *row = NULL;
    struct gr_val count = arg(&z->args, 0, "linecount"), fill = arg(&z->args, 1, "fill_with");
    const struct gr_list *items = gr_items(r, z->source);
    int64_t n;
    if (!gr_int_arg(r, count, 0, &n))
        return l;
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++) {
        if (!row || (int64_t)row->n == n) {
            row = gr_list_new(r, 0);
            gr_list_push(r, l, gr_list_value(row));
        }
        gr_list_push(r, row, items->v[i]);
    }
    while (row && gr_is_given(fill) && fill.type != GR_VAL_NONE && (int64_t)row->n < n &&
           gr_render_step(r, 1))
        gr_list_push(r, row, fill);
    return l;
}

GR_FILTER(filter_batch)
{
    (void)v;
    return lazy(r, self, a, make_batch, 0);
}

static struct gr_list *make_slices(struct gr_render *r, struct gr_lazy *z)
{
    struct gr_list *l = gr_list_new(r, 0);
    struct gr_val count = arg(&z->args, 0, "slices"), fill = arg(&z->args, 1, "fill_with");
    const struct gr_list *items = gr_items(r, z->source);
    int64_t n, at = 0;
    if (!gr_int_arg(r, count, 0, &n) || !gr_render_ok(r))
        return l;
    if (n == 0)
        gr_render_fail(r, "integer division or modulo by zero");
    int64_t each = n > 0 ? (int64_t)items->n / n : 0, more = n > 0 ? (int64_t)items->n % n : 0;
    for (int64_t i = 0; i < n && gr_render_step(r, 1); i++) {
        struct gr_list *part = gr_list_new(r, 0);
        for (int64_t k = 0; k < each + (i < more) && gr_render_step(r, 1); k++)
            gr_list_push(r, part, items->v[at++]);
        if (gr_is_given(fill) && fill.type != GR_VAL_NONE && i >= more)
            gr_list_push(r, part, fill);
        gr_list_push(r, l, gr_list_value(part));
    }
    return l;
}

GR_FILTER(filter_slice)
{
    (void)v;
    return lazy(r, self, a, make_slices, 0);
}
