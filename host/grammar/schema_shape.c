/* The shape of a conjunction: what its plain keywords allow together. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "grammar/schema_impl.h"

struct reader {
    struct gr_schema *s;
    struct gr_shape *shape;
    const char *at; /* of the keyword */
};

static void wrong(const struct reader *r, const char *expected)
{
    gr_schema_fail(r->s, r->at, "%s is expected", expected);
}

/* ---- types and values ---- */

static unsigned type_bits(const char *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {
        {"null", GR_JSON_NULL},
        {"boolean", GR_JSON_BOOL},
        {"object", GR_JSON_OBJECT},
        {"array", GR_JSON_ARRAY},
        {"string", GR_JSON_STRING},
        {"integer", GR_JSON_INTEGER},
        {"number", GR_JSON_INTEGER | GR_JSON_FRACTION},
    };
    for (size_t i = 0; name && i < GR_COUNT(types); i++)
        if (!strcmp(types[i].name, name))
            return types[i].bits;
    return 0;
}

static void read_type(const struct reader *r, json_t *v)
{
    unsigned all = 0;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        unsigned bits = type_bits(json_string_value(one));
        if (!bits)
            wrong(r, "null, boolean, object, array, string, integer, number or a list of these");
        all |= bits;
    }
    r->shape->types &= all;
}

static bool equal_numbers(json_t *a, json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    if (json_is_real(a) && json_is_real(b))
        return json_real_value(a) == json_real_value(b);
    double x = json_real_value(json_is_real(a) ? a : b);
    json_int_t i = json_integer_value(json_is_real(a) ? b : a);
    return x >= -9223372036854775808.0 && x < 9223372036854775808.0 && x == floor(x) &&
           (json_int_t)x == i;
}

/* Whether two values are equal as JSON schemas have it, 1 and 1.0 included; *n counts the values
 * that are compared. The parser limits how deeply they nest: to 2048. */
static bool equal(json_t *a, json_t *b, size_t *n) /* NOLINT(misc-no-recursion) */
{
    const char *key;
    json_t *v;
    bool same = true;
    ++*n;
    if (json_is_number(a) && json_is_number(b))
        return equal_numbers(a, b);
    if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) ||
        json_object_size(a) != json_object_size(b))
        return false;
    if (!json_is_array(a) && !json_is_object(a))
        return json_equal(a, b);
    for (size_t i = 0; i < json_array_size(a) && same; i++)
        same = equal(json_array_get(a, i), json_array_get(b, i), n);
    json_object_foreach(a, key, v)
    {
        json_t *other = same ? json_object_get(b, key) : NULL;
        same = other && equal(v, other, n);
    }
    return same;
}

/* Whether the list has the value; false after a failure. */
static bool contains(struct gr_schema *s, const char *at, json_t *list, json_t *v)
{
    size_t n = 0;
    bool found = false;
    for (size_t i = 0; i < json_array_size(list) && !found; i++)
        found = equal(json_array_get(list, i), v, &n);
    return gr_schema_compares(s, at, n) && found;
}

/* Leaves the values that are in `list` too. */
static void limit_values(const struct reader *r, json_t *list)
{
    json_t *have = r->shape->values, *left = json_array();
    for (size_t i = 0; left && i < json_array_size(list) && !r->s->r->rc; i++) {
        json_t *v = json_array_get(list, i);
        if ((!have || contains(r->s, r->at, have, v)) && json_array_append(left, v))
            r->s->r->rc = GR_E_NOMEM_HOST;
    }
    if (!left)
        r->s->r->rc = GR_E_NOMEM_HOST;
    json_decref(have);
    r->shape->values = left, r->shape->values_at = r->at;
}

static void read_enum(const struct reader *r, json_t *v)
{
    if (json_is_array(v))
        limit_values(r, v);
    else
        wrong(r, "a list of values");
}

