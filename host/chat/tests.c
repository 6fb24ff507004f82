/* Tests of values: `x is name`. */
#include <string.h>

#include "base/checked.h"
#include "chat/run.h"

/* v: the value; w: the argument of a test that has one. */
typedef bool test_fn(struct gr_render *r, struct gr_val v, struct gr_val w);

#define IS(name) static bool is_##name(struct gr_render *r, struct gr_val v, struct gr_val w)
#define UNUSED (void)r, (void)v, (void)w

IS(boolean)
{
    UNUSED;
    return v.type == GR_VAL_BOOL;
}

IS(callable)
{
    UNUSED;
    return v.type == GR_VAL_MACRO || v.type == GR_VAL_GLOBAL || v.type == GR_VAL_METHOD ||
           v.type == GR_VAL_UNDEFINED || v.type == GR_VAL_LOOP;
}

IS(defined)
{
    UNUSED;
    return v.type != GR_VAL_UNDEFINED;
}

IS(undefined)
{
    UNUSED;
    return v.type == GR_VAL_UNDEFINED;
}

IS(eq)
{
    return gr_compare(r, GR_EQ, v, w);
}

IS(ne)
{
    return gr_compare(r, GR_NE, v, w);
}

IS(lt)
{
    return gr_compare(r, GR_LT, v, w);
}

IS(le)
{
    return gr_compare(r, GR_LE, v, w);
}

IS(gt)
{
    return gr_compare(r, GR_GT, v, w);
}

IS(ge)
{
    return gr_compare(r, GR_GE, v, w);
}

IS(in)
{
    return gr_compare(r, GR_IN, v, w);
}

IS(divisibleby)
{
    struct gr_val rest = gr_operate(r, GR_MOD, v, w);
    return gr_render_ok(r) && gr_equal(r, rest, gr_int(0));
}

static bool leaves(struct gr_render *r, struct gr_val v, int64_t rest)
{
    struct gr_val m = gr_operate(r, GR_MOD, v, gr_int(2));
    return gr_render_ok(r) && gr_equal(r, m, gr_int(rest));
}

IS(odd)
{
    UNUSED;
    return leaves(r, v, 1);
}

IS(even)
{
    UNUSED;
    return leaves(r, v, 0);
}

IS(escaped)
{
    UNUSED;
    return gr_is_str(v) && v.str->markup;
}

IS(true)
{
    UNUSED;
    return v.type == GR_VAL_BOOL && v.b;
}

IS(false)
{
    UNUSED;
    return v.type == GR_VAL_BOOL && !v.b;
}

IS(none)
{
    UNUSED;
    return v.type == GR_VAL_NONE;
}

IS(integer)
{
    UNUSED;
    return v.type == GR_VAL_INT;
}

IS(float)
{
    UNUSED;
    return v.type == GR_VAL_FLOAT;
}

IS(number)
{
    UNUSED;
    return gr_is_number(v);
}

IS(string)
{
    UNUSED;
    return gr_is_str(v);
}

IS(mapping)
{
    UNUSED;
    return v.type == GR_VAL_DICT;
}

IS(iterable)
{
    UNUSED;
    return gr_is_iterable(v);
}

IS(sequence)
{
    UNUSED;
    return gr_is_str(v) || gr_is_sequence(v) || v.type == GR_VAL_DICT || v.type == GR_VAL_RANGE ||
           v.type == GR_VAL_UNDEFINED;
}

IS(filter)
{
    UNUSED;
    return gr_is_str(v) && r->find_filter(v.str->p, v.str->n) >= 0;
}

IS(test)
{
    UNUSED;
    return gr_is_str(v) && gr_test_find(v.str->p, v.str->n) >= 0;
}

/* The same object; numbers and texts are the same when they are equal and of one type. */
IS(sameas)
{
    if (v.type != w.type)
        return false;
    bool by_value = gr_is_number(v) || gr_is_str(v);
    return by_value ? gr_equal(r, v, w) : v.type == GR_VAL_NONE || v.lazy == w.lazy;
}

static bool all_case(struct gr_render *r, struct gr_val v, const char *method)
{
    struct gr_val s = gr_to_str(r, v);
    struct gr_args none = {0};
    struct gr_val m = gr_render_ok(r) ? r->find_method(r, s, method, strlen(method)) : gr_none();
    return gr_render_ok(r) && gr_truth(r, gr_native_call(r, m.method->native, s, &none));
}

IS(lower)
{
    UNUSED;
    return all_case(r, v, "islower");
}

IS(upper)
{
    UNUSED;
    return all_case(r, v, "isupper");
}

static const struct {
    const char *name;
    test_fn *fn;
    size_t n_args;
} tests[] = {
#define TEST(name, fn, n) {name, fn, n},
#include "chat/tests.def"
#undef TEST
};

int gr_test_find(const char *p, size_t n)
{
    for (size_t i = 0; i < GR_COUNT(tests); i++) {
        if (strlen(tests[i].name) == n && !memcmp(tests[i].name, p, n))
            return (int)i;
    }
    return -1;
}

bool gr_test_run(struct gr_render *r, int test, struct gr_val v, const struct gr_args *a)
{
    if (a->n != tests[test].n_args || a->n_kw) {
        gr_render_fail(r, "the test %s takes %zu arguments, %zu are given", tests[test].name,
                       tests[test].n_args, a->n + a->n_kw);
        return false;
    }
    return tests[test].fn(r, v, a->n ? a->v[0] : gr_none());
}
