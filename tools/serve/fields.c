/* Fields of a request. */
#include "fields.h"

#include <stdarg.h>
#include <stdio.h>

#include "server.h"

const json_t *gr_field(const struct gr_fields *f, const char *name)
{
    const json_t *v = json_object_get(f->object, name);
    return json_is_null(v) ? NULL : v;
}

void gr_field_wrong(struct gr_fields *f, const char *name, const char *message, ...)
{
    va_list args;
    if (f->wrong)
        return;
    f->wrong = true;
    snprintf(f->param, sizeof f->param, "%s%s", f->within ? f->within : "", name);
    va_start(args, message);
    (void)vsnprintf(f->message, sizeof f->message, message, args);
    va_end(args);
}

static const char *type_name(const json_t *v)
{
    static const char *const name[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return name[json_typeof(v)];
}

/* Returns the field if it has the type. */
static const json_t *typed(struct gr_fields *f, const char *name, bool good, const char *expected)
{
    const json_t *v = gr_field(f, name);
    if (!v || good)
        return v;
    gr_field_wrong(f, name, "%s%s: %s is expected, not %s", f->within ? f->within : "", name,
                   expected, type_name(v));
    return NULL;
}

bool gr_field_bool(struct gr_fields *f, const char *name, bool def)
{
    const json_t *v = typed(f, name, json_is_boolean(gr_field(f, name)), "true or false");
    return v ? json_is_true(v) : def;
}

int64_t gr_field_int(struct gr_fields *f, const char *name, int64_t def, int64_t lo, int64_t hi)
{
    const json_t *v = typed(f, name, json_is_integer(gr_field(f, name)), "an integer");
    int64_t n = v ? json_integer_value(v) : def;
    if (!v || (n >= lo && n <= hi))
        return n;
    gr_field_wrong(f, name, "%s: %lld is not in the range of %lld to %lld", name, (long long)n,
                   (long long)lo, (long long)hi);
    return def;
}

double gr_field_number(struct gr_fields *f, const char *name, double def, double lo, double hi)
{
    const json_t *v = typed(f, name, json_is_number(gr_field(f, name)), "a number");
    double n = v ? json_number_value(v) : def;
    if (!v || (n >= lo && n <= hi))
        return n;
    gr_field_wrong(f, name, "%s: %g is not in the range of %g to %g", name, n, lo, hi);
    return def;
}

const char *gr_field_text(struct gr_fields *f, const char *name)
{
    return json_string_value(typed(f, name, json_is_string(gr_field(f, name)), "a string"));
}

const json_t *gr_field_list(struct gr_fields *f, const char *name)
{
    return typed(f, name, json_is_array(gr_field(f, name)), "a list");
}

const json_t *gr_field_object(struct gr_fields *f, const char *name)
{
    return typed(f, name, json_is_object(gr_field(f, name)), "an object");
}

void gr_fields_take(struct gr_fields *f, const struct gr_fields *inner)
{
    if (inner->wrong)
        gr_field_wrong(f, inner->param, "%s", inner->message);
}

bool gr_fields_refuse(const struct gr_fields *f, struct gr_exchange *x)
{
    if (f->wrong)
        gr_refuse_as(x, 400, *f->param ? f->param : NULL, f->code, f->message);
    return f->wrong;
}
