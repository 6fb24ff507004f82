/* Objects and arrays of JSON schemas. Properties come in the order in which the schema lists them,
 * required ones that it does not list behind these, and then any others. */
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "grammar/schema_impl.h"

struct property {
    const char *name;
    bool required;
    uint32_t member; /* rule: "name": value; 0: nothing is valid */
};

struct object {
    struct gr_schema *s;
    const struct gr_part *parts;
    size_t n;
    struct gr_vec properties; /* struct property */
};

/* ---- properties ---- */

static struct property *find_property(struct object *o, const char *name)
{
    struct property *p = o->properties.data;
    for (size_t i = 0; i < o->properties.n; i++)
        if (!strcmp(p[i].name, name))
            return &p[i];
    p = gr_vec_push(&o->properties, sizeof *p);
    if (p)
        p->name = name;
    else
        o->s->r->rc = GR_E_NOMEM_HOST;
    return p;
}

static void list_properties(struct object *o)
{
    for (size_t i = 0; i < o->n && !o->s->r->rc; i++) {
        const char *name;
        json_t *v;
        json_object_foreach(json_object_get(o->parts[i].schema, "properties"), name,
                            v) if (!o->s->r->rc)(void) find_property(o, name);
    }
    for (size_t i = 0; i < o->n && !o->s->r->rc; i++) {
        json_t *required = json_object_get(o->parts[i].schema, "required");
        for (size_t k = 0; k < json_array_size(required) && !o->s->r->rc; k++) {
            struct property *p = find_property(o, json_string_value(json_array_get(required, k)));
            if (p)
                p->required = true;
        }
    }
}

/* The node of a property's value, name NULL: of one that is not listed. *some: there are values. */
static uint32_t property_value(struct object *o, const char *name, bool *some)
{
    struct gr_schema *s = o->s;
    struct gr_vec all = {0};
    *some = true;
    for (size_t i = 0; i < o->n && *some && !s->r->rc; i++) {
        const char *at = gr_schema_at(s, o->parts[i].at, "properties");
        json_t *listed = json_object_get(o->parts[i].schema, "properties");
        json_t *own = name ? json_object_get(listed, name) : NULL;
        json_t *other = json_object_get(o->parts[i].schema, "additionalProperties");
        if (own)
            *some = gr_schema_flatten(s, own, gr_schema_at(s, at, name), &all);
        else if (other)
            *some = gr_schema_flatten(
                s, other, gr_schema_at(s, o->parts[i].at, "additionalProperties"), &all);
    }
    uint32_t node = *some ? gr_schema_rule(s, &all) : 0;
    gr_vec_fini(&all);
    return node;
}

/* A rule of a key, a colon and a value; 0: there is none. */
static uint32_t make_member(struct object *o, const char *name)
{
    struct gr_rules *r = o->s->r;
    bool some;
    uint32_t value = property_value(o, name, &some), seq = gr_rules_seq(r), rule, key;
    if (!some || r->rc)
        return 0;
    if (name) {
        key = gr_schema_quoted(o->s, name);
    } else {
        struct property *p = o->properties.data;
        const char **names = gr_calloc(o->properties.n, sizeof *names);
        for (size_t i = 0; i < o->properties.n && names; i++)
            names[i] = p[i].name;
        key = names ? gr_schema_other_key(o->s, names, o->properties.n) : 0;
        gr_free(names);
    }
    gr_rules_add(r, seq, key);
    gr_rules_add(r, seq, gr_rules_text(r, ":"));
    gr_rules_add(r, seq, gr_schema_space(o->s));
    gr_rules_add(r, seq, value);
    rule = gr_rules_new(r);
    gr_rules_define(r, rule, seq);
    return rule;
}

/* ---- members in order ---- */

static uint32_t comma(struct gr_schema *s, uint32_t node)
{
    uint32_t seq = gr_rules_seq(s->r);
    gr_rules_add(s->r, seq, gr_rules_text(s->r, ","));
    gr_rules_add(s->r, seq, gr_schema_space(s));
    gr_rules_add(s->r, seq, node);
    return seq;
}

