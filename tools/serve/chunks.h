/* Parts of a text that stand elsewhere in texts of the cache. */
#ifndef GR_TOOLS_SERVE_CHUNKS_H
#define GR_TOOLS_SERVE_CHUNKS_H

#include "prefixes.h"

/* Tokens [at, at + n) of a text, which are tokens [from, from + n) of sequence `seq`. */
struct gr_chunk {
    int32_t at, seq, from, n;
};

/* Finds chunks of at least `least` > 0 tokens of token [lo, hi) in the sequences of an owner, from
 * the left, without overlaps: where a part of so many tokens stands in the cache, one of its places
 * is looked at. Its time grows with hi - lo and the owner's cells. Returns how many, *out (free);
 * 0 without memory. */
int32_t gr_chunks_find(const struct gr_prefixes *p, uint64_t owner, const int32_t *token,
                       int32_t lo, int32_t hi, int32_t least, struct gr_chunk **out);

#endif
