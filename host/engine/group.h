/* A group: the ranks that share the layers of a stage. What each has of a sum goes to all of them,
 * between two parts of a plan, so they run the same plans in the same order.
 *
 * Memory of the host goes over a link from each to each; of a device by a transport, where all have
 * one. Sums are made afterwards, by SUM, in the order of the ranks. */
#ifndef GR_ENGINE_GROUP_H
#define GR_ENGINE_GROUP_H

#include "gr/backend.h"
#include "link/link.h"

struct gr_group {
    struct gr_world *world;
    int32_t shard, n_shard;
    struct gr_link *to[GR_MAX_RANK], *from[GR_MAX_RANK]; /* of each shard; NULL: this one */
    struct gr_transport *transport; /* gathers on devices; NULL: the host does. Not the group's */
    int64_t patience_ns;            /* how long the others are waited for; 0: until one is lost */
};

/* Of this rank of the world, n_shard of which share the layers of each stage. */
int gr_group_open(struct gr_group **out, struct gr_world *w, int32_t n_shard);
/* all: [n_shard][bytes] in memory of the host: this shard has put its part in its place, and finds
 * the others'. GR_E_PEER_LOST when one is lost, or does not come in time. */
int gr_group_gather(struct gr_group *g, void *all, size_t bytes);
/* An EXCHANGE, in memory of device number `device`, 0 = the CPU. */
int gr_group_exchange(struct gr_group *g, struct gr_backend *b, const struct gr_args_exchange *a,
                      int32_t device);
/* Before something that all have to do: 0 when every shard says 0, otherwise what the first one
 * says that does not. A message goes with another's status only. */
int gr_group_agree(struct gr_group *g, int status);
/* This rank cannot go on with what the others wait for: it is lost, with the message of its last
 * failure. Returns GR_E_PEER_LOST. */
int gr_group_lose(struct gr_group *g);
void gr_group_close(struct gr_group **g);

/* ---- the test at the start (group_try.c) ---- */

#define GR_GROUP_SIZES 2
extern const size_t gr_group_sizes[GR_GROUP_SIZES]; /* of each part: 8 KiB, 256 KiB */

struct gr_group_found {
    int32_t first, n; /* ranks */
    char name[64];    /* of the way: "mpi (host memory)", "NCCL 2.28.9" */
    double seconds[GR_GROUP_SIZES];
};

/* All of the group call it at the same time, before anything else is gathered. A transport (of b's
 * device) that brings other bytes than were sent is given up by all, with a warning: g->transport
 * is NULL then. A line of the log on the first rank. */
int gr_group_try(struct gr_group *g, struct gr_backend *b, struct gr_group_found *found);
/* "ranks 0 to 3 share layers: NCCL 2.28.9, 12.0 us". Returns buf. */
const char *gr_group_found_text(const struct gr_group_found *f, char *buf, size_t n);

#endif
