/* A model file written anew: each tensor as a type and into a part of its own choice. Quantising,
 * splitting and merging are this. */
#ifndef GR_QUANT_REWRITE_H
#define GR_QUANT_REWRITE_H

#include "base/progress.h"
#include "gguf/gguf.h"
#include "gpurun.h"
#include "quant/imatrix.h"

struct gr_rewrite {
    const struct gr_gguf *in;
    const char *out; /* path; of several parts what their names begin with */
    uint32_t *type;  /* [n_tensor] */
    uint32_t *part;  /* [n_tensor] ascending, 0 .. n_part - 1; NULL: one file */
    uint32_t n_part;
    const struct gr_imatrix *imatrix; /* or NULL */
    bool dry_run, overwrite;
    int32_t n_threads;
    struct gr_progress progress; /* bytes of tensors of `in`; of nothing in a dry run */
    /* Sets keys of the first part besides those of `in`; NULL = none. */
    int (*set_keys)(struct gr_gguf_writer *w, const void *user);
    const void *user;
};

/* Allocates type and part, of the types and the parts that the file has; gr_rewrite_fini frees
 * them. */
int gr_rewrite_init(struct gr_rewrite *r, const struct gr_gguf *in, const char *out);
void gr_rewrite_fini(struct gr_rewrite *r);

/* Writes all of it or, on failure, nothing. */
int gr_rewrite_run(struct gr_rewrite *r);

#endif
