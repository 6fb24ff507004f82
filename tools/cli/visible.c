#include "visible.h"

#include <stdint.h>

#include "say.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Reads the character at p [n]; returns its bytes, 0: it is no UTF-8. */
static size_t read_character(const unsigned char *p, size_t n, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t k = *p < 0x80 ? 1 : *p >> 5 == 6 ? 2 : *p >> 4 == 14 ? 3 : *p >> 3 == 30 ? 4 : 0;
    *code = k == 1 ? *p : *p & (0x7fu >> k);
    for (size_t i = 1; i < k; i++) {
        if (i >= n || p[i] >> 6 != 2)
            return 0;
        *code = *code << 6 | (p[i] & 0x3f);
    }
    return *code >= least[k] ? k : 0;
}

/* Returns whether a terminal obeys the character instead of showing it. */
static bool is_obeyed(uint32_t code)
{
    bool control = code < 0x20 ? code != '\n' && code != '\t' : code >= 0x7f && code < 0xa0;
    bool reverses = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    return control || reverses;
}

/* Length of the beginning of p [n] that is shown as it is. */
static size_t plain_bytes(const char *p, size_t n)
{
    uint32_t code;
    size_t i = 0, k = 1;
    while (i < n && k) {
        k = read_character((const unsigned char *)p + i, n - i, &code);
        if (k && is_obeyed(code))
            k = 0;
        i += k;
    }
    return i;
}

bool gr_write_visible(FILE *f, const char *p, size_t n)
{
    if (!gr_is_terminal(fileno(f)))
        return fwrite(p, 1, n, f) == n;
    bool fine = true;
    for (size_t i = 0; i < n && fine;) {
        size_t plain = plain_bytes(p + i, n - i);
        fine = fwrite(p + i, 1, plain, f) == plain;
        i += plain;
        if (i == n || !fine)
            break;
        uint32_t code;
        size_t k = read_character((const unsigned char *)p + i, n - i, &code);
        fine = k == 1 ? fprintf(f, "^%c", (int)(code ^ 0x40)) > 0 : fputs(REPLACEMENT, f) >= 0;
        i += k ? k : 1;
    }
    return fine;
}
