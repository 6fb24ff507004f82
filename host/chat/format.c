/* Formatting: text % values. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "chat/format.h"
#include "text/utf8.h"

#define MOST_DIGITS 1000 /* of a precision */

int64_t gr_format_digits(const struct gr_string *s, size_t *i)
{
    int64_t v = -1;
    for (; *i < s->n && isdigit((unsigned char)s->p[*i]) && v <= GR_FORMAT_MAX_WIDTH; ++*i)
        v = (v < 0 ? 0 : v) * 10 + (s->p[*i] - '0');
    return v;
}

/* Puts `body` with its sign or base `head` in a field. */
static void put_field(struct gr_render *r, struct gr_text *t, const struct gr_format_spec *x,
                      const struct gr_string *head, const struct gr_string *body, char align)
{
    int64_t n = (int64_t)(gr_str_length(head) + gr_str_length(body)), room = x->width - n;
    if (room > 0 && !gr_render_step(r, (uint64_t)room / 16))
        return;
    int64_t before = room <= 0 ? 0 : align == '>' ? room : align == '^' ? room / 2 : 0;
    static const struct gr_string blank = {.p = " ", .n = 1};
    const struct gr_string *fill = x->fill ? x->fill : &blank;
    for (int64_t i = 0; i < before; i++)
        gr_text_put_str(r, t, fill);
    gr_text_put_str(r, t, head);
    for (int64_t i = 0; align == '=' && i < room; i++)
        gr_text_put_str(r, t, fill);
    gr_text_put_str(r, t, body);
    for (int64_t i = before; align != '=' && i < room; i++)
        gr_text_put_str(r, t, fill);
}

void gr_format_text(struct gr_render *r, struct gr_text *t, const struct gr_format_spec *x,
                    struct gr_val s, char align)
{
    static const struct gr_string none = {.p = "", .n = 0};
    if (x->precision >= 0)
        s = gr_slice(r, s, gr_none(), gr_int(x->precision), gr_none());
    if (gr_render_ok(r))
        put_field(r, t, x, &none, s.str, x->align ? x->align : align);
}

/* Puts separators between groups of `of` digits among the first `whole` ones of [out, out + n). */
static size_t group(char *out, size_t n, size_t size, char with, size_t whole, size_t of)
{
    size_t count = whole ? (whole - 1) / of : 0;
    if (!with || n + count >= size)
        return n;
    for (size_t at = whole; at > of;) {
        at -= of;
        memmove(out + at + 1, out + at, n - at);
        out[at] = with, n++;
    }
    return n;
}

static void put_number(struct gr_render *r, struct gr_text *t, const struct gr_format_spec *x,
                       bool negative, const char *prefix, char *body, size_t n, char align)
{
    char head[4];
    const char *sign = negative ? "-" : x->sign == '+' ? "+" : x->sign == ' ' ? " " : "";
    int k = snprintf(head, sizeof head, "%s%s", sign, prefix);
    static const struct gr_string zero = {.p = "0", .n = 1};
    struct gr_format_spec padded = *x;
    if (x->zero && !x->align)
        padded.align = '=', padded.fill = x->fill ? x->fill : &zero;
    put_field(r, t, &padded, &(struct gr_string){.p = head, .n = (size_t)k},
              &(struct gr_string){.p = body, .n = n}, padded.align ? padded.align : align);
}

void gr_format_int(struct gr_render *r, struct gr_text *t, const struct gr_format_spec *x,
                   int64_t i, char align)
{
    char body[1600];
    uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
    int n = 0;
    size_t of = 4;
    const char *prefix = "";
    if (x->precision > MOST_DIGITS) {
        gr_render_fail(r, "a precision of more than %d digits", MOST_DIGITS);
        return;
    }
    if (x->type == 'b') {
        for (int bit = 63; bit >= 0; bit--) {
            if (n || u >> bit & 1 || !bit)
                body[n++] = (char)('0' + (u >> bit & 1));
        }
        prefix = "0b";
    } else if (x->type == 'x' || x->type == 'X' || x->type == 'o') {
        n = snprintf(body, sizeof body,
                     x->type == 'o'   ? "%llo"
                     : x->type == 'x' ? "%llx"
                                      : "%llX",
                     (unsigned long long)u);
        prefix = x->type == 'o' ? "0o" : x->type == 'x' ? "0x" : "0X";
    } else {
        of = 3;
        n = snprintf(body, sizeof body, "%0*llu", (int)GR_MAX(x->precision, 1),
                     (unsigned long long)u);
    }
    n = (int)group(body, (size_t)n, sizeof body, x->group, (size_t)n, of);
    put_number(r, t, x, i < 0, x->alternate ? prefix : "", body, (size_t)n, align);
}

