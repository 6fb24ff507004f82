/* gpurun chat: a conversation with a model, on a terminal or line by line. */
#include "chat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "tools/cli/edit.h"
#include "tools/cli/input.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/say.h"
#include "tools/cli/templates.h"

#define MOST_MESSAGE ((size_t)16 << 20) /* bytes of a message */

/* ---- messages of standard input ---- */

/* Reads up to the end of a line, or of the input (`all`). *more: there was something. */
static int read_plain(struct chat_text *t, bool all, bool *more)
{
    int byte, rc = 0;
    t->n = 0, *more = false;
    while (!rc && (byte = getchar()) != EOF) {
        char one = (char)byte;
        *more = true;
        if (one == '\n' && !all) {
            t->n -= t->n && t->p[t->n - 1] == '\r';
            return gr_chat_add_text(t, "", 0);
        }
        rc = gr_chat_add_text(t, &one, 1);
        if (!rc && t->n > MOST_MESSAGE) {
            gr_say_error("a message may have %zu bytes at most", MOST_MESSAGE);
            rc = GR_EXIT_USAGE;
        }
    }
    if (!rc && ferror(stdin)) {
        gr_say_error("cannot read standard input: %s", strerror(errno));
        rc = 6;
    }
    return rc;
}

static bool is_blank(const struct chat_text *t)
{
    return !t->n || strspn(t->p, " \t\r\n") == t->n;
}

/* ---- messages of the terminal ---- */

/* "3.1k" tokens of 1024. */
static const char *amount(char buf[16], double n)
{
    double k = n / 1024;
    if (n < 1000)
        snprintf(buf, 16, "%.0f", n);
    else
        snprintf(buf, 16, "%.*fk", k == (double)(long)k || k >= 100 ? 0 : 1, k);
    return buf;
}

/* Returns whether the line ends with the mark, which is taken off. */
static bool take_end(size_t *n, const char *line, const char *mark)
{
    size_t m = strlen(mark);
    if (*n < m || memcmp(line + *n - m, mark, m) != 0)
        return false;
    *n -= m;
    return true;
}

enum block { ONE_LINE, QUOTED, MULTILINE };

/* Adds a line of the terminal; returns whether more lines follow. */
static bool add_line(enum block *block, struct chat_text *t, const char *line, size_t n, int *rc)
{
    bool more = *block != ONE_LINE, first = !t->n;
    if (*block == ONE_LINE && n >= 3 && !memcmp(line, "\"\"\"", 3))
        *block = QUOTED, more = true, line += 3, n -= 3;
    bool marked = take_end(&n, line, *block == QUOTED ? "\"\"\"" : "\\");
    more = marked ? *block == ONE_LINE : more;
    if (!first || n || !more)
        *rc = gr_chat_add_text(t, line, n);
    if (!*rc && more && (n || !first))
        *rc = gr_chat_add_text(t, "\n", 1);
    return more && !*rc && t->n < MOST_MESSAGE;
}

/* Reads a message or a command of the terminal; a message's first line may begin with two slashes
 * for one. */
static int read_typed(struct chat *c, struct chat_text *t, bool *command, bool *more)
{
    char prompt[64], used[16], size[16];
    enum block block = c->o.multiline_input ? MULTILINE : ONE_LINE;
    bool goes_on = true;
    int rc = 0;
    t->n = 0, *command = false, *more = true;
    if (gr_out_is_open())
        gr_out("\n", 1);
    snprintf(prompt, sizeof prompt, "[%s/%s] > ", amount(used, gr_kv_used(c->run.session)),
             amount(size, c->run.n_ctx));
    while (goes_on && !rc) {
        const char *line;
        size_t n;
        bool begun = t->n || block == QUOTED;
        enum gr_edit_result end = gr_edit_line(c->edit, begun ? "... " : prompt, &line, &n);
        gr_forget_interrupts(); /* of what is over */
        if (end != GR_EDIT_LINE)
            gr_print(end == GR_EDIT_INTERRUPT ? "^C\n" : "\n");
        if (end == GR_EDIT_INTERRUPT && !n && !begun && !gr_interrupted_lately()) {
            *more = false;
            return GR_EXIT_INTERRUPTED;
        }
        if (end == GR_EDIT_INTERRUPT) { /* begins the message anew */
            t->n = 0, block = c->o.multiline_input ? MULTILINE : ONE_LINE;
            continue;
        }
        if (end == GR_EDIT_END) {
            *more = begun;
            break;
        }
        *command = !begun && *line == '/' && line[1] != '/';
        if (!begun && *line == '/' && !*command)
            line++, n--;
        goes_on = *command ? (rc = gr_chat_add_text(t, line, n), false)
                           : add_line(&block, t, line, n, &rc);
    }
    return rc;
}

