/* The table of filters, and those of texts and numbers. */
#include "chat/filters.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"

static const struct gr_native filters[] = {
#define FILTER(name, fn, params) {name, gr_##fn, params},
#include "chat/filters.def"
#undef FILTER
};

int gr_filter_find(const char *p, size_t n)
{
    for (size_t i = 0; i < GR_COUNT(filters); i++) {
        if (strlen(filters[i].name) == n && !memcmp(filters[i].name, p, n))
            return (int)i;
    }
    return -1;
}

struct gr_val gr_filter_run(struct gr_render *r, int filter, struct gr_val v,
                            const struct gr_args *a)
{
    return gr_native_call(r, &filters[filter], v, a);
}

static bool flag(struct gr_render *r, struct gr_val v)
{
    return gr_is_given(v) && gr_truth(r, v);
}

/* Sets the result's `markup` to that of `from`. */
static struct gr_val keep_markup(struct gr_render *r, struct gr_val v, struct gr_val from)
{
    if (gr_render_ok(r) && gr_is_str(from) && from.str->markup && !v.str->markup) {
        v = gr_str_view(r, v.str->p, v.str->n, v.str->mark);
        if (gr_render_ok(r))
            ((struct gr_string *)v.str)->markup = true;
    }
    return v;
}

/* ---- texts ---- */

GR_FILTER(filter_string)
{
    (void)v, (void)a;
    return gr_to_str(r, self);
}

static struct gr_val in_case(struct gr_render *r, struct gr_val v, enum gr_case how)
{
    struct gr_val s = gr_to_str(r, v);
    return gr_render_ok(r) ? keep_markup(r, gr_str_case(r, s, how), v) : gr_none();
}

GR_FILTER(filter_upper)
{
    (void)v, (void)a;
    return in_case(r, self, GR_UPPER);
}

GR_FILTER(filter_lower)
{
    (void)v, (void)a;
    return in_case(r, self, GR_LOWER);
}

GR_FILTER(filter_capitalize)
{
    (void)v, (void)a;
    return in_case(r, self, GR_CAPITALIZE);
}

GR_FILTER(filter_title)
{
    (void)v, (void)a;
    struct gr_val s = gr_to_str(r, self);
    return gr_render_ok(r) ? gr_str_case(r, s, GR_TITLE_WORDS) : s;
}

GR_FILTER(filter_trim)
{
    (void)a;
    struct gr_val s = gr_to_str(r, self);
    return gr_render_ok(r) ? gr_strip(r, s, v[0], true, true) : s;
}

GR_FILTER(filter_safe)
{
    (void)v, (void)a;
    struct gr_val s = gr_to_str(r, self);
    if (!gr_render_ok(r) || s.str->markup)
        return s;
    s = gr_str_view(r, s.str->p, s.str->n, s.str->mark);
    if (gr_render_ok(r))
        ((struct gr_string *)s.str)->markup = true;
    return s;
}

GR_FILTER(filter_escape)
{
    (void)v, (void)a;
    struct gr_val s = gr_to_str(r, self);
    return gr_render_ok(r) ? gr_str_escape(r, s) : s;
}

GR_FILTER(filter_forceescape)
{
    (void)v, (void)a;
    struct gr_val s = gr_to_str(r, self);
    if (!gr_render_ok(r))
        return s;
    return gr_str_escape(r, gr_str_view(r, s.str->p, s.str->n, s.str->mark));
}

GR_FILTER(filter_replace)
{
    (void)a;
    struct gr_val s = gr_to_str(r, self), from = gr_to_str(r, v[0]), to = gr_to_str(r, v[1]);
    int64_t most;
    if (!gr_int_arg(r, v[2], -1, &most) || !gr_render_ok(r))
        return gr_none();
    return gr_str_replace(r, s, from, to, most);
}

GR_FILTER(filter_format)
{
    (void)v;
    struct gr_val s = gr_to_str(r, self);
    if (a->n && a->n_kw)
        return gr_render_fail(r, "format takes values with names or without, not both");
    struct gr_list l = {a->v, a->n, a->n};
    struct gr_val args = gr_tuple_value(&l);
    if (a->n_kw) {
        args = gr_dict_value(gr_dict_new(r));
        for (size_t i = 0; i < a->n_kw; i++)
            gr_dict_set(r, args.dict, a->kw[i].name, a->kw[i].value);
    }
    return gr_render_ok(r) ? gr_percent_format(r, s.str, args) : gr_none();
}

