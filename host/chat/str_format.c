/* str.format. */
#include <ctype.h>
#include <string.h>

#include "base/checked.h"
#include "chat/format.h"

struct fields {
    const struct gr_string *s;
    size_t at;
    const struct gr_args *args;
    int64_t next; /* number of the next field without one; -1: fields are numbered */
};

static struct gr_val field_arg(struct gr_render *r, struct fields *f, size_t lo, size_t hi)
{
    int64_t i = -1;
    if (lo == hi) {
        if (f->next < 0)
            return gr_render_fail(r, "cannot switch from manual field specification to automatic");
        i = f->next++;
    } else if (isdigit((unsigned char)f->s->p[lo])) {
        size_t at = lo;
        i = gr_format_digits(f->s, &at);
        if (f->next > 0 || at != hi)
            return gr_render_fail(r, "cannot switch from automatic field numbering to manual");
        f->next = -1;
    }
    if (i >= 0)
        return (size_t)i < f->args->n ? f->args->v[i]
                                      : gr_render_fail(r, "replacement index out of range");
    for (size_t k = 0; k < f->args->n_kw; k++) {
        const struct gr_string *n = f->args->kw[k].name.str;
        if (n->n == hi - lo && !memcmp(n->p, f->s->p + lo, n->n))
            return f->args->kw[k].value;
    }
    return gr_render_fail(r, "format: there is no argument '%.*s'", (int)GR_MIN(hi - lo, 60),
                          f->s->p + lo);
}

/* The value of "name.attribute[key]" at [lo, hi). */
static struct gr_val field_value(struct gr_render *r, struct fields *f, size_t lo, size_t hi)
{
    const char *p = f->s->p;
    size_t i = lo;
    while (i < hi && p[i] != '.' && p[i] != '[')
        i++;
    struct gr_val v = field_arg(r, f, lo, i);
    while (i < hi && gr_render_ok(r)) {
        bool item = p[i++] == '[';
        size_t from = i;
        while (i < hi && (item ? p[i] != ']' : p[i] != '.' && p[i] != '['))
            i++;
        struct gr_val name = gr_str_view(r, p + from, i - from, NULL);
        if (i == from || (item && i == hi))
            return gr_render_fail(r, "format: an empty or open part of a field");
        size_t at = from;
        int64_t index = item ? gr_format_digits(f->s, &at) : -1;
        v = item ? gr_item(r, v, index >= 0 && at == i ? gr_int(index) : name)
                 : gr_attribute(r, v, name);
        i += item;
    }
    return v;
}

static bool is_align(char c)
{
    return c && strchr("<>=^", c);
}

/* Reads "[[fill]align][sign][#][0][width][,][.precision][type]". */
static bool read_spec(struct gr_render *r, const struct gr_string *s, struct gr_format_spec *x)
{
    size_t i = 0, k = 0;
    *x = (struct gr_format_spec){.precision = -1};
    if (s->n)
        gr_code_at(s, 0, &k);
    if (s->n > k && is_align(s->p[k])) {
        struct gr_val fill = gr_str_part(r, s, 0, k);
        x->fill = gr_render_ok(r) ? fill.str : NULL;
        x->align = s->p[k], i = k + 1;
    } else if (s->n && is_align(*s->p)) {
        x->align = s->p[i++];
    }
    if (i < s->n && s->p[i] && strchr("+- ", s->p[i]))
        x->sign = s->p[i++];
    if (i < s->n && s->p[i] == '#')
        x->alternate = true, i++;
    if (i < s->n && s->p[i] == '0')
        x->zero = true, i++;
    x->width = gr_format_digits(s, &i);
    if (i < s->n && (s->p[i] == ',' || s->p[i] == '_'))
        x->group = s->p[i++];
    if (i < s->n && s->p[i] == '.') {
        i++;
        x->precision = gr_format_digits(s, &i);
        if (x->precision < 0)
            return gr_render_fail(r, "Format specifier missing precision"), false;
    }
    if (i < s->n)
        x->type = s->p[i++];
    if (i < s->n || x->width > GR_FORMAT_MAX_WIDTH || x->precision > GR_FORMAT_MAX_WIDTH)
        return gr_render_fail(r, "Invalid format specifier"), false;
    return gr_render_ok(r);
}

