/* Interrupts (SIGINT) of commands that print results at their end. */
#ifndef GR_TOOLS_INTERRUPT_H
#define GR_TOOLS_INTERRUPT_H

#include "gpurun.h"

/* Installs the handler: the first interrupt cancels the batches of two sessions (NULL: none), so
 * that the command ends in good order; the second one ends the program. */
void gr_catch_interrupts(struct gr_session *a, struct gr_session *b);
/* Restores what the interrupt did before. */
void gr_release_interrupts(void);
/* Returns whether there was an interrupt. */
bool gr_interrupted(void);
/* Forgets it, for a command that goes on after one. */
void gr_forget_interrupts(void);

#endif
