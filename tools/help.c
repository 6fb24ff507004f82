/* Help, completion scripts and the README's tables, all from the tables of commands and flags. */
#include <stdio.h>
#include <string.h>

#include "tools.h"

#define WIDTH 100
#define COLUMN 34

static const char *const group_name[GR_N_GROUPS] = {"model", "text",   "sampling", "memory",
                                                    "rope",  "output", "commands"};
static const char *const group_title[GR_N_GROUPS] = {"The model",
                                                     "The text",
                                                     "Sampling, in the order of the chain",
                                                     "Context, memory, devices",
                                                     "Positions and rope",
                                                     "Output",
                                                     "Flags of single commands"};

/* Prints words from `column` on, breaking lines at WIDTH; ends the line. */
static void print_wrapped(const char *text, int column)
{
    int at = column;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (at > column && at + 1 + n > WIDTH) {
            printf("\n%*s", column, "");
            at = column;
        }
        at += printf("%s%.*s", at > column ? " " : "", n, text);
        text += n;
        text += strspn(text, " ");
    }
    printf("\n");
}

/* "  -c, --ctx-size N" and blanks up to COLUMN, on a line of its own when it is longer. `most`
 * names at most. */
static void print_names(const struct gr_flag *f, int most)
{
    const char *at = f->names, *name;
    size_t n;
    bool off = false, was_off = false;
    int column = printf("  ");
    for (int i = 0; i < most && gr_flag_next_name(&at, &name, &n, &off); i++, was_off = off)
        column += printf("%s%.*s", !i ? "" : off != was_off ? " / " : ", ", (int)n, name);
    if (*f->value)
        column += printf(f->kind == WHEN ? " [%s]" : " %s", f->value);
    if (column >= COLUMN)
        printf("\n"), column = 0;
    printf("%*s", COLUMN - column, "");
}

static bool is_active(const struct gr_flag *f)
{
    return f->kind < GR_FLAG_NOOP;
}

static void print_flag(const struct gr_flag *f)
{
    char text[512];
    bool shows_default = *f->def && !(f->kind == SWITCH && !strcmp(f->def, "off"));
    snprintf(text, sizeof text, "%s%s%s%s%s%s", f->help, shows_default ? " [" : "",
             shows_default ? f->def : "", shows_default ? "]" : "", *f->variable ? " $" : "",
             f->variable);
    print_names(f, 99);
    print_wrapped(text, COLUMN);
}

static void print_group(enum gr_flag_group group, unsigned commands)
{
    bool titled = false;
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        if (!is_active(f) || f->group != group || !(f->commands & commands))
            continue;
        if (!titled)
            printf("\n%s\n", group_title[group]);
        titled = true;
        print_flag(f);
    }
}

static void print_legend(void)
{
    printf("\n[x] is the default. $X: the variables GPURUN_X and LLAMA_ARG_X set it, the command "
           "line wins.\n");
}

static void print_brief(void)
{
    printf("gpurun %s runs language models from GGUF files.\n\nusage:", gr_version());
    printf(" gpurun [run] %s [FLAGS]\n", gr_commands[GR_CMD_run].args);
    int column = printf("       gpurun");
    for (int i = 1; i < GR_N_COMMANDS; i++) {
        if (column + (int)strlen(gr_commands[i].name) + 4 > WIDTH)
            column = printf("\n             ") - 1;
        column += printf("%s%s", i > 1 ? " | " : " ", gr_commands[i].name);
    }
    printf(
        "\n\n"
        "  gpurun                                                 the built-in model tells a "
        "story\n"
        "  gpurun model.gguf -p \"Once upon a time\"                your model continues a text\n"
        "  gpurun model.gguf -f prompt.txt -n 200 > text.txt      stdout has the text and nothing "
        "else\n"
        "  gpurun model.gguf -f long.txt -c 8192 -gan 4 -gaw 256  Self-Extend beyond the trained "
        "context\n"
        "  gpurun bench model.gguf -p 512 -n 64                   how fast it is\n\n");
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        if (!(f->commands & GR_BRIEF))
            continue;
        print_names(f, 2);
        printf("%.*s\n", (int)strcspn(f->help, ";"), f->help);
    }
    printf("\nMore: gpurun help all, or one of");
    for (int i = 1; i < GR_N_GROUPS - 1; i++)
        printf(" %s", group_name[i]);
    printf(", or a command's name.\n");
}