static void format_value(struct gr_render *r, struct gr_text *t, struct gr_val v,
                         const struct gr_string *text)
{
    struct gr_format_spec x;
    if (!text->n) {
        gr_put_str(r, t, v);
        return;
    }
    if (!read_spec(r, text, &x))
        return;
    static const struct gr_string zero = {.p = "0", .n = 1};
    if (gr_is_str(v) && x.zero && !x.fill)
        x.fill = &zero;
    bool number = gr_is_number(v), real = x.type && strchr("eEfFgG%", x.type);
    if (gr_is_str(v) && (!x.type || x.type == 's') && x.align != '=' && !x.sign)
        gr_format_text(r, t, &x, v, '<');
    else if (v.type == GR_VAL_FLOAT ? !x.type || real : number && real)
        gr_format_float(r, t, &x, gr_float_of(v), '>');
    else if (gr_is_int(v) && x.precision < 0 && (!x.type || strchr("bdoxXn", x.type)))
        gr_format_int(r, t, &x, gr_int_of(v), '>');
    else
        gr_render_fail(r, "unsupported format string for '%s'", gr_type_name(v));
}

/* One field; f->at is behind its "{". */
static void field(struct gr_render *r, struct gr_text *t, struct fields *f)
{
    const char *p = f->s->p;
    size_t lo = f->at, end = lo;
    while (end < f->s->n && p[end] != '}' && p[end] != '{')
        end++;
    if (end >= f->s->n || p[end] == '{') {
        gr_render_fail(r, end < f->s->n ? "fields within fields are not supported"
                                        : "expected '}' before end of string");
        return;
    }
    f->at = end + 1;
    size_t name = lo, spec;
    while (name < end && p[name] != '!' && p[name] != ':')
        name++;
    struct gr_val v = field_value(r, f, lo, name);
    spec = name;
    if (name < end && p[name] == '!') {
        spec = name + 2;
        struct gr_text repr = {0};
        bool is_r = name + 1 < end && p[name + 1] == 'r';
        if (spec > end || (!is_r && p[name + 1] != 's') || (spec < end && p[spec] != ':')) {
            gr_render_fail(r, "unknown conversion");
            return;
        }
        if (is_r)
            gr_put_repr(r, &repr, v);
        v = is_r ? gr_text_value(r, &repr) : gr_to_str(r, v);
    }
    spec += spec < end;
    struct gr_string text = {
        .p = p + spec, .n = end - spec, .mark = f->s->mark ? f->s->mark + spec : NULL};
    if (gr_render_ok(r))
        format_value(r, t, v, &text);
}

struct gr_val gr_str_format(struct gr_render *r, const struct gr_string *s, const struct gr_args *a)
{
    struct gr_text t = {0};
    struct fields f = {s, 0, a, 0};
    while (f.at < s->n && gr_render_step(r, 1)) {
        size_t from = f.at;
        while (f.at < s->n && s->p[f.at] != '{' && s->p[f.at] != '}')
            f.at++;
        gr_text_put(r, &t, s->p + from, f.at - from, s->mark ? s->mark + from : NULL);
        if (f.at >= s->n)
            break;
        char c = s->p[f.at++];
        if (f.at < s->n && s->p[f.at] == c)
            gr_text_put(r, &t, s->p + f.at, 1, s->mark ? s->mark + f.at : NULL), f.at++;
        else if (c == '}')
            return gr_render_fail(r, "Single '}' encountered in format string");
        else
            field(r, &t, &f);
    }
    return gr_text_value(r, &t);
}
