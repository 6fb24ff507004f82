/* The interface of launchers: their arguments, and the services that they ask for.
 *
 * A launcher looks at an operation's arguments, chooses kernels and grids, and notes the launches
 * down: gr_cuda_<args>(l, a) for every line of op.def. It runs once when a segment is made, never
 * in a step: what it notes is replayed (as a graph). So grids and arguments depend on shapes and
 * addresses alone; whatever changes from step to step is read by the kernel from the step block. It
 * allocates nothing and keeps nothing. A segment is noted twice: first `measuring`, when addresses
 * mean nothing yet, to learn how much scratch it needs. */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gr/op.h"

struct gr_cuda_facts {
    int cc; /* compute capability, 80 .. */
    int n_sm;
    int smem_max;      /* bytes of shared memory that a block can have */
    int smem_sm;       /* bytes of a multiprocessor for its blocks */
    int smem_reserved; /* bytes of each block's that the system takes */
    int64_t l2_bytes;
    int clusters; /* 1: blocks of a launch may be in clusters */
};

struct gr_launcher;

const struct gr_cuda_facts *gr_launch_facts(const struct gr_launcher *l);

/* Notes a launch: grid of blocks of threads, smem bytes of dynamic shared memory, and the kernel's
 * one argument struct, which is copied. Kernels are found by name: "gr_matmul_mv_q4_K" in the file
 * kernels/matmul_mv.cu (the file's name is the longest that fits behind "gr_"). */
struct gr_grid {
    uint32_t x, y, z;
};
int gr_launch(struct gr_launcher *l, const char *kernel, struct gr_grid grid, uint32_t threads,
              uint32_t smem, const void *args, size_t args_bytes);
/* The same in clusters of n_block blocks along x (facts.clusters), of which there are whole ones.
 */
int gr_launch_clusters(struct gr_launcher *l, const char *kernel, struct gr_grid grid,
                       uint32_t n_block, uint32_t threads, uint32_t smem, const void *args,
                       size_t args_bytes);
/* True when code for compute capability 9.0 alone may run: the device has it, and the session wants
 * it. */
bool gr_launch_sm90(const struct gr_launcher *l);
/* True when this build has that kernel for this device. wgmma kernels run on compute capability 9.0
 * only, and a session may want none: the caller has another kernel. */
bool gr_launch_has(const struct gr_launcher *l, const char *kernel);
/* Bytes of dynamic shared memory that a block of this kernel can have at most, beside its static
 * one; 0: there is no such kernel. */
uint32_t gr_launch_smem(const struct gr_launcher *l, const char *kernel);
/* Number of the kernel's blocks that a multiprocessor's shared memory holds at once when each is
 * launched with `smem` bytes; 0: none, or no such kernel. */
int32_t gr_launch_resident(const struct gr_launcher *l, const char *kernel, uint32_t smem);

/* Scratch memory of this node, aligned to 256 bytes, contents undefined; the next node reuses it.
 * While measuring, an address that must not be used. */
void *gr_launch_scratch(struct gr_launcher *l, size_t bytes);
/* Scratch memory for something derived from x by a kernel of this kind (a string constant): when
 * the node before, or one before that, has asked for the same and x was not written since, the same
 * address and *fresh = false; otherwise *fresh = true, and the caller notes the launch that fills
 * it. One piece at a time; with in_turn the one before stays until the launch that fills this one
 * is over, so that this launch may still read it. */
void *gr_launch_derived(struct gr_launcher *l, const struct gr_ten *x, const char *kind,
                        size_t bytes, bool in_turn, bool *fresh);

/* States that this node's launches write what is derived from x, a result of it or of a node that
 * it does as well, in place of x, which no node reads as it is. */
void gr_launch_derive_in_place(struct gr_launcher *l, const struct gr_ten *x, const char *kind,
                               size_t bytes);

/* The k-th node behind this one in the segment (0 = this one); NULL when there is none, or while
 * measuring, when each node stands alone. Launchers decide by it about fusions: which of the next
 * nodes this node's launches do as well. */
