/* Help and the tables of FLAGS.md, from the tables of commands and flags. */
#include "help.h"

#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

#define WIDTH 100
#define COLUMN 34

static const char *const group_name[GR_N_GROUPS] = {"model", "text",   "sampling", "memory",
                                                    "rope",  "server", "output",   "commands"};
static const char *const group_title[GR_N_GROUPS] = {"The model",
                                                     "The text",
                                                     "Sampling, in the order of the chain",
                                                     "Context, memory, devices",
                                                     "Positions and rope",
                                                     "The server",
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

/* Prints "  -c, --ctx-size N", with at most `most` names; returns its length. */
static int print_spelling(const struct gr_flag *f, int most)
{
    const char *at = f->names, *name;
    size_t n;
    bool off = false, was_off = false;
    int column = printf("  ");
    for (int i = 0; i < most && gr_flag_next_name(&at, &name, &n, &off); i++, was_off = off)
        column += printf("%s%.*s", !i ? "" : off != was_off ? " / " : ", ", (int)n, name);
    if (*f->value)
        column += printf(f->kind == WHEN ? " [%s]" : " %s", f->value);
    return column;
}

/* The same, padded with blanks to COLUMN; followed by a newline when it is longer. */
static void print_names(const struct gr_flag *f, int most)
{
    int column = print_spelling(f, most);
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
    printf("gpurun %s runs language models from GGUF files.\nusage:", gr_version());
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
        "  gpurun -hf USER/REPO:Q4_K_M -f prompt.txt > text.txt   a model downloaded the first "
        "time\n"
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
    printf(", a command, a flag.\n");
}

/* The types of quantize. */
static void print_recipes(void)
{
    char about[64];
    const char *name;
    printf(
        "\nTYPE, named as in llama.cpp: what most matrices become; a mix has more bits for some\n");
    for (int32_t i = 0; (name = gr_supported(GR_SUPPORTED_RECIPE, i, about, sizeof about)); i++)
        printf("  %-*s%s\n", COLUMN - 2, name, about);
    printf("\nTYPE of single tensors (gpurun list types has their bits)\n ");
    for (int32_t i = 0, at = 1; (name = gr_supported(GR_SUPPORTED_TYPE, i, NULL, 0)); i++) {
        if (at + (int)strlen(name) + 1 > WIDTH)
            at = printf("\n ") - 1;
        at += printf(" %s", name);
    }
    printf("\n");
}

static void print_command(const struct gr_command_spec *c)
{
    unsigned mask = 1u << (c - gr_commands);
    printf("gpurun %s %s\n", c->name, c->args);
    print_wrapped(c->text, 0);
    if (mask == 1u << GR_CMD_quantize)
        print_recipes();
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

/* ---- one flag ---- */

/* "0 to 1000, auto" */
static void print_range(const struct gr_flag *f)
{
    bool list = strchr(f->value, '|') && f->kind != I32;
    bool number = f->kind == I32 || f->kind == I64 || f->kind == F32 || f->kind == LIST;
    bool any = f->lo <= INT32_MIN && f->hi >= INT32_MAX;
    bool automatic = !strcmp(f->def, "auto");
    if (!list && !number && f->kind != SWITCH)
        return;
    printf("  values     ");
    if (!number)
        printf("%s", list ? f->value : "on|off");
    else if (any)
        printf("any number");
    else if (f->hi >= INT32_MAX)
        printf("%.10g or more", f->lo);
    else
        printf("%.10g to %.10g", f->lo, f->hi);
    if (!list && (automatic || !strcmp(f->def, "model")))
        printf("%s%s%s", number ? ", " : "|", f->def,
               automatic && number && f->hi == INT32_MAX ? ", all" : "");
    printf("\n");
}

static void explain(const struct gr_flag *f)
{
    const unsigned all = (1u << GR_N_COMMANDS) - 1;
    char commands[512] = "all";
    size_t n = 0;
    print_spelling(f, 99);
    printf("\n  ");
    print_wrapped(f->help, 2);
    print_range(f);
    if (*f->def)
        printf("  default    %s\n", f->def);
    if (*f->variable)
        printf("  variables  GPURUN_%s, LLAMA_ARG_%s\n", f->variable, f->variable);
    for (int i = 0; i < GR_N_COMMANDS && (f->commands & all) != all; i++)
        if (f->commands & 1u << i)
            n += (size_t)snprintf(commands + n, sizeof commands - n, "%s%s", n ? ", " : "",
                                  gr_commands[i].name);
    printf("  commands   ");
    print_wrapped(commands, 13);
}

/* Returns whether a flag has this name, with or without dashes. */
static bool has_name(const struct gr_flag *f, const char *word)
{
    const char *at = f->names, *name;
    size_t n, n_word = strcspn(word, "=");
    bool off = false;
    while (gr_flag_next_name(&at, &name, &n, &off)) {
        size_t dashes = *word == '-' ? 0 : strspn(name, "-");
        if (n - dashes == n_word && !memcmp(name + dashes, word, n_word))
            return true;
    }
    return false;
}

/* Explains a flag; commands may have flags of the same name with different meanings. Refused flags
 * and flags without effect are searched when no command has the name. */
static bool explain_flags(const char *word)
{
    int n = 0;
    for (const struct gr_flag *f = gr_flags; f->names; f++)
        if (is_active(f) && has_name(f, word))
            printf(n++ ? "\n" : ""), explain(f);
    for (const struct gr_flag *f = gr_flags; f->names && !n; f++)
        if (!is_active(f) && has_name(f, word)) {
            n += printf("%s: %s\n  ", word,
                        f->kind == GR_FLAG_ABSENT ? "refused" : "accepted without effect");
            print_wrapped(f->help, 2);
        }
    return n > 0;
}

/* ---- topics ---- */

const char *gr_help_topic(int i)
{
    return i < GR_N_GROUPS ? group_name[i] : i == GR_N_GROUPS ? "absent" : NULL;
}

/* Returns the nearest name of a command or topic, or else of a flag. */
static const char *nearest(const char *word)
{
    char flag[64];
    const char *near = gr_nearest_name(GR_N_COMMANDS, word), *topic;
    size_t n = strlen(word);
    for (int i = 0; !near && (topic = gr_help_topic(i)); i++)
        if (gr_edit_distance(word, n, topic, strlen(topic)) <= n / 3 ||
            (n > 2 && !strncmp(word, topic, n)))
            near = topic;
    snprintf(flag, sizeof flag, "--%.60s", word);
    return near ? near : gr_nearest_name(GR_N_COMMANDS, flag);
}

/* Prints help on the word after "gpurun help"; false when nothing has that name. */
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
    return explain_flags(topic);
}

int gr_tool_help(const struct gr_options *o)
{
    const char *topic = o->command == GR_CMD_help ? o->arg[0] : gr_commands[o->command].name;
    if (o->about) {
        explain(o->about);
    } else if (!topic || o->command == GR_CMD_run) {
        print_brief();
    } else if (!print_topic(topic)) {
        const char *near = nearest(topic);
        gr_say_error("no help on '%s'%s%s%s gpurun help all has everything", topic,
                     near ? ": did you mean " : "", near ? near : "", near ? "?" : ";");
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
