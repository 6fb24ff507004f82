/* Operators and members of values, as in Python. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "chat/run.h"
#include "chat/value.h"
#include "text/utf8.h"

static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

static struct gr_val overflow(struct gr_render *r)
{
    return gr_render_fail(r, "the result of integers does not fit 64 bits");
}

static struct gr_val unsupported(struct gr_render *r, enum gr_binary op, struct gr_val a,
                                 struct gr_val b)
{
    return gr_render_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", symbols[op],
                          gr_type_name(a), gr_type_name(b));
}

/* ---- numbers ---- */

static struct gr_val power_of_ints(struct gr_render *r, int64_t a, int64_t b)
{
    if (b < 0 && a == 0)
        return gr_render_fail(r, "0.0 cannot be raised to a negative power");
    if (b < 0)
        return gr_float(pow((double)a, (double)b));
    int64_t x = 1;
    if (a == 0 || a == 1 || a == -1)
        return gr_int(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
    for (; b > 0; b--) {
        if (!gr_mul(&x, x, a))
            return overflow(r);
    }
    return gr_int(x);
}

/* Division that rounds down; *rest has the sign of b. */
static int64_t floor_div(int64_t a, int64_t b, int64_t *rest)
{
    int64_t q = b == -1 ? -a : a / b;
    *rest = b == -1 ? 0 : a % b;
    if (*rest && (*rest < 0) != (b < 0))
        *rest += b, q--;
    return q;
}

static struct gr_val operate_ints(struct gr_render *r, enum gr_binary op, int64_t a, int64_t b)
{
    int64_t x = 0, rest;
    bool fits = true;
    if (b == 0 && (op == GR_DIV || op == GR_FLOORDIV || op == GR_MOD))
        return gr_render_fail(r, "division by zero");
    switch (op) {
    case GR_ADD:
        fits = gr_add(&x, a, b);
        break;
    case GR_SUB:
        fits = !__builtin_sub_overflow(a, b, &x);
        break;
    case GR_MUL:
        fits = gr_mul(&x, a, b);
        break;
    case GR_DIV:
        return gr_float((double)a / (double)b);
    case GR_FLOORDIV:
        fits = a != INT64_MIN || b != -1;
        x = fits ? floor_div(a, b, &rest) : 0;
        break;
    case GR_MOD:
        fits = a != INT64_MIN || b != -1;
        if (fits)
            floor_div(a, b, &x);
        break;
    case GR_POW:
        return power_of_ints(r, a, b);
    }
    return fits ? gr_int(x) : overflow(r);
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (b < 0) != (m < 0))
        m += b;
    return m == 0 ? copysign(0.0, b) : m;
}

static double float_floordiv(double a, double b)
{
    double m = fmod(a, b), d = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0))
        d -= 1;
    if (d == 0)
        return copysign(0.0, a / b);
    double f = floor(d);
    return d - f > 0.5 ? f + 1 : f;
}

