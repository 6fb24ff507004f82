/* Making values: strings with marks, lists, dicts, undefined ones. */
#include "chat/value.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "text/utf8.h"

const char *gr_type_name(struct gr_val v)
{
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    static const char *const names[] = {[GR_VAL_ABSENT] = "nothing",
                                        [GR_VAL_UNDEFINED] = "Undefined",
                                        [GR_VAL_NONE] = "NoneType",
                                        [GR_VAL_BOOL] = "bool",
                                        [GR_VAL_INT] = "int",
                                        [GR_VAL_FLOAT] = "float",
                                        [GR_VAL_STR] = "str",
                                        [GR_VAL_LIST] = "list",
                                        [GR_VAL_TUPLE] = "tuple",
                                        [GR_VAL_DICT] = "dict",
                                        [GR_VAL_NAMESPACE] = "Namespace",
                                        [GR_VAL_RANGE] = "range",
                                        [GR_VAL_MACRO] = "Macro",
                                        [GR_VAL_GLOBAL] = "function",
                                        [GR_VAL_METHOD] = "method",
                                        [GR_VAL_LOOP] = "LoopContext"};
    if (v.type == GR_VAL_VIEW)
        return views[v.view->kind];
    return v.type == GR_VAL_LAZY ? v.lazy->what : names[v.type];
}

/* ---- strings ---- */

static struct gr_val string(struct gr_render *r, struct gr_string s)
{
    struct gr_string *str = gr_render_alloc(r, 1, sizeof *str);
    if (!str)
        return gr_none();
    *str = s;
    return (struct gr_val){.type = GR_VAL_STR, .str = str};
}

struct gr_val gr_str_view(struct gr_render *r, const char *p, size_t n, const uint8_t *mark)
{
    return string(r, (struct gr_string){.p = p, .n = n, .mark = mark});
}

struct gr_val gr_str_copy(struct gr_render *r, const char *p, size_t n)
{
    char *copy = gr_render_alloc(r, n + 1, 1);
    if (!copy)
        return gr_none();
    if (n)
        memcpy(copy, p, n);
    return gr_str_view(r, copy, n, NULL);
}

struct gr_val gr_str_text(struct gr_render *r, const char *text)
{
    return gr_str_view(r, text, strlen(text), NULL);
}

struct gr_val gr_str_part(struct gr_render *r, const struct gr_string *s, size_t lo, size_t hi)
{
    if (!gr_render_ok(r))
        return gr_none();
    if (lo >= hi)
        lo = hi = 0;
    return string(r, (struct gr_string){.p = s->p + lo,
                                        .n = hi - lo,
                                        .mark = s->mark ? s->mark + lo : NULL,
                                        .markup = s->markup});
}

/* Gives a buffer marks, all 0. */
static bool give_marks(struct gr_render *r, struct gr_buffer *b)
{
    return b->mark || (b->mark = gr_render_alloc(r, b->cap, 1));
}

/* Appends s to a buffer that has room. */
static void buffer_put(struct gr_render *r, struct gr_buffer *b, const struct gr_string *s)
{
    if (s->mark && !give_marks(r, b))
        return;
    if (s->n)
        memcpy(b->p + b->used, s->p, s->n);
    if (s->mark)
        memcpy(b->mark + b->used, s->mark, s->n);
    b->used += s->n;
}

static struct gr_buffer *buffer_new(struct gr_render *r, size_t cap)
{
    struct gr_buffer *b = gr_render_alloc(r, 1, sizeof *b);
    char *p = b ? gr_render_alloc(r, cap + 1, 1) : NULL;
    if (!p)
        return NULL;
    *b = (struct gr_buffer){.p = p, .cap = cap};
    return b;
}

/* A sum of two strings is continued in place by the next sum, so that a text built piece by piece
 * takes time and memory in proportion to its length. */
struct gr_val gr_str_concat(struct gr_render *r, const struct gr_string *a,
                            const struct gr_string *b)
{
    if (!gr_render_ok(r))
        return gr_none();
    size_t n = a->n + b->n;
    struct gr_buffer *buf = a->buf;
    size_t at = buf ? (size_t)(a->p - buf->p) : 0;
    gr_render_step(r, b->n / 256);
    if (!buf || at + a->n != buf->used || buf->cap - buf->used < b->n) {
        gr_render_step(r, a->n / 256);
        buf = buffer_new(r, a->buf ? 2 * n : n);
        if (!buf)
            return gr_none();
        at = 0;
        buffer_put(r, buf, a);
    }
    buffer_put(r, buf, b);
    return string(
        r, (struct gr_string){
               .p = buf->p + at, .n = n, .mark = buf->mark ? buf->mark + at : NULL, .buf = buf});
}

bool gr_val_is(struct gr_val v, const char *text)
{
    return v.type == GR_VAL_STR && v.str->n == strlen(text) && !memcmp(v.str->p, text, v.str->n);
}

size_t gr_str_length(const struct gr_string *s)
{
    size_t count = 0;
    for (size_t i = 0; i < s->n; i++)
        count += (s->p[i] & 0xc0) != 0x80;
    return count;
}

/* ---- characters ---- */

uint32_t gr_code_at(const struct gr_string *s, size_t at, size_t *len)
{
    uint32_t cp;
    int k = gr_utf8_next(s->p + at, s->n - at, &cp);
    *len = k > 0 ? (size_t)k : 1;
    return k > 0 ? cp : 0xfffd;
}

bool gr_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

