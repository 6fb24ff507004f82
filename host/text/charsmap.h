/* SentencePiece's precompiled normalisation: the longest prefix of a text that a double-array trie
 * knows is replaced by a string. The map comes from a file, so every index is checked when it is
 * used: a broken map only fails to match. */
#ifndef GR_TEXT_CHARSMAP_H
#define GR_TEXT_CHARSMAP_H

#include <stddef.h>
#include <stdint.h>

struct gr_charsmap;

/* Copies the map: u32 bytes of the trie, the trie (u32 units of the Darts-clone form),
 * zero-terminated replacements. GR_E_CORRUPT when the parts do not fit together. */
int gr_charsmap_open(struct gr_charsmap **out, const uint8_t *p, uint64_t n);
void gr_charsmap_free(struct gr_charsmap **m);

/* The longest known prefix of p[0, n), at most 256 bytes: returns its length and its replacement,
 * or 0. */
size_t gr_charsmap_match(const struct gr_charsmap *m, const char *p, size_t n, const char **to,
                         size_t *n_to);

#endif
