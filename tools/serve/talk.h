/* Requests for answers in a conversation, in any form: messages, tools, and how an answer is
 * read. */
#ifndef GR_TOOLS_TALK_H
#define GR_TOOLS_TALK_H

#include "generation.h"
#include "messages.h"
#include "reading.h"

/* A generation's `own`. */
struct gr_talk {
    struct gr_messages messages;
    char *prompt; /* [n_prompt], rendered */
    size_t n_prompt;
    bool several; /* calls may come */
    enum gr_reasoning reasoning;
    gr_call_fn *call; /* writes a complete tool call */
};

/* Begins the messages. NULL: no memory, which f says. */
struct gr_talk *gr_talk_new(struct gr_generation *g, struct gr_fields *f, gr_call_fn *call);
/* Reads the fields about tools, reasoning and the template, renders the messages, and starts
 * the texts. */
void gr_talk_start(struct gr_generation *g, struct gr_fields *f);

/* Functions of a gr_form. */
void gr_talk_prepare(struct gr_generation *g, struct gr_fields *f);
void gr_talk_free(struct gr_generation *g);

/* Reads a piece, or the end, of an answer. */
void gr_talk_piece(struct gr_choice *c, const struct gr_piece *piece);
void gr_talk_end(struct gr_choice *c);

#endif
