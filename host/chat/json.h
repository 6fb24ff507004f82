/* The context of a render from its JSON text. */
#ifndef GR_CHAT_JSON_H
#define GR_CHAT_JSON_H

#include "chat/value.h"

/* Returns the dict of a JSON object; its strings are marked as gr_template_render says.
 * GR_E_INVALID with line and column when it is none. */
struct gr_val gr_context_read(struct gr_render *r, const char *p, size_t n);

#endif
