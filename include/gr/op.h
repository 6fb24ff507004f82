/* Argument structs of the operations in op.def, the same for every executor (CPU references, CPU
 * fast paths, CUDA).
 *
 * They stay the same from step to step of one plan: data that changes (tokens, positions, cells,
 * masks) is in the step block, and these structs hold its address. Dimensions: n_tok
 * rows of the micro-batch, n_cell rows of a cache, d_head columns of a head. */
#ifndef GR_OP_H
#define GR_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "gr/dtype.h"
#include "gr/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gr_op {
#define OP(NAME, args, operands, meaning) GR_OP_##NAME,
#include "gr/op.def"
#undef OP
    GR_N_OP
};

enum gr_norm_kind { GR_NORM_RMS, GR_NORM_LAYER };
enum gr_binary_kind { GR_ADD, GR_MUL, GR_DIV };
/* The two columns of a head that make a pair: NORM (2i, 2i + 1), NEOX (i, i + n_rot / 2). */
enum gr_rope_kind { GR_ROPE_NONE, GR_ROPE_NORM, GR_ROPE_NEOX };
/* Gate of an expert router. SOFTMAX over all experts, SIGMOID each, SOFTMAX_TOP over the chosen
 * ones only. */
enum gr_gate_kind { GR_GATE_SOFTMAX, GR_GATE_SIGMOID, GR_GATE_SOFTMAX_TOP };

/* Elementwise functions. GELU is the tanh form, GELU_ERF the exact one, GELU_QUICK x *
 * sigmoid(1.702 x). SOFTCAP a * tanh(x / a); LINEAR a * x + b; CLAMP min(max(x, a), b); a and b
 * are arguments. SWIGLU_OAI joins a gate and an input, for GLU alone. */
enum gr_act_kind {
    GR_SILU,
    GR_GELU,
    GR_GELU_ERF,
    GR_GELU_QUICK,
    GR_RELU,
    GR_RELU2,
    GR_SIGMOID,
    GR_TANH,
    GR_SOFTCAP,
    GR_LINEAR,
    GR_CLAMP,
    GR_SOFTPLUS,
    GR_SWIGLU_OAI
};

struct gr_args_embed {
    struct gr_ten tokens;    /* [1, 1, n_tok] i32, step block; ids are below table.rows */
    struct gr_ten table;     /* [1, n_vocab, n_embd] any dtype */
    struct gr_ten pos;       /* [1, 1, n_tok] i32, step block; only with pos_table */
    struct gr_ten pos_table; /* [1, n_ctx_train, n_embd] any dtype, optional; pos beyond it uses its
                                last row */
    struct gr_ten y;         /* [1, n_tok, n_embd] */
    float scale;
};

struct gr_args_norm {
    struct gr_ten x;   /* [1, n_tok, n] */
    struct gr_ten w;   /* [1, n_w, group] f32, optional; group g of x uses row g % n_w */
    struct gr_ten b;   /* as w, optional */
    struct gr_ten res; /* [1, n_tok, n] added last, optional */
    struct gr_ten y;   /* [1, n_tok, n]; may be x or res */
    int64_t group;     /* columns of a group (w.cols when there is a w); divides n */
    float eps;
    int32_t kind; /* enum gr_norm_kind */
};

struct gr_args_matmul {
    struct gr_ten x;   /* [1, n_tok, n_in] f32 */
    struct gr_ten w;   /* [1, n_out, n_in] any dtype */
    struct gr_ten b;   /* [1, 1, n_out] f32, optional */
    struct gr_ten res; /* [1, n_tok, n_out] f32, optional; may be y */
    struct gr_ten y;   /* [1, n_tok, n_out] f32 */
    float scale;
};

struct gr_args_matmul_id {
    struct gr_ten x;   /* [1, n_tok or n_tok * n_used, n_in] f32 */
    struct gr_ten w;   /* [n_expert, n_out, n_in] any dtype */
    struct gr_ten s;   /* [1, 1, n_expert] f32, optional */
    struct gr_ten b;   /* [1, n_expert, n_out] f32, optional */
    struct gr_ten ids; /* [1, n_tok, n_used] i32 */
    struct gr_ten y;   /* [1, n_tok * n_used, n_out] f32 */
};

/* A matrix of w for each head; a head of x has n_in + n_pass columns, one of y n_pass + n_out. */
struct gr_args_head_matmul {
    struct gr_ten x; /* [1, n_tok, n_head * (n_in + n_pass)] f32 */
    struct gr_ten w; /* [n_head, n_out, n_in] any dtype */
    struct gr_ten y; /* [1, n_tok, n_head * (n_pass + n_out)] f32 */
};

