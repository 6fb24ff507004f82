/* Errors and places of a schema; conjunctions of schemas, and the rules to be made of them. */
#include "grammar/schema_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"

enum { MAX_PARTS = 256, MAX_COMPARED = 1 << 26 };

void gr_schema_fail(struct gr_schema *s, const char *at, const char *fmt, ...)
{
    char what[320];
    va_list args;
    if (s->r->rc)
        return;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    s->r->rc = gr_fail(GR_E_INVALID, "JSON schema, at %s: %s",
                       *at ? gr_quote(at, strlen(at)) : "''", what);
}

bool gr_schema_compares(struct gr_schema *s, const char *at, size_t n)
{
    s->compared += n;
    if (s->compared > MAX_COMPARED)
        gr_schema_fail(s, at, "comparing its values takes too long: make it smaller");
    return !s->r->rc;
}

/* ---- JSON pointers ---- */

const char *gr_schema_at(struct gr_schema *s, const char *at, const char *name)
{
    size_t n = strlen(at), k = n, n_name = strlen(name);
    char *p = s->r->rc ? NULL : gr_arena_alloc(&s->arena, n + 2 * n_name + 2);
    if (!p) {
        s->r->rc = s->r->rc ? s->r->rc : gr_fail(GR_E_TOO_LARGE, "JSON schema: it is too large");
        return "";
    }
    memcpy(p, at, n);
    p[k++] = '/';
    for (size_t i = 0; i < n_name; i++) {
        if (name[i] == '~' || name[i] == '/')
            p[k++] = '~', p[k++] = name[i] == '~' ? '0' : '1';
        else
            p[k++] = name[i];
    }
    return p;
}

const char *gr_schema_at_index(struct gr_schema *s, const char *at, size_t i)
{
    char number[24];
    snprintf(number, sizeof number, "%zu", i);
    return gr_schema_at(s, at, number);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* Writes one name of a pointer, up to the next slash, to out; returns where it ends. */
static const char *read_name(const char *p, char *out)
{
    for (; *p && *p != '/'; p++) {
        char c = *p;
        if (c == '%' && hex_digit(p[1]) >= 0 && hex_digit(p[2]) >= 0)
            c = (char)(hex_digit(p[1]) * 16 + hex_digit(p[2])), p += 2;
        if (c == '~' && (p[1] == '0' || p[1] == '1'))
            c = *++p == '0' ? '~' : '/';
        *out++ = c;
    }
    *out = 0;
    return p;
}

/* The schema that a reference names. */
static json_t *find_ref(struct gr_schema *s, const char *ref, const char *at)
{
    json_t *v = s->root;
    if (ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        gr_schema_fail(s, at, "%s: references are JSON pointers within the schema, #/$defs/name",
                       gr_quote(ref, strlen(ref)));
        return NULL;
    }
    char *name = gr_arena_alloc(&s->arena, strlen(ref) + 1);
    for (const char *p = ref + 1; v && name && *p;) {
        p = read_name(p + 1, name);
        char *end;
        size_t i = strtoul(name, &end, 10);
        v = json_is_array(v) ? (*name && !*end ? json_array_get(v, i) : NULL)
                             : json_object_get(v, name);
    }
    if (!v || !name)
        gr_schema_fail(s, at, "%s leads nowhere", gr_quote(ref, strlen(ref)));
    return v;
}

/* ---- conjunctions ---- */

static const struct gr_part *find_part(const struct gr_vec *parts, const json_t *schema)
{
    const struct gr_part *p = parts->data;
    for (size_t i = 0; i < parts->n; i++)
        if (p[i].schema == schema)
            return &p[i];
    return NULL;
}

static void add_part(struct gr_schema *s, struct gr_vec *parts, json_t *schema, const char *at)
{
    const struct gr_part p = {schema, at, 0};
    if (!s->r->rc && parts->n >= MAX_PARTS)
        gr_schema_fail(s, at, "more than %d schemas hold for one value", MAX_PARTS);
    if (!s->r->rc)
        s->r->rc = gr_vec_append(parts, &p, 1, sizeof p);
}

/* Adds the schema itself; false: it is `false`. */
static bool add_schema(struct gr_schema *s, json_t *schema, const char *at, struct gr_vec *parts)
{
    if (json_is_false(schema))
        return false;
    const struct gr_part *have = find_part(parts, schema);
    if (!json_is_true(schema) && !json_is_object(schema))
        gr_schema_fail(s, at, "a schema is an object, true or false");
    else if (have && have->done)
        gr_schema_fail(s, at, "it refers to itself without a value in between");
    else if (json_is_object(schema) && !have)
        add_part(s, parts, schema, at);
    return true;
}

bool gr_schema_flatten(struct gr_schema *s, json_t *schema, const char *at, struct gr_vec *parts)
{
    bool some = add_schema(s, schema, at, parts);
    for (size_t i = parts->n ? parts->n - 1 : 0; i < parts->n && some && !s->r->rc; i++) {
        struct gr_part p = ((struct gr_part *)parts->data)[i];
        json_t *ref = json_object_get(p.schema, "$ref"), *all = json_object_get(p.schema, "allOf");
        if (json_is_string(ref)) {
            const char *ref_at = gr_schema_at(s, p.at, "$ref");
            json_t *to = find_ref(s, json_string_value(ref), ref_at);
            some = s->r->rc || add_schema(s, to, json_string_value(ref) + 1, parts);
        }
        const char *all_at = all ? gr_schema_at(s, p.at, "allOf") : "";
        for (size_t k = 0; k < json_array_size(all) && some && !s->r->rc; k++)
            some = add_schema(s, json_array_get(all, k), gr_schema_at_index(s, all_at, k), parts);
    }
    return some;
}

static bool same_parts(const struct gr_part *a, const struct gr_part *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].schema != b[i].schema || a[i].done != b[i].done)
            return false;
    return true;
}

