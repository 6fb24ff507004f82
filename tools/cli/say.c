/* Output to stderr and stdout. */
#include "say.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flags.h"
#include "visible.h"

#define ERASE "\r\033[K" /* the line of the cursor */

static enum gr_log_level threshold = GR_LOG_INFO;
static struct gr_output *log_file;
static int log_lost;                       /* exit code after a failed write */
static char speaker[144];                  /* name of a rank other than 0, followed by ": " */
static char held[1024];                    /* its first error */
static _Thread_local char last_error[512]; /* without the prefix */
static const char *within = "";            /* part of the command that messages are about */
static bool out_gone;                      /* stdout has no reader any more */
static bool line_open;                     /* the last line on stdout is incomplete */
static bool hushed;                        /* log lines of the library are dropped */
static bool with_ranks;                    /* losing stdout's reader must not end this process */
static atomic_bool drawn;                  /* gr_say_draw's line is on the terminal */

bool gr_is_terminal(int fd)
{
    return !getenv("OMPI_COMM_WORLD_SIZE") && isatty(fd);
}

/* Returns whether stdout and stderr go to the same file, pipe or terminal. */
static bool share_file(void)
{
    struct stat out, err;
    return !fstat(STDOUT_FILENO, &out) && !fstat(STDERR_FILENO, &err) && out.st_dev == err.st_dev &&
           out.st_ino == err.st_ino;
}

void gr_say_draw(const char *line)
{
    drawn = true;
    fputc('\r', stderr);
    (void)gr_write_visible(stderr, line, strlen(line)); /* names of files may be within */
    fputs("\033[K", stderr);
}

void gr_say_erase(void)
{
    if (drawn)
        (void)!write(STDERR_FILENO, ERASE, sizeof ERASE - 1);
    drawn = false;
}

void gr_say_break(void)
{
    gr_say_erase();
    if (line_open && (gr_is_terminal(STDERR_FILENO) || share_file())) {
        fputc('\n', stderr);
        line_open = false;
    }
}

/* Writes a line to the log file; after the first failure, which is printed, nothing more is
 * written. */
static void put_log(const char *line)
{
    int status = gr_output_put(log_file, line, strlen(line));
    if (!status)
        status = gr_output_put(log_file, "\n", 1);
    if (!status)
        status = gr_output_flush(log_file);
    if (!status)
        return;
    log_lost = gr_status_exit(status);
    gr_say_erase();
    fprintf(stderr, "gpurun: error: --log-file: %s\n", gr_error_message());
}

static void put_line(enum gr_log_level level, const char *line)
{
    flockfile(stderr); /* which keeps the log file's lines apart too */
    if (gr_say_shows(level)) {
        gr_say_break();
        (void)gr_write_visible(stderr, line, strlen(line));
        fputc('\n', stderr);
    }
    if (log_file && !log_lost)
        put_log(line);
    funlockfile(stderr);
}

/* Prints a line with its prefix: the speaker and the kind ("error: "). */
static void put(enum gr_log_level level, const char *what, const char *fmt, va_list ap)
{
    char line[2048];
    int n = *what ? snprintf(line, sizeof line, "gpurun: %s%s%s%s", speaker, what, within,
                             *within ? ": " : "")
                  : 0;
    vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    put_line(level, line);
}

static void put_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put(GR_LOG_ERROR, "error: ", fmt, ap);
    va_end(ap);
}

static void from_library(enum gr_log_level level, const char *line, void *user)
{
    (void)user;
    if (hushed)
        return;
    if (level == GR_LOG_WARN)
        gr_say_warning("%s", line);
    else if (level == GR_LOG_ERROR)
        put_error("%s", line);
    else
        put_line(level, line);
}

