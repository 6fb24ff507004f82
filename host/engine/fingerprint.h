/* What a saved state belongs to: lines "name: value" of all that must agree for stored keys, values
 * and states to mean the same - the model, the types of K and V, how positions turn, Self-Extend's
 * window. Sizes of caches, streams and devices are not among it. */
#ifndef GR_ENGINE_FINGERPRINT_H
#define GR_ENGINE_FINGERPRINT_H

#include "engine/session.h"

#define GR_FINGERPRINT_MAX 2048

/* A hash of the model's file: its metadata, all tensors' names, types and shapes, and some bytes of
 * each. GR_E_IO when the file cannot be read any more. */
int gr_model_hash(const struct gr_model *m, char hex[33]);
int gr_gguf_hash(const struct gr_gguf *g, char hex[33]);
/* Writes the lines of a session; zero-terminated. The weights are known by gr_model_hash. */
int gr_fingerprint(struct gr_session *s, char text[GR_FINGERPRINT_MAX]);

/* 0 when n bytes of `found` are the lines `expected`; otherwise GR_E_INVALID naming the first line
 * that differs. `name`: of the state, for the message. */
int gr_fingerprint_check(const char *name, const char *expected, const char *found, size_t n);

#endif
