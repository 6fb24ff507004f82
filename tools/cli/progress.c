#include "progress.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "flags.h"
#include "numbers.h"
#include "say.h"

#define FIRST_S 1   /* shorter work is not shown */
#define DRAW_S 0.1  /* between two updates of the bar */
#define LINE_S 10   /* between two lines */
#define RECENT_S 5  /* shortest time that the rate is computed over */
#define MOST_BAR 30 /* columns */
#define LEAST_BAR 8
#define USUAL_WIDTH 80 /* of a terminal of unknown width */

/* Work done at a point in time. */
struct mark {
    double t, done;
};

static enum { OFF, LINES, BAR } how;
static double (*now_s)(void) = gr_seconds;

static struct {
    bool active;
    char what[64], note[128];
    enum gr_bar_unit unit;
    double added, part, total; /* part: fraction of the work beyond `added` */
    struct mark begun, old, newer;
    double drawn, said; /* times of the last update of the bar and of the last line */
    struct gr_session *watched;
    const atomic_bool *cancelled; /* NULL: never */
} bar;

void gr_bar_set_clock(double (*clock)(void))
{
    now_s = clock ? clock : gr_seconds;
}

void gr_bar_init(const struct gr_options *o)
{
    const char *term = getenv("TERM");
    bool dumb = !term || !*term || !strcmp(term, "dumb");
    bool terminal = gr_say_shows(GR_LOG_INFO) && !dumb && gr_is_terminal(STDERR_FILENO);
    how = !o->progress ? OFF : terminal ? BAR : LINES;
    bar.active = false;
}

bool gr_bar_is_shown(void)
{
    return how == BAR;
}

/* ---- the terminal ---- */

