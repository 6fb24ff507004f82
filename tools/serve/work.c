/* State of the scheduler: its requests, and whose cells there are. Numbers alone, no text. */
#include <stdlib.h>

#include "server.h"

static json_t *slot(const struct gr_server *s, const struct gr_request_view *v)
{
    static const char *const state[] = {[GR_REQUEST_WAITING] = "waiting",
                                        [GR_REQUEST_PROMPT] = "prompt",
                                        [GR_REQUEST_ANSWER] = "answer"};
    return json_pack("{s:I, s:i, s:b, s:s, s:i, s:i, s:i, s:i}", "id_task", (json_int_t)v->id,
                     "n_ctx", s->n_ctx, "is_processing", v->state != GR_REQUEST_WAITING, "state",
                     state[v->state], "n_prompt_tokens", v->n_prompt, "n_prompt_tokens_processed",
                     v->n_done, "n_prompt_tokens_cache", v->n_cached, "n_decoded", v->n_generated);
}

void gr_serve_slots(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    int32_t n = s->scheduler ? gr_scheduler_list(s->scheduler, NULL, 0) + 16 : 0, found;
    struct gr_request_view *view = n ? malloc((size_t)n * sizeof *view) : NULL;
    json_t *all = json_array();
    found = view ? gr_scheduler_list(s->scheduler, view, n) : 0;
    for (int32_t i = 0; i < found && i < n; i++)
        json_array_append_new(all, slot(s, view + i));
    free(view);
    gr_answer_json(x, 200, all);
}

#define MOST_SEQUENCES 256

void gr_serve_cache(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    struct gr_sequence_view view[MOST_SEQUENCES];
    struct gr_scheduler_stats stats = {0};
    int32_t n = s->scheduler ? gr_scheduler_look(s->scheduler, view, MOST_SEQUENCES) : 0;
    json_t *sequences = json_array();
    if (s->scheduler)
        stats = gr_scheduler_stats(s->scheduler);
    for (int32_t i = 0; i < n && i < MOST_SEQUENCES; i++) {
        const struct gr_sequence_view *v = view + i;
        if (!v->cells.n_cell && !v->busy)
            continue;
        json_array_append_new(sequences, json_pack("{s:i, s:s, s:I, s:I, s:I}", "id", i, "state",
                                                   v->busy ? "busy" : "idle", "n_tokens",
                                                   (json_int_t)v->cells.n_cell, "n_shared",
                                                   (json_int_t)v->cells.n_shared, "n_shift",
                                                   (json_int_t)v->cells.n_shift));
    }
    json_t *step = json_pack("{s:i, s:i, s:f}", "n_prompt", stats.last.n_prompt, "n_generate",
                             stats.last.n_answer, "ms", (double)stats.last.ns / 1e6);
    gr_answer_json(x, 200,
                   json_pack("{s:I, s:I, s:i, s:i, s:o, s:o}", "n_cells", (json_int_t)stats.n_cell,
                             "n_used", (json_int_t)stats.n_used, "n_active", stats.n_active,
                             "n_waiting", stats.n_waiting, "step", step, "sequences", sequences));
}
