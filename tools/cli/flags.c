/* The tables of commands and flags, and the search for a name in them. */
#include "flags.h"

#include <stdio.h>
#include <string.h>

const struct gr_command_spec gr_commands[] = {
#define ALONE false
#define SHARED true
#define COMMAND(name, fn, args, least, most, ranks, meaning)                                       \
    {#name, args, least, most, ranks, meaning},
#define ABSENT(name, answer)
#include "commands.def"
#undef COMMAND
#undef ABSENT
#define COMMAND(name, fn, args, least, most, ranks, meaning)
#define ABSENT(name, answer) {#name, NULL, 0, 0, ALONE, answer},
#include "commands.def"
#undef COMMAND
#undef ABSENT
    {NULL, NULL, 0, 0, ALONE, NULL},
};

#define CHAT (1u << GR_CMD_chat)
#define ONCE (1u << GR_CMD_run | 1u << GR_CMD_profile) /* profile has the flags of run */
#define RUN (ONCE | CHAT)                              /* flags of both */
#define SERVE (1u << GR_CMD_serve)
#define GENERATE (RUN | SERVE) /* the server's are defaults of requests */
#define TOKENIZE (1u << GR_CMD_tokenize)
#define TEMPLATE (1u << GR_CMD_template)
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
#define FIT (1u << GR_CMD_fit | CHUNKS) /* flags of sessions, for commands that open one */
#define DIFF (1u << GR_CMD_diff)
#define LISTS (1u << GR_CMD_list)
#define PULL (1u << GR_CMD_pull)
#define MODELS (GENERATE | EMBED | TOKENIZE | INSPECT | REPLAY | FIT | DIFF | BENCH)
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
     offsetof(struct gr_options, field),                                                           \
     offsetof(struct gr_options, given.field)},
#define NOOP(names, values, help)                                                                  \
    {GR_FLAG_NOOP, names, values, "", 0, 0, "", OUTPUT, ALL, help, 0, 0},
#define NOTICE(names, values, help)                                                                \
    {GR_FLAG_NOTICE, names, values, "", 0, 0, "", OUTPUT, ALL, help, 0, 0},
#define ABSENT_FLAG(names, answer)                                                                 \
    {GR_FLAG_ABSENT, names, "", "", 0, 0, "", OUTPUT, ALL, answer, 0, 0},
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

const struct gr_flag *gr_flag_find(enum gr_command command, const char *name, size_t n, bool *off)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const char *at = f->names, *p;
        size_t m;
        if (command != GR_N_COMMANDS && !(f->commands & 1u << command))
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

/* Compares a name. Dashes are ignored; a prefix of a name counts as one error. */
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
        bool offered =
            f->kind != GR_FLAG_ABSENT && (command == GR_N_COMMANDS || f->commands & 1u << command);
        while (offered && gr_flag_next_name(&at, &p, &m, &off))
            offer(&best, word, n, p, m);
    }
    return *best.name ? best.name : NULL;
}

bool gr_flag_has_no(const struct gr_flag *f)
{
    return f->kind == SWITCH && strchr(f->names, '|');
}
