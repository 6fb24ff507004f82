/* A grammar of calls: the writing of the format (format.def), with the schema of each tool. */
#include "answer/rules.h"

#include <jansson.h>
#include <string.h>

#include "answer/format.h"
#include "base/checked.h"
#include "gr/status.h"
#include "grammar/schema.h"

struct writer {
    struct gr_rules *r;
    const struct gr_vocab *vocab;
    const struct gr_writing *writing;
    uint32_t text; /* rule of strings between tags, 0: not made yet */
};

/* The tool that is being written. */
struct tool {
    const char *name;
    json_t *schema;     /* of its arguments, owned */
    uint32_t arguments; /* rule, 0: not made yet */
};

static void fail(struct writer *w, int rc)
{
    w->r->rc = w->r->rc ? w->r->rc : rc;
}

/* ---- arguments ---- */

static int append(const char *p, size_t n, void *text)
{
    return gr_vec_append(text, p, n, 1);
}

/* The rule of a JSON schema. */
static uint32_t schema_rule(struct writer *w, json_t *schema)
{
    uint32_t rule = (uint32_t)w->r->rules.n; /* gr_schema_read makes its root first */
    struct gr_vec text = {0};
    if (json_dump_callback(schema, append, &text, JSON_COMPACT | JSON_ENCODE_ANY))
        fail(w, gr_fail(GR_E_NOMEM_HOST, "tools: out of host memory"));
    if (!w->r->rc)
        fail(w, gr_schema_read(w->r, text.data, text.n));
    gr_vec_fini(&text);
    return rule;
}

/* Characters but the first two of the closing mark, "<" and another, the last of them no "<": a
 * string that the mark is not within. */
static uint32_t text_rule(struct writer *w, const char *mark)
{
    struct gr_rules *r = w->r;
    uint32_t lo = (uint32_t)GR_MIN(mark[1], '<'), hi = (uint32_t)GR_MAX(mark[1], '<');
    struct gr_chars less = {'<', '<'}, end[] = {{lo, lo}, {hi, hi}};
    if (w->text)
        return w->text;
    uint32_t alt = gr_rules_alt(r), seq = gr_rules_seq(r);
    w->text = gr_rules_new(r);
    gr_rules_add(r, alt, gr_rules_class(r, &less, 1, true));
    gr_rules_add(r, seq, gr_rules_repeat(r, gr_rules_class(r, &less, 1, false), 1, GR_UNBOUNDED));
    gr_rules_add(r, seq, gr_rules_class(r, end, 2, true));
    gr_rules_add(r, alt, seq);
    gr_rules_define(r, w->text, gr_rules_repeat(r, alt, 0, GR_UNBOUNDED));
    return w->text;
}

static bool is_blank_end(char c)
{
    return c == '\n' || c == '\r';
}

/* The strings of enum or const as they are. */
static uint32_t choice_of_strings(struct writer *w, const char *key, json_t *values,
                                  const char *mark)
{
    char begin[] = {mark[0], mark[1], 0};
    uint32_t alt = gr_rules_alt(w->r);
    for (size_t i = 0; i < json_array_size(values) && !w->r->rc; i++) {
        const char *p = json_string_value(json_array_get(values, i));
        size_t n = p ? strlen(p) : 0;
        if (!p || strstr(p, begin) || (n && (is_blank_end(p[0]) || is_blank_end(p[n - 1]))))
            fail(w, gr_fail(GR_E_INVALID,
                            "tools: a value of the parameter %s cannot stand between marks",
                            gr_quote(key, strlen(key))));
        else
            gr_rules_add(w->r, alt, gr_rules_literal(w->r, p, n));
    }
    return alt;
}