static struct gr_val power_of_floats(struct gr_render *r, double a, double b)
{
    if (a == 0 && b < 0)
        return gr_render_fail(r, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        return gr_render_fail(r, "a power that is a complex number");
    double x = pow(a, b);
    if (isinf(x) && isfinite(a) && isfinite(b))
        return gr_render_fail(r, "the result is too large");
    return gr_float(x);
}

static struct gr_val operate_floats(struct gr_render *r, enum gr_binary op, double a, double b)
{
    if (b == 0 && (op == GR_DIV || op == GR_FLOORDIV || op == GR_MOD))
        return gr_render_fail(r, "float division by zero");
    switch (op) {
    case GR_ADD:
        return gr_float(a + b);
    case GR_SUB:
        return gr_float(a - b);
    case GR_MUL:
        return gr_float(a * b);
    case GR_DIV:
        return gr_float(a / b);
    case GR_FLOORDIV:
        return gr_float(float_floordiv(a, b));
    case GR_MOD:
        return gr_float(float_mod(a, b));
    default:
        return power_of_floats(r, a, b);
    }
}

/* ---- sequences ---- */

static struct gr_val join_lists(struct gr_render *r, struct gr_val a, struct gr_val b)
{
    struct gr_list *l = gr_list_new(r, a.list->n + b.list->n);
    for (size_t i = 0; i < a.list->n && gr_render_step(r, i % 16 == 15); i++)
        gr_list_push(r, l, a.list->v[i]);
    for (size_t i = 0; i < b.list->n && gr_render_step(r, i % 16 == 15); i++)
        gr_list_push(r, l, b.list->v[i]);
    return a.type == GR_VAL_LIST ? gr_list_value(l) : gr_tuple_value(l);
}

static struct gr_val add_strings(struct gr_render *r, struct gr_val a, struct gr_val b)
{
    bool markup = a.str->markup || b.str->markup;
    if (markup && !a.str->markup)
        a = gr_str_escape(r, a);
    if (markup && !b.str->markup)
        b = gr_str_escape(r, b);
    if (!gr_render_ok(r))
        return gr_none();
    struct gr_val sum = gr_str_concat(r, a.str, b.str);
    if (markup && gr_render_ok(r))
        ((struct gr_string *)sum.str)->markup = true;
    return sum;
}

static struct gr_val repeat(struct gr_render *r, struct gr_val v, int64_t times)
{
    if (gr_is_str(v)) {
        struct gr_text t = {0};
        if (times > 0 && v.str->n > GR_RENDER_MAX_MEMORY / (uint64_t)times)
            return gr_render_fail(r, "a text of more than %u MiB", GR_RENDER_MAX_MEMORY >> 20);
        for (int64_t i = 0; v.str->n && i < times && gr_render_step(r, i % 16 == 15); i++)
            gr_text_put_str(r, &t, v.str);
        return gr_text_value(r, &t);
    }
    struct gr_list *l = gr_list_new(r, 0);
    for (int64_t i = 0; v.list->n && i < times && gr_render_step(r, 1); i++) {
        for (size_t k = 0; k < v.list->n && gr_render_step(r, k % 16 == 15); k++)
            gr_list_push(r, l, v.list->v[k]);
    }
    return v.type == GR_VAL_LIST ? gr_list_value(l) : gr_tuple_value(l);
}

static bool repeatable(struct gr_val v)
{
    return gr_is_str(v) || gr_is_sequence(v);
}

struct gr_val gr_operate(struct gr_render *r, enum gr_binary op, struct gr_val a, struct gr_val b)
{
    if (op == GR_MOD && gr_is_str(a))
        return gr_percent_format(r, a.str, b);
    if (a.type == GR_VAL_UNDEFINED || b.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, a.type == GR_VAL_UNDEFINED ? a : b);
    if (gr_is_int(a) && gr_is_int(b))
        return operate_ints(r, op, gr_int_of(a), gr_int_of(b));
    if (gr_is_number(a) && gr_is_number(b))
        return operate_floats(r, op, gr_float_of(a), gr_float_of(b));
    if (op == GR_ADD && gr_is_str(a) && gr_is_str(b))
        return add_strings(r, a, b);
    if (op == GR_ADD && gr_is_sequence(a) && a.type == b.type)
        return join_lists(r, a, b);
    if (op == GR_MUL && repeatable(a) && gr_is_int(b))
        return repeat(r, a, gr_int_of(b));
    if (op == GR_MUL && gr_is_int(a) && repeatable(b))
        return repeat(r, b, gr_int_of(a));
    return unsupported(r, op, a, b);
}

struct gr_val gr_negate(struct gr_render *r, struct gr_val v, bool minus)
{
    if (v.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, v);
    if (!gr_is_number(v))
        return gr_render_fail(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+',
                              gr_type_name(v));
    if (v.type == GR_VAL_FLOAT)
        return gr_float(minus ? -v.f : v.f);
    if (minus && v.type == GR_VAL_INT && v.i == INT64_MIN)
        return overflow(r);
    return gr_int(minus ? -gr_int_of(v) : gr_int_of(v));
}

bool gr_compare(struct gr_render *r, enum gr_compare op, struct gr_val a, struct gr_val b)
{
    static const char *const names[] = {"==", "!=", "<", "<=", ">", ">="};
    if (op == GR_EQ || op == GR_NE)
        return gr_equal(r, a, b) == (op == GR_EQ);
    if (op == GR_IN || op == GR_NOT_IN)
        return gr_contains(r, b, a) == (op == GR_IN);
    int c = gr_order(r, a, b, names[op]);
    if (c == GR_UNORDERED)
        return false;
    return op == GR_LT ? c < 0 : op == GR_LE ? c <= 0 : op == GR_GT ? c > 0 : c >= 0;
}

/* ---- members ---- */

static struct gr_val loop_attribute(struct gr_render *r, const struct gr_loop *l,
                                    struct gr_val name, struct gr_val self)
{
    const struct gr_list *items = l->items;
    int64_t at = (int64_t)l->at, n = (int64_t)items->n;
    struct {
        const char *name;
        struct gr_val value;
    } numbers[] = {{"index", gr_int(at)},
                   {"index0", gr_int(at - 1)},
                   {"revindex", gr_int(n - at + 1)},
                   {"revindex0", gr_int(n - at)},
                   {"first", gr_bool(at == 1)},
                   {"last", gr_bool(at == n)},
                   {"length", gr_int(n)},
                   {"depth", gr_int(1)},
                   {"depth0", gr_int(0)}};
    for (size_t i = 0; i < GR_COUNT(numbers); i++) {
        if (gr_val_is(name, numbers[i].name))
            return numbers[i].value;
    }
    if (gr_val_is(name, "previtem"))
        return at > 1 ? items->v[at - 2] : gr_undefined_name(r, "there is no previous item", 25);
    if (gr_val_is(name, "nextitem"))
        return at < n ? items->v[at] : gr_undefined_name(r, "there is no next item", 21);
    struct gr_val method = gr_method_find(r, self, name.str->p, name.str->n);
    return gr_is_given(method) ? method : gr_undefined_member(r, self, name);
}

/* The attribute of an object that is no item: a method, or one of a namespace or a loop. */
static struct gr_val own_attribute(struct gr_render *r, struct gr_val obj, struct gr_val name)
{
    if (obj.type == GR_VAL_NAMESPACE) {
        const struct gr_pair *p = gr_dict_find(r, obj.dict, name);
        return p ? p->value : (struct gr_val){.type = GR_VAL_ABSENT};
    }
    if (obj.type == GR_VAL_LOOP)
        return loop_attribute(r, obj.loop, name, obj);
    if (obj.type == GR_VAL_MACRO && gr_val_is(name, "name"))
        return gr_str_view(r, obj.macro->name.p, obj.macro->name.n, NULL);
    return gr_method_find(r, obj, name.str->p, name.str->n);
}

/* obj[key] without attributes; absent: there is no such item. */
static struct gr_val own_item(struct gr_render *r, struct gr_val obj, struct gr_val key)
{
    struct gr_val none = {.type = GR_VAL_ABSENT};
    if (obj.type == GR_VAL_DICT) {
        if (key.type == GR_VAL_LIST || key.type == GR_VAL_DICT)
            return none;
        const struct gr_pair *p = gr_dict_find(r, obj.dict, key);
        return p ? p->value : none;
    }
    if (!gr_is_int(key) || (!gr_is_str(obj) && !gr_is_sequence(obj) && obj.type != GR_VAL_RANGE))
        return none;
    int64_t n = gr_length(obj), i = gr_int_of(key);
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n)
        return none;
    if (obj.type == GR_VAL_RANGE)
        return gr_int(obj.range->start + i * obj.range->step);
    return gr_is_str(obj) ? gr_slice(r, obj, gr_int(i), gr_int(i + 1), gr_none()) : obj.list->v[i];
}