struct gr_args_glu {
    struct gr_ten a, b; /* [1, n_tok, n_ff] */
    struct gr_ten y;    /* [1, n_tok, n_ff]; may be a */
    int32_t kind;       /* enum gr_act_kind */
};

struct gr_args_act {
    struct gr_ten x; /* [1, rows / k, n] */
    struct gr_ten y; /* [1, rows, n]; may be x when k is 1 */
    float a, b;
    int32_t kind; /* enum gr_act_kind */
};

/* Huang and Schlag 2024 (arXiv 2411.13010) */
struct gr_args_xielu {
    struct gr_ten x; /* [1, n_tok, n] */
    struct gr_ten y; /* as x; may be x */
    float positive, negative, linear;
    float below; /* a little less than 0: up to there exp is not taken */
};

struct gr_args_binary {
    struct gr_ten a; /* [1, rows, n] */
    struct gr_ten b; /* [1, rows or 1, n] f32 */
    struct gr_ten y; /* [1, rows, n]; may be a */
    int32_t kind;    /* enum gr_binary_kind */
};

struct gr_args_rope_table {
    struct gr_ten
        pos; /* [1, n_pos, n] i32: positions of tokens, or deltas of cells for the K-shift */
    struct gr_ten freq;    /* [1, 1, n_rot / 2] f64: radians a position; linear, NTK, YaRN, LongRoPE
                              are all in here */
    struct gr_ten section; /* [1, 1, n_rot / 2] i32, optional: the row of pos that each pair turns
                              by (M-RoPE); a row beyond those of pos is position 0. Absent: row 0 */
    struct gr_ten cs;      /* [1, n, n_rot] */
    float mag;             /* YaRN's magnitude; 1 for a K-shift, which rotates only */
};

struct gr_args_temper {
    struct gr_ten pos; /* [1, n_pos, n_tok] i32; the first row counts */
    struct gr_ten y;   /* [1, n_tok, 1] */
    float scale;
    int32_t first, length; /* length above 0 */
};

struct gr_args_rope {
    struct gr_ten x;  /* [1, n_tok, n_head * d_head] */
    struct gr_ten cs; /* [1, n_tok, n_rot] from ROPE_TABLE */
    struct gr_ten y;  /* as x; may be x */
    int64_t d_head;
    int32_t kind; /* enum gr_rope_kind, not NONE */
};

struct gr_args_kv_store {
    struct gr_ten k,
        v;               /* [1, n_tok, n_head_kv * d_head_k], [1, n_tok, n_head_kv * d_head_v] f32;
                            v and v_cache absent where V is part of K's rows (MLA) or stored already */
    struct gr_ten cs;    /* [1, n_tok, n_rot], absent when kind is NONE */
    struct gr_ten cells; /* [1, 1, n_tok] i32, step block: the row of the cache for each token,
                            below n_cell */
    struct gr_ten k_cache; /* [1, n_cell, n_head_kv * d_head_k] f32, f16, bf16, or planes of quants
                              (gr/planes.h); a head holds whole blocks */
    struct gr_ten v_cache; /* [1, n_cell, n_head_kv * d_head_v], its own dtype of the same list */
    int64_t d_head_k;
    int32_t kind; /* enum gr_rope_kind */
};

/* A token sees a range of a list of cells. The host writes, for each sequence of the
 * micro-batch, the cells of that sequence in the order of their positions (equal ones: older first)
 * into `list`; a token's span is the range that it sees. So cells of other sequences cost
 * nothing, and sums run in an order that does not depend on where the cells lie. */
enum { GR_ATTN_FEW = 64 }; /* tokens of the longest run that kernels for single tokens take */

