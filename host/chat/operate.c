/* Operators, as in Python. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "chat/value.h"

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
