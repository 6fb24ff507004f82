/* A range is split until its ends have the same length and differ, from some byte on, by all that
 * can follow: then its bytes vary independently. */
#include "grammar/class.h"

#include "text/utf8.h"

struct gr_class_walk gr_class_begin(struct gr_chars range)
{
    return (struct gr_class_walk){.todo = {range}, .n = 1};
}

/* Splits the range c behind `last`, if it goes beyond; the rest is for later. */
static bool split(struct gr_class_walk *w, struct gr_chars *c, uint32_t last)
{
    if (c->lo > last || c->hi <= last)
        return false;
    w->todo[w->n++] = (struct gr_chars){last + 1, c->hi};
    c->hi = last;
    return true;
}

static void split_bytes(struct gr_class_walk *w, struct gr_chars *c)
{
    for (int i = 1; i < 4 && c->hi >= 0x80; i++) {
        uint32_t tail = (1u << 6 * i) - 1;
        if ((c->lo & ~tail) == (c->hi & ~tail))
            return;
        if (c->lo & tail)
            (void)split(w, c, c->lo | tail);
        else if ((c->hi & tail) != tail)
            (void)split(w, c, (c->hi & ~tail) - 1);
    }
}

bool gr_class_next(struct gr_class_walk *w, struct gr_byte_ranges *out)
{
    static const uint32_t last[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff};
    while (w->n > 0) {
        char lo[4], hi[4];
        struct gr_chars c = w->todo[--w->n];
        for (int i = 0; i < 5; i++)
            (void)split(w, &c, last[i]);
        if (c.lo >= 0xd800 && c.lo <= 0xdfff)
            continue;
        split_bytes(w, &c);
        out->n = (int)gr_utf8_put(c.lo, lo);
        (void)gr_utf8_put(c.hi, hi);
        for (int i = 0; i < out->n; i++)
            out->lo[i] = (uint8_t)lo[i], out->hi[i] = (uint8_t)hi[i];
        return true;
    }
    return false;
}
