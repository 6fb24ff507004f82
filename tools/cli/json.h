/* Allocations of jansson. */
#ifndef GR_TOOLS_JSON_H
#define GR_TOOLS_JSON_H

#include <stdbool.h>

/* gr_json_starved: an allocation by jansson has failed since gr_json_begin. */
void gr_json_begin(void);
bool gr_json_starved(void);

#endif
