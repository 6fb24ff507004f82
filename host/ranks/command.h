/* Commands and answers between ranks, as structs and as the body of a frame (link/link.h).
 *
 * Encoding: each field in turn; a number as 8 bytes, an array as the number of its items in 8 bytes
 * and the items, padded with zeros to a multiple of 8. All ranks run the same build on machines of
 * the same byte order (the handshake compares versions). Reading checks sizes; the executor of a
 * command checks the values. */
#ifndef GR_RANKS_COMMAND_H
#define GR_RANKS_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "engine/times.h"
#include "gr/sample.h"
#include "session_params.h"

/* FIELD(type, name): a number of 4 or 8 bytes. ARRAY(type, name): items of any size. */

/* struct gr_session_params, as ranks/params.c converts it; a type of K and V by name, empty = the
 * default. */
#define GR_COMMAND_FIELDS_OPEN(FIELD, ARRAY) GR_SESSION_PARAMS(GR_COMMAND_FIELD_OPEN, FIELD, ARRAY)
#define GR_COMMAND_FIELD_OPEN(FIELD, ARRAY, KIND, name, ...) GR_COMMAND_##KIND(FIELD, ARRAY, name)
#define GR_COMMAND_U32(FIELD, ARRAY, name) FIELD(uint32_t, name)
#define GR_COMMAND_I32(FIELD, ARRAY, name) FIELD(int32_t, name)
#define GR_COMMAND_BOOL(FIELD, ARRAY, name) FIELD(uint32_t, name)
#define GR_COMMAND_F32(FIELD, ARRAY, name) FIELD(float, name)
#define GR_COMMAND_ENUM(FIELD, ARRAY, name) FIELD(uint32_t, name)
#define GR_COMMAND_TYPE(FIELD, ARRAY, name) ARRAY(char, name)
#define GR_COMMAND_SCALES(FIELD, ARRAY, name) ARRAY(float, name)

/* struct gr_batch. table: hash of all of rank 0's cells (gr_cache_table_hash); 0 = not compared
 * this time. encode: the batch is for the encoder. embd: empty, or [n_tok][n_embd] in place of
 * tokens, which are 0 then. pos_yx: empty or [2][n_tok]. rows, edits, masks: sampling parameters of
 * each row of logits, when devices sample. */
#define GR_COMMAND_FIELDS_DECODE(FIELD, ARRAY)                                                     \
    FIELD(uint64_t, table)                                                                         \
    FIELD(uint32_t, encode)                                                                        \
    ARRAY(int32_t, token)                                                                          \
    ARRAY(float, embd)                                                                             \
    ARRAY(int32_t, pos)                                                                            \
    ARRAY(int32_t, pos_yx)                                                                         \
    ARRAY(int32_t, n_seq)                                                                          \
    ARRAY(int32_t, seq)                                                                            \
    ARRAY(int8_t, logits)                                                                          \
    ARRAY(struct gr_sample_row, rows)                                                              \
    ARRAY(struct gr_sample_edit, edits)                                                            \
    ARRAY(uint32_t, masks)

/* struct gr_kv_op. */
#define GR_COMMAND_FIELDS_OP(FIELD, ARRAY)                                                         \
    FIELD(int32_t, kind)                                                                           \
    FIELD(int32_t, seq)                                                                            \
    FIELD(int32_t, dst)                                                                            \
    FIELD(int32_t, p0)                                                                             \
    FIELD(int32_t, p1)                                                                             \
    FIELD(int32_t, by)

/* tensor: index into the session's [GR_N_CACHE_TENSOR][n_layer]. rows: in the order of `cell`. Sent
 * only to the ranks that hold the tensor (several, one command each, where they share its layer);
 * GET is answered with ROWS. */
#define GR_COMMAND_FIELDS_GET(FIELD, ARRAY)                                                        \
    FIELD(uint32_t, tensor)                                                                        \
    ARRAY(int32_t, cell)
#define GR_COMMAND_FIELDS_PUT(FIELD, ARRAY)                                                        \
    FIELD(uint32_t, tensor)                                                                        \
    ARRAY(int32_t, cell)                                                                           \
    ARRAY(char, rows)

/* Blocks as in kv/state.h, for sequence seq (-1: all). table: hash of all cells afterwards. */
#define GR_COMMAND_FIELDS_RESTORE(FIELD, ARRAY)                                                    \
    FIELD(int32_t, seq)                                                                            \
    FIELD(uint64_t, table)                                                                         \
    ARRAY(char, full)                                                                              \
    ARRAY(char, swa)                                                                               \
    ARRAY(char, states)

