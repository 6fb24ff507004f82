/* Methods of strings. */
#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "chat/methods.h"

#define STR_METHOD(fn)                                                                             \
    struct gr_val gr_method_##fn(struct gr_render *r, struct gr_val self, const struct gr_val *v,  \
                                 const struct gr_args *a)

/* Returns whether v is a text; an error otherwise. */
static bool text_arg(struct gr_render *r, struct gr_val v)
{
    if (!gr_is_str(v))
        gr_render_fail(r, "a text is expected, not '%s'", gr_type_name(v));
    return gr_is_str(v);
}

/* ---- cases ---- */

STR_METHOD(str_upper)
{
    (void)v, (void)a;
    return gr_str_case(r, self, GR_UPPER);
}

STR_METHOD(str_lower)
{
    (void)v, (void)a;
    return gr_str_case(r, self, GR_LOWER);
}

STR_METHOD(str_title)
{
    (void)v, (void)a;
    return gr_str_case(r, self, GR_TITLE);
}

STR_METHOD(str_capitalize)
{
    (void)v, (void)a;
    return gr_str_case(r, self, GR_CAPITALIZE);
}

STR_METHOD(str_swapcase)
{
    (void)v, (void)a;
    return gr_str_case(r, self, GR_SWAPCASE);
}

/* ---- what a text consists of ---- */

enum { ALPHA, DECIMAL, DIGIT, NUMERIC, ALNUM, SPACE };