int64_t gr_str_find(struct gr_render *r, const struct gr_string *s, const struct gr_string *what,
                    size_t from)
{
    if (!gr_render_ok(r))
        return -1;
    if (from > s->n || what->n > s->n - from)
        return -1;
    if (!what->n)
        return (int64_t)from;
    gr_render_step(r, what->n / 128);
    const char *p = memmem(s->p + from, s->n - from, what->p, what->n);
    size_t end = p ? (size_t)(p - s->p) : s->n;
    return gr_render_step(r, (end - from) / 128) && p ? (int64_t)end : -1;
}

/* ---- texts that grow ---- */

static bool text_room(struct gr_render *r, struct gr_text *t, size_t n)
{
    if (n <= t->cap - t->n)
        return gr_render_ok(r);
    size_t cap = GR_MAX(GR_MAX(2 * t->cap, 64), t->n + n);
    char *p = gr_render_alloc(r, cap, 1);
    uint8_t *mark = p && t->mark ? gr_render_alloc(r, cap, 1) : NULL;
    if (!p || !gr_render_ok(r))
        return false;
    if (t->n)
        memcpy(p, t->p, t->n);
    if (mark)
        memcpy(mark, t->mark, t->n);
    t->p = p, t->mark = mark, t->cap = cap;
    return true;
}

void gr_text_put(struct gr_render *r, struct gr_text *t, const char *p, size_t n,
                 const uint8_t *mark)
{
    if (!n || !gr_render_step(r, n / 256) || !text_room(r, t, n))
        return;
    if (mark && !t->mark && !(t->mark = gr_render_alloc(r, t->cap, 1)))
        return;
    memcpy(t->p + t->n, p, n);
    if (mark)
        memcpy(t->mark + t->n, mark, n);
    t->n += n;
}

void gr_text_put_str(struct gr_render *r, struct gr_text *t, const struct gr_string *s)
{
    if (gr_render_ok(r))
        gr_text_put(r, t, s->p, s->n, s->mark);
}

void gr_text_put_text(struct gr_render *r, struct gr_text *t, const char *text)
{
    gr_text_put(r, t, text, strlen(text), NULL);
}

void gr_text_put_as(struct gr_render *r, struct gr_text *t, const char *p, size_t n, bool input)
{
    size_t had = t->n;
    gr_text_put(r, t, p, n, NULL);
    if (!input || !gr_render_ok(r) || t->n == had)
        return;
    if (!t->mark && !(t->mark = gr_render_alloc(r, t->cap, 1)))
        return;
    memset(t->mark + had, 1, n);
}

struct gr_val gr_text_value(struct gr_render *r, const struct gr_text *t)
{
    return gr_str_view(r, t->n ? t->p : "", t->n, t->mark);
}

/* ---- lists ---- */

struct gr_list *gr_list_new(struct gr_render *r, size_t room)
{
    static struct gr_list none; /* returned after an error, when nothing is read or written */
    struct gr_list *l = gr_render_alloc(r, 1, sizeof *l);
    struct gr_val *v = l && room ? gr_render_alloc(r, room, sizeof *v) : NULL;
    if (!l || (room && !v))
        return &none;
    *l = (struct gr_list){v, 0, room};
    return l;
}

void gr_list_push(struct gr_render *r, struct gr_list *l, struct gr_val v)
{
    if (!gr_render_ok(r))
        return;
    if (l->n == l->cap) {
        size_t cap = GR_MAX(2 * l->cap, 8);
        struct gr_val *grown = gr_render_alloc(r, cap, sizeof *grown);
        if (!grown)
            return;
        if (l->n)
            memcpy(grown, l->v, l->n * sizeof *grown);
        l->v = grown, l->cap = cap;
    }
    l->v[l->n++] = v;
}

struct gr_val gr_list_value(struct gr_list *l)
{
    return (struct gr_val){.type = GR_VAL_LIST, .list = l};
}

struct gr_val gr_tuple_value(struct gr_list *l)
{
    return (struct gr_val){.type = GR_VAL_TUPLE, .list = l};
}

struct gr_val gr_pair_value(struct gr_render *r, struct gr_val a, struct gr_val b)
{
    struct gr_list *l = gr_list_new(r, 2);
    gr_list_push(r, l, a);
    gr_list_push(r, l, b);
    return gr_tuple_value(l);
}

/* ---- dicts ---- */

struct gr_dict *gr_dict_new(struct gr_render *r)
{
    static struct gr_dict none; /* as in gr_list_new */
    struct gr_dict *d = gr_render_alloc(r, 1, sizeof *d);
    return d ? d : &none;
}

struct gr_val gr_dict_value(struct gr_dict *d)
{
    return (struct gr_val){.type = GR_VAL_DICT, .dict = d};
}

/* ---- undefined ---- */

struct gr_val gr_undefined_value(struct gr_render *r, struct gr_undefined u)
{
    struct gr_undefined *p = gr_render_alloc(r, 1, sizeof *p);
    if (!p)
        return gr_none();
    *p = u;
    return (struct gr_val){.type = GR_VAL_UNDEFINED, .undefined = p};
}

struct gr_val gr_undefined_name(struct gr_render *r, const char *name, size_t n)
{
    return gr_undefined_value(r, (struct gr_undefined){.name = name, .n = n});
}

struct gr_val gr_undefined_fail(struct gr_render *r, struct gr_val v)
{
    const struct gr_undefined *u = v.undefined;
    int n = (int)GR_MIN(u->n, 200);
    if (!u->owner)
        return gr_render_fail(r, "'%.*s' is undefined", n, u->name);
    if (u->number)
        return gr_render_fail(r, "%s object has no element %.*s", u->owner, n, u->name);
    return gr_render_fail(r, "'%s object' has no attribute '%.*s'", u->owner, n, u->name);
}
