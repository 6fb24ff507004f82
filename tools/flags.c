#include "flags.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools.h"

const struct gr_command_spec gr_commands[] = {
#define ALONE false
#define SHARED true
#define COMMAND(name, fn, args, least, most, ranks, meaning)                                       \
    {#name, fn, args, least, most, ranks, meaning},
#define ABSENT(name, answer)
#include "commands.def"
#undef COMMAND
#undef ABSENT
#define COMMAND(name, fn, args, least, most, ranks, meaning)
#define ABSENT(name, answer) {#name, NULL, "", 0, 0, ALONE, answer},
#include "commands.def"
#undef COMMAND
#undef ABSENT
    {NULL, NULL, NULL, 0, 0, ALONE, NULL},
};

#define RUN (1u << GR_CMD_run | 1u << GR_CMD_profile) /* profile takes what run takes */
#define TOKENIZE (1u << GR_CMD_tokenize)
#define EMBED (1u << GR_CMD_embed)
#define BENCH (1u << GR_CMD_bench)
#define INSPECT (1u << GR_CMD_inspect)
#define QUANTIZE (1u << GR_CMD_quantize)
#define SPLIT (1u << GR_CMD_split)
#define MERGE (1u << GR_CMD_merge)
#define IMATRIX (1u << GR_CMD_imatrix)
#define REPLAY (1u << GR_CMD_replay)
#define DEVICES (1u << GR_CMD_devices)
#define PERPLEXITY (1u << GR_CMD_perplexity)
#define CHUNKS (PERPLEXITY | IMATRIX)
#define FIT (1u << GR_CMD_fit | CHUNKS) /* what a session takes; these two open one */
#define DIFF (1u << GR_CMD_diff)
#define LISTS (1u << GR_CMD_list)
#define ALL ((1u << GR_N_COMMANDS) - 1)
#define BRIEF GR_BRIEF

const struct gr_flag gr_flags[] = {
#define FLAG(field, kind, names, value, def, lo, hi, variable, group, commands, help)              \
    {kind,                                                                                         \
     names,                                                                                        \
     value,                                                                                        \
     def,                                                                                          \
     lo,                                                                                           \
     hi,                                                                                           \
     variable,                                                                                     \
     group,                                                                                        \
     commands,                                                                                     \
     help,                                                                                         \
     offsetof(struct gr_options, field)},
#define NOOP(names, values, help) {GR_FLAG_NOOP, names, values, "", 0, 0, "", OUTPUT, ALL, help, 0},
#define NOTICE(names, values, help)                                                                \
    {GR_FLAG_NOTICE, names, values, "", 0, 0, "", OUTPUT, ALL, help, 0},
#define ABSENT_FLAG(names, answer)                                                                 \
    {GR_FLAG_ABSENT, names, "", "", 0, 0, "", OUTPUT, ALL, answer, 0},
#include "flags.def"
#undef FLAG
#undef NOOP
#undef NOTICE
#undef ABSENT_FLAG
    {.names = NULL},
};

bool gr_flag_next_name(const char **at, const char **name, size_t *n, bool *off)
{
    const char *p = *at + strspn(*at, " ");
    if (*p == '|') {
        *off = true;
        p += strspn(p, "| ");
    }
    *name = p;
    *n = strcspn(p, " ");
    *at = p + *n;
    return *n > 0;
}

/* Whether the n bytes of `word` are one of the choices "a|b|c"; *choice becomes that one's index.
 */
static bool is_choice(const char *choices, const char *word, size_t n, int *choice)
{
    *choice = 0;
    for (const char *p = choices;; p++, ++*choice) {
        size_t m = strcspn(p, "|");
        if (m == n && m && !memcmp(p, word, n))
            return true;
        p += m;
        if (!*p)
            return false;
    }
}

/* ---- values: each reader stores and returns NULL, or returns what it expects ---- */

/* Whether the word auto, or -1, is a value. */
static bool may_be_auto(const struct gr_flag *f)
{
    return !strcmp(f->def, "auto") || strstr(f->value, "|auto");
}

static const char *expected(const struct gr_flag *f)
{
    static char text[128];
    const char *words = may_be_auto(f) ? ", or auto" : !strcmp(f->def, "model") ? ", or model" : "";
    if (f->kind == F32)
        snprintf(text, sizeof text, "a number from %g to %g%s", f->lo, f->hi, words);
    else
        snprintf(text, sizeof text, "a whole number from %.0f to %.0f%s", f->lo, f->hi, words);
    return text;
}

/* A decimal number that is all of the text; hexadecimal, blanks and names are none. */
static bool read_integer(const char *text, double lo, double hi, int64_t *x)
{
    char *end;
    if (text[strspn(text, "+-0123456789")])
        return false;
    errno = 0;
    *x = strtoll(text, &end, 10);
    return end != text && !*end && !errno && (double)*x >= lo && (double)*x <= hi;
}

static bool read_real(const char *text, double *x)
{
    char *end;
    if (text[strspn(text, "+-.eE0123456789")])
        return false;
    *x = strtod(text, &end);
    return end != text && !*end && isfinite(*x);
}

/* A number of the flag's range, or one of the words that it takes for one. */
static bool read_count(const struct gr_flag *f, const char *text, int64_t *x)
{
    bool automatic = may_be_auto(f);
    if (automatic && (!strcmp(text, "auto") || !strcmp(text, "-1")))
        *x = -1;
    else if (automatic && f->hi == INT32_MAX && !strcmp(text, "all"))
        *x = INT32_MAX;
    else
        return read_integer(text, f->lo, f->hi, x);
    return true;
}

static const char *set_integer(const struct gr_flag *f, void *field, const char *text)
{
    int64_t x;
    if (!read_count(f, text, &x))
        return expected(f);
    if (f->kind == I64)
        *(int64_t *)field = x;
    else
        *(int32_t *)field = (int32_t)x;
    return NULL;
}

static const char *set_real(const struct gr_flag *f, float *field, const char *text)
{
    double x;
    if (!strcmp(f->def, "model") && !strcmp(text, "model"))
        x = NAN;
    else if (!read_real(text, &x) || x < f->lo || x > f->hi)
        return expected(f);
    *field = (float)x;
    return NULL;
}

static const char *set_switch(const struct gr_flag *f, int *field, const char *text)
{
    static const char *const words[] = {"0", "off", "false", "no", "1", "on", "true", "yes"};
    for (int i = 0; i < 8; i++) {
        if (!strcmp(text, words[i])) {
            *field = i >= 4;
            return NULL;
        }
    }
    if (strcmp(text, "auto") != 0 || strcmp(f->def, "auto") != 0)
        return "on or off";
    *field = -1;
    return NULL;
}

static const char *set_choice(const struct gr_flag *f, const char **field, const char *text)
{
    static char choices[128];
    int which;
    if (is_choice(f->value, text, strlen(text), &which)) {
        *field = text;
        return NULL;
    }
    snprintf(choices, sizeof choices, "one of %s", f->value);
    return choices;
}

/* "1-64*2", "0-8192+2048", "1-4": first, last, and what makes the next one. */
static bool add_range(const struct gr_flag *f, struct gr_int_list *list, char *word)
{
    int64_t x, last, step = 1;
    char *dash = *word ? strchr(word + 1, '-') : NULL, *by = dash ? strpbrk(dash, "+*") : NULL;
    bool multiplies = by && *by == '*';
    if (by) {
        *by = 0;
        if (!read_integer(by + 1, multiplies ? 2 : 1, INT32_MAX, &step))
            return false;
    }
    if (dash)
        *dash = 0;
    if (!read_count(f, word, &x) || (dash && x < (int64_t)f->lo))
        return false;
    if (!dash)
        last = x;
    else if (!read_integer(dash + 1, f->lo, f->hi, &last) || last < x || (multiplies && x < 1))
        return false;
    for (; x <= last; x = multiplies ? x * step : x + step) {
        if (list->n == 16)
            return false;
        list->v[list->n++] = (int32_t)x;
    }
    return true;
}

static const char *set_list(const struct gr_flag *f, struct gr_int_list *list, const char *text)
{
    struct gr_int_list got = {.n = 0};
    static char form[128];
    for (const char *p = text;; p++) {
        char word[48];
        size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < 47 ? n : 47), p);
        if (n >= sizeof word || !add_range(f, &got, word)) {
            snprintf(form, sizeof form, "up to 16 times %s, separated by commas, or A-B, A-B+STEP",
                     expected(f));
            return form;
        }
        p += n;
        if (!*p)
            break;
    }
    *list = got;
    return NULL;
}