/* The rules of what follows members before i: rest [n + 1]. */
static void make_rests(struct object *o, uint32_t other, uint32_t *rest)
{
    struct gr_rules *r = o->s->r;
    const struct property *p = o->properties.data;
    for (size_t i = o->properties.n + 1; i-- > 0 && !r->rc;) {
        uint32_t seq = gr_rules_seq(r);
        if (i == o->properties.n) {
            if (other)
                gr_rules_add(
                    r, seq,
                    gr_rules_repeat(r, comma(o->s, gr_rules_ref(r, other)), 0, GR_UNBOUNDED));
        } else {
            if (p[i].member) {
                uint32_t one = comma(o->s, gr_rules_ref(r, p[i].member));
                gr_rules_add(r, seq, p[i].required ? one : gr_rules_repeat(r, one, 0, 1));
            } else if (p[i].required) {
                gr_rules_add(r, seq, gr_rules_alt(r)); /* nothing is valid */
            }
            gr_rules_add(r, seq, gr_rules_ref(r, rest[i + 1]));
        }
        rest[i] = gr_rules_new(r);
        gr_rules_define(r, rest[i], seq);
    }
}

/* Adds the ways to begin: with each property before which none is required, with another one, with
 * nothing. */
static void add_beginnings(struct object *o, uint32_t other, const uint32_t *rest, uint32_t alt)
{
    struct gr_rules *r = o->s->r;
    const struct property *p = o->properties.data;
    size_t i = 0, n = o->properties.n;
    for (; i <= n && !r->rc; i++) {
        uint32_t first = i < n ? p[i].member : other, seq = gr_rules_seq(r);
        if (first) {
            gr_rules_add(r, seq, gr_schema_space(o->s));
            gr_rules_add(r, seq, gr_rules_ref(r, first));
            gr_rules_add(r, seq, gr_rules_ref(r, rest[i < n ? i + 1 : n]));
            gr_rules_add(r, alt, seq);
        }
        if (i < n && p[i].required)
            return;
    }
    gr_rules_add(r, alt, 0);
}

/* Refuses counts of properties that are not met by any object of the others' making. */
static void check_counts(struct object *o, const struct gr_shape *shape, bool closed)
{
    const struct property *p = o->properties.data;
    size_t n_required = 0;
    for (size_t i = 0; i < o->properties.n; i++)
        n_required += p[i].required;
    if (shape->min_properties > n_required)
        gr_schema_fail(o->s, shape->properties_at,
                       "%u properties at least, where %zu are required: list more as required",
                       shape->min_properties, n_required);
    if (shape->max_properties != GR_UNBOUNDED &&
        (!closed || shape->max_properties < o->properties.n))
        gr_schema_fail(o->s, shape->properties_at,
                       "%u properties at most is not supported where there may be more: use "
                       "additionalProperties false",
                       shape->max_properties);
}

uint32_t gr_schema_object(struct gr_schema *s, const struct gr_part *parts, size_t n,
                          const struct gr_shape *shape)
{
    struct object o = {.s = s, .parts = parts, .n = n};
    struct gr_rules *r = s->r;
    list_properties(&o);
    struct property *p = o.properties.data;
    for (size_t i = 0; i < o.properties.n && !r->rc; i++)
        p[i].member = make_member(&o, p[i].name);
    uint32_t other = make_member(&o, NULL), inner = gr_rules_alt(r), seq = gr_rules_seq(r);
    if (!r->rc)
        check_counts(&o, shape, !other);
    uint32_t *rest = gr_calloc(o.properties.n + 1, sizeof *rest);
    if (!rest)
        r->rc = r->rc ? r->rc : GR_E_NOMEM_HOST;
    if (!r->rc) {
        make_rests(&o, other, rest);
        add_beginnings(&o, other, rest, inner);
    }
    gr_rules_add(r, seq, gr_rules_text(r, "{"));
    gr_rules_add(r, seq, inner);
    gr_rules_add(r, seq, gr_schema_space(s));
    gr_rules_add(r, seq, gr_rules_text(r, "}"));
    gr_free(rest);
    gr_vec_fini(&o.properties);
    return seq;
}

