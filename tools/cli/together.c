/* Processes started together by mpirun or srun: joining them, leaving them, and the end of each
 * process whatever happens to the others. */
#include "together.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "say.h"

/* Seconds after which a process is ended by force: after a rank was lost, after SIGTERM, and after
 * it began to leave the others. Leaving waits a few seconds for them, but MPI_Finalize has no limit
 * when one dies meanwhile. */
#define GRACE_LOST 4
#define GRACE_TERM 2
#define GRACE_CLOSE 9
#define START_S 120 /* for MPI_Init, which has no time limit */
#define EXIT_TERM 143
#define EXIT_LOST 4

static struct gr_world *world;
static char own_name[128]; /* name of a rank other than 0 */

/* Thread that ends the process when nothing else does, since a call may hang in a driver or in
 * MPI. */
static struct {
    pthread_t thread;
    sem_t wake;
    volatile sig_atomic_t lost;    /* rank + 1 */
    volatile sig_atomic_t closing; /* reset to 0 when rank 0 goes on alone */
    char line[512];                /* message: which rank was lost and why */
} last_resort;

static void *last_resort_main(void *p)
{
    char line[800];
    while (sem_wait(&last_resort.wake))
        continue;
    bool lost = last_resort.lost != 0, closing = last_resort.closing != 0;
    int grace = lost ? GRACE_LOST : closing ? GRACE_CLOSE : GRACE_TERM;
    const char *why = lost      ? last_resort.line
                      : closing ? "the ranks do not come to an end together"
                                : "terminated";
    sleep((unsigned)grace);
    if (closing && !last_resort.closing)
        return p;
    int n = snprintf(line, sizeof line, "gpurun: %s%serror: %s; no way out within %d s\n", own_name,
                     *own_name ? ": " : "", why, grace);
    gr_say_erase();
    (void)!write(STDERR_FILENO, line, (size_t)n);
    _exit(lost || closing ? EXIT_LOST : EXIT_TERM);
    return p;
}

static void on_lost(int32_t rank, const char *line, void *user)
{
    (void)user;
    snprintf(last_resort.line, sizeof last_resort.line, "%s", line);
    last_resort.lost = rank + 1;
    sem_post(&last_resort.wake);
}

static void on_terminate(int signal_number)
{
    (void)signal_number;
    sem_post(&last_resort.wake);
}

/* Interrupts are handled by rank 0 alone: it ends in good order and tells the others. */
static void set_signals(void)
{
    struct sigaction wait = {.sa_handler = on_terminate, .sa_flags = SA_RESTART};
    if (gr_world_rank(world) == 0)
        return;
    signal(SIGINT, SIG_IGN);
    sigaction(SIGTERM, &wait, NULL);
}

static int start_last_resort(void)
{
    sigset_t all, before;
    sem_init(&last_resort.wake, 0, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&last_resort.thread, NULL, last_resort_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        gr_say_error("no thread to watch the other ranks with: %s", strerror(err));
    return err ? 5 : 0;
}

static void on_alarm(int signal_number)
{
    static const char line[] = "gpurun: error: MPI does not come up: not every rank got as far as "
                               "this one within two minutes\n";
    (void)signal_number;
    (void)!write(STDERR_FILENO, line, sizeof line - 1);
    _exit(EXIT_LOST);
}

int gr_together_open(void)
{
    signal(SIGALRM, on_alarm);
    alarm(START_S);
    int status = gr_world_open(&world);
    alarm(0);
    if (status)
        return gr_say_status(status);
    if (!world)
        return 0;
    gr_out_with_ranks(true);
    if (gr_world_rank(world) > 0)
        gr_say_as(gr_world_name(world, gr_world_rank(world), own_name, sizeof own_name));
    int rc = start_last_resort();
    if (!rc)
        set_signals();
    gr_world_on_lost(world, on_lost, NULL);
    return rc;
}

struct gr_world *gr_together_world(void)
{
    return world;
}

bool gr_together_share(bool shared)
{
    if (shared || !world)
        return true;
    if (gr_world_rank(world) != 0)
        return false;
    (void)gr_together_close(0);
    last_resort.closing = 0;
    return true;
}

/* A rank that ends well although another one was lost says so. Ranks > 0 print the error that they
 * hold when a rank was lost: another one than rank 0, or rank 0 without its exit code being known.
 */
int gr_together_close(int code)
{
    if (!world)
        return code;
    const int32_t own = gr_world_rank(world);
    last_resort.closing = 1;
    sem_post(&last_resort.wake);
    int agreed = gr_world_close(&world, code), lost = last_resort.lost;
    gr_out_with_ranks(false);
    if (lost && !code && (own == 0 || lost != own + 1))
        gr_say_error("%s", last_resort.line);
    gr_say_held(lost && (lost != 1 || agreed == EXIT_LOST));
    return agreed;
}
