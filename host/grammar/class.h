/* Ranges of code points as ranges of bytes: UTF-8. */
#ifndef GR_GRAMMAR_CLASS_H
#define GR_GRAMMAR_CLASS_H

#include "grammar/rules.h"

/* Sequences of n bytes, byte i from lo[i] to hi[i], each of which is a character. */
struct gr_byte_ranges {
    int n;
    uint8_t lo[4], hi[4];
};

/* What is left of a range of code points. */
struct gr_class_walk {
    struct gr_chars todo[16];
    int n;
};

struct gr_class_walk gr_class_begin(struct gr_chars range);
/* The next sequences of a range, surrogates left out; false: there are none. */
bool gr_class_next(struct gr_class_walk *walk, struct gr_byte_ranges *out);

#endif