struct gr_args_attn {
    struct gr_ten q;     /* [1, n_tok, n_head * d_k], roped */
    struct gr_ten q_far; /* as q, roped for the far items; optional, with k_far */
    struct gr_ten k;     /* [1, n_cell, n_head_kv * d_k] cache or, without a cache, the keys of the
                            micro-batch; rows that are in no span may hold NaN and are not read */
    struct gr_ten k_far; /* as k, roped by group (Self-Extend by window); optional */
    struct gr_ten v;    /* [1, n_cell, n_head_kv * d_v]; absent: the last d_v columns of k (MLA: one
                           head) */
    struct gr_ten list; /* [1, 1, n_list] i32, step block: rows of k and v; n_list is the room for
                            them, results do not depend on it */
    struct gr_ten span; /* [1, n_tok, 3] i32, step block: lo, near, hi; items [lo, near) of the list
                           meet q_far and k_far, [near, hi) meet q and k; near = lo without k_far */
    struct gr_ten pos;  /* [1, 1, n_tok] i32, step block; used with ALiBi and rel */
    struct gr_ten key_pos; /* [1, 1, n_list] i32, step block: position of each item; as pos */
    struct gr_ten sinks;   /* [1, 1, n_head] f32, optional: one more logit in the softmax of each
                              head, with no value */
    struct gr_ten rel; /* [1, 2 n + 1, n_head] f32, optional: added to the logits; row n + d is for
                          keys d positions behind the token's, d taken to -n .. n */
    struct gr_ten y;   /* [1, n_tok, n_head * d_v] */
    int64_t n_head, n_head_kv, d_k, d_v;
    int64_t first_head, n_head_all; /* with ALiBi: head 0 is this one of the model's so many */
    float scale;
    float softcap;   /* 0 = none: logits become cap * tanh(logit / cap) before the slope */
    float max_alibi; /* 0 = none; otherwise the bias exponent, slopes as in gr_alibi_slope */
    int32_t one_run; /* 1: more than GR_ATTN_FEW tokens, all of one sequence; spans say the rest */
};

struct gr_args_route {
    struct gr_ten logits;          /* [1, n_tok, n_expert] */
    struct gr_ten bias;            /* [1, 1, n_expert] f32, optional: added for the choice only */
    struct gr_ten ids;             /* [1, n_tok, n_used] i32, best first */
    struct gr_ten weights;         /* [1, n_tok, n_used] f32 */
    int32_t gate;                  /* enum gr_gate_kind */
    int32_t normalise;             /* divide the weights by their sum, unless that is 0 */
    float scale;                   /* then multiply by this */
    int32_t n_group, n_group_used; /* choose among the experts of the best groups only (a group's
                                      rank is the sum of its two best); 1, 1 = no groups */
    int32_t per;                   /* experts of an id; 0 = 1 */
};

struct gr_args_expert_sum {
    struct gr_ten x;       /* [1, n_tok * n_used, n] */
    struct gr_ten weights; /* [1, n_tok, n_used] */
    struct gr_ten res;     /* [1, n_tok, n], optional */
    struct gr_ten y;       /* [1, n_tok, n]; may be res */
};

/* Sum of the parts of a layer's shards, in their order: n_shard = parts.rows / y.rows. */
struct gr_args_sum {
    struct gr_ten parts; /* [1, n_shard * n_tok, n] */
    struct gr_ten res;   /* [1, n_tok, n], optional */
    struct gr_ten y;     /* [1, n_tok, n]; may be res */
};

struct gr_args_exchange {
    struct gr_ten x;     /* [1, n_tok, n], rows without gaps; may be its place in parts */
    struct gr_ten parts; /* [1, n_shard * n_tok, n], the same */
};

/* The mean of the rows of each sequence. */
struct gr_args_pool {
    struct gr_ten x; /* [1, n_row, n] */
    struct gr_ten
        list; /* [1, 1, n_item] i32, step block: rows of x, one sequence's after another's */
    struct gr_ten at; /* [1, 1, n_seq + 1] i32, step block: where each one's items begin */
    struct gr_ten y;  /* [1, n_seq, n] */
};

struct gr_args_gather {
    struct gr_ten x;    /* [1, n_tok, n] */
    struct gr_ten rows; /* [1, 1, n_out] i32, step block */
    struct gr_ten y;    /* [1, n_out, n] */
};

struct gr_args_kv_shift {
    struct gr_ten cs;      /* [1, n_cell, n_rot] from ROPE_TABLE over delta, mag 1 */
    struct gr_ten delta;   /* [1, 1, n_cell] i32 */
    struct gr_ten k_cache; /* [1, n_cell, n_head_kv * d_head] */
    int64_t d_head;
    int32_t kind; /* enum gr_rope_kind, not NONE */
};

struct gr_args_kv_copy {
    struct gr_ten src, dst; /* [1, 1, n] i32, step block: rows of the cache */
    struct gr_ten cache;    /* [1, n_cell, n], any dtype */
};

/* The recurrent operations read a micro-batch of sequences of equal length, one after the other:
 * src.cols of them, n_tok / src.cols tokens each. A sequence continues from row src of the state
 * (-1: from zeros) and leaves its new state in row dst; src may be dst, but no sequence writes a
 * row that another one reads. The result for a token does not depend on how its sequence is cut
 * into steps. */
