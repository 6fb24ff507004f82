/* POST /responses: answers in OpenAI's newer form, without what a server would have to keep. */
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "talk.h"

/* ---- parts of answers ---- */

/* The message comes first, then the calls. */
static void write_message(struct gr_writer *w, const struct gr_choice *c, const char *status,
                          bool filled)
{
    gr_writef(w,
              "{\"type\":\"message\",\"id\":\"msg_%s\",\"status\":\"%s\",\"role\":\"assistant\","
              "\"content\":[",
              c->g->id + 5, status);
    if (filled) {
        gr_writef(w, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
        gr_write_string(w, c->text.p, c->text.n);
        gr_write(w, "}", 1);
    }
    gr_writef(w, "]}");
}

static void write_usage(struct gr_writer *w, const struct gr_result *r)
{
    gr_writef(w,
              "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d},"
              "\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":0},"
              "\"total_tokens\":%d}",
              r->n_prompt, r->n_cached, r->n_generated, r->n_prompt + r->n_generated);
}

static void write_field(struct gr_writer *w, const struct gr_generation *g, const char *name,
                        const char *def)
{
    const json_t *v = json_object_get(g->request, name);
    gr_writef(w, ",\"%s\":", name);
    if (v)
        gr_write_json(w, v);
    else
        gr_writef(w, "%s", def);
}

/* Writes the object of the answer, complete once its text has ended. */
static void write_response(struct gr_writer *w, const struct gr_choice *c)
{
    const struct gr_generation *g = c->g;
    bool full = c->ended && c->result.end == GR_FINISH_LENGTH;
    gr_writef(w,
              "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\","
              "\"error\":null,\"incomplete_details\":%s,\"store\":false,"
              "\"previous_response_id\":null,\"model\":",
              g->id, (long long)g->created,
              full       ? "incomplete"
              : c->ended ? "completed"
                         : "in_progress",
              full ? "{\"reason\":\"max_output_tokens\"}" : "null");
    gr_write_string(w, g->model, strlen(g->model));
    write_field(w, g, "instructions", "null");
    write_field(w, g, "metadata", "{}");
    write_field(w, g, "parallel_tool_calls", "true");
    write_field(w, g, "tool_choice", "\"auto\"");
    write_field(w, g, "tools", "[]");
    write_field(w, g, "text", "{\"format\":{\"type\":\"text\"}}");
    gr_writef(w, ",\"output\":[");
    if (c->ended) {
        write_message(w, c, full ? "incomplete" : "completed", true);
        gr_write(w, ",", c->calls.n > 0);
        gr_write_all(w, &c->calls);
    }
    gr_writef(w, "],\"usage\":");
    if (c->ended)
        write_usage(w, &c->result);
    else
        gr_writef(w, "null");
    gr_write(w, "}", 1);
}

/* ---- events ---- */

/* Begins an event; its other fields follow, and end_event. */
static struct gr_writer *begin_event(struct gr_generation *g, const char *type)
{
    gr_writef(&g->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type,
              g->n_event++);
    return &g->out;
}

static void end_event(struct gr_generation *g)
{
    gr_writef(&g->out, "}\n\n");
}

static void put_response(struct gr_choice *c, const char *type)
{
    gr_writef(begin_event(c->g, type), ",\"response\":");
    write_response(&c->g->out, c);
    end_event(c->g);
}

static void put_item(struct gr_choice *c, const char *type, const char *status, bool filled)
{
    gr_writef(begin_event(c->g, type), ",\"output_index\":0,\"item\":");
    write_message(&c->g->out, c, status, filled);
    end_event(c->g);
}

/* An event about the text of the message. */
static void put_text(struct gr_choice *c, const char *type, const char *field, const char *p,
                     size_t n, const char *more)
{
    gr_writef(begin_event(c->g, type),
              ",\"item_id\":\"msg_%s\",\"output_index\":0,\"content_index\":0,%s", c->g->id + 5,
              field);
    gr_write_string(&c->g->out, p, n);
    gr_writef(&c->g->out, "%s", more);
    end_event(c->g);
}

#define PART "\"part\":{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":"