static void print_command(const struct gr_command_spec *c)
{
    unsigned mask = 1u << (c - gr_commands);
    printf("gpurun %s %s\n", c->name, c->args);
    print_wrapped(c->text, 0);
    for (int g = 0; g < GR_N_GROUPS; g++)
        print_group((enum gr_flag_group)g, mask);
    print_legend();
}

static void print_inactive(enum gr_flag_kind lo, enum gr_flag_kind hi, const char *title)
{
    printf("\n%s\n", title);
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        if (f->kind < lo || f->kind > hi)
            continue;
        printf("  ");
        print_wrapped(f->names, 2);
        printf("%*s", COLUMN, "");
        print_wrapped(f->help, COLUMN);
    }
}

static void print_all(void)
{
    printf("Commands\n");
    for (int i = 0; i < GR_N_COMMANDS; i++) {
        const struct gr_command_spec *c = &gr_commands[i];
        int n = printf("  gpurun %s %s", c->name, c->args);
        if (n >= COLUMN)
            printf("\n"), n = 0;
        printf("%*s", COLUMN - n, "");
        print_wrapped(c->text, COLUMN);
    }
    for (int g = 0; g < GR_N_GROUPS; g++)
        print_group((enum gr_flag_group)g, ~GR_BRIEF);
    print_inactive(GR_FLAG_NOOP, GR_FLAG_NOTICE, "Accepted without effect");
    print_legend();
    printf("gpurun help absent lists what is refused, with answers.\n");
}

static void print_markdown(void)
{
    for (int g = 0; g < GR_N_GROUPS; g++) {
        printf("%s### %s\n\n| flag | meaning | default | variable |\n|---|---|---|---|\n",
               g ? "\n" : "", group_title[g]);
        for (const struct gr_flag *f = gr_flags; f->names; f++) {
            const char *at = f->names, *name, *p = f->help;
            size_t n;
            bool off = false;
            if (!is_active(f) || f->group != (enum gr_flag_group)g)
                continue;
            for (const char *before = "| "; gr_flag_next_name(&at, &name, &n, &off); before = ", ")
                printf("%s`%.*s`", before, (int)n, name);
            printf(" | ");
            for (; *p; p++)
                printf(strchr("\\|<>*_", *p) ? "\\%c" : "%c", *p);
            printf(" | %s | %s |\n", f->def, f->variable);
        }
    }
}

/* What the word after "gpurun help" asks for; false when nothing has that name. */
static bool print_topic(const char *topic)
{
    if (!strcmp(topic, "all"))
        return print_all(), true;
    if (!strcmp(topic, "absent"))
        return print_inactive(GR_FLAG_ABSENT, GR_FLAG_ABSENT, "Refused with an answer"), true;
    if (!strcmp(topic, "markdown"))
        return print_markdown(), true;
    for (int i = 0; i < GR_N_COMMANDS; i++) {
        if (!strcmp(topic, gr_commands[i].name))
            return print_command(&gr_commands[i]), true;
    }
    for (int g = 0; g < GR_N_GROUPS; g++) {
        if (!strcmp(topic, group_name[g]))
            return print_group((enum gr_flag_group)g, ~GR_BRIEF), print_legend(), true;
    }
    return false;
}

int gr_tool_help(const struct gr_options *o)
{
    const char *topic = o->command == GR_CMD_help ? o->arg[0] : gr_commands[o->command].name;
    if (!topic || o->command == GR_CMD_run) {
        print_brief();
    } else if (!print_topic(topic)) {
        const char *near = gr_nearest_name(GR_CMD_run, topic);
        gr_say_error("no help on '%s'%s%s; gpurun help all has everything", topic,
                     near ? ": did you mean " : "", near ? near : "");
        return GR_EXIT_USAGE;
    }
    return 0;
}

int gr_tool_version(const struct gr_options *o)
{
    (void)o;
    printf("gpurun %s\n", gr_version());
    return 0;
}

/* ---- completion ---- */

/* Names of the command's flags, each after `before`. */
static void print_flag_names(int command, const char *before)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const char *at = f->names, *name;
        size_t n;
        bool off = false;
        while (is_active(f) && f->commands & 1u << command &&
               gr_flag_next_name(&at, &name, &n, &off))
            printf("%s%.*s", before, (int)n, name);
    }
}

static void print_command_names(void)
{
    for (int i = 0; i < GR_N_COMMANDS; i++)
        printf("%s%s", i ? " " : "", gr_commands[i].name);
}