struct gr_args_ssm_conv {
    struct gr_ten x; /* [1, n_tok, n] */
    struct gr_ten
        w; /* [1, n, n_kernel] f32, n_kernel >= 2: the last column meets the token itself */
    struct gr_ten b;        /* [1, 1, n] f32, optional */
    struct gr_ten src, dst; /* [1, 1, n_seq] i32, step block */
    struct gr_ten state;    /* [1, n_row, (n_kernel - 1) * n] f32: inputs, the oldest first */
    struct gr_ten y;        /* [1, n_tok, n] */
    int32_t kind;           /* enum gr_act_kind: SILU, or LINEAR for none */
};

/* Selective scan: Mamba 1 (every column a head of its own, a [n_head, n_state]) and Mamba 2 (a
 * [n_head, 1]). Column i belongs to head i / d_head, and that to group head / (n_head / n_group).
 */
struct gr_args_ssm_scan {
    struct gr_ten x;        /* [1, n_tok, n], n = n_head * d_head */
    struct gr_ten dt;       /* [1, n_tok, n_head] */
    struct gr_ten dt_bias;  /* [1, 1, n_head] f32, optional */
    struct gr_ten a;        /* [1, n_head, n_state or 1] f32, negative */
    struct gr_ten b, c;     /* [1, n_tok, n_group * n_state] */
    struct gr_ten d;        /* [1, 1, n_head] f32, optional */
    struct gr_ten z;        /* [1, n_tok, n], optional */
    struct gr_ten src, dst; /* [1, 1, n_seq] i32, step block */
    struct gr_ten state;    /* [1, n_row, n_state * n] f32: [n_state][n] */
    struct gr_ten y;        /* [1, n_tok, n] */
    int64_t n_state;
};

/* Gated delta rule. Head i of n_head uses head i / (n_head / n_head_k) of q and k, or i % n_head_k
 * when tiled. The decay is one number a head, or one for each of its d_k rows; with x = alpha[t] +
 * dt_bias its exponent is a * softplus(x) or, bounded, bound * sigmoid(slope * a * x). */
struct gr_args_delta_rule {
    struct gr_ten q, k;     /* [1, n_tok, n_head_k * d_k] */
    struct gr_ten v;        /* [1, n_tok, n_head * d_v] */
    struct gr_ten alpha;    /* [1, n_tok, n_head or n_head * d_k] */
    struct gr_ten dt_bias;  /* [1, 1, alpha.cols] f32, optional */
    struct gr_ten a;        /* [1, 1, n_head] f32; negative unless the exponent is bounded */
    struct gr_ten beta;     /* [1, n_tok, n_head] */
    struct gr_ten src, dst; /* [1, 1, n_seq] i32, step block */
    struct gr_ten state;    /* [1, n_row, n_head * d_k * d_v] f32: [n_head][d_k][d_v] */
    struct gr_ten y;        /* [1, n_tok, n_head * d_v] */
    int64_t n_head, n_head_k;
    float eps;          /* lower limit of the sum of squares of q and of k */
    float bound, slope; /* bound: negative; 0 = none */
    int32_t tiled;
};

/* Decay of a row of a state of linear attention. SLOPE: by exp(-slope * 2^(-8 (h + 1) / n_head)),
 * the same for all rows of head h. EXP: by exp(-exp(x)), SIGMOID: by exp(-0.606531 sigmoid(x)), x =
 * w[t] + w_bias. */
enum gr_decay_kind { GR_DECAY_SLOPE, GR_DECAY_EXP, GR_DECAY_SIGMOID };

/* Linear attention: a state S [d_k, d_v] a head, of which every row decays. Head i of n_head uses
 * head i / (n_head / n_head_kv) of k and v. With `rest` k meets 1 - decay. */
struct gr_args_linear_attn {
    struct gr_ten q;      /* [1, n_tok, n_head * d_k] */
    struct gr_ten k, v;   /* [1, n_tok, n_head_kv * d_k], [1, n_tok, n_head_kv * d_v] */
    struct gr_ten w;      /* [1, n_tok, n_head * d_k]; absent with SLOPE */
    struct gr_ten w_bias; /* [1, 1, n_head * d_k] f32, optional */
    struct gr_ten first;  /* [1, 1, n_head * d_k] f32, optional: y sees S before this token, and
                             this much of it */
    struct gr_ten erase, rate; /* [1, n_tok, n_head * d_k], optional, both or none */
    struct gr_ten src, dst;    /* [1, 1, n_seq] i32, step block */
    struct gr_ten state;       /* [1, n_row, n_head * d_k * d_v] f32: [n_head][d_k][d_v] */
    struct gr_ten y;           /* [1, n_tok, n_head * d_v] */
    int64_t n_head, n_head_kv;
    float scale, slope;
    int32_t decay; /* enum gr_decay_kind */
    int32_t rest;
};