/* The values of a parameter that is a string and stands without quotes in front of a mark. */
static uint32_t plain_string(struct writer *w, const char *key, json_t *schema, const char *mark)
{
    static const char *const kept[] = {"type", "description", "title", "default", "examples"};
    const char *name;
    json_t *value, *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    if (json_is_array(list) && !one)
        return choice_of_strings(w, key, list, mark);
    if (one) {
        json_t *values = json_pack("[O]", one);
        uint32_t node = choice_of_strings(w, key, values, mark);
        json_decref(values);
        return node;
    }
    json_object_foreach(schema, name, value)
    {
        bool plain = false;
        for (size_t i = 0; i < GR_COUNT(kept); i++)
            plain = plain || !strcmp(kept[i], name);
        if (!plain)
            fail(w,
                 gr_fail(GR_E_INVALID,
                         "tools: \"%s\" of the parameter %s cannot be kept by this format, which "
                         "writes strings without quotes: leave it out",
                         name, gr_quote(key, strlen(key))));
    }
    return gr_rules_ref(w->r, text_rule(w, mark));
}

static bool is_string(json_t *schema)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type && !strcmp(type, "string");
}

/* A value; p: its place in the pattern. */
static uint32_t parameter_value(struct writer *w, const struct tool *t, const char *key,
                                json_t *schema, const char *p)
{
    static const char *const shared[] = {"$defs", "definitions"};
    if (p[1] == 'v' && is_string(schema))
        return plain_string(w, key, schema, strchr(p, '<'));
    json_t *whole = json_is_object(schema) ? json_copy(schema) : json_deep_copy(schema);
    for (size_t i = 0; i < GR_COUNT(shared); i++)
        if (json_is_object(whole) && json_object_get(t->schema, shared[i]))
            json_object_set(whole, shared[i], json_object_get(t->schema, shared[i]));
    uint32_t rule = schema_rule(w, whole);
    json_decref(whole);
    return gr_rules_ref(w->r, rule);
}

static bool is_required(const struct tool *t, const char *key)
{
    json_t *list = json_object_get(t->schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && !strcmp(name, key))
            return true;
    }
    return false;
}

/* The place in a pattern behind the sign of alternatives at p, the one that is for the schema. */
static const char *choose(const char *p, json_t *schema)
{
    if (p[1] == '|')
        return gr_pattern_behind(p + 2);
    return p[1] == '}' || is_string(schema) ? p + 2 : gr_pattern_next(p + 2);
}

/* One parameter between its tags. */
static uint32_t parameter(struct writer *w, const struct tool *t, const char *key, json_t *schema)
{
    uint32_t seq = gr_rules_seq(w->r);
    if (!*key || strlen(key) > GR_ANSWER_MAX_NAME || strpbrk(key, "<>\"\n") ||
        (w->writing->separator && strpbrk(key, "=:,()[]{}' \t\r\\")))
        fail(w, gr_fail(GR_E_INVALID,
                        "tools: the name of the parameter %s cannot be written in this format",
                        gr_quote(key, strlen(key))));
    for (const char *p = w->writing->parameter; *p && !w->r->rc;) {
        size_t n = strcspn(p, "%");
        gr_answer_add_literal(w->r, w->vocab, seq, p, n);
        p += n;
        if (*p && strchr("{|}", p[1])) {
            p = choose(p, schema);
            continue;
        }
        if (*p && p[1] == 'k')
            gr_rules_add(w->r, seq, gr_rules_text(w->r, key));
        else if (*p && p[1] == 'q')
            gr_rules_add(w->r, seq, gr_rules_text(w->r, is_string(schema) ? "true" : "false"));
        else if (*p)
            gr_rules_add(w->r, seq, parameter_value(w, t, key, schema, p));
        p += *p ? 2 : 0;
    }
    return seq;
}

/* Puts a node in front of those that may follow it, *rest: a rule, 0: nothing; where it may be left
 * out they are all there is. */
static void add_before(struct writer *w, uint32_t *rest, uint32_t node, uint32_t follow,
                       bool required)
{
    struct gr_rules *r = w->r;
    uint32_t seq = gr_rules_seq(r), alt = gr_rules_alt(r), rule = gr_rules_new(r);
    gr_rules_add(r, seq, node);
    if (follow)
        gr_rules_add(r, seq, gr_rules_ref(r, follow));
    gr_rules_add(r, alt, seq);
    if (!required)
        gr_rules_add(r, alt, *rest ? gr_rules_ref(r, *rest) : gr_rules_seq(r));
    gr_rules_define(r, rule, alt);
    *rest = rule;
}

/* Parameters with the separator between them, made from the last one on: `first` is what stands at
 * the beginning, `more` what stands behind a parameter. */
