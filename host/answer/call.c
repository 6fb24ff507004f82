/* Calls are read along the pattern of their format (format.def), byte by byte. */
#include <string.h>

#include "answer/answer.h"
#include "base/checked.h"

void gr_call_begin(struct gr_answer *a, const char *rest)
{
    struct gr_call *k = &a->call;
    struct gr_vec key = k->key, value = k->value, waiting = k->waiting;
    *k = (struct gr_call){.at = rest, .key = key, .value = value, .waiting = waiting};
    k->key.n = k->value.n = k->waiting.n = 0;
}

void gr_call_fini(struct gr_call *k)
{
    gr_vec_fini(&k->key);
    gr_vec_fini(&k->value);
    gr_vec_fini(&k->waiting);
}

static bool keep(struct gr_answer *a, struct gr_vec *v, char c)
{
    int rc = gr_vec_append(v, &c, 1, 1);
    a->rc = a->rc ? a->rc : rc;
    return !rc;
}

/* ---- the way through a pattern ---- */

/* Goes past the ends of alternatives; returns 1 at the end of the pattern, otherwise 0. */
static int settle(struct gr_answer *a)
{
    struct gr_call *k = &a->call;
    k->entered = false;
    while (k->at[0] == '%' && k->at[1] && strchr("|}r", k->at[1])) {
        if (k->at[1] == '|')
            k->at = gr_pattern_behind(k->at + 2);
        else
            k->at = k->at[1] == 'r' ? k->loop : k->at + 2;
    }
    if (*k->at)
        return 0;
    gr_parameters_end(a);
    return 1;
}

static int advance(struct gr_answer *a, size_t n)
{
    a->call.at += n;
    return settle(a);
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_-./", c));
}

/* ---- elements ---- */

/* Strips what the kind of a name has around it. */
static bool finish_name(struct gr_call *k, char kind)
{
    size_t prefix = strlen("functions.");
    const char *p = k->name;
    if (kind == 'u' && !gr_call_copy(k->id, &k->n_id, k->name, k->n_name))
        return false;
    if (kind != 'n' && !strncmp(p, "functions.", prefix))
        p += prefix;
    size_t n = kind == 'u' ? strcspn(p, ":") : strlen(p);
    memmove(k->name, p, n);
    k->name[n] = 0;
    k->n_name = n;
    return n > 0;
}

/* Behind a call of the same pattern. */
static void begin_next(struct gr_call *k)
{
    k->begun = k->has_arguments = false;
    k->n_id = 0;
    k->id[0] = 0;
}

/* %n, %f, %u, %i: returns 2 where the byte belongs to what follows. */
static int put_name(struct gr_answer *a, char kind, char c)
{
    struct gr_call *k = &a->call;
    char *text = kind == 'i' ? k->id : k->name;
    size_t *n = kind == 'i' ? &k->n_id : &k->n_name;
    if (!k->entered && kind != 'i' && k->begun)
        begin_next(k);
    if (!k->entered)
        *n = 0;
    k->entered = true;
    if (is_name(c) || (kind == 'u' && c == ':')) {
        if (*n >= GR_ANSWER_MAX_NAME)
            return -1;
        text[(*n)++] = c;
        text[*n] = 0;
        return 0;
    }
    if (!*n || (kind != 'i' && !finish_name(k, kind)))
        return -1;
    return advance(a, 2) ? -1 : 2;
}

static int put_arguments(struct gr_answer *a, char c)
{
    struct gr_call *k = &a->call;
    if (!k->entered && c != '{')
        return -1;
    if (!k->entered) {
        k->json = (struct gr_json){0};
        k->has_arguments = true;
        gr_answer_begin_call(a);
    }
    k->entered = true;
    int done = gr_json_put(&k->json, c);
    if (done >= 0)
        gr_answer_give(a, GR_ANSWER_ARGUMENTS, &c, 1);
    return done > 0 ? advance(a, 2) : done;
}

static int put_object(struct gr_answer *a, char kind, char c)
{
    int done = kind == 'j' ? gr_object_put(a, c) : gr_gemma_put(a, c);
    return done > 0 ? advance(a, 2) : done;
}

/* The value without the line ends around it. */
static bool give_parameter(struct gr_answer *a, char kind)
{
    bool lines = kind == 'w';
    const char *p = a->call.value.data;
    size_t n = a->call.value.n;
    if (lines && n && p[0] == '\n')
        p++, n--;
    if (lines && n && p[n - 1] == '\n')
        n--;
    return gr_parameter_give(a, a->call.key.data, a->call.key.n, p, n, kind == 't');
}

/* %k, %v, %w, %t: up to the literal text behind it. */
static int put_until(struct gr_answer *a, char kind, char c)
{
    struct gr_call *k = &a->call;
    struct gr_vec *to = kind == 'k' ? &k->key : &k->value;
    const char *literal = k->at + 2;
    if (!k->entered) {
        gr_finder_set(&k->end, literal, strcspn(literal, "%"));
        to->n = 0;
    }
    k->entered = true;
    if (!keep(a, to, c))
        return -1;
    bool found = gr_finder_put(&k->end, c);
    if (kind == 'k' && to->n > GR_ANSWER_MAX_NAME + k->end.n)
        return -1;
    if (!found)
        return 0;
    to->n -= k->end.n;
    if (kind != 'k' && !give_parameter(a, kind))
        return -1;
    return advance(a, 2 + k->end.n);
}

