/* Conjunctions of schemas become rules. */
#include "grammar/schema.h"

#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "grammar/schema_impl.h"

enum { MAX_BRANCHES = 1024 };

/* ---- alternatives ---- */

struct branch {
    struct gr_vec parts; /* struct gr_part */
    struct gr_shape shape;
    const char *at;
};

static void free_branches(struct branch *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        json_decref(b[i].shape.values);
        gr_vec_fini(&b[i].parts);
    }
    gr_free(b);
}

/* The parts with member i of anyOf or oneOf of part k; false: nothing is valid. */
static bool choose(struct gr_schema *s, const struct gr_todo *t, size_t k, json_t *list, size_t i,
                   unsigned done, struct branch *b)
{
    if (!s->r->rc)
        s->r->rc = gr_vec_append(&b->parts, t->parts, t->n, sizeof *t->parts);
    if (s->r->rc)
        return false;
    ((struct gr_part *)b->parts.data)[k].done |= done;
    json_t *schema = json_array_get(list, i);
    b->at = gr_schema_at_index(
        s, gr_schema_at(s, t->parts[k].at, done == GR_PART_ANY_DONE ? "anyOf" : "oneOf"), i);
    return gr_schema_flatten(s, schema, b->at, &b->parts);
}

/* Refuses branches of oneOf that one value may match both of. */
static void check_apart(struct gr_schema *s, struct branch *b, size_t n)
{
    for (size_t i = 0; i < n && !s->r->rc; i++)
        gr_shape_read(s, b[i].parts.data, b[i].parts.n, &b[i].shape);
    for (size_t i = 0; i < n && !s->r->rc; i++)
        for (size_t k = 0; k < i && !s->r->rc; k++)
            if (!gr_shape_apart(s, &b[k].shape, &b[k].parts, &b[i].shape, &b[i].parts) && !s->r->rc)
                gr_schema_fail(s, b[i].at,
                               "a value may match this and %s too, where oneOf wants one of them: "
                               "use anyOf, or tell them apart by type, or by a required property "
                               "with const or enum",
                               gr_quote(b[k].at, strlen(b[k].at)));
}

static uint32_t make_choice(struct gr_schema *s, const struct gr_todo *t, size_t k, json_t *list,
                            unsigned done)
{
    size_t n = json_array_size(list), n_some = 0;
    uint32_t alt = gr_rules_alt(s->r);
    if (!n)
        gr_schema_fail(
            s, gr_schema_at(s, t->parts[k].at, done == GR_PART_ANY_DONE ? "anyOf" : "oneOf"),
            "a list of schemas is expected");
    if (n > MAX_BRANCHES)
        gr_schema_fail(s, t->parts[k].at, "more than %d alternatives", MAX_BRANCHES);
    struct branch *b = s->r->rc ? NULL : gr_calloc(n, sizeof *b);
    if (!b) {
        s->r->rc = s->r->rc ? s->r->rc : GR_E_NOMEM_HOST;
        return 0;
    }
    for (size_t i = 0; i < n && !s->r->rc; i++) {
        if (choose(s, t, k, list, i, done, &b[n_some]))
            n_some++;
        else
            gr_vec_fini(&b[n_some].parts);
    }
    if (done == GR_PART_ONE_DONE)
        check_apart(s, b, n_some);
    for (size_t i = 0; i < n_some && !s->r->rc; i++)
        gr_rules_add(s->r, alt, gr_schema_rule(s, &b[i].parts));
    free_branches(b, n);
    return alt;
}

/* ---- rules ---- */

static uint32_t make_values(struct gr_schema *s, const struct gr_shape *shape)
{
    uint32_t alt = gr_rules_alt(s->r);
    for (size_t i = 0; i < json_array_size(shape->values) && !s->r->rc; i++)
        gr_rules_add(s->r, alt, gr_schema_value(s, json_array_get(shape->values, i)));
    return alt;
}

static uint32_t make_types(struct gr_schema *s, const struct gr_todo *t,
                           const struct gr_shape *shape)
{
    struct gr_rules *r = s->r;
    uint32_t alt = gr_rules_alt(r);
    if (shape->types & GR_JSON_OBJECT)
        gr_rules_add(r, alt, gr_schema_object(s, t->parts, t->n, shape));
    if (shape->types & GR_JSON_ARRAY)
        gr_rules_add(r, alt, gr_schema_array(s, t->parts, t->n, shape));
    if (shape->types & GR_JSON_STRING)
        gr_rules_add(r, alt, gr_schema_string(s, shape));
    if (shape->types & GR_JSON_INTEGER)
        gr_rules_add(r, alt, gr_schema_number(s, shape));
    if (shape->types & GR_JSON_BOOL) {
        gr_rules_add(r, alt, gr_rules_text(r, "true"));
        gr_rules_add(r, alt, gr_rules_text(r, "false"));
    }
    if (shape->types & GR_JSON_NULL)
        gr_rules_add(r, alt, gr_rules_text(r, "null"));
    return alt;
}

