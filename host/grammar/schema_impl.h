/* Shared by the files that read JSON schemas.
 *
 * A schema is read as a *conjunction*: a list of schema objects, all of which hold. References and
 * allOf add to the list; anyOf and oneOf become alternatives of conjunctions. Each conjunction is a
 * rule, made once, so that schemas may refer to themselves; a queue holds those that are not read
 * yet, and nothing recurses. The plain keywords of a conjunction give its *shape*. */
#ifndef GR_GRAMMAR_SCHEMA_IMPL_H
#define GR_GRAMMAR_SCHEMA_IMPL_H

#include <jansson.h>

#include "base/alloc.h"
#include "grammar/rules.h"

enum { GR_PART_ANY_DONE = 1, GR_PART_ONE_DONE = 2 }; /* anyOf, oneOf: already chosen from */

struct gr_part {
    json_t *schema; /* an object */
    const char *at; /* JSON pointer */
    unsigned done;
};

enum gr_json_type {
    GR_JSON_NULL = 1,
    GR_JSON_BOOL = 2,
    GR_JSON_OBJECT = 4,
    GR_JSON_ARRAY = 8,
    GR_JSON_STRING = 16,
    GR_JSON_INTEGER = 32,
    GR_JSON_FRACTION = 64, /* numbers that are no integers */
    GR_JSON_ALL = 127
};

struct gr_shape {
    unsigned types;
    json_t *values;        /* array of those allowed by enum and const, NULL: any */
    const char *values_at; /* where they are from */
    int64_t lo, hi;        /* of integers */
    const char *range_at;  /* a bound of numbers, or NULL */
    uint32_t min_length, max_length, min_items, max_items, min_properties, max_properties;
    const char *length_at, *properties_at;
    const char *pattern, *pattern_at; /* a regular expression, by pattern or format */
};

struct gr_schema {
    struct gr_rules *r;
    json_t *root;
    struct gr_arena arena; /* pointers */
    struct gr_vec queue;   /* struct gr_todo */
    size_t next;
    uint32_t space;         /* rules, 0: not made yet: blanks */
    uint32_t escapes, wide; /* the characters that are escaped; those beyond ASCII */
    uint32_t key_characters;
    uint64_t compared; /* values and names, in pairs */
};

/* A rule that is to be made: of a conjunction [n], or of a value. */
struct gr_todo {
    uint32_t rule, hash;
    struct gr_part *parts;
    size_t n;
    json_t *value;
};

/* Every function fails through s->r->rc; gr_schema_fail sets it, and names a place. */
void gr_schema_fail(struct gr_schema *s, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Counts n comparisons of values or names; false: they are too many, or something failed. */
bool gr_schema_compares(struct gr_schema *s, const char *at, size_t n);
/* The pointer to a member or an item of what `at` points to. */
const char *gr_schema_at(struct gr_schema *s, const char *at, const char *name);
const char *gr_schema_at_index(struct gr_schema *s, const char *at, size_t i);

/* Adds the objects of a schema to `parts`, a vector of struct gr_part; false: nothing is valid. */
bool gr_schema_flatten(struct gr_schema *s, json_t *schema, const char *at, struct gr_vec *parts);
/* The rule of a conjunction of flat parts, or of a JSON value. */
uint32_t gr_schema_rule(struct gr_schema *s, const struct gr_vec *parts);
uint32_t gr_schema_value(struct gr_schema *s, json_t *value);

/* Reads the plain keywords of parts [n]; shape->values is to be released. */
void gr_shape_read(struct gr_schema *s, const struct gr_part *parts, size_t n,
                   struct gr_shape *shape);
/* Returns whether no value has both shapes, as far as this can be seen. */
bool gr_shape_apart(struct gr_schema *s, const struct gr_shape *a, const struct gr_vec *a_parts,
                    const struct gr_shape *b, const struct gr_vec *b_parts);

/* Each returns the node of the values of one type. */
uint32_t gr_schema_object(struct gr_schema *s, const struct gr_part *parts, size_t n,
                          const struct gr_shape *shape);
uint32_t gr_schema_array(struct gr_schema *s, const struct gr_part *parts, size_t n,
                         const struct gr_shape *shape);
uint32_t gr_schema_string(struct gr_schema *s, const struct gr_shape *shape);
uint32_t gr_schema_number(struct gr_schema *s, const struct gr_shape *shape);
/* The node of one number. */
uint32_t gr_schema_this_number(struct gr_schema *s, json_t *number);
/* Parts: a node of blanks; `text` between quotes, escaped; "name": value, by a rule; a key that is
 * none of names [n] in the same way. */
uint32_t gr_schema_space(struct gr_schema *s);
uint32_t gr_schema_quoted(struct gr_schema *s, const char *text);
uint32_t gr_schema_other_key(struct gr_schema *s, const char *const *names, size_t n);
/* A character of the ranges as a string has it. */
uint32_t gr_schema_chars(struct gr_schema *s, const struct gr_chars *ranges, size_t n,
                         bool negated);

/* The node of a regular expression that is found in a string, and the fewest and most characters of
 * such strings. */
uint32_t gr_schema_regex(struct gr_schema *s, const char *pattern, const char *at, uint32_t *least,
                         uint32_t *most);
/* The regular expression of a format, NULL: there is none. */
const char *gr_schema_format(const char *name);

#endif