static uint32_t new_todo(struct gr_schema *s, struct gr_todo todo)
{
    todo.rule = gr_rules_new(s->r);
    if (!s->r->rc)
        s->r->rc = gr_vec_append(&s->queue, &todo, 1, sizeof todo);
    return todo.rule;
}

uint32_t gr_schema_rule(struct gr_schema *s, const struct gr_vec *parts)
{
    size_t n = parts->n;
    uint32_t hash = (uint32_t)n;
    struct gr_part *copy = s->r->rc ? NULL : gr_arena_alloc(&s->arena, n * sizeof *copy + 1);
    if (!copy) {
        s->r->rc = s->r->rc ? s->r->rc : gr_fail(GR_E_TOO_LARGE, "JSON schema: it is too large");
        return 0;
    }
    if (n)
        memcpy(copy, parts->data, n * sizeof *copy);
    for (size_t i = 0; i < n; i++) /* the order of parts is that of properties: it is kept */
        hash += (uint32_t)((uintptr_t)copy[i].schema >> 4) * 2654435761u + copy[i].done;
    const struct gr_todo *t = s->queue.data;
    for (size_t i = 0; i < s->queue.n; i++)
        if (t[i].hash == hash && !t[i].value && t[i].n == n && same_parts(t[i].parts, copy, n))
            return gr_rules_ref(s->r, t[i].rule);
    return gr_rules_ref(s->r, new_todo(s, (struct gr_todo){.parts = copy, .n = n, .hash = hash}));
}

uint32_t gr_schema_value(struct gr_schema *s, json_t *value)
{
    return gr_rules_ref(s->r, new_todo(s, (struct gr_todo){.value = value}));
}

uint32_t gr_schema_space(struct gr_schema *s)
{
    static const struct gr_chars indent[] = {{' ', ' '}, {'\t', '\t'}};
    struct gr_rules *r = s->r;
    if (!s->space) {
        uint32_t alt = gr_rules_alt(r), line = gr_rules_seq(r);
        s->space = gr_rules_new(r);
        gr_rules_add(r, line, gr_rules_text(r, "\n"));
        gr_rules_add(r, line, gr_rules_repeat(r, gr_rules_class(r, indent, 2, false), 0, 40));
        gr_rules_add(r, alt, 0);
        gr_rules_add(r, alt, gr_rules_text(r, " "));
        gr_rules_add(r, alt, line);
        gr_rules_define(r, s->space, alt);
    }
    return gr_rules_ref(r, s->space);
}
