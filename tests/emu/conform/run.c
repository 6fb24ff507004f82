/* conform [-t SECONDS] [LIBRARY [SEED]]: runs every case on the first device of this driver
 * library, default that of the build (libcuda.so.1), and writes a line for each wrapper: "ok NAME",
 * "FAIL NAME: what", or "skip NAME" for what the device lacks. A SEED other than 0 draws other
 * inputs. The emulated device has the kernels linked in; a GPU gets the fatbins in this program.
 *
 * The driver is opened in a child. One that crashes, loses its context or has no result of a case
 * after SECONDS (default 15) costs that case, and another one goes on behind it. Each wrapper is a
 * case of tests/support/cases.h. Exits 1 when one failed, 2 when there is no device to run on. */
#include "tests/emu/conform/conform.h"

#include "cuda/build.h"
#include "tests/support/cases.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CASES = 512, SECONDS = 15, END_SECONDS = 10 };

/* Message of a child: first that the device is open, then the result of each case. */
struct message {
    int failed, cc;
    bool lost;
    char text[CONFORM_WHY]; /* the device's name; why it failed */
};
_Static_assert(sizeof(struct message) <= 4096, "a pipe keeps no more than PIPE_BUF together");

struct plan {
    const struct conform_case *list[MAX_CASES];
    int n, seconds;
    const char *library;
    uint32_t seed;
};

/* A child, and what it has left behind when it is gone. */
struct child {
    pid_t pid; /* 0: none */
    int from, cc;
    char end[128];
};

static bool has(int cc, const struct conform_case *k)
{
    return k->cc == 90 ? cc == 90 : cc >= k->cc;
}

/* ---- in the child ---- */

static void say(int to, const struct conform *c, int failed)
{
    const struct conform_state s = conform_state(c);
    struct message m = {.failed = failed, .cc = s.cc, .lost = s.lost};
    snprintf(m.text, sizeof m.text, "%s", failed ? s.why : s.name);
    if (write(to, &m, sizeof m) != (ssize_t)sizeof m)
        _exit(2);
}

/* The cases from `first` on, until the context is lost. */
static int run_cases(const struct plan *p, int first, int to)
{
    struct conform *c;
    const int failed = conform_open(&c, p->library, p->seed);
    say(to, c, failed);
    if (failed)
        return 0;
    for (int i = first; i < p->n && !conform_state(c).lost; i++) {
        const struct conform_case *k = p->list[i];
        if (has(conform_state(c).cc, k) && cases_wanted(k->wrapper))
            say(to, c, k->run(c, k->wrapper));
    }
    conform_close(c);
    return 0;
}

/* ---- children ---- */

static void die(const char *what)
{
    perror(what);
    exit(2);
}

