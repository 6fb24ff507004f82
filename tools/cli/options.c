/* Reading of variables and the command line into struct gr_options. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flag_values.h"
#include "flags.h"
#include "say.h"

/* ---- values ---- */

/* Records a flag without a field that deserves a notice: one that never has an effect, or whose
 * value denies what is always so. */
static void note(struct gr_options *o, const struct gr_flag *f, const char *text)
{
    bool choice = strchr(f->value, '|') != NULL, denied = false;
    int i = 0;
    for (const char *p = text; choice; p++) {
        size_t n = strcspn(p, ",");
        denied |= gr_switch_of(p, n) == 0;
        p += n;
        if (!*p)
            break;
    }
    if (f->kind != GR_FLAG_NOTICE && !denied)
        return;
    while (i < o->n_notice && o->notice[i].flag != f)
        i++;
    o->notice[i].flag = f, o->notice[i].text = choice ? text : NULL;
    o->n_notice = i < o->n_notice ? o->n_notice : i + 1;
}

enum source { BY_DEFAULT, BY_VARIABLE, BY_FLAG };

/* Stores a value. Values of lists on the command line accumulate; they replace those of other
 * sources. */
static const char *set_value(struct gr_options *o, const struct gr_flag *f, const char *text,
                             bool off, enum source source)
{
    if (f->kind >= GR_FLAG_NOOP) {
        note(o, f, text);
        return NULL;
    }
    struct gr_given *g = (void *)((char *)o + f->given);
    const char *want = gr_value_store(o, f, text, off, g->by_flag);
    if (!want && source == BY_FLAG && f->offset == offsetof(struct gr_options, prompt))
        want = gr_value_add(&o->prompts, text);
    if (want || source == BY_DEFAULT)
        return want;
    bool name = f->kind == STR;
    if (f->kind < LIST && g->by_flag && (name ? strcmp : strcasecmp)(g->text, text) != 0)
        g->was = g->text;
    g->text = text, g->by_flag = source == BY_FLAG;
    return NULL;
}

/* ---- defaults, variables, flags ---- */

/* Returns "on" or "off" for a switch's word, inverted when the name switches off; other words
 * unchanged. */
static const char *on_or_off(const char *text, bool off)
{
    int x = gr_switch_of(text, strlen(text));
    return x < 0 ? text : x != off ? "on" : "off";
}

static void set_defaults(struct gr_options *o)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        if (*f->def)
            (void)set_value(o, f, f->def, false, BY_DEFAULT);
    }
}

static int read_variable(struct gr_options *o, const struct gr_flag *f, const char *prefix, bool no)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s%s", prefix, no ? "NO_" : "", f->variable);
    const char *text = getenv(name), *want = NULL;
    if (text && *text)
        want = set_value(o, f, no ? on_or_off(text, true) : text, false, BY_VARIABLE);
    if (want)
        gr_say_error("variable %s is '%s': %s is expected", name, text, want);
    return want ? GR_EXIT_USAGE : 0;
}

static int read_variables(struct gr_options *o)
{
    static const char *const prefix[] = {"LLAMA_ARG_", "GPURUN_"};
    int rc = 0;
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        for (int i = 0; i < 2 && *f->variable && f->commands & 1u << o->command && !rc; i++) {
            rc = read_variable(o, f, prefix[i], false);
            if (!rc && gr_flag_has_no(f))
                rc = read_variable(o, f, prefix[i], true);
        }
    }
    return rc;
}

/* Finds the flag whose name has one dash more or less; the name is stored in `name`. */
static const struct gr_flag *with_other_dashes(const struct gr_options *o, const char *arg,
                                               char name[48])
{
    bool off;
    size_t n = strcspn(arg, "=");
    if (arg[1] == '-')
        snprintf(name, 48, "%.*s", (int)n - 1, arg + 1);
    else
        snprintf(name, 48, "-%.*s", (int)n, arg);
    return gr_flag_find(o->command, name, strlen(name), &off);
}

