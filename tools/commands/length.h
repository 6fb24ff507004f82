/* Length of a text: the context that options and prompt need, the factors of Self-Extend, and
 * messages about lengths beyond the model or the context. */
#ifndef GR_TOOLS_LENGTH_H
#define GR_TOOLS_LENGTH_H

#include "gpurun.h"

struct gr_options;

/* Self-Extend's factors. */
struct gr_tp_group {
    enum gr_self_extend_mode mode;
    int32_t n, w; /* n 1: off */
};

struct gr_length {
    const struct gr_options *o;
    struct gr_model *model;
    struct gr_model_info info;
    struct gr_context_limits reach; /* of the session to be opened */
    size_t n_prompt;                /* tokens */
    int32_t n_ctx;                  /* tokens that fit */
    struct gr_tp_group group;
};

/* The mode of Self-Extend. */
enum gr_self_extend_mode gr_length_mode(const struct gr_options *o);
/* Returns n_ctx, or the model's learned positions where it has fewer; warns of a -c beyond them. */
int32_t gr_length_learned(const struct gr_options *o, const struct gr_model_info *info,
                          int32_t n_ctx);
/* Fills *l, and in *p, which is otherwise complete, the context and the fields of Self-Extend by
 * window. 0 or an exit code, after printing the error. */
int gr_length_choose(struct gr_length *l, const struct gr_options *o, struct gr_model *model,
                     size_t n_prompt, struct gr_session_params *p);
/* The same for a given context: fills *l except n_prompt. */
int gr_length_self_extend(struct gr_length *l, const struct gr_options *o, struct gr_model *model,
                          int32_t n_ctx, struct gr_session_params *p);
/* Returns the initial state of the classic mode; off in the other mode. */
struct gr_self_extend gr_length_classic(const struct gr_length *l);
/* ", Self-Extend 4 / 64 (classic)", or "". Returns buf. */
const char *gr_length_summary(const struct gr_length *l, char buf[64]);
/* Checks that the prompt fits; flags that the message suggests have been tried. 0 or an exit code,
 * after printing the error. */
int gr_length_admit(const struct gr_length *l, const struct gr_session_params *p);
/* Warns when positions will exceed the range that the model was trained for or stretched to. */
void gr_length_warn(const struct gr_length *l, const struct gr_session_params *p);
/* Returns whether the oldest text is dropped when the context is full. */
bool gr_length_shifts(const struct gr_options *o);
/* Prints that the context is full, and which flags would help. */
void gr_length_say_full(const struct gr_length *l);

#endif