static const char *set_choices(const struct gr_flag *f, struct gr_word_list *list, const char *text)
{
    struct gr_word_list got = {.n = 0};
    static char choices[128];
    for (const char *p = text;; p++) {
        int which;
        size_t n = strcspn(p, ",");
        if (got.n == 16 || n >= sizeof got.v[0] || !is_choice(f->value, p, n, &which)) {
            snprintf(choices, sizeof choices, "one or more of %s, separated by commas", f->value);
            return choices;
        }
        snprintf(got.v[got.n++], sizeof got.v[0], "%.*s", (int)n, p);
        p += n;
        if (!*p)
            break;
    }
    *list = got;
    return NULL;
}

static const char *add_string(struct gr_str_list *list, const char *text)
{
    const char **v = realloc(list->v, ((size_t)list->n + 2) * sizeof *v);
    if (!v)
        return "more memory for it";
    list->v = v;
    v[list->n++] = text;
    v[list->n] = NULL;
    return NULL;
}

/* "15043+1", "15043-0.5", "15043-inf". */
static const char *set_bias(struct gr_bias_list *list, const char *text)
{
    static const char form[] = "ID+X, ID-X or ID-inf";
    char id[16];
    int64_t token;
    double x;
    size_t n = strspn(text, "0123456789");
    snprintf(id, sizeof id, "%.*s", (int)(n < 15 ? n : 15), text);
    if ((text[n] != '+' && text[n] != '-') || !read_integer(id, 0, INT32_MAX, &token))
        return form;
    if (!strcmp(text + n + 1, "inf"))
        x = text[n] == '-' ? -INFINITY : INFINITY;
    else if (!read_real(text + n, &x))
        return form;
    struct gr_logit_bias *v = realloc(list->v, ((size_t)list->n + 1) * sizeof *v);
    if (!v)
        return "more memory for it";
    list->v = v;
    v[list->n++] = (struct gr_logit_bias){(int32_t)token, (float)x};
    return NULL;
}

