/* JSON byte by byte: an object or a list, valid so far or not. */
#ifndef GR_ANSWER_JSON_H
#define GR_ANSWER_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "gr/answer.h"

enum gr_json_state {
    GR_AT_VALUE,  /* a value comes */
    GR_AT_FIRST,  /* a value or ] */
    GR_AT_MEMBER, /* a key or } */
    GR_AT_KEY,    /* a key */
    GR_AT_COLON,
    GR_AT_BEHIND, /* a comma or a closing bracket */
    GR_AT_STRING,
    GR_AT_ESCAPE,
    GR_AT_HEX,
    GR_AT_NUMBER,
    GR_AT_WORD
};

/* Zero-initialise. */
struct gr_json {
    enum gr_json_state state;
    bool is_key;      /* of the string */
    uint8_t left;     /* hexadecimal digits; bytes of a character */
    uint8_t lo, hi;   /* of the character's next byte */
    char number;      /* part of the number: see json.c */
    const char *word; /* what is left of it */
    int32_t depth;    /* open brackets */
    char open[GR_ANSWER_MAX_DEPTH];
};

/* Adds a byte: 1: it completes the object or list, 0: more must come, -1: it cannot follow. */
int gr_json_put(struct gr_json *j, char c);

/* Returns whether the state is within a string. */
static inline bool gr_json_in_string(const struct gr_json *j)
{
    return j->state == GR_AT_STRING || j->state == GR_AT_ESCAPE || j->state == GR_AT_HEX;
}

#endif
