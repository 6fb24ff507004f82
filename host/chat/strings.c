/* Texts: cases, white space, replacing, finding, joining; marks are kept. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "chat/value.h"
#include "text/utf8.h"

/* Returns whether strip takes a character off, the i-th of its text: one of a set, or white space.
 */
static bool is_stripped(struct gr_render *r, const struct gr_string *set, uint32_t cp, size_t i)
{
    if (!set)
        return gr_is_space(cp);
    if (!gr_render_step(r, i % 64 ? 0 : 1 + set->n / 2))
        return false;
    for (size_t at = 0, k; at < set->n; at += k) {
        if (gr_code_at(set, at, &k) == cp)
            return true;
    }
    return false;
}

struct gr_val gr_strip(struct gr_render *r, struct gr_val v, struct gr_val chars, bool left,
                       bool right)
{
    const struct gr_string *s = v.str, *set = gr_is_str(chars) ? chars.str : NULL;
    if (gr_is_given(chars) && chars.type != GR_VAL_NONE && !set)
        return gr_render_fail(r, "strip arg must be None or str");
    size_t lo = 0, hi = s->n, k;
    gr_render_step(r, s->n / 256);
    for (size_t i = 0; left && lo < hi; i++) {
        uint32_t cp = gr_code_at(s, lo, &k);
        if (!is_stripped(r, set, cp, i))
            break;
        lo += k;
    }
    for (size_t i = 0; right && hi > lo; i++) {
        size_t at = hi - 1;
        while (at > lo && (s->p[at] & 0xc0) == 0x80)
            at--;
        uint32_t cp = gr_code_at(s, at, &k);
        if (!is_stripped(r, set, cp, i))
            break;
        hi = at;
    }
    return gr_str_part(r, s, lo, hi);
}

/* ---- cases ---- */

enum { UPPER, LOWER, TITLE };
static const struct {
    uint8_t kind;
    uint32_t cp, to[3];
} special[] = {
#define SPECIAL_CASE(kind, cp, a, b, c) {kind, cp, {a, b, c}},
#include "chat/case.def"
#undef SPECIAL_CASE
};

