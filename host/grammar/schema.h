/* JSON schemas, draft 2020-12, read into rules: SCHEMA.md says which part of them. */
#ifndef GR_GRAMMAR_SCHEMA_H
#define GR_GRAMMAR_SCHEMA_H

#include "grammar/grammar.h"

/* Reads n bytes of JSON into `rules`, which are new. GR_E_INVALID names the place by a JSON
 * pointer, GR_E_TOO_LARGE a limit of rules.h. */
int gr_schema_read(struct gr_rules *rules, const char *text, size_t n);
int gr_grammar_from_schema(struct gr_grammar **out, const char *text, size_t n,
                           const struct gr_token_trie *trie);

#endif
