/* SentencePiece's precompiled normalisation: the longest prefix of a text that a double-array trie
 * contains is replaced by a string. The map comes from a file, so every index is checked when it is
 * used: a corrupt map only fails to match. */
#ifndef GR_TEXT_CHARSMAP_H
#define GR_TEXT_CHARSMAP_H

#include <stddef.h>
#include <stdint.h>

struct gr_charsmap;

/* Copies the map p[0, n): u32 size of the trie in bytes, the trie (u32 units in Darts-clone
 * format), zero-terminated replacements. GR_E_CORRUPT when the sizes are inconsistent. */
int gr_charsmap_open(struct gr_charsmap **out, const uint8_t *p, uint64_t n);
void gr_charsmap_free(struct gr_charsmap **m);

/* Finds the longest prefix of p[0, n), at most 256 bytes, that has a replacement: returns its
 * length and *to, *n_to, the replacement (owned by m), or 0. */
size_t gr_charsmap_match(const struct gr_charsmap *m, const char *p, size_t n, const char **to,
                         size_t *n_to);

#endif
