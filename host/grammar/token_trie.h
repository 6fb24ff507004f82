/* The tokens of a vocabulary by their bytes, in one walk: nodes in the order of a depth-first walk,
 * so that a text that a grammar refuses is left by one jump. Immutable; any number of grammars
 * share one. */
#ifndef GR_GRAMMAR_TOKEN_TRIE_H
#define GR_GRAMMAR_TOKEN_TRIE_H

#include "text/vocab.h"

struct gr_token_trie {
    const struct gr_vocab *vocab; /* borrowed */
    int32_t n_vocab, n_word;      /* words of a mask */
    uint32_t n_node;
    uint8_t *label;  /* [n_node] the last byte of the node's text */
    uint16_t *depth; /* [n_node] bytes of its text, from 1 */
    uint32_t *next;  /* [n_node] the first node that does not begin with its text */
    int32_t *token;  /* [n_node] a token with this text, -1: none */
    int32_t *same;   /* [n_vocab] another token with the same text, -1: none */
    uint32_t *eog;   /* [n_word] mask of the tokens that end a text */
    uint32_t *any;   /* [n_word] mask of all others that can be generated */
    uint32_t max_depth;
};

int gr_token_trie_new(struct gr_token_trie **out, const struct gr_vocab *vocab);
void gr_token_trie_free(struct gr_token_trie **trie);

#endif
