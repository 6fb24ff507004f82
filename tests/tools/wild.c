/* Command lines as they are written for llama.cpp (tests/golden/tools/wild.txt): each runs, or is
 * answered by what to do instead. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tiny.h"

enum { N_LINE = 76, MAX_WORD = 48 };

/* Divides a line at blanks as a shell does, with quotes of both kinds; returns how many words. */
static int words_of(char *line, const char **word)
{
    int n = 0;
    for (char *p = line, *to = line; *p;) {
        while (*p == ' ')
            p++;
        if (!*p || n == MAX_WORD - 10)
            break;
        word[n++] = to = p;
        for (char quote = 0; *p && (quote || *p != ' '); p++) {
            if (quote ? *p == quote : *p == '"' || *p == '\'')
                quote = quote ? 0 : *p;
            else
                *to++ = *p;
        }
        bool more = *p != 0;
        *to = 0;
        p += more;
    }
    return n;
}

/* Makes a line's words: the small model in place of its own, one token, one thread, and for a
 * server a port that is free. Returns whether it is one. */
static bool make_line(char *line, const char *word[MAX_WORD])
{
    int n = words_of(line, word + 1);
    bool serves = !strcmp(word[1], "llama-server");
    word[0] = "gpurun", word[1] = serves ? "serve" : "run";
    for (int i = 2; i + 1 <= n; i++)
        if (!strcmp(word[i], "-m") || !strcmp(word[i], "--model") || !strcmp(word[i], "-md"))
            word[i + 1] = GR_SOURCE_DIR "/tools/default-model.gguf";
    n++;
    word[n++] = "-n", word[n++] = "1", word[n++] = "-t", word[n++] = "1";
    if (serves)
        word[n++] = "--port", word[n++] = "0";
    word[n] = NULL;
    return serves;
}

/* Starts a server, and has it end when it is ready. Returns its exit code, -1 if it was none. */
static int run_server(const char *const *word)
{
    char text[4096];
    size_t n = 0;
    ssize_t got;
    int ends[2], status = -1;
    bool asked = false;
    cr_assert_eq(pipe(ends), 0);
    pid_t pid = fork();
    if (!pid) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        execv(GR_BINARY_DIR "/gpurun", (char *const *)word);
        _exit(127);
    }
    close(ends[1]);
    while (n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0) {
        text[n += (size_t)got] = 0;
        if (!asked && strstr(text, "\nserving "))
            asked = !kill(pid, SIGTERM);
    }
    close(ends[0]);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Returns whether the message says what to do instead. */
static bool is_remedy(const struct outcome *o)
{
    return o->exit_code == 2 && strstr(o->err, "gpurun: error: ") &&
           (strstr(o->err, "in this version") || strstr(o->err, " is expected"));
}

Test(wild, command_lines_run_or_are_answered, .timeout = 240)
{
    FILE *f = fopen(GR_SOURCE_DIR "/tests/golden/tools/wild.txt", "r");
    char line[1024], whole[1024];
    int n = 0, n_run = 0;
    cr_assert(f);
    setenv("MODEL_ENDPOINT", "http://127.0.0.1:9", 1);
    setenv("LLAMA_CACHE", tiny_path("hub"), 1);
    while (fgets(line, sizeof line, f)) {
        if (*line == '#')
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(whole, sizeof whole, "%s", line);
        char *expected = line, *command = strstr(line, "  ");
        cr_assert(command, "%s", line);
        *command = 0;
        static const char *word[MAX_WORD];
        bool server = make_line(command + 2, word);
        n++;
        if (!strcmp(expected, "serves")) {
            cr_expect(server && run_server(word) == 0, "%s", whole);
            continue;
        }
        struct outcome o = tiny_run(NULL, word);
        if (!strcmp(expected, "ok"))
            cr_expect_eq(o.exit_code, 0, "%s\n%d: %s", whole, o.exit_code, o.err);
        else if (!strcmp(expected, "later"))
            cr_expect(!o.exit_code || is_remedy(&o), "%s\n%d: %s", whole, o.exit_code, o.err);
        else
            cr_expect(o.exit_code >= 2 && o.exit_code <= 6 && strstr(o.err, expected + 4),
                      "%s\n%d: %s", whole, o.exit_code, o.err);
        n_run += !o.exit_code;
    }
    fclose(f);
    cr_expect_eq(n, N_LINE);
    cr_expect(n_run >= 50, "%d run", n_run);
}
