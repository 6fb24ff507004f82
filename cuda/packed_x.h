/* Packed x (gr/kernel/matmul.h): activations as products of few and of many tokens read them. */
#ifndef CUDA_PACKED_X_H
#define CUDA_PACKED_X_H

#include "cuda/launch.h"
#include "gr/kernel/matmul.h"

/* Most tokens of the streaming kernels, with the same values in kernels/matmul_mv*.cu. */
enum { GR_MV_TOKENS = 8, GR_MV3_TOKENS = 24 };

/* Order of words: for the loads of the streaming kernels, or for ldmatrix and wgmma. */
enum gr_x_order { GR_BY_LANE, GR_BY_STEP };
/* The order that a product of n_tok tokens with w reads: by lane where the streaming kernels take
 * it. Those have a tile's activations again for each 16 rows of w, the tiles of wgmma for each 128.
 * So by lane costs less only while the activations stay in the multiprocessor's L1, MV_X_BYTES;
 * scripts/bench/step predicts both. It is of the shape and the compute capability alone. */
enum gr_x_order gr_packed_x_order(const struct gr_launcher *l, const struct gr_ten *w,
                                  int64_t n_tok);

/* True when tiles of products with w run on wgmma, which reads no sums of packed x. */
bool gr_packed_x_on_wgmma(const struct gr_launcher *l, const struct gr_ten *w);

/* Places x, of x->n rows of x->units units, in scratch memory of this node. */
void gr_packed_x_scratch(struct gr_launcher *l, struct gr_packed_x *x);
/* Notes the launch of gr_matmul_x. */
int gr_packed_x_write(struct gr_launcher *l, const struct gr_matmul_x_args *a);
/* Describes in *to the packed x of x for products with w, which later nodes may read as well; notes
 * the launch that writes it unless it is there already. */
int gr_packed_x_of(struct gr_launcher *l, const struct gr_ten *x, const struct gr_ten *w,
                   enum gr_x_order order, struct gr_packed_x *to);

/* Fills *packed_x with what the node behind the k-th one reads of y, a result of the k-th, to be
 * written by this one's launch: false when it reads none. */
bool gr_packed_x_ahead(struct gr_launcher *l, int k, const struct gr_ten *y,
                       struct gr_matmul_x_args *packed_x);

/* The same, but false as well where it is read by step. */
bool gr_packed_x_ahead_by_lane(struct gr_launcher *l, int k, const struct gr_ten *y,
                               struct gr_matmul_x_args *packed_x);

/* True when packed x is all that is read of y, a result of the k-th node: by the nodes behind it.
 */
bool gr_packed_x_alone(const struct gr_launcher *l, int k, const struct gr_ten *y);

/* The same for this node's launches to write by groups, where the product behind the k-th node is
 * on wgmma and the only one to read y. */
bool gr_packed_x_groups_ahead(struct gr_launcher *l, int k, const struct gr_ten *y,
                              struct gr_matmul_x_args *packed_x);
/* The same in place of y; false as well where y's memory does not hold it. */
bool gr_packed_x_groups_in_place(struct gr_launcher *l, int k, const struct gr_ten *y,
                                 struct gr_packed_x_groups *x);
/* Notes the launch of gr_matmul_x_level. */
int gr_packed_x_level(struct gr_launcher *l, const struct gr_packed_x_groups *x);

#endif