static void read_const(const struct reader *r, json_t *v)
{
    json_t *list = json_array();
    if (!list || json_array_append(list, v))
        r->s->r->rc = GR_E_NOMEM_HOST;
    else
        limit_values(r, list);
    json_decref(list);
}

/* ---- numbers ---- */

static int64_t to_integer(double x)
{
    return x >= 9.2e18 ? INT64_MAX : x <= -9.2e18 ? INT64_MIN : (int64_t)x;
}

/* Raises the lowest or lowers the highest integer to x, or beyond it. */
static void bound(const struct reader *r, json_t *v, bool low, bool beyond)
{
    struct gr_shape *shape = r->shape;
    if (!json_is_number(v)) {
        wrong(r, "a number");
        return;
    }
    double x = json_number_value(v);
    int64_t i = json_is_integer(v) ? json_integer_value(v) : to_integer(low ? ceil(x) : floor(x));
    if (beyond && (json_is_integer(v) || (double)i == x)) {
        if (i == (low ? INT64_MAX : INT64_MIN))
            shape->types &= ~(unsigned)GR_JSON_INTEGER;
        else
            i += low ? 1 : -1;
    }
    if (low)
        shape->lo = GR_MAX(shape->lo, i);
    else
        shape->hi = GR_MIN(shape->hi, i);
    shape->range_at = r->at;
}

static void read_minimum(const struct reader *r, json_t *v)
{
    bound(r, v, true, false);
}

static void read_maximum(const struct reader *r, json_t *v)
{
    bound(r, v, false, false);
}

static void read_above(const struct reader *r, json_t *v)
{
    bound(r, v, true, true);
}

static void read_below(const struct reader *r, json_t *v)
{
    bound(r, v, false, true);
}

/* ---- counts ---- */

static bool read_count(const struct reader *r, json_t *v, uint32_t *count)
{
    double x = json_number_value(v);
    *count = 0;
    if (!json_is_number(v) || x < 0 || x != floor(x)) {
        wrong(r, "a whole number from 0 on");
        return false;
    }
    if (x > GR_GRAMMAR_MAX_REPEAT) {
        gr_schema_fail(r->s, r->at, "%.0f, at most %u is supported", x, GR_GRAMMAR_MAX_REPEAT);
        return false;
    }
    *count = (uint32_t)x;
    return true;
}

static void at_least(const struct reader *r, json_t *v, uint32_t *least)
{
    uint32_t n;
    if (read_count(r, v, &n))
        *least = GR_MAX(*least, n);
}

static void at_most(const struct reader *r, json_t *v, uint32_t *most)
{
    uint32_t n;
    if (read_count(r, v, &n))
        *most = GR_MIN(*most, n);
}

static void read_min_length(const struct reader *r, json_t *v)
{
    at_least(r, v, &r->shape->min_length);
    r->shape->length_at = r->at;
}

static void read_max_length(const struct reader *r, json_t *v)
{
    at_most(r, v, &r->shape->max_length);
    r->shape->length_at = r->at;
}

static void read_min_items(const struct reader *r, json_t *v)
{
    at_least(r, v, &r->shape->min_items);
}

static void read_max_items(const struct reader *r, json_t *v)
{
    at_most(r, v, &r->shape->max_items);
}

static void read_min_properties(const struct reader *r, json_t *v)
{
    at_least(r, v, &r->shape->min_properties);
    r->shape->properties_at = r->at;
}

static void read_max_properties(const struct reader *r, json_t *v)
{
    at_most(r, v, &r->shape->max_properties);
    r->shape->properties_at = r->at;
}

static void read_unique(const struct reader *r, json_t *v)
{
    if (!json_is_false(v))
        gr_schema_fail(r->s, r->at, "uniqueItems is not supported");
}

/* ---- strings ---- */

