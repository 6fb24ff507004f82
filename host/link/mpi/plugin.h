/* The part of MPI that gpurun needs, as a plain C interface: provided by libgpurun_mpi.so, which
 * the library opens at run time without knowing MPI itself. The plug-in uses nothing of the
 * library, so that a machine can have one such file for each MPI.
 *
 * Functions return 0, GR_MPI_TRUNCATED, or an error for `text`. Calls are made one at a time. */
#ifndef GR_LINK_MPI_PLUGIN_H
#define GR_LINK_MPI_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#define GR_MPI_ABI 1
#define GR_MPI_SYMBOL "gr_mpi_plugin"
#define GR_MPI_TRUNCATED (-1) /* a message was longer than its buffer */

/* A pending message; gpurun's memory. */
struct gr_mpi_request {
    uint64_t opaque;
};

struct gr_mpi {
    uint32_t abi; /* GR_MPI_ABI */
    /* Starts MPI (once in a process), or uses it if the program has started it, and makes a
     * communicator. On failure `why` [n] receives the reason. */
    int (*start)(int *rank, int *n_rank, char *why, size_t n);
    /* Ends what start began. Collective. */
    void (*stop)(void);
    /* tag: the lane, at most 32,767. */
    int (*send)(const void *buf, int n, int to, int tag, struct gr_mpi_request *r);
    int (*recv)(void *buf, int n, int from, int tag, struct gr_mpi_request *r);
    int (*probe)(int from, int tag, int *found, int *n);
    /* All-gather: all [n_rank, n] receives n bytes of every rank. */
    int (*gather)(const void *mine, void *all, int n, struct gr_mpi_request *r);
    int (*barrier)(struct gr_mpi_request *r);
    /* *n: bytes of a received message. */
    int (*test)(struct gr_mpi_request *r, int *done, int *n);
    /* Cancels a receive without a message; a later test reports it done. */
    int (*cancel)(struct gr_mpi_request *r);
    void (*text)(int error, char *buf, size_t n);
};

/* Type of the plug-in's one exported function, GR_MPI_SYMBOL. */
typedef const struct gr_mpi *gr_mpi_plugin_fn(void);

#endif
