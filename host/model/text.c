/* The text part of gpurun.h, over host/text. */
#include <string.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "model/model.h"

int gr_text_tokenize(const struct gr_model *model, const char *text, size_t n, bool add_special,
                     bool parse_special, int32_t **ids, size_t *n_ids)
{
    struct gr_vec v = {0};
    int rc = gr_tokenize(model->vocab, text, n, add_special, parse_special, &v);
    if (!rc && !v.data && !(v.data = gr_calloc(1, sizeof **ids)))
        rc = GR_E_NOMEM_HOST;
    if (rc)
        gr_vec_fini(&v);
    *ids = v.data, *n_ids = v.n;
    return rc;
}

void gr_free_ids(int32_t *ids)
{
    gr_free(ids);
}

int gr_text_piece(const struct gr_model *model, int32_t id, bool special, const char **p, size_t *n)
{
    return gr_vocab_piece(model->vocab, id, special, p, n);
}

bool gr_text_is_eog(const struct gr_model *model, int32_t id)
{
    return gr_vocab_is_eog(model->vocab, id);
}

int32_t gr_text_bos(const struct gr_model *model)
{
    return gr_vocab_bos(model->vocab);
}

int32_t gr_text_eos(const struct gr_model *model)
{
    return gr_vocab_eos(model->vocab);
}

struct gr_detok {
    struct gr_vocab_detok detok;
    struct gr_vec out; /* char */
};

int gr_detok_new(struct gr_detok **out, const struct gr_model *model, bool special)
{
    *out = gr_calloc(1, sizeof **out);
    if (!*out)
        return GR_E_NOMEM_HOST;
    gr_vocab_detok_init(&(*out)->detok, model->vocab, special, false);
    return 0;
}

static int result(struct gr_detok *s, int rc, const char **p, size_t *n)
{
    *p = rc || !s->out.n ? "" : s->out.data;
    *n = rc ? 0 : s->out.n;
    return rc;
}

int gr_detok_push(struct gr_detok *s, int32_t id, const char **p, size_t *n)
{
    s->out.n = 0;
    return result(s, gr_vocab_detok_push(&s->detok, id, &s->out), p, n);
}

int gr_detok_flush(struct gr_detok *s, const char **p, size_t *n)
{
    s->out.n = 0;
    return result(s, gr_vocab_detok_flush(&s->detok, &s->out), p, n);
}

void gr_detok_free(struct gr_detok **s)
{
    if (!s || !*s)
        return;
    gr_vec_fini(&(*s)->out);
    gr_free(*s);
    *s = NULL;
}
