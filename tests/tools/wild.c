/* Command lines as they are written for llama.cpp (tests/golden/tools/wild.txt): each runs, or is
 * answered by what to do instead. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

enum { N_LINE = 76, MAX_WORD = 48 };

/* Divides a line at blanks as a shell does, with quotes of both kinds; returns how many words. */
static int words_of(char *line, const char **word)
{
    int n = 0;
    for (char *p = line, *to = line; *p;) {
        while (*p == ' ')
            p++;
        if (!*p || n == MAX_WORD - 8)
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

/* Runs a line with the small model in place of its own, one token and one thread. */
static struct outcome run_line(char *line)
{
    static const char *word[MAX_WORD];
    int n = words_of(line, word);
    word[0] = "gpurun";
    for (int i = 1; i + 1 < n; i++)
        if (!strcmp(word[i], "-m") || !strcmp(word[i], "--model") || !strcmp(word[i], "-md"))
            word[i + 1] = GR_SOURCE_DIR "/tools/default-model.gguf";
    word[n] = "-n", word[n + 1] = "1", word[n + 2] = "-t", word[n + 3] = "1", word[n + 4] = NULL;
    return tiny_run(NULL, word);
}

/* Returns whether the message says what to do instead. */
static bool is_remedy(const struct outcome *o)
{
    return o->exit_code == 2 && strstr(o->err, "gpurun: error: ") &&
           (strstr(o->err, "in this version") || strstr(o->err, " is expected") ||
            strstr(o->err, "with an HTTP server"));
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
        struct outcome o = run_line(command + 2);
        if (!strcmp(expected, "ok"))
            cr_expect_eq(o.exit_code, 0, "%s\n%d: %s", whole, o.exit_code, o.err);
        else if (!strcmp(expected, "later"))
            cr_expect(!o.exit_code || is_remedy(&o), "%s\n%d: %s", whole, o.exit_code, o.err);
        else
            cr_expect(o.exit_code >= 2 && o.exit_code <= 6 && strstr(o.err, expected + 4),
                      "%s\n%d: %s", whole, o.exit_code, o.err);
        n_run += !o.exit_code;
        n++;
    }
    fclose(f);
    cr_expect_eq(n, N_LINE);
    cr_expect(n_run >= 50, "%d run", n_run);
}
