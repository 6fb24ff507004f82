#include "templates.h"

#include <stdlib.h>
#include <string.h>

#include "flags.h"
#include "input.h"
#include "json.h"
#include "say.h"

json_t *gr_read_json(const char *text, size_t n, const char *source, int *rc)
{
    json_error_t e;
    json_t *j = json_loadb(text, n, JSON_ALLOW_NUL, &e);
    *rc = 0;
    if (!j && gr_json_starved()) {
        *rc = gr_say_no_memory();
    } else if (!j) {
        gr_say_error("%s, line %d, column %d: %s", source, e.line, e.column, e.text);
        *rc = GR_EXIT_USAGE;
    }
    return j;
}

/* ---- what a template sees ---- */

json_t *gr_template_kwargs(const struct gr_options *o, int *exit_code)
{
    int rc = 0;
    *exit_code = 0;
    if (!o->chat_template_kwargs)
        return NULL;
    json_t *j = gr_read_json(o->chat_template_kwargs, strlen(o->chat_template_kwargs),
                             "--chat-template-kwargs", &rc);
    if (j && !json_is_object(j)) {
        gr_say_error("--chat-template-kwargs: an object is expected, such as {\"enable_thinking\": "
                     "false}");
        json_decref(j);
        j = NULL, rc = GR_EXIT_USAGE;
    }
    *exit_code = rc;
    return j;
}

static int add_kwargs(const struct gr_options *o, json_t *context)
{
    int rc;
    json_t *j = gr_template_kwargs(o, &rc);
    if (j && json_object_update(context, j))
        rc = gr_say_no_memory();
    json_decref(j);
    return rc;
}

/* Sets the variable to the text of a special token, unless the context has it. */
static int add_token(json_t *context, const char *name, const struct gr_model *model, int32_t id)
{
    const char *p = "";
    size_t n = 0;
    if (json_object_get(context, name) || id < 0)
        return 0;
    int rc = gr_text_piece(model, id, true, &p, &n);
    if (rc)
        return gr_say_status(rc);
    return json_object_set_new(context, name, json_stringn(p, n)) ? gr_say_no_memory() : 0;
}

int gr_template_context(const struct gr_options *o, const struct gr_model *model, json_t *context,
                        char **text)
{
    int rc = add_kwargs(o, context);
    if (!rc && model)
        rc = add_token(context, "bos_token", model, gr_text_bos(model));
    if (!rc && model)
        rc = add_token(context, "eos_token", model, gr_text_eos(model));
    *text = rc ? NULL : json_dumps(context, 0);
    return rc || *text ? rc : gr_say_no_memory();
}

/* ---- the template ---- */

static const char *find_known(const char *name)
{
    const char *known, *text;
    for (int32_t i = 0; (known = gr_template_known(i, &text)); i++) {
        if (!strcmp(known, name))
            return text;
    }
    return NULL;
}

/* Refuses a --chat-template that is neither a name nor looks like a template. */
static int unknown_name(const char *word)
{
    const char *best = NULL, *known;
    size_t least = 4;
    for (int32_t i = 0; (known = gr_template_known(i, NULL)); i++) {
        size_t d = gr_edit_distance(word, strlen(word), known, strlen(known));
        if (d < least)
            least = d, best = known;
    }
    gr_say_error(
        "--chat-template: '%.60s' is neither a known template (%s%s%sgpurun list templates) "
        "nor a text with {{ or {%% in it",
        word, best ? "did you mean " : "", best ? best : "", best ? "? " : "");
    return GR_EXIT_USAGE;
}

/* The template of the flags or the model; *owned is to be freed. */
static int find_text(const struct gr_options *o, const struct gr_model *model, const char **text,
                     size_t *n, char **owned)
{
    const char *name = o->chat_template, *known;
    if (o->chat_template_file && !o->given.chat_template.by_flag) {
        int rc = gr_read_all(o->chat_template_file, owned, n);
        *text = *owned;
        return rc;
    }
    if (name) {
        *text = find_known(name);
        if (!*text && !strstr(name, "{{") && !strstr(name, "{%"))
            return unknown_name(name);
        *text = *text ? *text : name;
        *n = strlen(*text);
        return 0;
    }
    int rc = gr_model_template(model, text, n, &known);
    if (rc == GR_E_TEMPLATE && o->command == GR_CMD_chat) {
        *text = find_known("chatml"), *n = strlen(*text);
        gr_say_warning("the model has no chat template, and its vocabulary has the tokens of no "
                       "known one: chatml, as text; --chat-template NAME gives another");
        return 0;
    }
    if (!rc && known)
        gr_say("the model has no chat template: %s, which its vocabulary is made for", known);
    return rc ? gr_say_status(rc) : 0;
}

int gr_open_template(const struct gr_options *o, const struct gr_model *model,
                     struct gr_template **t, const char **format)
{
    char *owned = NULL;
    const char *text = NULL;
    size_t n = 0;
    int rc = find_text(o, model, &text, &n, &owned);
    int status = rc ? 0 : gr_template_new(t, text, n);
    if (!rc && format)
        *format = gr_answer_format(text, n);
    free(owned);
    return status ? gr_say_status(status) : rc;
}