/* The text that lines are indented by: a width in blanks, or the text itself. */
static struct gr_val indention(struct gr_render *r, struct gr_val width)
{
    if (gr_is_str(width))
        return width;
    if (gr_is_given(width) && !gr_is_int(width))
        return gr_render_fail(r, "indent: a width is a number or a text");
    return gr_operate(r, GR_MUL, gr_str_text(r, " "), gr_is_given(width) ? width : gr_int(4));
}

GR_FILTER(filter_indent)
{
    (void)a;
    struct gr_val space = indention(r, v[0]), s = self;
    bool first = flag(r, v[1]), blank = flag(r, v[2]);
    if (!gr_is_str(s))
        return gr_operate(r, GR_ADD, s, gr_str_text(r, "\n"));
    struct gr_text t = {0};
    if (!gr_render_ok(r))
        return gr_none();
    struct gr_val method = gr_method_find(r, s, "splitlines", 10);
    struct gr_val whole = gr_str_concat(r, s.str, gr_str_text(r, "\n").str);
    struct gr_args none = {0};
    struct gr_val lines =
        gr_render_ok(r) ? gr_native_call(r, method.method->native, whole, &none) : gr_none();
    for (size_t i = 0; gr_render_ok(r) && i < lines.list->n; i++) {
        const struct gr_string *line = lines.list->v[i].str;
        if (i)
            gr_text_put_text(r, &t, "\n");
        if (i ? blank || line->n : first)
            gr_text_put_str(r, &t, space.str);
        gr_text_put_str(r, &t, line);
    }
    return keep_markup(r, gr_text_value(r, &t), self);
}

GR_FILTER(filter_center)
{
    (void)a;
    struct gr_val s = gr_to_str(r, self);
    int64_t width;
    if (!gr_int_arg(r, v[0], 80, &width) || !gr_render_ok(r))
        return gr_none();
    gr_render_step(r, s.str->n / 256);
    int64_t room = width < 0 ? 0 : width - gr_length(s), left = room / 2 + (room & width & 1);
    if (room <= 0)
        return s;
    struct gr_val blank = gr_str_text(r, " ");
    struct gr_val before = gr_operate(r, GR_MUL, blank, gr_int(left));
    struct gr_val after = gr_operate(r, GR_MUL, blank, gr_int(room - left));
    if (!gr_render_ok(r))
        return gr_none();
    return gr_operate(r, GR_ADD, gr_operate(r, GR_ADD, before, s), after);
}

GR_FILTER(filter_truncate)
{
    (void)a;
    int64_t length, leeway;
    struct gr_val end = gr_is_given(v[2]) ? v[2] : gr_str_text(r, "...");
    if (!gr_int_arg(r, v[0], 255, &length) || !gr_int_arg(r, v[3], 5, &leeway) || !gr_render_ok(r))
        return gr_none();
    if (!gr_is_str(end) || length < gr_length(end) || leeway < 0)
        return gr_render_fail(r, "truncate: the end does not fit in the length");
    if (gr_is_str(self) && !gr_render_step(r, self.str->n / 256))
        return gr_none();
    if (gr_length(self) >= 0 && gr_length(self) - leeway <= length)
        return self;
    if (!gr_is_str(self))
        return gr_render_fail(r, "truncate: a text is expected, not '%s'", gr_type_name(self));
    struct gr_val s = gr_slice(r, self, gr_none(), gr_int(length - gr_length(end)), gr_none());
    if (gr_render_ok(r) && !flag(r, v[1])) {
        const char *blank = s.str->n ? memrchr(s.str->p, ' ', s.str->n) : NULL;
        if (blank)
            s = gr_str_part(r, s.str, 0, (size_t)(blank - s.str->p));
    }
    return gr_operate(r, GR_ADD, s, end);
}

