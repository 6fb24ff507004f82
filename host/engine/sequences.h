/* The cells of a session; gpurun.h declares the operations on sequences. */
#ifndef GR_ENGINE_SEQUENCES_H
#define GR_ENGINE_SEQUENCES_H

#include "engine/session.h"

/* Empties all cells, on all ranks. */
void gr_session_clear(struct gr_session *s);

#endif
