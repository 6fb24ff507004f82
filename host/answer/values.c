/* Arguments that the model writes in other notations than JSON. */
#include <stdio.h>
#include <string.h>

#include "answer/answer.h"
#include "base/checked.h"

/* ---- types of parameters ---- */

/* Returns whether a schema's type allows strings alone. */
static bool is_string_type(json_t *schema)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type && !strcmp(type, "string");
}

/* ---- values ---- */

static void give(struct gr_answer *a, const char *p, size_t n)
{
    gr_answer_give(a, GR_ANSWER_ARGUMENTS, p, n);
}

static int give_dumped(const char *p, size_t n, void *user)
{
    give(user, p, n);
    return 0;
}

static bool give_string(struct gr_answer *a, const char *p, size_t n)
{
    json_t *s = json_stringn(p, n);
    bool fine = s && !json_dump_callback(s, give_dumped, a, JSON_ENCODE_ANY);
    json_decref(s);
    return fine;
}

/* Returns whether the bytes are one JSON value. */
static bool is_json(const char *p, size_t n)
{
    struct gr_json j = {0};
    bool fine = !gr_json_put(&j, '[');
    size_t depth = 1;
    for (size_t i = 0; i < n && fine; i++) {
        fine = !gr_json_put(&j, p[i]);
        fine = fine && !(j.depth == 1 && j.state == GR_AT_VALUE); /* a second value */
        depth = (size_t)j.depth;
    }
    return fine && depth == 1 && j.state != GR_AT_FIRST && gr_json_put(&j, ']') == 1;
}

/* The JSON of a word of Python, or NULL. */
static const char *find_word(const char *p, size_t n)
{
    static const char *const word[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < GR_COUNT(word); i++)
        if (strlen(word[i][0]) == n && !memcmp(word[i][0], p, n))
            return word[i][1];
    return NULL;
}

static void trim(const char **p, size_t *n)
{
    while (*n && gr_is_blank(**p))
        ++*p, --*n;
    while (*n && gr_is_blank((*p)[*n - 1]))
        --*n;
}

const char *gr_value_json(const char *p, size_t *n)
{
    const char *word = find_word(p, *n);
    if (word)
        *n = strlen(word);
    return word ? word : is_json(p, *n) ? p : NULL;
}

/* Gives JSON or a word of Python; false: it is neither. */
static bool give_value(struct gr_answer *a, const char *p, size_t n)
{
    trim(&p, &n);
    const char *json = gr_value_json(p, &n);
    if (json)
        give(a, json, n);
    return json;
}

static bool give_key(struct gr_answer *a, const char *key, size_t n)
{
    struct gr_call *k = &a->call;
    gr_answer_begin_call(a);
    const char *before = k->n_parameters ? ", " : "{";
    give(a, before, strlen(before));
    k->n_parameters++;
    if (!give_string(a, key, n))
        return false;
    give(a, ": ", 2);
    return true;
}

bool gr_parameter_give(struct gr_answer *a, const char *key, size_t n_key, const char *value,
                       size_t n, bool string)
{
    json_t *schema = json_object_getn(json_object_get(a->types, a->call.name), key, n_key);
    if (!give_key(a, key, n_key))
        return false;
    string = string || is_string_type(schema);
    return (!string && give_value(a, value, n)) || give_string(a, value, n);
}

void gr_parameters_end(struct gr_answer *a)
{
    struct gr_call *k = &a->call;
    if (k->n_parameters) {
        give(a, "}", 1);
    } else if (k->n_name && !k->has_arguments) {
        gr_answer_begin_call(a);
        give(a, "{}", 2);
    }
    k->has_arguments = true;
    k->n_parameters = 0;
}

/* ---- Python ---- */

/* The character of an escape \U with 8 hexadecimal digits; -1: it is none. */
static int32_t wide_escape(const char *p, size_t n)
{
    int32_t c = 0;
    if (p[1] != 'U' || n < 10)
        return -1;
    for (int i = 2; i < 10; i++) {
        const char *digits = "0123456789abcdef", low = (char)(p[i] | 0x20);
        const char *at = p[i] ? strchr(digits, low) : NULL;
        if (!at || (c = 16 * c + (int32_t)(at - digits)) > 0x10ffff)
            return -1;
    }
    return c;
}

/* Appends an escape of Python's strings [n], n > 1, as JSON's; returns its length. */
static size_t add_escape(struct gr_vec *to, const char *p, size_t n, int *rc)
{
    int32_t wide = wide_escape(p, n);
    if (wide >= 0) {
        char text[16];
        unsigned c = (unsigned)wide, above = c - 0x10000;
        if (c < 0x10000)
            snprintf(text, sizeof text, "\\u%04x", c);
        else
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + above / 0x400,
                     0xdc00 + above % 0x400);
        *rc = gr_vec_append(to, text, strlen(text), 1);
        return 10;
    }
    if (p[1] == 'x' && n > 3) {
        *rc = gr_vec_append(to, "\\u00", 4, 1);
        *rc = *rc ? *rc : gr_vec_append(to, p + 2, 2, 1);
        return 4;
    }
    bool shared = p[1] && strchr("\"\\/bfnrtu", p[1]);
    if (p[1] != '\'' && !shared) /* it stands for itself, with the backslash */
        *rc = gr_vec_append(to, "\\\\", 2, 1);
    else if (shared)
        *rc = gr_vec_append(to, p, 2, 1);
    else
        *rc = gr_vec_append(to, "'", 1, 1);
    return shared || p[1] == '\'' ? 2 : 1;
}

