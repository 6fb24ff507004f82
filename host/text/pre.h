/* Pre-tokenizers by name: splitting a text into words. pre.def has the names and their rules. */
#ifndef GR_TEXT_PRE_H
#define GR_TEXT_PRE_H

#include <stddef.h>
#include <stdint.h>

#include "gguf/gguf.h"

struct gr_pre;

enum {
    GR_PRE_WHOLE_WORDS = 1, /* a word that is a token becomes that token without merging */
    GR_PRE_BOS = 2,         /* BOS is added to a text unless the file says otherwise */
    GR_PRE_RAW = 4,         /* tokens are UTF-8, blanks U+2581, unknown characters bytes <0xHH> */
    GR_PRE_LINES = 8,       /* a run of newlines that is a token becomes that token */
    GR_PRE_ALWAYS_BOS = 16, /* BOS is added whatever the file says: some deny it by mistake */
    GR_PRE_DROP =
        32 /* white space separates words; it and characters without a token are dropped */
};

/* Compiles the pre-tokenizer of that name ("" = "default"). GR_E_UNSUPPORTED names the nearest
 * known one. */
int gr_pre_open(struct gr_pre **out, struct gr_str name);
void gr_pre_free(struct gr_pre **pre);
unsigned gr_pre_flags(const struct gr_pre *pre);

/* Working memory for splitting texts, for one thread; the pre-tokenizer must outlive it. */
struct gr_splitter;
int gr_splitter_new(struct gr_splitter **out, const struct gr_pre *pre);
void gr_splitter_free(struct gr_splitter **s);

/* Cuts n > 0 bytes of valid UTF-8 into words: word i ends before byte end[i], ascending, the last
 * one n. The array is valid until the next call. GR_E_INVALID when a regular expression exceeds its
 * match limit, GR_E_NOMEM_HOST its heap limit. */
int gr_splitter_run(struct gr_splitter *s, const char *text, size_t n, const uint32_t **end,
                    size_t *n_end);

/* Returns the i-th name, NULL past the last one. */
const char *gr_pre_name(size_t i);

#endif
