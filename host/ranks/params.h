/* Session parameters as a command, and back. */
#ifndef GR_RANKS_PARAMS_H
#define GR_RANKS_PARAMS_H

#include "gpurun.h"
#include "ranks/command.h"

/* The command's arrays point into *p. */
struct gr_command_open gr_command_open_of(const struct gr_session_params *p);
/* Unknown type names become NULL. */
struct gr_session_params gr_command_open_params(const struct gr_command_open *c);

#endif