static void on_begin(struct gr_generation *g)
{
    struct gr_choice *c = &g->choice[0];
    if (!g->ask.stream)
        return;
    put_response(c, "response.created");
    put_response(c, "response.in_progress");
    put_item(c, "response.output_item.added", "in_progress", false);
    put_text(c, "response.content_part.added", PART, "", 0, "}");
}

/* A gr_call_fn. */
static void add_call(struct gr_choice *c, const char *name, const char *id, const char *arguments,
                     size_t n)
{
    struct gr_generation *g = c->g;
    struct gr_writer *w = &c->calls;
    int32_t index = gr_reading_calls(c) + 1;
    gr_write(w, ",", w->n > 0);
    size_t from = w->n;
    gr_writef(w,
              "{\"type\":\"function_call\",\"id\":\"fc_%s_%d\",\"status\":\"completed\","
              "\"call_id\":",
              g->id + 5, index);
    gr_write_string(w, id, strlen(id));
    gr_writef(w, ",\"name\":");
    gr_write_string(w, name, strlen(name));
    gr_writef(w, ",\"arguments\":");
    gr_write_string(w, arguments, n);
    gr_write(w, "}", 1);
    if (!g->ask.stream || w->failed)
        return;
    gr_writef(begin_event(g, "response.output_item.added"),
              ",\"output_index\":%d,\"item\":", index);
    gr_write(&g->out, w->p + from, w->n - from);
    end_event(g);
    gr_writef(begin_event(g, "response.function_call_arguments.done"),
              ",\"item_id\":\"fc_%s_%d\",\"output_index\":%d,\"name\":", g->id + 5, index, index);
    gr_write_string(&g->out, name, strlen(name));
    gr_writef(&g->out, ",\"arguments\":");
    gr_write_string(&g->out, arguments, n);
    end_event(g);
    gr_writef(begin_event(g, "response.output_item.done"), ",\"output_index\":%d,\"item\":", index);
    gr_write(&g->out, w->p + from, w->n - from);
    end_event(g);
}

static void on_emit(struct gr_choice *c)
{
    size_t n = c->text.n - c->n_sent;
    if (n)
        put_text(c, "response.output_text.delta",
                 "\"logprobs\":[],\"delta\":", c->text.p + c->n_sent, n, "");
    c->n_sent = c->text.n;
    if (!c->ended)
        return;
    bool full = c->result.end == GR_FINISH_LENGTH;
    put_text(c, "response.output_text.done", "\"logprobs\":[],\"text\":", c->text.p, c->text.n, "");
    put_text(c, "response.content_part.done", PART, c->text.p, c->text.n, "}");
    put_item(c, "response.output_item.done", full ? "incomplete" : "completed", true);
    put_response(c, full ? "response.incomplete" : "response.completed");
}

static void on_finish(struct gr_generation *g)
{
    if (!g->ask.stream)
        write_response(&g->out, &g->choice[0]);
}

static void on_fail(struct gr_generation *g, const char *message)
{
    gr_writef(begin_event(g, "error"), ",\"code\":\"server_error\",\"param\":null,\"message\":");
    gr_write_string(&g->out, message, strlen(message));
    end_event(g);
}

static const struct gr_form form = {.object = "response",
                                    .prefix = "resp_",
                                    .type = "text/event-stream",
                                    .ping = ":\n\n",
                                    .prepare = gr_talk_prepare,
                                    .begin = on_begin,
                                    .piece = gr_talk_piece,
                                    .end = gr_talk_end,
                                    .emit = on_emit,
                                    .finish = on_finish,
                                    .fail = on_fail,
                                    .free_own = gr_talk_free};

/* ---- requests ---- */

/* Returns the message that an item of the input is, NULL: it is none. */
static json_t *message_of(const json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    if (!type || !strcmp(type, "message"))
        return json_pack("{s:O?, s:O?}", "role", json_object_get(item, "role"), "content",
                         json_object_get(item, "content"));
    if (!strcmp(type, "function_call_output"))
        return json_pack("{s:s, s:O?, s:O?}", "role", "tool", "tool_call_id",
                         json_object_get(item, "call_id"), "content",
                         json_object_get(item, "output"));
    if (!strcmp(type, "function_call"))
        return json_pack(
            "{s:s, s:n, s:[{s:s, s:O?, s:{s:O?, s:O?}}]}", "role", "assistant", "content",
            "tool_calls", "type", "function", "id", json_object_get(item, "call_id"), "function",
            "name", json_object_get(item, "name"), "arguments", json_object_get(item, "arguments"));
    return NULL;
}