static void set_pattern(const struct reader *r, const char *pattern)
{
    if (r->shape->pattern && strcmp(r->shape->pattern, pattern) != 0)
        gr_schema_fail(r->s, r->at, "one pattern or format at a time is supported, there is %s too",
                       r->shape->pattern_at);
    r->shape->pattern = pattern, r->shape->pattern_at = r->at;
}

static void read_pattern(const struct reader *r, json_t *v)
{
    if (json_is_string(v))
        set_pattern(r, json_string_value(v));
    else
        wrong(r, "a regular expression");
}

static void read_format(const struct reader *r, json_t *v)
{
    const char *name = json_string_value(v), *pattern = name ? gr_schema_format(name) : NULL;
    if (pattern)
        set_pattern(r, pattern);
    else if (name)
        gr_schema_fail(r->s, r->at, "format %s is not supported", gr_quote(name, strlen(name)));
    else
        wrong(r, "the name of a format");
}

/* ---- what others read ---- */

static void read_object(const struct reader *r, json_t *v)
{
    const char *key;
    json_t *schema;
    if (!json_is_object(v))
        wrong(r, "an object");
    json_object_foreach(v, key, schema) if (!json_is_object(schema) && !json_is_boolean(schema))
        gr_schema_fail(r->s, gr_schema_at(r->s, r->at, key),
                       "a schema is an object, true or false");
}

static void read_required(const struct reader *r, json_t *v)
{
    if (!json_is_array(v))
        wrong(r, "a list of names");
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)))
            wrong(r, "a list of names");
}

static void read_schema(const struct reader *r, json_t *v)
{
    if (!json_is_object(v) && !json_is_boolean(v))
        wrong(r, "a schema, which is an object, true or false,");
}

static void read_schemas(const struct reader *r, json_t *v)
{
    if (!json_is_array(v) || !json_array_size(v))
        wrong(r, "a list of schemas");
}

static void read_ref(const struct reader *r, json_t *v)
{
    if (!json_is_string(v))
        wrong(r, "a JSON pointer");
}

/* ---- keywords ---- */

typedef void read_fn(const struct reader *r, json_t *v);

static const struct {
    const char *name;
    read_fn *read; /* NULL: not supported */
} keywords[] = {
#define KEYWORD(name, read) {name, read},
#define REFUSED(name) {name, NULL},
#include "grammar/schema.def"
#undef KEYWORD
#undef REFUSED
};

static void read_keyword(const struct reader *r, const char *name, json_t *v)
{
    for (size_t i = 0; i < GR_COUNT(keywords); i++) {
        if (strcmp(keywords[i].name, name) != 0)
            continue;
        if (keywords[i].read)
            keywords[i].read(r, v);
        else
            gr_schema_fail(r->s, r->at, "%s is not supported", name);
        return;
    }
}

static unsigned types_of(json_t *v)
{
    if (json_is_real(v)) {
        double x = json_real_value(v);
        return GR_JSON_FRACTION | (x == floor(x) ? GR_JSON_INTEGER : 0u);
    }
    return json_is_null(v)      ? GR_JSON_NULL
           : json_is_boolean(v) ? GR_JSON_BOOL
           : json_is_object(v)  ? GR_JSON_OBJECT
           : json_is_array(v)   ? GR_JSON_ARRAY
           : json_is_string(v)  ? GR_JSON_STRING
                                : GR_JSON_INTEGER;
}

static size_t n_chars(const char *p)
{
    size_t n = 0;
    for (; *p; p++)
        n += ((uint8_t)*p & 0xc0) != 0x80;
    return n;
}

/* Whether a number or a string is within the bounds of a part. */
static bool within(json_t *schema, json_t *v)
{
    json_t *lo = json_object_get(schema, "minimum"), *hi = json_object_get(schema, "maximum");
    json_t *above = json_object_get(schema, "exclusiveMinimum");
    json_t *below = json_object_get(schema, "exclusiveMaximum");
    json_t *least = json_object_get(schema, "minLength"),
           *most = json_object_get(schema, "maxLength");
    if (json_is_string(v)) {
        double n = (double)n_chars(json_string_value(v));
        return (!least || n >= json_number_value(least)) && (!most || n <= json_number_value(most));
    }
    double x = json_number_value(v);
    return !json_is_number(v) ||
           ((!lo || x >= json_number_value(lo)) && (!hi || x <= json_number_value(hi)) &&
            (!above || x > json_number_value(above)) && (!below || x < json_number_value(below)));
}

