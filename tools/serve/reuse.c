/* Parts of prompts that stand elsewhere in the cache: they are moved to the text when it has come
 * so far, if they are still there. */
#include <stdlib.h>
#include <string.h>

#include "chunks.h"
#include "scheduler_impl.h"

void gr_scheduler_plan_reuse(struct gr_scheduler *s, struct gr_text *t)
{
    int32_t least = s->prefixes.spare < 0 || t->conversation ? 0 : t->request.reuse;
    free(t->chunk);
    t->chunk = NULL;
    t->n_chunk = t->next_chunk = 0;
    if (least > 0)
        t->n_chunk = gr_chunks_find(&s->prefixes, t->key.id, t->token, gr_scheduler_n_done(s, t),
                                    gr_text_may_share(t), least, &t->chunk);
}

/* Returns whether a chunk of a text is still where it was found. */
static bool is_there(const struct gr_scheduler *s, const struct gr_text *t,
                     const struct gr_chunk *c)
{
    const struct gr_prefix *q = &s->prefixes.seq[c->seq];
    return q->owner == t->key.id && c->from + c->n <= q->usable &&
           !memcmp(q->token + c->from, t->token + c->at, (size_t)c->n * sizeof *t->token);
}

void gr_scheduler_reuse(struct gr_scheduler *s, struct gr_text *t)
{
    while (t->next_chunk < t->n_chunk && t->chunk[t->next_chunk].at <= gr_scheduler_n_done(s, t)) {
        const struct gr_chunk *c = &t->chunk[t->next_chunk++];
        if (c->at < gr_scheduler_n_done(s, t) || !is_there(s, t, c) ||
            gr_prefixes_move(&s->prefixes, c->seq, c->from, c->n, t->seq))
            continue;
        t->n_past += c->n;
        t->n_cached += t->again ? 0 : c->n;
        pthread_mutex_lock(&s->lock);
        s->stats.n_moved += c->n;
        pthread_mutex_unlock(&s->lock);
    }
}

void gr_scheduler_stop_at_reuse(const struct gr_scheduler *s, const struct gr_text *t,
                                int32_t *most)
{
    int32_t left =
        t->next_chunk < t->n_chunk ? t->chunk[t->next_chunk].at - gr_scheduler_n_done(s, t) : *most;
    *most = left < *most ? left : *most;
}
