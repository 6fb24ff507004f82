/* Session parameters as a command, and back. */
#ifndef GR_RANKS_PARAMS_H
#define GR_RANKS_PARAMS_H

#include "gpurun.h"
#include "ranks/command.h"

/* The order's arrays point into *p. */
struct gr_order_open gr_order_open_of(const struct gr_session_params *p);
/* Unknown type names become NULL. */
struct gr_session_params gr_order_open_params(const struct gr_order_open *o);

#endif
