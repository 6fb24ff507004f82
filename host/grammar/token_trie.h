/* The tokens of a vocabulary by their bytes: nodes in the order of a depth-first walk, so that a
 * text that a grammar refuses is left by one jump. Immutable; any number of grammars share one.
 *
 * There are two tries, one behind the other: of tokens up to GR_TOKEN_SHORT bytes, which are nearly
 * all, and of longer ones. So what only the longest tokens can tell apart costs a short walk. */
#ifndef GR_GRAMMAR_TOKEN_TRIE_H
#define GR_GRAMMAR_TOKEN_TRIE_H

#include "text/vocab.h"

enum { GR_TOKEN_SHORT = 24, GR_TOKEN_PARTS = 2 };

struct gr_token_part {
    uint32_t begin, end; /* nodes */
    uint32_t max_depth;
};

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
    struct gr_token_part part[GR_TOKEN_PARTS];
};

int gr_token_trie_new(struct gr_token_trie **out, const struct gr_vocab *vocab);
void gr_token_trie_free(struct gr_token_trie **trie);

/* Bytes of the longest token. */
static inline uint32_t gr_token_trie_depth(const struct gr_token_trie *t)
{
    return t->part[1].max_depth ? t->part[1].max_depth : t->part[0].max_depth;
}

#endif
