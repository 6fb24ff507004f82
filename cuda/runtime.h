/* The parts of a backend: what they share, and what they ask of each other. */
#ifndef CUDA_RUNTIME_H
#define CUDA_RUNTIME_H

#include "cuda/device.h"
#include "gr/backend.h"

/* ---- staging: pinned host memory in slots, taken in turn ---- */

struct gr_cuda_ring {
    char *host; /* n slots of slot_bytes; NULL: not there yet */
    size_t slot_bytes;
    int n, next;
    cu_event copied[4]; /* recorded behind each slot's last copy */
};

/* ---- a segment, noted ---- */

/* A kernel, or with `plan` a product by a library. */
struct gr_cuda_launch {
    const struct gr_cuda_kernel *kernel;
    struct gr_grid grid;
    uint32_t n_block; /* of a cluster along x; 1 or 0: no clusters */
    uint32_t threads, smem;
    const struct gr_product_plan *plan;
    size_t args; /* in the notes' bytes */
};

struct gr_cuda_notes {
    struct gr_vec launch; /* struct gr_cuda_launch */
    struct gr_vec args;   /* bytes; each launch's begin at a multiple of 64 */
};

/* Bytes of scratch memory of a segment: for what is derived, and for a node's own. */
struct gr_cuda_need {
    size_t derived, node;
};

struct gr_cuda_exec {
    struct gr_node *node;
    int n_node;
    struct gr_tap *tap;
    int n_tap;
    struct gr_cuda_notes notes;
    int32_t *first; /* [n_node + 1] launch that each node begins with */
    struct gr_cuda_need need;
    uint64_t noted;      /* the scratch's turn that it was noted for, 0 = not yet */
    bool alone;          /* noted without fusions */
    bool ran;            /* launched once since it was noted */
    bool no_graph;       /* there was no memory for one */
    cu_graph_exec graph; /* made by the second run */
};

/* ---- a backend ---- */

struct gr_cuda_loader;
struct gr_cuda_offloader;
struct gr_cuda_products;

struct gr_cuda_backend {
    struct gr_backend base;
    const struct gr_cuda_driver *cu;
    const char *name; /* the device's; messages begin with it */
    struct gr_cuda_device *device;
    struct gr_device_opt opt;
    cu_stream stream;
    int lost; /* the first error that ended it, and its text */
    char lost_text[1024];
    struct gr_vec pinned;     /* struct pinned: memory of host_alloc */
    cu_event uploaded;        /* recorded behind the last copy from it */
    struct gr_cuda_ring ring; /* for uploads from other memory */
    cu_pointer counters;      /* u32 [GR_LAUNCH_COUNTERS] (launch.h) */
    cu_pointer scratch;
    size_t scratch_bytes;
    uint64_t scratch_turn;               /* counts its pieces, from 1 */
    bool no_early;                       /* no early launches: unwanted, or no graphs of them */
    struct gr_cuda_loader *loader;       /* while weights are uploaded */
    struct gr_cuda_offloader *offloader; /* NULL: no weights are offloaded */
    struct gr_cuda_products *products;   /* NULL: no products by a library */
    const _Atomic int *cancel;
    gr_time_fn *time_fn;
    void *time_user;
    struct gr_vec event; /* cu_event: of timed nodes */
};

int gr_cuda_open(struct gr_backend **out, int i, const struct gr_device_opt *opt);

static inline struct gr_cuda_backend *gr_cuda_of(struct gr_backend *b)
{
    return (struct gr_cuda_backend *)(void *)b;
}

/* gr_cuda_enter begins every call of the table: it makes the context current for a visit, or
 * returns the error that the backend was lost by. gr_cuda_leave ends a call that queues work or
 * waits for it: an error of the device is remembered for ever, as what has been done is unknown. A
 * call that only makes, frees or switches something loses nothing by failing: a dead context fails
 * the next call as well. */
int gr_cuda_enter(struct gr_cuda_backend *c, struct gr_cuda_visit *v);
int gr_cuda_leave(struct gr_cuda_backend *c, int rc);

/* Allocates device memory, aligned to 256. */
int gr_cuda_alloc(struct gr_cuda_backend *c, size_t bytes, cu_pointer *p);

/* Replaces the piece of scratch memory by a larger one: the old one is freed first, so that both
 * need not fit. When the new one cannot be had, each segment asks again for what it needs. */
int gr_cuda_scratch_grow(struct gr_cuda_backend *c, size_t bytes);
/* Gives back scratch memory; nothing is queued. */
void gr_cuda_scratch_free(struct gr_cuda_backend *c);

