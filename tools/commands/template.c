/* gpurun template: the prompt that a chat template makes of messages. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/json.h"
#include "tools/cli/model.h"
#include "tools/cli/say.h"
#include "tools/cli/templates.h"

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
        j = gr_read_json(text, n, o->messages, rc);
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

/* Makes the variables of the template, as JSON text (free). */
static int make_context(const struct gr_options *o, const struct gr_model *model, char **text)
{
    int rc;
    *text = NULL;
    gr_json_begin();
    json_t *context = read_messages(o, &rc);
    if (context)
        rc = gr_template_context(o, model, context, text);
    json_decref(context);
    return rc;
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
    char *context = NULL;
    int rc = gr_open_template(o, model, &t, NULL);
    if (!rc)
        rc = make_context(o, model, &context);
    if (!rc) {
        int status = gr_template_render(t, context, strlen(context), time(NULL), &prompt);
        rc = status ? gr_say_status(status) : print_prompt(o, model, &prompt);
    }
    gr_prompt_free(&prompt);
    gr_template_free(&t);
    free(context);
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