/* Characters of several languages that are digits or numbers and no decimal digits. */
static bool is_numeric(uint32_t cp, bool digit)
{
    bool super = cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 ||
                 (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
                 (cp >= 0x2460 && cp <= 0x2468);
    int c = utf8proc_category((utf8proc_int32_t)cp);
    return super ||
           (!digit && (c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO || cp == 0x3007));
}

static bool has_property(uint32_t cp, int property)
{
    int c = utf8proc_category((utf8proc_int32_t)cp);
    bool alpha = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
    bool decimal = c == UTF8PROC_CATEGORY_ND;
    switch (property) {
    case ALPHA:
        return alpha;
    case DECIMAL:
        return decimal;
    case DIGIT:
        return decimal || is_numeric(cp, true);
    case NUMERIC:
        return decimal || is_numeric(cp, false);
    case ALNUM:
        return alpha || decimal || is_numeric(cp, false);
    default:
        return gr_is_space(cp);
    }
}

/* Returns whether s is not empty and all its characters have a property. */
static struct gr_val all_have(struct gr_render *r, const struct gr_string *s, int property)
{
    bool all = s->n > 0;
    gr_render_step(r, s->n / 32);
    for (size_t i = 0, k; i < s->n && all; i += k)
        all = has_property(gr_code_at(s, i, &k), property);
    return gr_bool(all);
}

STR_METHOD(str_isalpha)
{
    (void)v, (void)a;
    return all_have(r, self.str, ALPHA);
}

STR_METHOD(str_isalnum)
{
    (void)v, (void)a;
    return all_have(r, self.str, ALNUM);
}

STR_METHOD(str_isdecimal)
{
    (void)v, (void)a;
    return all_have(r, self.str, DECIMAL);
}

STR_METHOD(str_isdigit)
{
    (void)v, (void)a;
    return all_have(r, self.str, DIGIT);
}

STR_METHOD(str_isnumeric)
{
    (void)v, (void)a;
    return all_have(r, self.str, NUMERIC);
}

STR_METHOD(str_isspace)
{
    (void)v, (void)a;
    return all_have(r, self.str, SPACE);
}

/* Returns whether s has cased letters and all of them are of this case. */
static struct gr_val all_cased(struct gr_render *r, struct gr_val self, enum gr_case how)
{
    const struct gr_string *s = self.str;
    bool some = false, all = true, inside = false;
    gr_render_step(r, s->n / 32);
    for (size_t i = 0, k; i < s->n && all; i += k) {
        int c = utf8proc_category((utf8proc_int32_t)gr_code_at(s, i, &k));
        bool upper = c == UTF8PROC_CATEGORY_LU, title = c == UTF8PROC_CATEGORY_LT;
        bool lower = c == UTF8PROC_CATEGORY_LL, cased = upper || title || lower;
        if (how == GR_TITLE)
            all = !cased || (inside ? lower : !lower);
        else
            all = !cased || (how == GR_UPPER ? upper : lower);
        some = some || cased;
        inside = cased;
    }
    return gr_bool(some && all);
}

STR_METHOD(str_isupper)
{
    (void)v, (void)a;
    return all_cased(r, self, GR_UPPER);
}

STR_METHOD(str_islower)
{
    (void)v, (void)a;
    return all_cased(r, self, GR_LOWER);
}

STR_METHOD(str_istitle)
{
    (void)v, (void)a;
    return all_cased(r, self, GR_TITLE);
}

/* ---- ends ---- */

STR_METHOD(str_strip)
{
    (void)a;
    return gr_strip(r, self, v[0], true, true);
}

STR_METHOD(str_lstrip)
{
    (void)a;
    return gr_strip(r, self, v[0], true, false);
}

STR_METHOD(str_rstrip)
{
    (void)a;
    return gr_strip(r, self, v[0], false, true);
}

static bool begins(struct gr_render *r, const struct gr_string *s, const struct gr_string *what,
                   bool at_end)
{
    return what->n <= s->n && gr_render_step(r, what->n / 256) &&
           !memcmp(s->p + (at_end ? s->n - what->n : 0), what->p, what->n);
}

STR_METHOD(str_removeprefix)
{
    (void)a;
    if (!text_arg(r, v[0]) || !begins(r, self.str, v[0].str, false))
        return self;
    return gr_str_part(r, self.str, v[0].str->n, self.str->n);
}

STR_METHOD(str_removesuffix)
{
    (void)a;
    if (!text_arg(r, v[0]) || !begins(r, self.str, v[0].str, true))
        return self;
    return gr_str_part(r, self.str, 0, self.str->n - v[0].str->n);
}

/* The part of a text that start and end arguments choose; absent: start is behind the end. */
static struct gr_val part_of(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                             size_t *skipped)
{
    int64_t n, lo, hi;
    *skipped = 0;
    if (!gr_is_given(v[0]) && !gr_is_given(v[1]))
        return self;
    n = gr_length(self);
    if (!gr_render_step(r, self.str->n / 256) || !gr_int_arg(r, v[0], 0, &lo) ||
        !gr_int_arg(r, v[1], n, &hi))
        return self;
    lo = lo < 0 ? GR_MAX(lo + n, 0) : lo;
    hi = hi < 0 ? GR_MAX(hi + n, 0) : GR_MIN(hi, n);
    if (lo > hi)
        return (struct gr_val){.type = GR_VAL_ABSENT};
    struct gr_val part = gr_slice(r, self, gr_is_given(v[0]) ? v[0] : gr_none(),
                                  gr_is_given(v[1]) ? v[1] : gr_none(), gr_none());
    if (gr_render_ok(r) && part.str->n)
        *skipped = (size_t)(part.str->p - self.str->p);
    else
        *skipped = (size_t)-1; /* counted by the caller: the part is empty */
    return part;
}

static struct gr_val test_end(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                              bool at_end)
{
    size_t skipped;
    struct gr_val part = part_of(r, self, v + 1, &skipped);
    bool any = false;
    if (v[0].type != GR_VAL_TUPLE && !gr_is_str(v[0]))
        return gr_render_fail(r, "a text or a tuple of texts is expected, not '%s'",
                              gr_type_name(v[0]));
    if (!gr_is_str(part) || !gr_render_ok(r))
        return gr_bool(false);
    if (gr_is_str(v[0]))
        return gr_bool(begins(r, part.str, v[0].str, at_end));
    for (size_t i = 0; i < v[0].list->n && !any && gr_render_step(r, 1); i++) {
        if (text_arg(r, v[0].list->v[i]))
            any = begins(r, part.str, v[0].list->v[i].str, at_end);
    }
    return gr_bool(any);
}

STR_METHOD(str_startswith)
{
    (void)a;
    return test_end(r, self, v, false);
}

STR_METHOD(str_endswith)
{
    (void)a;
    return test_end(r, self, v, true);
}

/* ---- finding ---- */

/* Offset of the last occurrence in s[0, end), -1: none. */
static int64_t find_last(struct gr_render *r, const struct gr_string *s,
                         const struct gr_string *what, size_t end)
{
    size_t at = end;
    int64_t found = -1;
    gr_render_step(r, what->n / 64);
    while (found < 0 && gr_render_step(r, at % 64 == 63 ? 1 + what->n / 64 : 0)) {
        if (what->n <= end - at && !memcmp(s->p + at, what->p, what->n))
            found = (int64_t)at;
        if (at-- == 0)
            break;
    }
    return found;
}

static int64_t code_points(const char *p, size_t n)
{
    struct gr_string s = {.p = p, .n = n};
    return (int64_t)gr_str_length(&s);
}

static int64_t find(struct gr_render *r, struct gr_val self, const struct gr_val *v, bool last)
{
    size_t skipped;
    if (!text_arg(r, v[0]))
        return -1;
    struct gr_val part = part_of(r, self, v + 1, &skipped);
    if (!gr_is_str(part) || !gr_render_ok(r))
        return -1;
    int64_t at = last ? find_last(r, part.str, v[0].str, part.str->n)
                      : gr_str_find(r, part.str, v[0].str, 0);
    if (at < 0)
        return -1;
    gr_render_step(r, self.str->n / 64);
    if (skipped == (size_t)-1) { /* the empty text in an empty part */
        int64_t n = gr_length(self), lo = 0;
        gr_int_arg(r, v[1], 0, &lo);
        return lo < 0 ? GR_MAX(lo + n, 0) : lo;
    }
    return code_points(self.str->p, skipped + (size_t)at);
}

STR_METHOD(str_find)
{
    (void)a;
    return gr_int(find(r, self, v, false));
}

STR_METHOD(str_rfind)
{
    (void)a;
    return gr_int(find(r, self, v, true));
}

STR_METHOD(str_index)
{
    (void)a;
    int64_t at = find(r, self, v, false);
    return at < 0 ? gr_render_fail(r, "substring not found") : gr_int(at);
}

STR_METHOD(str_rindex)
{
    (void)a;
    int64_t at = find(r, self, v, true);
    return at < 0 ? gr_render_fail(r, "substring not found") : gr_int(at);
}

STR_METHOD(str_count)
{
    (void)a;
    size_t skipped;
    if (!text_arg(r, v[0]))
        return gr_none();
    struct gr_val part = part_of(r, self, v + 1, &skipped);
    if (!gr_is_str(part) || !gr_render_ok(r))
        return gr_int(0);
    if (!v[0].str->n)
        return gr_int(gr_length(part) + 1);
    int64_t n = 0, at = 0;
    while ((at = gr_str_find(r, part.str, v[0].str, (size_t)at)) >= 0 && gr_render_step(r, 1))
        n++, at += (int64_t)v[0].str->n;
    return gr_int(n);
}

STR_METHOD(str_replace)
{
    (void)a;
    int64_t most;
    if (!text_arg(r, v[0]) || !text_arg(r, v[1]) || !gr_int_arg(r, v[2], -1, &most))
        return gr_none();
    return gr_str_replace(r, self, v[0], v[1], most);
}

STR_METHOD(str_format)
{
    (void)v;
    return gr_str_format(r, self.str, a);
}

/* ---- splitting and joining ---- */

STR_METHOD(str_join)
{
    (void)a;
    const struct gr_list *items = gr_items(r, v[0]);
    for (size_t i = 0; i < items->n && gr_render_ok(r); i++)
        text_arg(r, items->v[i]);
    return gr_render_ok(r) ? gr_str_join(r, self, items) : gr_none();
}

static struct gr_val three(struct gr_render *r, struct gr_val a, struct gr_val b, struct gr_val c)
{
    struct gr_list *l = gr_list_new(r, 3);
    gr_list_push(r, l, a);
    gr_list_push(r, l, b);
    gr_list_push(r, l, c);
    return gr_tuple_value(l);
}

static struct gr_val partition(struct gr_render *r, struct gr_val self, struct gr_val sep,
                               bool last)
{
    if (!text_arg(r, sep))
        return gr_none();
    if (!sep.str->n)
        return gr_render_fail(r, "empty separator");
    int64_t at =
        last ? find_last(r, self.str, sep.str, self.str->n) : gr_str_find(r, self.str, sep.str, 0);
    struct gr_val none = gr_str_view(r, "", 0, NULL);
    if (at < 0)
        return last ? three(r, none, none, self) : three(r, self, none, none);
    size_t lo = (size_t)at, hi = lo + sep.str->n;
    return three(r, gr_str_part(r, self.str, 0, lo), gr_str_part(r, self.str, lo, hi),
                 gr_str_part(r, self.str, hi, self.str->n));
}

STR_METHOD(str_partition)
{
    (void)a;
    return partition(r, self, v[0], false);
}

STR_METHOD(str_rpartition)
{
    (void)a;
    return partition(r, self, v[0], true);
}

/* The next word of s at or after *at: [*lo, *hi); false: there is none. */
static bool next_word(const struct gr_string *s, size_t at, size_t *lo, size_t *hi)
{
    size_t k;
    while (at < s->n && gr_is_space(gr_code_at(s, at, &k)))
        at += k;
    *lo = at;
    while (at < s->n && !gr_is_space(gr_code_at(s, at, &k)))
        at += k;
    *hi = at;
    return *hi > *lo;
}

static struct gr_val split_blanks(struct gr_render *r, const struct gr_string *s, int64_t most)
{
    struct gr_list *l = gr_list_new(r, 0);
    size_t lo, hi = 0;
    gr_render_step(r, s->n / 32);
    while (next_word(s, hi, &lo, &hi) && gr_render_step(r, 1)) {
        if (most >= 0 && (int64_t)l->n == most) {
            gr_list_push(r, l, gr_str_part(r, s, lo, s->n));
            break;
        }
        gr_list_push(r, l, gr_str_part(r, s, lo, hi));
    }
    return gr_list_value(l);
}

static void reverse(struct gr_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct gr_val x = l->v[i];
        l->v[i] = l->v[l->n - 1 - i], l->v[l->n - 1 - i] = x;
    }
}

