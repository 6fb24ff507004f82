/* A tensor-parallel group: the ranks that share the layers of a stage. They exchange partial sums
 * between two segments of a plan (all-gather), so they run the same plans in the same order.
 *
 * Host memory is exchanged over links, from each rank to each; device memory by a transport, where
 * all have one. The operation SUM then adds the parts, in the order of the ranks. */
#ifndef GR_LINK_TP_GROUP_H
#define GR_LINK_TP_GROUP_H

#include "gr/backend.h"
#include "link/link.h"

struct gr_tp_group {
    struct gr_world *world;
    int32_t shard, n_shard;
    struct gr_link *to[GR_MAX_RANK], *from[GR_MAX_RANK]; /* by shard; this rank's own: NULL */
    struct gr_transport *transport; /* gathers on devices; NULL: over host memory. Not owned */
    int64_t patience_ns;            /* time limit of a gather; 0: waits until a rank is lost */
};

/* Opens the tensor-parallel group of this rank; n_shard consecutive ranks of the world share a
 * stage's layers. */
int gr_tp_group_open(struct gr_tp_group **out, struct gr_world *w, int32_t n_shard);
/* All-gather in host memory: all [n_shard][bytes] has this shard's part on entry, all parts on
 * return. GR_E_PEER_LOST when a rank is lost or late. */
int gr_tp_group_gather(struct gr_tp_group *g, void *all, size_t bytes);
/* Runs the operation EXCHANGE in memory of device number `device`, 0 = the CPU. */
int gr_tp_group_exchange(struct gr_tp_group *g, struct gr_backend *b,
                         const struct gr_args_exchange *a, int32_t device);
/* Collective, before something that all have to do: returns 0 when all shards pass status 0,
 * otherwise the status of the first shard that does not. Sets an error message only when that is
 * another shard's. */
int gr_tp_group_agree(struct gr_tp_group *g, int status);
/* Marks this rank as lost, with the message of its last failure: it cannot do what the others wait
 * for. Returns GR_E_PEER_LOST. */
int gr_tp_group_lose(struct gr_tp_group *g);
void gr_tp_group_close(struct gr_tp_group **g);

/* ---- the test at the start (tp_group_check.c) ---- */

#define GR_TP_GROUP_SIZES 2
extern const size_t gr_tp_group_sizes[GR_TP_GROUP_SIZES]; /* bytes of each part: 8 KiB, 256 KiB */

struct gr_tp_group_result {
    int32_t first, n;                  /* ranks [first, first + n) */
    char name[64];                     /* of the path: "mpi (host memory)", "NCCL 2.28.9" */
    double seconds[GR_TP_GROUP_SIZES]; /* of one gather */
};

/* Tests and times the group. Collective, before anything else is gathered. When the transport (of
 * b's device) fails or delivers wrong bytes, all ranks give it up, with a warning: g->transport is
 * then NULL. The first rank logs the result. */
int gr_tp_group_try(struct gr_tp_group *g, struct gr_backend *b, struct gr_tp_group_result *found);
/* Formats "ranks 0 to 3 share layers: NCCL 2.28.9, 12.0 us". Returns buf. */
const char *gr_tp_group_result_text(const struct gr_tp_group_result *f, char *buf, size_t n);

#endif
