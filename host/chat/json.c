/* JSON to values and back. Recursion ends at GR_VALUE_MAX_DEPTH (for reading: fits). */
#include "chat/json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "chat/run.h"
#include "gr/status.h"

/* NOLINTBEGIN(misc-no-recursion) */

/* ---- reading ---- */

/* What a value's strings are: the operator's own, or input; in `messages` a role is the operator's
 * when it is a plain word. */
enum origin { OPERATOR, INPUT, MESSAGES, MESSAGE };

static bool is_word(const char *p, size_t n)
{
    bool word = n > 0 && n <= 64;
    for (size_t i = 0; i < n && word; i++)
        word = (p[i] >= 'a' && p[i] <= 'z') || (p[i] >= 'A' && p[i] <= 'Z') ||
               (p[i] >= '0' && p[i] <= '9') || p[i] == '_' || p[i] == '-';
    return word;
}

static struct gr_val read_string(struct gr_render *r, const char *p, size_t n, bool input)
{
    struct gr_text t = {0};
    gr_text_put_as(r, &t, p, n, input);
    return gr_text_value(r, &t);
}

static enum origin origin_of(enum origin around, const char *key, const json_t *value)
{
    if (around == MESSAGE && !strcmp(key, "role") && json_is_string(value) &&
        is_word(json_string_value(value), json_string_length(value)))
        return OPERATOR;
    return around == OPERATOR ? OPERATOR : INPUT;
}

/* Returns whether a JSON text keeps the limits, otherwise writes what is wrong to why [80]. jansson
 * allocates outside of the arena, less than 160 bytes for each value. */
static bool fits(const char *p, size_t n, char *why)
{
    size_t values = 1, depth = 0, deepest = 0; /* of values: an upper bound */
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '"') {
            quoted = !quoted;
        } else if (quoted) {
            i += p[i] == '\\';
        } else if (p[i] == '[' || p[i] == '{') {
            values++, depth++;
            deepest = GR_MAX(deepest, depth);
        } else {
            depth -= depth && (p[i] == ']' || p[i] == '}');
            values += p[i] == ',' || p[i] == ':';
        }
    }
    if (deepest > GR_VALUE_MAX_DEPTH)
        snprintf(why, 80, "JSON is nested deeper than %u", GR_VALUE_MAX_DEPTH);
    else if (values > GR_JSON_MAX_VALUES)
        snprintf(why, 80, "JSON of more than %u values", GR_JSON_MAX_VALUES);
    else
        return true;
    return false;
}

static struct gr_val read_value(struct gr_render *r, const json_t *j, enum origin origin);

static struct gr_val read_array(struct gr_render *r, const json_t *j, enum origin origin)
{
    struct gr_list *l = gr_list_new(r, json_array_size(j));
    enum origin of = origin == MESSAGES ? MESSAGE : origin == MESSAGE ? INPUT : origin;
    for (size_t i = 0; i < json_array_size(j) && gr_render_ok(r); i++)
        gr_list_push(r, l, read_value(r, json_array_get(j, i), of));
    return gr_list_value(l);
}

/* Keys are unique and need no search: jansson has seen to that. */
static void append(struct gr_render *r, struct gr_dict *d, size_t room, struct gr_val key,
                   struct gr_val value)
{
    if (!d->cap) {
        d->v = gr_render_alloc(r, room, sizeof *d->v);
        d->cap = d->v ? room : 0;
    }
    if (gr_render_ok(r) && d->n < d->cap)
        d->v[d->n++] = (struct gr_pair){key, value};
}

static struct gr_val read_object(struct gr_render *r, const json_t *j, enum origin origin)
{
    struct gr_dict *d = gr_dict_new(r);
    for (void *i = json_object_iter((json_t *)j); i && gr_render_ok(r);
         i = json_object_iter_next((json_t *)j, i)) {
        const char *key = json_object_iter_key(i);
        const json_t *value = json_object_iter_value(i);
        struct gr_val k = read_string(r, key, strlen(key), origin != OPERATOR);
        append(r, d, json_object_size(j), k, read_value(r, value, origin_of(origin, key, value)));
    }
    return gr_dict_value(d);
}

static struct gr_val read_value(struct gr_render *r, const json_t *j, enum origin origin)
{
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return read_object(r, j, origin);
    case JSON_ARRAY:
        return read_array(r, j, origin);
    case JSON_STRING:
        return read_string(r, json_string_value(j), json_string_length(j), origin != OPERATOR);
    case JSON_INTEGER:
        return gr_int(json_integer_value(j));
    case JSON_REAL:
        return gr_float(json_real_value(j));
    case JSON_TRUE:
    case JSON_FALSE:
        return gr_bool(json_is_true(j));
    default:
        return gr_none();
    }
}

