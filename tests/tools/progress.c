/* Output of progress, byte by byte, on a terminal and elsewhere. */
#include "tools/cli/progress.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tiny.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

static double seconds;
static int reader = -1; /* of what goes to stderr */

static double fake_clock(void)
{
    return seconds;
}

static void set_columns(unsigned short n)
{
    struct winsize w = {.ws_row = 24, .ws_col = n};
    cr_assert_eq(ioctl(reader, TIOCSWINSZ, &w), 0);
}

/* stderr becomes a terminal, or a pipe; the rest as the words say. */
#define BEGIN(terminal, ...) begin(terminal, (const char *const[]){__VA_ARGS__, NULL})

static void begin(bool terminal, const char *const *words)
{
    static struct gr_options o;
    int ends[2], n = 0;
    while (words[n])
        n++;
    setenv("TERM", "xterm", 0);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    cr_assert_eq(gr_options_parse(&o, GR_CMD_run, n, (char **)(uintptr_t)words), 0);
    cr_assert_eq(terminal ? openpty(&ends[0], &ends[1], NULL, NULL, NULL) : pipe(ends), 0);
    reader = ends[0];
    cr_assert_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    if (terminal)
        set_columns(80);
    seconds = 100;
    gr_bar_set_clock(fake_clock);
    cr_assert_eq(gr_say_init(&o), 0);
    gr_bar_init(&o);
}

/* Output since the last call, up to a mark: a terminal hands bytes on after a while. */
static const char *seen(void)
{
    static char text[4096];
    size_t n = 0;
    cr_assert_eq(write(STDERR_FILENO, "\1", 1), 1);
    for (ssize_t got = 1; got > 0 && !(n && text[n - 1] == 1); n += got > 0 ? (size_t)got : 0) {
        struct pollfd wait = {reader, POLLIN, 0};
        got = poll(&wait, 1, 60000) > 0 ? read(reader, text + n, sizeof text - n) : 0;
    }
    cr_assert(n && text[n - 1] == 1, "no mark came");
    text[n - 1] = 0;
    return text;
}

static void at(double t, double more)
{
    seconds = 100 + t;
    gr_bar_add(more);
}

Test(progress, a_bar_after_a_second)
{
    BEGIN(true, "--temp", "0");
    gr_bar_begin("prompt", 84000, GR_BAR_TOKENS);
    at(0.9, 1000);
    cr_expect_str_eq(seen(), "");
    at(1, 20000);
    cr_expect_str_eq(seen(), "\rprompt [###----------] 25 %, 21000 of 84000 tokens, 21000.0 t/s, "
                             "about 3 s left\033[K");
    at(1.05, 1000);
    cr_expect_str_eq(seen(), "", "it is drawn ten times a second at most");
    at(2, 62000);
    cr_expect_str_eq(seen(),
                     "\rprompt [############################] 100 %, 84000 of 84000 tokens, "
                     "42000.0 t/s\033[K");
    gr_bar_end();
    cr_expect_str_eq(seen(), "\r\033[K");
    gr_bar_add(1);
    cr_expect_str_eq(seen(), "");
}

Test(progress, lines_stand_above_the_bar)
{
    BEGIN(true, "--temp", "0");
    gr_bar_begin("load", 4096.0 * 1048576, GR_BAR_BYTES);
    at(2, 1024.0 * 1048576);
    cr_expect_str_eq(seen(),
                     "\rload [####--------------] 25 %, 1.00 GiB of 4.00 GiB, 512 MiB/s, about "
                     "6 s left\033[K");
    gr_say("a line");
    gr_say("another");
    cr_expect_str_eq(seen(), "\r\033[Ka line\r\nanother\r\n");
    gr_bar_note("never drawn"); /* the next look has it */
    cr_expect_str_eq(seen(), "");
    at(2.5, 0);
    cr_expect_str_eq(
        seen(), "\rload [#######-----------------------] 25 %, never drawn, about 8 s left\033[K");
    gr_bar_begin("another thing", 10, GR_BAR_SHARE);
    cr_expect_str_eq(seen(), "\r\033[K");
    at(4.5, 5);
    cr_expect_str_eq(seen(),
                     "\ranother thing [###############---------------] 50 %, about 2 s left\033[K");
    gr_say_erase();
    gr_bar_end();
    cr_expect_str_eq(seen(), "\r\033[K", "it is taken away once");
}

/* A line never reaches the last column, where terminals would begin another one. */
Test(progress, the_width_of_the_terminal)
{
    static const unsigned short columns[] = {200, 100, 79, 60, 40, 20, 8, 2, 1};
    BEGIN(true, "--temp", "0");
    gr_bar_begin("prompt", 84000, GR_BAR_TOKENS);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        set_columns(columns[i]);
        at(2 + (double)i, 1000);
        const char *line = seen();
        size_t n = strcspn(line + 1, "\033");
        cr_expect(*line == '\r' && n < columns[i], "%zu characters in %d columns: %s", n,
                  columns[i], line);
        cr_expect_eq(strchr(line, '[') < strchr(line, '\033'), columns[i] > 70, "%d: %s",
                     columns[i], line);
    }
}