/* The name of a call of Python's kind ends with ".call". */
static bool strip_call(struct gr_call *k)
{
    size_t n = strlen(".call");
    if (k->n_name <= n || strcmp(k->name + k->n_name - n, ".call") != 0)
        return false;
    k->n_name -= n;
    k->name[k->n_name] = 0;
    return true;
}

/* %b, %c: up to the closing bracket outside of quotes. */
static int put_python(struct gr_answer *a, char kind, char c)
{
    struct gr_call *k = &a->call;
    if (!k->entered && kind == 'b' && !strip_call(k))
        return -1;
    if (!k->entered)
        k->value.n = 0, k->brackets = 0;
    k->entered = true;
    if (k->quote) {
        k->quote = c == k->quote && !k->escaped ? 0 : k->quote;
        k->escaped = c == '\\' && !k->escaped;
    } else if (c == '"' || c == '\'') {
        k->quote = c;
    } else if (strchr("([{", c) && c) {
        k->brackets++;
    } else if (c && strchr(")]}", c) && k->brackets-- == 0) {
        if (c != ')' || !gr_python_give(a, k->value.data, k->value.n))
            return -1;
        gr_parameters_end(a);
        return advance(a, 2);
    }
    return keep(a, &k->value, c) ? 0 : -1;
}

/* Lets the element at `at` have a byte: 2: the byte is for what follows; otherwise as gr_call_put.
 */
static int put_element(struct gr_answer *a, char c)
{
    struct gr_call *k = &a->call;
    char kind = k->at[1];
    switch (kind) {
    case '{':
        k->alternatives = k->at;
        k->loop = k->loop ? k->loop : k->at;
        k->n_literal = 0;
        return 2;
    case 's':
        if (gr_is_blank(c))
            return 0;
        return advance(a, 2) ? -1 : 2;
    case 'a':
        return put_arguments(a, c);
    case 'g':
    case 'j':
        return put_object(a, kind, c);
    case 'b':
    case 'c':
        return put_python(a, kind, c);
    case 'k':
    case 'v':
    case 'w':
    case 't':
        return put_until(a, kind, c);
    default:
        return put_name(a, kind, c);
    }
}

/* ---- alternatives ---- */

/* Returns whether an alternative that begins with an element can begin with the byte. */
static bool may_begin(const char *p, char c)
{
    if (p[0] != '%')
        return false;
    return p[1] == 'a' ? c == '{' : p[1] == 'j' ? c == '{' || c == '[' : is_name(c);
}

/* The first of the alternatives that begins with an element which can begin with the byte, or NULL.
 */
static const char *find_element(const char *alternatives, char c)
{
    const char *p = gr_pattern_first(alternatives);
    while (p && !may_begin(p, c))
        p = gr_pattern_next(p);
    return p;
}

/* Goes on with the alternative that begins with an element, from the bytes of the literal texts
 * [n] on that have turned out not to fit. */
static int choose_element(struct gr_answer *a, const char *element, const char *literal, size_t n)
{
    a->call.at = element;
    a->call.alternatives = NULL;
    for (size_t i = 0; i < n; i++)
        if (put_element(a, literal[i]))
            return -1;
    return 2;
}

/* Decides between alternatives by a byte: 2: one is chosen and reads the byte itself; otherwise as
 * gr_call_put. */
static int choose(struct gr_answer *a, char c)
{
    struct gr_call *k = &a->call;
    unsigned alive = 0, bit = 1;
    const char *one = NULL, *before = NULL;
    for (const char *p = gr_pattern_first(k->alternatives); p; p = gr_pattern_next(p), bit <<= 1) {
        bool fitted = !k->n_literal || (k->alive & bit);
        if (fitted && c != '%' && p[k->n_literal] == c)
            alive |= bit, one = p;
        if (k->n_literal && fitted)
            before = p;
    }
    const char *element = find_element(k->alternatives, before ? *before : c);
    if (!alive)
        return element ? choose_element(a, element, before, k->n_literal) : -1;
    k->n_literal++;
    k->alive = alive;
    if (alive & (alive - 1))
        return 0;
    if (element && one[k->n_literal] != '%')
        return 0;
    k->at = one + k->n_literal;
    k->alternatives = NULL;
    return settle(a);
}

int gr_call_put(struct gr_answer *a, char c)
{
    struct gr_call *k = &a->call;
    int r = 2;
    while (r == 2 && !a->rc) {
        if (k->alternatives)
            r = choose(a, c);
        else if (*k->at == '%')
            r = put_element(a, c);
        else
            r = *k->at == c ? advance(a, 1) : -1;
    }
    return a->rc || k->unwanted ? -1 : r;
}

/* Returns whether a pattern from p on has literal texts and blanks alone. */
static bool only_marks(const char *p)
{
    while (*p) {
        if (*p != '%')
            p++;
        else if (p[1] == '|')
            p = gr_pattern_behind(p + 2);
        else if (p[1] == 's' || p[1] == '}')
            p += 2;
        else
            return false;
    }
    return true;
}

bool gr_call_end(struct gr_answer *a)
{
    struct gr_call *k = &a->call;
    const char *p = k->alternatives ? k->alternatives : k->at;
    bool complete = !k->entered && only_marks(p);
    if (!complete && !k->entered && !strncmp(p, "%{", 2)) {
        unsigned bit = 1;
        for (p = gr_pattern_first(p); p; p = gr_pattern_next(p), bit <<= 1)
            if (only_marks(p) && (!k->n_literal || !k->alternatives || (k->alive & bit)))
                complete = true;
    }
    complete = complete && (a->n_open || k->n_name);
    if (complete)
        gr_parameters_end(a);
    return complete && !a->rc && !k->unwanted;
}
