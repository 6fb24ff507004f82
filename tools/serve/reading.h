/* Answers of chats as they come: the texts of a generation are read by the format of the model, and
 * become text, reasoning and tool calls. */
#ifndef GR_TOOLS_READING_H
#define GR_TOOLS_READING_H

#include "generation.h"

enum gr_reasoning { GR_REASONING_APART, GR_REASONING_INLINE, GR_REASONING_DROPPED };

/* A complete tool call; arguments [n]: JSON. */
typedef void gr_call_fn(struct gr_choice *c, const char *name, const char *id,
                        const char *arguments, size_t n);

struct gr_reading_params {
    const char *format; /* of answers (gr_answer_known); NULL: they are text as they are */
    const char *prompt; /* [n_prompt] */
    size_t n_prompt;
    const json_t *tools; /* NULL: none, and what reads as a call is text */
    bool several;        /* pass on more than the first call */
    enum gr_reasoning reasoning;
    gr_call_fn *call;
};
/* Makes the readers of a generation whose choices are there. Returns a status. */
int gr_reading_begin(struct gr_generation *g, const struct gr_reading_params *params);
void gr_reading_free(struct gr_generation *g);

/* Reads the text of a piece, or the end, into the text, reasoning and calls of the choice. */
void gr_reading_push(struct gr_choice *c, const char *p, size_t n);
void gr_reading_end(struct gr_choice *c);
/* Number of complete calls, those that are not passed on too. */
int32_t gr_reading_calls(const struct gr_choice *c);

#endif
