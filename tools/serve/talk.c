/* Requests for answers in a conversation. */
#include "talk.h"

#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "lists.h"
#include "text.h"
#include "tools/cli/flags.h"

struct gr_talk *gr_talk_new(struct gr_generation *g, struct gr_fields *f, gr_call_fn *call)
{
    struct gr_talk *t = g->own = calloc(1, sizeof *t);
    if (!t) {
        gr_field_wrong(f, "", "out of memory");
        return NULL;
    }
    t->call = call;
    return t;
}

void gr_talk_free(struct gr_generation *g)
{
    struct gr_talk *t = g->own;
    gr_reading_free(g);
    if (!t)
        return;
    gr_messages_drop(&t->messages);
    free(t->prompt);
    free(t);
}

/* ---- tools ---- */

/* Forces calls: of the function `name`, or of any. */
static void force(struct gr_generation *g, struct gr_fields *f, const char *name)
{
    struct gr_talk *t = g->own;
    char *tools = t->messages.tools ? json_dumps(t->messages.tools, 0) : NULL;
    if (!tools || !g->server->format) {
        gr_field_wrong(f, "tool_choice",
                       tools ? "tool_choice: the model has no chat template"
                             : "tool_choice: there are no tools");
        free(tools);
        return;
    }
    struct gr_answer_calls calls = {.format = g->server->format,
                                    .tools = tools,
                                    .n_tools = strlen(tools),
                                    .name = name,
                                    .several = t->several};
    gr_grammar_free(&g->ask.grammar);
    if (gr_answer_grammar(&g->ask.grammar, g->server->model, &calls))
        gr_field_wrong(f, "tool_choice", "tool_choice: %s", gr_error_message());
    free(tools);
}

static void read_choice(struct gr_generation *g, struct gr_fields *f)
{
    struct gr_talk *t = g->own;
    const json_t *v = gr_field(f, "tool_choice");
    const char *word = json_string_value(v);
    const json_t *function = json_object_get(v, "function");
    const char *name = json_string_value(json_object_get(function ? function : v, "name"));
    t->several = gr_field_bool(f, "parallel_tool_calls", true);
    if (word && !strcmp(word, "none")) {
        json_decref(t->messages.tools);
        t->messages.tools = NULL;
    } else if (name) {
        force(g, f, name);
    } else if (word && !strcmp(word, "required")) {
        force(g, f, NULL);
    } else if (v && (!word || strcmp(word, "auto") != 0)) {
        gr_field_wrong(f, "tool_choice",
                       "tool_choice: none, auto, required, or an object with "
                       "function.name is expected");
    } else if (t->messages.tools && g->ask.grammar) {
        gr_field_wrong(f, "tool_choice",
                       "a grammar leaves no room for tool calls: tool_choice none or required says "
                       "which is meant");
    }
}

/* ---- reasoning ---- */

/* Returns whether it is a choice of --reasoning-format. */
static bool is_choice(const char *word)
{
    static const char flag[] = "--reasoning-format";
    bool off;
    const struct gr_flag *f = gr_flag_find(GR_N_COMMANDS, flag, sizeof flag - 1, &off);
    size_t n = strlen(word), m;
    for (const char *at = f->value; *at; at += m + (at[m] == '|')) {
        m = strcspn(at, "|");
        if (m == n && !memcmp(at, word, n))
            return true;
    }
    return false;
}

static void read_reasoning(struct gr_talk *t, struct gr_fields *f, const struct gr_options *o)
{
    const char *given = gr_field_text(f, "reasoning_format");
    const char *word = given ? given : o->reasoning_format;
    t->reasoning = !strcmp(word, "none")     ? GR_REASONING_INLINE
                   : !strcmp(word, "hidden") ? GR_REASONING_DROPPED
                                             : GR_REASONING_APART;
    if (!is_choice(word))
        gr_field_wrong(f, "reasoning_format",
                       "reasoning_format: '%.32s' is none of those of "
                       "--reasoning-format",
                       word);
}

/* ---- the prompt ---- */

/* Returns whether the text ends with the mark, blanks aside. */
static bool ends_with(const char *p, size_t n, const char *mark)
{
    size_t m = strlen(mark);
    while (n && strchr(" \t\r\n", p[n - 1]))
        n--;
    return n >= m && !memcmp(p + n - m, mark, m);
}

/* Keeps the text of the prompt. A grammar holds from the first token of the answer on, so a block
 * of reasoning that the prompt opens is closed. */
static bool keep_text(struct gr_talk *t, const struct gr_prompt *prompt, bool close)
{
    static const char mark[] = "</think>\n\n";
    bool open = close && ends_with(prompt->text, prompt->n, "<think>");
    t->prompt = malloc(prompt->n + sizeof mark);
    if (!t->prompt)
        return false;
    memcpy(t->prompt, prompt->text, prompt->n);
    t->n_prompt = prompt->n;
    if (open) {
        memcpy(t->prompt + t->n_prompt, mark, sizeof mark - 1);
        t->n_prompt += sizeof mark - 1;
    }
    t->prompt[t->n_prompt] = 0;
    return true;
}

static void add_prompt(struct gr_generation *g, struct gr_fields *f)
{
    struct gr_talk *t = g->own;
    struct gr_prompt prompt, whole;
    int32_t *ids = NULL;
    size_t n = 0;
    gr_messages_render(&t->messages, g->server, f, &prompt);
    if (!f->wrong && !keep_text(t, &prompt, g->ask.grammar != NULL))
        gr_field_wrong(f, "", "out of memory");
    if (!f->wrong) {
        whole = prompt;
        whole.text = t->prompt, whole.n = t->n_prompt;
        if (gr_prompt_tokenize(g->server->model, &whole, &ids, &n))
            gr_field_wrong(f, "messages", "%s", gr_error_message());
        else
            gr_generation_add(g, f, ids, n);
    }
    gr_free_ids(ids);
    gr_prompt_free(&prompt);
}

void gr_talk_start(struct gr_generation *g, struct gr_fields *f)
{
    struct gr_talk *t = g->own;
    if (t) {
        struct gr_messages *c = &t->messages;
        read_choice(g, f);
        read_reasoning(t, f, g->server->options);
        gr_messages_read_template(c, f);
        c->quiet = g->ask.grammar != NULL;
    }
    if (t && !f->wrong)
        add_prompt(g, f);
    gr_generation_start(g, f);
}

void gr_talk_prepare(struct gr_generation *g, struct gr_fields *f)
{
    struct gr_talk *t = g->own;
    bool plain = t->reasoning == GR_REASONING_INLINE && !t->messages.tools;
    struct gr_reading_params p = {.format = plain ? NULL : g->server->format,
                                  .prompt = t->prompt,
                                  .n_prompt = t->n_prompt,
                                  .tools = t->messages.tools,
                                  .several = t->several,
                                  .reasoning = t->reasoning,
                                  .call = t->call};
    g->special = p.format && strcmp(p.format, "plain") != 0;
    int rc = gr_reading_begin(g, &p);
    if (rc)
        gr_field_wrong(f, "tools", "%s", gr_failure_text(rc));
}

/* ---- answers ---- */

void gr_talk_piece(struct gr_choice *c, const struct gr_piece *piece)
{
    const struct gr_generation *g = c->g;
    if (g->ask.n_top >= 0 && piece->id >= 0 && !gr_text_is_eog(g->server->model, piece->id))
        gr_list_object(c, piece);
    gr_reading_push(c, piece->text, piece->n);
}

void gr_talk_end(struct gr_choice *c)
{
    gr_reading_end(c);
}
