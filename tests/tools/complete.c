/* Completion: what is offered, and that the shells get it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tiny.h"
#include "tools/cli/flags.h"

/* The first words of the lines that are offered for these words, with blanks between them. */
#define OFFERED(...)                                                                               \
    offered((const char *const[]){"gpurun", "completion", "words", __VA_ARGS__, NULL})

static const char *offered(const char *const *argv)
{
    static char words[8192];
    struct outcome o = tiny_run(NULL, argv);
    cr_expect_eq(o.exit_code, 0);
    cr_expect_str_eq(o.err, "");
    *words = 0;
    for (char *line = strtok(o.out, "\n"); line; line = strtok(NULL, "\n")) {
        cr_assert_lt(strlen(words) + strlen(line) + 2, sizeof words);
        strncat(words, line, strcspn(line, "\t"));
        strcat(words, " ");
    }
    return words;
}

Test(complete, commands_and_arguments)
{
    cr_expect_str_eq(OFFERED("b"), "bench :gguf ");
    cr_expect_str_eq(OFFERED("per"), "perplexity :gguf ");
    cr_expect(strstr(OFFERED(""), "run chat serve embed tokenize "));
    cr_expect_str_eq(OFFERED("bench", ""), ":gguf ");
    cr_expect_str_eq(OFFERED("bench", "a.gguf", ""), ":gguf ");
    cr_expect_str_eq(OFFERED("bench", "-r", "3", ""), ":gguf ");
    cr_expect_str_eq(OFFERED("quantize", "a.gguf", ""), ":gguf ");
    cr_expect_str_eq(OFFERED("quantize", "--pure", "a", "b", "Q4_K"), "Q4_K_S Q4_K_M Q4_K ");
    cr_expect_str_eq(OFFERED("quantize", "a", "b", "iq4"), "IQ4_NL IQ4_XS ");
    cr_expect_str_eq(OFFERED("quantize", "a", "b", "COPY", ""), "");
    cr_expect_str_eq(OFFERED("split", "a", ""), ":files ");
    cr_expect_str_eq(OFFERED("completion", ""), "bash zsh fish ");
    cr_expect_str_eq(OFFERED("list", "t"), "types tokenizers templates ");
    cr_expect_str_eq(OFFERED("help", "s"), "sampling server serve split ");
    cr_expect(strstr(OFFERED("help", ""), "all model text sampling "));
    cr_expect_str_eq(OFFERED("help", "--n-de"), "--n-depth --n-depth-others ");
}

Test(complete, flags_and_values)
{
    cr_expect_str_eq(OFFERED("tokenize", "--show"), "--show-count ");
    cr_expect_str_eq(OFFERED("--no-mm"), "--no-mmap ");
    cr_expect_str_eq(OFFERED("-C"), "-C -Cr -Cb -Crb ");
    cr_expect_str_eq(OFFERED("-ngl", ""), "auto all ");
    cr_expect_str_eq(OFFERED("-m", ""), ":gguf ");
    cr_expect_str_eq(OFFERED("-f", ""), ":files ");
    cr_expect_str_eq(OFFERED("replay", "-o", ""), ":folders ");
    cr_expect_str_eq(OFFERED("-p", ""), "");
    cr_expect_str_eq(OFFERED("-gan", ""), "auto ");
    cr_expect_str_eq(OFFERED("--color", "o"), "on off ");
    cr_expect_str_eq(OFFERED("--color", "on", ""), ":gguf ");
    cr_expect_str_eq(OFFERED("bench", "-ctk", "f16,q"),
                     "f16,q8_0 f16,q4_0 f16,q4_1 f16,q5_0 f16,q5_1 ");
    cr_expect_str_eq(OFFERED("quantize", "--output-tensor-type", "q6"), "q6_K ");
    cr_expect_str_eq(OFFERED("--mmap=o"), "--mmap=on --mmap=off ");
    cr_expect_str_eq(OFFERED("--mmap", "=", "of"), "off ");
    cr_expect_str_eq(OFFERED("--display-prompt", "="), "on off auto ");
    cr_expect_str_eq(OFFERED("-ctk", "f16", "-ctv", "q"), "q8_0 q4_0 q4_1 q5_0 q5_1 ");
    cr_expect_str_eq(OFFERED("--nonsense", ""), ":gguf ");
}

