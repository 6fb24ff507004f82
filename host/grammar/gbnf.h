/* GBNF, the notation of llama.cpp (grammars/README.md there), read into rules.
 *
 * Differences: a class without characters, bounds {m,n} with n < m, code points that do not exist
 * and a rule that is defined twice are refused; repetitions reach GR_GRAMMAR_MAX_REPEAT. */
#ifndef GR_GRAMMAR_GBNF_H
#define GR_GRAMMAR_GBNF_H

#include "grammar/rules.h"
#include "text/vocab.h"

/* Reads n bytes of text into `rules`, which are new. The vocabulary is that of <token>.
 * GR_E_INVALID names line and column; GR_E_TOO_LARGE: a limit of rules.h. */
int gr_gbnf_read(struct gr_rules *rules, const char *text, size_t n, const struct gr_vocab *vocab);

#endif
