/* Tokens of a template. */
#include "chat/lex.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/utf8.h"

struct lexer {
    struct gr_template *prog;
    const char *p; /* the source */
    size_t n, at;
    struct gr_vec *tokens;
    bool line_start;                  /* the last token ended with a newline */
    char open[GR_TEMPLATE_MAX_DEPTH]; /* brackets within a tag */
    size_t n_open;
};

static int push(struct lexer *x, enum gr_token_kind kind, size_t at, size_t n)
{
    struct gr_token *t = gr_vec_push(x->tokens, sizeof *t);
    if (!t)
        return GR_E_NOMEM_HOST;
    *t = (struct gr_token){.kind = kind, .text = {x->p + at, n}, .at = (uint32_t)at};
    return 0;
}

static bool is(const struct lexer *x, size_t at, const char *what)
{
    size_t n = strlen(what);
    return at <= x->n && n <= x->n - at && !memcmp(x->p + at, what, n);
}

/* Returns the length of white space at `at`. */
static size_t blanks(const struct lexer *x, size_t at)
{
    size_t from = at, k;
    struct gr_string s = {.p = x->p, .n = x->n};
    while (at < x->n && gr_is_space(gr_code_at(&s, at, &k)))
        at += k;
    return at - from;
}

/* Returns where text [from, to) ends without the white space at its end. */
static size_t strip_end(const struct lexer *x, size_t from, size_t to)
{
    size_t end = from, k;
    struct gr_string s = {.p = x->p, .n = x->n};
    for (size_t i = from; i < to; i += k) {
        if (!gr_is_space(gr_code_at(&s, i, &k)))
            end = i + k;
    }
    return end;
}

/* Returns where text [from, to) before a tag ends: `sign` is "-", "+" or 0; indented: blanks before
 * the tag on its line go. */
static size_t text_end(const struct lexer *x, size_t from, size_t to, char sign, bool indented)
{
    if (sign == '-')
        return strip_end(x, from, to);
    if (sign == '+' || !indented)
        return to;
    size_t line = to;
    while (line > from && x->p[line - 1] != '\n')
        line--;
    bool at_start = line > from || x->line_start;
    return at_start && line < to && strip_end(x, line, to) == line ? line : to;
}

static int push_text(struct lexer *x, size_t from, size_t to)
{
    return to > from ? push(x, GR_TOK_TEXT, from, to - from) : 0;
}

static char sign_at(const struct lexer *x, size_t at)
{
    return at < x->n && (x->p[at] == '-' || x->p[at] == '+') ? x->p[at] : 0;
}

/* Skips what follows the end of a tag: white space after "-", otherwise one newline if `trims`. */
static void after_tag(struct lexer *x, char sign, bool trims)
{
    if (sign == '-')
        x->at += blanks(x, x->at);
    else if (trims && sign != '+' && x->at < x->n && x->p[x->at] == '\n')
        x->at++;
    x->line_start = x->at > 0 && x->p[x->at - 1] == '\n';
}

/* Returns the length of the end of a tag at `at` ("%}", "-%}", "+%}"), 0: there is none; *sign. */
static size_t end_at(const struct lexer *x, size_t at, const char *end, bool plus, char *sign)
{
    *sign = sign_at(x, at);
    if (*sign == '+' && !plus)
        *sign = 0;
    size_t k = *sign ? 1 : 0;
    return is(x, at + k, end) ? k + 2 : 0;
}

static int skip_comment(struct lexer *x, size_t start)
{
    for (size_t i = start + 2 + (sign_at(x, start + 2) ? 1 : 0); i < x->n; i++) {
        char sign;
        size_t k = end_at(x, i, "#}", true, &sign);
        if (k) {
            x->at = i + k;
            after_tag(x, sign, true);
            return 0;
        }
    }
    return gr_source_fail(x->p, start, "the comment has no end (#})");
}

/* Returns the length of the tag "{% word %}" at `at`, 0: there is none. *first and *last are the
 * signs. */