/* ---- the conversation ---- */

/* Answers a message, which is taken back when there is no answer; on a terminal a failure of one
 * turn does not end the chat. */
static int answer(struct chat *c, const char *text, size_t n)
{
    size_t n_read = c->read.n;
    int rc = n_read ? gr_chat_add_text(&c->read, text, n) : 0;
    if (!rc && n_read)
        text = c->read.p, n = c->read.n;
    if (!rc)
        rc = gr_chat_add(c, "user", text, n);
    if (!rc) {
        rc = gr_chat_answer(c);
        if (strcmp(gr_chat_last_role(c), "assistant") != 0)
            (void)gr_chat_take_back(c, "user");
    }
    c->read.n = rc ? n_read : 0;
    bool interrupted = gr_interrupted();
    if (!c->edit)
        return rc || !interrupted ? rc : GR_EXIT_INTERRUPTED;
    return gr_chat_ends(rc);
}

static int next_typed(struct chat *c, struct chat_text *t, bool *more)
{
    bool command;
    int rc = read_typed(c, t, &command, more);
    if (rc || !*more || is_blank(t))
        return rc;
    return command ? gr_chat_command(c, t->p) : answer(c, t->p, t->n);
}

static int next_plain(struct chat *c, struct chat_text *t, bool *more)
{
    int rc = read_plain(t, c->o.single_turn > 0, more);
    if (c->o.single_turn && t->n && t->p[t->n - 1] == '\n')
        t->p[--t->n] = 0;
    return rc || !*more || is_blank(t) ? rc : answer(c, t->p, t->n);
}

static int converse(struct chat *c)
{
    struct chat_text t = {0};
    bool more = true;
    int rc = 0;
    while (!rc && more && !c->ended && !gr_out_ended()) {
        rc = c->edit ? next_typed(c, &t, &more) : next_plain(c, &t, &more);
        if (c->o.single_turn && c->run.turn)
            break;
    }
    gr_chat_drop_text(&t);
    return rc;
}

/* Answers the message of -p or -f, if any. */
static int answer_first(struct chat *c)
{
    const struct gr_options *o = &c->o;
    char *text = NULL;
    size_t n = 0;
    int rc = 0;
    if (o->file && !strcmp(o->file, "-"))
        return 0;
    if (o->file)
        rc = gr_read_all(o->file, &text, &n);
    else if (o->prompt && !(text = strdup(o->prompt)))
        rc = gr_say_no_memory();
    else if (o->prompt)
        n = o->escape ? gr_unescape(text) : strlen(text);
    if (!rc && o->file && n && text[n - 1] == '\n')
        n--;
    if (!rc && c->edit && n)
        gr_out("> ", 2), gr_out(text, n), gr_out("\n", 1);
    if (!rc && n)
        rc = answer(c, text, n);
    free(text);
    return rc;
}

/* ---- the command ---- */

