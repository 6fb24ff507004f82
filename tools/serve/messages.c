/* Messages of a request. */
#include "messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpurun.h"
#include "tools/cli/flags.h"
#include "writer.h"

static void no_memory(struct gr_fields *f)
{
    gr_field_wrong(f, "", "out of memory");
}

/* ---- messages ---- */

/* Returns the text of a list of parts, joined by line ends; NULL: one is no text, or no memory. */
static json_t *join_parts(const json_t *parts)
{
    struct gr_writer w = {0};
    const json_t *part;
    size_t i;
    bool good = true;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        good &=
            type && json_is_string(text) &&
            (!strcmp(type, "text") || !strcmp(type, "input_text") || !strcmp(type, "output_text"));
        gr_write(&w, "\n", i > 0);
        gr_write(&w, json_string_value(text), json_string_length(text));
    }
    json_t *all = good && !w.failed ? json_stringn(w.n ? w.p : "", w.n) : NULL;
    gr_writer_free(&w);
    return all;
}

/* Makes the content a text or null. */
static bool read_content(json_t *message)
{
    json_t *content = json_object_get(message, "content");
    if (json_is_array(content))
        return !json_object_set_new(message, "content", join_parts(content));
    if (json_is_string(content))
        return true;
    bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
    const char *role = json_string_value(json_object_get(message, "role"));
    if (content && !json_is_null(content))
        return false;
    if (!calls && strcmp(role, "assistant") != 0)
        return false;
    return !json_object_set_new(message, "content", calls ? json_null() : json_string(""));
}

/* Makes the arguments of calls objects, where they are texts of such; *n_value: of all messages. */
static bool read_calls(json_t *message, size_t *n_value)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (json_is_null(calls))
        return !json_object_del(message, "tool_calls");
    if (calls && !json_is_array(calls))
        return false;
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        const json_t *given = json_object_get(function, "arguments");
        if (!json_is_string(json_object_get(function, "name")))
            return false;
        if (json_is_string(given) &&
            gr_json_too_much(json_string_value(given), json_string_length(given), n_value))
            return false;
        json_t *arguments = json_is_string(given)
                                ? json_loadb(json_string_value(given), json_string_length(given),
                                             JSON_REJECT_DUPLICATES, NULL)
                                : NULL;
        if (json_is_object(arguments))
            (void)json_object_set(function, "arguments", arguments);
        json_decref(arguments);
    }
    return true;
}

void gr_messages_add(struct gr_messages *c, struct gr_fields *f, const json_t *message,
                     const char *name)
{
    char field[80];
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *copy = role ? json_deep_copy(message) : NULL;
    if (!role) {
        snprintf(field, sizeof field, "%s.role", name);
        gr_field_wrong(f, field, "%s: an object with a role and content is expected", name);
    } else if (!copy) {
        no_memory(f);
    } else if (!read_content(copy)) {
        snprintf(field, sizeof field, "%s.content", name);
        gr_field_wrong(f, field, "%s: a text, or a list of parts of type \"text\", is expected",
                       field);
    } else if (!read_calls(copy, &c->n_value)) {
        snprintf(field, sizeof field, "%s.tool_calls", name);
        gr_field_wrong(f, field,
                       "%s: a list of calls with function.name is expected, of few values", field);
    } else {
        if (!strcmp(role, "developer") && json_object_set_new(copy, "role", json_string("system")))
            no_memory(f);
        c->list = c->list ? c->list : json_array();
        if (json_array_append(c->list, copy))
            no_memory(f);
    }
    json_decref(copy);
}

void gr_messages_add_all(struct gr_messages *c, struct gr_fields *f, const char *name)
{
    const json_t *list = gr_field_list(f, name), *message;
    char field[64];
    size_t i;
    json_array_foreach(list, i, message)
    {
        snprintf(field, sizeof field, "%s[%zu]", name, i);
        if (!f->wrong)
            gr_messages_add(c, f, message, field);
    }
    if (!json_array_size(list))
        gr_field_wrong(f, name, "%s: a list of at least one message is expected", name);
}

void gr_messages_set_tools(struct gr_messages *c, struct gr_fields *f, const char *name)
{
    const json_t *list = gr_field_list(f, name), *tool;
    size_t i;
    json_array_foreach(list, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        if (!json_is_string(json_object_get(function, "name")))
            gr_field_wrong(f, name, "%s[%zu]: an object with function.name is expected", name, i);
    }
    json_decref(c->tools);
    c->tools = json_array_size(list) ? json_deep_copy(list) : NULL;
}

/* Returns whether a request may set a variable: texts that count as the template's own are not for
 * it to set (gr_template_render). */
static bool may_set(const char *name)
{
    size_t n = strlen(name);
    return (n < 6 || strcmp(name + n - 6, "_token") != 0) &&
           (n < 7 || strcmp(name + n - 7, "_tokens") != 0);
}

void gr_messages_read_template(struct gr_messages *c, struct gr_fields *f)
{
    const char *name = "chat_template_kwargs";
    c->kwargs = (json_t *)(uintptr_t)gr_field_object(f, name); /* which jansson iterates over */
    void *at = json_object_iter(c->kwargs);
    for (; at; at = json_object_iter_next(c->kwargs, at)) {
        if (!may_set(json_object_iter_key(at)))
            gr_field_wrong(f, name, "%s: %.64s is not for requests to set", name,
                           json_object_iter_key(at));
    }
    c->goes_on |= gr_field_bool(f, "continue_final_message", false);
    c->generation = gr_field_bool(f, "add_generation_prompt", true);
}

