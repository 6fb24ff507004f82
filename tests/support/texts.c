#include "support/texts.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "support/tiny.h"

void texts_new_ids(struct texts *t, struct gr_rng *r, int first)
{
    for (int s = first; s < TEXTS; s++)
        for (int i = 0; i < TEXT_LENGTH; i++)
            t->id[s][i] = (int32_t)gr_rng_below(r, TEXTS_VOCAB);
}

bool texts_draw(const struct texts *t, struct gr_rng *r, int *k)
{
    static const uint32_t most[] = {1, 2, 4, TEXT_LENGTH};
    const uint32_t up_to = most[gr_rng_below(r, 4)];
    bool any = false;
    for (int q = 0; q < TEXTS; q++) {
        k[q] = (int)gr_rng_below(r, up_to + 1);
        k[q] = GR_MIN(k[q], TEXT_LENGTH - t->n[q]);
        any |= t->n[q] < TEXT_LENGTH;
    }
    return any;
}

void texts_step(struct gr_session *s, struct texts *t, const int *k)
{
    int32_t id[TEXTS_TOKENS], pos[TEXTS_TOKENS], seq[TEXTS_TOKENS];
    int8_t all[TEXTS_TOKENS];
    int n = 0, at = 0;
    for (int q = 0; q < TEXTS; q++)
        for (int i = 0; i < k[q]; i++, n++)
            id[n] = t->id[q][t->n[q] + i], pos[n] = t->n[q] + i, seq[n] = q, all[n] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = pos, .seq = seq, .logits = all};
    cr_assert_eq(n ? gr_decode(s, &b) : 0, 0, "%s", gr_error());
    for (int q = 0; q < TEXTS; t->n[q] += k[q], q++)
        for (int i = 0; i < k[q]; i++)
            memcpy(t->row[q][t->n[q] + i], tiny_row(s, at++), sizeof t->row[q][0]);
}

void texts_alone(struct gr_model *m, struct gr_session_params p, struct texts *t)
{
    p.n_threads = p.n_threads_batch = 1;
    struct gr_session *s = tiny_session(m, &p);
    memset(t->n, 0, sizeof t->n);
    for (int q = 0; q < TEXTS; q++) {
        int k[TEXTS] = {0};
        k[q] = TEXT_LENGTH;
        gr_kv_clear(s);
        texts_step(s, t, k);
    }
    gr_session_close(&s);
}

void texts_beside(struct gr_model *m, const struct gr_session_params *p, struct gr_rng *r,
                  const struct texts *of, struct texts *t)
{
    int k[TEXTS];
    struct gr_session *s = tiny_session(m, p);
    memcpy(t->id, of->id, sizeof t->id);
    memset(t->n, 0, sizeof t->n);
    while (texts_draw(t, r, k))
        texts_step(s, t, k);
    gr_session_close(&s);
}

void texts_compare(const struct texts *a, const struct texts *b, int n, const char *what)
{
    for (int q = 0; q < n; q++)
        for (int i = 0; i < TEXT_LENGTH; i++)
            cr_assert_eq(memcmp(a->row[q][i], b->row[q][i], sizeof a->row[q][i]), 0,
                         "%s: text %d, token %d differs", what, q, i);
}
