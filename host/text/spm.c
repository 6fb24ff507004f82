/* SentencePiece BPE: neighbours are joined while their joint text is a token, highest score first.
 * A symbol's value is the trie node of its text, 0 when no token begins with it. */
#include "base/f16.h"
#include "text/text_impl.h"
#include "text/utf8.h"

/* Maps scores to integers so that larger scores have smaller ranks. */
static uint32_t rank_of(float score)
{
    uint32_t u = gr_f32_bits(score + 0.0f);
    return ~(u >> 31 ? ~u : u | 0x80000000u);
}

static bool pair(void *ctx, const struct gr_symbol *l, const struct gr_symbol *r, uint32_t *rank,
                 uint32_t *value)
{
    struct gr_job *j = ctx;
    const uint8_t *text = (const uint8_t *)j->text.data + r->start;
    uint32_t node = l->value, n = 0;
    if (j->n_step > j->max_step)
        return false;
    for (; n < r->len && node; n++)
        node = gr_trie_step(&j->v->trie, node, text[n]);
    j->n_step += n;
    *value = node;
    int32_t id = node ? j->v->trie.id[node] : -1;
    if (id < 0 || !gr_token_from_text(j->v, id))
        return false;
    *rank = rank_of(j->v->score[id]);
    return true;
}

int gr_spm_run(struct gr_job *j, const char *p, size_t n)
{
    struct gr_merge *m = &j->merge;
    j->text.n = 0;
    gr_merge_clear(m);
    int rc = j->v->add_space_prefix ? gr_vec_append(&j->text, GR_SPACE, GR_SPACE_BYTES, 1) : 0;
    if (!rc)
        rc = gr_job_escape(j, p, n);
    const char *text = j->text.data;
    for (size_t i = 0, len; i < j->text.n && !rc; i += len) {
        len = gr_utf8_step(text + i, j->text.n - i);
        rc = gr_merge_add(m, (uint32_t)i, (uint32_t)len,
                          gr_trie_walk(&j->v->trie, 0, text + i, len));
    }
    if (!rc)
        rc = gr_merge_run(m, pair, j);
    if (!rc)
        rc = gr_job_count(j, 0);
    const struct gr_symbol *s = m->symbols.data;
    for (uint32_t i = 0; i != GR_NO_SYMBOL && m->symbols.n && !rc; i = s[i].next) {
        int32_t id = s[i].value ? j->v->trie.id[s[i].value] : -1;
        rc = id >= 0 && gr_token_from_text(j->v, id)
                 ? gr_job_push(j, id)
                 : gr_job_push_bytes(j, text + s[i].start, s[i].len);
    }
    return rc;
}
