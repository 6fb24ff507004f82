/* Answers of gpurun chat as they come: text, reasoning and tool calls are told apart and shown. */
#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "tools/cli/json.h"
#include "tools/cli/say.h"

/* ---- what is shown ---- */

static void show(struct chat *c, const char *p, size_t n)
{
    if (!n || c->o.json)
        return;
    gr_out(p, n);
    c->last = p[n - 1];
}

static void show_mark(struct chat *c, const char *mark)
{
    show(c, mark, strlen(mark));
}

/* Shows text of the answer, which with deepseek-legacy is that with its reasoning. */
static int show_text(struct chat *c, const char *p, size_t n)
{
    show(c, p, n);
    return c->legacy ? gr_chat_add_text(&c->shown, p, n) : 0;
}

/* Begins or ends reasoning in what is shown. */
static int set_reasoning(struct chat *c, bool on)
{
    if (c->in_reasoning == on)
        return 0;
    c->in_reasoning = on;
    if (c->legacy)
        return show_text(c, on ? "<think>" : "</think>\n\n", on ? 7 : 10);
    if (c->color && !c->o.json)
        gr_out_style(on ? "\033[2m" : "\033[0m");
    if (!c->color)
        show_mark(c, on ? "<think>\n" : "\n</think>\n");
    else if (!on)
        show_mark(c, "\n");
    return 0;
}

/* Shows a call as a line of JSON. */
static int show_call(struct chat *c, const json_t *function)
{
    char *line = json_dumps(function, JSON_COMPACT | JSON_REAL_PRECISION(15));
    if (!line)
        return gr_say_no_memory();
    int rc = set_reasoning(c, false);
    if (c->last && c->last != '\n')
        show_mark(c, "\n");
    show_mark(c, line);
    show_mark(c, "\n");
    free(line);
    return rc;
}

/* ---- parts of the answer ---- */

static int take_answer(struct chat *c, const char *p, size_t n)
{
    int rc = set_reasoning(c, false);
    if (!rc)
        rc = show_text(c, p, n);
    return rc ? rc : gr_chat_add_text(&c->answer, p, n);
}

static int take_reasoning(struct chat *c, const char *p, size_t n)
{
    int rc = 0;
    if (c->legacy || (c->edit && !c->hides)) {
        rc = set_reasoning(c, true);
        if (!rc)
            rc = show_text(c, p, n);
    }
    return rc ? rc : gr_chat_add_text(&c->reasoning, p, n);
}

static json_t *function_of(const struct chat *c, size_t call)
{
    return json_object_get(json_array_get(c->calls, call), "function");
}

/* Sets the arguments of the last call, once they are complete. */
static int set_arguments(struct chat *c)
{
    size_t n = json_array_size(c->calls);
    json_t *function = n ? function_of(c, n - 1) : NULL;
    if (!function || json_object_get(function, "arguments"))
        return 0;
    gr_json_begin();
    json_t *arguments = json_loadb(c->arguments.n ? c->arguments.p : "{}",
                                   c->arguments.n ? c->arguments.n : 2, JSON_ALLOW_NUL, NULL);
    if (!arguments && !gr_json_starved()) /* numbers beyond what jansson reads */
        arguments = json_stringn(c->arguments.p, c->arguments.n);
    return json_object_set_new(function, "arguments", arguments) ? gr_say_no_memory() : 0;
}

/* Appends a call, whose arguments come later; those of the call before it are complete. */
static int begin_call(struct chat *c, const struct gr_answer_delta *d)
{
    int rc = set_arguments(c);
    c->arguments.n = 0;
    if (rc)
        return rc;
    if (!c->calls)
        c->calls = json_array();
    json_t *call = json_pack("{s:s, s:s, s:{s:s}}", "type", "function", "id", d->id, "function",
                             "name", d->name);
    return json_array_append_new(c->calls, call) ? gr_say_no_memory() : 0;
}

static int set_id(struct chat *c, const struct gr_answer_delta *d)
{
    json_t *call = json_array_get(c->calls, (size_t)d->call);
    return json_object_set_new(call, "id", json_string(d->id)) ? gr_say_no_memory() : 0;
}

static int end_call(struct chat *c, const struct gr_answer_delta *d)
{
    int rc = set_arguments(c);
    return rc ? rc : show_call(c, function_of(c, (size_t)d->call));
}

/* Takes a part of the answer; returns 0 or an exit code. */
static int take_part(struct chat *c, const struct gr_answer_delta *d)
{
    switch (d->part) {
    case GR_ANSWER_TEXT:
        return take_answer(c, d->text, d->n);
    case GR_ANSWER_REASONING:
        return take_reasoning(c, d->text, d->n);
    case GR_ANSWER_CALL:
        return begin_call(c, d);
    case GR_ANSWER_ARGUMENTS:
        return gr_chat_add_text(&c->arguments, d->text, d->n);
    case GR_ANSWER_ID:
        return set_id(c, d);
    case GR_ANSWER_DONE:
        return end_call(c, d);
    case GR_ANSWER_WITHDRAWN:
        while (json_array_size(c->calls) > (size_t)d->call)
            (void)json_array_remove(c->calls, json_array_size(c->calls) - 1);
    }
    return 0;
}

/* A gr_answer_fn. */
static int take_delta(const struct gr_answer_delta *d, void *user)
{
    struct chat *c = user;
    c->failed = take_part(c, d);
    return c->failed ? GR_E_NOMEM_HOST : 0;
}

/* ---- the answer ---- */

void gr_chat_drop_answer(struct chat *c)
{
    c->answer.n = c->shown.n = c->reasoning.n = c->arguments.n = 0;
    c->failed = 0, c->last = 0, c->in_reasoning = false;
    json_decref(c->calls);
    c->calls = NULL;
    gr_answer_free(&c->reader);
}

/* The tools that --chat-template-kwargs gives the template, as JSON (free); NULL: none. */
static char *given_tools(const struct gr_options *o)
{
    const char *text = o->chat_template_kwargs;
    json_t *j = text ? json_loads(text, 0, NULL) : NULL, *tools = json_object_get(j, "tools");
    char *line = json_is_array(tools) ? json_dumps(tools, 0) : NULL;
    json_decref(j);
    return line;
}

int gr_chat_begin_answer(struct chat *c, const struct gr_prompt *prompt)
{
    char *tools = c->raw ? NULL : given_tools(c->run.o);
    struct gr_answer_params params = {.format = c->format,
                                      .prompt = prompt->text,
                                      .n_prompt = prompt->n,
                                      .tools = tools,
                                      .n_tools = tools ? strlen(tools) : 0,
                                      .fn = take_delta,
                                      .user = c};
    int status = c->raw ? 0 : gr_answer_new(&c->reader, &params);
    free(tools);
    return status ? gr_say_status(status) : 0;
}

/* The exit code of what the reader returned. */
static int exit_of(const struct chat *c, int status)
{
    return c->failed ? c->failed : status ? gr_say_status(status) : 0;
}

int gr_chat_take_text(void *chat, const char *p, size_t n)
{
    struct chat *c = chat;
    return c->raw ? take_answer(c, p, n) : exit_of(c, gr_answer_push(c->reader, p, n));
}

int gr_chat_end_answer(struct chat *c)
{
    int rc = c->reader && !c->failed ? exit_of(c, gr_answer_end(c->reader)) : 0;
    if (!c->legacy) /* there the model has not ended it */
        (void)set_reasoning(c, false);
    gr_answer_free(&c->reader);
    return rc;
}
