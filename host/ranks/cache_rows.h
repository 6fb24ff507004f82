/* Rows of the caches' tensors on other ranks. */
#ifndef GR_RANKS_CACHE_ROWS_H
#define GR_RANKS_CACHE_ROWS_H

#include "engine/session.h"

/* gr_rows_move for a tensor that may be on any rank. */
int gr_rows_move_far(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n,
                     char *rows, bool get);
/* Execute the commands GET and PUT in the team's body. */
int gr_rows_get(struct gr_session *s);
int gr_rows_put(struct gr_session *s);

#endif