int gr_say_init(const struct gr_options *o)
{
    int verbosity = o->quiet ? 1 : o->verbose ? 4 : o->verbosity;
    threshold = verbosity > 3   ? GR_LOG_DEBUG
                : verbosity > 2 ? GR_LOG_INFO
                : verbosity > 1 ? GR_LOG_WARN
                                : GR_LOG_ERROR;
    if (*speaker)
        threshold = GR_LOG_ERROR;
    int status =
        *speaker || !o->log_file ? 0 : gr_output_open(&log_file, o->log_file, GR_OUTPUT_LIVE);
    if (status)
        return gr_say_status(status);
    gr_log_set(from_library, NULL);
    return 0;
}

bool gr_say_shows(enum gr_log_level level)
{
    return level >= threshold;
}

int gr_say_fini(void)
{
    gr_log_set(NULL, NULL);
    int status = log_file && !log_lost ? gr_output_commit(&log_file) : 0;
    gr_output_abort(&log_file);
    return status ? gr_say_status(status) : log_lost;
}

void gr_say_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_error, sizeof last_error, fmt, ap);
    va_end(ap);
    va_start(ap, fmt);
    if (!*speaker)
        put(GR_LOG_ERROR, "error: ", fmt, ap);
    else if (!*held)
        vsnprintf(held, sizeof held, fmt, ap);
    va_end(ap);
}

const char *gr_say_last_error(void)
{
    return last_error;
}

int gr_say_no_memory(void)
{
    gr_say_error("out of host memory");
    return gr_status_exit(GR_E_NOMEM_HOST);
}

void gr_say_within(const char *part)
{
    within = part;
}

void gr_say_as(const char *rank)
{
    snprintf(speaker, sizeof speaker, "%s: ", rank);
    threshold = GR_LOG_ERROR;
}

void gr_say_held(bool print)
{
    if (print && *held)
        put_error("%s", held);
    *held = 0;
}

void gr_say_warning(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put(GR_LOG_WARN, "warning: ", fmt, ap);
    va_end(ap);
}

void gr_say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put(GR_LOG_INFO, "", fmt, ap);
    va_end(ap);
}

void gr_say_debug(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put(GR_LOG_DEBUG, "", fmt, ap);
    va_end(ap);
}

void gr_say_hush(bool on)
{
    hushed = on;
}

void gr_say_logged(const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (log_file && !log_lost)
        put_log(line);
}

int gr_say_status(int status)
{
    const char *message = gr_error_message();
    gr_say_error("%s", *message ? message : gr_status_text(status));
    return gr_status_exit(status);
}

/* Ends after the reader of stdout has gone. */
static void end_early(void)
{
    struct sigaction a;
    if (!with_ranks)
        _exit(0);
    out_gone = true;
    if (!sigaction(SIGINT, NULL, &a) && a.sa_handler != SIG_DFL && a.sa_handler != SIG_IGN)
        (void)raise(SIGINT);
}

static void out_failed(void)
{
    if (errno == EPIPE) {
        end_early();
        return;
    }
    gr_say_error("cannot write to standard output: %s", strerror(errno));
    _exit(6); /* without flushing again */
}

void gr_out_with_ranks(bool several)
{
    with_ranks = several;
}

void gr_out(const char *p, size_t n)
{
    if (out_gone)
        return;
    gr_say_erase();
    if (!gr_write_visible(stdout, p, n) || fflush(stdout))
        out_failed();
    if (n)
        line_open = p[n - 1] != '\n';
}

void gr_out_style(const char *sequence)
{
    if (out_gone)
        return;
    gr_say_erase();
    if (fputs(sequence, stdout) < 0 || fflush(stdout))
        out_failed();
}

void gr_print(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    gr_out(text, strlen(text));
}

bool gr_out_is_open(void)
{
    return line_open && gr_is_terminal(STDOUT_FILENO);
}

bool gr_out_ended(void)
{
    return out_gone;
}

void gr_out_finish(void)
{
    if (gr_out_is_open())
        putchar('\n');
    line_open = false;
    if (!out_gone && (fflush(stdout) || ferror(stdout)))
        out_failed();
}