void gr_format_float(struct gr_render *r, struct gr_text *t, const struct gr_format_spec *x,
                     double f, char align)
{
    char body[1600], form[16];
    char type = x->type == '%' ? 'f' : x->type ? x->type : 'r';
    size_t n;
    if (x->precision > MOST_DIGITS) {
        gr_render_fail(r, "a precision of more than %d digits", MOST_DIGITS);
        return;
    }
    if (x->type == '%')
        f *= 100;
    if (type == 'r' && x->precision < 0) {
        n = gr_float_repr(fabs(f), body);
    } else {
        int precision = x->precision < 0 ? 6 : (int)x->precision;
        snprintf(form, sizeof form, x->alternate ? "%%#.*%c" : "%%.*%c", type == 'r' ? 'g' : type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        n = (size_t)snprintf(body, sizeof body - 1, form, precision, fabs(f));
#pragma GCC diagnostic pop
    }
    size_t whole = 0; /* digits before a point or exponent */
    while (whole < n && isdigit((unsigned char)body[whole]))
        whole++;
    n = group(body, n, sizeof body - 1, x->group, whole, 3);
    if (x->type == '%')
        body[n++] = '%';
    put_number(r, t, x, signbit(f) && !isnan(f), "", body, n, align);
}

/* ---- % ---- */

struct percent {
    const struct gr_string *s;
    size_t at;
    struct gr_val args; /* tuple, dict or one value */
    size_t used;
};

static struct gr_val next_arg(struct gr_render *r, struct percent *p)
{
    bool tuple = p->args.type == GR_VAL_TUPLE;
    size_t n = tuple ? p->args.list->n : 1;
    if (p->used >= n)
        return gr_render_fail(r, "not enough arguments for format string");
    return tuple ? p->args.list->v[p->used++] : (p->used++, p->args);
}

/* "(name)" behind a %: the value of that key. */
static struct gr_val keyed_arg(struct gr_render *r, struct percent *p)
{
    const struct gr_string *s = p->s;
    size_t from = ++p->at, depth = 1;
    for (; p->at < s->n && depth; p->at++)
        depth += (s->p[p->at] == '(') - (s->p[p->at] == ')');
    if (depth)
        return gr_render_fail(r, "incomplete format key");
    if (p->args.type != GR_VAL_DICT)
        return gr_render_fail(r, "format requires a mapping");
    const struct gr_pair *pair = gr_dict_find_text(r, p->args.dict, s->p + from, p->at - 1 - from);
    return pair ? pair->value : gr_render_fail(r, "format: there is no such key");
}

/* A width or precision: digits or *. */
static int64_t percent_number(struct gr_render *r, struct percent *p)
{
    if (p->at < p->s->n && p->s->p[p->at] == '*') {
        p->at++;
        struct gr_val v = next_arg(r, p);
        if (gr_render_ok(r) && !gr_is_int(v))
            gr_render_fail(r, "* wants int");
        return gr_render_ok(r) ? gr_int_of(v) : 0;
    }
    return gr_format_digits(p->s, &p->at);
}

/* The text of one character. */
static struct gr_val character(struct gr_render *r, int64_t cp)
{
    char out[4];
    if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return gr_render_fail(r, "%%c: %lld is no character", (long long)cp);
    return gr_str_copy(r, out, gr_utf8_put((uint32_t)cp, out));
}

static void percent_value(struct gr_render *r, struct gr_text *t, const struct gr_format_spec *x,
                          struct gr_val v)
{
    struct gr_text repr = {0};
    switch (x->type) {
    case 's':
        gr_format_text(r, t, x, gr_to_str(r, v), '>');
        return;
    case 'r':
    case 'a':
        gr_put_repr(r, &repr, v);
        gr_format_text(r, t, x, gr_text_value(r, &repr), '>');
        return;
    case 'd':
    case 'i':
    case 'u':
        if (v.type == GR_VAL_FLOAT && fabs(v.f) < 9e18)
            v = gr_int((int64_t)v.f);
        break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!gr_is_number(v))
            gr_render_fail(r, "must be real number, not %s", gr_type_name(v));
        else
            gr_format_float(r, t, x, gr_float_of(v), '>');
        return;
    case 'c':
        if (gr_is_int(v))
            v = character(r, gr_int_of(v));
        if (!gr_render_ok(r))
            return;
        if (gr_is_str(v) && gr_str_length(v.str) == 1)
            gr_format_text(r, t, x, v, '>');
        else
            gr_render_fail(r, "%%c requires a text of one character");
        return;
    case 'x':
    case 'X':
    case 'o':
        break;
    default:
        gr_render_fail(r, "unsupported format character");
        return;
    }
    if (!gr_is_int(v))
        gr_render_fail(r, "%%%c format: a number is required, not %s", x->type, gr_type_name(v));
    else
        gr_format_int(r, t, x, gr_int_of(v), '>');
}

