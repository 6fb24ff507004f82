/* Shared by the commands, each of which is a function of the options that returns the exit code. */
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
/* Returns whether messages of this level are printed. */
bool gr_say_shows(enum gr_log_level level);
/* Closes the log file; exit code 6, after printing the error, when messages could not be
 * written. */
int gr_say_fini(void);
/* "gpurun: error: ..." */
void gr_say_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Returns the text of the last error, "" before the first; at most 511 bytes. */
const char *gr_say_last_error(void);
void gr_say_warning(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints that memory ran out; returns the exit code. */
int gr_say_no_memory(void);
/* Sets a prefix for errors and warnings, the part of the command they are about ("-a"); "": none.
 * The string must live as long. */
void gr_say_within(const char *part);
void gr_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void gr_say_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* with -v */
/* Writes to the log file only. */
void gr_say_logged(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Ends an incomplete line of text, on a terminal and where stdout and stderr are one file; gr_say
 * functions do so by themselves. */
void gr_say_break(void);
/* Makes this a rank other than 0: only errors are printed, with its name as prefix; its own errors
 * are held until gr_say_held. */
void gr_say_as(const char *name);
/* Prints or discards the rank's first own error, if any. */
void gr_say_held(bool print);
/* Drops log lines of the library while on, for trial runs. */
void gr_say_hush(bool on);
/* Draws a line at the end of the terminal, in place of the one drawn before; whatever is printed
 * next removes it. */
void gr_say_draw(const char *line);
/* Removes the drawn line, if any; call before writing to the terminal by other means.
 * Async-signal-safe. */
void gr_say_erase(void);
/* Prints the library's message for a failed call; returns the exit code of its status. */
int gr_say_status(int status);

/* ---- stdout ---- */

/* Writes n bytes and flushes. When stdout has no reader any more the program ends with exit code 0,
 * after a failed write (full disk) with 6. */
void gr_out(const char *p, size_t n);
/* The same for formatted text, at most 1,023 bytes. */
void gr_print(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same check after printing to stdout by other means. On a terminal ends an incomplete line. */
void gr_out_finish(void);
/* Returns whether the text on the terminal ends with an incomplete line. */
bool gr_out_is_open(void);
/* Returns whether stdout has no reader any more; a single process has ended then. */
bool gr_out_ended(void);
/* With several ranks, which must be told of the end: when stdout loses its reader the program is
 * interrupted (SIGINT), where the command handles that, and does not end. */
void gr_out_with_ranks(bool several);
/* Returns whether a file descriptor is a user's terminal; the pseudo-terminals that Open MPI's
 * mpirun gives its processes do not count. */
bool gr_is_terminal(int fd);

/* ---- help ---- */

/* Returns the i-th topic of gpurun help that is neither a command nor a flag; NULL past the last
 * one. */
const char *gr_help_topic(int i);
/* gpurun completion words: prints completions of the last of the words after the program's name.
 * Returns 0. */
int gr_complete_words(int n, char **words);

/* ---- input ---- */

/* Reads a whole file, or standard input for "-", zero-terminated (free); 0 or an exit code, after
 * printing the error. */
int gr_read_all(const char *path, char **data, size_t *n);
/* Reads the text of -p, -f or, without either and unless it is a terminal, standard input; ""
 * without any. Escapes in -p are replaced. *given: there was a text. 0 or an exit code, after
 * printing the error. */
int gr_read_text(const struct gr_options *o, char **text, size_t *n, bool *given);
/* Warns once when standard input has text that is unused because the flags name another. For a pipe
 * this is known only after its writer has written, so call it at the end of a command too. */
void gr_warn_unread(const struct gr_options *o);

/* ---- JSON ---- */

/* gr_json_starved: an allocation by jansson has failed since gr_json_begin. */
void gr_json_begin(void);
bool gr_json_starved(void);

/* ---- output ---- */

/* Checks that each output file of the options can be written and is not another file of the
 * command. 0 or an exit code, after printing the error. */
int gr_outputs_check(const struct gr_options *o);

/* ---- interrupts ---- */

/* Installs the handler: the first interrupt cancels the batch of the session (unless NULL), so that
 * the command ends in good order; the second one ends the program. */
void gr_catch_interrupts(struct gr_session *session);
/* Returns whether there was an interrupt. */
bool gr_interrupted(void);

/* ---- several processes ---- */

/* Joins the processes started by mpirun or srun, if any. 0 or an exit code, after printing the
 * error. */
int gr_together_open(void);
/* Returns the world of all ranks; NULL: a single process. */
struct gr_world *gr_together_world(void);
/* Returns whether this rank takes part in a command. One that is not shared is run by rank 0 alone,
 * which leaves the others. */
bool gr_together_share(bool shared);
/* Leaves the other ranks with an exit code; returns the one that all ranks end with. */
int gr_together_close(int code);

/* ---- model ---- */

/* Adapters of the command line, in its order; paths are copies. Reading prints errors. */
struct gr_adapters {
    struct gr_adapter v[GR_MAX_ADAPTER];
    int32_t n;
};
int gr_adapters_read(struct gr_adapters *a, const struct gr_options *o);
void gr_adapters_free(struct gr_adapters *a);

/* Opens the model of the options, or the built-in one, and prints a line about it. 0 or an exit
 * code, after printing the error. */
int gr_open_model(const struct gr_options *o, bool vocab_only, struct gr_model **model);
/* Find the constant of a word: "model", "yarn", ..; "model", "mean", .. False: there is none. */
bool gr_scaling_named(const char *word, enum gr_rope_scaling *scaling);
bool gr_pooling_named(const char *word, enum gr_pooling *pooling);
/* Returns session parameters from the options; the caller sets n_ctx. */
struct gr_session_params gr_session_options(const struct gr_options *o);
/* Sets only the options for cache layout and GPU use, in parameters from elsewhere. */
void gr_cache_options(const struct gr_options *o, struct gr_session_params *p);

/* Prints the memory of the caches of such a session. 0 or an exit code, after printing the
 * error. */
int gr_print_size(const struct gr_options *o, const struct gr_model *model,
                  const struct gr_session_params *p);
/* Most batches of a prompt in flight: enough to keep that many stages busy. */
#define GR_MOST_FLIGHT 32
/* Ends batches until at most `most` of the *n in flight are left. Returns a status. */
int gr_end_batches(struct gr_session *s, int32_t *n, int32_t most);
/* Returns -t, or the number of available processors. */
int gr_threads_wanted(const struct gr_options *o);
/* Sets the placement of threads; `words` owns the lists of processors. */
struct gr_thread_words {
    char one[8192], many[8192];
};
void gr_thread_options(const struct gr_options *o, struct gr_thread_words *words,
                       struct gr_model_params *p);

/* " | VRAM .. | 33/33 layers on GPU" of an open session, "" without any. Returns buf. */
const char *gr_gpu_summary(const struct gr_session *s, char *buf, size_t n);

/* Print a line on the use of each rank's time, if there are several; and return the same as a list,
 * NULL without memory. */
void gr_say_stages(struct gr_session *session);
struct json_t *gr_stages_json(struct gr_session *session);

/* Returns seconds of a monotonic clock. */
double gr_seconds(void);
/* "1.23 GiB", "2.0 M": n of bytes (step 1024), or of things (step 1000). Returns buf. */
const char *gr_amount(char buf[16], double n, int step);
/* Formats x for JSON: "null" unless finite. Returns buf. */
const char *gr_json_number(char buf[32], double x);

#endif
