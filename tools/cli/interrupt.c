/* Interrupt handling for commands that print results at their end. */
#include "interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "flags.h"
#include "say.h"
#include "together.h"

static volatile sig_atomic_t interrupts;
static struct gr_session *volatile interruptible;
static struct sigaction before[2]; /* of SIGINT, SIGTERM */

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (++interrupts > 1) {
        gr_say_erase();
        _exit(GR_EXIT_INTERRUPTED);
    }
    if (interruptible)
        gr_session_cancel(interruptible);
}

void gr_catch_interrupts(struct gr_session *session)
{
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    interruptible = session;
    sigaction(SIGINT, &a, &before[0]);
    if (gr_together_world())
        sigaction(SIGTERM, &a, &before[1]); /* mpirun turns an interrupt into it */
}

void gr_release_interrupts(void)
{
    interruptible = NULL;
    sigaction(SIGINT, &before[0], NULL);
    if (gr_together_world())
        sigaction(SIGTERM, &before[1], NULL);
}

bool gr_interrupted(void)
{
    return interrupts > 0;
}
