/* The world of the processes that a launcher has started, over MPI as a plug-in provides it. */
#ifndef GR_LINK_PROCESS_H
#define GR_LINK_PROCESS_H

#include "link/link.h"
#include "link/mpi/plugin.h"

/* The launcher of this process, and its rank. */
struct gr_launch {
    const char *by;       /* "mpirun", "srun"; NULL = none, the process is alone */
    int32_t rank, n_rank; /* n_rank 0: only MPI knows */
};
/* Finds the launcher by environment variables, which get(name) reads. */
struct gr_launch gr_launch_find(const char *(*get)(const char *name));

/* Opens libgpurun_mpi.so beside the library or program, or in the installation's folder. */
int gr_mpi_open(const struct gr_mpi **out, const struct gr_launch *launch);

/* Makes the world over MPI, without a heartbeat. Returns 0 with *out NULL when MPI has one rank and
 * the launcher does not say that there are more. */
int gr_world_mpi(struct gr_world **out, const struct gr_mpi *mpi, const struct gr_launch *launch);
/* All-gather: all [n_rank, n] receives n bytes of every rank. Before the world has links. */
int gr_world_gather(struct gr_world *w, const void *mine, void *all, size_t n, int64_t deadline_ns);

#endif