static int unknown_flag(const struct gr_options *o, const char *arg)
{
    const char *command = gr_commands[o->command].name, *near = gr_nearest_name(o->command, arg);
    char name[48];
    const struct gr_flag *f = with_other_dashes(o, arg, name);
    bool off;
    const struct gr_flag *other = gr_flag_find(GR_N_COMMANDS, arg, strcspn(arg, "="), &off);
    if (f && f->kind == GR_FLAG_ABSENT)
        gr_say_error("unknown flag '%s'; %s: %s", arg, name, f->help);
    else if (other && other->group == SERVER)
        gr_say_error("gpurun %s has no flag %s; gpurun help serve explains it", command, arg);
    else if (other)
        gr_say_error("gpurun %s has no flag %s; gpurun help %s lists those it has", command, arg,
                     command);
    else if (near)
        gr_say_error("unknown flag '%s': did you mean %s?", arg, near);
    else
        gr_say_error("unknown flag '%s'; gpurun help %s lists all", arg, command);
    return GR_EXIT_USAGE;
}

static bool is_switch(const struct gr_flag *f)
{
    return f->kind == SWITCH || f->kind == SWITCHES || (f->kind >= GR_FLAG_NOOP && !*f->value);
}

/* Returns whether the word is the value of a flag whose value is optional: a choice, or 0, 1, on or
 * off unless it is a file. gpurun bench takes several, "0,1". */
static bool is_value(const struct gr_options *o, const struct gr_flag *f, const char *word)
{
    const char *choices = !is_switch(f)             ? f->value
                          : !strcmp(f->def, "auto") ? "0|1|on|off|auto"
                                                    : "0|1|on|off";
    for (const char *p = word;; p++) {
        size_t n = strcspn(p, o->command == GR_CMD_bench ? "," : "");
        if (!gr_find_choice(choices, p, n))
            return false;
        p += n;
        if (!*p)
            return !is_switch(f) || access(word, F_OK) != 0;
    }
}

/* Returns the value of a flag: after "=", or the next argument, to which *i advances. NULL:
 * none. */
static const char *take_value(const struct gr_options *o, const struct gr_flag *f,
                              const char *inline_value, int argc, char **argv, int *i)
{
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    bool inactive = f->kind == GR_FLAG_NOOP || f->kind == GR_FLAG_NOTICE;
    if (inline_value)
        return inline_value;
    if (is_switch(f) || f->kind == WHEN || (inactive && strchr(f->value, '|'))) {
        if (!next || !is_value(o, f, next))
            return "on";
    } else if (!next) {
        return NULL;
    }
    ++*i;
    return next;
}

static bool is_number(const char *text)
{
    char *end;
    (void)strtod(text, &end);
    return *text && !*end;
}

/* Returns the value with the next argument where that belongs to it: the END of START END, and the
 * SCALE of FILE:SCALE where the text has none. NULL: too many, or no memory. */
static const char *with_next(struct gr_options *o, const struct gr_flag *f, const char *text,
                             int argc, char **argv, int *i)
{
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL, *colon = strrchr(text, ':');
    bool range = !strcmp(f->value, "START END") && is_number(text);
    bool scaled = !strncmp(f->value, "FILE:SCALE", 10) && !(colon && is_number(colon + 1));
    if ((!range && !scaled) || !next || !is_number(next))
        return text;
    char *both = o->n_joined < GR_MAX_ARGS ? malloc(strlen(text) + strlen(next) + 2) : NULL;
    if (!both)
        return NULL;
    sprintf(both, "%s%c%s", text, range ? ' ' : ':', next);
    ++*i;
    return o->joined[o->n_joined++] = both;
}

/* Prints what is expected, and for a list of values where gpurun bench takes one, how to run them
 * all. */