struct gr_val gr_attribute(struct gr_render *r, struct gr_val obj, struct gr_val name)
{
    if (obj.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, obj);
    struct gr_val v = own_attribute(r, obj, name);
    if (!gr_is_given(v))
        v = own_item(r, obj, name);
    return gr_is_given(v) ? v : gr_undefined_member(r, obj, name);
}

struct gr_val gr_item(struct gr_render *r, struct gr_val obj, struct gr_val key)
{
    if (obj.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, obj);
    struct gr_val v = own_item(r, obj, key);
    if (!gr_is_given(v) && gr_is_str(key))
        v = own_attribute(r, obj, key);
    return gr_is_given(v) ? v : gr_undefined_member(r, obj, key);
}

/* ---- slices ---- */

/* A bound of a slice over n items, as Python clamps it. False after an error. */
static bool bound(struct gr_render *r, struct gr_val v, int64_t n, bool back, int64_t otherwise,
                  int64_t *out)
{
    if (v.type == GR_VAL_NONE) {
        *out = otherwise;
        return true;
    }
    if (!gr_is_int(v)) {
        gr_render_fail(r, "slice indices must be integers or None");
        return false;
    }
    int64_t i = gr_int_of(v);
    if (i < 0)
        i += n;
    int64_t lo = back ? -1 : 0, hi = back ? n - 1 : n;
    *out = i < lo ? lo : i > hi ? hi : i;
    return true;
}