static size_t word_tag(const struct lexer *x, size_t at, const char *word, bool plus, char *first,
                       char *last)
{
    size_t i = at;
    if (!is(x, i, "{%"))
        return 0;
    *first = sign_at(x, i + 2);
    i += 2 + (*first ? 1 : 0);
    i += blanks(x, i);
    if (!is(x, i, word))
        return 0;
    i += strlen(word);
    i += blanks(x, i);
    size_t k = end_at(x, i, "%}", plus, last);
    return k ? i + k - at : 0;
}

/* {% raw %} at `start`, `k` bytes long. */
static int raw_text(struct lexer *x, size_t start, size_t k, char sign)
{
    x->at = start + k;
    after_tag(x, sign, false);
    for (size_t i = x->at; i < x->n; i++) {
        char first, last;
        size_t end = word_tag(x, i, "endraw", true, &first, &last);
        if (!end)
            continue;
        int rc = push_text(x, x->at, text_end(x, x->at, i, first, true));
        x->at = i + end;
        after_tag(x, last, true);
        return rc;
    }
    return gr_source_fail(x->p, start, "the raw block has no end (endraw)");
}

/* ---- tokens within tags ---- */

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (c & 0x80);
}

/* What may stand in a name beyond ASCII: letters, marks and numbers. */
static bool is_letter(uint32_t cp)
{
    int c = utf8proc_category((utf8proc_int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NO);
}

static size_t digits(const struct lexer *x, size_t at)
{
    size_t i = at;
    while (i < x->n && (isdigit((unsigned char)x->p[i]) ||
                        (x->p[i] == '_' && i > at && i + 1 < x->n && x->p[i - 1] != '_' &&
                         isdigit((unsigned char)x->p[i + 1]))))
        i++;
    return i - at;
}

/* Returns the length of a number with a fraction or an exponent at `at`, 0: it has neither. */
static size_t float_length(const struct lexer *x, size_t at)
{
    size_t k = digits(x, at), i = at + k, fraction = 0, exponent = 0;
    if (!k || (at > 0 && x->p[at - 1] == '.'))
        return 0;
    if (i < x->n && x->p[i] == '.') {
        fraction = digits(x, i + 1);
        i += fraction ? 1 + fraction : 0;
    }
    if (i < x->n && (x->p[i] == 'e' || x->p[i] == 'E')) {
        size_t sign = sign_at(x, i + 1) ? 1 : 0;
        exponent = digits(x, i + 1 + sign);
        i += exponent ? 1 + sign + exponent : 0;
    }
    return fraction || exponent ? i - at : 0;
}

/* Copies a number without underscores. */
static int plain_number(const struct lexer *x, size_t n, char *out, size_t size)
{
    size_t k = 0;
    for (size_t i = 0; i < n && k + 1 < size; i++) {
        if (x->p[x->at + i] != '_')
            out[k++] = x->p[x->at + i];
    }
    out[k] = 0;
    return n < size ? 0 : gr_source_fail(x->p, x->at, "a number of %zu digits", n);
}

static int base_of(const struct lexer *x)
{
    int c = x->at + 2 < x->n && x->p[x->at] == '0' ? tolower((unsigned char)x->p[x->at + 1]) : 0;
    return c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
}

static bool is_digit_of(char c, int base)
{
    int d = isdigit((unsigned char)c)    ? c - '0'
            : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10
                                         : 99;
    return d < base;
}

/* Length of an integer: a decimal one that begins with 0 has no other digits. */
static size_t integer_length(const struct lexer *x, int *base)
{
    size_t i = x->at;
    *base = base_of(x);
    if (*base != 10) {
        for (i += 2;
             i < x->n && (is_digit_of(x->p[i], *base) ||
                          (x->p[i] == '_' && i + 1 < x->n && is_digit_of(x->p[i + 1], *base)));)
            i++;
        if (i > x->at + 2)
            return i - x->at;
        *base = 10, i = x->at;
    }
    if (x->p[i] != '0')
        return digits(x, i);
    while (i < x->n && (x->p[i] == '0' || (x->p[i] == '_' && i + 1 < x->n && x->p[i + 1] == '0')))
        i++;
    return i - x->at;
}

static int number(struct lexer *x)
{
    char text[400];
    int base = 10;
    size_t n = float_length(x, x->at);
    enum gr_token_kind kind = n ? GR_TOK_FLOAT : GR_TOK_INT;
    if (!n)
        n = integer_length(x, &base);
    int rc = plain_number(x, n, text, sizeof text);
    if (!rc)
        rc = push(x, kind, x->at, n);
    if (rc)
        return rc;
    struct gr_token *t = &((struct gr_token *)x->tokens->data)[x->tokens->n - 1];
    if (kind == GR_TOK_FLOAT) {
        t->f = strtod(text, NULL);
    } else {
        unsigned long long u = strtoull(base == 10 ? text : text + 2, NULL, base);
        if (u > INT64_MAX)
            return gr_source_fail(x->p, x->at, "the integer %.40s does not fit 64 bits", text);
        t->i = (int64_t)u;
    }
    x->at += n;
    return 0;
}

/* Reads `n` hexadecimal digits at `at`; -1: they are not there. */
static int64_t hex(const struct lexer *x, size_t at, size_t end, int n)
{
    int64_t v = 0;
    for (int i = 0; i < n; i++) {
        if (at + (size_t)i >= end || !isxdigit((unsigned char)x->p[at + (size_t)i]))
            return -1;
        char c = x->p[at + (size_t)i];
        v = v * 16 + (isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10);
    }
    return v;
}

/* Resolves the escape at `at` (a backslash) as Python does; writes to out, advances *k; returns the
 * length, or -1 after an error. */
static int unescape(struct lexer *x, size_t at, size_t end, char *out, size_t *k)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = at + 1 < end ? x->p[at + 1] : '\\';
    const char *known = c ? strchr(from, c) : NULL;
    if (c == '\n') /* the line goes on */
        return 2;
    if (known)
        return out[(*k)++] = to[known - from], 2;
    if (c >= '0' && c <= '7') {
        uint32_t v = 0;
        size_t i = at + 1;
        for (; i < end && i < at + 4 && x->p[i] >= '0' && x->p[i] <= '7'; i++)
            v = v * 8 + (uint32_t)(x->p[i] - '0');
        *k += gr_utf8_put(v, out + *k);
        return (int)(i - at);
    }
    int n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (!n && c != 'N')
        return out[(*k)++] = '\\', 1;
    int64_t v = n ? hex(x, at + 2, end, n) : -1;
    if (v < 0 || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
        return gr_source_fail(x->p, at, "the escape \\%c is no character", c), -1;
    *k += gr_utf8_put((uint32_t)v, out + *k);
    return 2 + n;
}

static int string(struct lexer *x)
{
    size_t start = x->at + 1, end = start, k = 0;
    while (end < x->n && x->p[end] != x->p[x->at])
        end += x->p[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return gr_source_fail(x->p, x->at, "the string has no end");
    char *out = gr_arena_alloc(&x->prog->mem, end - start + 1);
    if (!out)
        return GR_E_NOMEM_HOST;
    for (size_t i = start; i < end;) {
        if (x->p[i] != '\\') {
            out[k++] = x->p[i++];
            continue;
        }
        int n = unescape(x, i, end, out, &k);
        if (n < 0)
            return GR_E_TEMPLATE;
        i += (size_t)n;
    }
    int rc = push(x, GR_TOK_STRING, x->at, 0);
    if (!rc)
        ((struct gr_token *)x->tokens->data)[x->tokens->n - 1].text = (struct gr_name){out, k};
    x->at = end + 1;
    return rc;
}

static int bracket(struct lexer *x, char c)
{
    static const char open[] = "([{", close[] = ")]}";
    const char *is_open = strchr(open, c), *is_close = strchr(close, c);
    if (is_open) {
        if (x->n_open == GR_TEMPLATE_MAX_DEPTH)
            return gr_source_fail(x->p, x->at, "brackets are nested deeper than %u",
                                  GR_TEMPLATE_MAX_DEPTH);
        x->open[x->n_open++] = close[is_open - open];
    }
    if (is_close && (!x->n_open || x->open[--x->n_open] != c))
        return gr_source_fail(x->p, x->at, "unexpected '%c'", c);
    return 0;
}

static int operator(struct lexer *x)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = x->p[x->at];
    size_t n = 1;
    for (size_t i = 0; i < GR_COUNT(two); i++)
        n = is(x, x->at, two[i]) ? 2 : n;
    if (n == 1 && !strchr("+-*/%~[](){}><=.:|,;", c))
        return gr_source_fail(x->p, x->at, "unexpected character %s", gr_quote(x->p + x->at, 1));
    int rc = n == 1 ? bracket(x, c) : 0;
    if (!rc)
        rc = push(x, GR_TOK_OP, x->at, n);
    x->at += n;
    return rc;
}

static int tag_token(struct lexer *x)
{
    char c = x->p[x->at];
    if (isdigit((unsigned char)c))
        return number(x);
    if (c == '\'' || c == '"')
        return string(x);
    if (!is_word(c))
        return operator(x);
    size_t n = 0, k;
    struct gr_string s = {.p = x->p, .n = x->n};
    while (x->at + n < x->n && is_word(x->p[x->at + n])) {
        uint32_t cp = gr_code_at(&s, x->at + n, &k);
        if (cp >= 0x80 && !is_letter(cp))
            break;
        n += k;
    }
    if (!n)
        return gr_source_fail(x->p, x->at, "unexpected character %s", gr_quote(x->p + x->at, 1));
    int rc = push(x, GR_TOK_NAME, x->at, n);
    x->at += n;
    return rc;
}

/* The tokens of a tag whose first bracket is at x->at, up to its end. */
static int tag(struct lexer *x, bool block)
{
    size_t start = x->at;
    int rc = push(x, block ? GR_TOK_BLOCK : GR_TOK_PRINT, start, 2);
    x->at += 2 + (sign_at(x, start + 2) ? 1 : 0);
    x->n_open = 0;
    while (!rc) {
        char sign;
        size_t k = x->n_open ? 0 : end_at(x, x->at, block ? "%}" : "}}", block, &sign);
        if (k) {
            rc = push(x, block ? GR_TOK_BLOCK_END : GR_TOK_PRINT_END, x->at, k);
            x->at += k;
            after_tag(x, sign, block);
            return rc;
        }
        k = blanks(x, x->at);
        x->at += k;
        if (x->at >= x->n)
            return gr_source_fail(x->p, start, "the tag has no end (%s)", block ? "%}" : "}}");
        if (!k)
            rc = tag_token(x);
    }
    return rc;
}

int gr_lex(struct gr_template *prog, struct gr_vec *tokens)
{
    struct lexer x = {prog, prog->source, prog->n_source, 0, tokens, .line_start = true};
    int rc = 0;
    while (x.at < x.n && !rc) {
        size_t i = x.at;
        while (i < x.n &&
               !(x.p[i] == '{' && i + 1 < x.n && strchr("{%#", x.p[i + 1]) && x.p[i + 1]))
            i++;
        if (i >= x.n) {
            rc = push_text(&x, x.at, x.n);
            break;
        }
        char c = x.p[i + 1], first = sign_at(&x, i + 2), last;
        rc = push_text(&x, x.at, text_end(&x, x.at, i, first, c != '{'));
        size_t raw = c == '%' ? word_tag(&x, i, "raw", false, &first, &last) : 0;
        x.at = i;
        if (!rc)
            rc = raw        ? raw_text(&x, i, raw, last)
                 : c == '#' ? skip_comment(&x, i)
                            : tag(&x, c == '%');
    }
    return rc ? rc : push(&x, GR_TOK_END, x.n, 0);
}