static const char *set_value(struct gr_options *o, const struct gr_flag *f, const char *text)
{
    void *field = (char *)o + f->offset;
    switch (f->kind) {
    case I32:
    case I64:
        return set_integer(f, field, text);
    case F32:
        return set_real(f, field, text);
    case SWITCH:
        return set_switch(f, field, text);
    case CHOICE:
    case WHEN:
        return set_choice(f, field, text);
    case LIST:
        return set_list(f, field, text);
    case CHOICES:
        return set_choices(f, field, text);
    case STRS:
        return add_string(field, text);
    case BIAS:
        return set_bias(field, text);
    case STR:
        *(const char **)field = text;
        return NULL;
    case GR_FLAG_NOTICE:
        o->notice = f;
        return NULL;
    default:
        return NULL;
    }
}

/* ---- names ---- */

/* The flag of the command that has the name, n bytes; *off as in the table. NULL: none. `any`: of
 * whatever command. */
static const struct gr_flag *find_flag(enum gr_command command, bool any, const char *name,
                                       size_t n, bool *off)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const char *at = f->names, *p;
        size_t m;
        if (!any && !(f->commands & 1u << command))
            continue;
        for (*off = false; gr_flag_next_name(&at, &p, &m, off);) {
            if (m == n && !memcmp(p, name, n))
                return f;
        }
    }
    return NULL;
}

