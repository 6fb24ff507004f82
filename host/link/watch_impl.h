/* What the two files of the watch share: messages, connections, and how ranks find each other. */
#ifndef GR_LINK_WATCH_IMPL_H
#define GR_LINK_WATCH_IMPL_H

#include "link/watch.h"

enum gr_watch_kind {
    GR_WATCH_JOIN = 1, /* to rank 0, the first: text is hello.ask */
    GR_WATCH_WELCOME,  /* the answer: hello.answer */
    GR_WATCH_BEAT,     /* value: enum gr_doing, ms: for how long, n: gr_world.n_done */
    GR_WATCH_LOST,     /* `rank` is lost, text: why, value: its exit code or 0 */
    GR_WATCH_LEAVE     /* value: exit code */
};

#define GR_WATCH_MAGIC 0x57415447u

/* All messages are of one length. Ranks are of one kind of machine. */
struct gr_watch_msg {
    uint32_t magic;
    uint16_t kind, rank;
    int32_t value;
    uint32_t ms;
    uint64_t n;
    char text[256];
};

/* A connection: never blocks. fd -1 = none. */
struct gr_watch_conn {
    int fd;
    uint32_t n_in, n_out; /* bytes of `in` that came; of `out`, from its end, that must still go */
    int64_t since_ns;     /* opened, or heard of */
    struct gr_watch_msg in, out;
};

void gr_watch_conn_init(struct gr_watch_conn *c, int fd);
void gr_watch_conn_close(struct gr_watch_conn *c);
/* What a read or a write has led to. */
enum gr_watch_event { GR_WATCH_NOTHING, GR_WATCH_MESSAGE, GR_WATCH_ENDED };
/* Reads until a message is complete in c->in. After ENDED errno says why, 0 = end of file. */
enum gr_watch_event gr_watch_recv(struct gr_watch_conn *c);
/* Sends what is left of c->out: MESSAGE when nothing is. */
enum gr_watch_event gr_watch_flush(struct gr_watch_conn *c);
/* c->out must be empty. */
enum gr_watch_event gr_watch_send(struct gr_watch_conn *c, const struct gr_watch_msg *m);

/* Rank 0: listens at all addresses (at the loopback one when `local`), fills *hello. */
int gr_watch_listen(int *listener, struct gr_watch_hello *hello, bool local);
/* The next connection of a listener, -1 = none now (errno). */
int gr_watch_accept(int listener);
/* Others: tries all addresses at once, again and again until deadline_ns. */
int gr_watch_join(struct gr_watch_conn *c, const struct gr_world *w,
                  const struct gr_watch_hello *hello, int64_t deadline_ns);
/* Whether a first message is that of a rank of this run. */
bool gr_watch_knows(const struct gr_watch_hello *hello, const struct gr_watch_msg *m);

#endif