void gr_messages_read(struct gr_messages *c, struct gr_fields *f)
{
    gr_messages_add_all(c, f, "messages");
    gr_messages_set_tools(c, f, "tools");
    gr_messages_read_template(c, f);
}

void gr_messages_drop(struct gr_messages *c)
{
    json_decref(c->list);
    json_decref(c->tools);
    *c = (struct gr_messages){0};
}

/* ---- the template ---- */

/* Ways of templates that differ: null or an empty text as content, arguments as objects or texts.
 */
enum { EMPTY_CONTENT = 1, TEXT_ARGUMENTS = 2, N_WAYS = 4 };

static void write_arguments(json_t *message)
{
    json_t *call;
    size_t i;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        json_t *function = json_object_get(call, "function");
        char *text = json_dumps(json_object_get(function, "arguments"), 0);
        if (text)
            (void)json_object_set_new(function, "arguments", json_string(text));
        free(text);
    }
}

/* Returns the messages written in one of the ways (NULL: no memory); *same: as they were. */
static json_t *write_messages(const struct gr_messages *c, int way, bool *same)
{
    json_t *all = json_deep_copy(c->list), *message;
    size_t i;
    json_array_foreach(all, i, message)
    {
        if (way & EMPTY_CONTENT && json_is_null(json_object_get(message, "content")))
            (void)json_object_set_new(message, "content", json_string(""));
        if (way & TEXT_ARGUMENTS)
            write_arguments(message);
    }
    *same = way && json_equal(all, c->list);
    return all;
}

static bool set_token(json_t *context, const char *name, const struct gr_model *model, int32_t id)
{
    const char *p = "";
    size_t n = 0;
    return id < 0 || (!gr_text_piece(model, id, true, &p, &n) &&
                      !json_object_set_new(context, name, json_stringn(p, n)));
}

/* Returns the template's variables, without the messages: those of the command line, of the
 * request, and what neither can replace. NULL: no memory. */
static json_t *make_context(const struct gr_messages *c, const struct gr_server *s)
{
    const struct gr_options *o = s->options;
    const char *text = o->chat_template_kwargs;
    json_t *context = json_object(), *given = text ? json_loads(text, 0, NULL) : NULL;
    bool good = context && (!given || !json_object_update(context, given));
    json_decref(given);
    if (good && o->reasoning >= 0)
        good = !json_object_set_new(context, "enable_thinking", json_boolean(o->reasoning));
    if (good && c->quiet)
        good = !json_object_set_new(context, "enable_thinking", json_false());
    if (good && c->kwargs)
        good = !json_object_update(context, c->kwargs);
    (void)json_object_del(context, "tools");
    if (good && c->tools)
        good = !json_object_set(context, "tools", c->tools);
    good = good &&
           !json_object_set_new(context, "add_generation_prompt",
                                json_boolean(c->generation && !c->goes_on)) &&
           set_token(context, "bos_token", s->model, gr_text_bos(s->model)) &&
           set_token(context, "eos_token", s->model, gr_text_eos(s->model));
    if (good)
        return context;
    json_decref(context);
    return NULL;
}

/* Cuts the prompt at the end of the last message's text. */
static void cut(const struct gr_messages *c, struct gr_fields *f, struct gr_prompt *prompt)
{
    size_t last = json_array_size(c->list) - 1;
    const json_t *text = json_object_get(json_array_get(c->list, last), "content");
    size_t n = json_string_length(text);
    const struct gr_text_span *span = prompt->n_input ? &prompt->input[prompt->n_input - 1] : NULL;
    const char *p = json_string_value(text);
    if (p && span && span->hi > span->lo &&
        memmem(p, n, prompt->text + span->lo, span->hi - span->lo)) {
        prompt->n = span->hi;
        prompt->text[prompt->n] = 0;
    } else {
        gr_field_wrong(f, "messages",
                       "the chat template does not end with the text of the last message, which "
                       "therefore cannot go on");
    }
}

/* Renders in one of the ways. Returns a status; GR_E_TEMPLATE also when there is no such way. */
static int render(const struct gr_messages *c, const struct gr_server *s, json_t *context, int way,
                  struct gr_prompt *prompt)
{
    bool same = false;
    json_t *messages = write_messages(c, way, &same);
    if (same) {
        json_decref(messages);
        return GR_E_TEMPLATE;
    }
    bool good = messages && !json_object_set_new(context, "messages", messages);
    char *text = good ? json_dumps(context, JSON_REAL_PRECISION(15)) : NULL;
    if (!text)
        return GR_E_NOMEM_HOST;
    int rc = gr_template_render(s->chat, text, strlen(text), time(NULL), prompt);
    free(text);
    return rc;
}

void gr_messages_render(const struct gr_messages *c, const struct gr_server *s, struct gr_fields *f,
                        struct gr_prompt *prompt)
{
    *prompt = (struct gr_prompt){0};
    if (!s->chat)
        gr_field_wrong(f, "messages",
                       "the model has no chat template; --chat-template gives it one");
    json_t *context = f->wrong ? NULL : make_context(c, s);
    if (!context) {
        no_memory(f);
        return;
    }
    char first[400] = "";
    int rc = GR_E_TEMPLATE;
    for (int way = 0; way < N_WAYS && rc == GR_E_TEMPLATE; way++) {
        rc = render(c, s, context, way, prompt);
        if (rc && !way)
            snprintf(first, sizeof first, "%s", gr_error_message());
    }
    json_decref(context);
    if (rc == GR_E_NOMEM_HOST)
        no_memory(f);
    else if (rc)
        gr_field_wrong(f, "messages", "the chat template: %s", first);
    else if (c->goes_on)
        cut(c, f, prompt);
}
