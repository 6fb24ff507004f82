/* Pre-tokenizers by name: a text cut into words. See pre.def for the names and what they do. */
#ifndef GR_TEXT_PRE_H
#define GR_TEXT_PRE_H

#include <stddef.h>

#include "base/alloc.h"
#include "gguf/gguf.h"

struct gr_pre;

enum {
    GR_PRE_WHOLE_WORDS = 1, /* a word that is a token is that token, whatever merges say */
    GR_PRE_BOS = 2,         /* a text begins with BOS unless the file says otherwise */
    GR_PRE_RAW =
        4, /* tokens are UTF-8 with U+2581 for blanks, unknown characters fall back to <0xHH> */
};

/* Compiles the pre-tokenizer of that name ("" = "default"). GR_E_UNSUPPORTED names the nearest
 * known one. */
int gr_pre_open(struct gr_pre **out, struct gr_str name);
void gr_pre_free(struct gr_pre **pre);
unsigned gr_pre_flags(const struct gr_pre *pre);

/* Cuts n > 0 bytes of valid UTF-8 into words: ends[0] becomes the vector of uint32_t of where they
 * end, ascending, the last one n. ends[1] is scratch. GR_E_INVALID when a regular expression meets
 * its limits. */
int gr_pre_split(const struct gr_pre *pre, const char *text, size_t n, struct gr_vec ends[2]);

/* For tests: the names, NULL past the last one. */
const char *gr_pre_name(size_t i);

#endif
