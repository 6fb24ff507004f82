/* Processes started together by mpirun or srun. */
#ifndef GR_TOOLS_TOGETHER_H
#define GR_TOOLS_TOGETHER_H

#include "gpurun.h"

/* Joins the processes started by mpirun or srun, if any. 0 or an exit code, after printing the
 * error. */
int gr_together_open(void);
/* Returns the world of all ranks; NULL: a single process. */
struct gr_world *gr_together_world(void);
/* Returns whether this rank takes part in a command. One that is not shared is run by rank 0 alone,
 * which leaves the others. */
bool gr_together_share(bool shared);
/* Leaves the other ranks with an exit code; returns the one that all ranks end with. */
int gr_together_close(int code);

#endif
