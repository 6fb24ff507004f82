/* Orders: what ranks tell each other about sessions, as structs, and as bytes in the body of a
 * frame (link/link.h). Activations are not among it.
 *
 * The bytes: each field in turn, a number as 8 bytes, an array as 8 bytes with the number of its
 * items and the items, filled up to 8 bytes. All ranks run the same build on machines of the same
 * byte order (they compare versions when they meet). What is read is checked against its bounds;
 * what it means is checked by who acts on it. */
#ifndef GR_ENGINE_ORDER_H
#define GR_ENGINE_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "engine/times.h"
#include "gr/sample.h"

/* FIELD(type, name): a number of 4 or 8 bytes. ARRAY(type, name): items of any size. */

/* struct gr_session_params; types of K and V by name, none = the default. */
#define GR_ORDER_OPEN(FIELD, ARRAY)                                                                \
    FIELD(uint32_t, n_ctx)                                                                         \
    FIELD(uint32_t, n_batch)                                                                       \
    FIELD(uint32_t, n_ubatch)                                                                      \
    FIELD(uint32_t, n_seq_max)                                                                     \
    FIELD(uint32_t, kv_unified)                                                                    \
    FIELD(uint32_t, swa_full)                                                                      \
    FIELD(uint32_t, n_rollback)                                                                    \
    FIELD(int32_t, n_threads)                                                                      \
    FIELD(int32_t, n_threads_batch)                                                                \
    FIELD(int32_t, rope_scaling)                                                                   \
    FIELD(float, rope_freq_base)                                                                   \
    FIELD(float, rope_freq_scale)                                                                  \
    FIELD(float, yarn_ext_factor)                                                                  \
    FIELD(float, yarn_attn_factor)                                                                 \
    FIELD(float, yarn_beta_fast)                                                                   \
    FIELD(float, yarn_beta_slow)                                                                   \
    FIELD(uint32_t, yarn_orig_ctx)                                                                 \
    FIELD(uint32_t, kv_contiguous)                                                                 \
    FIELD(int32_t, group_n)                                                                        \
    FIELD(int32_t, group_w)                                                                        \
    FIELD(uint32_t, embeddings)                                                                    \
    FIELD(int32_t, pooling)                                                                        \
    FIELD(uint32_t, no_kv_offload)                                                                 \
    FIELD(int32_t, offload_from)                                                                   \
    FIELD(uint32_t, no_graphs)                                                                     \
    FIELD(uint32_t, nvtx)                                                                          \
    FIELD(uint32_t, no_pdl)                                                                        \
    FIELD(uint32_t, no_sm90)                                                                       \
    FIELD(uint32_t, no_fuse)                                                                       \
    FIELD(uint32_t, check_counters)                                                                \
    ARRAY(float, adapter_scale)                                                                    \
    ARRAY(char, type_k)                                                                            \
    ARRAY(char, type_v)

/* struct gr_batch. table: hash of all of rank 0's cells (gr_cache_table_hash), 0 = not compared
 * this time. encode: the batch is for the encoder. embd: [n_tok][n_embd] in place of tokens, which
 * are 0 then, or nothing. pos_yx: [2][n_tok] or nothing. how: of each row of logits, when tokens
 * are drawn. */
#define GR_ORDER_DECODE(FIELD, ARRAY)                                                              \
    FIELD(uint64_t, table)                                                                         \
    FIELD(uint32_t, encode)                                                                        \
    ARRAY(int32_t, token)                                                                          \
    ARRAY(float, embd)                                                                             \
    ARRAY(int32_t, pos)                                                                            \
    ARRAY(int32_t, pos_yx)                                                                         \
    ARRAY(int32_t, n_seq)                                                                          \
    ARRAY(int32_t, seq)                                                                            \
    ARRAY(int8_t, logits)                                                                          \
    ARRAY(struct gr_sample_how, how)

/* struct gr_kv_op. */
#define GR_ORDER_OP(FIELD, ARRAY)                                                                  \
    FIELD(int32_t, kind)                                                                           \
    FIELD(int32_t, seq)                                                                            \
    FIELD(int32_t, dst)                                                                            \
    FIELD(int32_t, p0)                                                                             \
    FIELD(int32_t, p1)                                                                             \
    FIELD(int32_t, by)

/* tensor: of the session's, [GR_N_CACHE_TENSOR][n_layer]. Rows in the order of `cell`; only the
 * rank (those that share its layer) that has the tensor answers, with ROWS, or acts. */
#define GR_ORDER_GET(FIELD, ARRAY)                                                                 \
    FIELD(uint32_t, tensor)                                                                        \
    ARRAY(int32_t, cell)
