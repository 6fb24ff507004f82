/* The world of the processes that a launcher has started, over what a plug-in offers of MPI. */
#ifndef GR_LINK_PROCESS_H
#define GR_LINK_PROCESS_H

#include "link/link.h"
#include "link/mpi/plugin.h"

/* Who has started this process: its rank among how many. */
struct gr_launch {
    const char *by;       /* "mpirun", "srun"; NULL = nobody has, it is alone */
    int32_t rank, n_rank; /* n_rank 0: only MPI knows */
};
/* As the environment says, which get(name) reads. */
struct gr_launch gr_launch_find(const char *(*get)(const char *name));

/* Opens libgpurun_mpi.so, which lies beside the library or the program, or where it was installed.
 */
int gr_mpi_open(const struct gr_mpi **out, const struct gr_launch *launch);

/* The world over it, without a watch. *out NULL and 0 when it has one rank only and nobody says
 * that there are more. */
int gr_world_mpi(struct gr_world **out, const struct gr_mpi *mpi, const struct gr_launch *launch);
/* Collective: n bytes of every rank for every rank, all [n_rank, n]. Before the world has links. */
int gr_world_gather(struct gr_world *w, const void *mine, void *all, size_t n, int64_t deadline_ns);

#endif
