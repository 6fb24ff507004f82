/* What gpurun needs of MPI, as plain C: what libgpurun_mpi.so offers to the library, which opens it
 * at run time and knows no MPI itself. Nothing of the library is used on the other side, so that a
 * machine can have one such file for each MPI.
 *
 * Functions return 0, GR_MPI_TRUNCATED, or an error for `text`. Calls come one at a time. */
#ifndef GR_LINK_MPI_PLUGIN_H
#define GR_LINK_MPI_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#define GR_MPI_ABI 1
#define GR_MPI_SYMBOL "gr_mpi_plugin"
#define GR_MPI_TRUNCATED (-1) /* a message was longer than the room for it */

/* A message under way; gpurun's memory. */
struct gr_mpi_request {
    uint64_t opaque;
};

struct gr_mpi {
    uint32_t abi; /* GR_MPI_ABI */
    /* Starts MPI (once in a process) or joins a program that has, and makes a communicator. On
     * failure `why` says what is wrong. */
    int (*start)(int *rank, int *n_rank, char *why, size_t n);
    /* Ends what start began. Collective. */
    void (*stop)(void);
    /* Tags tell lanes apart: at most 32,767. */
    int (*send)(const void *buf, int n, int to, int tag, struct gr_mpi_request *r);
    int (*recv)(void *buf, int n, int from, int tag, struct gr_mpi_request *r);
    int (*probe)(int from, int tag, int *found, int *n);
    /* n bytes of everyone for everyone: all [n_rank, n]. */
    int (*gather)(const void *mine, void *all, int n, struct gr_mpi_request *r);
    int (*barrier)(struct gr_mpi_request *r);
    /* *n: of a message that was received. */
    int (*test)(struct gr_mpi_request *r, int *done, int *n);
    /* Of a receive that nothing has come for; done at the next test. */
    int (*cancel)(struct gr_mpi_request *r);
    void (*text)(int error, char *buf, size_t n);
};

/* The one symbol: of type gr_mpi_plugin_fn. */
typedef const struct gr_mpi *gr_mpi_plugin_fn(void);

#endif
