/* Parsing of flag values, for each kind. */
#include "flag_values.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "flags.h"

const char *gr_find_choice(const char *choices, const char *word, size_t n)
{
    for (const char *p = choices;; p++) {
        size_t m = strcspn(p, "|");
        if (m == n && m && !strncasecmp(p, word, n))
            return p;
        p += m;
        if (!*p)
            return NULL;
    }
}

/* Returns a copy of the n bytes that lives as long as the process, for the few short words of the
 * tables. */
static const char *kept_word(const char *p, size_t n)
{
    static char words[96][16];
    int i = 0;
    while (i < 95 && *words[i] && (strlen(words[i]) != n || memcmp(words[i], p, n) != 0))
        i++;
    snprintf(words[i], sizeof words[i], "%.*s", (int)n, p);
    return words[i];
}

int gr_switch_of(const char *word, size_t n)
{
    static const char *const words[] = {"0", "off", "false", "no", "1", "on", "true", "yes"};
    for (int i = 0; i < 8; i++)
        if (strlen(words[i]) == n && !strncasecmp(word, words[i], n))
            return i >= 4;
    return -1;
}

/* ---- values: each reader stores and returns NULL, or returns what it expects ---- */

/* Returns whether the word auto, or -1, is a value. */
static bool may_be_auto(const struct gr_flag *f)
{
    return !strcmp(f->def, "auto") || strstr(f->value, "|auto");
}

/* Returns whether "all" is a value. */
static bool may_be_all(const struct gr_flag *f)
{
    return may_be_auto(f) && f->hi == INT32_MAX;
}

bool gr_flag_is_of_few(const struct gr_flag *f)
{
    return *f->value >= '0' && *f->value <= '9' && strchr(f->value, '|');
}

static const char *expected(const struct gr_flag *f)
{
    static char text[128];
    char lo[32] = "", hi[32] = "";
    const char *words = may_be_all(f)              ? ", all or auto"
                        : may_be_auto(f)           ? ", or auto"
                        : !strcmp(f->def, "model") ? ", or model"
                                                   : "";
    if (gr_flag_is_of_few(f)) {
        snprintf(text, sizeof text, "one of %s%s", f->value, words);
        return text;
    }
    if (f->lo > INT32_MIN)
        snprintf(lo, sizeof lo, " from %.*g", f->kind == F32 ? 6 : 10, f->lo);
    if (f->hi < INT32_MAX || f->kind == F32)
        snprintf(hi, sizeof hi, " to %.*g", f->kind == F32 ? 6 : 10, f->hi);
    snprintf(text, sizeof text, "a %snumber%s%s%s", f->kind == F32 ? "" : "whole ", lo,
             *hi   ? hi
             : *lo ? " on"
                   : "",
             words);
    return text;
}

/* Parses a text that is a decimal number as a whole; hexadecimal numbers, blanks and names are
 * refused. */
static bool read_integer(const char *text, double lo, double hi, int64_t *x)
{
    char *end;
    if (text[strspn(text, "+-0123456789")])
        return false;
    errno = 0;
    *x = strtoll(text, &end, 10);
    return end != text && !*end && !errno && (double)*x >= lo && (double)*x <= hi;
}

static bool read_real(const char *text, double *x)
{
    char *end;
    if (text[strspn(text, "+-.eE0123456789")])
        return false;
    *x = strtod(text, &end);
    return end != text && !*end && isfinite(*x);
}

/* Parses a number in the flag's range, or a word that stands for one. */
static bool read_count(const struct gr_flag *f, const char *text, int64_t *x)
{
    bool automatic = may_be_auto(f);
    if (automatic && (!strcasecmp(text, "auto") || !strcmp(text, "-1")))
        *x = -1;
    else if (may_be_all(f) && !strcasecmp(text, "all"))
        *x = INT32_MAX;
    else
        return read_integer(text, f->lo, f->hi, x) &&
               (!gr_flag_is_of_few(f) || gr_find_choice(f->value, text, strlen(text)));
    return true;
}

static const char *set_integer(const struct gr_flag *f, void *field, const char *text)
{
    int64_t x;
    if (!read_count(f, text, &x))
        return expected(f);
    if (f->kind == I64)
        *(int64_t *)field = x;
    else
        *(int32_t *)field = (int32_t)x;
    return NULL;
}