/* ---- arrays ---- */

/* The node of item i; k: the parts' prefixItems have no more than k. *some: there are values. */
static uint32_t item(struct gr_schema *s, const struct gr_part *parts, size_t n, size_t i,
                     bool *some)
{
    struct gr_vec all = {0};
    *some = true;
    for (size_t k = 0; k < n && *some && !s->r->rc; k++) {
        json_t *own = json_array_get(json_object_get(parts[k].schema, "prefixItems"), i);
        json_t *other = json_object_get(parts[k].schema, "items");
        const char *at = gr_schema_at(s, parts[k].at, own ? "prefixItems" : "items");
        if (own)
            *some = gr_schema_flatten(s, own, gr_schema_at_index(s, at, i), &all);
        else if (other)
            *some = gr_schema_flatten(s, other, at, &all);
    }
    uint32_t node = *some ? gr_schema_rule(s, &all) : 0;
    gr_vec_fini(&all);
    return node;
}

static size_t prefix_length(const struct gr_part *parts, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = GR_MAX(most, json_array_size(json_object_get(parts[i].schema, "prefixItems")));
    return most;
}

/* The items from `first` on, of which `first` are there, as `least` to `most` items of one kind. */
static uint32_t more_items(struct gr_schema *s, const struct gr_part *parts, size_t n, size_t first,
                           const struct gr_shape *shape)
{
    struct gr_rules *r = s->r;
    uint32_t least = shape->min_items > first ? shape->min_items - (uint32_t)first : 0;
    uint32_t most = shape->max_items == GR_UNBOUNDED ? GR_UNBOUNDED
                    : shape->max_items > first       ? shape->max_items - (uint32_t)first
                                                     : 0;
    bool some;
    uint32_t node = most ? item(s, parts, n, first, &some) : 0;
    if (!most || !some)
        return least ? gr_rules_alt(r) : 0; /* none, or nothing is valid */
    if (first)
        return gr_rules_repeat(r, comma(s, node), least, most);
    uint32_t seq = gr_rules_seq(r), again = item(s, parts, n, first, &some);
    gr_rules_add(r, seq, gr_schema_space(s));
    gr_rules_add(r, seq, node);
    gr_rules_add(r, seq,
                 gr_rules_repeat(r, comma(s, again), least ? least - 1 : 0,
                                 most == GR_UNBOUNDED ? most : most - 1));
    return least ? seq : gr_rules_repeat(r, seq, 0, 1);
}

uint32_t gr_schema_array(struct gr_schema *s, const struct gr_part *parts, size_t n,
                         const struct gr_shape *shape)
{
    struct gr_rules *r = s->r;
    size_t k = GR_MIN(prefix_length(parts, n), shape->max_items);
    uint32_t inner = more_items(s, parts, n, k, shape), seq = gr_rules_seq(r);
    for (size_t i = k; i-- > 0 && !r->rc;) {
        bool some;
        uint32_t one = gr_rules_seq(r), node = item(s, parts, n, i, &some);
        node = some ? node : gr_rules_alt(r);
        if (i == 0)
            gr_rules_add(r, one, gr_schema_space(s));
        gr_rules_add(r, one, i ? comma(s, node) : node);
        gr_rules_add(r, one, inner);
        inner = i >= shape->min_items ? gr_rules_repeat(r, one, 0, 1) : one;
    }
    gr_rules_add(r, seq, gr_rules_text(r, "["));
    gr_rules_add(r, seq, inner);
    gr_rules_add(r, seq, gr_schema_space(s));
    gr_rules_add(r, seq, gr_rules_text(r, "]"));
    return seq;
}
