/* Rendering a parsed template with a context: a JSON object whose members are the variables. */
#ifndef GR_CHAT_RENDER_H
#define GR_CHAT_RENDER_H

#include "chat/program.h"
#include "gpurun.h"

/* A rendered text, and the parts of it that came from the context. */
struct gr_rendered {
    char *text; /* [n], zero-terminated */
    size_t n;
    struct gr_text_span *span; /* [n_span], ascending, not touching each other */
    size_t n_span;
};

/* Renders. context [n]: JSON text of an object. Strings in it are marked as input, except the ones
 * that the operator chooses: members whose names end with "_token" or "_tokens", and roles of
 * messages. `now`: seconds since 1970 that strftime_now sees. GR_E_INVALID: the context is no JSON
 * object; GR_E_TEMPLATE: the template failed, with line and column, or raised an exception, with its
 * text. *out is empty on failure. */
int gr_program_render(const struct gr_program *p, const char *context, size_t n, int64_t now,
                      struct gr_rendered *out);
void gr_rendered_fini(struct gr_rendered *x);

#endif
