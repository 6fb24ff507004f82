/* Grammars of calls. */
#ifndef GR_ANSWER_RULES_H
#define GR_ANSWER_RULES_H

#include "gpurun.h"
#include "grammar/rules.h"
#include "text/vocab.h"

/* Reads the calls that params allow into `rules`, which are new. Marks that are control tokens of
 * the vocabulary are these tokens; NULL: none are. As gr_answer_grammar. */
int gr_answer_rules(struct gr_rules *rules, const struct gr_answer_calls *params,
                    const struct gr_vocab *vocab);

/* Appends a text to the sequence, control tokens of the vocabulary in it as these tokens. */
void gr_answer_add_literal(struct gr_rules *r, const struct gr_vocab *vocab, uint32_t seq,
                           const char *p, size_t n);
/* Appends what may stand in front of calls whose text begins with `opening`: blocks of reasoning,
 * then text without the mark of a call that opening begins with. */
int gr_answer_add_free_text(struct gr_rules *r, const struct gr_vocab *vocab, uint32_t seq,
                            const struct gr_answer_calls *params, const char *opening);

#endif