static const char *set_real(const struct gr_flag *f, float *field, const char *text)
{
    double x;
    if (!strcmp(f->def, "model") && !strcasecmp(text, "model"))
        x = NAN;
    else if (!read_real(text, &x) || x < f->lo || x > f->hi)
        return expected(f);
    *field = (float)x;
    return NULL;
}

static const char *set_switch(const struct gr_flag *f, int *field, const char *text)
{
    int x = gr_switch_of(text, strlen(text));
    if (x < 0 && (strcasecmp(text, "auto") != 0 || strcmp(f->def, "auto") != 0))
        return "on or off";
    *field = x;
    return NULL;
}

static const char *set_choice(const struct gr_flag *f, const char **field, const char *text)
{
    static char choices[128];
    const char *choice = gr_find_choice(f->value, text, strlen(text));
    if (choice) {
        *field = kept_word(choice, strlen(text));
        return NULL;
    }
    snprintf(choices, sizeof choices, "one of %s", f->value);
    return choices;
}

/* ---- texts whose syntax only is checked ---- */

/* Returns whether the text is numbers separated by commas or slashes, one above 0, or auto. */
static bool are_shares(const char *text)
{
    bool any = false;
    if (!strcasecmp(text, "auto"))
        return true;
    if (strchr(text, ',') && strchr(text, '/'))
        return false;
    for (const char *p = text;; p++) {
        size_t n = strspn(p, "0123456789."), digits = 0, points = 0;
        for (size_t i = 0; i < n; i++)
            digits += p[i] != '.', points += p[i] == '.', any |= p[i] > '0';
        p += n;
        if (!digits || points > 1 || (*p && *p != ',' && *p != '/'))
            return false;
        if (!*p)
            return any;
    }
}

static bool is_hex(const char *text)
{
    text += text[0] == '0' && (text[1] == 'x' || text[1] == 'X') ? 2 : 0;
    return *text && !text[strspn(text, "0123456789abcdefABCDEF")];
}

static bool are_steps(const char *text)
{
    int from, to, n = 0;
    return sscanf(text, "%d:%d%n", &from, &to, &n) == 2 && !text[n] && from >= 0 && to > from;
}

static const char *set_text(const struct gr_flag *f, const char **field, const char *text)
{
    *field = text;
    if (f->kind == SHARES && !are_shares(text))
        return "a list of shares from 0 on, one of them above 0, as in 3,1, or auto";
    if (f->kind == HEX && !is_hex(text))
        return "a hexadecimal number, as in 0xF0,";
    if (f->kind == STEPS && !are_steps(text))
        return "two numbers A:B with A below B";
    return NULL;
}

/* ---- lists: `more` adds to what is there ---- */

/* Adds a range, "1-64*2", "0-8192+2048" or "1-4": first, last, and factor or step. */
static bool add_range(const struct gr_flag *f, struct gr_int_list *list, char *word)
{
    int64_t x, last, step = 1;
    char *dash = *word ? strchr(word + 1, '-') : NULL, *by = dash ? strpbrk(dash, "+*") : NULL;
    bool multiplies = by && *by == '*';
    if (by) {
        *by = 0;
        if (!read_integer(by + 1, multiplies ? 2 : 1, INT32_MAX, &step))
            return false;
    }
    if (dash)
        *dash = 0;
    if (!read_count(f, word, &x) || (dash && x < (int64_t)f->lo))
        return false;
    if (!dash)
        last = x;
    else if (!read_integer(dash + 1, f->lo, f->hi, &last) || last < x || (multiplies && x < 1))
        return false;
    for (; x <= last; x = multiplies ? x * step : x + step) {
        if (list->n == 16)
            return false;
        list->v[list->n++] = (int32_t)x;
    }
    return true;
}

static const char *set_list(const struct gr_flag *f, struct gr_int_list *list, const char *text,
                            bool more)
{
    struct gr_int_list got = {.n = more ? list->n : 0};
    static char form[192];
    memcpy(got.v, list->v, sizeof got.v);
    for (const char *p = text;; p++) {
        char word[48];
        size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < 47 ? n : 47), p);
        if (n >= sizeof word || !add_range(f, &got, word)) {
            snprintf(form, sizeof form, "up to 16 times %s, separated by commas, or A-B, A-B+STEP",
                     expected(f));
            return form;
        }
        p += n;
        if (!*p)
            break;
    }
    *list = got;
    return NULL;
}

