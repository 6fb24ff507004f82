/* Values of a template while it is rendered, with Python's meaning.
 *
 * All memory of a render comes from its arena and is given back at its end, so values are never
 * freed. Strings are UTF-8 and immutable; lists, dicts and namespaces are shared by reference.
 * Each byte of a string may carry a mark: it came from the input (messages, for instance), not from
 * the template.
 *
 * Errors are sticky: a function that fails records the error in the render and returns a value that
 * must not be used; the caller may go on until it looks at `rc`. */
#ifndef GR_CHAT_VALUE_H
#define GR_CHAT_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"

/* Limits of one render. */
#define GR_RENDER_MAX_STEPS 1000000u
#define GR_RENDER_MAX_OUTPUT (4u << 20) /* bytes */
#define GR_RENDER_MAX_MEMORY (160u << 20)
#define GR_RENDER_MAX_DEPTH 64u /* nested calls of macros */
#define GR_VALUE_MAX_DEPTH                                                                         \
    128u /* nesting of a value that is printed, compared or read from JSON, and of iterators       \
          */
#define GR_JSON_MAX_VALUES (1u << 20) /* of a JSON text that is read */
#define GR_RENDER_MAX_STACK 65536u
#define GR_RANGE_MAX 100000 /* items of a range, as in Jinja's sandbox */

enum gr_val_type {
    GR_VAL_ABSENT, /* an argument that was not given */
    GR_VAL_UNDEFINED,
    GR_VAL_NONE,
    GR_VAL_BOOL,
    GR_VAL_INT,
    GR_VAL_FLOAT,
    GR_VAL_STR,
    GR_VAL_LIST,
    GR_VAL_TUPLE,
    GR_VAL_DICT,
    GR_VAL_NAMESPACE,
    GR_VAL_RANGE,
    GR_VAL_VIEW, /* keys, values or items of a dict */
    GR_VAL_LAZY, /* iterator that is consumed once */
    GR_VAL_MACRO,
    GR_VAL_GLOBAL, /* function of every template */
    GR_VAL_METHOD, /* bound to a value */
    GR_VAL_LOOP
};

struct gr_val {
    enum gr_val_type type;
    union {
        bool b;
        int64_t i;
        double f;
        const struct gr_string *str;
        struct gr_list *list; /* of lists and tuples */
        struct gr_dict *dict; /* of dicts and namespaces */
        const struct gr_range *range;
        const struct gr_view *view;
        struct gr_lazy *lazy;
        const struct gr_macro *macro;
        const struct gr_native *global;
        const struct gr_method *method;
        struct gr_loop *loop;
        const struct gr_undefined *undefined;
    };
};

struct gr_string {
    const char *p;
    size_t n;
    const uint8_t *mark;   /* [n], 1: the byte is input; NULL: none is */
    struct gr_buffer *buf; /* where it lies and may be continued, or NULL */
    bool markup;           /* passed through `safe` or `escape`: sums escape the other side */
};
struct gr_buffer {
    char *p;
    uint8_t *mark; /* [cap] or NULL */
    size_t used, cap;
};
struct gr_list {
    struct gr_val *v;
    size_t n, cap;
};
struct gr_pair {
    struct gr_val key, value;
};
struct gr_dict {
    struct gr_pair *v; /* in the order of insertion */
    size_t n, cap;
};
struct gr_range {
    int64_t start, stop, step, n;
};
enum gr_view_kind { GR_VIEW_KEYS, GR_VIEW_VALUES, GR_VIEW_ITEMS };
struct gr_view {
    enum gr_view_kind kind;
    struct gr_dict *dict;
};
struct gr_undefined {
    const char *owner; /* type that lacks it, or NULL: a variable */
    const char *name;
    size_t n;
    bool number; /* name is the text of an index */
};

struct gr_keyword {
    struct gr_val name, value;
};
struct gr_args {
    struct gr_val *v;
    size_t n;
    struct gr_keyword *kw;
    size_t n_kw;
};

struct gr_render;