static void add_text(struct gr_messages *c, struct gr_fields *f, const char *role,
                     const json_t *text, const char *name)
{
    json_t *m = json_pack("{s:s, s:O}", "role", role, "content", text);
    gr_messages_add(c, f, m, name);
    json_decref(m);
}

/* Joins calls, the last message, to what the assistant has said or called before them. */
static void join_calls(struct gr_messages *c)
{
    size_t n = json_array_size(c->list);
    json_t *last = json_array_get(c->list, n - 1);
    json_t *before = n > 1 ? json_array_get(c->list, n - 2) : NULL;
    json_t *calls = json_object_get(before, "tool_calls");
    const char *role = json_string_value(json_object_get(before, "role"));
    const char *said = json_string_value(json_object_get(before, "content"));
    if (!role || strcmp(role, "assistant") != 0)
        return;
    if (calls)
        (void)json_array_extend(calls, json_object_get(last, "tool_calls"));
    else
        (void)json_object_set(before, "tool_calls", json_object_get(last, "tool_calls"));
    if (said && !*said)
        (void)json_object_set_new(before, "content", json_null());
    (void)json_array_remove(c->list, n - 1);
}

static void read_input(struct gr_messages *c, struct gr_fields *f)
{
    const json_t *input = gr_field(f, "input"), *item;
    size_t i;
    if (gr_field_text(f, "instructions"))
        add_text(c, f, "system", gr_field(f, "instructions"), "instructions");
    if (json_is_string(input)) {
        add_text(c, f, "user", input, "input");
        return;
    }
    json_array_foreach(input, i, item)
    {
        const char *type = json_string_value(json_object_get(item, "type"));
        json_t *m = message_of(item);
        if (m)
            gr_messages_add(c, f, m, "input");
        if (m && !f->wrong && type && !strcmp(type, "function_call"))
            join_calls(c);
        else if (!m && strcmp(type ? type : "", "reasoning") != 0)
            gr_field_wrong(f, "input",
                           "input[%zu]: items of type message, function_call and "
                           "function_call_output are supported",
                           i);
        json_decref(m);
    }
    if (!json_array_size(input))
        gr_field_wrong(f, "input", "input: a text or a list of items is expected");
}

/* Writes the tools as chats have them. */
static void set_tools(json_t *request)
{
    json_t *all = json_object_get(request, "tools"), *tool, *list = json_array();
    size_t i;
    json_array_foreach(all, i, tool)
    {
        json_t *function = json_object_get(tool, "function") ? NULL : json_copy(tool);
        (void)json_object_del(function, "type");
        if (function)
            (void)json_array_append_new(
                list, json_pack("{s:s, s:o}", "type", "function", "function", function));
        else
            (void)json_array_append(list, tool);
    }
    if (json_is_array(all))
        (void)json_object_set(request, "chat_tools", list);
    json_decref(list);
}

/* Sets the fields that have other names in chats. */
static void rename_fields(json_t *request)
{
    json_t *length = json_object_get(request, "max_output_tokens");
    json_t *format = json_object_get(json_object_get(request, "text"), "format");
    if (length)
        (void)json_object_set(request, "max_tokens", length);
    if (format)
        (void)json_object_set(request, "response_format", format);
    (void)json_object_del(request, "n");
    set_tools(request);
}

void gr_serve_responses(struct gr_exchange *x, void *user)
{
    json_t *request = gr_read_object(x);
    struct gr_fields f = {.object = request};
    if (request)
        rename_fields(request);
    struct gr_generation *g = request ? gr_generation_new(x, user, &form, request, &f) : NULL;
    if (!g)
        return;
    if (gr_field(&f, "previous_response_id"))
        gr_field_wrong(&f, "previous_response_id",
                       "responses are not kept: the input has to hold the whole conversation");
    (void)gr_field_list(&f, "tools"); /* those of these forms were renamed */
    (void)gr_field_object(&f, "text");
    struct gr_talk *t = gr_talk_new(g, &f, add_call);
    if (t) {
        read_input(&t->messages, &f);
        gr_messages_set_tools(&t->messages, &f, "chat_tools");
    }
    gr_talk_start(g, &f);
}