/* Splits from the right: at most `most` words are taken off the end. */
static struct gr_val rsplit_blanks(struct gr_render *r, const struct gr_string *s, int64_t most)
{
    struct gr_val words = split_blanks(r, s, -1), rest;
    int64_t n = gr_render_ok(r) ? (int64_t)words.list->n : 0;
    if (most < 0 || n <= most)
        return words;
    struct gr_list *l = gr_list_new(r, 0);
    size_t lo, hi;
    next_word(s, 0, &lo, &hi);
    const struct gr_string *last = words.list->v[n - most - 1].str;
    rest = gr_str_part(r, s, 0, (size_t)(last->p - s->p) + last->n);
    if (most == 0)
        rest = gr_strip(r, gr_str_part(r, s, 0, s->n), (struct gr_val){.type = GR_VAL_ABSENT},
                        false, true);
    gr_list_push(r, l, rest);
    for (int64_t i = n - most; i < n; i++)
        gr_list_push(r, l, words.list->v[i]);
    return gr_list_value(l);
}

static struct gr_val split_at(struct gr_render *r, const struct gr_string *s,
                              const struct gr_string *sep, int64_t most)
{
    struct gr_list *l = gr_list_new(r, 0);
    size_t from = 0;
    for (int64_t at; (most < 0 || (int64_t)l->n < most) && gr_render_step(r, 1);) {
        at = gr_str_find(r, s, sep, from);
        if (at < 0)
            break;
        gr_list_push(r, l, gr_str_part(r, s, from, (size_t)at));
        from = (size_t)at + sep->n;
    }
    gr_list_push(r, l, gr_str_part(r, s, from, s->n));
    return gr_list_value(l);
}