/* A function in C. `params`: names of parameters with blanks between them, "!" before a required
 * one, "/" before all when they have no keywords; NULL: it reads the arguments itself. v [8]
 * receives the values of parameters. */
#define GR_MAX_PARAMS 8
typedef struct gr_val gr_native_fn(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                                   const struct gr_args *a);
struct gr_native {
    const char *name;
    gr_native_fn *fn;
    const char *params;
};
struct gr_method {
    const struct gr_native *native;
    struct gr_val self;
};

/* An iterator: `make` lists the items when they are first asked for. */
struct gr_lazy {
    struct gr_list *(*make)(struct gr_render *r, struct gr_lazy *z);
    const char *what; /* for messages: "generator" */
    struct gr_val source;
    struct gr_args args;
    int kind;
    struct gr_list *items; /* NULL: not made yet */
    size_t at;
};

/* State of a loop: its items and the one it is at. */
struct gr_loop {
    struct gr_list *items;
    size_t at;   /* 1 in the first iteration, 0 before */
    bool passed; /* an iteration came to its end: there is no `else` */
    struct gr_scope *outer;
    struct gr_list *kept; /* while the loop's condition chooses items */
    struct gr_list *changed;
};

/* --- core.c: errors, steps, memory --- */

/* Records an error at the instruction that is running, unless there is one already. */
struct gr_val gr_render_fail(struct gr_render *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for an error that the template raises: its text alone. */
void gr_render_raise(struct gr_render *r, const char *p, size_t n);
/* Counts n more steps; false when there are too many, or after an error. */
bool gr_render_step(struct gr_render *r, uint64_t n);
bool gr_render_ok(const struct gr_render *r);
/* Zeroed memory until the end of the render; NULL (and an error) when there is none. */
void *gr_render_alloc(struct gr_render *r, size_t n, size_t size);
int64_t gr_render_now(const struct gr_render *r);
/* Begins making the items of an iterator, which may need those of others; false after an error. */
bool gr_render_enter(struct gr_render *r);
void gr_render_leave(struct gr_render *r);
/* The function of a global's name, or absent. */
struct gr_val gr_global_find(const char *p, size_t n);

/* --- value.c --- */

static inline struct gr_val gr_none(void)
{
    return (struct gr_val){.type = GR_VAL_NONE};
}
static inline struct gr_val gr_bool(bool b)
{
    return (struct gr_val){.type = GR_VAL_BOOL, .b = b};
}
static inline struct gr_val gr_int(int64_t i)
{
    return (struct gr_val){.type = GR_VAL_INT, .i = i};
}
static inline struct gr_val gr_float(double f)
{
    return (struct gr_val){.type = GR_VAL_FLOAT, .f = f};
}
static inline bool gr_is_str(struct gr_val v)
{
    return v.type == GR_VAL_STR;
}
static inline bool gr_is_given(struct gr_val v)
{
    return v.type != GR_VAL_ABSENT;
}
static inline bool gr_is_int(struct gr_val v) /* True and False are integers */
{
    return v.type == GR_VAL_INT || v.type == GR_VAL_BOOL;
}
static inline bool gr_is_number(struct gr_val v)
{
    return gr_is_int(v) || v.type == GR_VAL_FLOAT;
}
static inline bool gr_is_sequence(struct gr_val v) /* a list or tuple */
{
    return v.type == GR_VAL_LIST || v.type == GR_VAL_TUPLE;
}
static inline int64_t gr_int_of(struct gr_val v)
{
    return v.type == GR_VAL_BOOL ? v.b : v.i;
}
static inline double gr_float_of(struct gr_val v)
{
    return v.type == GR_VAL_FLOAT ? v.f : (double)gr_int_of(v);
}

/* Python's name of a type: "str". */
const char *gr_type_name(struct gr_val v);

/* A string of bytes that live long enough; mark as in gr_string. */
struct gr_val gr_str_view(struct gr_render *r, const char *p, size_t n, const uint8_t *mark);
struct gr_val gr_str_copy(struct gr_render *r, const char *p, size_t n);
struct gr_val gr_str_text(struct gr_render *r, const char *text); /* zero-terminated, static */
/* Bytes [lo, hi) of a string. */
struct gr_val gr_str_part(struct gr_render *r, const struct gr_string *s, size_t lo, size_t hi);
struct gr_val gr_str_concat(struct gr_render *r, const struct gr_string *a,
                            const struct gr_string *b);
bool gr_val_is(struct gr_val v, const char *text);
/* Number of code points. */
size_t gr_str_length(const struct gr_string *s);

/* A text that grows, in the arena of a render. */
struct gr_text {
    char *p;
    uint8_t *mark;
    size_t n, cap;
};
void gr_text_put(struct gr_render *r, struct gr_text *t, const char *p, size_t n,
                 const uint8_t *mark);
void gr_text_put_str(struct gr_render *r, struct gr_text *t, const struct gr_string *s);
void gr_text_put_text(struct gr_render *r, struct gr_text *t, const char *text);
/* Puts n bytes that all have one mark. */
void gr_text_put_as(struct gr_render *r, struct gr_text *t, const char *p, size_t n, bool input);
struct gr_val gr_text_value(struct gr_render *r, const struct gr_text *t);

struct gr_list *gr_list_new(struct gr_render *r, size_t room);
void gr_list_push(struct gr_render *r, struct gr_list *l, struct gr_val v);
struct gr_val gr_list_value(struct gr_list *l); /* a list */
struct gr_val gr_tuple_value(struct gr_list *l);
struct gr_val gr_pair_value(struct gr_render *r, struct gr_val a, struct gr_val b);

struct gr_dict *gr_dict_new(struct gr_render *r);
struct gr_val gr_dict_value(struct gr_dict *d);
/* Finds a key; NULL: it is not there. An unhashable key is an error. */
struct gr_pair *gr_dict_find(struct gr_render *r, const struct gr_dict *d, struct gr_val key);
struct gr_pair *gr_dict_find_text(struct gr_render *r, const struct gr_dict *d, const char *p,
                                  size_t n);
void gr_dict_set(struct gr_render *r, struct gr_dict *d, struct gr_val key, struct gr_val value);

struct gr_val gr_undefined_value(struct gr_render *r, struct gr_undefined u);
struct gr_val gr_undefined_name(struct gr_render *r, const char *name, size_t n);
struct gr_val gr_undefined_member(struct gr_render *r, struct gr_val owner, struct gr_val name);
/* Records the error of using an undefined value. */
struct gr_val gr_undefined_fail(struct gr_render *r, struct gr_val v);

/* --- compare.c --- */

bool gr_truth(struct gr_render *r, struct gr_val v);
bool gr_equal(struct gr_render *r, struct gr_val a, struct gr_val b);
/* Order of a and b: -1, 0, 1; an error when they have none. `op`: for the message. GR_UNORDERED:
 * one is not a number (NaN). */
#define GR_UNORDERED 2
int gr_order(struct gr_render *r, struct gr_val a, struct gr_val b, const char *op);
bool gr_contains(struct gr_render *r, struct gr_val container, struct gr_val item);
/* Number of items; -1: it has none (no error). */
int64_t gr_length(const struct gr_val v);
bool gr_is_iterable(struct gr_val v);
/* The items of anything iterable; an error for the rest. The list may be that of the value itself:
 * it must not be changed. */
struct gr_list *gr_items(struct gr_render *r, struct gr_val v);
/* All items of an iterator, made at the first call. */
const struct gr_list *gr_lazy_items(struct gr_render *r, struct gr_lazy *z);
struct gr_val gr_lazy_new(struct gr_render *r, struct gr_lazy lazy);
struct gr_val gr_iterator(struct gr_render *r, struct gr_list *items, const char *what);

/* --- print.c --- */

/* str(v). */
struct gr_val gr_to_str(struct gr_render *r, struct gr_val v);
void gr_put_str(struct gr_render *r, struct gr_text *t, struct gr_val v);
void gr_put_repr(struct gr_render *r, struct gr_text *t, struct gr_val v);
/* Writes a float as Python's repr to out [32]; returns its length. */
size_t gr_float_repr(double f, char *out);

/* --- json.c --- */

/* Value of a JSON text; `input`: strings are marked. */
struct gr_val gr_from_json(struct gr_render *r, const char *p, size_t n, bool input);
struct gr_json_style {
    struct gr_string item, key;     /* separators */
    const struct gr_string *indent; /* NULL: one line */
    bool ascii, sort;
};
void gr_put_json(struct gr_render *r, struct gr_text *t, struct gr_val v,
                 const struct gr_json_style *style);

/* --- operate.c, members.c, slice.c --- */

enum gr_binary { GR_ADD, GR_SUB, GR_MUL, GR_DIV, GR_FLOORDIV, GR_MOD, GR_POW };
struct gr_val gr_operate(struct gr_render *r, enum gr_binary op, struct gr_val a, struct gr_val b);
struct gr_val gr_negate(struct gr_render *r, struct gr_val v, bool minus);
enum gr_compare { GR_EQ, GR_NE, GR_LT, GR_LE, GR_GT, GR_GE, GR_IN, GR_NOT_IN };
bool gr_compare(struct gr_render *r, enum gr_compare op, struct gr_val a, struct gr_val b);
/* obj.name and obj[key]; undefined when there is no such member. */
struct gr_val gr_attribute(struct gr_render *r, struct gr_val obj, struct gr_val name);
struct gr_val gr_item(struct gr_render *r, struct gr_val obj, struct gr_val key);
struct gr_val gr_slice(struct gr_render *r, struct gr_val obj, struct gr_val start,
                       struct gr_val stop, struct gr_val step);

/* --- native.c, call.c, methods.c, filters.c, tests.c: functions --- */

struct gr_val gr_native_call(struct gr_render *r, const struct gr_native *f, struct gr_val self,
                             const struct gr_args *a);
/* The method of a value's type by its name, or absent. */
struct gr_val gr_method_find(struct gr_render *r, struct gr_val v, const char *p, size_t n);
/* Index of a filter or a test, -1: unknown. */
int gr_filter_find(const char *p, size_t n);
int gr_test_find(const char *p, size_t n);
struct gr_val gr_filter_run(struct gr_render *r, int filter, struct gr_val v,
                            const struct gr_args *a);
bool gr_test_run(struct gr_render *r, int test, struct gr_val v, const struct gr_args *a);
/* Value of a dotted path ("a.b.0") within v. */
struct gr_val gr_path(struct gr_render *r, struct gr_val v, struct gr_val path);
bool gr_int_arg(struct gr_render *r, struct gr_val v, int64_t otherwise, int64_t *out);

/* --- format.c, str_format.c --- */

struct gr_val gr_percent_format(struct gr_render *r, const struct gr_string *s, struct gr_val args);
struct gr_val gr_str_format(struct gr_render *r, const struct gr_string *s,
                            const struct gr_args *a);

/* --- strings.c --- */

struct gr_val gr_strip(struct gr_render *r, struct gr_val s, struct gr_val chars, bool left,
                       bool right);
enum gr_case { GR_UPPER, GR_LOWER, GR_TITLE, GR_CAPITALIZE, GR_SWAPCASE, GR_TITLE_WORDS };
struct gr_val gr_str_case(struct gr_render *r, struct gr_val s, enum gr_case how);
struct gr_val gr_str_replace(struct gr_render *r, struct gr_val s, struct gr_val from,
                             struct gr_val to, int64_t most);
struct gr_val gr_str_join(struct gr_render *r, struct gr_val between, const struct gr_list *items);
struct gr_val gr_str_escape(struct gr_render *r, struct gr_val s);
/* Offset of the first or last occurrence at or after `from`; -1: none. */
int64_t gr_str_find(struct gr_render *r, const struct gr_string *s, const struct gr_string *what,
                    size_t from);
bool gr_is_space(uint32_t cp);
uint32_t gr_code_at(const struct gr_string *s, size_t at, size_t *len);

#endif
