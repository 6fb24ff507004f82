/* POST /completions: texts that continue prompts, in OpenAI's form. */
#include <string.h>

#include "generation.h"
#include "gpurun.h"
#include "lists.h"
#include "prompts.h"

/* ---- answers ---- */

static bool echoes(const struct gr_generation *g)
{
    return json_is_true(json_object_get(g->request, "echo"));
}

/* Returns the field that a prompt is. */
static const json_t *given(const struct gr_choice *c)
{
    const json_t *all = json_object_get(c->g->request, "prompt");
    bool one = !json_is_array(all) || json_is_integer(json_array_get(all, 0));
    return one ? all : json_array_get(all, (size_t)c->prompt);
}

/* Adds the text of a prompt, and its first token, which has no probability; the others come as
 * pieces. Offsets are those in the text, which may lack what begins the tokens, a BOS or a blank.
 */
static void add_prompt(struct gr_choice *c)
{
    const struct gr_generation *g = c->g;
    const json_t *text = given(c);
    int64_t n_chars = 0;
    for (size_t i = 0; i < g->n_ids[c->prompt]; i++) {
        const char *p = "";
        size_t n = 0;
        (void)gr_text_piece(g->server->model, g->prompt[c->prompt][i], true, &p, &n);
        n_chars += gr_count_chars(p, n);
        if (!json_is_string(text))
            gr_write(&c->text, p, n);
    }
    if (json_is_string(text))
        gr_write(&c->text, json_string_value(text), json_string_length(text));
    c->n_chars = gr_count_chars(c->text.p, c->text.n) - n_chars;
    if (g->ask.n_top >= 0)
        gr_list_legacy(c, &(struct gr_piece){.id = g->prompt[c->prompt][0]}, false);
}

static void write_choice(struct gr_choice *c)
{
    struct gr_generation *g = c->g;
    struct gr_writer *w = &g->out;
    gr_writef(w, "{\"index\":%d,\"text\":", c->index);
    gr_write_string(w, c->text.p, c->text.n);
    gr_writef(w, ",\"logprobs\":");
    if (g->ask.n_top >= 0)
        gr_write_legacy(w, c);
    else
        gr_writef(w, "null");
    if (c->ended)
        gr_writef(w, ",\"finish_reason\":\"%s\"}", gr_finish_name(c));
    else
        gr_writef(w, ",\"finish_reason\":null}");
    c->text.n = 0;
}

static void on_begin(struct gr_generation *g)
{
    for (int32_t i = 0; echoes(g) && i < g->n_choice; i++)
        add_prompt(&g->choice[i]);
}

static void on_prompt(struct gr_choice *c, const struct gr_piece *piece)
{
    gr_list_legacy(c, piece, true);
}

static void on_piece(struct gr_choice *c, const struct gr_piece *piece)
{
    gr_write(&c->text, piece->text, piece->n);
    if (c->g->ask.n_top >= 0 &&
        piece->id >= 0) /* also the one that ends the text: lm-eval counts it */
        gr_list_legacy(c, piece, true);
}

static void on_emit(struct gr_choice *c)
{
    struct gr_generation *g = c->g;
    if (!c->text.n && !c->list[GR_LIST_TOKENS].n && !c->ended)
        return;
    gr_writef(&g->out, "data: {");
    gr_write_head(&g->out, g);
    gr_writef(&g->out, "\"choices\":[");
    write_choice(c);
    gr_writef(&g->out, g->ask.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void finish_stream(struct gr_generation *g)
{
    if (g->ask.include_usage) {
        gr_writef(&g->out, "data: {");
        gr_write_head(&g->out, g);
        gr_writef(&g->out, "\"choices\":[],\"usage\":");
        gr_write_usage(&g->out, g);
        gr_writef(&g->out, ",\"timings\":");
        gr_write_timings(&g->out, g);
        gr_writef(&g->out, "}\n\n");
    }
    gr_writef(&g->out, "data: [DONE]\n\n");
}

static void on_finish(struct gr_generation *g)
{
    struct gr_writer *w = &g->out;
    if (g->ask.stream) {
        finish_stream(g);
        return;
    }
    gr_write(w, "{", 1);
    gr_write_head(w, g);
    gr_writef(w, "\"choices\":[");
    for (int32_t i = 0; i < g->n_choice; i++) {
        gr_write(w, ",", i > 0);
        write_choice(&g->choice[i]);
    }
    gr_writef(w, "],\"usage\":");
    gr_write_usage(w, g);
    gr_writef(w, ",\"timings\":");
    gr_write_timings(w, g);
    gr_write(w, "}", 1);
}

static const struct gr_form form = {.object = "text_completion",
                                    .prefix = "cmpl-",
                                    .type = "text/event-stream",
                                    .ping = ":\n\n",
                                    .begin = on_begin,
                                    .prompt = on_prompt,
                                    .piece = on_piece,
                                    .emit = on_emit,
                                    .finish = on_finish,
                                    .fail = gr_write_failure};

/* ---- requests ---- */

/* Reads logprobs: the number of likely tokens, or true for 1. */
static void read_probs(struct gr_ask *a, struct gr_fields *f)
{
    const json_t *v = gr_field(f, "logprobs");
    if (json_is_boolean(v))
        a->n_top = json_is_true(v) ? 1 : -1;
    else if (v)
        a->n_top = (int32_t)gr_field_int(f, "logprobs", -1, 0, GR_MAX_PROBS);
}

void gr_serve_completions(struct gr_exchange *x, void *user)
{
    json_t *request = gr_read_object(x);
    struct gr_fields f = {.object = request};
    struct gr_generation *g = request ? gr_generation_new(x, user, &form, request, &f) : NULL;
    if (!g || !(g = gr_generation_follow(g)))
        return;
    const char *suffix = gr_field_text(&f, "suffix");
    bool echo = gr_field_bool(&f, "echo", false);
    read_probs(&g->ask, &f);
    g->prompt_probs = echo && g->ask.n_top >= 0;
    if (suffix && *suffix)
        gr_prompts_infill(g, &f, "prompt", "suffix");
    else
        gr_prompts_read(g, &f);
    gr_generation_start(g, &f);
}
