/* Access to rows of the caches' tensors, by their numbers in s->tensors. rows: packed, in the order
 * of `cell`; in blocks, also where the cache stores planes. */
#ifndef GR_ENGINE_CACHE_ROWS_H
#define GR_ENGINE_CACHE_ROWS_H

#include "engine/session.h"

/* Bytes of a whole row of tensor number `tensor`, even where a shard holds only part of it. */
size_t gr_rows_bytes(const struct gr_session *s, uint32_t tensor);
/* Reads (get) or writes the rows of n cells of tensor number `tensor`, on whichever rank it is. */
int gr_rows_move(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n, char *rows,
                 bool get);
/* The same for a tensor of this rank, with the part of the rows that it holds. */
int gr_rows_move_own(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n,
                     char *rows, bool get);

#endif
