/* Reasoning in an answer: what stands between <think> and </think> at its beginning. */
#ifndef GR_TOOLS_THINK_H
#define GR_TOOLS_THINK_H

#include <stdbool.h>
#include <stddef.h>

/* Takes the next n bytes of the reasoning, or of the answer itself. Returns 0 or an exit code. */
typedef int gr_think_fn(void *user, bool reasoning, const char *p, size_t n);

enum gr_think_state { GR_THINK_BEGIN, GR_THINK_INSIDE, GR_THINK_BEHIND, GR_THINK_ANSWER };

struct gr_think {
    enum gr_think_state state;
    char held[24]; /* [n_held] what may become a mark, behind n_space bytes of white space */
    size_t n_held, n_space;
    gr_think_fn *fn;
    void *user;
};

/* Begins an answer. `opened`: the prompt ends with <think>. */
void gr_think_begin(struct gr_think *t, bool opened);
/* Divides the next n bytes; marks, and white space before <think> and behind
 * </think>, belong to neither part. Returns 0 or
 * what fn returned. */
int gr_think_push(struct gr_think *t, const char *p, size_t n);
/* Ends the answer: what is held back was no mark. */
int gr_think_end(struct gr_think *t);
/* Returns whether a prompt of n bytes ends with <think> and white space. */
bool gr_think_is_opened(const char *prompt, size_t n);

#endif