GR_FILTER(filter_wordcount)
{
    (void)v, (void)a;
    struct gr_val s = gr_to_str(r, self);
    int64_t n = 0;
    bool inside = false;
    if (gr_render_ok(r))
        gr_render_step(r, s.str->n / 64);
    for (size_t i = 0, k; gr_render_ok(r) && i < s.str->n; i += k) {
        uint32_t cp = gr_code_at(s.str, i, &k);
        int c = utf8proc_category((utf8proc_int32_t)cp);
        bool word = cp == '_' || (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
                    (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
        n += word && !inside;
        inside = word;
    }
    return gr_int(n);
}

GR_FILTER(filter_urlencode)
{
    (void)v, (void)a;
    struct gr_val s = gr_to_str(r, self);
    struct gr_text t = {0};
    for (size_t i = 0; gr_render_ok(r) && i < s.str->n; i++) {
        unsigned char c = (unsigned char)s.str->p[i];
        char out[4] = {(char)c};
        bool plain = c < 0x80 && (isalnum(c) || strchr("_.-~/", c)) && c;
        int n = plain ? 1 : snprintf(out, sizeof out, "%%%02X", c);
        gr_text_put_as(r, &t, out, (size_t)n, s.str->mark && s.str->mark[i]);
        gr_render_step(r, i % 64 == 63);
    }
    return gr_text_value(r, &t);
}

/* ---- JSON ---- */

/* Separators of tojson: a list or tuple of two texts. */
static void separators(struct gr_render *r, struct gr_val v, struct gr_json_style *style)
{
    if (!gr_is_sequence(v) || v.list->n != 2 || !gr_is_str(v.list->v[0]) ||
        !gr_is_str(v.list->v[1])) {
        gr_render_fail(r, "tojson: separators are two texts");
        return;
    }
    style->item = *v.list->v[0].str;
    style->key = *v.list->v[1].str;
}

GR_FILTER(filter_tojson)
{
    (void)a;
    struct gr_json_style style = {.item = {.p = ", ", .n = 2}, .key = {.p = ": ", .n = 2}};
    struct gr_text t = {0};
    style.ascii = flag(r, v[0]);
    style.sort = flag(r, v[3]);
    if (gr_is_given(v[1]) && v[1].type != GR_VAL_NONE) {
        struct gr_val space = indention(r, v[1]);
        if (!gr_render_ok(r))
            return gr_none();
        style.indent = space.str;
        style.item.n = 1;
    }
    if (gr_is_given(v[2]) && v[2].type != GR_VAL_NONE)
        separators(r, v[2], &style);
    gr_put_json(r, &t, self, &style);
    return gr_text_value(r, &t);
}

GR_FILTER(filter_from_json)
{
    (void)v, (void)a;
    if (!gr_is_str(self))
        return gr_render_fail(r, "from_json: a text is expected, not '%s'", gr_type_name(self));
    bool input = false;
    for (size_t i = 0; self.str->mark && i < self.str->n && !input; i++)
        input = self.str->mark[i];
    return gr_from_json(r, self.str->p, self.str->n, input);
}

/* ---- numbers ---- */

GR_FILTER(filter_abs)
{
    (void)v, (void)a;
    if (self.type == GR_VAL_UNDEFINED || !gr_is_number(self))
        return gr_render_fail(r, "bad operand type for abs(): '%s'", gr_type_name(self));
    bool negative = self.type == GR_VAL_FLOAT ? signbit(self.f) : gr_int_of(self) < 0;
    return gr_negate(r, self, negative);
}

/* Copies a number's text without blanks around it and underscores between digits; false: it is no
 * such text. */
static bool number_text(const struct gr_string *s, char *out, size_t size)
{
    size_t k = 0, lo = 0, hi = s->n;
    while (lo < hi && isspace((unsigned char)s->p[lo]))
        lo++;
    while (hi > lo && isspace((unsigned char)s->p[hi - 1]))
        hi--;
    for (size_t i = lo; i < hi; i++) {
        bool between = i > lo && i + 1 < hi && isalnum((unsigned char)s->p[i - 1]) &&
                       isalnum((unsigned char)s->p[i + 1]);
        if (s->p[i] == '_' && between)
            continue;
        if (k + 1 >= size || s->p[i] == '_' || !s->p[i])
            return false;
        out[k++] = s->p[i];
    }
    out[k] = 0;
    return k > 0 && !isspace((unsigned char)out[0]);
}

/* Python's int(text, base). */
static bool parse_int(struct gr_render *r, const char *text, int64_t base, int64_t *out)
{
    const char *p = text + (*text == '-' || *text == '+');
    char kind = *p == '0' ? (char)tolower((unsigned char)p[1]) : 0;
    int of = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (of && (base == of || base == 0))
        p += 2, base = of;
    else if (base == 0 && *p == '0' && strspn(p, "0") != strlen(p))
        return false;
    base = base ? base : 10;
    if (base < 2 || base > 36 || !isalnum((unsigned char)*p))
        return false;
    char *end;
    unsigned long long u = strtoull(p, &end, (int)base);
    if (*end || (base == 16 && (p[1] == 'x' || p[1] == 'X')))
        return false;
    if (u > INT64_MAX)
        gr_render_fail(r, "the integer does not fit 64 bits");
    *out = *text == '-' ? -(int64_t)u : (int64_t)u;
    return true;
}

/* Python's float(text). */
static bool parse_float(const char *text, double *out)
{
    char *end;
    const char *p = text + (*text == '-' || *text == '+');
    bool word = isalpha((unsigned char)*p);
    if (*p == '0' && (p[1] == 'x' || p[1] == 'X'))
        return false;
    if (word && strcasecmp(p, "inf") != 0 && strcasecmp(p, "infinity") != 0 &&
        strcasecmp(p, "nan") != 0)
        return false;
    *out = strtod(text, &end);
    return end != text && !*end;
}

static struct gr_val int_of_float(struct gr_render *r, double f)
{
    if (fabs(f) >= 9223372036854775808.0)
        return gr_render_fail(r, "the number does not fit 64 bits");
    return gr_int((int64_t)f);
}

GR_FILTER(filter_int)
{
    (void)a;
    struct gr_val otherwise = gr_is_given(v[0]) ? v[0] : gr_int(0);
    char text[400];
    int64_t base, i;
    double f;
    if (!gr_int_arg(r, v[1], 10, &base))
        return gr_none();
    if (self.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, self);
    if (self.type == GR_VAL_FLOAT)
        return isnan(self.f) ? otherwise : int_of_float(r, self.f);
    if (gr_is_int(self))
        return gr_int(gr_int_of(self));
    if (!gr_is_str(self) || !number_text(self.str, text, sizeof text))
        return otherwise;
    if (parse_int(r, text, base, &i))
        return gr_int(i);
    return parse_float(text, &f) && isfinite(f) ? int_of_float(r, f) : otherwise;
}

GR_FILTER(filter_float)
{
    (void)a;
    struct gr_val otherwise = gr_is_given(v[0]) ? v[0] : gr_float(0);
    char text[400];
    double f;
    if (self.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, self);
    if (gr_is_number(self))
        return gr_float(gr_float_of(self));
    if (!gr_is_str(self) || !number_text(self.str, text, sizeof text))
        return otherwise;
    return parse_float(text, &f) ? gr_float(f) : otherwise;
}

/* Rounds half to even at a decimal place, as Python does. */
static double round_to(double f, int64_t places)
{
    char text[700];
    if (!isfinite(f) || places > 308)
        return f;
    if (places >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)places, f);
        return strtod(text, NULL);
    }
    double unit = pow(10, (double)-places);
    return isfinite(unit) ? copysign(nearbyint(f / unit) * unit, f) : copysign(0.0, f);
}

