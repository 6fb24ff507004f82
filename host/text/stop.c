/* Stop strings: each has a state of the Knuth-Morris-Pratt automaton, the length of its longest
 * beginning that the text ends with. The longest of them is held back, and it is the end of the
 * text whatever string it belongs to. */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gpurun.h"
#include "gr/status.h"
#include "text/utf8.h"

struct string {
    char *text; /* [n] */
    size_t n, at;
    size_t *border; /* [n] length of the longest proper suffix of text[0, i] that it begins with */
};

struct gr_stop {
    struct string *string; /* [n] */
    int32_t n;
    bool found;
    struct gr_vec text; /* char: what the last call returned, then what is held back */
    size_t n_out, n_held;
};

static int check_string(const char *text, size_t n, int32_t i)
{
    uint32_t cp;
    if (!n)
        return gr_fail(GR_E_INVALID, "stop string %d is empty: leave it out", i + 1);
    if (n > GR_MAX_STOP_BYTES)
        return gr_fail(GR_E_INVALID, "stop string %d has %zu bytes, at most %d are expected", i + 1,
                       n, GR_MAX_STOP_BYTES);
    for (size_t at = 0; at < n;) {
        int k = gr_utf8_next(text + at, n - at, &cp);
        if (k <= 0)
            return gr_fail(GR_E_INVALID, "stop string %d is not UTF-8 from its byte %zu on", i + 1,
                           at);
        at += (size_t)k;
    }
    return 0;
}

/* Advances a string by a byte of the text; returns whether it is complete. */
static bool advance(struct string *s, char byte)
{
    while (s->at && (s->at == s->n || s->text[s->at] != byte))
        s->at = s->border[s->at - 1];
    s->at += s->text[s->at] == byte;
    return s->at == s->n;
}

static int copy_string(struct string *s, const char *text, size_t n)
{
    s->text = gr_strndup(text, n);
    s->border = gr_calloc(n, sizeof *s->border);
    if (!s->text || !s->border)
        return GR_E_NOMEM_HOST;
    s->n = n;
    for (size_t i = 1; i < n; i++) {
        (void)advance(s, text[i]);
        s->border[i] = s->at;
    }
    s->at = 0;
    return 0;
}

int gr_stop_new(struct gr_stop **out, const char *const *strings, const size_t *lengths, int32_t n)
{
    int rc = 0;
    struct gr_stop *s = NULL;
    *out = NULL;
    if (n < 0 || n > GR_MAX_STOP)
        return gr_fail(GR_E_INVALID, "%d stop strings, at most %d are expected", n, GR_MAX_STOP);
    s = gr_calloc(1, sizeof *s);
    if (!s)
        return GR_E_NOMEM_HOST;
    s->string = gr_calloc((size_t)n, sizeof *s->string);
    if (!s->string)
        rc = GR_E_NOMEM_HOST;
    for (; s->n < n && !rc; s->n++) {
        size_t length = lengths ? lengths[s->n] : strlen(strings[s->n]);
        rc = check_string(strings[s->n], length, s->n);
        if (!rc)
            rc = copy_string(&s->string[s->n], strings[s->n], length);
    }
    if (rc)
        gr_stop_free(&s);
    *out = s;
    return rc;
}

/* Returns the longest string that the text's next byte completes, or -1. */
static int32_t advance_all(struct gr_stop *s, char byte)
{
    int32_t found = -1;
    s->n_held = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (advance(&s->string[i], byte) && (found < 0 || s->string[i].n > s->string[found].n))
            found = i;
        s->n_held = GR_MAX(s->n_held, s->string[i].at);
    }
    return found;
}

/* Drops what the last call returned. */
static void drop_returned(struct gr_stop *s)
{
    char *text = s->text.data;
    s->text.n -= s->n_out;
    if (s->n_out && s->text.n)
        memmove(text, text + s->n_out, s->text.n);
    s->n_out = 0;
}

static void return_text(struct gr_stop *s, size_t n, const char **p, size_t *n_p)
{
    s->n_out = n;
    *p = n ? s->text.data : "";
    *n_p = n;
}

int gr_stop_push(struct gr_stop *s, const char *p, size_t n, const char **out, size_t *n_out,
                 int32_t *found)
{
    *found = -1;
    drop_returned(s);
    size_t n_before = s->text.n;
    int rc = s->found ? 0 : gr_vec_append(&s->text, p, n, 1);
    if (rc || s->found) {
        *out = "", *n_out = 0;
        return rc;
    }
    for (size_t i = 0; i < n && *found < 0; i++) {
        *found = advance_all(s, p[i]);
        if (*found >= 0)
            s->text.n = n_before + i + 1, s->n_held = s->string[*found].n;
    }
    s->found = *found >= 0;
    return_text(s, s->text.n - s->n_held, out, n_out);
    return 0;
}

void gr_stop_flush(struct gr_stop *s, const char **p, size_t *n)
{
    drop_returned(s);
    if (s->found)
        s->text.n = 0;
    s->n_held = 0, s->found = false;
    for (int32_t i = 0; i < s->n; i++)
        s->string[i].at = 0;
    return_text(s, s->text.n, p, n);
}

void gr_stop_free(struct gr_stop **stop)
{
    struct gr_stop *s = stop ? *stop : NULL;
    if (!s)
        return;
    for (int32_t i = 0; s->string && i < s->n; i++) {
        gr_free(s->string[i].text);
        gr_free(s->string[i].border);
    }
    gr_free(s->string);
    gr_vec_fini(&s->text);
    gr_free(s);
    *stop = NULL;
}