struct gr_args_token_shift {
    struct gr_ten x;        /* [1, n_tok, n] */
    struct gr_ten src, dst; /* [1, 1, n_seq] i32, step block */
    struct gr_ten state;    /* [1, n_row, n] f32 */
    struct gr_ten y;        /* [1, n_tok, n], not x */
};

/* One step of a softmax over several sources of a row. stat: the largest s so far, m, and the sum
 * of exp(s - m); y still lacks the factor exp(m). */
struct gr_args_blend {
    struct gr_ten x;      /* [1, n_tok, n] */
    struct gr_ten w;      /* [1, 1, n] f32 */
    struct gr_ten acc;    /* [1, n_tok, n], absent at the first source */
    struct gr_ten stat;   /* [1, n_tok, 2], absent with acc */
    struct gr_ten y;      /* [1, n_tok, n]; may be acc */
    struct gr_ten stat_y; /* [1, n_tok, 2]; may be stat */
    float eps;            /* of the root mean square */
    int32_t last;         /* y is divided by the sum */
};

struct gr_args_sample {
    struct gr_ten logits; /* [1, n_out, n_vocab], n_vocab at most GR_SAMPLE_VOCAB */
    struct gr_ten rows;   /* [1, n_out, GR_SAMPLE_WORDS] i32, step block: struct gr_sample_row */
    struct gr_ten edits;  /* [1, n, GR_SAMPLE_EDIT_WORDS] i32, step block: struct gr_sample_edit */
    struct gr_ten masks;  /* [1, n, gr_sample_mask_words] i32, step block; both may be absent */
    struct gr_ten ids;    /* [1, 1, n_out] i32 */
};

/* One node of a plan. */
struct gr_node {
    enum gr_op op;
    int32_t layer;  /* -1 outside the layers */
    int32_t device; /* index in the session's list of the device that runs it, 0 = the CPU; backends
                       ignore it */
    int32_t stage;  /* stage of the pipeline that runs it; backends ignore it */
    uint32_t ends;  /* bit i: the value of operand i, in the order of op.def, is read by no later
                       node, so that one that makes it together with this node need not store it */
    bool by_row;    /* the bits of each row of the result must be those of the row alone, however
                       many rows there are */
    union {
#define OP(NAME, args, operands, meaning) struct gr_args_##args args;
#include "gr/op.def"
#undef OP
    } a;
};

/* Use of a tensor by a node; generated from op.def, terminated by role 0. */
enum gr_role { GR_ROLE_END, GR_ROLE_IN, GR_ROLE_OUT, GR_ROLE_INOUT };
struct gr_operand {
    const char *name;
    uint32_t offset; /* of the struct gr_ten in union a */
    enum gr_role role;
};

struct gr_op_info {
    const char *name; /* lower case, for example "kv_store" */
    const char *meaning;
    const struct gr_operand *operands;
};

const struct gr_op_info *gr_op_info(enum gr_op op);

/* Bytes that a node moves, each operand once. Of a table, cache or state only rows that the node
 * can name count: one for each token, list item, row to copy, sequence or chosen expert. */
int64_t gr_node_bytes(const struct gr_node *n);
/* The same for an ATTN node in a step with these spans, [n_tok][3] on the host: of lists and
 * caches the items that tokens see, once for neighbours that share a span. */
int64_t gr_attn_bytes(const struct gr_node *n, const int32_t *span);

static inline struct gr_ten *gr_node_ten(struct gr_node *n, const struct gr_operand *o)
{
    return (struct gr_ten *)(void *)((char *)&n->a + o->offset);
}

/* ALiBi slope of head h (0-based) of n_head: with n2 the largest power of two <= n_head,
 * 2^(-max * (h + 1) / n2) for h < n2, else 2^(-max / 2 * (2 (h - n2) + 1) / n2). Press et al. */
float gr_alibi_slope(float max_alibi, int64_t n_head, int64_t h);

#ifdef __cplusplus
}
#endif
#endif
