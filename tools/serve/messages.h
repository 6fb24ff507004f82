/* The messages of a request as chat templates see them, and the prompt that a template makes of
 * them. */
#ifndef GR_TOOLS_MESSAGES_H
#define GR_TOOLS_MESSAGES_H

#include <jansson.h>

#include "fields.h"
#include "server.h"

struct gr_messages {
    json_t *list;    /* NULL: none yet */
    json_t *tools;   /* a list; NULL: none */
    json_t *kwargs;  /* more variables of the template, of the request; NULL: none */
    bool generation; /* the beginning of an answer follows the messages */
    bool goes_on;    /* the last message goes on: the prompt ends with it */
    bool quiet;      /* the answer begins without reasoning */
    size_t n_value;  /* of the arguments of all calls */
};

/* Appends a message, which is copied: contents that are parts become a text, arguments of tool
 * calls become objects. name: of the message in the request. */
void gr_messages_add(struct gr_messages *c, struct gr_fields *f, const json_t *message,
                     const char *name);
/* Appends the messages of a list. */
void gr_messages_add_all(struct gr_messages *c, struct gr_fields *f, const char *name);
/* Sets the tools of a list, checked. */
void gr_messages_set_tools(struct gr_messages *c, struct gr_fields *f, const char *name);
/* Reads the fields about the template: chat_template_kwargs, add_generation_prompt,
 * continue_final_message. */
void gr_messages_read_template(struct gr_messages *c, struct gr_fields *f);
/* Reads these fields, "messages" and "tools". */
void gr_messages_read(struct gr_messages *c, struct gr_fields *f);
/* Makes the prompt, to be freed; it is empty when a field is wrong. */
void gr_messages_render(const struct gr_messages *c, const struct gr_server *s, struct gr_fields *f,
                        struct gr_prompt *prompt);
void gr_messages_drop(struct gr_messages *c);

#endif
