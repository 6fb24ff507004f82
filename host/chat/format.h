/* Values in fields of a width, for % and str.format. */
#ifndef GR_CHAT_FORMAT_H
#define GR_CHAT_FORMAT_H

#include "chat/value.h"

#define GR_FORMAT_MAX_WIDTH 10000

/* What stands between % and the letter, or behind the colon of a field. */
struct gr_format_spec {
    const struct gr_string *fill; /* NULL: a blank */
    char align;                   /* < > ^ = or 0 */
    char sign;                    /* + - blank or 0 */
    bool alternate, zero;
    char group;               /* , or _ or 0 */
    int64_t width, precision; /* -1: none */
    char type;                /* 0: none */
};

/* Reads digits at *i, which is moved behind them; -1: there are none. */
int64_t gr_format_digits(const struct gr_string *s, size_t *i);
/* Put a value in a field; align: where it stands when the field does not say. */
void gr_format_text(struct gr_render *r, struct gr_text *t, const struct gr_format_spec *x,
                    struct gr_val s, char align);
void gr_format_int(struct gr_render *r, struct gr_text *t, const struct gr_format_spec *x,
                   int64_t i, char align);
void gr_format_float(struct gr_render *r, struct gr_text *t, const struct gr_format_spec *x,
                     double f, char align);

#endif