#define GR_COMMAND_FIELDS_PROFILE(FIELD, ARRAY) FIELD(uint32_t, on)

/* gr_rank_devices_survey (placement/measure.h). params: an encoded OPEN, or empty; the others: as
 * in LOAD, stage and device empty for the costs of single layers. */
#define GR_COMMAND_FIELDS_SURVEY(FIELD, ARRAY)                                                     \
    FIELD(int32_t, n_stage)                                                                        \
    FIELD(int32_t, n_shard)                                                                        \
    FIELD(int32_t, n_cpu_experts)                                                                  \
    ARRAY(char, params)                                                                            \
    ARRAY(uint8_t, stage)                                                                          \
    ARRAY(uint8_t, device)

/* ticket: struct gr_transport_ticket. member: [n_rank] 1 for ranks that join; empty: all leave. */
#define GR_COMMAND_FIELDS_JOIN(FIELD, ARRAY)                                                       \
    ARRAY(char, ticket)                                                                            \
    ARRAY(uint8_t, member)

/* stage, device: [n_layer + 1], the output layer last: a layer's stage, and its device on the ranks
 * of that stage. */
#define GR_COMMAND_FIELDS_LOAD(FIELD, ARRAY)                                                       \
    FIELD(int32_t, n_stage)                                                                        \
    FIELD(int32_t, n_shard)                                                                        \
    FIELD(int32_t, n_cpu_experts)                                                                  \
    ARRAY(uint8_t, stage)                                                                          \
    ARRAY(uint8_t, device)

/* status: 0, or an error with its message in text. now_ns: time on the rank's clock. */
#define GR_COMMAND_FIELDS_DONE(FIELD, ARRAY)                                                       \
    FIELD(int32_t, status)                                                                         \
    FIELD(int64_t, now_ns)                                                                         \
    ARRAY(char, text)

/* facts: lines "name: value" that must be the same on every rank. transports: bits of the kinds
 * that the rank could join. */
#define GR_COMMAND_FIELDS_RANK(FIELD, ARRAY)                                                       \
    FIELD(uint32_t, transports)                                                                    \
    ARRAY(char, facts)

/* spans: 1 to get the recorded spans too, which the rank then discards. */
#define GR_COMMAND_FIELDS_TIMES(FIELD, ARRAY) FIELD(uint32_t, spans)
#define GR_COMMAND_FIELDS_TIMING(FIELD, ARRAY)                                                     \
    FIELD(int64_t, busy_ns)                                                                        \
    FIELD(int64_t, wait_ns)                                                                        \
    FIELD(int64_t, transfer_ns)                                                                    \
    FIELD(uint64_t, n_ubatch)                                                                      \
    ARRAY(char, device)                                                                            \
    ARRAY(struct gr_timing_span, span)

enum gr_command_kind {
    GR_COMMAND_NONE,
#define COMMAND(NAME, name, meaning) GR_COMMAND_##NAME,
#define BARE(NAME, meaning) GR_COMMAND_##NAME,
#include "ranks/command.def"
#undef COMMAND
#undef BARE
    GR_N_COMMAND
};

#define GR_COMMAND_FIELD(type, name) type name;
#define GR_COMMAND_ARRAY(type, name)                                                               \
    struct {                                                                                       \
        const type *p;                                                                             \
        uint64_t n;                                                                                \
    } name;
#define COMMAND(NAME, name, meaning)                                                               \
    struct gr_command_##name {                                                                     \
        GR_COMMAND_FIELDS_##NAME(GR_COMMAND_FIELD, GR_COMMAND_ARRAY)                               \
    };
#define BARE(NAME, meaning)
#include "ranks/command.def"
#undef COMMAND
#undef BARE

/* A field of the struct of a command kind. */
struct gr_command_field {
    const char *name;
    size_t offset, size; /* of an array: bytes of an item */
    bool array;
};

/* Name of a command kind: "DECODE"; "?" when there is no such kind. */
const char *gr_command_name(uint32_t kind);
/* Returns the fields of a kind; *n = 0 for a kind without fields or an unknown one. */
const struct gr_command_field *gr_command_fields(uint32_t kind, int *n);

/* Appends an encoded command, NULL for a kind without fields, to a vector of bytes. May return
 * GR_E_NOMEM_HOST. */
int gr_command_write(struct gr_vec *out, uint32_t kind, const void *command);
/* Decodes n bytes, aligned to 8, into the struct of a kind; its arrays point into the bytes.
 * GR_E_CORRUPT when they are not exactly such a command. */
int gr_command_read(void *command, uint32_t kind, const void *bytes, size_t n);

#endif
