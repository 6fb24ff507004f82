/* Interrupts (SIGINT) of commands that print results at their end. */
#ifndef GR_TOOLS_INTERRUPT_H
#define GR_TOOLS_INTERRUPT_H

#include "gpurun.h"

/* Installs the handler: the first interrupt cancels the batches of two sessions (NULL: none), so
 * that the command ends in good order; the second one ends the program. */
void gr_catch_interrupts(struct gr_session *a, struct gr_session *b);
/* Restores what the interrupt did before. */
void gr_release_interrupts(void);
/* Makes interrupts end answers and not the program, also between gr_release_interrupts and the next
 * gr_catch_interrupts, where they are only noted. Within a second of the first one others are the
 * same one; a later one, not forgotten yet, ends the program: it hangs. */
void gr_interrupts_end_answers(void);
/* Returns whether the first one was within the last second, forgotten or not. */
bool gr_interrupted_lately(void);
/* Returns whether there was an interrupt. */
bool gr_interrupted(void);
/* Forgets it, for a command that goes on after one. */
void gr_forget_interrupts(void);

#endif
