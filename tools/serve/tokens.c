/* Texts and tokens, and the prompts that the chat template makes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server.h"
#include "tools/cli/flags.h"

/* ---- tokens of a text ---- */

/* Reads a switch of the request; false: refused. */
static bool read_switch(struct gr_exchange *x, const json_t *body, const char *name, bool def,
                        bool *value)
{
    const json_t *field = json_object_get(body, name);
    *value = field && !json_is_null(field) ? json_is_true(field) : def;
    if (!field || json_is_boolean(field) || json_is_null(field))
        return true;
    gr_refuse(x, 400, name, "%s: true or false is expected", name);
    return false;
}

/* Makes the text of a token, or a list of its bytes where it is no UTF-8. */
static json_t *piece_json(const struct gr_model *model, int32_t id)
{
    const char *p = "";
    size_t n = 0;
    if (gr_text_piece(model, id, true, &p, &n))
        n = 0;
    json_t *text = json_stringn(p, n);
    if (text)
        return text;
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(bytes, json_integer((unsigned char)p[i]));
    return bytes;
}

static json_t *tokens_json(const struct gr_model *model, const int32_t *ids, size_t n, bool pieces)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_integer(ids[i]);
        (void)json_array_append_new(
            list,
            pieces ? json_pack("{s:o, s:o}", "id", id, "piece", piece_json(model, ids[i])) : id);
    }
    if (json_array_size(list) == n)
        return json_pack("{s:o}", "tokens", list);
    json_decref(list); /* no memory */
    return NULL;
}

static void tokenize(struct gr_exchange *x, const struct gr_server *s, const json_t *body)
{
    const json_t *content = json_object_get(body, "content");
    bool special, parse, pieces;
    int32_t *ids = NULL;
    size_t n = 0;
    if (!json_is_string(content)) {
        gr_refuse(x, 400, "content", "content: a text is expected");
        return;
    }
    if (!read_switch(x, body, "add_special", false, &special) ||
        !read_switch(x, body, "parse_special", true, &parse) ||
        !read_switch(x, body, "with_pieces", false, &pieces))
        return;
    int rc = gr_text_tokenize(s->model, json_string_value(content), json_string_length(content),
                              special, parse, &ids, &n);
    if (rc)
        gr_refuse_status(x, rc, "content");
    else
        gr_answer_json(x, 200, tokens_json(s->model, ids, n, pieces));
    gr_free_ids(ids);
}

void gr_serve_tokenize(struct gr_exchange *x, void *user)
{
    json_t *body = gr_read_object(x);
    if (body)
        tokenize(x, user, body);
    json_decref(body);
}

/* ---- the text of tokens ---- */

/* A text that grows. */
struct text {
    char *p;
    size_t n, room;
};

/* Returns a status. */
static int append(struct text *t, const char *p, size_t n)
{
    if (t->n + n > t->room) {
        size_t room = 2 * (t->n + n) + 256;
        char *grown = realloc(t->p, room);
        if (!grown)
            return GR_E_NOMEM_HOST;
        t->p = grown, t->room = room;
    }
    memcpy(t->p + t->n, p, n);
    t->n += n;
    return 0;
}

static int detokenize(const struct gr_server *s, const json_t *tokens, struct text *t)
{
    struct gr_detok *d = NULL;
    const char *p;
    size_t n;
    int rc = gr_detok_new(&d, s->model, true);
    for (size_t i = 0; i < json_array_size(tokens) && !rc; i++) {
        rc = gr_detok_push(d, (int32_t)json_integer_value(json_array_get(tokens, i)), &p, &n);
        if (!rc && n)
            rc = append(t, p, n);
    }
    if (!rc)
        rc = gr_detok_flush(d, &p, &n);
    if (!rc && n)
        rc = append(t, p, n);
    gr_detok_free(&d);
    return rc;
}

/* Returns whether the value is a list of tokens of the model. */
static bool are_tokens(const struct gr_server *s, const json_t *tokens)
{
    size_t i;
    const json_t *token;
    json_array_foreach(tokens, i, token)
    {
        json_int_t id = json_integer_value(token);
        if (!json_is_integer(token) || id < 0 || id >= s->info.n_vocab)
            return false;
    }
    return json_is_array(tokens);
}

void gr_serve_detokenize(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    json_t *body = gr_read_object(x);
    const json_t *tokens = json_object_get(body, "tokens");
    struct text t = {0};
    if (!body)
        return;
    if (!are_tokens(s, tokens)) {
        gr_refuse(x, 400, "tokens", "tokens: a list of token ids from 0 to %d is expected",
                  s->info.n_vocab - 1);
    } else {
        int rc = detokenize(s, tokens, &t);
        if (rc)
            gr_refuse_status(x, rc, "tokens");
        else
            gr_answer_json(x, 200,
                           json_pack("{s:o}", "content", gr_json_text(t.n ? t.p : "", t.n)));
    }
    json_decref(body);
    free(t.p);
}

/* ---- prompts of chats ---- */

/* Joins the texts of a content's parts; NULL: refused. */
static json_t *join_parts(struct gr_exchange *x, const json_t *parts)
{
    struct text t = {0};
    size_t i;
    const json_t *part;
    int rc = 0;
    json_array_foreach(parts, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text)) {
            gr_refuse(x, 400, "messages",
                      "messages: a part of a content is no text; this model "
                      "reads text alone");
            free(t.p);
            return NULL;
        }
        if (!rc)
            rc = append(&t, json_string_value(text), json_string_length(text));
    }
    json_t *all = rc ? NULL : json_stringn(t.n ? t.p : "", t.n);
    free(t.p);
    if (!all)
        gr_refuse_status(x, GR_E_NOMEM_HOST, NULL);
    return all;
}

