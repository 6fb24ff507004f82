/* Texts of one token again and again, for measurements. */
#ifndef TESTS_STEP_TEXT_H
#define TESTS_STEP_TEXT_H

#include "support/tiny.h"

enum { TEXT_MOST = 16, TEXT_STEP = 512 };

/* One more token of each of n texts, the first ones. A status. */
int text_step(struct gr_session *s, int32_t n);
/* Text `seq` goes on by n_cell tokens, a multiple of TEXT_STEP. */
int text_fill(struct gr_session *s, int32_t seq, int32_t n_cell);
/* CPU time of all threads of this process, in microseconds. */
double text_cpu_us(void);
/* A model of t and a session on it, all layers on devices if there are any; false: said on stderr,
 * as `program`. */
bool text_open(const char *program, const struct tiny *t, uint32_t n_ctx, struct gr_model **m,
               struct gr_session **s);

#endif