/* A keyword of a part that values of a type are to be checked against, and are not here. */
static const char *unchecked(json_t *schema, json_t *v)
{
    static const struct {
        unsigned types;
        const char *name;
    } others[] = {
        {GR_JSON_STRING, "pattern"},       {GR_JSON_STRING, "format"},
        {GR_JSON_OBJECT, "properties"},    {GR_JSON_OBJECT, "additionalProperties"},
        {GR_JSON_OBJECT, "required"},      {GR_JSON_OBJECT, "minProperties"},
        {GR_JSON_OBJECT, "maxProperties"}, {GR_JSON_ARRAY, "items"},
        {GR_JSON_ARRAY, "prefixItems"},    {GR_JSON_ARRAY, "minItems"},
        {GR_JSON_ARRAY, "maxItems"},
    };
    for (size_t i = 0; i < GR_COUNT(others); i++)
        if (others[i].types & types_of(v) && json_object_get(schema, others[i].name))
            return others[i].name;
    return NULL;
}

/* Comparisons that a value, or the name of a property, in one part counts as. */
enum { VALUE_IN_PART = 32, NAME_IN_PART = 8 };

/* Leaves the values that all other keywords allow. */
static void filter_values(struct gr_schema *s, const struct gr_part *parts, size_t n,
                          struct gr_shape *shape)
{
    for (size_t i = json_array_size(shape->values); i-- > 0 && !s->r->rc;) {
        json_t *v = json_array_get(shape->values, i);
        bool fits = (types_of(v) & shape->types) != 0;
        for (size_t k = 0; k < n && fits; k++) {
            const char *other = unchecked(parts[k].schema, v);
            if (other)
                gr_schema_fail(s, shape->values_at,
                               "values of this kind beside %s are not supported: leave that out",
                               other);
            fits = within(parts[k].schema, v);
        }
        if (!gr_schema_compares(s, shape->values_at, n * VALUE_IN_PART))
            return;
        if (!fits)
            (void)json_array_remove(shape->values, i);
    }
}

static void drop_empty(struct gr_schema *s, struct gr_shape *shape)
{
    if (shape->types & GR_JSON_FRACTION && shape->range_at && !shape->values)
        gr_schema_fail(s, shape->range_at, "bounds are supported for \"type\": \"integer\" alone");
    if (shape->lo > shape->hi)
        shape->types &= ~(unsigned)GR_JSON_INTEGER;
    if (shape->min_length > shape->max_length)
        shape->types &= ~(unsigned)GR_JSON_STRING;
    if (shape->min_items > shape->max_items)
        shape->types &= ~(unsigned)GR_JSON_ARRAY;
    if (shape->min_properties > shape->max_properties)
        shape->types &= ~(unsigned)GR_JSON_OBJECT;
}

void gr_shape_read(struct gr_schema *s, const struct gr_part *parts, size_t n,
                   struct gr_shape *shape)
{
    *shape = (struct gr_shape){.types = GR_JSON_ALL,
                               .lo = INT64_MIN,
                               .hi = INT64_MAX,
                               .max_length = GR_UNBOUNDED,
                               .max_items = GR_UNBOUNDED,
                               .max_properties = GR_UNBOUNDED};
    for (size_t i = 0; i < n; i++) {
        const char *name;
        json_t *v;
        json_object_foreach(parts[i].schema, name, v)
        {
            struct reader r = {s, shape, gr_schema_at(s, parts[i].at, name)};
            read_keyword(&r, name, v);
        }
    }
    if (shape->values)
        filter_values(s, parts, n, shape);
    if (!s->r->rc)
        drop_empty(s, shape);
}

