/* Values of flags, as the kinds of flags.h read them. */
#ifndef GR_TOOLS_FLAG_VALUES_H
#define GR_TOOLS_FLAG_VALUES_H

#include "flags.h"

/* Where the n bytes of `word`, in any case, are one of the choices "a|b|c"; NULL: they are none. */
const char *gr_find_choice(const char *choices, const char *word, size_t n);
/* 1 and 0 for the words of a switch, in any case; -1: it is none of them. */
int gr_switch_of(const char *word, size_t n);
/* Whether certain numbers alone are values: "0|2". */
bool gr_flag_is_of_few(const struct gr_flag *f);

/* Stores a value in its field; `off`: of a name that switches off; `more`: a list adds it to what
 * it has. NULL, or what is expected instead (valid until the next call), and nothing is stored. */
const char *gr_value_store(struct gr_options *o, const struct gr_flag *f, const char *text,
                           bool off, bool more);

void gr_files_drop(struct gr_file_list *list);

#endif
