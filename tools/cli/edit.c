#include "edit.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpurun.h"
#include "libedit.h"
#include "say.h"

#define MOST_LINES 1000 /* of the history */

struct gr_edit {
    const struct gr_libedit *lib; /* NULL: lines are read as the terminal edits them */
    char *text;                   /* [size] the last line then */
    size_t size;
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

static void lose_history(struct gr_edit *e, const char *why)
{
    gr_say_warning("the history is not kept: %s", why);
    free(e->path);
    e->path = NULL;
}

/* Copies what a file has. */
static int copy_file(struct gr_output *out, FILE *f)
{
    char piece[4096];
    size_t n;
    int status = 0;
    rewind(f);
    while (!status && (n = fread(piece, 1, sizeof piece, f)) > 0)
        status = gr_output_put(out, piece, n);
    return status;
}

/* Replaces the file by the history as it is; an older one stays whole until then. libedit writes to
 * a file with a descriptor only. */
static void replace_history(struct gr_edit *e)
{
    HistEvent ev;
    struct gr_output *out = NULL;
    FILE *f = tmpfile();
    bool written = f && e->lib->history(e->history, &ev, H_SAVE_FP, f) >= 0 && !fflush(f);
    const char *why = written ? NULL : strerror(errno);
    int status = written ? gr_output_open(&out, e->path, GR_OUTPUT_PRIVATE) : 0;
    if (written && !status)
        status = copy_file(out, f);
    if (written && !status)
        status = gr_output_commit(&out);
    gr_output_abort(&out);
    if (f)
        fclose(f);
    if (!written || status)
        lose_history(e, written ? gr_error_message() : why);
}

/* Loads the history; a file that has grown to twice its length is replaced. */
static void load_history(struct gr_edit *e)
{
    HistEvent ev;
    e->lib->history(e->history, &ev, H_SETSIZE, MOST_LINES);
    e->lib->history(e->history, &ev, H_SETUNIQUE, 1);
    e->path = history_path();
    if (!e->path)
        return;
    make_folders(e->path);
    if (e->lib->history(e->history, &ev, H_LOAD, e->path) > 2 * MOST_LINES)
        replace_history(e);
}

/* Appends a line to the file, as a history of one line, so that several chats may share it. */
static void keep_line(struct gr_edit *e, const char *line)
{
    HistEvent ev;
    History *one = e->path ? e->lib->history_init() : NULL;
    int fd = one ? open(e->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    FILE *f = fd < 0 ? NULL : fdopen(fd, "a");
    bool written = f && !fseek(f, 0, SEEK_END) && e->lib->history(one, &ev, H_SETSIZE, 1) >= 0 &&
                   e->lib->history(one, &ev, H_ENTER, line) >= 0 &&
                   e->lib->history(one, &ev, H_SAVE_FP, f) >= 0;
    int error = errno;
    if (f ? fclose(f) : fd >= 0 && close(fd))
        written = false;
    if (one)
        e->lib->history_end(one);
    char why[PATH_MAX + 64];
    if (!e->path || written)
        return;
    snprintf(why, sizeof why, "%s: %s", e->path, strerror(error));
    lose_history(e, why);
}

static void add_to_history(struct gr_edit *e, const char *line)
{
    HistEvent ev;
    if (!line[strspn(line, " \t\r\n")])
        return;
    bool repeated = e->lib->history(e->history, &ev, H_FIRST) >= 0 && !strcmp(ev.str, line);
    if (!repeated && e->lib->history(e->history, &ev, H_ENTER, line) >= 0)
        keep_line(e, line);
}

/* ---- the terminal ---- */

static struct gr_edit *owner_of(EditLine *line)
{
    const char *why;
    const struct gr_libedit *lib = gr_libedit(&why);
    struct gr_edit *e = NULL;
    if (lib)
        lib->el_get(line, EL_CLIENTDATA, &e);
    return e;
}

static char *show_prompt(EditLine *line)
{
    static char empty[1];
    struct gr_edit *e = owner_of(line);
    return e ? (char *)(uintptr_t)e->prompt : empty;
}

static unsigned char on_interrupt(EditLine *line, int key)
{
    struct gr_edit *e = owner_of(line);
    (void)key;
    if (e)
        e->interrupted = true;
    return CC_EOF;
}

/* Stops the program as the terminal does where keys are signals; it goes on with the line. */
static unsigned char on_suspend(EditLine *line, int key)
{
    struct gr_edit *e = owner_of(line);
    struct sigaction stops = {.sa_handler = SIG_DFL}, before;
    (void)key;
    if (!e)
        return CC_ERROR;
    e->lib->el_set(line, EL_PREP_TERM, 0);
    sigaction(SIGTSTP, &stops, &before);
    (void)kill(0, SIGTSTP);
    sigaction(SIGTSTP, &before, NULL);
    e->lib->el_set(line, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
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
    const char *why = "";
    if (!e)
        return gr_say_no_memory();
    e->prompt = "";
    e->lib = gr_libedit(&why);
    if (!e->lib) {
        gr_say_warning("lines have no history and little editing without libedit (Debian: "
                       "libedit2): %s",
                       why);
        return 0;
    }
    choose_locale();
    e->history = e->lib->history_init();
    e->line = e->history ? e->lib->el_init("gpurun", stdin, stdout, stderr) : NULL;
    if (!e->line) {
        gr_edit_close(out);
        return gr_say_no_memory();
    }
    e->lib->el_set(e->line, EL_CLIENTDATA, e);
    e->lib->el_set(e->line, EL_PROMPT, show_prompt);
    e->lib->el_set(e->line, EL_EDITOR, "emacs");
    e->lib->el_set(e->line, EL_SIGNAL, 1);
    e->lib->el_set(e->line, EL_HIST, e->lib->history, e->history);
    e->lib->el_set(e->line, EL_BIND, "^R", "em-inc-search-prev", NULL);
    e->lib->el_source(e->line, NULL); /* ~/.editrc */
    /* Ctrl-C and Ctrl-Z are keys while a line is edited, so that they leave it in good order. */
    e->lib->el_set(e->line, EL_ADDFN, "gr-interrupt", "leave the line", on_interrupt);
    e->lib->el_set(e->line, EL_ADDFN, "gr-suspend", "stop the program", on_suspend);
    e->lib->el_set(e->line, EL_SETTY, "-d", "-isig", NULL);
    e->lib->el_set(e->line, EL_BIND, "^C", "gr-interrupt", NULL);
    e->lib->el_set(e->line, EL_BIND, "^Z", "gr-suspend", NULL);
    load_history(e);
    return 0;
}

void gr_edit_close(struct gr_edit **e)
{
    if (!*e)
        return;
    if ((*e)->line)
        (*e)->lib->el_end((*e)->line);
    if ((*e)->history)
        (*e)->lib->history_end((*e)->history);
    free((*e)->text);
    free((*e)->path);
    free(*e);
    *e = NULL;
}

/* Reads a line without libedit; an interrupt ends the program. */
static enum gr_edit_result read_plain(struct gr_edit *e, const char **line, size_t *n)
{
    struct sigaction ends = {.sa_handler = SIG_DFL}, before;
    gr_out(e->prompt, strlen(e->prompt));
    sigaction(SIGINT, &ends, &before);
    ssize_t count = getline(&e->text, &e->size, stdin);
    sigaction(SIGINT, &before, NULL);
    if (count <= 0)
        return GR_EDIT_END;
    *n = (size_t)count - (e->text[count - 1] == '\n');
    e->text[*n] = 0;
    *line = e->text;
    return GR_EDIT_LINE;
}

enum gr_edit_result gr_edit_line(struct gr_edit *e, const char *prompt, const char **line,
                                 size_t *n)
{
    int count = 0;
    e->prompt = prompt, e->interrupted = false;
    if (!e->lib)
        return read_plain(e, line, n);
    e->lib->el_set(e->line, EL_PREP_TERM, 1); /* before the prompt: a key may follow it at once */
    const char *text = e->lib->el_gets(e->line, &count);
    if (e->interrupted) {
        const LineInfo *typed = e->lib->el_line(e->line);
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
