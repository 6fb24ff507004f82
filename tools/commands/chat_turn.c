/* Turns of gpurun chat: messages become a prompt, of which the session has the beginning already;
 * the answer becomes a message. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "chat.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/json.h"
#include "tools/cli/say.h"
#include "tools/cli/templates.h"

int gr_chat_ends(int rc)
{
    return rc == gr_status_exit(GR_E_DEVICE) || rc == gr_status_exit(GR_E_NOMEM_HOST) ? rc : 0;
}

/* ---- texts and messages ---- */

int gr_chat_add_text(struct chat_text *t, const char *p, size_t n)
{
    if (t->n + n + 1 > t->cap) {
        size_t cap = 2 * (t->n + n + 1);
        char *grown = realloc(t->p, cap);
        if (!grown)
            return gr_say_no_memory();
        t->p = grown, t->cap = cap;
    }
    if (n)
        memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
    return 0;
}

void gr_chat_drop_text(struct chat_text *t)
{
    free(t->p);
    *t = (struct chat_text){0};
}

/* Makes a message; NULL after printing the error, with the exit code in *rc. */
static json_t *make_message(const char *role, const char *text, size_t n, int *rc)
{
    gr_json_begin();
    json_t *content = json_stringn(n ? text : "", n);
    json_t *m = content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
    *rc = 0;
    if (!m && gr_json_starved()) {
        *rc = gr_say_no_memory();
    } else if (!m) {
        gr_say_error("the %s message of %zu bytes is no UTF-8", role, n);
        *rc = GR_EXIT_USAGE;
    }
    return m;
}

int gr_chat_add(struct chat *c, const char *role, const char *text, size_t n)
{
    int rc;
    json_t *m = make_message(role, text, n, &rc);
    return rc || !json_array_append_new(c->messages, m) ? rc : gr_say_no_memory();
}

static bool has_role(const json_t *message, const char *role)
{
    const char *found = json_string_value(json_object_get(message, "role"));
    return found && !strcmp(found, role);
}

int gr_chat_set_system(struct chat *c, const char *text, size_t n)
{
    int rc = 0;
    json_t *m = n ? make_message("system", text, n, &rc) : NULL;
    if (rc)
        return rc;
    if (has_role(json_array_get(c->messages, 0), "system"))
        (void)json_array_remove(c->messages, 0);
    return !m || !json_array_insert_new(c->messages, 0, m) ? 0 : gr_say_no_memory();
}

bool gr_chat_take_back(struct chat *c, const char *role)
{
    size_t n = json_array_size(c->messages), i = n;
    while (i > 0 && !has_role(json_array_get(c->messages, i - 1), role))
        i--;
    for (; i > 0 && n >= i; n--)
        (void)json_array_remove(c->messages, n - 1);
    return i > 0;
}

const char *gr_chat_last_role(const struct chat *c)
{
    size_t n = json_array_size(c->messages);
    const json_t *m = n ? json_array_get(c->messages, n - 1) : NULL;
    const char *role = json_string_value(json_object_get(m, "role"));
    return role ? role : "";
}

/* ---- the prompt ---- */

/* Makes the variables of the template, as JSON text (free). */
static int make_context(struct chat *c, json_t *messages, bool generation, char **text)
{
    gr_json_begin();
    *text = NULL;
    json_t *context =
        json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", (int)generation);
    bool starved = !context;
    if (context && c->o.reasoning >= 0)
        starved = json_object_set_new(context, "enable_thinking", json_boolean(c->o.reasoning));
    int rc = starved ? gr_say_no_memory() : gr_template_context(&c->o, c->run.model, context, text);
    json_decref(context);
    return rc;
}

/* Renders the messages, with or without the beginning of an answer. 0 or an exit code, after
 * printing the error; *prompt is to be freed. */
static int render(struct chat *c, json_t *messages, bool generation, struct gr_prompt *prompt)
{
    char *context;
    *prompt = (struct gr_prompt){0};
    int rc = make_context(c, messages, generation, &context);
    if (rc)
        return rc;
    rc = gr_template_render(c->template, context, strlen(context), time(NULL), prompt);
    free(context);
    return rc ? gr_say_status(rc) : 0;
}

static int tokenize(const struct chat *c, const struct gr_prompt *prompt, int32_t **ids, size_t *n)
{
    int status = gr_prompt_tokenize(c->run.model, prompt, ids, n);
    if (status || *n)
        return status ? gr_say_status(status) : 0;
    gr_say_error("the template makes an empty prompt, and this model has no token to begin with");
    return 1;
}

int gr_chat_tokens(struct chat *c, int32_t **ids, size_t *n)
{
    struct gr_prompt prompt;
    *ids = NULL, *n = 0;
    int rc = render(c, c->messages, false, &prompt);
    if (!rc)
        rc = tokenize(c, &prompt, ids, n);
    gr_prompt_free(&prompt);
    return rc;
}

/* Returns how many tokens at the beginning of the prompt are the system message. */
static int32_t count_system(struct chat *c)
{
    json_t *first = json_array_get(c->messages, 0);
    json_t *alone = has_role(first, "system") ? json_pack("[O]", first) : NULL;
    int32_t *ids = NULL;
    size_t n = 0, same = 0;
    char *context = NULL;
    struct gr_prompt prompt = {0};
    /* Templates that take no system message alone say so: nothing is kept then. */
    if (alone && !make_context(c, alone, false, &context) &&
        !gr_template_render(c->template, context, strlen(context), time(NULL), &prompt) &&
        !gr_prompt_tokenize(c->run.model, &prompt, &ids, &n))
        while (same < n && same < c->run.n_prompt && ids[same] == c->run.prompt[same])
            same++;
    gr_free_ids(ids);
    gr_prompt_free(&prompt);
    free(context);
    json_decref(alone);
    return (int32_t)same;
}

