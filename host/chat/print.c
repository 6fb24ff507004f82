/* Values as text: Python's str and repr. Recursion ends at GR_VALUE_MAX_DEPTH. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "chat/value.h"
#include "text/utf8.h"

/* NOLINTBEGIN(misc-no-recursion) */

/* The fewest digits that are read back as f, which is finite, and the exponent of the first. */
static size_t shortest(double f, char *digits, int *exponent)
{
    char buf[40];
    for (int precision = 0;; precision++) {
        snprintf(buf, sizeof buf, "%.*e", precision, f);
        if (precision == 16 || strtod(buf, NULL) == f)
            break;
    }
    size_t n = 0;
    const char *p = buf;
    for (; *p && *p != 'e'; p++) {
        if (isdigit((unsigned char)*p))
            digits[n++] = *p;
    }
    *exponent = (int)strtol(p + 1, NULL, 10);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    return n;
}

size_t gr_float_repr(double f, char *out)
{
    char digits[40], *p = out;
    int e;
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, 32, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    if (signbit(f))
        *p++ = '-';
    size_t n = shortest(fabs(f), digits, &e);
    if (e < -4 || e >= 16) {
        *p++ = digits[0];
        if (n > 1)
            *p++ = '.', memcpy(p, digits + 1, n - 1), p += n - 1;
        return (size_t)(p - out) + (size_t)snprintf(p, 8, "e%c%02d", e < 0 ? '-' : '+', abs(e));
    }
    if (e < 0) {
        memcpy(p, "0.0000", (size_t)(1 - e)), p += 1 - e;
        memcpy(p, digits, n), p += n;
        return (size_t)(p - out);
    }
    for (int i = 0; i <= e || i < (int)n; i++) {
        if (i == e + 1)
            *p++ = '.';
        *p++ = i < (int)n ? digits[i] : '0';
    }
    if ((int)n <= e + 1)
        *p++ = '.', *p++ = '0';
    return (size_t)(p - out);
}

/* ---- repr ---- */

static bool printable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

