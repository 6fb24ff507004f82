#include "think.h"

#include <string.h>

static const char open_mark[] = "<think>", close_mark[] = "</think>";

#define MOST_SPACE 16 /* bytes of white space before <think> */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

void gr_think_begin(struct gr_think *t, bool opened)
{
    t->state = opened ? GR_THINK_INSIDE : GR_THINK_BEGIN;
    t->n_held = t->n_space = 0;
}

/* Passes on the bytes that are held back, and p. */
static int put(struct gr_think *t, const char *p, size_t n)
{
    bool reasoning = t->state == GR_THINK_INSIDE;
    size_t n_held = t->n_held;
    t->n_held = t->n_space = 0;
    int rc = n_held ? t->fn(t->user, reasoning, t->held, n_held) : 0;
    return rc || !n ? rc : t->fn(t->user, reasoning, p, n);
}

/* Takes one byte outside of the answer itself: it continues a mark, or what is held back is none.
 */
static int take(struct gr_think *t, char c)
{
    const char *mark = t->state == GR_THINK_INSIDE ? close_mark : open_mark;
    if (t->state == GR_THINK_BEHIND && is_space(c))
        return 0;
    if (t->state == GR_THINK_BEGIN && t->n_held == t->n_space && t->n_space < MOST_SPACE &&
        is_space(c)) {
        t->held[t->n_held++] = c;
        t->n_space++;
        return 0;
    }
    if (t->state == GR_THINK_BEHIND || c != mark[t->n_held - t->n_space]) {
        bool inside = t->state == GR_THINK_INSIDE;
        t->state = inside ? GR_THINK_INSIDE : GR_THINK_ANSWER;
        if (!inside || c != *mark)
            return put(t, &c, 1);
        int rc = put(t, NULL, 0); /* no mark begins within another one */
        t->held[t->n_held++] = c;
        return rc;
    }
    t->held[t->n_held++] = c;
    if (mark[t->n_held - t->n_space])
        return 0;
    t->n_held = t->n_space = 0;
    t->state = t->state == GR_THINK_INSIDE ? GR_THINK_BEHIND : GR_THINK_INSIDE;
    return 0;
}

int gr_think_push(struct gr_think *t, const char *p, size_t n)
{
    int rc = 0;
    size_t i = 0;
    while (i < n && !rc && t->state != GR_THINK_ANSWER) {
        const char *next =
            t->state == GR_THINK_INSIDE && !t->n_held ? memchr(p + i, '<', n - i) : p + i;
        size_t plain = next ? (size_t)(next - p) - i : n - i;
        if (plain)
            rc = t->fn(t->user, true, p + i, plain);
        i += plain;
        if (!rc && i < n)
            rc = take(t, p[i++]);
    }
    return rc || i == n ? rc : t->fn(t->user, false, p + i, n - i);
}

int gr_think_end(struct gr_think *t)
{
    return put(t, NULL, 0);
}

bool gr_think_is_opened(const char *prompt, size_t n)
{
    size_t m = sizeof open_mark - 1;
    while (n && is_space(prompt[n - 1]))
        n--;
    return n >= m && !memcmp(prompt + n - m, open_mark, m);
}