static struct gr_val rsplit_at(struct gr_render *r, const struct gr_string *s,
                               const struct gr_string *sep, int64_t most)
{
    struct gr_list *l = gr_list_new(r, 0);
    size_t end = s->n;
    for (int64_t at; (most < 0 || (int64_t)l->n < most) && gr_render_step(r, 1);) {
        at = find_last(r, s, sep, end);
        if (at < 0)
            break;
        gr_list_push(r, l, gr_str_part(r, s, (size_t)at + sep->n, end));
        end = (size_t)at;
    }
    gr_list_push(r, l, gr_str_part(r, s, 0, end));
    reverse(l);
    return gr_list_value(l);
}

static struct gr_val split(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                           bool right)
{
    int64_t most;
    if (!gr_int_arg(r, v[1], -1, &most))
        return gr_none();
    if (!gr_is_given(v[0]) || v[0].type == GR_VAL_NONE)
        return right ? rsplit_blanks(r, self.str, most) : split_blanks(r, self.str, most);
    if (!text_arg(r, v[0]))
        return gr_none();
    if (!v[0].str->n)
        return gr_render_fail(r, "empty separator");
    return right ? rsplit_at(r, self.str, v[0].str, most) : split_at(r, self.str, v[0].str, most);
}

STR_METHOD(str_split)
{
    (void)a;
    return split(r, self, v, false);
}

