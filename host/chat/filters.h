/* Functions of filters: filters.c has the table and those of texts and numbers, filters_list.c
 * those of sequences. */
#ifndef GR_CHAT_FILTERS_H
#define GR_CHAT_FILTERS_H

#include "chat/value.h"

#define FILTER(name, fn, params) gr_native_fn gr_##fn;
#include "chat/filters.def"
#undef FILTER

#define GR_FILTER(fn)                                                                              \
    struct gr_val gr_##fn(struct gr_render *r, struct gr_val self, const struct gr_val *v,         \
                          const struct gr_args *a)

/* Lower case of a text, unless case counts; other values as they are. */
struct gr_val gr_fold_case(struct gr_render *r, struct gr_val v, struct gr_val case_sensitive);

#endif
