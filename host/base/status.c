/* Status codes, and the last error of each thread. */
#include "gr/status.h"

#include <stdarg.h>
#include <stdio.h>

#include "gpurun.h"

static _Thread_local char message[2000];
static _Thread_local int last;

static const struct {
    const char *text;
    int exit_code;
} table[GR_N_STATUS] = {
    [GR_OK] = {"ok", 0},
#define STATUS(name, code, words) [GR_E_##name] = {words, code},
#include "gr/status.def"
#undef STATUS
};

int gr_fail(int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return last = status;
}

char *gr_one_line(char *text)
{
    for (char *p = text; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    }
    return text;
}

int gr_error_status(void)
{
    return last;
}

const char *gr_error(void)
{
    return message;
}

const char *gr_error_message(void)
{
    return message;
}

const char *gr_version(void)
{
    return GR_VERSION;
}

const char *gr_status_text(int status)
{
    return status >= 0 && status < GR_N_STATUS ? table[status].text : "unknown status";
}

int gr_status_exit(int status)
{
    return status >= 0 && status < GR_N_STATUS ? table[status].exit_code : 1;
}

const char *gr_quote(const char *p, size_t n)
{
    static _Thread_local char ring[8][256];
    static _Thread_local unsigned turn;
    char *out = ring[turn++ % 8];
    size_t shown = n < 60 ? n : 60, k = 0;
    out[k++] = '\'';
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c < 32 || c > 126 || c == '\'' || c == '\\')
            k += (size_t)snprintf(out + k, 5, "\\x%02x", c);
        else
            out[k++] = (char)c;
    }
    out[k++] = '\'';
    snprintf(out + k, 4, "%s", shown < n ? "..." : "");
    return out;
}