/* The first row of a character in the table, which is sorted, or where it would stand. */
static size_t first_special(uint32_t cp)
{
    size_t lo = 0, hi = GR_COUNT(special);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (special[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Writes a character in another case to out [12]; returns its length. */
static size_t put_case(uint32_t cp, int kind, char *out)
{
    size_t n = 0;
    for (size_t i = first_special(cp); i < GR_COUNT(special) && special[i].cp == cp; i++) {
        if (special[i].kind != kind)
            continue;
        for (size_t k = 0; k < 3 && special[i].to[k]; k++)
            n += gr_utf8_put(special[i].to[k], out + n);
        return n;
    }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    c = kind == UPPER   ? utf8proc_toupper(c)
        : kind == LOWER ? utf8proc_tolower(c)
                        : utf8proc_totitle(c);
    return gr_utf8_put((uint32_t)c, out);
}

static bool is_cased(uint32_t cp)
{
    int c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           cp == 0xaa || cp == 0xba || (cp >= 0x2160 && cp < 0x2180) ||
           (cp >= 0x24b6 && cp < 0x24ea) || (cp >= 0x2b0 && cp < 0x2b9) ||
           (cp >= 0x1d2c && cp < 0x1d6b) || cp == 0x2071 || cp == 0x207f ||
           (cp >= 0x2090 && cp < 0x209d);
}

static bool is_case_ignorable(uint32_t cp)
{
    int c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' ||
           cp == ':' || cp == 0xb7 || cp == 0x2018 || cp == 0x2019 || cp == 0x2024 ||
           cp == 0x2027 || cp == 0x387 || cp == 0x55f || cp == 0x5f4 || cp == 0xfe13 ||
           cp == 0xfe52 || cp == 0xfe55 || cp == 0xff07 || cp == 0xff0e || cp == 0xff1a;
}

/* Returns whether the sigma at [at, at + k) ends a word: its lower case is another letter then. */
static bool ends_word(const struct gr_string *s, size_t at, size_t k)
{
    bool before = false;
    for (size_t i = at, len; i-- > 0;) {
        if ((s->p[i] & 0xc0) == 0x80)
            continue;
        uint32_t cp = gr_code_at(s, i, &len);
        if (!is_case_ignorable(cp)) {
            before = is_cased(cp);
            break;
        }
    }
    for (size_t i = at + k, len; before && i < s->n; i += len) {
        uint32_t cp = gr_code_at(s, i, &len);
        if (!is_case_ignorable(cp))
            return !is_cased(cp);
    }
    return before;
}

struct gr_val gr_str_case(struct gr_render *r, struct gr_val v, enum gr_case how)
{
    const struct gr_string *s = v.str;
    struct gr_text t = {0};
    bool inside = false; /* a word */
    for (size_t i = 0, k; i < s->n && gr_render_step(r, i % 64 == 63); i += k) {
        char out[12];
        uint32_t cp = gr_code_at(s, i, &k);
        int kind = how == GR_UPPER                            ? UPPER
                   : how == GR_LOWER                          ? LOWER
                   : how == GR_CAPITALIZE                     ? (i ? LOWER : TITLE)
                   : how == GR_TITLE || how == GR_TITLE_WORDS ? (inside ? LOWER : TITLE)
                   : utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LU ? LOWER
                                                                                     : UPPER;
        if (how == GR_TITLE_WORDS && kind == TITLE)
            kind = UPPER; /* Jinja's filter */
        if (kind == LOWER && cp == 0x3a3)
            gr_text_put_as(r, &t, ends_word(s, i, k) ? "\xcf\x82" : "\xcf\x83", 2,
                           s->mark && s->mark[i]);
        else
            gr_text_put_as(r, &t, out, put_case(cp, kind, out), s->mark && s->mark[i]);
        inside = how == GR_TITLE
                     ? is_cased(cp)
                     : !(gr_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp)));
    }
    return gr_text_value(r, &t);
}

/* ---- replacing, joining ---- */

struct gr_val gr_str_replace(struct gr_render *r, struct gr_val v, struct gr_val from,
                             struct gr_val to, int64_t most)
{
    const struct gr_string *s = v.str, *what = from.str;
    struct gr_text t = {0};
    size_t at = 0;
    for (int64_t n = 0; (most < 0 || n < most) && gr_render_step(r, 1); n++) {
        size_t k = 0;
        int64_t found = gr_str_find(r, s, what, at);
        if (!what->n && n) { /* between all characters */
            if (at >= s->n)
                break;
            gr_code_at(s, at, &k);
            found = (int64_t)(at + k);
        }
        if (found < 0)
            break;
        gr_text_put(r, &t, s->p + at, (size_t)found - at, s->mark ? s->mark + at : NULL);
        gr_text_put_str(r, &t, to.str);
        at = (size_t)found + what->n;
    }
    gr_text_put(r, &t, s->p + at, s->n - at, s->mark ? s->mark + at : NULL);
    return gr_text_value(r, &t);
}

struct gr_val gr_str_join(struct gr_render *r, struct gr_val between, const struct gr_list *items)
{
    struct gr_text t = {0};
    for (size_t i = 0; i < items->n && gr_render_step(r, 1); i++) {
        if (i)
            gr_text_put_str(r, &t, between.str);
        gr_put_str(r, &t, items->v[i]);
    }
    return gr_text_value(r, &t);
}

struct gr_val gr_str_escape(struct gr_render *r, struct gr_val v)
{
    static const struct {
        char c;
        const char *to;
    } table[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    const struct gr_string *s = v.str;
    struct gr_text t = {0};
    if (s->markup)
        return v;
    for (size_t i = 0; i < s->n && gr_render_step(r, i % 128 == 127); i++) {
        const char *to = NULL;
        for (size_t k = 0; k < GR_COUNT(table); k++)
            to = s->p[i] == table[k].c ? table[k].to : to;
        bool input = s->mark && s->mark[i];
        gr_text_put_as(r, &t, to ? to : s->p + i, to ? strlen(to) : 1, input);
    }
    struct gr_val out = gr_text_value(r, &t);
    if (gr_render_ok(r))
        ((struct gr_string *)out.str)->markup = true;
    return out;
}
