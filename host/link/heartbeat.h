/* Heartbeats between the processes of a world: they detect ranks that died or hang.
 *
 * Every rank has a TCP connection with rank 0 and a thread of its own that sends a heartbeat every
 * quarter of a second, with the activity of the main thread, and receives those of the other side.
 * A closed connection means a dead process, detected at once; a silent one means a stopped process,
 * a hanging machine or a broken network. The rank that notices loses the world (gr_world_lose), and
 * rank 0 tells all others, so that all report the same rank and reason. The heartbeat works while
 * the main thread is inside MPI or a driver, and does not use MPI.
 *
 * Joining takes the run's secret, which is exchanged when the world starts: other connections are
 * closed, and neither garbage nor a flood of them delays the heartbeat. The secret keeps strangers
 * out, but not somebody who reads the network.
 *
 * Nothing is allocated after the start. The thread takes no signals. */
#ifndef GR_LINK_HEARTBEAT_H
#define GR_LINK_HEARTBEAT_H

#include "link/link.h"

#define GR_HEARTBEAT_MAX_ADDRESS 16

/* Addresses and secret of rank 0; sent to every other rank as plain bytes. */
struct gr_heartbeat_hello {
    uint8_t ask[16], answer[16]; /* the secret: of a joining rank, and of rank 0's answer */
    uint16_t port;               /* 0: rank 0 cannot listen */
    uint16_t n_address;
    struct {
        uint8_t family; /* 4 or 6 */
        uint8_t ip[16]; /* network order */
    } address[GR_HEARTBEAT_MAX_ADDRESS];
};

/* Times in milliseconds. */
struct gr_heartbeat_opt {
    int32_t beat;    /* between two heartbeats: 250 */
    int32_t silent;  /* without a heartbeat, until a rank is lost: 4,000 */
    int32_t join;    /* limit for joining at the start: 8,000 */
    int32_t leave;   /* until a rank that left too early is lost: 2,000 */
    int32_t compute; /* limit for one micro-batch: 600,000 */
};
struct gr_heartbeat_opt gr_heartbeat_opt_default(void);

/* Called before *hello is exchanged. Rank 0 listens and fills *hello (also on failure: the others
 * must get to know); the others' *hello is ignored. opt: NULL = the default. */
int gr_heartbeat_new(struct gr_heartbeat **out, struct gr_world *world,
                     const struct gr_heartbeat_opt *opt, struct gr_heartbeat_hello *hello);
/* Called after the exchange, with rank 0's hello: starts the thread. Ranks > 0 have joined when it
 * returns; on rank 0, those that do not join in time are lost. */
int gr_heartbeat_start(struct gr_heartbeat *heartbeat, const struct gr_heartbeat_hello *hello);
/* Announces that this rank leaves with exit code `code`, waits and frees. Other ranks wait for rank
 * 0 to leave too, rank 0 for all others, 3 * opt.leave at most; when the world is lost, only until
 * all have been told, opt.leave at most. Returns the exit code of all ranks (gpurun.h,
 * gr_world_close), not 0 when the world was lost. Accepts a pointer to NULL. */
int gr_heartbeat_leave(struct gr_heartbeat **heartbeat, int code);

#endif