static int set_first_system(struct chat *c)
{
    const struct gr_options *o = &c->o;
    char *text = NULL;
    size_t n = 0;
    int rc = 0;
    if (o->system_prompt_file)
        rc = gr_read_all(o->system_prompt_file, &text, &n);
    else if (o->system_prompt && !(text = strdup(o->system_prompt)))
        rc = gr_say_no_memory();
    else if (o->system_prompt)
        n = o->escape ? gr_unescape(text) : strlen(text);
    if (!rc && o->system_prompt_file && n && text[n - 1] == '\n')
        n--;
    if (!rc)
        rc = gr_chat_set_system(c, text, n);
    free(text);
    return rc;
}

static int open_chat(struct chat *c)
{
    struct run *r = &c->run;
    const char *format = c->o.reasoning_format;
    c->raw = !strcmp(format, "none"), c->legacy = !strcmp(format, "deepseek-legacy");
    c->hides = !strcmp(format, "hidden");
    c->color = gr_run_use_color(&c->o);
    c->keeps_given = c->o.given.keep.text && c->o.keep >= 0;
    c->messages = json_array();
    if (!c->messages)
        return gr_say_no_memory();
    int rc = set_first_system(c);
    if (!rc)
        rc = gr_run_open(r);
    gr_release_interrupts();
    if (!rc && gr_interrupted())
        rc = GR_EXIT_INTERRUPTED;
    if (!rc && r->info.has_encoder) {
        gr_say_error("a %s model reads its prompt at once and holds no conversation; gpurun run -p "
                     "TEXT has it answer",
                     r->info.arch);
        rc = gr_status_exit(GR_E_UNSUPPORTED);
    }
    if (!rc)
        rc = gr_open_template(&c->o, r->model, &c->template, &c->format);
    r->marks = !c->raw && !rc && strcmp(c->format, "plain") != 0;
    bool typed = !c->o.json && isatty(STDIN_FILENO) && gr_is_terminal(STDOUT_FILENO);
    if (!rc && typed)
        rc = gr_edit_open(&c->edit);
    if (c->edit)
        gr_interrupts_end_answers();
    return rc;
}

static void say_summary(const struct chat *c)
{
    double prompt = (double)(c->n_prompt - c->n_reused);
    double gen = (double)(c->n_gen - c->run.turn); /* the first one of a turn is the prompt's */
    if (!c->run.turn || !c->o.perf)
        return;
    gr_say("chat: %d turn%s | prompt %lld tok, %lld of them kept, %.1f t/s | gen %lld tok %.1f t/s "
           "| load %.2f s",
           c->run.turn, c->run.turn == 1 ? "" : "s", (long long)c->n_prompt, (long long)c->n_reused,
           c->prompt_s > 0 ? prompt / c->prompt_s : 0, (long long)c->n_gen,
           gen > 0 && c->gen_s > 0 ? gen / c->gen_s : 0, c->run.load_s);
}

static void close_chat(struct chat *c)
{
    gr_edit_close(&c->edit);
    gr_template_free(&c->template);
    gr_run_close(&c->run);
    json_decref(c->messages);
    gr_chat_drop_answer(c);
    gr_chat_drop_text(&c->answer);
    gr_chat_drop_text(&c->shown);
    gr_chat_drop_text(&c->arguments);
    gr_chat_drop_text(&c->reasoning);
    gr_chat_drop_text(&c->read);
    while (c->n_kept > 0)
        free(c->kept[--c->n_kept]);
    free((void *)c->kept);
    free(c->file);
}

int gr_tool_chat(const struct gr_options *o)
{
    struct chat c = {.o = *o};
    c.run.o = &c.o, c.run.chat = true;
    c.run.cache.record = true;
    int rc = open_chat(&c);
    if (!rc && c.edit)
        gr_say("Ctrl-C stops an answer, Ctrl-D ends the chat; /help lists the commands");
    if (!rc)
        rc = answer_first(&c);
    if (!rc && !(o->single_turn && c.run.turn))
        rc = converse(&c);
    if (!rc || rc == GR_EXIT_INTERRUPTED)
        say_summary(&c);
    close_chat(&c);
    return rc;
}
