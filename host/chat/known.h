/* Known templates. */
#ifndef GR_CHAT_KNOWN_H
#define GR_CHAT_KNOWN_H

#include <stdint.h>

/* The i-th known template; NULL past the last one. */
struct gr_known {
    const char *name, *tokens, *text; /* see known.def */
};
const struct gr_known *gr_known_template(int32_t i);

#endif