struct nearest {
    size_t distance;
    char name[48];
};

/* Dashes do not count; the beginning of a name is as near as one slip. */
static void offer(struct nearest *best, const char *word, size_t n_word, const char *name, size_t n)
{
    size_t dashes = strspn(name, "-");
    size_t d = gr_edit_distance(word, n_word, name + dashes, n - dashes);
    if (d > 1 && n_word > 2 && n - dashes > n_word && !memcmp(word, name + dashes, n_word))
        d = 1;
    if (d < best->distance && n < sizeof best->name) {
        best->distance = d;
        snprintf(best->name, sizeof best->name, "%.*s", (int)n, name);
    }
}

const char *gr_nearest_name(enum gr_command command, const char *word)
{
    static struct nearest best;
    bool flag = *word == '-';
    word += strspn(word, "-");
    size_t n = strcspn(word, "=");
    /* A single letter may differ in case only; longer names in one letter, and one more for every
     * three. */
    best = (struct nearest){.distance = n < 2 ? 1 : n < 3 ? 2 : n / 3 + 1};
    for (const struct gr_command_spec *c = gr_commands; c->name && !flag; c++)
        offer(&best, word, n, c->name, strlen(c->name));
    for (const struct gr_flag *f = gr_flags; f->names && flag; f++) {
        const char *at = f->names, *p;
        size_t m;
        bool off = false;
        while (f->commands & 1u << command && gr_flag_next_name(&at, &p, &m, &off))
            offer(&best, word, n, p, m);
    }
    return *best.name ? best.name : NULL;
}

/* ---- defaults, variables, arguments ---- */

static void set_defaults(struct gr_options *o)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        if (*f->def)
            (void)set_value(o, f, f->def);
    }
}

static int read_variables(struct gr_options *o)
{
    static const char *const prefix[] = {"LLAMA_ARG_", "GPURUN_"};
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        for (int i = 0; i < 2 && *f->variable && f->commands & 1u << o->command; i++) {
            char name[64];
            snprintf(name, sizeof name, "%s%s", prefix[i], f->variable);
            const char *text = getenv(name), *want = text && *text ? set_value(o, f, text) : NULL;
            if (want) {
                gr_say_error("variable %s is '%s': %s is expected", name, text, want);
                return GR_EXIT_USAGE;
            }
        }
    }
    return 0;
}

static int unknown_flag(const struct gr_options *o, const char *arg)
{
    const char *command = gr_commands[o->command].name, *near = gr_nearest_name(o->command, arg);
    bool off;
    if (find_flag(o->command, true, arg, strcspn(arg, "="), &off))
        gr_say_error("gpurun %s has no flag %s; gpurun help %s lists those it has", command, arg,
                     command);
    else if (near)
        gr_say_error("unknown flag '%s': did you mean %s?", arg, near);
    else
        gr_say_error("unknown flag '%s'; gpurun help %s lists all", arg, command);
    return GR_EXIT_USAGE;
}

/* The word that belongs to a flag: after "=", or the next argument, which *i moves to. NULL: there
 * is none. */
static const char *take_value(const struct gr_flag *f, const char *inline_value, int argc,
                              char **argv, int *i)
{
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    int which;
    if (inline_value)
        return inline_value;
    bool optional = f->kind == WHEN || f->kind == GR_FLAG_NOOP || f->kind == GR_FLAG_NOTICE;
    if (optional && (f->kind == WHEN || strchr(f->value, '|'))) {
        if (!next || !is_choice(f->value, next, strlen(next), &which))
            return "on";
    } else if (!next) {
        return NULL;
    }
    ++*i;
    return next;
}