/* Offsets of all code points of s and of its end. */
static size_t *offsets(struct gr_render *r, const struct gr_string *s, int64_t n)
{
    size_t *at = gr_render_alloc(r, (size_t)n + 1, sizeof *at), k = 0;
    gr_render_step(r, s->n / 32);
    for (size_t i = 0; at && i < s->n; i++) {
        if ((s->p[i] & 0xc0) != 0x80)
            at[k++] = i;
    }
    if (at)
        at[k] = s->n;
    return at;
}

/* Offset of code point i. */
static size_t offset(const struct gr_string *s, int64_t i)
{
    size_t at = 0;
    while (at < s->n && (i > 0 || (s->p[at] & 0xc0) == 0x80))
        i -= (s->p[at++] & 0xc0) != 0x80;
    while (at < s->n && (s->p[at] & 0xc0) == 0x80)
        at++;
    return at;
}

static struct gr_val slice_str(struct gr_render *r, const struct gr_string *s, int64_t start,
                               int64_t stop, int64_t step, int64_t n)
{
    gr_render_step(r, s->n / 64);
    if (step == 1)
        return start < stop ? gr_str_part(r, s, offset(s, start), offset(s, stop))
                            : gr_str_view(r, "", 0, NULL);
    struct gr_text t = {0};
    const size_t *at = offsets(r, s, n);
    for (int64_t i = start; at && (step > 0 ? i < stop : i > stop) && gr_render_ok(r);) {
        gr_text_put(r, &t, s->p + at[i], at[i + 1] - at[i], s->mark ? s->mark + at[i] : NULL);
        if (!gr_add(&i, i, step))
            break;
    }
    return gr_text_value(r, &t);
}

static struct gr_val slice_list(struct gr_render *r, struct gr_val v, int64_t start, int64_t stop,
                                int64_t step)
{
    struct gr_list *l = gr_list_new(r, 0);
    for (int64_t i = start; (step > 0 ? i < stop : i > stop) && gr_render_step(r, 1);) {
        gr_list_push(r, l, v.list->v[i]);
        if (!gr_add(&i, i, step))
            break;
    }
    return v.type == GR_VAL_LIST ? gr_list_value(l) : gr_tuple_value(l);
}

static struct gr_val slice_range(struct gr_render *r, const struct gr_range *a, int64_t start,
                                 int64_t stop, int64_t step)
{
    struct gr_range *out = gr_render_alloc(r, 1, sizeof *out);
    if (!out)
        return gr_none();
    *out =
        (struct gr_range){.start = a->start + start * a->step, .stop = a->start + stop * a->step};
    if (!gr_mul(&out->step, a->step, step))
        return overflow(r);
    if (step > 0 ? start < stop : start > stop)
        out->n = step > 0 ? (stop - start - 1) / step + 1 : (start - stop - 1) / -step + 1;
    return (struct gr_val){.type = GR_VAL_RANGE, .range = out};
}

struct gr_val gr_slice(struct gr_render *r, struct gr_val obj, struct gr_val start,
                       struct gr_val stop, struct gr_val step)
{
    if (obj.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, obj);
    if (!gr_is_str(obj) && !gr_is_sequence(obj) && obj.type != GR_VAL_RANGE)
        return gr_render_fail(r, "'%s' object cannot be sliced", gr_type_name(obj));
    int64_t n = gr_length(obj), k = 1, lo, hi;
    if (step.type != GR_VAL_NONE && !gr_is_int(step))
        return gr_render_fail(r, "slice indices must be integers or None");
    if (step.type != GR_VAL_NONE)
        k = gr_int_of(step);
    if (k == 0)
        return gr_render_fail(r, "slice step cannot be zero");
    k = k == INT64_MIN ? -INT64_MAX : k;
    if (!bound(r, start, n, k < 0, k < 0 ? n - 1 : 0, &lo) ||
        !bound(r, stop, n, k < 0, k < 0 ? -1 : n, &hi))
        return gr_none();
    if (gr_is_str(obj))
        return slice_str(r, obj.str, lo, hi, k, n);
    if (obj.type == GR_VAL_RANGE)
        return slice_range(r, obj.range, lo, hi, k);
    return slice_list(r, obj, lo, hi, k);
}
