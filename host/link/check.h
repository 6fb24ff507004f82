/* The test of the links between stages at the start: whether what is sent is what comes, by which
 * way, and how fast. Takes some 20 ms a link; every second link at the same time. */
#ifndef GR_LINK_CHECK_H
#define GR_LINK_CHECK_H

#include "gr/transport.h"
#include "link/link.h"

struct gr_backend;

/* A way from one rank to the next: between devices, or (transport NULL) through host memory, by the
 * link itself, which is always the last one. */
struct gr_path {
    struct gr_transport *transport; /* this rank is a member */
    struct gr_backend *backend;
};

/* One side of a link, with the ways there are: the same kinds on both sides, the best first. The
 * way of the link itself is not among them. */
struct gr_chain_end {
    struct gr_port *port; /* NULL: no neighbour on this side */
    const struct gr_path *paths;
    int n_path;
    int chosen; /* result: the first way that works; n_path = the link itself */
};

#define GR_LINK_SIZES 3
extern const size_t gr_link_sizes[GR_LINK_SIZES]; /* 8 B, 8 KiB, 1 MiB */

/* What was found of a link. Times from when a message is sent to when it can be used there. */
struct gr_link_found {
    int32_t from, to;
    char name[64];                 /* of the way: "mpi (host memory)", "NCCL 2.28.9" */
    double seconds[GR_LINK_SIZES]; /* of a header and a body */
    double bytes_per_s;            /* of the longest */
};

/* Tries the links of a chain of ranks, in -> this one -> out: all ranks of the chain call it at the
 * same time, before anything else goes over these links. A way by which something else comes than
 * was sent is left for the next one, with a warning; when none is left, or a rank does not answer
 * by the deadline, GR_E_PEER_LOST. found [n_rank], *n_found: on the first rank those of the whole
 * chain, on others those behind it. Rank 0 logs them in one line. */
int gr_chain_try(struct gr_world *w, struct gr_chain_end *in, struct gr_chain_end *out,
                 int64_t deadline_ns, struct gr_link_found *found, int *n_found);

/* "link 0 -> 1: mpi (host memory), 5.1 us, 1.12 GB/s". Returns buf. */
const char *gr_link_found_text(const struct gr_link_found *f, char *buf, size_t n);

#endif