#define GR_ORDER_PUT(FIELD, ARRAY)                                                                 \
    FIELD(uint32_t, tensor)                                                                        \
    ARRAY(int32_t, cell)                                                                           \
    ARRAY(char, rows)

/* Blocks as in kv/state.h, for sequence seq (-1: of all). table: hash of all cells afterwards. */
#define GR_ORDER_RESTORE(FIELD, ARRAY)                                                             \
    FIELD(int32_t, seq)                                                                            \
    FIELD(uint64_t, table)                                                                         \
    ARRAY(char, full)                                                                              \
    ARRAY(char, swa)                                                                               \
    ARRAY(char, states)

#define GR_ORDER_PROFILE(FIELD, ARRAY) FIELD(uint32_t, on)

/* gr_spots_survey (engine/spots.h). params: the bytes of an OPEN, or nothing; stage, device: as in
 * LOAD, or nothing. */
#define GR_ORDER_SURVEY(FIELD, ARRAY)                                                              \
    FIELD(int32_t, n_stage)                                                                        \
    FIELD(int32_t, n_shard)                                                                        \
    ARRAY(char, params)                                                                            \
    ARRAY(uint8_t, stage)                                                                          \
    ARRAY(uint8_t, device)

/* struct gr_transport_ticket; which ranks are members [n_rank], or nothing: all leave. */
#define GR_ORDER_JOIN(FIELD, ARRAY)                                                                \
    ARRAY(char, ticket)                                                                            \
    ARRAY(uint8_t, member)

/* Of each layer [n_layer + 1], the output last: its stage, and the device of the ranks there. */
#define GR_ORDER_LOAD(FIELD, ARRAY)                                                                \
    FIELD(int32_t, n_stage)                                                                        \
    FIELD(int32_t, n_shard)                                                                        \
    ARRAY(uint8_t, stage)                                                                          \
    ARRAY(uint8_t, device)

/* status 0 or an error with its message. now_ns: of the rank's clock. */
#define GR_ORDER_DONE(FIELD, ARRAY)                                                                \
    FIELD(int32_t, status)                                                                         \
    FIELD(int64_t, now_ns)                                                                         \
    ARRAY(char, text)

/* Lines "name: value" of all that must be the same on every rank. */
#define GR_ORDER_RANK(FIELD, ARRAY)                                                                \
    FIELD(uint32_t, transports)                                                                    \
    ARRAY(char, facts)

/* Spans, which are forgotten then, are wanted too. */
#define GR_ORDER_TIMES(FIELD, ARRAY) FIELD(uint32_t, spans)
#define GR_ORDER_SPENT(FIELD, ARRAY)                                                               \
    FIELD(int64_t, busy_ns)                                                                        \
    FIELD(int64_t, wait_ns)                                                                        \
    FIELD(int64_t, transfer_ns)                                                                    \
    FIELD(uint64_t, n_ubatch)                                                                      \
    ARRAY(char, device)                                                                            \
    ARRAY(struct gr_spent_span, span)

enum gr_order_kind {
    GR_ORDER_NONE,
#define ORDER(NAME, name, meaning) GR_ORDER_IS_##NAME,
#define BARE(NAME, meaning) GR_ORDER_IS_##NAME,
#include "engine/order.def"
#undef ORDER
#undef BARE
    GR_N_ORDER
};

#define GR_ORDER_FIELD(type, name) type name;
#define GR_ORDER_ARRAY(type, name)                                                                 \
    struct {                                                                                       \
        const type *p;                                                                             \
        uint64_t n;                                                                                \
    } name;
#define ORDER(NAME, name, meaning)                                                                 \
    struct gr_order_##name {                                                                       \
        GR_ORDER_##NAME(GR_ORDER_FIELD, GR_ORDER_ARRAY)                                            \
    };
#define BARE(NAME, meaning)
#include "engine/order.def"
#undef ORDER
#undef BARE

/* A field of a kind's struct. */
struct gr_order_field {
    const char *name;
    size_t offset, size; /* of an array: bytes of an item */
    bool array;
};

/* "decode"; "?" for what is none. */
const char *gr_order_name(uint32_t kind);
/* The fields of a kind; *n 0 for one that has none, or is none. */
const struct gr_order_field *gr_order_fields(uint32_t kind, int *n);

/* Appends the bytes of an order (NULL: a kind without fields) to a vector of bytes.
 * GR_E_NOMEM_HOST. */
int gr_order_write(struct gr_vec *out, uint32_t kind, const void *order);
/* Fills in the struct of a kind from n bytes, aligned to 8, that arrays then point into.
 * GR_E_CORRUPT when they are not exactly such an order. */
int gr_order_read(void *order, uint32_t kind, const void *bytes, size_t n);

#endif
