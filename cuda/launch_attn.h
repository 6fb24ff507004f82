/* Attention that turns its queries: ROPE of them has no launch of its own then. */
#ifndef CUDA_LAUNCH_ATTN_H
#define CUDA_LAUNCH_ATTN_H

#include "cuda/launch.h"

/* True when the k-th node behind this one is a ROPE that the launches of the ATTN behind it do as
 * well. */
bool gr_attn_turns(const struct gr_launcher *l, int k);
/* Notes both, of this node and the next one, where gr_attn_turns says so of this one. */
int gr_attn_turned(struct gr_launcher *l);

#endif
