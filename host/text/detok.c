/* Token ids to text, one at a time. */
#include <string.h>

#include "gr/status.h"
#include "text/text_impl.h"
#include "text/utf8.h"

void gr_vocab_detok_init(struct gr_vocab_detok *d, const struct gr_vocab *v, bool special,
                         bool text_start)
{
    bool prefix = v->add_space_prefix || v->kind == GR_VOCAB_WORDPIECE;
    *d = (struct gr_vocab_detok){.v = v, .special = special, .strip_space = text_start && prefix};
}

/* Appends the complete characters of p[0, n); an incomplete one at the end is held. */
static int put(struct gr_vocab_detok *d, const char *p, size_t n, struct gr_vec *out)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int k = gr_utf8_next(p + i, n - i, &cp);
        if (!k)
            break;
        int rc = k > 0 ? gr_vec_append(out, p + i, (size_t)k, 1)
                       : gr_vec_append(out, GR_UTF8_REPLACEMENT, 3, 1);
        if (rc)
            return rc;
        i += (size_t)(k > 0 ? k : -k);
    }
    d->n_held = (uint8_t)(n - i);
    if (n > i)
        memcpy(d->held, p + i, n - i);
    return 0;
}

int gr_vocab_detok_push(struct gr_vocab_detok *d, int32_t id, struct gr_vec *out)
{
    const char *p;
    size_t n, had = out->n;
    struct gr_vec all = {0};
    int rc = gr_vocab_piece(d->v, id, d->special, &p, &n);
    if (rc || !n)
        return rc;
    size_t skip = d->strip_space && p[0] == ' ';
    if (d->n_held) {
        rc = gr_vec_append(&all, d->held, d->n_held, 1);
        if (!rc)
            rc = gr_vec_append(&all, p, n, 1);
        if (!rc)
            rc = put(d, all.data, all.n, out);
    } else {
        rc = put(d, p + skip, n - skip, out);
    }
    gr_vec_fini(&all);
    if (rc)
        out->n = had;
    else
        d->strip_space = false;
    return rc;
}

int gr_vocab_detok_flush(struct gr_vocab_detok *d, struct gr_vec *out)
{
    int rc = d->n_held ? gr_vec_append(out, GR_UTF8_REPLACEMENT, 3, 1) : 0;
    if (!rc)
        d->n_held = 0;
    return rc;
}