/* Makes a message as templates see it; NULL: refused. */
static json_t *read_message(struct gr_exchange *x, const json_t *m, size_t i)
{
    const json_t *content = json_object_get(m, "content");
    bool known = !content || json_is_null(content) || json_is_string(content);
    if (!json_is_string(json_object_get(m, "role")) || (!known && !json_is_array(content))) {
        gr_refuse(x, 400, "messages",
                  "messages[%zu]: an object with a role and a content is expected", i);
        return NULL;
    }
    json_t *joined = known ? NULL : join_parts(x, content);
    if (!known && !joined)
        return NULL;
    json_t *copy = json_copy((json_t *)(uintptr_t)m);
    if (!copy || (joined && json_object_set_new(copy, "content", joined))) {
        gr_refuse_as(x, 503, NULL, NULL, gr_status_text(GR_E_NOMEM_HOST));
        json_decref(copy);
        return NULL;
    }
    return copy;
}

/* Makes the messages; NULL: refused. */
static json_t *read_messages(struct gr_exchange *x, const json_t *messages)
{
    if (!json_is_array(messages) || !json_array_size(messages)) {
        gr_refuse(x, 400, "messages", "messages: a list of messages is expected");
        return NULL;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = read_message(x, json_array_get(messages, i), i);
        if (!m || json_array_append_new(list, m)) {
            if (m)
                gr_refuse_as(x, 503, NULL, NULL, gr_status_text(GR_E_NOMEM_HOST));
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Returns whether a request may set a variable of the template: not the messages, nor texts that
 * count as the template's own. */
static bool may_set(const char *name)
{
    size_t n = strlen(name);
    return strcmp(name, "messages") != 0 && !(n >= 6 && !strcmp(name + n - 6, "_token")) &&
           !(n >= 7 && !strcmp(name + n - 7, "_tokens"));
}

/* Adds the request's variables; false: refused. */
static bool add_kwargs(struct gr_exchange *x, const json_t *kwargs, json_t *context)
{
    const char *name;
    json_t *value;
    if (!kwargs || json_is_null(kwargs))
        return true;
    if (!json_is_object(kwargs)) {
        gr_refuse(x, 400, "chat_template_kwargs", "chat_template_kwargs: an object is expected");
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)kwargs, name, value)
    {
        if (!may_set(name)) {
            gr_refuse(x, 400, "chat_template_kwargs",
                      "chat_template_kwargs: %.64s is not for requests to set", name);
            return false;
        }
        (void)json_object_set(context, name, value);
    }
    return true;
}

static void add_token(json_t *context, const char *name, const struct gr_model *model, int32_t id)
{
    const char *p = "";
    size_t n = 0;
    if (id >= 0 && !gr_text_piece(model, id, true, &p, &n) && !json_object_get(context, name))
        (void)json_object_set_new(context, name, gr_json_text(p, n));
}

/* Adds the variables of --reasoning, --chat-template-kwargs and the request, in this order. */
static bool add_variables(struct gr_exchange *x, const struct gr_server *s, const json_t *request,
                          json_t *context)
{
    const struct gr_options *o = s->options;
    if (o->reasoning >= 0)
        (void)json_object_set_new(context, "enable_thinking", json_boolean(o->reasoning));
    if (o->chat_template_kwargs) {
        json_t *given = json_loads(o->chat_template_kwargs, 0, NULL);
        (void)json_object_update(context, given);
        json_decref(given);
    }
    if (!add_kwargs(x, json_object_get(request, "chat_template_kwargs"), context))
        return false;
    add_token(context, "bos_token", s->model, gr_text_bos(s->model));
    add_token(context, "eos_token", s->model, gr_text_eos(s->model));
    return true;
}

bool gr_render_chat(struct gr_exchange *x, const struct gr_server *s, const json_t *request,
                    struct gr_prompt *prompt)
{
    bool generation;
    const json_t *tools = json_object_get(request, "tools");
    *prompt = (struct gr_prompt){0};
    if (!s->chat) {
        gr_refuse(x, 400, NULL, "the model has no chat template; --chat-template gives it one");
        return false;
    }
    if (!read_switch(x, request, "add_generation_prompt", true, &generation))
        return false;
    json_t *messages = read_messages(x, json_object_get(request, "messages"));
    if (!messages)
        return false;
    json_t *context =
        json_pack("{s:o, s:b}", "messages", messages, "add_generation_prompt", (int)generation);
    if (json_is_array(tools) && json_array_size(tools))
        (void)json_object_set(context, "tools", (json_t *)(uintptr_t)tools);
    bool right = add_variables(x, s, request, context);
    char *text = right ? json_dumps(context, 0) : NULL;
    json_decref(context);
    if (!right)
        return false;
    int rc = text ? gr_template_render(s->chat, text, strlen(text), time(NULL), prompt)
                  : GR_E_NOMEM_HOST;
    free(text);
    if (rc)
        gr_refuse_status(x, rc, "messages");
    return !rc;
}

void gr_serve_apply_template(struct gr_exchange *x, void *user)
{
    struct gr_prompt prompt;
    json_t *body = gr_read_object(x);
    if (body && gr_render_chat(x, user, body, &prompt)) {
        gr_answer_json(x, 200, json_pack("{s:o}", "prompt", gr_json_text(prompt.text, prompt.n)));
        gr_prompt_free(&prompt);
    }
    json_decref(body);
}
