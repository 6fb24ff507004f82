/* Parts of Ollama's interface that need no model. */
#ifndef GR_TOOLS_OLLAMA_H
#define GR_TOOLS_OLLAMA_H

#include <jansson.h>

#include "http.h"

#define GR_OLLAMA_STAMP 32 /* bytes of a time */

/* Writes the time it is. */
const char *gr_ollama_now(char stamp[GR_OLLAMA_STAMP]);
/* Returns whether there is nothing to answer: the prompt or the messages are missing or empty. */
bool gr_ollama_asks_nothing(const json_t *request, bool chat);
/* Makes the answer to a request that asks nothing: the model, `name` where it names none, was
 * loaded, or unloaded. */
json_t *gr_ollama_nothing(const char *name, const json_t *request, bool chat);
/* Returns whether a request of a route asks that its model be unloaded. */
bool gr_ollama_unloads(const struct gr_route *route, const json_t *request);
/* Makes the answer to that. */
json_t *gr_ollama_unloaded(const struct gr_route *route, const json_t *request);

#endif
