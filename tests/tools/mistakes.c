/* Wrong command lines as people type them, and what the program answers: the table mistakes.txt.
 * A row is
 *
 *     $ a command line of the shell, in a folder with the files of make_files()
 *     | a line of the message; ~ stands for any text
 *     = exit code
 *     > a command line that follows the message's advice: it must succeed
 *
 * Every flag and every command that a message names must be in the command line itself or in one
 * that follows the advice: what is offered works when it is pasted. The environment variable
 * GR_MISTAKES_WRITE=FILE writes the table with the messages as they are now. There is no GPU. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tiny.h"
#include "tools/cli/flags.h"

#define MOST_LINES 6    /* of a message */
#define FEWEST_ROWS 115 /* of the table */
#define SIZE 8192       /* bytes of a row's part */

struct row {
    int line; /* in the table */
    char command[SIZE], message[SIZE], advice[SIZE];
    int exit_code, n_advice;
};

static int n_rows;
static char commands[64 * SIZE]; /* of all rows, a line each */
static FILE *written;

/* ---- the files ---- */

static void run_shell(const char *command)
{
    char line[SIZE];
    snprintf(line, sizeof line, "cd '%s' && %s", tiny_dir(), command);
    cr_assert_eq(system(line), 0, "%s", line);
}

static void make_files(void)
{
    tiny_model(false), tiny_model(true), tiny_encoder(), tiny_encoder_decoder();
    tiny_diffusion_model(), tiny_textless_model(), tiny_adapter();
    run_shell("cp " GR_SOURCE_DIR "/tools/default-model.gguf story.gguf");
    run_shell("cp " GR_SOURCE_DIR "/tests/golden/replay/session.json " GR_SOURCE_DIR
              "/tests/golden/gguf/split-*.gguf .");
    run_shell("head -c 20000 story.gguf > cut.gguf; : > empty.gguf; echo GGML > old.bin");
    run_shell(
        "mkdir -p folder hf arrays; echo '{}' > hf/config.json; echo '{' > bad.json; "
        ": > folder/x; printf '\\020\\0\\0\\0\\0\\0\\0\\0{}              ' > hf/model.safetensors");
    run_shell("c=$(printf '%040d' 1); mkdir -p hub/models--ann--story/refs "
              "hub/models--ann--story/snapshots/$c; printf $c > hub/models--ann--story/refs/main; "
              "cp story.gguf hub/models--ann--story/snapshots/$c/story-Q4_K_M.gguf; "
              "cp story.gguf hub");
    run_shell("for i in $(seq 40); do echo Once upon a time there was a little girl.; done > text");
    run_shell("head -n 1 text > line; : > nothing; printf 'a\\0b' > zero");
}

/* ---- one command line ---- */

