/* Facts about rules that follow from their parts. */
#ifndef GR_GRAMMAR_SOLVE_H
#define GR_GRAMMAR_SOLVE_H

#include "grammar/rules.h"

/* [n_node + n_rule], nodes and then rules (gr_free); NULL when there is no memory. Which may be
 * empty; which have a text that ends. */
bool *gr_rules_empty(const struct gr_rules *r);
bool *gr_rules_ending(const struct gr_rules *r);

#endif