static void add_separated(struct writer *w, uint32_t seq, const struct tool *t)
{
    struct gr_rules *r = w->r;
    const char *separator = w->writing->separator;
    json_t *properties = json_object_get(t->schema, "properties"), *names = json_array(), *schema;
    uint32_t first = 0, more = 0;
    const char *key;
    json_object_foreach(properties, key, schema)
    {
        json_array_append_new(names, json_string(key));
    }
    for (size_t i = json_array_size(names); i && !r->rc; i--) {
        key = json_string_value(json_array_get(names, i - 1));
        uint32_t rule = gr_rules_new(r), next = gr_rules_seq(r);
        uint32_t node = parameter(w, t, key, json_object_get(properties, key));
        if (r->rc)
            break;
        gr_rules_define(r, rule, node);
        gr_answer_add_literal(r, w->vocab, next, separator, strlen(separator));
        gr_rules_add(r, next, gr_rules_ref(r, rule));
        uint32_t behind = more;
        add_before(w, &more, next, behind, is_required(t, key));
        add_before(w, &first, gr_rules_ref(r, rule), behind, is_required(t, key));
    }
    json_decref(names);
    if (first && !r->rc)
        gr_rules_add(r, seq, gr_rules_ref(r, first));
}

static void add_parameters(struct writer *w, uint32_t seq, const struct tool *t)
{
    json_t *properties = json_object_get(t->schema, "properties"), *schema;
    json_t *required = json_object_get(t->schema, "required");
    const char *key;
    for (size_t i = 0; i < json_array_size(required); i++) {
        key = json_string_value(json_array_get(required, i));
        if (!key || !json_object_get(properties, key))
            fail(w, gr_fail(GR_E_INVALID, "tools: a required parameter of %s is not in properties",
                            gr_quote(t->name, strlen(t->name))));
    }
    if (w->writing->separator) {
        add_separated(w, seq, t);
        return;
    }
    json_object_foreach(properties, key, schema)
    {
        uint32_t node = w->r->rc ? 0 : parameter(w, t, key, schema);
        if (w->r->rc)
            return;
        gr_rules_add(w->r, seq, is_required(t, key) ? node : gr_rules_repeat(w->r, node, 0, 1));
    }
}

/* ---- calls ---- */

static uint32_t characters(struct writer *w, uint32_t lo, uint32_t hi, bool digits)
{
    static const struct gr_chars letters[] = {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}};
    return gr_rules_repeat(w->r, gr_rules_class(w->r, letters, digits ? 1 : 3, false), lo, hi);
}

static void add_element(struct writer *w, uint32_t seq, const struct tool *t, char kind)
{
    if (kind == 'n')
        gr_rules_add(w->r, seq, gr_rules_text(w->r, t->name));
    else if (kind == 'a')
        gr_rules_add(w->r, seq, gr_rules_ref(w->r, schema_rule(w, t->schema)));
    else if (kind == 'p')
        add_parameters(w, seq, t);
    else if (kind == 'd')
        gr_rules_add(w->r, seq, characters(w, 1, 4, true));
    else
        gr_rules_add(w->r, seq, characters(w, 9, 9, false));
}

static uint32_t write_call(struct writer *w, const struct tool *t)
{
    uint32_t seq = gr_rules_seq(w->r);
    for (const char *p = w->writing->call; *p && !w->r->rc;) {
        size_t n = strcspn(p, "%");
        gr_answer_add_literal(w->r, w->vocab, seq, p, n);
        p += n;
        if (*p)
            add_element(w, seq, t, p[1]);
        p += *p ? 2 : 0;
    }
    return seq;
}

static bool is_function_name(const char *p)
{
    size_t n = strlen(p);
    return n && n <= GR_ANSWER_MAX_NAME &&
           strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") == n;
}

