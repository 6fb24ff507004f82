/* Turns of gpurun chat: messages become a prompt, of which the session has the beginning already;
 * the answer becomes a message. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "chat.h"
#include "templates.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/json.h"
#include "tools/cli/say.h"

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

/* What the template sees, as JSON text (free). */
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

int gr_chat_tokens(struct chat *c, json_t *messages, bool generation, int32_t **ids, size_t *n,
                   bool *opened)
{
    struct gr_prompt prompt = {0};
    char *context;
    *ids = NULL, *n = 0;
    int rc = make_context(c, messages, generation, &context);
    if (rc)
        return rc;
    int status = gr_template_render(c->template, context, strlen(context), time(NULL), &prompt);
    if (!status)
        status = gr_prompt_tokenize(c->run.model, &prompt, ids, n);
    *opened = !status && gr_think_is_opened(prompt.text, prompt.n);
    gr_prompt_free(&prompt);
    free(context);
    if (!status && *n)
        return 0;
    if (status)
        return gr_say_status(status);
    gr_say_error("the template makes an empty prompt, and this model has no token to begin with");
    return 1;
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

/* Chooses what --context-shift keeps: --keep, or the system message. */
static void choose_keep(struct chat *c)
{
    struct run *r = &c->run;
    if (!gr_length_shifts(r->o) || r->cache.n_dropped || c->keeps_given)
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
    bool opened;
    gr_free_ids(r->prompt);
    int rc = gr_chat_tokens(c, c->messages, true, &r->prompt, &r->n_prompt, &opened);
    if (!rc)
        rc = admit(c);
    if (rc)
        return rc;
    choose_keep(c);
    gr_prompt_cache_reuse(&r->cache, r->session, r->prompt, r->n_prompt, &r->extend, &r->n_past,
                          &r->n_read);
    r->n_kept = r->n_read;
    gr_think_begin(&c->think, opened);
    c->answer.n = c->reasoning.n = 0;
    return 0;
}

/* ---- the answer ---- */

static void set_dimmed(struct chat *c, bool on)
{
    if (c->dimmed == on)
        return;
    c->dimmed = on;
    const char *mark = c->color ? (on ? "\033[2m" : "\033[0m\n")
                       : on     ? "<think>\n"
                                : "\n</think>\n";
    gr_out(mark, strlen(mark));
}

/* Takes a part of the answer; a gr_think_fn. */
static int take_part(void *user, bool reasoning, const char *p, size_t n)
{
    struct chat *c = user;
    bool shown = !c->o.json && !c->legacy && (!reasoning || (c->edit && !c->hides));
    if (shown) {
        set_dimmed(c, reasoning);
        gr_out(p, n);
    }
    return c->legacy && !reasoning ? 0
                                   : gr_chat_add_text(reasoning ? &c->reasoning : &c->answer, p, n);
}

/* Takes the next text of the model; run.put. */
static int take_text(void *user, const char *p, size_t n)
{
    struct chat *c = user;
    if (c->raw)
        return take_part(c, false, p, n);
    if (c->legacy) {
        if (!c->o.json)
            gr_out(p, n);
        int rc = gr_chat_add_text(&c->answer, p, n);
        if (rc)
            return rc;
    }
    return gr_think_push(&c->think, p, n);
}

/* Appends the answer to the messages. */
static int add_answer(struct chat *c)
{
    int rc = gr_chat_add(c, "assistant", c->answer.p, c->answer.n);
    if (rc || !c->reasoning.n)
        return rc;
    json_t *m = json_array_get(c->messages, json_array_size(c->messages) - 1);
    json_t *text = json_stringn(c->reasoning.p, c->reasoning.n);
    return json_object_set_new(m, "reasoning_content", text) ? gr_say_no_memory() : 0;
}

/* Ends the answer on stdout. */
static int end_output(struct chat *c, int rc)
{
    set_dimmed(c, false);
    if (c->o.json)
        return gr_run_print_turn(&c->run, c->answer.p, c->answer.n, c->reasoning.p, c->reasoning.n);
    if (!rc && (c->edit ? gr_out_is_open() : !c->answer.n || c->answer.p[c->answer.n - 1] != '\n'))
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
    r->put = take_text, r->put_user = c;
    c->think.fn = take_part, c->think.user = c;
    rc = gr_run_answer(r);
    int ended = c->raw ? 0 : gr_think_end(&c->think);
    count_turn(c);
    if (c->o.seed >= 0) /* the next answer, or another one to this message, has a seed of its own */
        c->o.seed = c->o.seed < INT64_MAX ? c->o.seed + 1 : 0;
    return rc ? rc : ended;
}

int gr_chat_answer(struct chat *c)
{
    struct run *r = &c->run;
    c->answer.n = c->reasoning.n = 0;
    gr_catch_interrupts(r->session, NULL);
    int rc = run_turn(c);
    gr_release_interrupts();
    bool nothing = r->stop == STOP_INTERRUPTED && !c->answer.n && !c->reasoning.n;
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
