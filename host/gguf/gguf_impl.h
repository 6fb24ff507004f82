/* Internals of an open GGUF file, private to the files of this folder. */
#ifndef GR_GGUF_GGUF_IMPL_H
#define GR_GGUF_GGUF_IMPL_H

#include <stdio.h>

#include "base/alloc.h"
#include "gguf/gguf.h"
#include "gguf/reader.h"

/* One file: the whole model, or one part of a split one. */
struct gr_gguf_part {
    struct gr_file file; /* zeros when the model is in memory */
    struct gr_rd rd;     /* holds the metadata */
    const uint8_t *base; /* the whole file, mapped or in memory, or NULL */
    uint32_t version;
    uint64_t n_kv, n_tensor, meta_bytes;
    uint64_t alignment, data_offset;
    struct gr_gguf_kv *kv; /* [n_kv] in file order */
    uint32_t *kv_order;    /* [n_kv] indices sorted by key */
};

struct gr_gguf {
    uint32_t n_part;
    struct gr_gguf_part **part; /* [n_part], allocated one by one, since readers point into them */
    uint64_t n_tensor;
    struct gr_gguf_tensor *tensor; /* [n_tensor] in order of parts and files */
    uint32_t *tensor_order;        /* [n_tensor] indices sorted by name */
    struct gr_vec owned;           /* char *: keys and values that gr_gguf_override made */
};

/* Opens the file and loads it. */
int gr_gguf_part_open(struct gr_gguf_part *p, const char *path, bool mapped);
/* Checks the structure of a part whose reader is open, reads its keys, and leaves the reader at the
 * tensor table. */
int gr_gguf_part_load(struct gr_gguf_part *p);
/* Reads the tensor table to t [n_tensor], with offsets in the file. */
int gr_gguf_part_tensors(struct gr_gguf_part *p, struct gr_gguf_tensor *t);
const struct gr_gguf_kv *gr_gguf_part_find(const struct gr_gguf_part *p, const char *key);

/* Reads an integer key of the part to *out; GR_E_CORRUPT unless it is in [lo, hi]. `want` describes
 * it in the message. */
int gr_gguf_part_int(const struct gr_gguf_part *p, const char *key, const char *want, int64_t lo,
                     int64_t hi, int64_t *out);

/* Opens the other parts of a file whose first part is g->part[0]; does nothing for an unsplit
 * file. */
int gr_gguf_split_open(struct gr_gguf *g, bool mapped);

/* Checks the metadata meta[0, n), tensor table included, of a file that will be `size` bytes long,
 * as opening the file would. GR_E_INVALID when it would be refused. */
int gr_gguf_check_meta(const void *meta, size_t n, uint64_t size, const char *name);

/* Prints the model as gr_inspect of gpurun.h does. */
int gr_gguf_print(const struct gr_gguf *g, FILE *out, bool json);

/* Compares by bytes, then by length: negative, 0 or positive, like memcmp. */
int gr_str_compare(struct gr_str a, struct gr_str b);

#endif
