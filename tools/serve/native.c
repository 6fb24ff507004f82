/* POST /completion and /infill: texts that continue prompts, in llama.cpp's form. */
#include <string.h>

#include "generation.h"
#include "gpurun.h"
#include "lists.h"
#include "prompts.h"

static const char *stop_type(const struct gr_choice *c)
{
    switch (c->result.end) {
    case GR_FINISH_TOKEN:
        return "eos";
    case GR_FINISH_STRING:
        return "word";
    case GR_FINISH_LENGTH:
        return "limit";
    default:
        return "none";
    }
}

static void write_settings(struct gr_writer *w, const struct gr_ask *a)
{
    const struct gr_sampler_params *p = &a->sampler.p;
    gr_writef(w,
              "{\"seed\":%llu,\"temperature\":%.7g,\"top_k\":%d,\"top_p\":%.7g,\"min_p\":%.7g,"
              "\"typical_p\":%.7g,\"repeat_last_n\":%d,\"repeat_penalty\":%.7g,"
              "\"presence_penalty\":%.7g,\"frequency_penalty\":%.7g,\"mirostat\":%d,"
              "\"n_predict\":%d,\"n_probs\":%d,\"stream\":%s}",
              (unsigned long long)a->seed, (double)p->temp, p->top_k, (double)p->top_p,
              (double)p->min_p, (double)p->typical_p, p->penalty_last_n, (double)p->penalty_repeat,
              (double)p->penalty_present, (double)p->penalty_freq, p->mirostat, a->n_predict,
              a->n_top < 0 ? 0 : a->n_top, a->stream ? "true" : "false");
}

/* Writes the fields of an answer that has ended. */
static void write_end(struct gr_writer *w, const struct gr_choice *c)
{
    const struct gr_generation *g = c->g;
    const struct gr_result *r = &c->result;
    const char *word = r->end == GR_FINISH_STRING ? g->ask.stop[r->stop] : "";
    gr_writef(w, ",\"model\":");
    gr_write_string(w, g->model, strlen(g->model));
    gr_writef(w, ",\"generation_settings\":");
    write_settings(w, &g->ask);
    gr_writef(w, ",\"truncated\":%s,\"stop_type\":\"%s\",\"stopping_word\":",
              r->n_shifted ? "true" : "false", stop_type(c));
    gr_write_string(w, word, strlen(word));
    gr_writef(w, ",\"tokens_cached\":%d,\"timings\":", r->n_cached);
    gr_write_timings(w, g);
}

static void write_choice(struct gr_choice *c)
{
    struct gr_generation *g = c->g;
    struct gr_writer *w = &g->out;
    gr_writef(w, "{\"index\":%d,\"content\":", c->index);
    gr_write_string(w, c->text.p, c->text.n);
    gr_writef(w, ",\"tokens\":[");
    gr_write_all(w, &c->list[GR_LIST_IDS]);
    gr_write(w, "]", 1);
    if (c->list[GR_LIST_TOKENS].n) {
        gr_writef(w, ",\"completion_probabilities\":[");
        gr_write_all(w, &c->list[GR_LIST_TOKENS]);
        gr_write(w, "]", 1);
    }
    gr_writef(w, ",\"id_slot\":%d,\"stop\":%s", g->ask.slot - 1, c->ended ? "true" : "false");
    if (c->ended)
        gr_writef(w, ",\"tokens_predicted\":%d,\"tokens_evaluated\":%d", c->result.n_generated,
                  c->result.n_prompt);
    if (c->ended)
        write_end(w, c);
    gr_write(w, "}", 1);
    c->text.n = c->list[GR_LIST_IDS].n = c->list[GR_LIST_TOKENS].n = 0;
}

static void on_piece(struct gr_choice *c, const struct gr_piece *piece)
{
    const struct gr_generation *g = c->g;
    bool listed = piece->id >= 0 && !gr_text_is_eog(g->server->model, piece->id);
    gr_write(&c->text, piece->text, piece->n);
    if (listed && (g->ask.stream || json_is_true(json_object_get(g->request, "return_tokens"))))
        gr_list_id(c, piece);
    if (listed && g->ask.n_top >= 0)
        gr_list_object(c, piece);
}

static void on_emit(struct gr_choice *c)
{
    struct gr_generation *g = c->g;
    if (!c->text.n && !c->list[GR_LIST_IDS].n && !c->ended)
        return;
    gr_writef(&g->out, "data: ");
    write_choice(c);
    gr_writef(&g->out, "\n\n");
}

static void on_finish(struct gr_generation *g)
{
    if (g->ask.stream)
        return;
    gr_writef(&g->out, g->n_choice > 1 ? "[" : "");
    for (int32_t i = 0; i < g->n_choice; i++) {
        gr_write(&g->out, ",", i > 0);
        write_choice(&g->choice[i]);
    }
    gr_writef(&g->out, g->n_choice > 1 ? "]" : "");
}

static const struct gr_form form = {.object = "completion",
                                    .prefix = "",
                                    .type = "text/event-stream",
                                    .ping = ":\n\n",
                                    .piece = on_piece,
                                    .emit = on_emit,
                                    .finish = on_finish,
                                    .fail = gr_write_failure};

/* ---- requests ---- */

static struct gr_generation *begin(struct gr_exchange *x, struct gr_server *server,
                                   struct gr_fields *f)
{
    json_t *request = gr_read_object(x);
    f->object = request;
    struct gr_generation *g = request ? gr_generation_new(x, server, &form, request, f) : NULL;
    int64_t n = g ? gr_field_int(f, "n_probs", 0, 0, GR_MAX_PROBS) : 0;
    if (n)
        g->ask.n_top = (int32_t)n;
    if (g)
        (void)gr_field_bool(f, "return_tokens", false);
    return g;
}

void gr_serve_completion(struct gr_exchange *x, void *user)
{
    struct gr_fields f = {0};
    struct gr_generation *g = begin(x, user, &f);
    if (!g || !(g = gr_generation_follow(g)))
        return;
    gr_prompts_read(g, &f);
    gr_generation_start(g, &f);
}

void gr_serve_infill(struct gr_exchange *x, void *user)
{
    struct gr_server *server = user;
    struct gr_fields f = {0};
    if (!gr_prompts_can_infill(server->model)) {
        gr_refuse(x, 501, NULL, "the model has no tokens for filling in a gap");
        return;
    }
    struct gr_generation *g = begin(x, server, &f);
    if (!g)
        return;
    gr_prompts_infill(g, &f, "input_prefix", "input_suffix");
    gr_generation_start(g, &f);
}
