/* A grammar bound to a vocabulary, and states in it. The functions on states are those of
 * gpurun.h. */
#ifndef GR_GRAMMAR_GRAMMAR_H
#define GR_GRAMMAR_GRAMMAR_H

#include "gpurun.h"
#include "grammar/rules.h"
#include "grammar/token_trie.h"

/* Memory of one grammar: states of its automaton, and masks. */
#define GR_GRAMMAR_STATE_BYTES ((size_t)32 << 20)
#define GR_GRAMMAR_MASK_BYTES ((size_t)64 << 20)

/* The trie is borrowed, with its vocabulary. state_bytes, mask_bytes: limits, 0: those above. */
int gr_grammar_new(struct gr_grammar **out, const struct gr_rules *rules,
                   const struct gr_token_trie *trie, size_t state_bytes, size_t mask_bytes);
/* The same from a text. */
int gr_grammar_from_gbnf(struct gr_grammar **out, const char *text, size_t n,
                         const struct gr_token_trie *trie);

/* Number of tokens of the vocabulary. */
int32_t gr_grammar_n_vocab(const struct gr_grammar_state *s);

#endif
