/* The message for layers or a session that do not fit. */
#ifndef GR_PLACEMENT_SUGGEST_H
#define GR_PLACEMENT_SUGGEST_H

#include "placement/search.h"

/* Returns GR_E_NOMEM_DEV, with a message of what each GPU needs and what would fit. */
int gr_choice_explain(const struct gr_choice *c);
/* Formats "1.5 GiB". Returns buf. */
const char *gr_mib(char buf[16], uint64_t bytes);

#endif
