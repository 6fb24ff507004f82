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

#endif
