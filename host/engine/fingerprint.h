/* Fingerprint of a saved state: lines "name: value" of everything that must agree for stored keys,
 * values and states to be valid: the model, its adapters, the types of K and V, RoPE, Self-Extend's
 * factor and window. Sizes of caches, pools and devices are not part of it. */
#ifndef GR_ENGINE_FINGERPRINT_H
#define GR_ENGINE_FINGERPRINT_H

#include "engine/session.h"

#define GR_FINGERPRINT_MAX 2048

/* Hash of the model's file: its metadata (except how the file is split), the names, types and
 * shapes of all tensors, and some bytes of each. GR_E_IO when the file can no longer be read. */
int gr_model_hash(const struct gr_model *m, char hex[33]);
int gr_gguf_hash(const struct gr_gguf *g, char hex[33]);
/* Hash of the model's control vectors as they count; returns 0: it has none. */
int gr_control_hash(const struct gr_model *m, char hex[33]);
/* Writes a session's fingerprint, zero-terminated; gr_model_hash stands for the weights. */
int gr_fingerprint(struct gr_session *s, char text[GR_FINGERPRINT_MAX]);

/* Returns 0 when the n bytes of `found` are the lines `expected`; otherwise GR_E_INVALID naming the
 * first line that differs. name: of the state, for the message. */
int gr_fingerprint_check(const char *name, const char *expected, const char *found, size_t n);

#endif