/* Makes n slots (at most 4) of slot_bytes, for copies on `stream`. */
int gr_cuda_ring_new(struct gr_cuda_backend *c, struct gr_cuda_ring *r, cu_stream stream, int n,
                     size_t slot_bytes);
void gr_cuda_ring_free(struct gr_cuda_backend *c, struct gr_cuda_ring *r);
/* Returns the next slot, once its last copy is done; record copied[*slot] behind its next copy. */
int gr_cuda_ring_next(struct gr_cuda_backend *c, struct gr_cuda_ring *r, int *slot, char **host);

/* Measures the scratch memory that nodes need; addresses are not looked at. */
int gr_cuda_measure(struct gr_cuda_backend *c, const struct gr_node *node, int n_node,
                    struct gr_cuda_need *need);
/* Notes a segment that has been measured, with the backend's scratch. */
int gr_cuda_note(struct gr_cuda_backend *c, struct gr_cuda_exec *e);
/* Notes the launch of gr_cuda_pack. */
int gr_cuda_note_pack(struct gr_cuda_backend *c, struct gr_cuda_notes *notes,
                      const struct gr_ten *rows, struct gr_ten *packed);
/* Adds a launch, with a copy of its arguments. */
int gr_cuda_notes_add(struct gr_cuda_notes *n, const struct gr_cuda_launch *launch,
                      const void *args, size_t args_bytes);
void gr_cuda_notes_fini(struct gr_cuda_notes *n);
/* Queues launches [lo, hi) on a stream. All but the first may begin before the one in front of them
 * is over: each waits for it by itself (kernels/ptx.cuh). */
int gr_cuda_launch_range(struct gr_cuda_backend *c, cu_stream stream, const struct gr_cuda_notes *n,
                         size_t lo, size_t hi);

/* ---- products by a library (product.c) ---- */

/* The operands of a noted product. */
struct gr_cuda_product {
    const void *w, *x;
    float *y;
    void *workspace;
};
/* Opens cuBLASLt where the backend's options want it: when it is asked for and cannot be had this
 * fails, otherwise c->products stays NULL. The context is current. */
int gr_cuda_products_open(struct gr_cuda_backend *c);
/* Ends it with all its plans; nothing that uses them is queued. */
void gr_cuda_products_close(struct gr_cuda_backend *c);
/* Queues a product on a stream. */
int gr_cuda_product_run(struct gr_cuda_backend *c, cu_stream stream,
                        const struct gr_product_plan *plan, const struct gr_cuda_product *p);

size_t gr_cuda_segment_scratch(struct gr_backend *b, const struct gr_segment *s,
                               const struct gr_device_opt *opt);
int gr_cuda_segment_new(struct gr_backend *b, const struct gr_segment *s, void **exec);
int gr_cuda_segment_run(struct gr_backend *b, void *exec, gr_tap_fn *tap_fn, void *user);
void gr_cuda_segment_free(struct gr_backend *b, void **exec);

/* Makes events for the clock until there are n. */
int gr_cuda_events_init(struct gr_cuda_backend *c, size_t n);
/* Runs a noted segment node by node with the clock, of n_node + 1 events, and tells c->time_fn. */
int gr_cuda_run_timed(struct gr_cuda_backend *c, const struct gr_cuda_exec *e);
void gr_cuda_events_fini(struct gr_cuda_backend *c);

/* Bytes of the pieces in which weights travel: tests make it small. */
extern size_t gr_cuda_load_slot;

size_t gr_cuda_weight_bytes(struct gr_backend *b, const struct gr_ten *host, bool matrix);
int gr_cuda_weight_upload(struct gr_backend *b, const struct gr_ten *host, bool matrix, void *dst,
                          struct gr_ten *out);
int gr_cuda_offload(struct gr_backend *b, const struct gr_ten *host, bool matrix, void *dst,
                    bool last);
int gr_cuda_offload_wait(struct gr_backend *b);
void gr_cuda_offload_end(struct gr_backend *b);
size_t gr_cuda_offload_bytes(struct gr_backend *b);
double gr_cuda_offload_rate(struct gr_backend *b);
/* Makes the context current, of a lost backend too, and waits for queued work and for weights on
 * their way, before memory that they may use is freed. Errors do not matter: what a lost context
 * holds is freed with it. */
void gr_cuda_settle(struct gr_cuda_backend *c, struct gr_cuda_visit *v);
/* Waits for all offloaded weights that have been asked for. */
int gr_cuda_offload_sync(struct gr_cuda_backend *c);
/* Ends the thread and frees its memory; nothing is under way. */
void gr_cuda_offloader_free(struct gr_cuda_backend *c);

#endif
