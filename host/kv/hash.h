/* Hashes of the tables of cells; equal on all ranks that have made the same decisions. */
#ifndef GR_KV_HASH_H
#define GR_KV_HASH_H

#include <stddef.h>
#include <stdint.h>

struct gr_kv;
struct gr_rs;

/* Continues a hash with n bytes. */
uint64_t gr_hash_bytes(uint64_t hash, const void *p, size_t n);
/* Continue a hash with everything that later decisions depend on: used cells with their positions,
 * shifts and sequences, each sequence's index, where searches begin, evicted positions. Leftovers
 * in free cells are excluded. */
uint64_t gr_kv_hash(const struct gr_kv *kv, uint64_t hash);
uint64_t gr_rs_hash(const struct gr_rs *rs, uint64_t hash);

#endif
