/* Properties of characters that several tokenizers need. */
#include <utf8proc.h>

#include "text/text_impl.h"
#include "text/utf8.h"

size_t gr_char_lower(uint32_t cp, uint32_t out[2])
{
    if (cp == 0x130) /* the only letter whose lower case is two characters */
        return out[0] = 'i', out[1] = 0x307, 2;
    return out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), 1;
}

bool gr_char_is_blank(const char *p, size_t n)
{
    uint32_t cp;
    if (!n || gr_utf8_next(p, n, &cp) <= 0)
        return false;
    int c = utf8proc_category((utf8proc_int32_t)cp);
    return (cp >= '\t' && cp <= '\r') || cp == 0x85 ||
           (c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_ZP);
}
