/* The text of tokens: the detokenizer, then the stop strings. */
#include <string.h>

#include "base/alloc.h"
#include "gpurun.h"

struct gr_text_stream {
    struct gr_detok *detok;
    struct gr_stop *stop; /* NULL: there are no strings */
    int32_t *control;     /* [n_stop] the control token that the string names, or -1 */
    int32_t n_stop;
    bool ended;        /* by a control token */
    struct gr_vec out; /* char: what flushing both gives */
};

/* Returns the token whose name the string is, of those that have no text of their own; -1: none. */
static int control_token(const struct gr_model *model, const char *text, size_t n, int32_t *token)
{
    int32_t *id = NULL;
    size_t n_id = 0, n_plain = 1;
    const char *p;
    int rc = gr_text_tokenize(model, text, n, false, true, &id, &n_id);
    *token = -1;
    if (!rc && n_id == 1)
        rc = gr_text_piece(model, id[0], false, &p, &n_plain);
    if (!rc && !n_plain)
        *token = id[0];
    gr_free_ids(id);
    return rc;
}

static int set_stops(struct gr_text_stream *t, const struct gr_model *model,
                     const char *const *stop, const size_t *lengths, int32_t n_stop)
{
    int rc = gr_stop_new(&t->stop, stop, lengths, n_stop); /* checks the strings */
    if (rc)
        return rc;
    t->control = gr_calloc((size_t)n_stop, sizeof *t->control);
    if (!t->control)
        return GR_E_NOMEM_HOST;
    for (; t->n_stop < n_stop && !rc; t->n_stop++) {
        const char *text = stop[t->n_stop];
        rc = control_token(model, text, lengths ? lengths[t->n_stop] : strlen(text),
                           &t->control[t->n_stop]);
    }
    return rc;
}

int gr_text_stream_new(struct gr_text_stream **out, const struct gr_model *model, bool special,
                       const char *const *stop, const size_t *lengths, int32_t n_stop)
{
    struct gr_text_stream *t = gr_calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return GR_E_NOMEM_HOST;
    int rc = gr_detok_new(&t->detok, model, special);
    if (!rc && n_stop)
        rc = set_stops(t, model, stop, lengths, n_stop);
    if (rc)
        gr_text_stream_free(&t);
    *out = t;
    return rc;
}

void gr_text_stream_free(struct gr_text_stream **t)
{
    if (!t || !*t)
        return;
    gr_detok_free(&(*t)->detok);
    gr_stop_free(&(*t)->stop);
    gr_free((*t)->control);
    gr_vec_fini(&(*t)->out);
    gr_free(*t);
    *t = NULL;
}

static int32_t named_by(const struct gr_text_stream *t, int32_t id)
{
    for (int32_t i = 0; i < t->n_stop; i++) {
        if (t->control[i] == id)
            return i;
    }
    return -1;
}

int gr_text_stream_push(struct gr_text_stream *t, int32_t id, const char **p, size_t *n,
                        int32_t *stop)
{
    *p = "", *n = 0, *stop = -1;
    if (t->ended)
        return 0;
    *stop = named_by(t, id);
    t->ended = *stop >= 0;
    if (t->ended)
        return 0;
    int rc = gr_detok_push(t->detok, id, p, n);
    if (!rc && t->stop)
        rc = gr_stop_push(t->stop, *p, *n, p, n, stop);
    return rc;
}

int gr_text_stream_flush(struct gr_text_stream *t, const char **p, size_t *n, int32_t *stop)
{
    *stop = -1, t->ended = false, t->out.n = 0;
    int rc = gr_detok_flush(t->detok, p, n);
    if (rc || !t->stop)
        return rc;
    rc = gr_stop_push(t->stop, *p, *n, p, n, stop);
    if (!rc)
        rc = gr_vec_append(&t->out, *p, *n, 1);
    gr_stop_flush(t->stop, p, n);
    if (!rc)
        rc = gr_vec_append(&t->out, *p, *n, 1);
    *p = !rc && t->out.n ? t->out.data : "", *n = rc ? 0 : t->out.n;
    return rc;
}
