/* Sequence breakers of DRY: from a text to the tokens that make it. */
#include "sample/breakers.h"

#include <string.h>

#include "base/checked.h"
#include "gpurun.h"
#include "gr/status.h"

enum { MAX_TAIL = 20 };

/* The rest of a text behind its first i bytes, as tokens; made when it is needed. */
struct rest {
    struct gr_vec token; /* int32_t, the first one is the head's place */
    bool made;
};

static int make_rest(struct rest *r, const struct gr_vocab *v, const char *text, size_t n)
{
    int32_t head = 0;
    struct gr_vec ids = {0};
    r->made = true;
    int rc = gr_tokenize(v, text, n, false, false, &ids);
    if (!rc)
        rc = gr_vec_append(&r->token, &head, 1, sizeof head);
    if (!rc)
        rc = gr_vec_append(&r->token, ids.data, GR_MIN(ids.n, MAX_TAIL), sizeof head);
    gr_vec_fini(&ids);
    return rc;
}

static int add_overlap(struct gr_breakers *b, struct rest *rest, const struct gr_vocab *v,
                       const char *text, size_t n, int32_t id)
{
    int rc = rest->made ? 0 : make_rest(rest, v, text, n);
    if (rc)
        return rc;
    int32_t *token = rest->token.data;
    token[0] = id;
    return rest->token.n > 1 ? gr_breakers_add(b, token, (int32_t)rest->token.n) : 0;
}

static bool contains(const char *p, size_t n, const char *text, size_t n_text)
{
    for (size_t i = 0; i + n_text <= n; i++) {
        if (!memcmp(p + i, text, n_text))
            return true;
    }
    return false;
}

/* Adds what token `id` with the bytes p[0, n) makes of the text. */
static int add_token(struct gr_breakers *b, struct rest *rest, const struct gr_vocab *v,
                     const char *text, int32_t id, const char *p, size_t n)
{
    size_t n_text = strlen(text);
    int rc = 0;
    if (contains(p, n, text, n_text))
        return gr_breakers_add(b, &id, 1);
    for (size_t m = 1; m < n_text && m <= n && !rc; m++) {
        if (!memcmp(p + n - m, text, m))
            rc = add_overlap(b, &rest[m], v, text + m, n_text - m, id);
    }
    return rc;
}

int gr_breakers_add_text(struct gr_breakers *b, const struct gr_vocab *v, const char *text)
{
    struct rest rest[GR_MAX_DRY_BREAKER_BYTES] = {0};
    int rc = 0;
    for (int32_t id = 0; id < gr_vocab_size(v) && !rc; id++) {
        const char *p;
        size_t n;
        rc = gr_vocab_piece(v, id, true, &p, &n);
        if (!rc)
            rc = add_token(b, rest, v, text, id, p, n);
    }
    for (size_t i = 0; i < GR_COUNT(rest); i++)
        gr_vec_fini(&rest[i].token);
    return rc;
}