/* One % and what follows; p->at is behind the %. */
static void percent(struct gr_render *r, struct gr_text *t, struct percent *p)
{
    const struct gr_string *s = p->s;
    struct gr_format_spec x = {.precision = -1};
    struct gr_val v = {.type = GR_VAL_ABSENT};
    if (p->at < s->n && s->p[p->at] == '(')
        v = keyed_arg(r, p);
    for (; p->at < s->n && s->p[p->at] && strchr("-+ #0", s->p[p->at]); p->at++) {
        char c = s->p[p->at];
        x.align = c == '-' ? '<' : x.align;
        x.sign = c == '+' || (c == ' ' && !x.sign) ? c : x.sign;
        x.alternate = x.alternate || c == '#';
        x.zero = x.zero || c == '0';
    }
    x.width = percent_number(r, p);
    if (p->at < s->n && s->p[p->at] == '.')
        p->at++, x.precision = percent_number(r, p), x.precision = GR_MAX(x.precision, 0);
    if (x.width < -1)
        x.align = '<', x.width = x.width < -GR_FORMAT_MAX_WIDTH ? INT64_MAX : -x.width;
    if (x.width > GR_FORMAT_MAX_WIDTH || x.precision > GR_FORMAT_MAX_WIDTH) {
        gr_render_fail(r, "a width of more than %d characters", GR_FORMAT_MAX_WIDTH);
        return;
    }
    if (p->at >= s->n) {
        gr_render_fail(r, "incomplete format");
        return;
    }
    x.type = s->p[p->at++];
    if (x.type == '%') {
        gr_text_put_text(r, t, "%");
        return;
    }
    if (!gr_is_given(v))
        v = next_arg(r, p);
    if (gr_render_ok(r))
        percent_value(r, t, &x, v);
}

struct gr_val gr_percent_format(struct gr_render *r, const struct gr_string *s, struct gr_val args)
{
    struct gr_text t = {0};
    struct percent p = {s, 0, args, 0};
    while (p.at < s->n && gr_render_step(r, 1)) {
        size_t from = p.at;
        while (p.at < s->n && s->p[p.at] != '%')
            p.at++;
        gr_text_put(r, &t, s->p + from, p.at - from, s->mark ? s->mark + from : NULL);
        if (p.at++ < s->n)
            percent(r, &t, &p);
    }
    bool mapping = args.type == GR_VAL_DICT || args.type == GR_VAL_LIST ||
                   args.type == GR_VAL_RANGE || args.type == GR_VAL_UNDEFINED;
    bool all = args.type == GR_VAL_TUPLE ? p.used == args.list->n : p.used == 1 || mapping;
    if (!all)
        return gr_render_fail(r, "not all arguments converted during string formatting");
    return gr_text_value(r, &t);
}
