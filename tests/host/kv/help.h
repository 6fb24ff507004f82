/* Shared parts of the tests of the cells. */
#ifndef GR_TESTS_KV_HELP_H
#define GR_TESTS_KV_HELP_H

#include <stdlib.h>

#include "kv/cells.h"

#define MOST 8192 /* tokens of a batch of `tokens` */

/* One pool without a window. */
struct gr_kv *cache(uint32_t n_cell, uint32_t n_seq, uint32_t n_pad, bool contiguous);
struct gr_kv *cache_of(struct gr_kv_params p);

/* n tokens of one sequence at pos, pos + 1, ..; row and column too (to be changed). The arrays are
 * reused by the next call. */
struct gr_ubatch tokens(int32_t seq, int32_t pos, int32_t n);
/* Cuts a micro-batch into pieces of at most n_ubatch tokens; returns their number. */
int32_t cut(const struct gr_ubatch *all, int32_t n_ubatch, struct gr_ubatch *ub);
/* Reserves, places (cells: NULL = not wanted) and commits. */
int store(struct gr_kv *kv, int32_t seq, int32_t pos, int32_t n, int32_t *cells);

/* gr_kv_can and, when it allows it, gr_kv_do; `moves` is that of the last one. */
extern struct gr_kv_moves moves;
int op(struct gr_kv *kv, enum gr_kv_op_kind kind, int32_t seq, int32_t dst, int32_t p0, int32_t p1,
       int32_t by);
static inline int rm(struct gr_kv *kv, int32_t seq, int32_t p0, int32_t p1)
{
    return op(kv, GR_KV_RM, seq, 0, p0, p1, 0);
}
static inline int cp(struct gr_kv *kv, int32_t seq, int32_t dst, int32_t p0, int32_t p1)
{
    return op(kv, GR_KV_CP, seq, dst, p0, p1, 0);
}
static inline int dup_seq(struct gr_kv *kv, int32_t seq, int32_t dst, int32_t p0, int32_t p1)
{
    return op(kv, GR_KV_DUP, seq, dst, p0, p1, 0);
}
static inline int keep(struct gr_kv *kv, int32_t seq)
{
    return op(kv, GR_KV_KEEP, seq, 0, -1, -1, 0);
}
static inline int add(struct gr_kv *kv, int32_t seq, int32_t p0, int32_t p1, int32_t by)
{
    return op(kv, GR_KV_ADD, seq, 0, p0, p1, by);
}
static inline int divide(struct gr_kv *kv, int32_t seq, int32_t p0, int32_t p1, int32_t by)
{
    return op(kv, GR_KV_DIV, seq, 0, p0, p1, by);
}

void expect_pos(const struct gr_kv *kv, size_t n, const int32_t *want);
#define EXPECT_POS(kv, ...)                                                                        \
    expect_pos(kv, sizeof((int32_t[]){__VA_ARGS__}) / 4, (int32_t[]){__VA_ARGS__})
#define EXPECT_CELLS(got, ...)                                                                     \
    cr_assert_arr_eq(got, ((int32_t[]){__VA_ARGS__}), sizeof((int32_t[]){__VA_ARGS__}))

/* Everything that can be seen of a cache, as text to be freed. */
char *state(struct gr_kv *kv);
void expect_state(struct gr_kv *kv, const char *want);

#endif