static uint32_t make_conjunction(struct gr_schema *s, const struct gr_todo *t)
{
    struct gr_shape shape = {0};
    for (size_t i = 0; i < t->n; i++) {
        json_t *any = json_object_get(t->parts[i].schema, "anyOf");
        json_t *one = json_object_get(t->parts[i].schema, "oneOf");
        if (json_is_array(any) && !(t->parts[i].done & GR_PART_ANY_DONE))
            return make_choice(s, t, i, any, GR_PART_ANY_DONE);
        if (json_is_array(one) && !(t->parts[i].done & GR_PART_ONE_DONE))
            return make_choice(s, t, i, one, GR_PART_ONE_DONE);
    }
    gr_shape_read(s, t->parts, t->n, &shape);
    uint32_t node = 0;
    if (!s->r->rc)
        node = shape.values ? make_values(s, &shape) : make_types(s, t, &shape);
    json_decref(shape.values);
    return node;
}

/* A list of members between brackets, with commas and blanks. */
static uint32_t make_list(struct gr_schema *s, json_t *value)
{
    struct gr_rules *r = s->r;
    bool object = json_is_object(value);
    uint32_t seq = gr_rules_seq(r);
    size_t i = 0, n = object ? json_object_size(value) : json_array_size(value);
    void *it = object ? json_object_iter(value) : NULL;
    gr_rules_add(r, seq, gr_rules_text(r, object ? "{" : "["));
    for (; i < n && !r->rc; i++, it = object ? json_object_iter_next(value, it) : NULL) {
        if (i)
            gr_rules_add(r, seq, gr_rules_text(r, ","));
        gr_rules_add(r, seq, gr_schema_space(s));
        if (object) {
            gr_rules_add(r, seq, gr_schema_quoted(s, json_object_iter_key(it)));
            gr_rules_add(r, seq, gr_rules_text(r, ":"));
            gr_rules_add(r, seq, gr_schema_space(s));
        }
        gr_rules_add(
            r, seq,
            gr_schema_value(s, object ? json_object_iter_value(it) : json_array_get(value, i)));
    }
    gr_rules_add(r, seq, gr_schema_space(s));
    gr_rules_add(r, seq, gr_rules_text(r, object ? "}" : "]"));
    return seq;
}

static uint32_t make_value(struct gr_schema *s, json_t *value)
{
    if (json_is_object(value) || json_is_array(value))
        return make_list(s, value);
    if (json_is_string(value))
        return gr_schema_quoted(s, json_string_value(value));
    if (json_is_number(value))
        return gr_schema_this_number(s, value);
    return gr_rules_text(s->r, json_is_null(value)   ? "null"
                               : json_is_true(value) ? "true"
                                                     : "false");
}

static void make_rules(struct gr_schema *s)
{
    for (; s->next < s->queue.n && !s->r->rc; s->next++) {
        const struct gr_todo t = ((struct gr_todo *)s->queue.data)[s->next];
        uint32_t body = t.value ? make_value(s, t.value) : make_conjunction(s, &t);
        gr_rules_define(s->r, t.rule, body);
    }
}

/* ---- all of it ---- */

static void read_root(struct gr_schema *s)
{
    struct gr_vec parts = {0};
    uint32_t root = gr_rules_new(s->r), body = gr_rules_alt(s->r);
    if (gr_schema_flatten(s, s->root, "", &parts))
        gr_rules_add(s->r, body, gr_schema_rule(s, &parts));
    gr_rules_define(s->r, root, body);
    gr_vec_fini(&parts);
    make_rules(s);
}

int gr_schema_read(struct gr_rules *rules, const char *text, size_t n)
{
    json_error_t e;
    struct gr_schema s = {.r = rules, .arena.cap = (size_t)64 << 20};
    if (n > GR_GRAMMAR_MAX_SOURCE)
        return gr_fail(GR_E_TOO_LARGE, "JSON schema: %zu bytes, at most %u are read", n,
                       GR_GRAMMAR_MAX_SOURCE);
    s.root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!s.root)
        return gr_fail(GR_E_INVALID, "JSON schema, line %d, column %d: %s", e.line, e.column,
                       gr_one_line(e.text));
    read_root(&s);
    json_decref(s.root);
    gr_arena_fini(&s.arena);
    gr_vec_fini(&s.queue);
    return rules->rc;
}

int gr_grammar_from_schema(struct gr_grammar **out, const char *text, size_t n,
                           const struct gr_token_trie *trie)
{
    struct gr_rules rules;
    *out = NULL;
    int rc = gr_rules_init(&rules);
    if (!rc)
        rc = gr_schema_read(&rules, text, n);
    if (!rc)
        rc = gr_grammar_new(out, &rules, trie, 0, 0);
    gr_rules_fini(&rules);
    return rc;
}