/* Chooses what --context-shift keeps: --keep, or the system message. Not for a text that has been
 * shifted, where it stays. */
static void choose_keep(struct chat *c)
{
    struct run *r = &c->run;
    if (!gr_length_shifts(r->o) || c->keeps_given)
        return;
    int32_t n = count_system(c);
    bool begun = r->prompt[0] == gr_text_bos(r->model);
    c->o.keep = n > begun ? n - begun : 0;
    r->cache.shift_keep = c->o.keep + begun;
}

/* Checks that the prompt fits, unless its oldest part may be dropped. */
static int admit(struct chat *c)
{
    struct run *r = &c->run;
    if (gr_length_shifts(r->o) && r->length.reach.can_shift)
        return 0;
    r->length.n_prompt = r->n_prompt;
    int rc = gr_length_admit(&r->length, &r->params);
    if (rc && c->edit)
        gr_say("/undo takes the last turn back, /clear begins anew");
    return rc;
}

/* Sets the run's prompt to the whole conversation, and how much of it the session has. */
static int prepare_turn(struct chat *c)
{
    struct run *r = &c->run;
    struct gr_prompt prompt;
    gr_free_ids(r->prompt);
    r->prompt = NULL, r->n_prompt = 0;
    int rc = render(c, c->messages, true, &prompt);
    if (!rc)
        rc = tokenize(c, &prompt, &r->prompt, &r->n_prompt);
    if (!rc)
        rc = admit(c);
    if (!rc)
        rc = gr_chat_begin_answer(c, &prompt);
    gr_prompt_free(&prompt);
    if (rc)
        return rc;
    bool shifted = r->cache.n_dropped > 0;
    if (!shifted)
        choose_keep(c);
    rc = gr_prompt_cache_reuse(&r->cache, r->session, r->prompt, r->n_prompt, &r->extend,
                               &r->n_past, &r->n_read);
    if (shifted && !r->cache.n_dropped)
        choose_keep(c);
    r->n_kept = r->n_read;
    return rc;
}

int gr_chat_trim(struct chat *c)
{
    struct run *r = &c->run;
    int32_t *ids = NULL;
    size_t n = 0, n_read;
    int rc = 0;
    if (!strcmp(gr_chat_last_role(c), "assistant") && !gr_chat_tokens(c, &ids, &n))
        rc = gr_prompt_cache_reuse(&r->cache, r->session, ids, n, &r->extend, &r->n_past, &n_read);
    else
        gr_prompt_cache_clear(&r->cache, r->session, &r->extend, &r->n_past);
    gr_free_ids(ids);
    return rc;
}

/* ---- the answer ---- */

/* Appends the answer to the messages. */
static int add_answer(struct chat *c)
{
    int rc = gr_chat_add(c, "assistant", c->answer.p, c->answer.n);
    json_t *m = rc ? NULL : json_array_get(c->messages, json_array_size(c->messages) - 1);
    if (!rc && c->reasoning.n &&
        json_object_set_new(m, "reasoning_content", json_stringn(c->reasoning.p, c->reasoning.n)))
        rc = gr_say_no_memory();
    if (!rc && json_array_size(c->calls) && json_object_set(m, "tool_calls", c->calls))
        rc = gr_say_no_memory();
    return rc;
}

/* Ends the answer on stdout. */
static int end_output(struct chat *c, int rc)
{
    const struct chat_text *text = c->legacy ? &c->shown : &c->answer;
    if (c->o.json)
        return gr_run_print_turn(&c->run, &(struct run_turn){text->p, text->n, c->reasoning.p,
                                                             c->reasoning.n, c->calls});
    if (!rc && (c->edit ? gr_out_is_open() : c->last != '\n'))
        gr_out("\n", 1);
    return 0;
}

static void count_turn(struct chat *c)
{
    const struct run *r = &c->run;
    c->n_prompt += (int64_t)r->n_read, c->n_reused += (int64_t)r->n_kept, c->n_gen += r->n_gen;
    c->prompt_s += r->prompt_s, c->gen_s += r->gen_s;
}

static int run_turn(struct chat *c)
{
    struct run *r = &c->run;
    int rc = prepare_turn(c);
    r->turn++;
    if (rc) {
        r->n_gen = 0, r->n_read = r->n_kept = 0, r->stop = STOP_ERROR;
        return rc;
    }
    r->put = gr_chat_take_text, r->put_user = c;
    rc = gr_run_answer(r);
    int ended = gr_chat_end_answer(c);
    count_turn(c);
    if (c->o.seed >= 0) /* the next answer, or another one to this message, has a seed of its own */
        c->o.seed = c->o.seed < INT64_MAX ? c->o.seed + 1 : 0;
    return rc ? rc : ended;
}

int gr_chat_answer(struct chat *c)
{
    struct run *r = &c->run;
    gr_chat_drop_answer(c);
    gr_catch_interrupts(r->session, r->draft_session);
    int rc = run_turn(c);
    gr_release_interrupts();
    bool nothing = r->stop == STOP_INTERRUPTED && !c->answer.n && !c->reasoning.n &&
                   !json_array_size(c->calls);
    if (!rc && !nothing)
        rc = add_answer(c);
    int printed = end_output(c, rc);
    rc = rc ? rc : printed;
    if (!rc && r->stop == STOP_CONTEXT) {
        gr_length_say_full(&r->length);
        if (c->edit)
            gr_say("/undo takes the last turn back, /clear begins anew");
    }
    return rc;
}
