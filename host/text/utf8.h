/* UTF-8, one character at a time (RFC 3629: no overlong forms, surrogates or code points above
 * U+10FFFF). */
#ifndef GR_TEXT_UTF8_H
#define GR_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define GR_UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD, replaces invalid UTF-8 */

/* Decodes the character at text[0, n), n > 0. Positive: its length, and *cp is its code point. 0:
 * all n bytes are the beginning of a character whose rest is missing. -k: the first k bytes can
 * never be part of a character (the "maximal subpart" of Unicode 3.9, so that one U+FFFD replaces k
 * bytes). */
static inline int gr_utf8_next(const char *text, size_t n, uint32_t *cp)
{
    const uint8_t *p = (const uint8_t *)text;
    uint8_t c = p[0];
    if (c < 0x80)
        return *cp = c, 1;
    int len = c < 0xc2 || c > 0xf4 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (!len)
        return -1;
    uint8_t lo = c == 0xe0   ? 0xa0
                 : c == 0xf0 ? 0x90
                             : 0x80,
            hi = c == 0xed   ? 0x9f
                 : c == 0xf4 ? 0x8f
                             : 0xbf;
    uint32_t v = c & (0x7fu >> len);
    for (int i = 1; i < len; i++, lo = 0x80, hi = 0xbf) {
        if ((size_t)i == n)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -i;
        v = v << 6 | (p[i] & 0x3fu);
    }
    return *cp = v, len;
}

/* Returns the length of the character at p[0, n), n > 0; 1 where there is none. */
static inline size_t gr_utf8_step(const char *p, size_t n)
{
    uint32_t cp;
    int k = gr_utf8_next(p, n, &cp);
    return k > 0 ? (size_t)k : 1;
}

/* Writes cp <= 0x10ffff to out (4 bytes at most); returns its length. */
static inline size_t gr_utf8_put(uint32_t cp, char *out)
{
    if (cp < 0x80)
        return out[0] = (char)cp, 1;
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len; i-- > 1; cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(0xf00u >> len | cp);
    return len;
}

#endif
