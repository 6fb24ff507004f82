#include "edit.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpurun.h"
#include "say.h"

#define MOST_LINES 1000 /* of the history */

struct gr_edit {
    EditLine *line;
    History *history;
    char *path; /* of the history; NULL: it is not kept */
    const char *prompt;
    bool interrupted;
};

/* ---- the history ---- */

/* Makes the folders of a path, below a folder that is there. */
static void make_folders(char *path)
{
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        (void)mkdir(path, 0700); /* what is missing then is told by the file */
        *p = '/';
    }
}

/* Returns the path of the history (free), or NULL. */
static char *history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int n = -1;
    if (state && *state == '/')
        n = asprintf(&path, "%s/gpurun/history", state);
    else if (home && *home == '/')
        n = asprintf(&path, "%s/.local/state/gpurun/history", home);
    return n < 0 ? NULL : path;
}

/* Loads the history; a file that has grown to twice its length is written anew. */
static void load_history(struct gr_edit *e)
{
    HistEvent ev;
    history(e->history, &ev, H_SETSIZE, MOST_LINES);
    history(e->history, &ev, H_SETUNIQUE, 1);
    e->path = history_path();
    if (!e->path)
        return;
    make_folders(e->path);
    if (history(e->history, &ev, H_LOAD, e->path) > 2 * MOST_LINES)
        history(e->history, &ev, H_SAVE, e->path);
}

/* Appends a line to the file, as a history of one line, so that several chats may share it. */
static void keep_line(struct gr_edit *e, const char *line)
{
    HistEvent ev;
    History *one = e->path ? history_init() : NULL;
    int fd = one ? open(e->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    FILE *f = fd < 0 ? NULL : fdopen(fd, "a");
    bool written = f && !fseek(f, 0, SEEK_END) && history(one, &ev, H_SETSIZE, 1) >= 0 &&
                   history(one, &ev, H_ENTER, line) >= 0 && history(one, &ev, H_SAVE_FP, f) >= 0;
    int error = errno;
    if (f ? fclose(f) : fd >= 0 && close(fd))
        written = false;
    if (one)
        history_end(one);
    if (!e->path || written)
        return;
    gr_say_warning("the history is not kept: %s: %s", e->path, strerror(error));
    free(e->path);
    e->path = NULL;
}

static void add_to_history(struct gr_edit *e, const char *line)
{
    HistEvent ev;
    if (!line[strspn(line, " \t\r\n")])
        return;
    bool repeated = history(e->history, &ev, H_FIRST) >= 0 && !strcmp(ev.str, line);
    if (!repeated && history(e->history, &ev, H_ENTER, line) >= 0)
        keep_line(e, line);
}

/* ---- the terminal ---- */

static char *show_prompt(EditLine *line)
{
    static char empty[1];
    struct gr_edit *e = NULL;
    el_get(line, EL_CLIENTDATA, &e);
    return e ? (char *)(uintptr_t)e->prompt : empty;
}

static unsigned char on_interrupt(EditLine *line, int key)
{
    struct gr_edit *e = NULL;
    (void)key;
    el_get(line, EL_CLIENTDATA, &e);
    if (e)
        e->interrupted = true;
    return CC_EOF;
}

/* libedit reads characters of the locale: one of UTF-8 is needed, whatever the user's is. */
static void choose_locale(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        (void)setlocale(LC_CTYPE, "C.UTF-8");
}

int gr_edit_open(struct gr_edit **out)
{
    struct gr_edit *e = *out = calloc(1, sizeof *e);
    if (!e)
        return gr_say_no_memory();
    choose_locale();
    e->prompt = "";
    e->history = history_init();
    e->line = e->history ? el_init("gpurun", stdin, stdout, stderr) : NULL;
    if (!e->line) {
        gr_edit_close(out);
        return gr_say_no_memory();
    }
    el_set(e->line, EL_CLIENTDATA, e);
    el_set(e->line, EL_PROMPT, show_prompt);
    el_set(e->line, EL_EDITOR, "emacs");
    el_set(e->line, EL_SIGNAL, 1);
    el_set(e->line, EL_HIST, history, e->history);
    el_set(e->line, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(e->line, NULL); /* ~/.editrc */
    /* Ctrl-C is a key while a line is edited, so that it leaves in good order. */
    el_set(e->line, EL_ADDFN, "gr-interrupt", "leave the line", on_interrupt);
    el_set(e->line, EL_SETTY, "-d", "-isig", NULL);
    el_set(e->line, EL_BIND, "^C", "gr-interrupt", NULL);
    load_history(e);
    return 0;
}

void gr_edit_close(struct gr_edit **e)
{
    if (!*e)
        return;
    if ((*e)->line)
        el_end((*e)->line);
    if ((*e)->history)
        history_end((*e)->history);
    free((*e)->path);
    free(*e);
    *e = NULL;
}

enum gr_edit_result gr_edit_line(struct gr_edit *e, const char *prompt, const char **line,
                                 size_t *n)
{
    int count = 0;
    e->prompt = prompt, e->interrupted = false;
    const char *text = el_gets(e->line, &count);
    if (e->interrupted) {
        const LineInfo *typed = el_line(e->line);
        *line = "", *n = (size_t)(typed->lastchar - typed->buffer);
        return GR_EDIT_INTERRUPT;
    }
    if (!text || count <= 0)
        return GR_EDIT_END;
    char *end = (char *)(uintptr_t)text + count;
    if (end[-1] == '\n')
        *--end = 0;
    *line = text, *n = (size_t)(end - text);
    add_to_history(e, text);
    return GR_EDIT_LINE;
}