const struct gr_node *gr_launch_behind(const struct gr_launcher *l, int k);
/* Marks the next n nodes as done by this one's launches. */
void gr_launch_skip(struct gr_launcher *l, int n);
/* Marks what this node derives from now on as derived from its own result: that stays valid behind
 * it, and nothing derived before is taken for it. */
void gr_launch_renew(struct gr_launcher *l);

/* Counters in device memory: zeros, which every launch that counts leaves as zeros. */
enum { GR_LAUNCH_COUNTERS = 1024 };
uint32_t *gr_launch_counters(const struct gr_launcher *l);

/* A product of a launch as its epilogue sees it. */
struct gr_epilogue_made {
    struct gr_ten y, res, ids; /* the last two are read by its blocks to the end */
    int64_t n_tile;            /* of GR_PACK_ROWS columns of y */
};
/* Fills *t with the epilogue of a launch of n products, in blocks of `threads`: nodes from the k-th
 * behind this one on, and packed x. Returns the number of these nodes. The caller sets n_work for
 * one slice; without an epilogue *t stays as it is. */
struct gr_epilogue;
int gr_epilogue_behind(struct gr_launcher *l, int k, const struct gr_epilogue_made *made, int n,
                       uint32_t threads, struct gr_epilogue *t);

/* Fills `map`, a tensor map for TMA of a row-major f16 or bf16 matrix [rows, cols] with rows
 * row_bytes apart, boxes of [box_rows, box_cols] with box_cols * 2 = 128 bytes and the 128-byte
 * swizzle; outside elements read as zeros. `map` is 128 bytes, aligned to 64, part of a kernel's
 * arguments. */
int gr_launch_tensor_map(struct gr_launcher *l, void *map, const void *data, bool bf16,
                         int64_t rows, int64_t cols, int64_t row_bytes, int box_rows, int box_cols);

/* A product of plain matrices by a library, cuBLASLt: y [n_tok, rows] f32, contiguous, of x [n_tok,
 * cols] and w [rows, cols], both row-major and of one type, with sums in f32. */
struct gr_product_shape {
    uint32_t dtype;   /* GR_F32, GR_F16 or GR_BF16 */
    uint32_t x_align; /* bytes that x and its rows are aligned to, 4 .. 256; w and y: 256 */
    int64_t rows, n_tok, cols;
    int64_t w_pitch, x_pitch; /* elements from row to row */
};
struct gr_product_plan;

/* True when the session computes such a product with weights of dtype by the library. */
bool gr_launch_by_library(const struct gr_launcher *l, uint32_t dtype, int64_t rows, int64_t cols,
                          int64_t n_tok);
/* Bytes of scratch memory that every product by the library is given. */
size_t gr_launch_workspace(const struct gr_launcher *l);
/* Finds the library's way to compute a product, which it is asked for once a shape. NULL in *plan:
 * it has none; it is not asked while measuring. */
int gr_launch_product_find(struct gr_launcher *l, const struct gr_product_shape *shape,
                           const struct gr_product_plan **plan);
/* Notes a product; `workspace` is aligned to 256. */
int gr_launch_product(struct gr_launcher *l, const struct gr_product_plan *plan, const void *w,
                      const void *x, float *y, void *workspace);

/* Notes the launch that packs rows [batch, rows, cols] as they stand in a file, staged on the
 * device, into tiles, or the one that unpacks them. A large matrix may come in pieces: `packed` is
 * then the tile of 16 rows that a piece begins with (offset 0), and every piece but the last has a
 * multiple of 16 rows, of one matrix. */
int gr_cuda_pack(struct gr_launcher *l, const struct gr_ten *rows, const struct gr_ten *packed);
int gr_cuda_unpack(struct gr_launcher *l, const struct gr_ten *packed, const struct gr_ten *rows);

/* True when two tensors are the same; when they have bytes in common (an absent one has none). */
bool gr_ten_same(const struct gr_ten *a, const struct gr_ten *b);
bool gr_ten_overlap(const struct gr_ten *a, const struct gr_ten *b);

/* The launchers. */
#define OP(NAME, args, operands, meaning)                                                          \
    int gr_cuda_##args(struct gr_launcher *l, const struct gr_args_##args *a);
#define BETWEEN(NAME, args, operands, meaning)
#include "gr/op.def"
#undef OP

#endif
