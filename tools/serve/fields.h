/* Fields of a request's JSON object, by type: what is missing or null has its default, other fields
 * are ignored, and the first that is wrong is what the request is refused for. */
#ifndef GR_TOOLS_FIELDS_H
#define GR_TOOLS_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct gr_exchange;

struct gr_fields {
    const json_t *object;
    const char *within; /* name of the object in the request with a point, "stream_options."; "" */
    bool wrong;         /* a field is: the first one is kept */
    char param[96];     /* its name; "": it is about none */
    const char *code;   /* a word for programs (gr_refuse_as); NULL: none */
    char message[512];
};

/* NULL: it is missing or null. */
const json_t *gr_field(const struct gr_fields *f, const char *name);
bool gr_field_bool(struct gr_fields *f, const char *name, bool def);
int64_t gr_field_int(struct gr_fields *f, const char *name, int64_t def, int64_t lo, int64_t hi);
double gr_field_number(struct gr_fields *f, const char *name, double def, double lo, double hi);
/* Text, list and object belong to the request; NULL: missing, null or wrong. */
const char *gr_field_text(struct gr_fields *f, const char *name);
const json_t *gr_field_list(struct gr_fields *f, const char *name);
const json_t *gr_field_object(struct gr_fields *f, const char *name);

/* Says that a field ("": several) is wrong, unless another one was before. */
void gr_field_wrong(struct gr_fields *f, const char *name, const char *message, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes over what is wrong with a field of an object within. */
void gr_fields_take(struct gr_fields *f, const struct gr_fields *inner);
/* Refuses the request if a field is wrong. Returns whether it did. */
bool gr_fields_refuse(const struct gr_fields *f, struct gr_exchange *x);

#endif
