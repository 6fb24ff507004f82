/* Chat templates, as the flags choose them, and what they see. */
#ifndef GR_TOOLS_TEMPLATES_H
#define GR_TOOLS_TEMPLATES_H

#include <jansson.h>

#include "gpurun.h"

struct gr_options;

/* Parses n bytes of JSON; an error names its `source`. NULL: 0 or an exit code in *rc, after
 * printing the error. Call gr_json_begin before. */
json_t *gr_read_json(const char *text, size_t n, const char *source, int *rc);
/* Opens the template of the flags, or else of the model; gpurun chat takes chatml where there is
 * none. 0 or an exit code, after printing the error. */
int gr_open_template(const struct gr_options *o, const struct gr_model *model,
                     struct gr_template **t, const char **format);
/* Returns the object of --chat-template-kwargs, NULL: none, or an exit code other than 0 in
 * *exit_code, after printing the error. Call gr_json_begin before. */
json_t *gr_template_kwargs(const struct gr_options *o, int *exit_code);
/* Adds --chat-template-kwargs and the model's tokens (NULL: none) to the object `context`, of which
 * *text is the JSON (free). 0 or an exit code, after printing the error. */
int gr_template_context(const struct gr_options *o, const struct gr_model *model, json_t *context,
                        char **text);

#endif