static void complete_bash(void)
{
    printf("# gpurun completion for bash: source <(gpurun completion bash)\n"
           "_gpurun() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} flags command=run\n"
           "    [ \"$COMP_CWORD\" -gt 1 ] && command=${COMP_WORDS[1]}\n"
           "    case $command in\n");
    for (int i = GR_N_COMMANDS - 1; i >= 0; i--) {
        printf("    %s) flags='", i ? gr_commands[i].name : "*");
        print_flag_names(i, " ");
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    COMPREPLY=()\n"
           "    case $word in\n"
           "    -*) mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$word\") ;;\n"
           "    *)\n"
           "        [ \"$COMP_CWORD\" -eq 1 ] && mapfile -t COMPREPLY < <(compgen -W '");
    print_command_names();
    printf("' -- \"$word\")\n"
           "        mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -f -- \"$word\")\n"
           "        ;;\n"
           "    esac\n"
           "}\n"
           "complete -o filenames -F _gpurun gpurun\n");
}

static void complete_zsh(void)
{
    printf("#compdef gpurun\n"
           "# gpurun completion for zsh: gpurun completion zsh > a folder of $fpath, as _gpurun\n"
           "_gpurun() {\n"
           "    local command=run\n"
           "    (( CURRENT > 2 )) && command=$words[2]\n"
           "    if [[ $words[CURRENT] != -* ]]; then\n"
           "        (( CURRENT == 2 )) && compadd -- ");
    print_command_names();
    printf("\n        _files\n"
           "        return\n"
           "    fi\n"
           "    case $command in\n");
    for (int i = GR_N_COMMANDS - 1; i >= 0; i--) {
        printf("    %s) compadd --", i ? gr_commands[i].name : "*");
        print_flag_names(i, " ");
        printf(" ;;\n");
    }
    printf("    esac\n"
           "}\n"
           "compdef _gpurun gpurun\n");
}

/* The description up to a semicolon, in fish's quotes; ends the line. */
static void print_fish_text(const char *p)
{
    printf(" -d '");
    for (; *p && *p != ';'; p++)
        printf(*p == '\'' || *p == '\\' ? "\\%c" : "%c", *p);
    printf("'\n");
}

/* fish knows three forms of flags: -s x, -o xyz (one dash), -l xyz (two). */
static void complete_fish_flag(int command, const struct gr_flag *f)
{
    const char *at = f->names, *name;
    size_t n;
    bool off = false;
    if (command)
        printf("complete -c gpurun -n '__fish_seen_subcommand_from %s'", gr_commands[command].name);
    else
        printf("complete -c gpurun -n 'not __gpurun_other_command'");
    while (gr_flag_next_name(&at, &name, &n, &off)) {
        size_t dashes = strspn(name, "-");
        printf(" -%c %.*s",
               dashes == 2 ? 'l'
               : n == 2    ? 's'
                           : 'o',
               (int)(n - dashes), name + dashes);
    }
    if (f->kind == CHOICE || f->kind == CHOICES) {
        printf(" -x -a '");
        for (const char *p = f->value; *p; p++)
            putchar(*p == '|' ? ' ' : *p);
        printf("'");
    } else if (*f->value) {
        printf(f->kind == STR ? " -r" : f->kind == WHEN ? "" : " -x");
    }
    print_fish_text(f->help);
}

static void complete_fish(void)
{
    printf("# gpurun completion for fish: gpurun completion fish > "
           "~/.config/fish/completions/gpurun.fish\n"
           "function __gpurun_other_command\n    __fish_seen_subcommand_from");
    for (int i = 1; i < GR_N_COMMANDS; i++)
        printf(" %s", gr_commands[i].name);
    printf("\nend\n");
    for (int i = 0; i < GR_N_COMMANDS; i++) {
        printf("complete -c gpurun -n __fish_use_subcommand -a %s", gr_commands[i].name);
        print_fish_text(gr_commands[i].text);
    }
    for (int i = 0; i < GR_N_COMMANDS; i++) {
        for (const struct gr_flag *f = gr_flags; f->names; f++) {
            if (is_active(f) && f->commands & 1u << i)
                complete_fish_flag(i, f);
        }
    }
}

int gr_tool_completion(const struct gr_options *o)
{
    if (!strcmp(o->arg[0], "bash"))
        complete_bash();
    else if (!strcmp(o->arg[0], "zsh"))
        complete_zsh();
    else if (!strcmp(o->arg[0], "fish"))
        complete_fish();
    else {
        gr_say_error("completion for '%s': one of bash, zsh, fish is expected", o->arg[0]);
        return GR_EXIT_USAGE;
    }
    return 0;
}
