/* What the commands share: each is a function of the options that returns the exit code. */
#ifndef GR_TOOLS_TOOLS_H
#define GR_TOOLS_TOOLS_H

#include "flags.h"

#define COMMAND(name, fn, args, least, most, ranks, meaning) int fn(const struct gr_options *o);
#define ABSENT(name, answer)
#include "commands.def"
#undef COMMAND
#undef ABSENT

/* ---- stderr: one line each, also into the log file ---- */

/* Sets the level and opens the log file; 0 or an exit code. Sets gpurun.h's sink. */
int gr_say_init(const struct gr_options *o);
/* Exit code 6 when messages did not get into the log file, which was said. */
int gr_say_fini(void);
/* "gpurun: error: ..." */
void gr_say_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The text of the last one, "" before the first; at most 511 bytes. */
const char *gr_say_last_error(void);
void gr_say_warning(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Says that memory ran out; returns the exit code of that. */
int gr_say_no_memory(void);
/* From now on errors and warnings are of this part of the command, "-a", and begin with it; "": of
 * all of it. The string must live as long. */
void gr_say_within(const char *part);
void gr_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void gr_say_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* with -v */
/* Into the log file alone. */
void gr_say_logged(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Ends the line of text that is open, on a terminal and where stdout and stderr are one file; what
 * is said does that by itself. */
void gr_say_break(void);
/* From now on this is a rank other than 0: of what it says only errors are printed, with its name
 * before them, and its own not before it is known whether they are news. */
void gr_say_as(const char *name);
/* Its first own error, if there was one: printed, or forgotten. */
void gr_say_held(bool print);
/* While it is on, log lines of the library are dropped: those of what is only tried. */
void gr_say_hush(bool on);
/* Prints the library's message for a failed call; returns the exit code of its status. */
int gr_say_status(int status);

/* ---- stdout ---- */

/* Writes n bytes and flushes. A reader that went away ends the program with exit code 0, a full
 * disk with 6. */
void gr_out(const char *p, size_t n);
/* The same of formatted text, at most 1,023 bytes. */
void gr_print(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same check for what was printed to stdout by other means. On a terminal ends an open line. */
void gr_out_finish(void);
/* Whether the text on the terminal ends within a line. */
bool gr_out_is_open(void);
/* Whether nobody reads stdout any more; a process that is alone has ended then. */
bool gr_out_ended(void);
/* Whether somebody looks at a file descriptor on a terminal. Open MPI's mpirun gives the processes
 * that it starts terminals of its own: these do not count. */
bool gr_is_terminal(int fd);

/* ---- help ---- */

/* The i-th topic of gpurun help that is neither a command nor a flag; NULL past the last one. */
const char *gr_help_topic(int i);
/* gpurun completion words: prints what may stand in the place of the last one of the words behind
 * the program's name. Returns 0. */
int gr_complete_words(int n, char **words);

/* ---- input ---- */

/* The whole of a file, or of standard input for "-": zero-terminated, to be freed; 0 or an exit
 * code, said. */
int gr_read_all(const char *path, char **data, size_t *n);
/* The text of -p, -f or, when neither is given and it is no terminal, standard input; "" without
 * any. Escapes of -p are replaced. *given: whether there was one. 0 or an exit code, said. */
int gr_read_text(const struct gr_options *o, char **text, size_t *n, bool *given);
/* Warns once when standard input has text and the flags name another one. Of a pipe that is known
 * only once its writer has written, so that the end of a command is a good time for it too. */
void gr_warn_unread(const struct gr_options *o);

/* ---- JSON ---- */

/* Whether an allocation of jansson's has failed since gr_json_begin. */
void gr_json_begin(void);
bool gr_json_starved(void);

/* ---- output ---- */

/* Whether each file that the options name for writing can be begun, and is no other one of the
 * command. 0 or an exit code, said. */
int gr_outputs_check(const struct gr_options *o);

/* ---- interrupts ---- */

/* The first interrupt from now on cancels the batch of the session, unless that is NULL, so that
 * the command ends in good order; the second one ends the program. */
void gr_catch_interrupts(struct gr_session *session);
/* Whether there was one. */
bool gr_interrupted(void);

/* ---- several processes ---- */

/* Joins the processes that mpirun or srun has started; there need be none. 0 or an exit code, said.
 */
int gr_together_open(void);
/* The ranks together, NULL: this process is alone. */
struct gr_world *gr_together_world(void);
/* Whether this rank has a part in a command. One that is not shared is for rank 0 alone, which
 * leaves the others. */
bool gr_together_share(bool shared);
/* Runs a command on rank 0; others open the model that it opens, and serve it. */
int gr_together_run(const struct gr_command_spec *c, const struct gr_options *o);
/* Leaves with an exit code; returns the one that all ranks end with. */
int gr_together_close(int code);

/* ---- model ---- */

/* Adapters of the command line, in its order; paths are copies. Says what is wrong. */
struct gr_adapters {
    struct gr_adapter v[GR_MAX_ADAPTER];
    int32_t n;
};
int gr_adapters_read(struct gr_adapters *a, const struct gr_options *o);
void gr_adapters_free(struct gr_adapters *a);

/* Whether a file can be read (NULL: the built-in model). 0 or an exit code, said. */
int gr_model_is_there(const char *path);
/* Opens the model that the options name, or the built-in one, and says so in a line. 0 or an exit
 * code, said. */
int gr_open_model(const struct gr_options *o, bool vocab_only, struct gr_model **model);
/* Session parameters from the options; n_ctx is left to the caller. */
struct gr_session_params gr_session_options(const struct gr_options *o);
/* Those of them that say how the cells lie and how a GPU is used, into parameters that come from
 * elsewhere. */
void gr_cache_options(const struct gr_options *o, struct gr_session_params *p);

/* Prints what the caches of such a session would take. 0 or an exit code, said. */
int gr_print_size(const struct gr_options *o, const struct gr_model *model,
                  const struct gr_session_params *p);
/* Batches of a prompt that are in flight: enough for as many stages to be busy. */
#define GR_MOST_FLIGHT 32
/* Ends batches until no more than `most` of the *n that are in flight are left. A status. */
int gr_end_batches(struct gr_session *s, int32_t *n, int32_t most);
/* -t, or the number of processors at hand. */
int gr_threads_wanted(const struct gr_options *o);
/* Where threads run; the lists of processors are in `words`. */
struct gr_thread_words {
    char one[8192], many[8192];
};
void gr_thread_options(const struct gr_options *o, struct gr_thread_words *words,
                       struct gr_model_params *p);

/* " | VRAM .. | 33/33 layers on GPU" of an open session, "" without any. Returns buf. */
const char *gr_gpu_summary(const struct gr_session *s, char *buf, size_t n);

/* A line on what the time of each rank went into, where there are several; and the same as a list,
 * NULL without memory. */
void gr_say_stages(struct gr_session *session);
struct json_t *gr_stages_json(struct gr_session *session);

/* Seconds on a clock that only goes forward. */
double gr_seconds(void);
/* "1.23 GiB", "2.0 M": n of bytes (step 1024), or of things (step 1000). Returns buf. */
const char *gr_amount(char buf[16], double n, int step);
/* x as JSON has it: "null" for what is no finite number. Returns buf. */
const char *gr_json_number(char buf[32], double x);

#endif
