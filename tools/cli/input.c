#include "input.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flags.h"
#include "say.h"

#define MOST_TEXT ((size_t)1 << 30)

static int read_stream(FILE *f, const char *name, char **data, size_t *n)
{
    size_t cap = 0;
    *data = NULL, *n = 0;
    do {
        if (*n + 4096 > cap) {
            cap = cap ? 2 * cap : 16384;
            if (cap > MOST_TEXT) {
                gr_say_error("'%s' is too long: a text may have %zu bytes at most", name,
                             MOST_TEXT / 2);
                return 5;
            }
            char *grown = realloc(*data, cap);
            if (!grown)
                return gr_say_no_memory();
            *data = grown;
        }
        *n += fread(*data + *n, 1, cap - *n - 1, f);
    } while (!feof(f) && !ferror(f));
    (*data)[*n] = 0;
    if (ferror(f)) {
        gr_say_error("cannot read '%s': %s", name, strerror(errno));
        return 6;
    }
    return 0;
}

int gr_read_all(const char *path, char **data, size_t *n)
{
    bool standard = !strcmp(path, "-");
    FILE *f = standard ? stdin : fopen(path, "rb");
    *data = NULL, *n = 0;
    if (!f) {
        gr_say_error("cannot read '%s': %s", path, strerror(errno));
        return 6;
    }
    int rc = read_stream(f, standard ? "standard input" : path, data, n);
    if (!standard)
        fclose(f);
    if (rc) {
        free(*data);
        *data = NULL, *n = 0;
    }
    return rc;
}

static int hex(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

size_t gr_unescape(char *s)
{
    static const char from[] = "nrt'\"\\", to[] = "\n\r\t'\"\\";
    char *out = s, *start = s;
    while (*s) {
        const char *e = *s == '\\' && s[1] ? strchr(from, s[1]) : NULL;
        if (e) {
            *out++ = to[e - from];
            s += 2;
        } else if (s[0] == '\\' && s[1] == 'x' && isxdigit((unsigned char)s[2]) &&
                   isxdigit((unsigned char)s[3])) {
            *out++ = (char)(hex(s[2]) << 4 | hex(s[3]));
            s += 4;
        } else {
            *out++ = *s++;
        }
    }
    *out = 0;
    return (size_t)(out - start);
}

/* Returns whether standard input has bytes available now, without waiting. */
static bool has_input(void)
{
    struct stat st;
    int n = 0;
    if (fstat(STDIN_FILENO, &st))
        return false;
    if (S_ISREG(st.st_mode))
        return lseek(STDIN_FILENO, 0, SEEK_CUR) < st.st_size;
    return (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)) && !ioctl(STDIN_FILENO, FIONREAD, &n) &&
           n > 0;
}

void gr_warn_unread(const struct gr_options *o)
{
    static bool said;
    bool elsewhere = o->prompt || (o->file && strcmp(o->file, "-") != 0);
    if (said || !elsewhere || !has_input())
        return;
    said = true;
    gr_say_warning("standard input has text, which is not read: %s gives the text; without it, or "
                   "with -f -, standard input does",
                   o->prompt ? "-p" : "-f");
}

int gr_read_text(const struct gr_options *o, char **text, size_t *n, bool *given)
{
    *text = NULL, *n = 0;
    gr_warn_unread(o);
    /* A closed standard input (EBADF) counts as none. */
    *given = o->prompt || o->file || o->from_stdin || (!isatty(STDIN_FILENO) && errno != EBADF);
    if (*given && !o->prompt)
        return gr_read_all(o->file ? o->file : "-", text, n);
    *text = strdup(*given ? o->prompt : "");
    if (!*text)
        return gr_say_no_memory();
    *n = o->escape ? gr_unescape(*text) : strlen(*text);
    return 0;
}