static int bad_value(const struct gr_options *o, const struct gr_flag *f, int n, const char *arg,
                     const char *text, const char *want)
{
    bool choice = f->kind == CHOICE || f->kind == CHOICES || gr_flag_is_of_few(f);
    bool list = o->command == GR_CMD_bench && f->kind < LIST && strchr(text, ',');
    gr_say_error("%.*s is '%s': %s is expected%s%s%s", n, arg, text, want, choice ? ": " : "",
                 choice ? f->help : "", list ? "; run gpurun bench once for each" : "");
    return GR_EXIT_USAGE;
}

/* Finds a flag by the n bytes of its name, which may have underscores in place of dashes. */
static const struct gr_flag *flag_named(const struct gr_options *o, const char *arg, size_t n,
                                        bool *off)
{
    const struct gr_flag *f = gr_flag_find(o->command, arg, n, off);
    char name[64];
    if (f || n < 3 || n >= sizeof name || arg[1] != '-')
        return f;
    for (size_t i = 0; i < n; i++)
        name[i] = arg[i] == '_' ? '-' : arg[i];
    return gr_flag_find(o->command, name, n, off);
}

/* Handles argv[*i], which begins with a dash. */
static int read_flag(struct gr_options *o, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
    bool off;
    const struct gr_flag *f = flag_named(o, arg, n, &off);
    if (!f)
        return unknown_flag(o, arg);
    if (f->kind == GR_FLAG_ABSENT) {
        gr_say_error("%.*s: %s", (int)n, arg, f->help);
        return GR_EXIT_USAGE;
    }
    const char *text = take_value(o, f, equals ? equals + 1 : NULL, argc, argv, i);
    if (!text) {
        gr_say_error("%s needs a value, %s", arg, f->value);
        return GR_EXIT_USAGE;
    }
    if (f->kind == STR || f->kind == STRS)
        text = with_next(o, f, text, argc, argv, i);
    if (!text) {
        gr_say_error("%s: at most %d values of two words", arg, GR_MAX_ARGS);
        return GR_EXIT_USAGE;
    }
    const char *want =
        set_value(o, f, f->kind == SWITCH ? on_or_off(text, off) : text, off, BY_FLAG);
    if (want && (!strcmp(text, "--help") || !strcmp(text, "-h"))) {
        o->help = 1, o->about = f;
        return 0;
    }
    return want ? bad_value(o, f, (int)n, arg, text, want) : 0;
}

/* ---- the model file ---- */

int gr_model_is_there(const char *path)
{
    char longer[4096];
    if (!path || !access(path, R_OK))
        return 0;
    int error = errno;
    snprintf(longer, sizeof longer, "%s.gguf", path);
    if (access(longer, R_OK))
        gr_say_error("%s: %s; -m FILE gives the path of a model", path, strerror(error));
    else
        gr_say_error("%s: %s; did you mean %s?", path, strerror(error), longer);
    return gr_status_exit(GR_E_NO_MODEL);
}

/* Refuses names that cannot be model files. */
static int check_model(const char *model)
{
    char config[4096];
    struct stat st;
    if (!model)
        return 0;
    snprintf(config, sizeof config, "%s/config.json", model);
    if (!*model)
        gr_say_error("the model file's name is empty: give one by -m FILE, or leave it out for the "
                     "built-in model");
    else if (strstr(model, "://"))
        gr_say_error("-m takes a file; -mu downloads one: gpurun -mu '%s'", model);
    else if (stat(model, &st) || !S_ISDIR(st.st_mode))
        return 0;
    else if (!access(config, F_OK))
        gr_say_error("%s is a Hugging Face checkpoint, and a GGUF file is expected: python3 "
                     "scripts/convert %s OUT.gguf of gpurun's sources makes one",
                     model, model);
    else
        gr_say_error("%s is a folder, and a GGUF file is expected", model);
    return model[0] ? gr_status_exit(GR_E_NO_MODEL) : GR_EXIT_USAGE;
}

/* ---- arguments ---- */