/* Appends a string of Python, which begins with its quote, as one of JSON; returns its length. */
static size_t add_quoted(struct gr_vec *to, const char *p, size_t n, int *rc)
{
    size_t i = 1;
    *rc = gr_vec_append(to, "\"", 1, 1);
    while (i < n && p[i] != p[0] && !*rc) {
        char text[8];
        if (p[i] == '\\' && i + 1 < n) {
            i += add_escape(to, p + i, n - i, rc);
            continue;
        }
        if ((uint8_t)p[i] < 0x20)
            snprintf(text, sizeof text, "\\u%04x", (unsigned)p[i]);
        else
            snprintf(text, sizeof text, "%s%c", p[i] == '"' ? "\\" : "", p[i]);
        *rc = gr_vec_append(to, text, strlen(text), 1);
        i++;
    }
    if (i < n && !*rc)
        *rc = gr_vec_append(to, "\"", 1, 1);
    return i < n ? i + 1 : n;
}

static bool is_in_word(char c)
{
    return c && !strchr("\"' \n\r\t,:()[]{}", c);
}

/* Brackets that are open in a value of Python. */
struct brackets {
    size_t n;
    bool wrong; /* one is closed by another kind, or they are too deep */
    struct bracket {
        char close;
        bool comma; /* one stood in it */
        size_t at;  /* where it stands in the JSON */
    } open[GR_ANSWER_MAX_DEPTH];
};

/* Returns the bracket of JSON that begins a list, tuple or dict. */
static char open_bracket(struct brackets *b, char c, size_t at)
{
    b->wrong |= b->n == GR_ANSWER_MAX_DEPTH;
    if (!b->wrong)
        b->open[b->n++] = (struct bracket){c == '(' ? ')' : c == '[' ? ']' : '}', false, at};
    return c == '(' ? '[' : c;
}

/* Drops a comma behind the last element, and parentheses around a value; returns the closing
 * bracket of JSON, or a blank. */
static char close_bracket(struct brackets *b, char c, char *text, size_t n)
{
    b->wrong |= !b->n || b->open[b->n - 1].close != c;
    if (b->wrong)
        return c;
    const struct bracket *o = &b->open[--b->n];
    while (gr_is_blank(text[n - 1]))
        n--;
    bool empty = n == o->at + 1;
    if (text[n - 1] == ',') {
        size_t before = n - 1;
        while (gr_is_blank(text[before - 1]))
            before--;
        if (before > o->at + 1)
            text[n - 1] = ' ';
    }
    if (c == ')' && !o->comma && !empty)
        text[o->at] = c = ' ';
    return c == ')' ? ']' : c;
}

/* Appends a comma or bracket. */
static int add_sign(struct gr_vec *to, struct brackets *b, char c)
{
    if (c == ',' && b->n)
        b->open[b->n - 1].comma = true;
    else if (strchr("([{", c))
        c = open_bracket(b, c, to->n);
    else if (c != ',')
        c = close_bracket(b, c, to->data, to->n);
    return gr_vec_append(to, &c, 1, 1);
}

/* Gives a value of Python made of strings, numbers, words, lists, tuples and dicts; false: it is
 * none. */
static bool give_python(struct gr_answer *a, const char *p, size_t n)
{
    struct gr_vec text = {0};
    struct brackets brackets = {0};
    int rc = 0;
    for (size_t i = 0; i < n && !rc;) {
        size_t length = 1;
        if (p[i] == '"' || p[i] == '\'') {
            i += add_quoted(&text, p + i, n - i, &rc);
            continue;
        }
        if (p[i] && strchr(",()[]{}", p[i])) {
            rc = add_sign(&text, &brackets, p[i++]);
            continue;
        }
        while (is_in_word(p[i]) && i + length < n && is_in_word(p[i + length]))
            length++;
        const char *word = find_word(p + i, length);
        rc = gr_vec_append(&text, word ? word : p + i, word ? strlen(word) : length, 1);
        i += length;
    }
    a->rc = a->rc ? a->rc : rc;
    bool fine = !rc && !brackets.wrong && give_value(a, text.data, text.n);
    gr_vec_fini(&text);
    return fine;
}

/* Length of the text in front of the next comma outside of quotes and brackets. */
static size_t measure(const char *p, size_t n)
{
    char quote = 0;
    size_t i = 0, depth = 0;
    for (; i < n && (quote || depth || p[i] != ','); i++) {
        if (quote && p[i] == '\\')
            i++;
        else if (quote)
            quote = p[i] == quote ? 0 : quote;
        else if (p[i] == '"' || p[i] == '\'')
            quote = p[i];
        else if (p[i] && strchr("([{", p[i]))
            depth++;
        else
            depth -= depth && p[i] && strchr(")]}", p[i]);
    }
    return GR_MIN(i, n);
}

static bool give_named(struct gr_answer *a, const char *p, size_t n)
{
    const char *equals = memchr(p, '=', n);
    if (!equals)
        return false;
    const char *value = equals + 1;
    size_t n_key = (size_t)(equals - p), n_value = n - n_key - 1;
    trim(&p, &n_key);
    trim(&value, &n_value);
    if (!n_key || !n_value || memchr(p, '"', n_key) || !give_key(a, p, n_key))
        return false;
    return give_value(a, value, n_value) || give_python(a, value, n_value);
}

bool gr_python_give(struct gr_answer *a, const char *p, size_t n)
{
    bool fine = true;
    trim(&p, &n);
    while (n && fine) {
        size_t length = measure(p, n);
        fine = give_named(a, p, length);
        length += length < n;
        p += length, n -= length;
    }
    return fine;
}