static void on_end(int signal_number)
{
    gr_say_erase();
    signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

/* Removes the bar when an interrupt ends the command; not where the command has a handler of its
 * own. */
static void change_handlers(bool begin)
{
    static const int signals[] = {SIGINT, SIGTERM};
    struct sigaction a, mine = {.sa_handler = on_end}, none = {.sa_handler = SIG_DFL};
    for (int i = 0; i < 2; i++)
        if (!sigaction(signals[i], NULL, &a) && a.sa_handler == (begin ? SIG_DFL : on_end))
            sigaction(signals[i], begin ? &mine : &none, NULL);
}

static int width(void)
{
    struct winsize w;
    return !ioctl(STDERR_FILENO, TIOCGWINSZ, &w) && w.ws_col ? w.ws_col : USUAL_WIDTH;
}

/* False in a background job of the shell, and after an incomplete line of text. */
static bool may_draw(void)
{
    pid_t front = tcgetpgrp(STDERR_FILENO);
    return (front < 0 || front == getpgrp()) && !gr_out_is_open();
}

/* ---- the text ---- */

static double done(void)
{
    return fmin(bar.added + bar.part, bar.total);
}

/* Returns the recent rate: in long prompts each token takes longer than the one before. */
static double rate(double t)
{
    return t > bar.old.t ? (done() - bar.old.done) / (t - bar.old.t) : 0;
}

static void advance(double t)
{
    if (t - bar.newer.t < fmax(RECENT_S, (t - bar.begun.t) / 8))
        return;
    bar.old = bar.newer;
    bar.newer = (struct mark){t, done()};
}

static void append_amount(char *text, size_t n, double t)
{
    size_t at = strlen(text);
    char a[16], b[16], c[16];
    if (*bar.note)
        snprintf(text + at, n - at, ", %s", bar.note);
    else if (bar.unit == GR_BAR_TOKENS)
        snprintf(text + at, n - at, ", %.0f of %.0f tokens, %.1f t/s", floor(done()), bar.total,
                 rate(t));
    else if (bar.unit == GR_BAR_BYTES)
        snprintf(text + at, n - at, ", %s of %s, %s/s", gr_amount(a, done(), 1024),
                 gr_amount(b, bar.total, 1024), gr_amount(c, rate(t), 1024));
}

static void append_left(char *text, size_t n, double t)
{
    size_t at = strlen(text);
    double s = rate(t) > 0 ? ceil((bar.total - done()) / rate(t)) : 0;
    if (s <= 0 || s > 1e8)
        return;
    long l = (long)s;
    if (l < 60)
        snprintf(text + at, n - at, ", about %ld s left", l);
    else if (l < 3600)
        snprintf(text + at, n - at, ", about %ld min %ld s left", l / 60, l % 60);
    else
        snprintf(text + at, n - at, ", about %ld h %ld min left", l / 3600, l % 3600 / 60);
}

/* "46 %, 38912 of 84000 tokens, 210.3 t/s, about 3 min 35 s left" */
static void describe(char *text, size_t n, double t)
{
    snprintf(text, n, "%.0f %%", bar.total > 0 ? floor(100 * done() / bar.total) : 0);
    append_amount(text, n, t);
    append_left(text, n, t);
}

/* Draws the name, a bar where the terminal is wide enough, and this text. */
static void draw(double t)
{
    char text[256], line[512], cells[MOST_BAR + 1] = "";
    bar.drawn = t;
    if (!may_draw())
        return;
    describe(text, sizeof text, t);
    int most = width() - 1;
    int room = most - (int)strlen(bar.what) - (int)strlen(text) - 4;
    if (room > MOST_BAR)
        room = MOST_BAR;
    int full = bar.total > 0 ? (int)(room * done() / bar.total) : 0;
    for (int i = 0; i < room; i++)
        cells[i] = i < full ? '#' : '-', cells[i + 1] = 0;
    bool wide = room >= LEAST_BAR;
    int n = snprintf(line, sizeof line, "%s %s%s%s%s", bar.what, wide ? "[" : "", wide ? cells : "",
                     wide ? "] " : "", text);
    n = n > most ? most : n;
    line[n] = 0;
    change_handlers(true);
    gr_say_draw(line);
}

static void say(double t)
{
    char text[256];
    bar.said = t;
    describe(text, sizeof text, t);
    if (how == BAR)
        gr_say_logged("%s: %s", bar.what, text);
    else
        gr_say("%s: %s", bar.what, text);
}

static void show(void)
{
    if (!bar.active)
        return;
    double t = now_s();
    advance(t);
    if (t - bar.said >= LINE_S)
        say(t);
    if (how == BAR && t - bar.begun.t >= FIRST_S && t - bar.drawn >= DRAW_S)
        draw(t);
}

/* ---- the work ---- */

void gr_bar_begin(const char *what, double total, enum gr_bar_unit unit)
{
    gr_bar_end();
    if (how == OFF)
        return;
    snprintf(bar.what, sizeof bar.what, "%s", what);
    bar.active = true;
    bar.total = total, bar.unit = unit;
    bar.added = bar.part = 0;
    bar.begun = bar.old = bar.newer = (struct mark){now_s(), 0};
    bar.said = bar.begun.t, bar.drawn = 0;
    *bar.note = 0;
}

void gr_bar_add(double more)
{
    bar.added += more, bar.part = 0;
    show();
}

void gr_bar_skip(double more)
{
    bar.added += more;
    bar.begun.done += more, bar.old.done += more, bar.newer.done += more;
}

void gr_bar_extend(double more)
{
    bar.total += more;
}

void gr_bar_cancel_by(const atomic_bool *cancelled)
{
    bar.cancelled = cancelled;
}

static bool goes_on(void)
{
    return !bar.cancelled || !atomic_load(bar.cancelled);
}

static bool follow(uint64_t part, uint64_t total, void *user)
{
    (void)user;
    if (part < total) /* the caller adds a complete batch */
        bar.part = (double)part / 1000;
    show();
    return goes_on();
}

void gr_bar_watch(struct gr_session *s)
{
    if (bar.watched)
        gr_session_progress(bar.watched, NULL, NULL);
    bar.watched = bar.active || bar.cancelled ? s : NULL;
    if (bar.watched)
        gr_session_progress(s, follow, NULL);
}

void gr_bar_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(bar.note, sizeof bar.note, fmt, ap);
    va_end(ap);
    if (how == BAR) {
        gr_say_logged("%s", bar.note);
        return;
    }
    gr_say("%s", bar.note);
    *bar.note = 0;
}

void gr_bar_end(void)
{
    gr_bar_watch(NULL);
    bar.active = false;
    gr_say_erase();
    change_handlers(false);
}

bool gr_bar_bytes(uint64_t n, uint64_t total, void *what)
{
    if (n == 0)
        gr_bar_begin(what, (double)total, GR_BAR_BYTES);
    bar.added = (double)n;
    show();
    if (n == total || !goes_on())
        gr_bar_end();
    return goes_on();
}
