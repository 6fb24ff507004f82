/* A backend executes plans on one device and owns that device's memory. host/ knows backends
 * through this table only; host/cpu and cuda each supply one. Calls come from one thread at once.
 */
#ifndef GR_BACKEND_H
#define GR_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "gr/op.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gr_backend;

/* Called after a node has run, with its finished output `t` readable on the host. */
typedef void gr_tap_fn(const char *name, int layer, const struct gr_ten *t, void *user);

struct gr_tap {
    int32_t node;     /* index in the segment */
    const char *name; /* for example "attn_out" */
    int32_t layer;
    struct gr_ten ten; /* resolved */
};

/* A run of nodes for one device, memory already assigned. */
struct gr_segment {
    const struct gr_node *node;
    int32_t n_node;
    const struct gr_tap *tap; /* ascending by node */
    int32_t n_tap;
};

struct gr_backend_api {
    const char *name; /* "CPU", "CUDA0" */
    /* Device memory aligned to 256 bytes, zero-filled; NULL with GR_E_NOMEM_* said. */
    void *(*alloc)(struct gr_backend *b, size_t bytes);
    void (*free)(struct gr_backend *b, void *p);
    int (*upload)(struct gr_backend *b, void *dst, const void *src, size_t bytes);
    int (*download)(struct gr_backend *b, void *dst, const void *src, size_t bytes);
    /* Whether `p` of host memory can be used in place as weights (the CPU: yes, for a mapped file).
     */
    int (*can_borrow)(struct gr_backend *b);
    /* Makes a segment ready (scratch memory, captured graph); *exec is freed by segment_free. */
    int (*segment_new)(struct gr_backend *b, const struct gr_segment *s, void **exec);
    /* Runs it; with tap_fn set, node by node, calling it for each tap. */
    int (*segment_run)(struct gr_backend *b, void *exec, gr_tap_fn *tap_fn, void *user);
    void (*segment_free)(struct gr_backend *b, void **exec);
    void (*close)(struct gr_backend **b);
};

struct gr_backend {
    const struct gr_backend_api *api;
};

#ifdef __cplusplus
}
#endif
#endif
