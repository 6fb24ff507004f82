/* Start-up test of the links between stages: chooses a working path for each, verifies what
 * arrives, and measures latency and bandwidth. Takes some 20 ms a link; every second link of a
 * chain is tested at the same time. */
#ifndef GR_LINK_SELF_TEST_H
#define GR_LINK_SELF_TEST_H

#include "gr/transport.h"
#include "link/link.h"

struct gr_backend;

/* A path from one rank to the next: a transport between devices, or (transport NULL) the link
 * itself through host memory, which is always the last one tried. */
struct gr_path {
    struct gr_transport *transport; /* this rank is a member */
    struct gr_backend *backend;
};

/* One side of a link, with its paths: the same kinds on both sides, the best first, without the
 * link itself. */
struct gr_chain_end {
    struct gr_port *port; /* NULL: no neighbour on this side */
    const struct gr_path *paths;
    int n_path;
    int chosen; /* result: the first path that works; n_path = the link itself */
};

#define GR_LINK_SIZES 3
extern const size_t gr_link_sizes[GR_LINK_SIZES]; /* 8 B, 8 KiB, 1 MiB */

/* Test result of a link. Times are from the send until the receiver can use the message. */
struct gr_link_result {
    int32_t from, to;
    char name[64];                 /* of the path: "mpi (host memory)", "NCCL 2.28.9" */
    double seconds[GR_LINK_SIZES]; /* for a header and a body */
    double bytes_per_s;            /* of the longest body */
};

/* Tests the links of a chain of ranks, in -> this one -> out. Collective among the ranks of the
 * chain, before anything else goes over these links. A path that fails or delivers wrong bytes is
 * given up for the next one, with a warning; GR_E_PEER_LOST when none is left, or when a rank does
 * not answer by the deadline. found [n_rank], *n_found: the results of this rank's outgoing link
 * and of all later ones, thus of the whole chain on its first rank. Rank 0 logs a line about its
 * chain. */
int gr_chain_try(struct gr_world *w, struct gr_chain_end *in, struct gr_chain_end *out,
                 int64_t deadline_ns, struct gr_link_result *found, int *n_found);

/* Formats "link 0 -> 1: mpi (host memory), 5.1 us, 1.12 GB/s". Returns buf. */
const char *gr_link_result_text(const struct gr_link_result *f, char *buf, size_t n);

#endif
