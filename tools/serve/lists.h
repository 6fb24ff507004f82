/* Lists of the tokens of a text and their probabilities, as JSON that grows token by token. */
#ifndef GR_TOOLS_LISTS_H
#define GR_TOOLS_LISTS_H

#include "generation.h"

/* Returns the number of UTF-8 characters that begin in a text. */
int64_t gr_count_chars(const char *p, size_t n);
/* Adds the id of a piece's token. */
void gr_list_id(struct gr_choice *c, const struct gr_piece *piece);
/* Adds a token to the lists of completions: tokens, token_logprobs, top_logprobs, text_offset.
 * known: it has a probability. */
void gr_list_legacy(struct gr_choice *c, const struct gr_piece *piece, bool known);
/* Adds an object with the token, its probability and the likely ones to GR_LIST_TOKENS. */
void gr_list_object(struct gr_choice *c, const struct gr_piece *piece);
/* Writes {"tokens":[..],..} of completions, and empties the lists. */
void gr_write_legacy(struct gr_writer *w, struct gr_choice *c);

#endif
