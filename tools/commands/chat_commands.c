/* The commands of gpurun chat on a terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/input.h"
#include "tools/cli/say.h"

/* A command's function: an error of what was typed is printed, and ends nothing. Returns 0, or an
 * exit code that ends the chat. */
typedef int command_fn(struct chat *c, const char *arg);

static int end_chat(struct chat *c, const char *arg)
{
    (void)arg;
    c->ended = true;
    return 0;
}

static int clear(struct chat *c, const char *arg)
{
    (void)arg;
    struct run *r = &c->run;
    while (json_array_size(c->messages) && strcmp(gr_chat_last_role(c), "system") != 0)
        (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
    gr_prompt_cache_clear(&r->cache, r->session, &r->extend, &r->n_past);
    c->read.n = 0;
    return 0;
}

static int undo(struct chat *c, const char *arg)
{
    (void)arg;
    if (gr_chat_take_back(c, "user"))
        return gr_chat_ends(gr_chat_trim(c));
    gr_say_error("there is no turn to take back");
    return 0;
}

static int regenerate(struct chat *c, const char *arg)
{
    (void)arg;
    json_t *last = NULL;
    int rc = 0;
    if (!strcmp(gr_chat_last_role(c), "assistant")) {
        last = json_incref(json_array_get(c->messages, json_array_size(c->messages) - 1));
        (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    if (strcmp(gr_chat_last_role(c), "user") != 0)
        gr_say_error("there is no message to answer again");
    else
        rc = gr_chat_answer(c);
    if (last && strcmp(gr_chat_last_role(c), "assistant") != 0) /* there is no other one */
        (void)json_array_append(c->messages, last);
    json_decref(last);
    return gr_chat_ends(rc);
}

static int set_system(struct chat *c, const char *arg)
{
    (void)gr_chat_set_system(c, arg, strlen(arg));
    return 0;
}

/* ---- /set ---- */

static const struct gr_flag *find_setting(const char *name, size_t n, bool *off)
{
    char flag[64];
    for (int dashes = 0; dashes < 3; dashes++) {
        int m = snprintf(flag, sizeof flag, "%.*s%.*s", dashes, "--", (int)n, name);
        for (int i = 2; i < m && m < (int)sizeof flag; i++)
            flag[i] = flag[i] == '_' ? '-' : flag[i];
        const struct gr_flag *f = *flag == '-' && m < (int)sizeof flag
                                      ? gr_flag_find(GR_CMD_chat, flag, (size_t)m, off)
                                      : NULL;
        bool text = f && (f->offset == offsetof(struct gr_options, n_predict) ||
                          f->offset == offsetof(struct gr_options, ignore_eos));
        if (f && f->kind < LIST && (f->group == SAMPLING || text))
            return f;
    }
    return NULL;
}

/* Keeps a copy of a value, which options point to, until the chat ends. NULL: no memory. */
static char *keep_value(struct chat *c, const char *value)
{
    char **grown = realloc((void *)c->kept, (c->n_kept + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    c->kept = grown;
    grown[c->n_kept] = strdup(value);
    return grown[c->n_kept] ? grown[c->n_kept++] : NULL;
}

/* Makes the grammar that the options name now. */
static int renew_grammar(struct chat *c)
{
    struct gr_grammar_state *state = NULL;
    int rc = gr_open_grammar(&c->o, c->run.model, &state);
    if (rc)
        return rc;
    if (c->run.sampler) /* not behind an answer that could not begin */
        (void)gr_sampler_set_grammar(c->run.sampler, NULL);
    gr_grammar_state_free(&c->run.grammar);
    c->run.grammar = state;
    return 0;
}

static int set_flag(struct chat *c, const struct gr_flag *f, const char *value, bool off)
{
    struct gr_options before = c->o;
    char *text = keep_value(c, value);
    if (!text)
        return gr_say_no_memory();
    bool none = f->kind == STR && !*text;
    struct gr_given *g = (void *)((char *)&c->o + f->given);
    const char *want = NULL;
    if (none)
        *(const char **)(void *)((char *)&c->o + f->offset) = NULL;
    else
        want = gr_value_store(&c->o, f, text, off, false);
    if (want) {
        gr_say_error("/set: '%s': %s is expected", value, want);
        return 0;
    }
    g->text = none ? NULL : text, g->by_flag = !none;
    if (gr_options_check(&c->o) || (f->kind == STR && renew_grammar(c)))
        c->o = before;
    return 0;
}

/* "NAME VALUE", "NAME = VALUE", with or without the dashes of the flag. */
static int set(struct chat *c, const char *arg)
{
    size_t n = strcspn(arg, " =");
    const char *value = arg + n + strspn(arg + n, " =");
    bool off = false;
    const struct gr_flag *f = find_setting(arg, n, &off);
    if (!*arg) {
        gr_say("/set NAME VALUE sets a flag of sampling, -n or --ignore-eos: /set temp 0.2");
        return 0;
    }
    if (f && (*value || f->kind == STR || f->kind == SWITCH))
        return set_flag(c, f, f->kind == SWITCH && !*value ? "on" : value, off);
    if (f)
        gr_say_error("/set %.*s needs a value, %s", (int)n, arg, f->value);
    else
        gr_say_error("/set: '%.*s' is no flag of sampling; gpurun help sampling lists them", (int)n,
                     arg);
    return 0;
}

/* ---- files ---- */

static int save(struct chat *c, const char *arg)
{
    const char *path = *arg ? arg : c->file;
    if (!path)
        gr_say_error("/save needs the name of a file");
    else
        (void)gr_chat_save(c, path);
    return 0;
}

static int load(struct chat *c, const char *arg)
{
    if (!*arg)
        gr_say_error("/load needs the name of a file");
    else
        (void)gr_chat_load(c, arg);
    return 0;
}

static int read_file(struct chat *c, const char *arg)
{
    char *text = NULL;
    size_t n = 0;
    if (!*arg || !strcmp(arg, "-")) {
        gr_say_error("/read needs the name of a file");
        return 0;
    }
    if (!gr_read_all(arg, &text, &n)) {
        size_t before = c->read.n;
        if (gr_chat_add_text(&c->read, text, n) ||
            (n && text[n - 1] != '\n' && gr_chat_add_text(&c->read, "\n", 1)))
            c->read.n = before;
        else
            gr_say("%zu bytes of %s begin the next message", n, arg);
    }
    free(text);
    return 0;
}

/* ---- figures ---- */

static int print_tokens(struct chat *c, const char *arg)
{
    (void)arg;
    int32_t *ids;
    size_t n;
    if (!json_array_size(c->messages)) {
        gr_say("no messages");
    } else if (!gr_chat_tokens(c, &ids, &n)) {
        gr_say("%zu messages, %zu tokens; the context has %d, of which %u are in use",
               json_array_size(c->messages), n, c->run.n_ctx, gr_kv_used(c->run.session));
        gr_free_ids(ids);
    }
    return 0;
}

static int print_timings(struct chat *c, const char *arg)
{
    (void)arg;
    if (c->run.turn)
        gr_run_say_summary(&c->run);
    else
        gr_say("there was no turn yet");
    return 0;
}

static command_fn help;

static const struct {
    const char *name, *args, *about;
    command_fn *fn;
} commands[] = {
    {"exit", "", "end the chat, as Ctrl-D does", end_chat},
    {"clear", "", "begin anew; the system message stays", clear},
    {"regen", "", "another answer to the last message", regenerate},
    {"undo", "", "take back the last message and its answer", undo},
    {"system", "TEXT", "what the assistant is to be; without TEXT nothing", set_system},
    {"set", "NAME VALUE", "set a flag of sampling: /set temp 0.2", set},
    {"save", "FILE", "write the messages to FILE as JSON, and the state to FILE.kv", save},
    {"load", "FILE", "go on from there", load},
    {"read", "FILE", "begin the next message with the text of FILE", read_file},
    {"tokens", "", "how long the conversation is", print_tokens},
    {"timings", "", "how long the last turn took", print_timings},
    {"help", "", "this list", help},
};
enum { N_COMMAND = sizeof commands / sizeof *commands };

static int help(struct chat *c, const char *arg)
{
    (void)c, (void)arg;
    for (int i = 0; i < N_COMMAND; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s %s", commands[i].name, commands[i].args);
        gr_say("/%-18s %s", name, commands[i].about);
    }
    gr_say("%-19s %s", "\"\"\"",
           "begins and ends a message of several lines; \\ at an end goes on too");
    gr_say("%-19s %s", "//", "begins a message with /");
    return 0;
}

static int unknown(const char *name, size_t n)
{
    const char *best = NULL;
    size_t least = 3;
    for (int i = 0; i < N_COMMAND; i++) {
        size_t d = gr_edit_distance(name, n, commands[i].name, strlen(commands[i].name));
        if (d < least)
            least = d, best = commands[i].name;
    }
    gr_say_error("there is no command /%.*s%s%s%s; /help lists them, // begins a message with /",
                 (int)n, name, best ? ": did you mean /" : "", best ? best : "", best ? "?" : "");
    return 0;
}

int gr_chat_command(struct chat *c, const char *line)
{
    const char *name = line + 1;
    size_t n = strcspn(name, " \t");
    const char *arg = name + n + strspn(name + n, " \t");
    if (n == 4 && !memcmp(name, "quit", 4))
        return end_chat(c, arg);
    for (int i = 0; i < N_COMMAND; i++)
        if (strlen(commands[i].name) == n && !memcmp(commands[i].name, name, n))
            return commands[i].fn(c, arg);
    return unknown(name, n);
}
