/* Regular expressions of users (PCRE2), searched in short texts such as the names of tensors. */
#ifndef GR_BASE_REGEX_H
#define GR_BASE_REGEX_H

#include <stdbool.h>
#include <stddef.h>

struct gr_regex;

/* Compiles n bytes. what: begins the message of a failure, which is GR_E_INVALID or
 * GR_E_NOMEM_HOST. */
int gr_regex_new(struct gr_regex **out, const char *pattern, size_t n, const char *what);
void gr_regex_free(struct gr_regex **regex);
/* Returns whether it occurs in the text; false also where that takes too many steps. */
bool gr_regex_occurs(const struct gr_regex *regex, const char *text, size_t n);

#endif
