/* How long a text may get: the context that the options and the prompt ask for, the factors of
 * Self-Extend for it, and what is said of lengths that the model or the context does not have. */
#ifndef GR_TOOLS_LENGTH_H
#define GR_TOOLS_LENGTH_H

#include "tools.h"

/* Self-Extend's factors. */
struct gr_group {
    enum gr_group_mode mode;
    int32_t n, w; /* n 1: off */
};

struct gr_length {
    const struct gr_options *o;
    struct gr_model *model;
    struct gr_model_info info;
    struct gr_session_reach reach; /* of the session to be opened */
    size_t n_prompt;               /* tokens */
    int32_t n_ctx;                 /* tokens that there is room for */
    struct gr_group group;
};

/* The mode of Self-Extend. */
enum gr_group_mode gr_length_mode(const struct gr_options *o);
/* Fills in *l, and of *p, which has all else, the context and what Self-Extend by window needs. 0
 * or an exit code, said. */
int gr_length_choose(struct gr_length *l, const struct gr_options *o, struct gr_model *model,
                     size_t n_prompt, struct gr_session_params *p);
/* The same for a context that is chosen already: fills in *l but for n_prompt. */
int gr_length_group(struct gr_length *l, const struct gr_options *o, struct gr_model *model,
                    int32_t n_ctx, struct gr_session_params *p);
/* State of the classic mode before the first token; off in the other mode. */
struct gr_self_extend gr_length_classic(const struct gr_length *l);
/* ", Self-Extend 4 / 64 (classic)", or "". Returns buf. */
const char *gr_length_summary(const struct gr_length *l, char buf[64]);
/* Whether the prompt fits; what takes it is tried before it is offered. 0 or an exit code, said. */
int gr_length_admit(const struct gr_length *l, const struct gr_session_params *p);
/* One line when positions will leave the range that the model is good for. */
void gr_length_warn(const struct gr_length *l, const struct gr_session_params *p);
/* Whether the oldest text is dropped when the context is full. */
bool gr_length_shifts(const struct gr_options *o);
/* Says that the context is full, and what would make room. */
void gr_length_say_full(const struct gr_length *l);

#endif