/* Parses "0", "0,1"; `off`: the flag's name switches off. */
static const char *set_switches(struct gr_int_list *list, const char *text, bool off, bool more)
{
    struct gr_int_list got = {.n = more ? list->n : 0};
    memcpy(got.v, list->v, sizeof got.v);
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        int x = gr_switch_of(p, n);
        if (x < 0 || got.n == 16)
            return "up to 16 times on or off, separated by commas,";
        got.v[got.n++] = x != off;
        p += n;
        if (!*p)
            break;
    }
    *list = got;
    return NULL;
}

void gr_files_drop(struct gr_file_list *list)
{
    while (list->n > 0)
        free(list->v[--list->n]);
}

/* Parses names separated by commas, or one existing file with commas in its name. */
static const char *set_files(struct gr_file_list *list, const char *text, bool more)
{
    bool whole = !access(text, F_OK);
    if (!more)
        gr_files_drop(list);
    for (const char *p = text;; p++) {
        size_t n = whole ? strlen(p) : strcspn(p, ",");
        if (list->n == 16)
            return "a list of up to 16 files";
        if (!(list->v[list->n] = strndup(p, n)))
            return "more memory for it";
        list->n++;
        p += n;
        if (!*p)
            return NULL;
    }
}

static const char *set_choices(const struct gr_flag *f, struct gr_word_list *list, const char *text,
                               bool more)
{
    struct gr_word_list got = *list;
    static char choices[128];
    got.n = more ? got.n : 0;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        const char *choice = gr_find_choice(f->value, p, n);
        if (got.n == 16 || n >= sizeof got.v[0] || !choice) {
            snprintf(choices, sizeof choices, "one or more of %s, separated by commas%s", f->value,
                     got.n == 16 ? ", 16 at most," : "");
            return choices;
        }
        snprintf(got.v[got.n++], sizeof got.v[0], "%.*s", (int)n, choice);
        p += n;
        if (!*p)
            break;
    }
    *list = got;
    return NULL;
}

const char *gr_value_add(struct gr_str_list *list, const char *text)
{
    const char **v = realloc(list->v, ((size_t)list->n + 2) * sizeof *v);
    if (!v)
        return "more memory for it";
    list->v = v;
    v[list->n++] = text;
    v[list->n] = NULL;
    return NULL;
}

/* Parses "+1", "-0.5", "-inf". */
static bool read_bias(const char *text, float *bias)
{
    double x;
    if (*text != '+' && *text != '-')
        return false;
    if (!strcmp(text + 1, "inf"))
        x = *text == '-' ? -INFINITY : INFINITY;
    else if (!read_real(text, &x))
        return false;
    *bias = (float)x;
    return true;
}

/* Parses "15043+1", "15043-inf", or a text and the first sign that a number follows to the end:
 * "Hello-0.5". */
static const char *set_bias(struct gr_bias_list *list, const char *text)
{
    static const char form[] = "ID+X, ID-X, ID-inf or TEXT+X";
    struct gr_bias b = {.id = -1};
    char id[16];
    int64_t token;
    size_t n = strspn(text, "0123456789"), at = n > 0 ? n : 1;
    snprintf(id, sizeof id, "%.*s", (int)(n < 15 ? n : 15), text);
    while (*text && text[at] && !read_bias(text + at, &b.bias))
        at++;
    if (!*text || !text[at])
        return form;
    if (at != n)
        b.text = text, b.n_text = at;
    else if (!read_integer(id, 0, INT32_MAX, &token))
        return form;
    else
        b.id = (int32_t)token;
    struct gr_bias *v = realloc(list->v, ((size_t)list->n + 1) * sizeof *v);
    if (!v)
        return "more memory for it";
    list->v = v;
    v[list->n++] = b;
    return NULL;
}

const char *gr_value_store(struct gr_options *o, const struct gr_flag *f, const char *text,
                           bool off, bool more)
{
    void *field = (char *)o + f->offset;
    switch (f->kind) {
    case I32:
    case I64:
        return set_integer(f, field, text);
    case F32:
        return set_real(f, field, text);
    case SWITCH:
        return set_switch(f, field, text);
    case CHOICE:
    case WHEN:
        return set_choice(f, field, text);
    case LIST:
        return set_list(f, field, text, more);
    case SWITCHES:
        return set_switches(field, text, off, more);
    case CHOICES:
        return set_choices(f, field, text, more);
    case FILES:
        return set_files(field, text, more);
    case STRS:
        return gr_value_add(field, text);
    case BIAS:
        return set_bias(field, text);
    default:
        return set_text(f, field, text);
    }
}
