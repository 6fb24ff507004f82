/* POST /api/chat and /api/generate: answers in Ollama's form, one JSON object on a line. */
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "ollama.h"
#include "prompts.h"
#include "talk.h"

/* ---- answers ---- */

static void write_head(struct gr_writer *w, const struct gr_generation *g)
{
    char stamp[GR_OLLAMA_STAMP];
    gr_writef(w, "{\"model\":");
    gr_write_string(w, g->model, strlen(g->model));
    gr_writef(w, ",\"created_at\":\"%s\"", gr_ollama_now(stamp));
}

static void write_end(struct gr_writer *w, const struct gr_choice *c)
{
    const struct gr_result *r = &c->result;
    gr_writef(w,
              ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%lld,\"load_duration\":0,"
              "\"prompt_eval_count\":%d,\"prompt_eval_duration\":%lld,\"eval_count\":%d,"
              "\"eval_duration\":%lld}\n",
              gr_finish_name(c), (long long)(r->queue_ns + r->prompt_ns + r->generate_ns),
              r->n_prompt, (long long)r->prompt_ns, r->n_generated, (long long)r->generate_ns);
}

/* Writes the fields of a message, or those of a prompt's text. */
static void write_parts(struct gr_writer *w, struct gr_choice *c, bool chat)
{
    gr_writef(w, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    gr_write_string(w, c->text.p, c->text.n);
    if (c->reasoning.n) {
        gr_writef(w, ",\"thinking\":");
        gr_write_string(w, c->reasoning.p, c->reasoning.n);
    }
    if (c->calls.n) {
        gr_writef(w, ",\"tool_calls\":[");
        gr_write_all(w, &c->calls);
        gr_write(w, "]", 1);
    }
    if (chat)
        gr_write(w, "}", 1);
    c->text.n = c->reasoning.n = c->calls.n = 0;
}

/* A gr_call_fn. */
static void add_call(struct gr_choice *c, const char *name, const char *id, const char *arguments,
                     size_t n)
{
    struct gr_writer *w = &c->calls;
    gr_writef(w, w->n ? ",{\"id\":" : "{\"id\":");
    gr_write_string(w, id, strlen(id));
    gr_writef(w, ",\"function\":{\"name\":");
    gr_write_string(w, name, strlen(name));
    gr_writef(w, ",\"arguments\":");
    for (size_t i = 0; i < n; i++) /* an answer is one line, and no text in JSON has a line end */
        gr_write(w, arguments[i] == '\n' || arguments[i] == '\r' ? " " : arguments + i, 1);
    gr_writef(w, "}}");
}

static bool is_chat(const struct gr_generation *g)
{
    return json_object_get(g->request, "messages") != NULL;
}

static void on_emit(struct gr_choice *c)
{
    struct gr_writer *w = &c->g->out;
    if (c->text.n || c->reasoning.n || c->calls.n) {
        write_head(w, c->g);
        write_parts(w, c, is_chat(c->g));
        gr_writef(w, ",\"done\":false}\n");
    }
    if (c->ended) {
        write_head(w, c->g);
        write_parts(w, c, is_chat(c->g));
        write_end(w, c);
    }
}

static void on_finish(struct gr_generation *g)
{
    if (g->ask.stream)
        return;
    write_head(&g->out, g);
    write_parts(&g->out, &g->choice[0], is_chat(g));
    write_end(&g->out, &g->choice[0]);
}

static void on_fail(struct gr_generation *g, const char *message)
{
    gr_writef(&g->out, "{\"error\":");
    gr_write_string(&g->out, message, strlen(message));
    gr_writef(&g->out, "}\n");
}

static const struct gr_form form = {.object = "ollama",
                                    .prefix = "",
                                    .type = "application/x-ndjson",
                                    .prepare = gr_talk_prepare,
                                    .piece = gr_talk_piece,
                                    .end = gr_talk_end,
                                    .emit = on_emit,
                                    .finish = on_finish,
                                    .fail = on_fail,
                                    .free_own = gr_talk_free};

/* ---- requests ---- */

/* Sets a field unless the request has it. */
static void set(json_t *request, const char *name, json_t *value)
{
    if (json_object_get(request, name))
        json_decref(value);
    else
        (void)json_object_set_new(request, name, value);
}

/* Writes the request with the names of the other APIs. */
static void rename_fields(json_t *request)
{
    json_t *options = json_object_get(request, "options");
    const json_t *format = json_object_get(request, "format");
    const json_t *think = json_object_get(request, "think");
    if (json_is_object(options))
        (void)json_object_update_missing(request, options);
    set(request, "n_predict", json_incref(json_object_get(options, "num_predict")));
    set(request, "stream", json_true());
    if (json_is_object(format))
        set(request, "json_schema", json_deep_copy(format));
    else if (json_string_length(format))
        set(request, "response_format", json_pack("{s:s}", "type", "json_object"));
    if (json_is_boolean(think))
        set(request, "chat_template_kwargs",
            json_pack("{s:b}", "enable_thinking", json_is_true(think)));
    (void)json_object_del(request, "n");
}

static struct gr_generation *begin(struct gr_exchange *x, struct gr_server *server,
                                   struct gr_fields *f, bool chat)
{
    json_t *request = gr_read_object(x);
    if (request && server->scheduler && gr_ollama_asks_nothing(request, chat)) {
        gr_answer_json(x, 200, gr_ollama_nothing(server->name, request, chat));
        json_decref(request);
        return NULL;
    }
    f->object = request;
    if (request)
        rename_fields(request);
    struct gr_generation *g = request ? gr_generation_new(x, server, &form, request, f) : NULL;
    if (g)
        (void)gr_talk_new(g, f, add_call);
    return g;
}

void gr_serve_ollama_chat(struct gr_exchange *x, void *user)
{
    struct gr_fields f = {0};
    struct gr_generation *g = begin(x, user, &f, true);
    if (!g)
        return;
    struct gr_talk *t = g->own;
    if (t) {
        struct gr_messages *c = &t->messages;
        gr_messages_add_all(c, &f, "messages");
        gr_messages_set_tools(c, &f, "tools");
        const json_t *last = json_array_get(c->list, json_array_size(c->list) - 1);
        const char *role = json_string_value(json_object_get(last, "role"));
        c->goes_on = role && !strcmp(role, "assistant") &&
                     json_string_length(json_object_get(last, "content"));
    }
    gr_talk_start(g, &f);
}

static void add_message(struct gr_messages *c, struct gr_fields *f, const char *role,
                        const char *name)
{
    json_t *m = gr_field_text(f, name)
                    ? json_pack("{s:s, s:O}", "role", role, "content", gr_field(f, name))
                    : NULL;
    if (m)
        gr_messages_add(c, f, m, name);
    json_decref(m);
}

void gr_serve_ollama_generate(struct gr_exchange *x, void *user)
{
    const struct gr_server *server = user;
    struct gr_fields f = {0};
    struct gr_generation *g = begin(x, user, &f, false);
    struct gr_talk *t = g ? g->own : NULL;
    if (!g)
        return;
    const char *suffix = gr_field_text(&f, "suffix");
    bool raw = gr_field_bool(&f, "raw", !server->chat);
    if (t && (raw || (suffix && *suffix))) {
        t->reasoning = GR_REASONING_INLINE;
        if (suffix && *suffix)
            gr_prompts_infill(g, &f, "prompt", "suffix");
        else
            gr_prompts_read(g, &f);
        gr_generation_start(g, &f);
        return;
    }
    if (t) {
        add_message(&t->messages, &f, "system", "system");
        add_message(&t->messages, &f, "user", "prompt");
    }
    gr_talk_start(g, &f);
}
