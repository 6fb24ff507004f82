/* API keys: who may ask. Only their SHA-256 is kept. */
#ifndef GR_TOOLS_KEYS_H
#define GR_TOOLS_KEYS_H

#include <stdint.h>

struct gr_options;
struct gr_keys;

/* Reads the keys of --api-key, its variables and --api-key-file; *out is NULL when there are none.
 * 0 or an exit code, after printing the error. */
int gr_keys_open(struct gr_keys **out, const struct gr_options *o);
void gr_keys_close(struct gr_keys **k);
/* Returns the number of a key, which is the same in every run; 0: it is none of them. Takes the
 * same time for all keys of a length. */
uint64_t gr_keys_find(const struct gr_keys *k, const char *key);

#endif
