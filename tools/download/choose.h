/* Choice of a model's files among those of a repository, by their names. */
#ifndef GR_TOOLS_CHOOSE_H
#define GR_TOOLS_CHOOSE_H

#include <stdbool.h>
#include <stddef.h>

#define GR_MOST_PARTS 1000

/* Names as paths within the repository. */
struct gr_names {
    const char **v; /* [n], owned by the caller */
    size_t n;
};

/* Returns the model's file, the first of its parts, as llama.cpp chooses it: the first name with
 * the tag (any case) before "-" or "."; without a tag ("") Q4_K_M, Q8_0, or the first model there
 * is. names.n: none. */
size_t gr_choose_by_tag(struct gr_names names, const char *tag);
/* Returns the file of this name, of any case; names.n: none. */
size_t gr_choose_by_name(struct gr_names names, const char *name);

/* Parses "PREFIX-00002-of-00003.gguf": length of the prefix, number of the part, number of parts.
 * False: it is no part. */
struct gr_part_name {
    size_t prefix;
    int no, count;
};
bool gr_part_name(const char *name, struct gr_part_name *part);

/* Finds all parts of the file `chosen`, itself where it has none: part[0 .. *n). 0, or the number
 * of a part that is missing, or -1: there are more than GR_MOST_PARTS. */
int gr_choose_parts(struct gr_names names, size_t chosen, size_t part[GR_MOST_PARTS], int *n);

/* Writes the tags of all models, "Q4_K_M, Q8_0", each once, cut to n bytes; "": there is none. */
void gr_list_tags(struct gr_names names, char *buf, size_t n);

/* Returns the first file for images or sound, which models may have beside them; NULL: none. */
const char *gr_find_projector(struct gr_names names);

#endif