STR_METHOD(str_rsplit)
{
    (void)a;
    return split(r, self, v, true);
}

static bool ends_line(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

STR_METHOD(str_splitlines)
{
    (void)a;
    const struct gr_string *s = self.str;
    struct gr_list *l = gr_list_new(r, 0);
    bool keep = gr_is_given(v[0]) && gr_truth(r, v[0]);
    size_t from = 0, i = 0;
    gr_render_step(r, s->n / 32);
    for (size_t k; i < s->n && gr_render_ok(r);) {
        uint32_t cp = gr_code_at(s, i, &k);
        size_t end = i;
        i += k;
        if (!ends_line(cp))
            continue;
        i += cp == '\r' && i < s->n && s->p[i] == '\n';
        gr_list_push(r, l, gr_str_part(r, s, from, keep ? i : end));
        from = i;
    }
    if (from < s->n)
        gr_list_push(r, l, gr_str_part(r, s, from, s->n));
    return gr_list_value(l);
}

/* ---- padding ---- */

static struct gr_val pad(struct gr_render *r, struct gr_val self, const struct gr_val *v,
                         bool before)
{
    int64_t width, n = gr_length(self);
    gr_render_step(r, self.str->n / 256);
    struct gr_val fill = gr_is_given(v[1]) ? v[1] : gr_str_text(r, " ");
    if (!gr_int_arg(r, v[0], 0, &width) || !text_arg(r, fill))
        return gr_none();
    if (gr_str_length(fill.str) != 1)
        return gr_render_fail(r, "the fill character must be exactly one character long");
    if (width <= n)
        return self;
    struct gr_val space = gr_operate(r, GR_MUL, fill, gr_int(width - n));
    if (!gr_render_ok(r))
        return gr_none();
    return before ? gr_str_concat(r, space.str, self.str) : gr_str_concat(r, self.str, space.str);
}

STR_METHOD(str_ljust)
{
    (void)a;
    return pad(r, self, v, false);
}

STR_METHOD(str_rjust)
{
    (void)a;
    return pad(r, self, v, true);
}

STR_METHOD(str_zfill)
{
    (void)a;
    const struct gr_val args[2] = {v[0], gr_str_text(r, "0")};
    bool sign = self.str->n && (*self.str->p == '-' || *self.str->p == '+');
    int64_t width;
    if (!sign || !gr_int_arg(r, v[0], 0, &width) || width <= gr_length(self))
        return pad(r, self, args, true);
    const struct gr_val less[2] = {gr_int(width - 1), args[1]};
    struct gr_val number = pad(r, gr_str_part(r, self.str, 1, self.str->n), less, true);
    if (!gr_render_ok(r))
        return gr_none();
    return gr_str_concat(r, gr_str_part(r, self.str, 0, 1).str, number.str);
}
