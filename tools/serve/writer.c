/* Text that grows. */
#include "writer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for n more bytes. */
static bool reserve(struct gr_writer *w, size_t n)
{
    if (w->failed)
        return false;
    if (w->cap - w->n >= n)
        return true;
    size_t cap = 2 * w->cap > w->n + n ? 2 * w->cap : w->n + n + 64;
    char *p = realloc(w->p, cap);
    w->failed = !p;
    if (p)
        w->p = p, w->cap = cap;
    return p != NULL;
}

void gr_write(struct gr_writer *w, const char *p, size_t n)
{
    if (!n || !reserve(w, n))
        return;
    memcpy(w->p + w->n, p, n);
    w->n += n;
}

void gr_writef(struct gr_writer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !reserve(w, (size_t)n + 1)) {
        w->failed = true;
        return;
    }
    va_start(args, format);
    (void)vsnprintf(w->p + w->n, (size_t)n + 1, format, args);
    va_end(args);
    w->n += (size_t)n;
}

void gr_write_all(struct gr_writer *w, const struct gr_writer *from)
{
    w->failed |= from->failed;
    gr_write(w, from->p, from->n);
}

/* ---- JSON ---- */

size_t gr_utf8_length(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t k = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    if (!k || k > n)
        return 0;
    uint32_t cp = k == 1 ? p[0] : p[0] & (0x7fu >> k);
    for (size_t i = 1; i < k; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        cp = cp << 6 | (p[i] & 0x3f);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    return cp < least[k] || cp > 0x10ffff || cp >> 11 == 0x1b ? 0 : k;
}

static void write_escape(struct gr_writer *w, char c)
{
    static const char names[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
    const char *at = c ? strchr(names, c) : NULL;
    if (at)
        gr_writef(w, "\\%c", letters[at - names]);
    else
        gr_writef(w, "\\u%04x", (unsigned char)c);
}

void gr_write_string(struct gr_writer *w, const char *p, size_t n)
{
    size_t from = 0, i = 0;
    gr_write(w, "\"", 1);
    while (i < n) {
        bool plain = (unsigned char)p[i] >= 0x20 && p[i] != '"' && p[i] != '\\' && p[i] != 0x7f;
        size_t k = gr_utf8_length(p + i, n - i);
        if (k && plain) {
            i += k;
            continue;
        }
        gr_write(w, p + from, i - from);
        if (k)
            write_escape(w, p[i]);
        else
            gr_write(w, "\xef\xbf\xbd", 3);
        from = ++i;
    }
    gr_write(w, p + from, n - from);
    gr_write(w, "\"", 1);
}

static int add_json(const char *p, size_t n, void *user)
{
    struct gr_writer *w = user;
    gr_write(w, p, n);
    return w->failed ? -1 : 0;
}

void gr_write_json(struct gr_writer *w, const json_t *value)
{
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15);
    if (!value || json_dump_callback(value, add_json, w, flags))
        w->failed = true;
}

void gr_writer_free(struct gr_writer *w)
{
    free(w->p);
    *w = (struct gr_writer){0};
}