/* Each name of a flag with choices has all of them, in every command that has it. */
Test(complete, every_choice, .timeout = 60)
{
    int n_seen = 0;
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const char *at = f->names, *name;
        char word[64], want[256];
        size_t n;
        bool off = false;
        if (f->kind != CHOICE && f->kind != CHOICES)
            continue;
        snprintf(want, sizeof want, "%s ", f->value);
        for (char *p = want; *p; p++)
            *p = *p == '|' ? ' ' : *p;
        for (int c = 0; c < GR_N_COMMANDS; c++)
            for (at = f->names; f->commands & 1u << c && gr_flag_next_name(&at, &name, &n, &off);) {
                snprintf(word, sizeof word, "%.*s", (int)n, name);
                cr_expect_str_eq(OFFERED(gr_commands[c].name, word, ""), want);
                n_seen++;
            }
    }
    cr_expect_gt(n_seen, 40);
}

/* ---- shells ---- */

/* Runs a line of a shell with the program as $program and its script as $script, in a folder with
 * two model files, a text and a folder. */
static void expect_shell(const char *shell, const char *line)
{
    char script[256], command[2048];
    struct outcome o = GPURUN(NULL, "completion", shell);
    cr_expect_eq(o.exit_code, 0);
    snprintf(script, sizeof script, "%s", tiny_path("script"));
    FILE *f = fopen(script, "w");
    cr_assert(f);
    fputs(o.out, f);
    fclose(f);
    snprintf(command, sizeof command,
             "cd %s && mkdir -p d && touch a.gguf b.gguf c.txt d/e.gguf && "
             "PATH=" GR_BINARY_DIR ":$PATH script=%s HOME=%s %s",
             tiny_dir(), script, script, line);
    cr_expect_eq(system(command), 0, "%s", line);
}

#define BASH(words, want)                                                                          \
    expect_shell("bash", "bash --norc -c 'source $script; COMP_WORDS=(gpurun " words               \
                         "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _gpurun; "                     \
                         "got=$(printf \"%s\\n\" \"${COMPREPLY[@]}\" | sort | tr \"\\n\" \" \"); " \
                         "[ \"$got\" = \"" want " \" ] || { echo \"$got\"; false; }'")

Test(complete, bash)
{
    BASH("tokenize --show", "--show-count");
    BASH("bench -ctk q", "q4_0 q4_1 q5_0 q5_1 q8_0");
    BASH("-m \"\"", "a.gguf b.gguf d");
    BASH("-m d/", "d/e.gguf");
    BASH("-f c", "c.txt");
    BASH("quantize a.gguf o.gguf q4_k_m", "Q4_K_M");
    BASH("--mmap = o", "off on");
    BASH("--mmap =", "off on");
    BASH("ben", "bench");
    BASH("replay -o \"\"", "d");
    expect_exit(GPURUN(NULL, "completion", "csh"), 2, "bash, zsh, fish");
    expect_exit(GPURUN(NULL, "completion"), 2, "usage");
}

static bool is_there(const char *shell)
{
    char command[64];
    snprintf(command, sizeof command, "command -v %s >/dev/null", shell);
    return system(command) == 0;
}

/* zsh completes on a terminal alone: here compadd and _files say what they are given. */
#define ZSH(words, want)                                                                           \
    expect_shell("zsh", "zsh -f -c 'compdef() { }; compadd() { got=\"$names\" }; "                 \
                        "_files() { got=\"files $*\" }; source $script; words=(gpurun " words      \
                        "); CURRENT=$#words; _gpurun; [[ $got = \"" want "\" ]] || "               \
                        "{ print -r -- $got; false }'")

Test(complete, zsh)
{
    if (!is_there("zsh"))
        cr_skip_test("there is no zsh");
    ZSH("tokenize --show", "--show-count");
    ZSH("bench -ctk q", "q8_0 q4_0 q4_1 q5_0 q5_1");
    ZSH("-m \"\"", "files -g *.gguf");
    ZSH("replay -o \"\"", "files -/");
    ZSH("quantize a.gguf o.gguf Q4_K_", "Q4_K_S Q4_K_M");
    ZSH("--mmap=o", "--mmap=on --mmap=off");
}

#define FISH(line, want)                                                                           \
    expect_shell("fish",                                                                           \
                 "fish --no-config -c 'source $script; set got (complete -C \"gpurun " line        \
                 "\" | string replace -r \"\\t.*\" \"\" | sort | string join \" \"); "             \
                 "test \"$got\" = \"" want "\"; or begin; echo $got; false; end'")

Test(complete, fish)
{
    if (!is_there("fish"))
        cr_skip_test("there is no fish");
    FISH("tokenize --show", "--show-count");
    FISH("bench -ctk q", "q4_0 q4_1 q5_0 q5_1 q8_0");
    FISH("replay -o ", "d/");
    FISH("quantize a.gguf o.gguf Q4_K_", "Q4_K_M Q4_K_S");
    FISH("--mmap=o", "--mmap=off --mmap=on");
    FISH("-f c", "c.txt");
}
