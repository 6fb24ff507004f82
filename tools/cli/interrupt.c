/* Interrupt handling for commands that print results at their end. */
#include "interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "flags.h"
#include "say.h"
#include "together.h"

static volatile sig_atomic_t interrupts;
static struct gr_session *volatile interruptible[2];
static struct sigaction before[2]; /* of SIGINT, SIGTERM */

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (++interrupts > 1) {
        gr_say_erase();
        _exit(GR_EXIT_INTERRUPTED);
    }
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

bool gr_interrupted(void)
{
    return interrupts > 0;
}

void gr_forget_interrupts(void)
{
    interrupts = 0;
}
