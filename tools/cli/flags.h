/* Commands and flags, generated from commands.def and flags.def. */
#ifndef GR_TOOLS_FLAGS_H
#define GR_TOOLS_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpurun.h"

#define GR_EXIT_USAGE 2
#define GR_EXIT_INTERRUPTED 130
#define GR_MAX_ARGS 16

enum gr_command {
#define COMMAND(name, fn, args, least, most, ranks, meaning) GR_CMD_##name,
#define ABSENT(name, answer)
#include "commands.def"
#undef COMMAND
#undef ABSENT
    GR_N_COMMANDS
};

struct gr_command_spec {
    const char *name;
    const char *args; /* of the usage line; NULL: absent command, `text` is the answer */
    int least, most;
    bool shared; /* run by all ranks, not by rank 0 alone */
    const char *text;
};
/* GR_N_COMMANDS commands, then the absent ones; a NULL name ends it. */
extern const struct gr_command_spec gr_commands[];

/* Kind of a flag: its syntax and the type of its field. */
enum gr_flag_kind {
    STR,
    SWITCH,
    I32,
    I64,
    F32,
    CHOICE,
    WHEN,
    SHARES,
    HEX,
    STEPS,
    LIST,
    SWITCHES,
    CHOICES,
    FILES,
    STRS,
    BIAS,
    GR_FLAG_NOOP,
    GR_FLAG_NOTICE,
    GR_FLAG_ABSENT
};

struct gr_int_list {
    int32_t v[16];
    int n;
};
struct gr_word_list {
    char v[16][8];
    int n;
};
struct gr_file_list {
    char *v[16]; /* freed by gr_options_fini */
    int n;
};
/* Values of a flag that may be given several times. */
struct gr_str_list {
    const char **v; /* [n], then NULL; freed by gr_options_fini */
    int32_t n;
};
/* Bias of a token, or of those of a text. */
struct gr_bias {
    const char *text; /* [n_text], in the command line; NULL: token `id` */
    size_t n_text;
    int32_t id;
    float bias;
};
struct gr_bias_list {
    struct gr_bias *v; /* freed by gr_options_fini */
    int32_t n;
};
#define GR_TYPE_STR const char * /* NULL when not given */
#define GR_TYPE_SWITCH int       /* 1, 0, -1 = auto */
#define GR_TYPE_I32 int32_t      /* -1 = auto */
#define GR_TYPE_I64 int64_t
#define GR_TYPE_F32 float /* NAN: as the model says */
#define GR_TYPE_CHOICE const char *
#define GR_TYPE_WHEN const char *   /* a choice whose word may be omitted: "on" */
#define GR_TYPE_SHARES const char * /* "3,1", or "auto" */
#define GR_TYPE_HEX const char *    /* a mask */
#define GR_TYPE_STEPS const char *  /* "A:B", A below B */
#define GR_TYPE_LIST struct gr_int_list
#define GR_TYPE_SWITCHES struct gr_int_list /* of 1 and 0 */
#define GR_TYPE_CHOICES struct gr_word_list
#define GR_TYPE_FILES struct gr_file_list
#define GR_TYPE_STRS struct gr_str_list
#define GR_TYPE_BIAS struct gr_bias_list

/* Source of a flag's value. */
struct gr_given {
    const char *text; /* the last value ("on" or "off" for a switch); NULL: not given */
    const char *was;  /* an earlier, different value on the command line; NULL: none */
    bool by_flag;     /* on the command line, not by a variable */
};

/* Flags without a field. */
enum {
    GR_N_NOTICES = 0
#define FLAG(...)
#define NOOP(...) +1
#define NOTICE(...) +1
#define ABSENT_FLAG(...)
#include "flags.def"
#undef FLAG
#undef NOOP
#undef NOTICE
#undef ABSENT_FLAG
};

/* Parsed command line and environment, which own the strings. */
struct gr_options {
    enum gr_command command;
    const char *arg[GR_MAX_ARGS]; /* arguments that are not flags */
    int n_args;
    char **words; /* words of the command line after the command */
    int n_words;
    /* Flags that were given, have no effect and deserve a notice; text: the value, or NULL. */
    struct {
        const struct gr_flag *flag;
        const char *text;
    } notice[GR_N_NOTICES];
    int n_notice;
    struct gr_str_list prompts; /* every text of -p; `prompt` is the last */
    char *joined[GR_MAX_ARGS];  /* values of two words, freed by gr_options_fini */
    int n_joined;
    const struct gr_flag *about; /* --help was given in place of this flag's value */
#define FLAG(field, kind, ...) GR_TYPE_##kind field;
#define NOOP(...)
#define NOTICE(...)
#define ABSENT_FLAG(...)
#include "flags.def"
#undef FLAG
    struct {
#define FLAG(field, ...) struct gr_given field;
#include "flags.def"
#undef FLAG
    } given;
#undef NOOP
#undef NOTICE
#undef ABSENT_FLAG
};

enum gr_flag_group { MODEL, TEXT, SAMPLING, MEMORY, ROPE, SERVER, OUTPUT, COMMANDS, GR_N_GROUPS };

struct gr_flag {
    enum gr_flag_kind kind;
    const char *names; /* separated by blanks; those after "|" switch off */
    const char *value; /* name of the value, or the choices */
    const char *def;
    double lo, hi;
    const char *variable;
    enum gr_flag_group group;
    unsigned commands; /* bits 1 << enum gr_command, and GR_BRIEF */
    const char *help;
    size_t offset, given; /* in struct gr_options */
};
#define GR_BRIEF (1u << 31) /* shown in the short help */

/* All flags; a NULL name ends it. */
extern const struct gr_flag gr_flags[];

/* Iterates over the blank-separated names: *name and *n; false at the end. *off: the name switches
 * off. Begin with *at = names and *off = false. */
bool gr_flag_next_name(const char **at, const char **name, size_t *n, bool *off);

/* Finds the flag with this name of n bytes of the command (GR_N_COMMANDS: of the first that has
 * it); *off as above. NULL: none. */
const struct gr_flag *gr_flag_find(enum gr_command command, const char *name, size_t n, bool *off);
/* Returns whether a flag with variable X has the opposite variable NO_X. */
bool gr_flag_has_no(const struct gr_flag *f);

/* Reads variables, then argv[0 .. argc) (without program and command), into *o. 0, or GR_EXIT_USAGE
 * with the error printed. gr_options_fini frees it in both cases. */
int gr_options_parse(struct gr_options *o, enum gr_command command, int argc, char **argv);
void gr_options_fini(struct gr_options *o);
/* Returns whether words of gpurun run are a chat's: by -cnv, or a flag that only chat has, unless
 * -no-cnv is among them. */
bool gr_options_are_chat(int argc, char **argv);
/* Checks that a model file can be read (NULL: the built-in model). 0 or an exit code, after
 * printing the error. */
int gr_model_is_there(const char *path);
/* Checks that the values of different flags are consistent, before anything is opened; completes
 * values that follow from others. 0, or GR_EXIT_USAGE with the error printed. */
int gr_options_check(struct gr_options *o);
/* Warns of flags and variables without effect: given twice, without the flag that they belong to,
 * misspelt. */
void gr_options_warn(const struct gr_options *o);

/* Returns the name nearest to `word` among the commands (if it starts with a letter) or the
 * command's flags (GR_N_COMMANDS: all flags); NULL when none is near. Valid until the next call. */
const char *gr_nearest_name(enum gr_command command, const char *word);

#endif
