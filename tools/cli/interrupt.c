/* Interrupt handling for commands that print results at their end. */
#include "interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "flags.h"
#include "say.h"
#include "together.h"

#define SAME_MS 1000 /* a key that is pressed again */

static volatile sig_atomic_t interrupts;
static volatile sig_atomic_t end_answers;       /* gr_interrupts_end_answers was called */
static _Atomic int64_t first_at = -2 * SAME_MS; /* ms: time of the first one */
static struct gr_session *volatile interruptible[2];
static struct sigaction before[2]; /* of SIGINT, SIGTERM */

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool gr_interrupted_lately(void)
{
    return now_ms() - first_at < SAME_MS;
}

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (interrupts && !(end_answers && gr_interrupted_lately())) {
        gr_say_erase();
        _exit(GR_EXIT_INTERRUPTED);
    }
    if (!interrupts)
        first_at = now_ms();
    interrupts = 1;
    for (int i = 0; i < 2; i++)
        if (interruptible[i])
            gr_session_cancel(interruptible[i]);
}

void gr_catch_interrupts(struct gr_session *a, struct gr_session *b)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    interruptible[0] = a, interruptible[1] = b;
    sigaction(SIGINT, &action, &before[0]);
    if (gr_together_world())
        sigaction(SIGTERM, &action, &before[1]); /* mpirun turns an interrupt into it */
}

void gr_release_interrupts(void)
{
    interruptible[0] = interruptible[1] = NULL;
    sigaction(SIGINT, &before[0], NULL);
    if (gr_together_world())
        sigaction(SIGTERM, &before[1], NULL);
}

void gr_interrupts_end_answers(void)
{
    end_answers = 1;
    gr_catch_interrupts(NULL, NULL); /* which a release restores from now on */
}

bool gr_interrupted(void)
{
    return interrupts > 0;
}

void gr_forget_interrupts(void)
{
    interrupts = 0;
}
