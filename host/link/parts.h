/* What the files of host/link share. */
#ifndef GR_LINK_PARTS_H
#define GR_LINK_PARTS_H

#include "link/link.h"

/* `to` has lost what `from` has lost, unless it had lost something before. */
void gr_world_copy_loss(struct gr_world *to, const struct gr_world *from);

/* The rank at the other side. */
static inline int32_t gr_link_other(const struct gr_link *l)
{
    return l->from == l->world->rank ? l->to : l->from;
}

/* "data link 0 -> 1". Returns buf. */
const char *gr_link_name(const struct gr_link *l, char *buf, size_t n);

/* GR_E_PEER_LOST: a deadline has passed; since_ns is when the waiting began. */
int gr_link_late(const struct gr_link *l, int64_t since_ns);
/* GR_E_INTERNAL: a message of n bytes for a buffer of cap. */
int gr_link_too_long(const struct gr_link *l, size_t n, size_t cap);

#endif
