/* Recorded sessions: a JSON file with a context and a list of operations, for gpurun replay. It is
 * an object with
 *
 *   model    path of the model, relative to the session's folder; -m takes its place
 *   context  n_ctx (256), n_batch (512), n_ubatch (n_batch), n_seq_max (1), type_k and type_v
 *            ("f16"), kv_unified (1; 0: n_ctx / n_seq_max cells for each sequence), swa_full (0),
 *            n_rollback (0: snapshots of recurrent states),
 *            rope_scaling ("none" "linear" "yarn" "longrope"), rope_freq_base, rope_freq_scale,
 *            yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow, yarn_orig_ctx;
 *            self_extend_n and self_extend_w (0, off): Self-Extend by window;
 *            embeddings (0/1), pooling ("none" "mean" "cls" "last" "rank"; default: the model's);
 *            flash_attn (0/1) has no effect here. Refused as unsupported: causal 0
 *   ops      a list, run in order, each an object with "op":
 *            decode    tokens, pos, seq (a list of sequences for each token), logits (0/1 for each)
 *            encode    the same, of models that keep nothing from step to step
 *            seq_rm    seq, p0, p1          seq_add  seq, p0, p1, delta
 *            seq_div   seq, p0, p1, d       seq_cp   src, dst, p0, p1
 *            seq_keep  seq                  clear    (nothing)
 *            state_save slot                state_load slot     (of 16, the whole session)
 *
 * seq_keep looks for other sequences in the pool of cells of the one that is kept, as llama.cpp's
 * does, so that with kv_unified 0 it changes nothing; but of models with recurrent states it drops
 * the others, cells and states. */
#ifndef GR_TOOLS_SESSION_H
#define GR_TOOLS_SESSION_H

#include "gpurun.h"

/* OP(name, up to four integer fields), in the order of the call's arguments. */
#define GR_SESSION_OPS(OP)                                                                         \
    OP(decode, 0, 0, 0, 0)                                                                         \
    OP(encode, 0, 0, 0, 0)                                                                         \
    OP(seq_rm, "seq", "p0", "p1", 0)                                                               \
    OP(seq_add, "seq", "p0", "p1", "delta")                                                        \
    OP(seq_div, "seq", "p0", "p1", "d")                                                            \
    OP(seq_cp, "src", "dst", "p0", "p1")                                                           \
    OP(seq_keep, "seq", 0, 0, 0)                                                                   \
    OP(clear, 0, 0, 0, 0)                                                                          \
    OP(state_save, "slot", 0, 0, 0)                                                                \
    OP(state_load, "slot", 0, 0, 0)

#define GR_SESSION_SLOTS 16

enum gr_op_kind {
#define OP(name, a, b, c, d) GR_OP_##name,
    GR_SESSION_OPS(OP)
#undef OP
        GR_N_OPS
};

struct gr_recorded_op {
    enum gr_op_kind kind;
    int32_t arg[4];
    struct gr_batch batch; /* decode, encode: its arrays lie in `memory` */
    int32_t *memory;
};

struct gr_recording {
    char *model; /* path from where the program runs; NULL = none named */
    struct gr_session_params params;
    char type_k[8], type_v[8]; /* params point here */
    struct gr_recorded_op *op;
    int n_op;
};

/* Reads and checks a whole session file; 0, or an exit code after printing the reason. *r must be
 * freed in both cases, and not moved. */
int gr_recording_read(struct gr_recording *r, const char *path);
void gr_recording_fini(struct gr_recording *r);

#endif