/* The rate is that of the recent past: texts get slower as they get longer. */
Test(progress, the_rate_follows)
{
    BEGIN(false, "--temp", "0");
    gr_bar_begin("prompt", 100000, GR_BAR_TOKENS);
    for (int t = 1; t <= 50; t++)
        at(t, 1000);
    seen();
    for (int t = 51; t < 100; t++)
        at(t, 100);
    seen();
    at(100, 100);
    cr_expect_str_eq(seen(), "prompt: 55 %, 55000 of 100000 tokens, 100.0 t/s, "
                             "about 7 min 30 s left\n");
}

Test(progress, a_line_every_ten_seconds_elsewhere)
{
    BEGIN(false, "--temp", "0");
    gr_bar_begin("prompt", 84000, GR_BAR_TOKENS);
    at(5, 1000);
    at(9.9, 1000);
    cr_expect_str_eq(seen(), "");
    at(10, 8000);
    cr_expect_str_eq(seen(), "prompt: 11 %, 10000 of 84000 tokens, 1800.0 t/s, about 42 s left\n");
    at(19.9, 0);
    cr_expect_str_eq(seen(), "");
    gr_bar_note("chunk %d", 7);
    cr_expect_str_eq(seen(), "chunk 7\n");
    at(4000, 1000);
    cr_expect_str_eq(seen(),
                     "prompt: 13 %, 11000 of 84000 tokens, 0.3 t/s, about 80 h 42 min left\n");
    gr_bar_end();
    cr_expect_str_eq(seen(), "");
}

static void expect_lines(const char *want)
{
    gr_bar_begin("prompt", 10, GR_BAR_SHARE);
    at(10, 5);
    gr_bar_end();
    cr_expect_str_eq(seen(), want);
}

Test(progress, terminals_that_cannot)
{
    setenv("TERM", "dumb", 1);
    BEGIN(true, "--temp", "0");
    expect_lines("prompt: 50 %, about 10 s left\r\n");
}

Test(progress, not_wanted)
{
    BEGIN(true, "--no-progress");
    expect_lines("");
    gr_bar_note("a note is a line then");
    cr_expect_str_eq(seen(), "a note is a line then\r\n");
    BEGIN(false, "--progress=off");
    expect_lines("");
    BEGIN(true, "-q");
    expect_lines("");
    BEGIN(true, "--log-disable");
    expect_lines("");
    BEGIN(true, "-lv", "2");
    expect_lines("");
}

/* The log file has the lines, whatever stderr shows. */
Test(progress, log_file)
{
    char path[128], text[256];
    snprintf(path, sizeof path, "%s", tiny_path("progress.log"));
    for (int quiet = 0; quiet < 2; quiet++) {
        BEGIN(true, "--log-file", path, quiet ? "-q" : "-lv", quiet ? "-q" : "3");
        gr_bar_begin("prompt", 10, GR_BAR_SHARE);
        at(10, 5);
        gr_bar_note("chunk 1");
        at(12, 1);
        gr_bar_end();
        cr_expect_eq(*seen() == 0, quiet);
        cr_expect_eq(gr_say_fini(), 0);
        FILE *f = fopen(path, "r");
        cr_assert(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        cr_expect_str_eq(text, "prompt: 50 %, about 10 s left\nchunk 1\n");
    }
}

/* Work that is cancelled ends, and so does its bar, shown or not. */
Test(progress, cancelled)
{
    char what[] = "load";
    atomic_bool cancelled = false;
    for (int shown = 0; shown < 2; shown++) {
        BEGIN(true, shown ? "--temp" : "--no-progress", shown ? "0" : "-q");
        cancelled = false;
        gr_bar_cancel_by(&cancelled);
        seconds = 200;
        cr_expect(gr_bar_bytes(0, 1 << 20, what));
        seconds += 2;
        cr_expect(gr_bar_bytes(1 << 19, 1 << 20, what));
        (void)seen();
        cancelled = true;
        cr_expect_not(gr_bar_bytes(1 << 19, 1 << 20, what));
        cr_expect_str_eq(seen(), shown ? "\r\033[K" : "");
        gr_bar_cancel_by(NULL);
        cr_expect(gr_bar_bytes(0, 1 << 20, what));
        gr_bar_end();
    }
}

/* Bytes that the library tells of: each pass is a bar of its own. */
Test(progress, bytes)
{
    char what[] = "load";
    BEGIN(true, "--temp", "0");
    for (int i = 0; i < 2; i++) {
        seconds = 200 + 100 * i;
        cr_expect(gr_bar_bytes(0, 1 << 20, what));
        seconds += 2;
        cr_expect(gr_bar_bytes(1 << 19, 1 << 20, what));
        cr_expect_str_eq(seen(),
                         "\rload [#########----------] 50 %, 512 KiB of 1.00 MiB, 256 KiB/s, "
                         "about 2 s left\033[K");
        cr_expect(gr_bar_bytes(1 << 20, 1 << 20, what));
        cr_expect_str_eq(seen(), "\r\033[K");
    }
}
