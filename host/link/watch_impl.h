/* Shared by the two files of the watch: messages, connections, and joining. */
#ifndef GR_LINK_WATCH_IMPL_H
#define GR_LINK_WATCH_IMPL_H

#include "link/watch.h"

enum gr_watch_kind {
    GR_WATCH_JOIN = 1, /* first message to rank 0; text: hello.ask */
    GR_WATCH_WELCOME,  /* its answer; text: hello.answer */
    GR_WATCH_BEAT,     /* value: enum gr_doing, ms: its duration so far, n: gr_world.n_done */
    GR_WATCH_LOST,     /* `rank` is lost, text: the reason, value: its exit code or 0 */
    GR_WATCH_LEAVE     /* value: exit code */
};

#define GR_WATCH_MAGIC 0x57415447u

/* All messages have one length. All ranks have the same byte order. */
struct gr_watch_msg {
    uint32_t magic;
    uint16_t kind, rank;
    int32_t value;
    uint32_t ms;
    uint64_t n;
    char text[256];
};

/* A non-blocking connection. fd -1 = none. */
struct gr_watch_conn {
    int fd;
    uint32_t n_in, n_out; /* bytes of `in` received; last bytes of `out` still to be sent */
    int64_t since_ns;     /* time of opening or of the last message */
    struct gr_watch_msg in, out;
};

void gr_watch_conn_init(struct gr_watch_conn *c, int fd);
void gr_watch_conn_close(struct gr_watch_conn *c);
/* Result of a read or a write. */
enum gr_watch_event { GR_WATCH_NOTHING, GR_WATCH_MESSAGE, GR_WATCH_ENDED };
/* Reads available bytes; MESSAGE when c->in is complete. After ENDED errno is the reason, 0 = end
 * of file. */
enum gr_watch_event gr_watch_recv(struct gr_watch_conn *c);
/* Sends the rest of c->out; MESSAGE when all of it has been sent. */
enum gr_watch_event gr_watch_flush(struct gr_watch_conn *c);
/* Sends *m; all of c->out must have been sent. */
enum gr_watch_event gr_watch_send(struct gr_watch_conn *c, const struct gr_watch_msg *m);

/* On rank 0: listens at all addresses (only loopback when `local`), and fills *hello. */
int gr_watch_listen(int *listener, struct gr_watch_hello *hello, bool local);
/* Accepts the next connection of a listener; -1 = none now (errno). */
int gr_watch_accept(int listener);
/* On other ranks: tries all addresses at once, repeatedly until deadline_ns. */
int gr_watch_join(struct gr_watch_conn *c, const struct gr_world *w,
                  const struct gr_watch_hello *hello, int64_t deadline_ns);
/* Returns whether a first message comes from a rank of this run. */
bool gr_watch_knows(const struct gr_watch_hello *hello, const struct gr_watch_msg *m);

#endif
