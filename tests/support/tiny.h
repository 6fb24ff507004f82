/* Tiny random models of any architecture, made from its own table of tensors. */
#ifndef TESTS_SUPPORT_TINY_H
#define TESTS_SUPPORT_TINY_H

#include "cpu/cpu.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "registry/registry.h"

struct tiny {
    const struct gr_arch *arch;
    uint64_t seed;
    int n_layer, n_embd, n_head, n_head_kv, d_head, n_ff, n_vocab, n_ctx, n_expert, n_swa;
    int d_v, n_rot;                        /* 0 = d_head */
    const int32_t *heads, *heads_kv, *ffs; /* of each layer; NULL = all alike */
    int first_expert;  /* layers from here on have experts, where the table leaves it open */
    bool fused;        /* Q, K and V in one matrix */
    const char *dtype; /* of the matrices; NULL = f32 */
    bool scaled;       /* factors beside matrices */
    bool as_f32;       /* the matrices' numbers are those of dtype, stored as f32 */
    bool zeros;        /* all weights are 0, which is quick to write */
    /* Planted faults, by index in the list of tensors; -1 = none. */
    int drop, reshape;
    bool no_optional; /* leave out what may be left out */
    const char *dir;  /* of the file; NULL = one in memory, or /tmp */
    /* Changes metadata after it was written; NULL = none. */
    void (*edit)(struct gr_gguf_writer *w, const struct tiny *t);
};

/* 2 layers, 64 wide, 4 heads of 16 on 2 KV heads, 96 tokens, 3 experts where there are any. */
struct tiny tiny_default(const struct gr_arch *arch);

/* n layers, or the fewest that the architecture can have. */
void tiny_set_layers(struct tiny *t, int n);

/* Writes the model to a file of its own and returns its name, valid until the next call; the name
 * of the tensor that was dropped or reshaped goes to *broken when it is not NULL. Fails the test on
 * any error. */
const char *tiny_write(const struct tiny *t, char *broken);
/* Number of tensors that tiny_write makes, and whether the i-th is required. */
int tiny_n_tensor(const struct tiny *t);
bool tiny_required(const struct tiny *t, int i);
/* True when its table has a weight, and when every layer must have experts. */
bool tiny_has(const struct gr_arch *a, enum gr_slot slot);
bool tiny_needs_experts(const struct gr_arch *a);
/* True when ranks can share its layers: not without matrices to divide, nor with norms over the
 * heads of all ranks, nor with a table that all heads read. */
bool tiny_can_be_split(const struct gr_arch *a);

/* Opens a model and a session on it, or fails the test. With an encoder sequence 0 has a text. */
struct gr_model *tiny_open(const struct tiny *t);
struct gr_session *tiny_session(struct gr_model *m, const struct gr_session_params *p);

/* The same with one thread at a CPU level that this processor has. */
struct gr_session *tiny_session_at(struct gr_model *m, enum gr_cpu_level level,
                                   const struct gr_session_params *p);
/* Gives sequence 0 of a model with an encoder its text again; nothing without one. tiny_try_encode
 * returns a status. */
void tiny_encode(struct gr_session *s);
int tiny_try_encode(struct gr_session *s);
/* Output of the last batch for token i: logits or, of a model without, as many of its vector. */
const float *tiny_row(const struct gr_session *s, int32_t i);
/* True when positions are part of the stored keys and values, which then cannot be moved. */
bool tiny_learned_positions(const struct gr_model *m);
/* True when it has recurrent layers: their state of a sequence cannot be changed in parts. */
bool tiny_keeps_states(const struct gr_model *m);

/* sum (a - b)^2 / sum a^2; the sum of squares itself where a is 0 */
double tiny_nmse(const float *a, const float *b, size_t n);

#endif
