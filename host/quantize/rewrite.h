/* Rewriting a model file, with a chosen type and part for each tensor. Quantising, splitting and
 * merging use it. */
#ifndef GR_QUANTIZE_REWRITE_H
#define GR_QUANTIZE_REWRITE_H

#include "base/progress.h"
#include "gguf/gguf.h"
#include "gpurun.h"
#include "quantize/imatrix.h"

struct gr_rewrite {
    const struct gr_gguf *in;
    const char *out; /* path; prefix of the names when there are several parts */
    uint32_t *type;  /* [n_tensor] */
    uint32_t *part;  /* [n_tensor] ascending, 0 .. n_part - 1; NULL: one file */
    uint32_t n_part;
    const struct gr_imatrix *imatrix; /* or NULL */
    bool dry_run, overwrite;
    int32_t n_threads;
    struct gr_progress progress; /* in bytes of the tensors of `in`; 0 in a dry run */
    /* Sets keys of the first part besides those of `in`; NULL = none. */
    int (*set_keys)(struct gr_gguf_writer *w, const void *user);
    const void *user;
};

/* Allocates type and part (gr_rewrite_fini), initialised to those of the file. */
int gr_rewrite_init(struct gr_rewrite *r, const struct gr_gguf *in, const char *out);
void gr_rewrite_fini(struct gr_rewrite *r);

/* Writes all files or, on failure, none. */
int gr_rewrite_run(struct gr_rewrite *r);

#endif
