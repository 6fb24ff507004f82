/* Grammars over single bytes (support/byte_vocab.h), and texts in them. */
#ifndef TESTS_HOST_GRAMMAR_BYTES_H
#define TESTS_HOST_GRAMMAR_BYTES_H

#include <criterion/criterion.h>
#include <string.h>

#include "gr/status.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"
#include "support/byte_vocab.h"

static inline const struct gr_token_trie *byte_trie(void)
{
    static const char *const texts[] = {"<|end|>", "<|think|>"};
    static struct gr_token_trie *trie;
    struct gr_vocab *v;
    if (!trie) {
        cr_assert_eq(byte_vocab_open(&v, texts, 2), 0, "%s", gr_error());
        cr_assert_eq(gr_token_trie_new(&trie, v), 0, "%s", gr_error());
    }
    return trie;
}

static inline struct gr_grammar_state *state_of(struct gr_grammar *g)
{
    struct gr_grammar_state *s;
    cr_assert_eq(gr_grammar_state_new(&s, g), 0, "%s", gr_error());
    gr_grammar_free(&g);
    return s;
}

static inline struct gr_grammar_state *open_gbnf(const char *text)
{
    struct gr_grammar *g;
    int rc = gr_grammar_from_gbnf(&g, text, strlen(text), byte_trie());
    cr_assert_eq(rc, 0, "%s\n%s", gr_error(), text);
    return state_of(g);
}

static inline struct gr_grammar_state *open_schema(const char *text)
{
    struct gr_grammar *g;
    int rc = gr_grammar_from_schema(&g, text, strlen(text), byte_trie());
    cr_assert_eq(rc, 0, "%s\n%s", gr_error(), text);
    return state_of(g);
}

static inline bool accepts(struct gr_grammar_state *s, const char *text)
{
    int rc = 0;
    gr_grammar_state_reset(s);
    for (; *text && !rc; text++)
        rc = gr_grammar_accept(s, (uint8_t)*text);
    return !rc && gr_grammar_may_end(s);
}

#endif
