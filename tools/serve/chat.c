/* POST /chat/completions: answers in conversations, in OpenAI's form. */
#include "server.h"

#include <string.h>

#include "gpurun.h"
#include "talk.h"

/* ---- answers ---- */

/* A gr_call_fn. */
static void add_call(struct gr_choice *c, const char *name, const char *id, const char *arguments,
                     size_t n)
{
    struct gr_writer *w = &c->calls;
    gr_writef(w, w->n ? ",{" : "{");
    if (c->g->ask.stream)
        gr_writef(w, "\"index\":%d,", gr_reading_calls(c));
    gr_writef(w, "\"id\":");
    gr_write_string(w, id, strlen(id));
    gr_writef(w, ",\"type\":\"function\",\"function\":{\"name\":");
    gr_write_string(w, name, strlen(name));
    gr_writef(w, ",\"arguments\":");
    gr_write_string(w, arguments, n);
    gr_writef(w, "}}");
}

static const char *finish_name(const struct gr_choice *c)
{
    bool calls = gr_reading_calls(c) && c->result.end != GR_FINISH_LENGTH;
    return calls ? "tool_calls" : gr_finish_name(c);
}

static void write_logprobs(struct gr_writer *w, struct gr_choice *c)
{
    struct gr_writer *list = &c->list[GR_LIST_TOKENS];
    if (c->g->ask.n_top < 0) {
        gr_writef(w, "null");
        return;
    }
    gr_writef(w, "{\"content\":[");
    gr_write_all(w, list);
    gr_writef(w, "],\"refusal\":null}");
    list->n = 0;
}

/* Begins an event with a delta. */
static struct gr_writer *begin_event(struct gr_choice *c)
{
    struct gr_writer *w = &c->g->out;
    gr_writef(w, "data: {");
    gr_write_head(w, c->g);
    gr_writef(w, "\"choices\":[{\"index\":%d,\"delta\":{", c->index);
    return w;
}

static void end_event(struct gr_choice *c, bool last)
{
    struct gr_generation *g = c->g;
    struct gr_writer *w = &g->out;
    gr_writef(w, "},\"logprobs\":");
    if (c->list[GR_LIST_TOKENS].n)
        write_logprobs(w, c);
    else
        gr_writef(w, "null");
    if (last)
        gr_writef(w, ",\"finish_reason\":\"%s\"}]", finish_name(c));
    else
        gr_writef(w, ",\"finish_reason\":null}]");
    if (last && g->n_choice == 1 && !g->ask.include_usage) {
        gr_writef(w, ",\"timings\":");
        gr_write_timings(w, g);
    }
    gr_writef(w, g->ask.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void on_begin(struct gr_generation *g)
{
    for (int32_t i = 0; g->ask.stream && i < g->n_choice; i++) {
        gr_writef(begin_event(&g->choice[i]), "\"role\":\"assistant\",\"content\":\"\"");
        end_event(&g->choice[i], false);
    }
}

static void write_delta(struct gr_choice *c, const char *name, struct gr_writer *text)
{
    if (!text->n)
        return;
    gr_writef(begin_event(c), "\"%s\":", name);
    gr_write_string(&c->g->out, text->p, text->n);
    end_event(c, false);
    text->n = 0;
}

static void on_emit(struct gr_choice *c)
{
    write_delta(c, "reasoning_content", &c->reasoning);
    write_delta(c, "content", &c->text);
    if (c->calls.n) {
        gr_writef(begin_event(c), "\"tool_calls\":[");
        gr_write_all(&c->g->out, &c->calls);
        gr_writef(&c->g->out, "]");
        end_event(c, false);
        c->calls.n = 0;
    }
    if (c->ended) {
        begin_event(c);
        end_event(c, true);
    }
}

static void write_message(struct gr_writer *w, struct gr_choice *c)
{
    gr_writef(w, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    if (c->text.n || !gr_reading_calls(c))
        gr_write_string(w, c->text.p, c->text.n);
    else
        gr_writef(w, "null");
    if (c->reasoning.n) {
        gr_writef(w, ",\"reasoning_content\":");
        gr_write_string(w, c->reasoning.p, c->reasoning.n);
    }
    if (c->calls.n) {
        gr_writef(w, ",\"tool_calls\":[");
        gr_write_all(w, &c->calls);
        gr_write(w, "]", 1);
    }
    gr_writef(w, "},\"logprobs\":");
    write_logprobs(w, c);
    gr_writef(w, ",\"finish_reason\":\"%s\"}", finish_name(c));
}

/* Writes "usage":..,"timings":.. */
static void write_figures(struct gr_writer *w, const struct gr_generation *g)
{
    gr_writef(w, "\"usage\":");
    gr_write_usage(w, g);
    gr_writef(w, ",\"timings\":");
    gr_write_timings(w, g);
}

static void on_finish(struct gr_generation *g)
{
    struct gr_writer *w = &g->out;
    if (g->ask.stream && g->ask.include_usage) {
        gr_writef(w, "data: {");
        gr_write_head(w, g);
        gr_writef(w, "\"choices\":[],");
        write_figures(w, g);
        gr_writef(w, "}\n\n");
    }
    if (g->ask.stream) {
        gr_writef(w, "data: [DONE]\n\n");
        return;
    }
    gr_write(w, "{", 1);
    gr_write_head(w, g);
    gr_writef(w, "\"choices\":[");
    for (int32_t i = 0; i < g->n_choice; i++) {
        gr_write(w, ",", i > 0);
        write_message(w, &g->choice[i]);
    }
    gr_writef(w, "],");
    write_figures(w, g);
    gr_write(w, "}", 1);
}

static const struct gr_form whole = {.object = "chat.completion",
                                     .prefix = "chatcmpl-",
                                     .prepare = gr_talk_prepare,
                                     .begin = on_begin,
                                     .piece = gr_talk_piece,
                                     .end = gr_talk_end,
                                     .finish = on_finish,
                                     .free_own = gr_talk_free};
static const struct gr_form stream = {.object = "chat.completion.chunk",
                                      .prefix = "chatcmpl-",
                                      .type = "text/event-stream",
                                      .ping = ":\n\n",
                                      .prepare = gr_talk_prepare,
                                      .begin = on_begin,
                                      .piece = gr_talk_piece,
                                      .end = gr_talk_end,
                                      .emit = on_emit,
                                      .finish = on_finish,
                                      .fail = gr_write_failure,
                                      .free_own = gr_talk_free};

/* ---- requests ---- */

/* Reads logprobs, and top_logprobs that needs it. */
static void read_probs(struct gr_ask *a, struct gr_fields *f)
{
    bool wanted = gr_field_bool(f, "logprobs", false);
    int64_t n = gr_field_int(f, "top_logprobs", 0, 0, GR_MAX_PROBS);
    if (n && !wanted)
        gr_field_wrong(f, "top_logprobs", "top_logprobs: logprobs true is expected beside it");
    a->n_top = wanted ? (int32_t)n : -1;
}

void gr_serve_chat(struct gr_exchange *x, void *user)
{
    json_t *request = gr_read_object(x);
    struct gr_fields f = {.object = request};
    struct gr_generation *g = request ? gr_generation_new(x, user, &whole, request, &f) : NULL;
    if (!g)
        return;
    g->form = g->ask.stream ? &stream : &whole;
    read_probs(&g->ask, &f);
    struct gr_talk *t = gr_talk_new(g, &f, add_call);
    if (t) {
        gr_messages_add_all(&t->messages, &f, "messages");
        gr_messages_set_tools(&t->messages, &f, "tools");
    }
    gr_talk_start(g, &f);
}