struct gr_val gr_from_json(struct gr_render *r, const char *p, size_t n, bool input)
{
    json_error_t e;
    char why[80];
    if (!gr_render_step(r, n / 32))
        return gr_none();
    if (!fits(p, n, why))
        return gr_render_fail(r, "from_json: %s", why);
    json_t *j = json_loadb(p, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!j)
        return gr_render_fail(r, "from_json: line %d, column %d: %s", e.line, e.column,
                              gr_one_line(e.text));
    struct gr_val v = read_value(r, j, input ? INPUT : OPERATOR);
    json_decref(j);
    return v;
}

/* Returns whether a variable is the operator's: a special token's text. */
static bool is_token_name(const char *key)
{
    size_t n = strlen(key);
    return (n >= 6 && !strcmp(key + n - 6, "_token")) ||
           (n >= 7 && !strcmp(key + n - 7, "_tokens"));
}

struct gr_val gr_context_read(struct gr_render *r, const char *p, size_t n)
{
    json_error_t e;
    char why[80];
    struct gr_dict *d = gr_dict_new(r);
    if (!fits(p, n, why)) {
        r->rc = gr_fail(GR_E_INVALID, "variables of the chat template: %s", why);
        return gr_none();
    }
    json_t *j = json_loadb(n ? p : " ", n ? n : 1, JSON_ALLOW_NUL, &e);
    if (!j) {
        r->rc = gr_fail(GR_E_INVALID, "variables of the chat template, line %d, column %d: %s",
                        e.line, e.column, gr_one_line(e.text));
    } else if (!json_is_object(j)) {
        r->rc = gr_fail(GR_E_INVALID, "the variables of a chat template are a JSON object with "
                                      "members like messages; this is something else");
    }
    for (void *i = j && !r->rc ? json_object_iter(j) : NULL; i && !r->rc;
         i = json_object_iter_next(j, i)) {
        const char *key = json_object_iter_key(i);
        enum origin origin = !strcmp(key, "messages") ? MESSAGES
                             : is_token_name(key)     ? OPERATOR
                                                      : INPUT;
        append(r, d, json_object_size(j), read_string(r, key, strlen(key), false),
               read_value(r, json_object_iter_value(i), origin));
    }
    json_decref(j);
    return gr_dict_value(d);
}

/* ---- writing ---- */

static void put_escape(struct gr_render *r, struct gr_text *t, uint32_t cp, bool input)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    char out[16];
    const char *known = cp < 0x80 && cp ? strchr(from, (int)cp) : NULL;
    int n;
    if (known)
        n = snprintf(out, sizeof out, "\\%c", to[known - from]);
    else if (cp < 0x10000)
        n = snprintf(out, sizeof out, "\\u%04x", cp);
    else
        n = snprintf(out, sizeof out, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                     0xdc00 + ((cp - 0x10000) & 0x3ff));
    gr_text_put_as(r, t, out, (size_t)n, input);
}

static void put_string(struct gr_render *r, struct gr_text *t, const struct gr_string *s,
                       bool ascii)
{
    size_t from = 0;
    gr_text_put_text(r, t, "\"");
    gr_render_step(r, s->n / 64);
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t cp = gr_code_at(s, i, &k);
        if (cp >= ' ' && cp != '"' && cp != '\\' && (cp < 0x7f || !ascii))
            continue;
        if (cp == 0x7f)
            continue;
        gr_text_put(r, t, s->p + from, i - from, s->mark ? s->mark + from : NULL);
        put_escape(r, t, cp, s->mark && s->mark[i]);
        from = i + k;
    }
    gr_text_put(r, t, s->p + from, s->n - from, s->mark ? s->mark + from : NULL);
    gr_text_put_text(r, t, "\"");
}

