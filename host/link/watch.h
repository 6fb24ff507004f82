/* The watch of a world of processes: who is still there.
 *
 * Every rank has a connection to rank 0 and a thread that nothing else holds up: it says every
 * quarter of a second that the process lives and what its main thread is at, and hears the same
 * from the others. A connection that ends is a process that died, known at once; one that falls
 * silent is a process that was stopped, a machine that hangs or a network that is cut. Whoever
 * finds out loses the world (gr_world_lose) and rank 0 tells everyone, so that all give the same
 * name and reason. It works while the main thread is inside MPI or a driver, and does not use MPI.
 *
 * Only who knows the run's secret, which travels over the world's own start-up, may join: others
 * are turned away, and neither garbage nor a flood of connections holds the watch up. The secret
 * keeps strangers out, not somebody who reads the network.
 *
 * Nothing is allocated after the start. The thread takes no signals. */
#ifndef GR_LINK_WATCH_H
#define GR_LINK_WATCH_H

#include "link/link.h"

#define GR_WATCH_MAX_ADDRESS 16

/* Where rank 0 is found; goes to every other rank as plain bytes. */
struct gr_watch_hello {
    uint8_t ask[16], answer[16]; /* what who joins says, and what it must hear */
    uint16_t port;               /* 0: rank 0 cannot listen */
    uint16_t n_address;
    struct {
        uint8_t family; /* 4 or 6 */
        uint8_t ip[16]; /* network order */
    } address[GR_WATCH_MAX_ADDRESS];
};

/* Times in milliseconds. */
struct gr_watch_opt {
    int32_t beat;    /* between two heartbeats: 250 */
    int32_t silent;  /* without any heartbeat: lost. 4,000 */
    int32_t join;    /* for joining at the start: 8,000 */
    int32_t leave;   /* until a rank that left while others go on is lost to them: 2,000 */
    int32_t compute; /* for one micro-batch: 600,000 */
};
struct gr_watch_opt gr_watch_opt_default(void);

/* Before the exchange. Rank 0 listens and fills *hello (on a failure too: the others must hear of
 * it); on others *hello is not looked at. opt: NULL = the default. */
int gr_watch_new(struct gr_watch **out, struct gr_world *w, const struct gr_watch_opt *opt,
                 struct gr_watch_hello *hello);
/* After it: the thread starts. Ranks > 0 have joined when it returns; those that do not come to
 * rank 0 are lost. */
int gr_watch_start(struct gr_watch *watch, const struct gr_watch_hello *hello);
/* Says that this rank leaves with exit code `code`; others wait for rank 0 to leave too, rank 0 for
 * all of them, three times opt.leave at most; nobody waits when the world is lost. Frees. Returns
 * the code that all end with (gpurun.h, gr_world_close): one other than 0 when the world was lost.
 * NULL is fine. */
int gr_watch_leave(struct gr_watch **watch, int code);

#endif
