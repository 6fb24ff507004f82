/* Arguments as the templates of Gemma write them: name:value, .. and the closing brace. Names and
 * words have no quotes, strings stand between marks. They become JSON as they come. */
#include <stdio.h>
#include <string.h>

#include "answer/answer.h"
#include "base/checked.h"

/* Gives JSON [n], n > 0; as gr_json_put. */
static int give(struct gr_answer *a, const char *p, size_t n)
{
    int done = 0;
    for (size_t i = 0; i < n && done >= 0; i++)
        done = gr_json_put(&a->call.json, p[i]);
    if (done >= 0)
        gr_answer_give(a, GR_ANSWER_ARGUMENTS, p, n);
    return done;
}

/* Gives characters of a string. */
static int give_text(struct gr_answer *a, const char *p, size_t n)
{
    int done = 0;
    for (size_t i = 0; i < n && done >= 0; i++) {
        char escape[8] = {'\\', p[i]};
        if ((uint8_t)p[i] < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)p[i]);
        bool plain = (uint8_t)p[i] >= 0x20 && p[i] != '"' && p[i] != '\\';
        done = plain ? give(a, p + i, 1) : give(a, escape, strlen(escape));
    }
    return done;
}

/* Gives the name or word that has been read, which is a string unless it is a value in JSON. */
static int give_word(struct gr_answer *a)
{
    struct gr_call *k = &a->call;
    const char *p = k->value.data;
    size_t n = k->value.n;
    bool value = k->json.state != GR_AT_MEMBER && k->json.state != GR_AT_KEY;
    k->value.n = 0;
    while (n && gr_is_blank(p[n - 1]))
        n--;
    if (!n)
        return 0;
    size_t n_json = n;
    const char *json = value ? gr_value_json(p, &n_json) : NULL;
    if (json)
        return give(a, json, n_json);
    return give(a, "\"", 1) < 0 || give_text(a, p, n) < 0 ? -1 : give(a, "\"", 1);
}

static int keep(struct gr_answer *a, char c)
{
    int rc = gr_vec_append(&a->call.value, &c, 1, 1);
    a->rc = a->rc ? a->rc : rc;
    return rc ? -1 : 0;
}

/* Reads a byte of a string between marks: gives what cannot be part of the closing one. */
static int put_string(struct gr_answer *a, char c)
{
    struct gr_call *k = &a->call;
    if (keep(a, c))
        return -1;
    bool found = gr_finder_put(&k->end, c);
    size_t n = k->value.n - k->end.at;
    char *p = k->value.data;
    if (give_text(a, p, n) < 0)
        return -1;
    k->value.n = found ? 0 : k->end.at;
    memmove(p, p + n, k->value.n);
    k->quote = found ? 0 : k->quote;
    return found ? give(a, "\"", 1) : 0;
}

/* Reads a byte of a name, of a word or of the mark that begins a string. */
static int put_word(struct gr_answer *a, char c)
{
    static const char *const mark[] = {"<|\"|>", "<escape>"};
    struct gr_call *k = &a->call;
    if (!k->value.n && gr_is_blank(c))
        return 0;
    if (keep(a, c))
        return -1;
    for (size_t i = 0; i < GR_COUNT(mark); i++) {
        size_t n = strlen(mark[i]);
        if (k->value.n != n || memcmp(k->value.data, mark[i], n) != 0)
            continue;
        gr_finder_set(&k->end, mark[i], n);
        k->value.n = 0;
        k->quote = c;
        return give(a, "\"", 1);
    }
    return 0;
}

int gr_gemma_put(struct gr_answer *a, char c)
{
    struct gr_call *k = &a->call;
    if (!k->entered) {
        k->json = (struct gr_json){0};
        k->value.n = 0;
        k->entered = k->has_arguments = true;
        gr_answer_begin_call(a);
        (void)give(a, "{", 1);
    }
    if (k->quote)
        return put_string(a, c);
    if (gr_json_in_string(&k->json) || (c == '"' && !k->value.n))
        return give(a, &c, 1);
    if (!c || !strchr(",:{}[]", c))
        return put_word(a, c);
    char sign[] = {c, ' '};
    return give_word(a) < 0 ? -1 : give(a, sign, c == ',' || c == ':' ? 2 : 1);
}