static int unexpected(const struct gr_options *o, const char *arg)
{
    const struct gr_command_spec *c = &gr_commands[o->command];
    bool off;
    if (gr_flag_find(o->command, "--prompt", 8, &off))
        gr_say_error("unexpected argument '%s'; text to continue is given by -p \"...\"", arg);
    else
        gr_say_error("unexpected argument '%s'; usage: gpurun %s%s%s", arg, c->name,
                     *c->args ? " " : "", c->args);
    return GR_EXIT_USAGE;
}

/* Takes an argument as the model; it may replace `model`, the value of a variable. */
static int take_model(struct gr_options *o, const char *model)
{
    if (o->model != model) {
        gr_say_error("two model files, '%s' and '%s'; text to continue is given by -p", o->model,
                     o->arg[0]);
        return GR_EXIT_USAGE;
    }
    o->model = o->arg[0];
    return 0;
}

/* Finds the flag with this field. */
static const struct gr_flag *flag_of(size_t field)
{
    const struct gr_flag *f = gr_flags;
    while (f->offset != field || !f->names)
        f++;
    return f;
}

static bool is_model_name(const char *word)
{
    size_t n = strlen(word);
    return n > 5 && !strcasecmp(word + n - 5, ".gguf");
}

/* Takes the arguments of gpurun run: the model unless -m, -hf or -mu gives it, and the text unless
 * -p, -f or --stdin do. Leaves the model as the only one. */
static int take_words(struct gr_options *o)
{
    bool has_model =
        o->given.model.by_flag || o->given.hf_repo.by_flag || o->given.model_url.by_flag;
    bool has_text = o->prompt || o->file || o->from_stdin;
    bool model_first = o->n_args && (!has_model || is_model_name(o->arg[0]));
    const char *text = o->n_args > model_first ? o->arg[model_first] : NULL;
    if (text && model_first && is_model_name(text) && !is_model_name(o->arg[0])) {
        gr_say_error("'%s' was taken as the model and '%s' as the text: the model comes first",
                     o->arg[0], text);
        return GR_EXIT_USAGE;
    }
    if (model_first && strpbrk(o->arg[0], " \n") && access(o->arg[0], F_OK) != 0) {
        gr_say_error("'%s' was taken as the model, and there is no such file; -p \"...\" gives the "
                     "text without one",
                     o->arg[0]);
        return GR_EXIT_USAGE;
    }
    if (text && has_text) {
        gr_say_error("'%s' is one word too many: the text is given by %s already", text,
                     o->prompt ? "-p"
                     : o->file ? "-f"
                               : "--stdin");
        return GR_EXIT_USAGE;
    }
    if (o->n_args > model_first + 1) {
        gr_say_error("'%s' is one word too many: '%s' is the text; one with blanks needs quotes",
                     o->arg[model_first + 1], text);
        return GR_EXIT_USAGE;
    }
    o->n_args = model_first;
    if (text)
        (void)set_value(o, flag_of(offsetof(struct gr_options, prompt)), text, false, BY_FLAG);
    return 0;
}

/* Adds the arguments of gpurun bench to the models of -m; checks that each exists. */
static int take_models(struct gr_options *o)
{
    const struct gr_flag *f = flag_of(offsetof(struct gr_options, models));
    const char *want = NULL;
    int rc = 0;
    for (int i = 0; i < o->n_args && !want; i++)
        want = set_value(o, f, o->arg[i], false, BY_FLAG);
    if (want) {
        gr_say_error("too many model files: %s is expected", want);
        return GR_EXIT_USAGE;
    }
    for (int i = 0; i < o->models.n && !rc && !o->help; i++)
        rc = check_model(o->models.v[i]);
    for (int i = 0; i < o->models.n && !rc && !o->help && o->models.n > 1; i++)
        rc = gr_model_is_there(o->models.v[i]);
    o->model = o->models.n ? o->models.v[0] : NULL;
    return rc;
}

/* Takes the fourth argument of gpurun quantize as -t, as llama-quantize does. */
static int take_threads(struct gr_options *o)
{
    const char *text = o->arg[--o->n_args];
    char flag[] = "-t", *words[] = {flag, (char *)(uintptr_t)text};
    int i = 0;
    return *text && !text[strspn(text, "0123456789")] ? read_flag(o, 2, words, &i)
                                                      : unexpected(o, text);
}

