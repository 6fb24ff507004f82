/* Shared by the two files of the heartbeat: messages, connections, and joining. */
#ifndef GR_LINK_HEARTBEAT_IMPL_H
#define GR_LINK_HEARTBEAT_IMPL_H

#include "link/heartbeat.h"

enum gr_heartbeat_kind {
    GR_HEARTBEAT_JOIN = 1, /* first message to rank 0; text: hello.ask */
    GR_HEARTBEAT_WELCOME,  /* its answer; text: hello.answer */
    GR_HEARTBEAT_BEAT,     /* value: enum gr_doing, ms: its duration so far, n: gr_world.n_done */
    GR_HEARTBEAT_LOST,     /* `rank` is lost, text: the reason, value: its exit code or 0 */
    GR_HEARTBEAT_LEAVE     /* value: exit code */
};

#define GR_HEARTBEAT_MAGIC 0x57415447u

/* All messages have one length. All ranks have the same byte order. */
struct gr_heartbeat_msg {
    uint32_t magic;
    uint16_t kind, rank;
    int32_t value;
    uint32_t ms;
    uint64_t n;
    char text[256];
};

/* A non-blocking connection. fd -1 = none. */
struct gr_heartbeat_conn {
    int fd;
    uint32_t n_in, n_out; /* bytes of `in` received; last bytes of `out` still to be sent */
    int64_t since_ns;     /* time of opening or of the last message */
    struct gr_heartbeat_msg in, out;
};

void gr_heartbeat_conn_init(struct gr_heartbeat_conn *c, int fd);
void gr_heartbeat_conn_close(struct gr_heartbeat_conn *c);
/* Result of a read or a write. */
enum gr_heartbeat_event { GR_HEARTBEAT_NOTHING, GR_HEARTBEAT_MESSAGE, GR_HEARTBEAT_ENDED };
/* Reads available bytes; MESSAGE when c->in is complete. After ENDED errno is the reason, 0 = end
 * of file. */
enum gr_heartbeat_event gr_heartbeat_recv(struct gr_heartbeat_conn *c);
/* Sends the rest of c->out; MESSAGE when all of it has been sent. */
enum gr_heartbeat_event gr_heartbeat_flush(struct gr_heartbeat_conn *c);
/* Sends *m; all of c->out must have been sent. */
enum gr_heartbeat_event gr_heartbeat_send(struct gr_heartbeat_conn *c,
                                          const struct gr_heartbeat_msg *m);

/* On rank 0: listens at all addresses (only loopback when `local`), and fills *hello. */
int gr_heartbeat_listen(int *listener, struct gr_heartbeat_hello *hello, bool local);
/* Accepts the next connection of a listener; -1 = none now (errno). */
int gr_heartbeat_accept(int listener);
/* On other ranks: tries all addresses at once, repeatedly until deadline_ns. */
int gr_heartbeat_join(struct gr_heartbeat_conn *c, const struct gr_world *w,
                      const struct gr_heartbeat_hello *hello, int64_t deadline_ns);
/* Returns whether a first message comes from a rank of this run. */
bool gr_heartbeat_knows(const struct gr_heartbeat_hello *hello, const struct gr_heartbeat_msg *m);

#endif
