/* Arguments of the kernels attn_*: gr_args_attn and values derived from it. */
#ifndef GR_KERNEL_ATTN_H
#define GR_KERNEL_ATTN_H

#include <stdint.h>

#include "gr/kernel/matmul.h"
#include "gr/op.h"

/* Columns of the longest heads of queries that attn_prefill_sm90 turns: longer ones leave no
 * registers for that. */
enum { GR_ATTN_TURNED = 128 };

/* Items of a chunk of attn_decode, of spans of no more than n_chunk of those. */
enum { GR_ATTN_CHUNK = 256 };

/* True of types whose planes attn_decode multiplies as they are; others become f16 first. */
GR_FN bool gr_attn_by_planes(int32_t type)
{
    return type == GR_Q8_0 || type == GR_Q4_0;
}

/* A cache as rows of heads; bytes. */
struct gr_kernel_rows {
    const char *data;  /* head 0 of row 0; of planes its codes .. */
    const char *step;  /* .. and records (gr/planes.h) */
    const char *end;   /* end of row 0 of planes */
    int64_t row;       /* from one row to the next */
    int32_t head;      /* from one head of a row to the next .. */
    int32_t head_step; /* .. and of its steps */
    int32_t type;      /* enum gr_dtype: F32, F16, BF16, types with planes */
};

/* A head of a row in a tile in shared memory, as it stands in the cache: codes, then the pieces of
 * 16 bytes that hold its records. */
struct gr_attn_stage {
    int32_t n16;   /* pieces of 16 bytes */
    int32_t codes; /* pieces of codes alone */
    int32_t pitch; /* from one row to the next, bytes */
};

/* Layout of a block's shared memory: offsets and sizes in bytes. Rows of f16 are
 * padded by 16 bytes, so that ldmatrix uses every bank. */
struct gr_attn_smem {
    int32_t q_pitch, k_pitch, v_pitch;   /* rows of f16 */
    int32_t q;                           /* queries */
    int32_t k, v;                        /* a tile that became f16 */
    int32_t stage, stage_v, stage_bytes; /* tiles as they came; V in a stage; a stage */
    int32_t n_stage;                     /* 1 to 3 */
    int32_t bytes;
};

struct gr_kernel_attn {
    const char *q[2]; /* [0] far, NULL without; [1] near */
    int64_t q_row[2]; /* bytes */
    struct gr_kernel_rows k[2], v;
    const int32_t *list;
    const char *span; /* rows of lo, near, hi */
    const int32_t *pos, *key_pos;
    const float *sinks; /* NULL = none */
    char *y;
    int64_t span_row, y_row; /* bytes */
    int32_t n_tok, n_head, n_head_kv, d_k, d_v;
    float scale, softcap, max_alibi;
    int32_t first_head, n_head_all; /* with ALiBi: head 0 is this one of so many */

    /* attn_decode, attn_prefill */
    struct gr_attn_stage k_stage, v_stage;
    struct gr_attn_smem smem;
    float *part;     /* attn_decode: [n_tok][n_chunk][n_head][d_v + 4]: an output, its largest
                        logit (in powers of two), its sum */
    int32_t n_chunk; /* chunks of the longest span, or of all that a list has room for */
    int32_t n_each;  /* attn_decode: tokens of a block, at most 64 */
    int32_t n_pack;  /* heads of a group that share a tile of queries */
    int32_t n_tile;  /* tiles of queries that a group's heads make */
    int32_t all;     /* attn_decode: 1: long runs of tokens as well, 0: attn_prefill takes them */
    /* attn_decode: [n_tok][n_head_kv * n_tile] and one more, zeros that stay: the last block of
     * each joins its chunks. NULL: attn_decode_join does so in a launch of its own. packed_x: y
     * as packed x, to.n = 0: none; packed_alone: each of them writes its heads, which are whole
     * chunks, otherwise the last one of all writes one token. */
    uint32_t *count;
    struct gr_matmul_x_args packed_x;
    int32_t packed_alone;
    /* attn_prefill: with packed_x y goes there in place of y; attn_decode_level adds the tokens
     * that attn_decode took. up: exponents of its groups; NULL: V is f16, and so f16 holds y. */
    int8_t *up;
    int32_t one_run; /* attn_prefill: 1: all tokens are its, as one run */
    /* attn_prefill_sm90: queries are turned as they are read; those of outputs that are computed
     * again go to q[1]. turn.x absent: q is turned. */
    struct gr_args_rope turn;
    int32_t v_in_k; /* V's columns begin at this one of K's, -1: V is rows of its own */

    /* attn_any */
    const char *rel; /* biases: row n_rel + d is for keys d positions behind; NULL = none */
    int64_t rel_row; /* bytes */
    int32_t n_rel;
};

GR_FN struct gr_packed_x_groups gr_attn_groups(const struct gr_kernel_attn *a)
{
    struct gr_packed_x_groups g = {a->packed_x.to, a->up};
    return g;
}

/* Shared memory for one head done by n threads (attn_exact in kernels/attn.cuh). */
#define GR_ATTN_EXACT_BYTES(d_k, d_v, n) ((2 * (d_k) + (d_v) + 2 * (n) + (n) / 32) * 4)

#endif