static void start(const struct plan *p, struct child *c, int first)
{
    int ends[2];
    if (pipe(ends))
        die("pipe");
    fflush(stdout);
    *c = (struct child){.pid = fork(), .from = ends[0]};
    if (c->pid < 0)
        die("fork");
    if (c->pid == 0) {
        close(ends[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        exit(run_cases(p, first, ends[1]));
    }
    close(ends[1]);
}

static bool ended(struct child *c, int *status)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    for (int i = 0; i < END_SECONDS * 1000; i++) {
        if (waitpid(c->pid, status, WNOHANG) == c->pid)
            return true;
        nanosleep(&ms, NULL);
    }
    return false;
}

/* Waits for the end of a child that has closed its pipe, or is killed. Returns 0 when it was a good
 * one, otherwise c->end says which. */
static int reap(struct child *c)
{
    int status = 0;
    close(c->from);
    if (!ended(c, &status)) {
        (void)kill(c->pid, SIGKILL);
        snprintf(c->end, sizeof c->end, "closing the device took more than %d s, killed",
                 END_SECONDS);
        (void)ended(c, &status);
    } else if (WIFSIGNALED(status)) {
        snprintf(c->end, sizeof c->end, "ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    } else {
        snprintf(c->end, sizeof c->end, "ended with status %d", WEXITSTATUS(status));
    }
    c->pid = 0;
    return status != 0;
}

/* The child's next message. Without one it is gone, and c->end says how. */
static bool hear(const struct plan *p, struct child *c, struct message *m)
{
    struct pollfd f = {.fd = c->from, .events = POLLIN};
    const bool late = poll(&f, 1, 1000 * p->seconds) == 0;
    if (!late && read(c->from, m, sizeof *m) == (ssize_t)sizeof *m)
        return true;
    if (late)
        (void)kill(c->pid, SIGKILL);
    (void)reap(c);
    if (late)
        snprintf(c->end, sizeof c->end, "no end after %d s, killed", p->seconds);
    return false;
}

/* Starts a child at case `first`; false with the reason in m->text when it has no device. */
static bool open_child(const struct plan *p, struct child *c, int first, struct message *m)
{
    start(p, c, first);
    if (!hear(p, c, m)) {
        snprintf(m->text, sizeof m->text, "opening the device: %s", c->end);
        return false;
    }
    c->cc = m->cc;
    if (m->failed)
        (void)reap(c);
    return !m->failed;
}

/* ---- the cases ---- */

/* The result of a case that a child is at. Returns whether it failed; the child may be gone. */
static int judge(const struct plan *p, struct child *c, const char *name)
{
    struct message m = {0};
    const bool heard = hear(p, c, &m);
    const char *why = !heard ? c->end : m.failed ? m.text : NULL;
    if (why)
        printf("FAIL %s: %s\n", name, why);
    else
        printf("ok %s\n", name);
    fflush(stdout);
    cases_end(name, why);
    if (heard && m.lost)
        (void)reap(c);
    return why != NULL;
}

struct score {
    int n, n_failed, n_unwanted;
};

/* Returns 0; 2 when there is no device for the first case; 1 when there is none any more, or the
 * last child did not end well. */
static int run(const struct plan *p, struct score *s)
{
    struct child c = {0};
    struct message m;
    for (int i = 0; i < p->n; i++) {
        const struct conform_case *k = p->list[i];
        if (!c.pid && !open_child(p, &c, i, &m)) {
            fprintf(stderr, "conform: %s\n", m.text);
            return s->n ? 1 : 2;
        }
        if (i == 0)
            printf("%s\n", m.text);
        const char *name = has(c.cc, k) ? cases_begin(NULL, k->wrapper) : NULL;
        if (!has(c.cc, k))
            printf("skip %s\n", k->wrapper);
        s->n += name != NULL;
        s->n_unwanted += has(c.cc, k) && !name;
        s->n_failed += name && judge(p, &c, name);
    }
    if (c.pid && reap(&c)) {
        fprintf(stderr, "conform: after the last case: %s\n", c.end);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct plan p = {.seconds = SECONDS};
    struct score s = {0};
    int at = 1;
    if (argc > 2 && strcmp(argv[1], "-t") == 0)
        p.seconds = atoi(argv[2]), at = 3;
    if (argc > at + 2 || (argc > at && argv[at][0] == '-') || p.seconds < 1 || p.seconds > 3600) {
        fprintf(stderr, "usage: conform [-t SECONDS] [LIBRARY [SEED]]\n");
        return 2;
    }
    p.library = argc > at ? argv[at] : gr_cuda_build.library;
    p.seed = argc > at + 1 ? (uint32_t)strtoul(argv[at + 1], NULL, 10) : 0;
    for (int i = 0; conform_lists[i]; i++)
        for (const struct conform_case *k = conform_lists[i]; k->wrapper && p.n < MAX_CASES; k++)
            p.list[p.n++] = k;
    const int status = run(&p, &s);
    if (status == 2)
        return 2;
    printf("%d of %d wrappers conform%s\n", s.n - s.n_failed, s.n,
           status ? "; the rest has not been run" : "");
    return status || s.n_failed || (s.n == 0 && s.n_unwanted == 0);
}