/* Escape of a character within quotes; 0: it stands for itself. */
static int escape(uint32_t cp, char quote, char out[16])
{
    if (cp == (uint32_t)quote || cp == '\\')
        return snprintf(out, 16, "\\%c", (char)cp);
    if (cp == '\n' || cp == '\r' || cp == '\t')
        return snprintf(out, 16, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    if (printable(cp))
        return 0;
    return snprintf(out, 16, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

static void put_quoted(struct gr_render *r, struct gr_text *t, const struct gr_string *s)
{
    char quote = s->n && memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'', out[16];
    gr_text_put(r, t, &quote, 1, NULL);
    gr_render_step(r, s->n / 32);
    size_t from = 0;
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t cp = gr_code_at(s, i, &k);
        int n = escape(cp, quote, out);
        if (!n)
            continue;
        gr_text_put(r, t, s->p + from, i - from, s->mark ? s->mark + from : NULL);
        gr_text_put_as(r, t, out, (size_t)n, s->mark && s->mark[i]);
        from = i + k;
    }
    gr_text_put(r, t, s->p + from, s->n - from, s->mark ? s->mark + from : NULL);
    gr_text_put(r, t, &quote, 1, NULL);
}

static void put_number(struct gr_render *r, struct gr_text *t, struct gr_val v)
{
    char out[40];
    size_t n = v.type == GR_VAL_FLOAT ? gr_float_repr(v.f, out)
                                      : (size_t)snprintf(out, sizeof out, "%lld", (long long)v.i);
    gr_text_put(r, t, out, n, NULL);
}

static void put_repr(struct gr_render *r, struct gr_text *t, struct gr_val v, unsigned depth);

static void put_list(struct gr_render *r, struct gr_text *t, const struct gr_list *l,
                     const char *around, unsigned depth)
{
    gr_text_put(r, t, around, 1, NULL);
    for (size_t i = 0; i < l->n && gr_render_ok(r); i++) {
        if (i)
            gr_text_put_text(r, t, ", ");
        put_repr(r, t, l->v[i], depth + 1);
    }
    if (*around == '(' && l->n == 1)
        gr_text_put_text(r, t, ",");
    gr_text_put(r, t, around + 1, 1, NULL);
}

static void put_dict(struct gr_render *r, struct gr_text *t, const struct gr_dict *d,
                     unsigned depth)
{
    gr_text_put_text(r, t, "{");
    for (size_t i = 0; i < d->n && gr_render_ok(r); i++) {
        if (i)
            gr_text_put_text(r, t, ", ");
        put_repr(r, t, d->v[i].key, depth + 1);
        gr_text_put_text(r, t, ": ");
        put_repr(r, t, d->v[i].value, depth + 1);
    }
    gr_text_put_text(r, t, "}");
}

static void put_range(struct gr_render *r, struct gr_text *t, const struct gr_range *range)
{
    char out[96];
    int n = snprintf(out, sizeof out, "range(%lld, %lld", (long long)range->start,
                     (long long)range->stop);
    if (range->step != 1)
        n += snprintf(out + n, sizeof out - (size_t)n, ", %lld", (long long)range->step);
    gr_text_put(r, t, out, (size_t)n, NULL);
    gr_text_put_text(r, t, ")");
}

static void put_loop(struct gr_render *r, struct gr_text *t, const struct gr_loop *l)
{
    char out[64];
    int n = snprintf(out, sizeof out, "<LoopContext %zu/%zu>", l->at, l->items->n);
    gr_text_put(r, t, out, (size_t)n, NULL);
}

static void put_repr(struct gr_render *r, struct gr_text *t, struct gr_val v, unsigned depth)
{
    if (!gr_render_step(r, depth > 0))
        return;
    if (depth > GR_VALUE_MAX_DEPTH) {
        gr_render_fail(r, "a value that is nested deeper than %u cannot be printed",
                       GR_VALUE_MAX_DEPTH);
        return;
    }
    switch (v.type) {
    case GR_VAL_UNDEFINED:
        gr_text_put_text(r, t, "Undefined");
        return;
    case GR_VAL_NONE:
        gr_text_put_text(r, t, "None");
        return;
    case GR_VAL_BOOL:
        gr_text_put_text(r, t, v.b ? "True" : "False");
        return;
    case GR_VAL_INT:
    case GR_VAL_FLOAT:
        put_number(r, t, v);
        return;
    case GR_VAL_STR:
        if (v.str->markup)
            gr_text_put_text(r, t, "Markup(");
        put_quoted(r, t, v.str);
        if (v.str->markup)
            gr_text_put_text(r, t, ")");
        return;
    case GR_VAL_LIST:
        put_list(r, t, v.list, "[]", depth);
        return;
    case GR_VAL_TUPLE:
        put_list(r, t, v.list, "()", depth);
        return;
    case GR_VAL_DICT:
        put_dict(r, t, v.dict, depth);
        return;
    case GR_VAL_NAMESPACE:
        gr_text_put_text(r, t, "<Namespace ");
        put_dict(r, t, v.dict, depth);
        gr_text_put_text(r, t, ">");
        return;
    case GR_VAL_RANGE:
        put_range(r, t, v.range);
        return;
    case GR_VAL_VIEW:
        gr_text_put_text(r, t, gr_type_name(v));
        gr_text_put_text(r, t, "(");
        put_list(r, t, gr_items(r, v), /* the view's own items: a new list */
                 "[]", depth);
        gr_text_put_text(r, t, ")");
        return;
    case GR_VAL_LOOP:
        put_loop(r, t, v.loop);
        return;
    default: /* Python prints an address here */
        gr_text_put_text(r, t, "<");
        gr_text_put_text(r, t, gr_type_name(v));
        gr_text_put_text(r, t, " object>");
    }
}

void gr_put_repr(struct gr_render *r, struct gr_text *t, struct gr_val v)
{
    put_repr(r, t, v, 0);
}

void gr_put_str(struct gr_render *r, struct gr_text *t, struct gr_val v)
{
    if (gr_is_str(v))
        gr_text_put_str(r, t, v.str);
    else if (v.type != GR_VAL_UNDEFINED)
        put_repr(r, t, v, 0);
}

struct gr_val gr_to_str(struct gr_render *r, struct gr_val v)
{
    if (gr_is_str(v))
        return v;
    struct gr_text t = {0};
    gr_put_str(r, &t, v);
    return gr_text_value(r, &t);
}

/* NOLINTEND(misc-no-recursion) */