/* ---- shapes that have nothing in common ---- */

/* The values that a property may have by const or enum of one of the parts, NULL: any; a new
 * reference. Adds the comparisons to *n. */
static json_t *property_values(const struct gr_vec *parts, const char *name, bool *required,
                               bool *forbidden, size_t *n)
{
    json_t *values = NULL;
    const struct gr_part *p = parts->data;
    *required = *forbidden = false;
    for (size_t i = 0; i < parts->n; i++) {
        json_t *own = json_object_get(json_object_get(p[i].schema, "properties"), name), *v, *list;
        json_t *names = json_object_get(p[i].schema, "required");
        *n += NAME_IN_PART + json_array_size(names);
        for (size_t k = 0; k < json_array_size(names); k++)
            *required |= !strcmp(json_string_value(json_array_get(names, k)), name);
        *forbidden |= json_is_false(own) ||
                      (!own && json_is_false(json_object_get(p[i].schema, "additionalProperties")));
        if (values)
            continue;
        if ((v = json_object_get(own, "const")))
            values = json_pack("[O]", v);
        else if ((list = json_object_get(own, "enum")) && json_is_array(list))
            values = json_incref(list);
    }
    return values;
}

static bool none_shared(struct gr_schema *s, const char *at, json_t *a, json_t *b)
{
    for (size_t i = 0; i < json_array_size(a) && !s->r->rc; i++)
        if (contains(s, at, b, json_array_get(a, i)))
            return false;
    return true;
}

/* Whether a property tells objects of a and b apart: required in both with different values, or
 * required in one and forbidden in the other. */
static bool property_apart(struct gr_schema *s, const struct gr_vec *a, const struct gr_vec *b,
                           const char *name)
{
    bool need_a, need_b, no_a, no_b;
    size_t n = 0;
    const char *at = ((const struct gr_part *)b->data)->at;
    json_t *va = property_values(a, name, &need_a, &no_a, &n);
    json_t *vb = property_values(b, name, &need_b, &no_b, &n);
    bool apart = !gr_schema_compares(s, at, n) || (need_a && no_b) || (need_b && no_a) ||
                 (need_a && need_b && va && vb && none_shared(s, at, va, vb));
    json_decref(va);
    json_decref(vb);
    return apart;
}

static bool objects_apart(struct gr_schema *s, const struct gr_vec *a, const struct gr_vec *b)
{
    for (int side = 0; side < 2; side++) {
        const struct gr_vec *v = side ? b : a;
        for (size_t i = 0; i < v->n; i++) {
            json_t *names = json_object_get(((struct gr_part *)v->data)[i].schema, "required");
            for (size_t k = 0; k < json_array_size(names); k++)
                if (property_apart(s, a, b, json_string_value(json_array_get(names, k))))
                    return true;
        }
    }
    return false;
}

static unsigned types_of_all(json_t *values)
{
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(values); i++)
        types |= types_of(json_array_get(values, i));
    return types;
}

bool gr_shape_apart(struct gr_schema *s, const struct gr_shape *a, const struct gr_vec *a_parts,
                    const struct gr_shape *b, const struct gr_vec *b_parts)
{
    unsigned types = a->types & b->types;
    if (a->values)
        types &= types_of_all(a->values);
    if (b->values)
        types &= types_of_all(b->values);
    if (!types || s->r->rc ||
        (a->values && b->values && none_shared(s, b->values_at, a->values, b->values)))
        return true;
    if (types == GR_JSON_OBJECT)
        return objects_apart(s, a_parts, b_parts);
    if (types == GR_JSON_INTEGER)
        return a->hi < b->lo || b->hi < a->lo;
    return types == GR_JSON_STRING &&
           (a->max_length < b->min_length || b->max_length < a->min_length);
}
