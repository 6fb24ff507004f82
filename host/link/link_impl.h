/* Functions shared by the files of host/link. */
#ifndef GR_LINK_LINK_IMPL_H
#define GR_LINK_LINK_IMPL_H

#include "link/link.h"

/* Copies the loss of `from` to `to`, unless that has lost a rank already. */
void gr_world_copy_loss(struct gr_world *to, const struct gr_world *from);

/* The rank at the other side. */
static inline int32_t gr_link_other(const struct gr_link *l)
{
    return l->from == l->world->rank ? l->to : l->from;
}

/* Formats "data link 0 -> 1". Returns buf. */
const char *gr_link_name(const struct gr_link *l, char *buf, size_t n);

/* Fails with GR_E_PEER_LOST for a passed deadline; since_ns: when the wait began. */
int gr_link_late(const struct gr_link *l, int64_t since_ns);
/* Fails with GR_E_INTERNAL for a message of n bytes and a buffer of cap. */
int gr_link_too_long(const struct gr_link *l, size_t n, size_t cap);

#endif