static char *slurp(const char *path)
{
    static char text[4 * SIZE];
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

/* Runs it by the shell, standard input empty; *err: stderr, valid until the next call. */
static int run_line(const char *command, const char **err)
{
    char line[SIZE + 512];
    snprintf(line, sizeof line,
             "cd '%s' && exec 2>err >out </dev/null; PATH='" GR_BINARY_DIR
             "':$PATH CUDA_VISIBLE_DEVICES= LLAMA_CACHE=$PWD/hub; export CUDA_VISIBLE_DEVICES "
             "LLAMA_CACHE; %s",
             tiny_dir(), command);
    int status = system(line);
    *err = slurp(tiny_path("err"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Beginning of errors and warnings: the lines about the model before them are not part of them. */
static const char *message_of(const char *err)
{
    const char *error = strstr(err, "gpurun: error: "), *warning = strstr(err, "gpurun: warning: ");
    return warning && (!error || warning < error) ? warning : error ? error : err + strlen(err);
}

/* True when the pattern is the text, each ~ in it standing for any part of a line. */
static bool matches(const char *pattern, const char *text)
{
    const char *any = NULL, *from = NULL; /* the last ~, and what follows what it stands for */
    while (*text) {
        if (*pattern == '~')
            any = pattern++, from = text;
        else if (*pattern == *text)
            pattern++, text++;
        else if (any && *from != '\n')
            pattern = any + 1, text = ++from;
        else
            return false;
    }
    while (*pattern == '~')
        pattern++;
    return !*pattern;
}

/* ---- what a message offers ---- */

/* True when the word, n bytes, stands in the text, apart from others. */
static bool has_word(const char *text, const char *word, size_t n)
{
    for (const char *p = text; *p; p++) {
        bool begins = p == text || strchr(" '\"=(\n", p[-1]);
        if (begins && !strncmp(p, word, n) && (!p[n] || strchr(" '\"=)\n", p[n])))
            return true;
    }
    return false;
}

static void expect_offered(const struct row *r, const char *word, size_t n)
{
    cr_expect(has_word(r->command, word, n) || has_word(r->advice, word, n),
              "mistakes.txt:%d: the message names '%.*s', and no line pastes it", r->line, (int)n,
              word);
}

/* True when a command's name, *n bytes, is at the beginning of the text. */
static bool is_command(const char *text, size_t *n)
{
    *n = strspn(text, "abcdefghijklmnopqrstuvwxyz-");
    for (const struct gr_command_spec *c = gr_commands; c->name; c++)
        if (c->args && strlen(c->name) == *n && !memcmp(c->name, text, *n))
            return true;
    return false;
}

/* Flags, and commands behind the word gpurun. */
static void expect_pasted(const struct row *r, const char *message)
{
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-";
    for (const char *p = message; *p; p++) {
        bool begins = p > message && strchr(" '\"(|\n", p[-1]);
        size_t dashes = strspn(p, "-"), n = dashes + strspn(p + dashes, name);
        if (begins && dashes && dashes < 3 && n > dashes && isalpha(p[dashes]))
            expect_offered(r, p, n);
        if (begins && !strncmp(p, "gpurun ", 7) && is_command(p + 7, &n))
            expect_offered(r, p, 7 + n);
    }
}

/* ---- rows ---- */

static void write_row(const struct row *r, const char *message, int exit_code)
{
    char copy[SIZE];
    snprintf(copy, sizeof copy, "%s", message);
    fprintf(written, "$ %s\n", r->command);
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n"))
        fprintf(written, "| %s\n", line);
    fprintf(written, "= %d\n", exit_code);
    snprintf(copy, sizeof copy, "%s", r->advice);
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n"))
        fprintf(written, "> %s\n", line);
    fputc('\n', written);
}

static void follow_advice(const struct row *r)
{
    char copy[SIZE], *rest = copy;
    snprintf(copy, sizeof copy, "%s", r->advice);
    for (char *line = strtok_r(rest, "\n", &rest); line; line = strtok_r(rest, "\n", &rest)) {
        const char *err;
        int exit_code = run_line(line, &err);
        cr_expect_eq(exit_code, 0, "mistakes.txt:%d: '%s' ends with %d: %s", r->line, line,
                     exit_code, err);
    }
}

static void try_row(const struct row *r)
{
    const char *err;
    char message[SIZE];
    int exit_code = run_line(r->command, &err), n_line = 0;
    snprintf(message, sizeof message, "%s", message_of(err));
    for (const char *p = message; *p; p++)
        n_line += *p == '\n';
    n_rows++;
    strncat(commands, r->command, sizeof commands - strlen(commands) - 2);
    strcat(commands, "\n");
    if (written)
        write_row(r, message, exit_code);
    cr_expect_eq(exit_code, r->exit_code, "mistakes.txt:%d: exit code %d, %d expected: %s", r->line,
                 exit_code, r->exit_code, err);
    cr_expect(matches(r->message, message), "mistakes.txt:%d: found\n%sexpected\n%s", r->line,
              message, r->message);
    cr_expect(n_line > 0 && n_line <= MOST_LINES, "mistakes.txt:%d: %d lines", r->line, n_line);
    cr_expect(r->n_advice > 0, "mistakes.txt:%d: nothing to paste", r->line);
    expect_pasted(r, message);
    follow_advice(r);
}

static void append(char *to, const char *line)
{
    size_t n = strlen(to);
    cr_assert(n + strlen(line) + 2 < SIZE);
    snprintf(to + n, SIZE - n, "%s\n", line);
}

/* Adds a line of the table to the row; false: the row is complete. */
static bool read_line(struct row *r, char *line, int number)
{
    line[strcspn(line, "\n")] = 0;
    const char *text = *line && line[1] ? line + 2 : "";
    if (*line == '$') {
        r->line = number;
        snprintf(r->command, sizeof r->command, "%s", text);
    } else if (*line == '|') {
        append(r->message, text);
    } else if (*line == '=') {
        r->exit_code = atoi(text);
    } else if (*line == '>') {
        append(r->advice, text);
        r->n_advice++;
    }
    return *line;
}

static void each_row(void (*act)(const struct row *r))
{
    static struct row r;
    char line[2048];
    FILE *f = fopen(GR_SOURCE_DIR "/tests/tools/mistakes.txt", "r");
    cr_assert_not_null(f);
    memset(&r, 0, sizeof r);
    for (int number = 1; fgets(line, sizeof line, f); number++) {
        if (!read_line(&r, line, number) && r.line) {
            act(&r);
            memset(&r, 0, sizeof r);
        }
    }
    if (r.line)
        act(&r);
    fclose(f);
}

/* Every answer to a flag or a command that is not there has a row. */
static void expect_every_answer(void)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const char *at = f->names, *name;
        size_t n;
        bool off = false, found = f->kind != GR_FLAG_ABSENT;
        while (!found && gr_flag_next_name(&at, &name, &n, &off))
            found = has_word(commands, name, n);
        cr_expect(found, "mistakes.txt: no row with one of %s", f->names);
    }
    for (const struct gr_command_spec *c = gr_commands; c->name; c++)
        cr_expect(c->args || has_word(commands, c->name, strlen(c->name)),
                  "mistakes.txt: no row with gpurun %s", c->name);
}

Test(mistakes, table, .timeout = 600)
{
    const char *path = getenv("GR_MISTAKES_WRITE");
    if (path)
        cr_assert_not_null(written = fopen(path, "w"));
    make_files();
    each_row(try_row);
    cr_expect(n_rows >= FEWEST_ROWS, "%d rows", n_rows);
    expect_every_answer();
    if (written)
        fclose(written);
}