static struct gr_val round_int(struct gr_render *r, int64_t i, int64_t places)
{
    if (places >= 0)
        return gr_int(i);
    if (places < -18)
        return gr_int(0);
    int64_t unit = 1;
    for (; places < 0; places++)
        unit *= 10;
    int64_t rest = i % unit, up = i - rest;
    rest = rest < 0 ? -rest : rest;
    bool away = 2 * (uint64_t)rest > (uint64_t)unit ||
                (2 * (uint64_t)rest == (uint64_t)unit && up / unit % 2 != 0);
    if (away && !gr_add(&up, up, i < 0 ? -unit : unit))
        return gr_render_fail(r, "the number does not fit 64 bits");
    return gr_int(up);
}

GR_FILTER(filter_round)
{
    (void)a;
    int64_t places;
    bool common = !gr_is_given(v[1]) || gr_val_is(v[1], "common");
    bool up = gr_is_given(v[1]) && gr_val_is(v[1], "ceil");
    if (!common && !up && !gr_val_is(v[1], "floor"))
        return gr_render_fail(r, "round: the method must be common, ceil or floor");
    if (!gr_int_arg(r, v[0], 0, &places))
        return gr_none();
    if (self.type == GR_VAL_UNDEFINED || !gr_is_number(self))
        return gr_render_fail(r, "round: a number is expected, not '%s'", gr_type_name(self));
    if (common && gr_is_int(self))
        return round_int(r, gr_int_of(self), places);
    if (common)
        return gr_float(round_to(self.f, places));
    struct gr_val unit = gr_operate(r, GR_POW, gr_int(10), gr_int(places));
    struct gr_val big = gr_operate(r, GR_MUL, self, unit);
    if (gr_render_ok(r) && big.type == GR_VAL_FLOAT && !isfinite(big.f))
        return gr_render_fail(r, "cannot convert float infinity or NaN to integer");
    if (gr_render_ok(r) && big.type == GR_VAL_FLOAT &&
        fabs(big.f) < 9e18) /* larger ones are whole */
        big = int_of_float(r, up ? ceil(big.f) : floor(big.f));
    return gr_operate(r, GR_DIV, big, unit);
}
