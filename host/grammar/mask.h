/* Masks: which tokens may follow in a state of the automaton.
 *
 * What a token does is told by a place alone as long as the rule of the place has not ended. So a
 * *context*, the places of a state with the same stack, has a mask of its own, made once in a walk
 * through all tokens, and a list of the beginnings of tokens with which its rule may end. A state's
 * mask is those of its contexts, and what the stack allows behind these beginnings. Places that
 * differ in how often they are still to be repeated share a context where no token reaches as
 * far. */
#ifndef GR_GRAMMAR_MASK_H
#define GR_GRAMMAR_MASK_H

#include "grammar/automaton.h"
#include "grammar/token_trie.h"

struct gr_masks {
    const struct gr_token_trie *trie;
    struct gr_automaton *automaton;
    size_t limit; /* bytes of masks that are kept */
    size_t held;
    struct gr_intern places; /* pairs: place, 0; flags: part of the trie */
    struct gr_vec contexts;  /* struct gr_context, of each sequence of places */
    struct gr_vec of_state;  /* uint32_t *: mask of each state, or NULL */
    struct gr_vec leaves;    /* uint32_t: scratch of a walk */
    struct gr_vec group;     /* struct gr_pair: scratch */
    uint32_t *path;          /* [bytes + 1] scratch of a walk: state behind each byte */
};

int gr_masks_init(struct gr_masks *m, const struct gr_token_trie *trie, struct gr_automaton *a,
                  size_t limit);
void gr_masks_fini(struct gr_masks *m);
/* Forgets the masks of states, whose numbers change. */
void gr_masks_forget_states(struct gr_masks *m);
/* *mask [n_word]: the tokens that may follow, valid until the next call. */
int gr_masks_of(struct gr_masks *m, uint32_t state, const uint32_t **mask);

#endif
