/* Parsing of flag values, by the kinds of flags.h. */
#ifndef GR_TOOLS_FLAG_VALUES_H
#define GR_TOOLS_FLAG_VALUES_H

#include "flags.h"

/* Returns the position of `word` (n bytes, ignoring case) in the choices "a|b|c"; NULL: it is
 * none. */
const char *gr_find_choice(const char *choices, const char *word, size_t n);
/* Returns 1 or 0 for the words of a switch, ignoring case; -1: another word. */
int gr_switch_of(const char *word, size_t n);
/* Returns whether only listed numbers are values: "0|2". */
bool gr_flag_is_of_few(const struct gr_flag *f);

/* Stores a value in its field; `off`: the flag's name switches off; `more`: append to a list.
 * Returns NULL, or a description of what is expected (valid until the next call), and stores
 * nothing. */
const char *gr_value_store(struct gr_options *o, const struct gr_flag *f, const char *text,
                           bool off, bool more);

/* Appends to a list of strings. Returns NULL, or what is expected. */
const char *gr_value_add(struct gr_str_list *list, const char *text);
void gr_files_drop(struct gr_file_list *list);

#endif