/* Handles argv[*i], which begins with a dash. */
static int read_flag(struct gr_options *o, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
    bool off;
    const struct gr_flag *f = find_flag(o->command, false, arg, n, &off);
    if (!f)
        return unknown_flag(o, arg);
    if (f->kind == GR_FLAG_ABSENT) {
        gr_say_error("%.*s: %s", (int)n, arg, f->help);
        return GR_EXIT_USAGE;
    }
    bool takes = *f->value || (equals && f->kind == SWITCH && !off);
    if (equals && !takes) {
        gr_say_error("%.*s takes no value", (int)n, arg);
        return GR_EXIT_USAGE;
    }
    const char *text = takes ? take_value(f, equals ? equals + 1 : NULL, argc, argv, i)
                       : off ? "off"
                             : "on";
    if (!text) {
        gr_say_error("%s needs a value, %s", arg, f->value);
        return GR_EXIT_USAGE;
    }
    const char *want = set_value(o, f, text);
    if (want) {
        bool choice = f->kind == CHOICE || f->kind == CHOICES;
        gr_say_error("%.*s is '%s': %s is expected%s%s", (int)n, arg, text, want,
                     choice ? ": " : "", choice ? f->help : "");
        return GR_EXIT_USAGE;
    }
    return 0;
}

/* What cannot be a model file, whatever is there. */
static int check_model(const char *model)
{
    char config[4096];
    struct stat st;
    if (!model)
        return 0;
    if (!*model)
        gr_say_error("the model file's name is empty: give one by -m FILE, or leave it out for the "
                     "built-in model");
    else if (strstr(model, "://"))
        gr_say_error("gpurun does not download; get the file of %s, then -m FILE", model);
    else if (stat(model, &st) || !S_ISDIR(st.st_mode))
        return 0;
    else if (snprintf(config, sizeof config, "%s/config.json", model) > 0 && !access(config, F_OK))
        gr_say_error("%s is a Hugging Face checkpoint, and a GGUF file is expected: python3 "
                     "scripts/convert %s OUT.gguf of gpurun's sources makes one",
                     model, model);
    else
        gr_say_error("%s is a folder, and a GGUF file is expected", model);
    return model[0] ? gr_status_exit(GR_E_NO_MODEL) : GR_EXIT_USAGE;
}

/* `model`: what a variable says, which an argument may replace. */
static int check_arguments(struct gr_options *o, const char *model)
{
    const struct gr_command_spec *c = &gr_commands[o->command];
    bool takes_model = o->command == GR_CMD_run || o->command == GR_CMD_tokenize ||
                       o->command == GR_CMD_embed || o->command == GR_CMD_bench ||
                       o->command == GR_CMD_inspect || o->command == GR_CMD_fit ||
                       o->command == GR_CMD_profile || o->command == GR_CMD_perplexity ||
                       o->command == GR_CMD_imatrix || o->command == GR_CMD_diff;
    if (takes_model && o->n_args == 1) {
        if (o->model != model) {
            gr_say_error("two model files, '%s' and '%s'; a prompt needs -p before it", o->model,
                         o->arg[0]);
            return GR_EXIT_USAGE;
        }
        o->model = o->arg[0];
    }
    if (o->n_args < c->least && !o->help) {
        gr_say_error("usage: gpurun %s %s", c->name, c->args);
        return GR_EXIT_USAGE;
    }
    return o->help ? 0 : check_model(o->model);
}

int gr_options_parse(struct gr_options *o, enum gr_command command, int argc, char **argv)
{
    *o = (struct gr_options){.command = command};
    set_defaults(o);
    int rc = read_variables(o);
    const char *model = o->model;
    bool only_arguments = false;
    for (int i = 0; i < argc && !rc; i++) {
        if (!only_arguments && !strcmp(argv[i], "--")) {
            only_arguments = true;
        } else if (!only_arguments && argv[i][0] == '-' && argv[i][1]) {
            rc = read_flag(o, argc, argv, &i);
        } else if (o->n_args < gr_commands[command].most) {
            o->arg[o->n_args++] = argv[i];
        } else {
            gr_say_error("unexpected argument '%s'; text to continue is given by -p \"...\"",
                         argv[i]);
            rc = GR_EXIT_USAGE;
        }
    }
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
        }
    }
}
