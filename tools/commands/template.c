/* gpurun template: the prompt that a chat template makes of messages. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/json.h"
#include "tools/cli/model.h"
#include "tools/cli/say.h"

/* Reads JSON text; an error names its source. NULL: 0 or an exit code in *rc, after printing the
 * error. */
static json_t *read_json(const char *text, size_t n, const char *source, int *rc)
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

/* The object of --messages; a list becomes its member `messages`. */
static json_t *read_messages(const struct gr_options *o, int *rc)
{
    char *text = NULL;
    size_t n = 0;
    json_t *j = NULL;
    if (!o->messages) {
        gr_say_error("there are no messages: give a file of JSON by --messages");
        *rc = GR_EXIT_USAGE;
        return NULL;
    }
    *rc = gr_read_all(o->messages, &text, &n);
    if (!*rc)
        j = read_json(text, n, o->messages, rc);
    free(text);
    if (json_is_array(j)) {
        json_t *all = json_pack("{s:o}", "messages", j);
        if (!all)
            *rc = gr_say_no_memory();
        return all;
    }
    if (j && !json_is_object(j)) {
        gr_say_error("%s: an object with messages, or a list of messages, is expected",
                     o->messages);
        *rc = GR_EXIT_USAGE;
        json_decref(j);
        return NULL;
    }
    return j;
}

static int add_kwargs(const struct gr_options *o, json_t *context)
{
    int rc = 0;
    if (!o->chat_template_kwargs)
        return 0;
    json_t *j = read_json(o->chat_template_kwargs, strlen(o->chat_template_kwargs),
                          "--chat-template-kwargs", &rc);
    if (j && !json_is_object(j)) {
        gr_say_error("--chat-template-kwargs: an object is expected, such as {\"enable_thinking\": "
                     "false}");
        rc = GR_EXIT_USAGE;
    }
    if (!rc && json_object_update(context, j))
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

/* What the template sees, as JSON text (free). */
static int make_context(const struct gr_options *o, const struct gr_model *model, char **text)
{
    int rc;
    gr_json_begin();
    json_t *context = read_messages(o, &rc);
    if (context)
        rc = add_kwargs(o, context);
    if (!rc && model)
        rc = add_token(context, "bos_token", model, gr_text_bos(model));
    if (!rc && model)
        rc = add_token(context, "eos_token", model, gr_text_eos(model));
    *text = rc ? NULL : json_dumps(context, 0);
    if (!rc && !*text)
        rc = gr_say_no_memory();
    json_decref(context);
    return rc;
}

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
    if (!rc && known)
        gr_say("the model has no chat template: %s, which its vocabulary is made for", known);
    return rc ? gr_say_status(rc) : 0;
}

static void print_ids(const int32_t *ids, size_t n)
{
    gr_print("[");
    for (size_t i = 0; i < n; i++)
        gr_print("%s%d", i ? ", " : "", ids[i]);
    gr_print("]");
}

/* One object: the prompt, the parts of it that are input (bytes), and with a model its ids. */
static int print_json(const struct gr_prompt *p, const int32_t *ids, size_t n_ids, bool with_ids)
{
    gr_json_begin();
    json_t *s = json_stringn(p->text, p->n);
    char *text = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    json_decref(s);
    if (!text)
        return gr_say_no_memory();
    gr_print("{\"prompt\": ");
    gr_out(text, strlen(text));
    gr_print(", \"input\": [");
    for (size_t i = 0; i < p->n_input; i++)
        gr_print("%s[%zu, %zu]", i ? ", " : "", p->input[i].lo, p->input[i].hi);
    gr_print("]");
    if (with_ids) {
        gr_print(", \"ids\": ");
        print_ids(ids, n_ids);
    }
    gr_print("}\n");
    free(text);
    return 0;
}

static int print_prompt(const struct gr_options *o, const struct gr_model *model,
                        const struct gr_prompt *p)
{
    int32_t *ids = NULL;
    size_t n = 0;
    bool with_ids = model && (o->ids || o->json);
    int rc = with_ids ? gr_prompt_tokenize(model, p, &ids, &n) : 0;
    if (rc) {
        rc = gr_say_status(rc);
    } else if (o->json) {
        rc = print_json(p, ids, n, with_ids);
    } else if (o->ids) {
        print_ids(ids, n);
        gr_print("\n");
    } else {
        gr_out(p->text, p->n);
    }
    gr_free_ids(ids);
    return rc;
}

static int render(const struct gr_options *o, const struct gr_model *model)
{
    struct gr_template *t = NULL;
    struct gr_prompt prompt = {0};
    char *owned = NULL, *context = NULL;
    const char *text = NULL;
    size_t n = 0;
    int rc = find_text(o, model, &text, &n, &owned);
    if (!rc)
        rc = make_context(o, model, &context);
    if (!rc) {
        int status = gr_template_new(&t, text, n);
        if (!status)
            status = gr_template_render(t, context, strlen(context), time(NULL), &prompt);
        rc = status ? gr_say_status(status) : print_prompt(o, model, &prompt);
    }
    gr_prompt_free(&prompt);
    gr_template_free(&t);
    free(context);
    free(owned);
    return rc;
}

int gr_tool_template(const struct gr_options *o)
{
    struct gr_model *model = NULL;
    bool needed = o->model || o->ids || !(o->chat_template || o->chat_template_file);
    int rc = needed ? gr_open_model(o, true, &model) : 0;
    if (!rc)
        rc = render(o, model);
    gr_model_close(&model);
    return rc;
}