static void put_scalar(struct gr_render *r, struct gr_text *t, struct gr_val v,
                       const struct gr_json_style *style)
{
    if (gr_is_str(v))
        put_string(r, t, v.str, style->ascii);
    else if (v.type == GR_VAL_NONE)
        gr_text_put_text(r, t, "null");
    else if (v.type == GR_VAL_BOOL)
        gr_text_put_text(r, t, v.b ? "true" : "false");
    else if (v.type == GR_VAL_FLOAT && !isfinite(v.f))
        gr_text_put_text(r, t, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
    else if (gr_is_number(v))
        gr_put_repr(r, t, v);
    else if (v.type == GR_VAL_UNDEFINED)
        gr_render_fail(r, "Object of type Undefined is not JSON serializable");
    else
        gr_render_fail(r, "Object of type %s is not JSON serializable", gr_type_name(v));
}

static void put_key(struct gr_render *r, struct gr_text *t, struct gr_val key,
                    const struct gr_json_style *style)
{
    if (gr_is_str(key)) {
        put_string(r, t, key.str, style->ascii);
        return;
    }
    if (!gr_is_number(key) && key.type != GR_VAL_NONE) {
        gr_render_fail(r, "keys must be str, int, float, bool or None, not %s", gr_type_name(key));
        return;
    }
    gr_text_put_text(r, t, "\"");
    put_scalar(r, t, key, style);
    gr_text_put_text(r, t, "\"");
}

static void new_line(struct gr_render *r, struct gr_text *t, const struct gr_json_style *style,
                     unsigned depth)
{
    if (!style->indent)
        return;
    gr_text_put_text(r, t, "\n");
    for (unsigned i = 0; i < depth; i++)
        gr_text_put_str(r, t, style->indent);
}

/* Sorts by keys; merge sort of pairs by gr_order is stable. */
static struct gr_pair *sorted(struct gr_render *r, const struct gr_dict *d)
{
    struct gr_pair *a = gr_render_alloc(r, d->n + 1, sizeof *a);
    struct gr_pair *b = gr_render_alloc(r, d->n + 1, sizeof *b);
    if (!a || !b)
        return d->v;
    if (d->n)
        memcpy(a, d->v, d->n * sizeof *a);
    for (size_t width = 1; width < d->n; width *= 2) {
        for (size_t lo = 0; lo < d->n && gr_render_step(r, width); lo += 2 * width) {
            size_t mid = GR_MIN(lo + width, d->n), hi = GR_MIN(lo + 2 * width, d->n);
            size_t i = lo, j = mid;
            for (size_t k = lo; k < hi; k++) {
                bool right = i >= mid || (j < hi && gr_order(r, a[j].key, a[i].key, "<") == -1);
                b[k] = right ? a[j++] : a[i++];
            }
        }
        struct gr_pair *x = a;
        a = b, b = x;
    }
    return a;
}

static void put_json(struct gr_render *r, struct gr_text *t, struct gr_val v,
                     const struct gr_json_style *style, unsigned depth);

static void put_object(struct gr_render *r, struct gr_text *t, const struct gr_dict *d,
                       const struct gr_json_style *style, unsigned depth)
{
    const struct gr_pair *p = style->sort ? sorted(r, d) : d->v;
    gr_text_put_text(r, t, "{");
    for (size_t i = 0; i < d->n && gr_render_step(r, 1); i++) {
        if (i)
            gr_text_put_str(r, t, &style->item);
        new_line(r, t, style, depth + 1);
        put_key(r, t, p[i].key, style);
        gr_text_put_str(r, t, &style->key);
        put_json(r, t, p[i].value, style, depth + 1);
    }
    if (d->n)
        new_line(r, t, style, depth);
    gr_text_put_text(r, t, "}");
}

static void put_array(struct gr_render *r, struct gr_text *t, const struct gr_list *l,
                      const struct gr_json_style *style, unsigned depth)
{
    gr_text_put_text(r, t, "[");
    for (size_t i = 0; i < l->n && gr_render_step(r, 1); i++) {
        if (i)
            gr_text_put_str(r, t, &style->item);
        new_line(r, t, style, depth + 1);
        put_json(r, t, l->v[i], style, depth + 1);
    }
    if (l->n)
        new_line(r, t, style, depth);
    gr_text_put_text(r, t, "]");
}

static void put_json(struct gr_render *r, struct gr_text *t, struct gr_val v,
                     const struct gr_json_style *style, unsigned depth)
{
    if (depth > GR_VALUE_MAX_DEPTH)
        gr_render_fail(r, "a value that is nested deeper than %u is not written as JSON",
                       GR_VALUE_MAX_DEPTH);
    else if (v.type == GR_VAL_DICT)
        put_object(r, t, v.dict, style, depth);
    else if (gr_is_sequence(v))
        put_array(r, t, v.list, style, depth);
    else
        put_scalar(r, t, v, style);
}

void gr_put_json(struct gr_render *r, struct gr_text *t, struct gr_val v,
                 const struct gr_json_style *style)
{
    put_json(r, t, v, style, 0);
}

/* NOLINTEND(misc-no-recursion) */