/* Reads a tool of a request; its schema is that of an object. */
static int read_tool(json_t *json, size_t i, struct tool *t)
{
    json_t *f = json_object_get(json, "function");
    f = f ? f : json;
    *t = (struct tool){.name = json_string_value(json_object_get(f, "name"))};
    json_t *schema = json_object_get(f, "parameters");
    if (!t->name || !is_function_name(t->name))
        return gr_fail(GR_E_INVALID,
                       "tools: the function %zu needs a name of 1 to %d letters, digits and _-./",
                       i, GR_ANSWER_MAX_NAME);
    if (schema && !json_is_null(schema) && !json_is_object(schema))
        return gr_fail(GR_E_INVALID, "tools: parameters of %s: a JSON schema is expected",
                       gr_quote(t->name, strlen(t->name)));
    t->schema = json_is_object(schema)
                    ? json_copy(schema)
                    : json_pack("{s:{}, s:b}", "properties", "additionalProperties", 0);
    if (!t->schema || (!json_object_get(t->schema, "type") &&
                       json_object_set_new(t->schema, "type", json_string("object"))))
        return gr_fail(GR_E_NOMEM_HOST, "tools: out of host memory");
    return 0;
}

static int add_tool(struct writer *w, uint32_t alt, json_t *json, size_t i, const char *only,
                    bool *found)
{
    struct tool t;
    int rc = read_tool(json, i, &t);
    if (!rc && (!only || !strcmp(only, t.name))) {
        *found = true;
        gr_rules_add(w->r, alt, write_call(w, &t));
        rc = w->r->rc;
    }
    json_decref(t.schema);
    return rc;
}

/* All calls, in a row, and what may be in their place. */
static void write_calls(struct writer *w, uint32_t root, uint32_t call,
                        const struct gr_answer_calls *params)
{
    struct gr_rules *r = w->r;
    const struct gr_writing *f = w->writing;
    uint32_t seq = gr_rules_seq(r), more = gr_rules_seq(r), whole = gr_rules_seq(r);
    gr_answer_add_literal(r, w->vocab, seq, f->open, strlen(f->open));
    gr_rules_add(r, seq, gr_rules_ref(r, call));
    if (params->several && f->between) {
        gr_answer_add_literal(r, w->vocab, more, f->between, strlen(f->between));
        gr_rules_add(r, more, gr_rules_ref(r, call));
        gr_rules_add(r, seq, gr_rules_repeat(r, more, 0, GR_UNBOUNDED));
    }
    gr_answer_add_literal(r, w->vocab, seq, f->close, strlen(f->close));
    if (params->optional) {
        fail(w, gr_answer_add_free_text(r, w->vocab, whole, params, *f->open ? f->open : f->call));
        gr_rules_add(r, whole, gr_rules_repeat(r, seq, 0, 1));
    }
    gr_rules_define(r, root, params->optional ? whole : seq);
}

static int write_tools(struct writer *w, const struct gr_answer_calls *params, json_t *tools)
{
    bool found = false;
    int rc = 0;
    uint32_t root = gr_rules_new(w->r), call = gr_rules_new(w->r), alt = gr_rules_alt(w->r);
    for (size_t i = 0; i < json_array_size(tools) && !rc; i++)
        rc = add_tool(w, alt, json_array_get(tools, i), i, params->name, &found);
    if (!rc && !found && params->name)
        rc = gr_fail(GR_E_INVALID, "tools: there is no function %s",
                     gr_quote(params->name, strlen(params->name)));
    else if (!rc && !found)
        rc = gr_fail(GR_E_INVALID, "tools: a JSON array of at least one tool is expected");
    if (rc)
        return rc;
    gr_rules_define(w->r, call, alt);
    write_calls(w, root, call, params);
    return w->r->rc;
}

int gr_answer_rules(struct gr_rules *rules, const struct gr_answer_calls *params,
                    const struct gr_vocab *vocab)
{
    json_error_t e;
    struct writer w = {.r = rules, .vocab = vocab, .writing = gr_format_writing(params->format)};
    if (!w.writing)
        return gr_fail(GR_E_INVALID, "format of answers %s: there is none of this name with calls",
                       gr_quote(params->format, strlen(params->format)));
    json_t *tools = json_loadb(params->tools, params->n_tools, JSON_REJECT_DUPLICATES, &e);
    if (!tools)
        return gr_fail(GR_E_INVALID, "tools, line %d, column %d: %s", e.line, e.column,
                       gr_one_line(e.text));
    int rc = write_tools(&w, params, tools);
    json_decref(tools);
    return rc;
}