/* Checks the arguments; one may replace `model`, the value of a variable. */
static int check_arguments(struct gr_options *o, const char *model)
{
    const struct gr_command_spec *c = &gr_commands[o->command];
    bool takes_model = o->command == GR_CMD_run || o->command == GR_CMD_chat ||
                       o->command == GR_CMD_serve || o->command == GR_CMD_tokenize ||
                       o->command == GR_CMD_template || o->command == GR_CMD_embed ||
                       o->command == GR_CMD_inspect || o->command == GR_CMD_fit ||
                       o->command == GR_CMD_profile || o->command == GR_CMD_perplexity ||
                       o->command == GR_CMD_imatrix || o->command == GR_CMD_diff;
    if (o->n_args < c->least && !o->help) {
        gr_say_error("usage: gpurun %s %s", c->name, c->args);
        return GR_EXIT_USAGE;
    }
    int rc = takes_model && o->n_args == 1                     ? take_model(o, model)
             : o->command == GR_CMD_bench                      ? take_models(o)
             : o->command == GR_CMD_quantize && o->n_args == 4 ? take_threads(o)
                                                               : 0;
    return rc || o->help || o->command == GR_CMD_bench ? rc : check_model(o->model);
}

bool gr_options_are_chat(int argc, char **argv)
{
    struct gr_options o = {.command = GR_CMD_chat};
    int found = -1;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *arg = argv[i], *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
        bool off = false;
        const struct gr_flag *f =
            *arg == '-' && arg[1]
                ? flag_named(&o, arg, equals ? (size_t)(equals - arg) : strlen(arg), &off)
                : NULL;
        if (!f || f->kind >= GR_FLAG_ABSENT)
            continue;
        const char *text = take_value(&o, f, equals ? equals + 1 : NULL, argc, argv, &i);
        if (f->offset == offsetof(struct gr_options, conversation))
            found = text && !strcmp(on_or_off(text, off), "on");
        else if (found < 0 && f->kind < GR_FLAG_NOOP && !(f->commands & 1u << GR_CMD_run))
            found = 1;
    }
    return found > 0;
}

int gr_options_parse(struct gr_options *o, enum gr_command command, int argc, char **argv)
{
    *o = (struct gr_options){.command = command};
    set_defaults(o);
    int rc = read_variables(o);
    const char *model = o->model;
    bool only_arguments = command == GR_CMD_help && argc == 1; /* gpurun help --temp */
    for (int i = 0; i < argc && !rc; i++) {
        if (!only_arguments && !strcmp(argv[i], "--"))
            only_arguments = true;
        else if (!only_arguments && argv[i][0] == '-' && argv[i][1])
            rc = read_flag(o, argc, argv, &i);
        else if (o->n_args < gr_commands[command].most)
            o->arg[o->n_args++] = argv[i];
        else
            rc = unexpected(o, argv[i]);
    }
    if (!rc && (command == GR_CMD_run || command == GR_CMD_chat || command == GR_CMD_profile))
        rc = take_words(o);
    if (!rc && !o->help)
        rc = gr_options_check(o);
    return rc ? rc : check_arguments(o, model);
}

void gr_options_fini(struct gr_options *o)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        void *field = (char *)o + f->offset;
        if (f->kind == BIAS) {
            free(((struct gr_bias_list *)field)->v);
            *(struct gr_bias_list *)field = (struct gr_bias_list){NULL, 0};
        } else if (f->kind == STRS) {
            free(((struct gr_str_list *)field)->v);
            *(struct gr_str_list *)field = (struct gr_str_list){NULL, 0};
        } else if (f->kind == FILES) {
            gr_files_drop(field);
        }
    }
    free(o->prompts.v);
    o->prompts = (struct gr_str_list){NULL, 0};
    while (o->n_joined > 0)
        free(o->joined[--o->n_joined]);
}
