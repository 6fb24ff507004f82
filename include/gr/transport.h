/* Transports: device memory from rank to rank, past the host.
 *
 * The devices of several ranks join a transport as its members, 0 .. n - 1, each in its own thread;
 * a ticket, made once and given to all, identifies the transport. From then on each may send
 * to one member (the next stage), receive from one (the stage before) and gather with a group (the
 * ranks that share a layer). Messages have no tags: they come in the order in which they were sent,
 * and both sides know how long they are. Facts about a message (its owner, a failure) go over the
 * host's links, beside it.
 *
 * send, recv and gather queue work in the order of a backend on the member's device, any that is
 * open there: they use what was queued before, and what is queued next finds them done. So work
 * queued next may write a sender's memory and read a receiver's. The host waits for one thing
 * only: a sender is at most GR_TRANSPORT_RING pieces ahead of its receiver's calls. Data goes one
 * way, so a chain of members cannot deadlock by that.
 *
 * Every wait ends by its deadline (of the monotonic clock, INT64_MAX = none) or when *opt.lost
 * is set, with GR_E_PEER_LOST. A call that failed has aborted the transport, so that the device
 * no longer waits; all later calls return that error, and the transport can only be left. After
 * recv and gather, before the host waits for the device in any way (sync, download, upload of other
 * memory than host_alloc's), wait() has to have returned 0: a device that waits for a lost member
 * may never finish.
 *
 * One thread uses a member at a time. */
#ifndef GR_TRANSPORT_H
#define GR_TRANSPORT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GR_TRANSPORT_RING 3 /* pieces of messages under way from one member to another */

enum gr_transport_kind {
    GR_TRANSPORT_PEER, /* copies between devices of this process; two members may share a device */
    GR_TRANSPORT_NCCL, /* a communicator of libnccl.so.2, also over processes and machines */
    GR_N_TRANSPORT
};

/* Identity of a transport; travels to the members as bytes. */
struct gr_transport_ticket {
    char bytes[128];
};

/* Memory of a message; in a list, one piece after the other. */
struct gr_transport_span {
    void *p; /* device memory */
    size_t bytes;
};

struct gr_transport_opt {
    enum gr_transport_kind kind;
    struct gr_transport_ticket ticket;
    int32_t member, n_member;
    int32_t from, to;       /* members that this one receives from and sends to; -1 = none */
    int32_t first, n_group; /* gathers with members [first, first + n_group); 0, 1: with none */
    size_t piece_bytes; /* of a ring buffer, the same everywhere; longer messages go in pieces */
    const _Atomic int *lost; /* ends every wait when it is not 0; NULL = none */
    int64_t deadline_ns;     /* for joining, which all must have done by then */
};

struct gr_transport;
struct gr_backend;

struct gr_transport_api {
    const char *name; /* "peer", "nccl" */
    int (*send)(struct gr_transport *n, struct gr_backend *b, const struct gr_transport_span *span,
                int n_span, int64_t deadline_ns);
    int (*recv)(struct gr_transport *n, struct gr_backend *b, const struct gr_transport_span *span,
                int n_span, int64_t deadline_ns);
    /* Device memory [n_group][bytes]: each member of the group has written its part, and receives
     * the others'. */
    int (*gather)(struct gr_transport *n, struct gr_backend *b, void *all, size_t bytes,
                  int64_t deadline_ns);
    /* Waits until everything that this member has queued here is done. */
    int (*wait)(struct gr_transport *n, int64_t deadline_ns);
    /* Ends work under way, as far as that is possible within a second; any later call fails. */
    void (*abort)(struct gr_transport *n);
    /* Before the last backend on the member's device is closed. After abort, or a failure, memory
     * that the others may still write to stays until they have left as well. */
    void (*leave)(struct gr_transport **n);
};

/* One member. */
struct gr_transport {
    const struct gr_transport_api *api;
    char via[64];    /* for messages: "peer access", "copies by the driver", "NCCL 2.28.9" */
    int32_t suspect; /* after a failure: the member that is to blame, -1 = this one or unknown */
};

#ifdef __cplusplus
}
#endif
#endif
