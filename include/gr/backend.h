/* A backend executes plans on one device and owns that device's memory. host/ knows backends
 * through these tables only; host/cpu and cuda each supply one. Calls to one backend come from one
 * thread at once.
 *
 * Work is queued: upload and segment_run may return before it is done, download and sync return
 * after everything queued before them. An error that comes up late is returned by the next call,
 * and by every one after it: the backend is lost then and can only be closed. It is not when a call
 * fails that queues nothing (alloc, host_alloc, segment_new, set_timer, profile). */
#ifndef GR_BACKEND_H
#define GR_BACKEND_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "gr/op.h"
#include "gr/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gr_backend;
struct gr_device_opt;

/* A tensor that a callback may read after a node has run: a named result, the input of a product,
 * or the ids of the matrices that it used. */
enum gr_tap_kind { GR_TAP_RESULT, GR_TAP_IDS, GR_TAP_INPUT };
struct gr_tap {
    int32_t node;     /* index in the segment */
    const char *name; /* for example "attn_out"; of results */
    int32_t layer;
    struct gr_ten ten; /* resolved */
    enum gr_tap_kind kind;
    int32_t weight;         /* enum gr_slot of the matrices, and, with it, */
    int32_t n_matrix, n_in; /* how many there are, of how many columns */
};

/* Called after a node has run, with the tap's tensor as `t`, readable on the host. */
typedef void gr_tap_fn(const struct gr_tap *tap, const struct gr_ten *t, void *user);

/* A run of nodes for one device, memory already assigned. */
struct gr_segment {
    const struct gr_node *node;
    int32_t n_node;
    const struct gr_tap *tap; /* ascending by node */
    int32_t n_tap;
};

/* Time of one node, by the device's clock. */
struct gr_op_time {
    enum gr_op op;
    int32_t layer;
    int64_t start_ns, ns; /* from the beginning of the segment's first node; how long */
    int64_t bytes;        /* moved, each operand once */
    const char *kernel;   /* of its last launch; NULL on the CPU, and where a launch of the node
                             before does this node too: then time and bytes are counted there */
};
typedef void gr_time_fn(const struct gr_op_time *t, void *user);

/* Ranges of work that a profiler shows; the payload is the number after the colon. */
enum gr_range {
    GR_RANGE_LOAD,     /* "load": bytes */
    GR_RANGE_PREFILL,  /* "step/prefill": tokens */
    GR_RANGE_DECODE,   /* "step/decode": tokens */
    GR_RANGE_SAMPLE,   /* "sample": rows */
    GR_RANGE_KV,       /* "kv": cells copied or shifted */
    GR_RANGE_GRAPH,    /* "graph": nodes captured */
    GR_RANGE_ATTN,     /* "layer/attn": layer; with opt.nvtx of 2, and so on */
    GR_RANGE_FFN,      /* "layer/ffn": layer */
    GR_RANGE_SEND,     /* "transport/send": bytes, to the next stage */
    GR_RANGE_RECV,     /* "transport/recv": bytes, from the stage before */
    GR_RANGE_EXCHANGE, /* "transport/exchange": bytes, of all ranks that share a layer */
    GR_N_RANGE
};

#define GR_OFFLOAD_GROUPS 4

struct gr_backend_api {
    const char *name; /* "CPU", "CUDA" */
    /* Device memory aligned to 256 bytes; NULL with the reason said (GR_E_NOMEM_*, GR_E_DEVICE). */
    void *(*alloc)(struct gr_backend *b, size_t bytes);
    void (*free)(struct gr_backend *b, void *p);
    /* Host memory that the device copies from and to without staging; zero-filled. */
    void *(*host_alloc)(struct gr_backend *b, size_t bytes);
    void (*host_free)(struct gr_backend *b, void *p);
    /* Fills device memory with zeros. */
    int (*clear)(struct gr_backend *b, void *dst, size_t bytes);
    /* src may change as soon as upload returns; memory of host_alloc only after uploaded, which
     * waits for uploads and the work before them, or after sync. */
    int (*upload)(struct gr_backend *b, void *dst, const void *src, size_t bytes);
    int (*uploaded)(struct gr_backend *b);
    /* Returns when the bytes are there. collect: they are after the next download or sync. */
    int (*download)(struct gr_backend *b, void *dst, const void *src, size_t bytes);
    int (*collect)(struct gr_backend *b, void *dst, const void *src, size_t bytes);
    int (*sync)(struct gr_backend *b);
    /* Weights. can_borrow: true when host memory can be used in place (the CPU: a mapped file).
     * Where it cannot, weight_bytes says how much device memory (a multiple of 256) a weight takes,
     * and weight_upload takes host's bytes there, in the device's own layout, and describes the
     * result in *out. `matrix`: it is read by MATMUL, MATMUL_ID, HEAD_MATMUL or EMBED; otherwise
     * rows stay as they are. The mapping must stay until the next sync. dst NULL: nothing is moved,
     * *out is described only (data NULL), and host->data is not looked at. */
    int (*can_borrow)(struct gr_backend *b);
    size_t (*weight_bytes)(struct gr_backend *b, const struct gr_ten *host, bool matrix);
    int (*weight_upload)(struct gr_backend *b, const struct gr_ten *host, bool matrix, void *dst,
                         struct gr_ten *out);
    /* Weights that do not stay: as weight_upload (a matrix packed), but by threads of the backend's
     * own beside all that runs. offload asks for one, the next of a group, and waits for nothing;
     * the destination may be in use by what was queued before the group's first was asked for, and
     * by nothing since. What is queued behind offload_wait finds the oldest group there that it was
     * not called for; at most GR_OFFLOAD_GROUPS are under way. sync waits for all of them, and they
     * are forgotten. dst NULL: what offloading needs is made, nothing else; it stays until
     * offload_end, when there are no segments and scratch memory goes as well. offload_bytes: how
     * much device memory it takes, and as much pinned memory. offload_rate: bytes of the file a
     * second that it brings, by what the link and the processors are and not by a measurement: the
     * same each time. NULL: a backend with weights on the host alone. */
    int (*offload)(struct gr_backend *b, const struct gr_ten *host, bool matrix, void *dst,
                   bool last);
    int (*offload_wait)(struct gr_backend *b);
    void (*offload_end)(struct gr_backend *b);
    size_t (*offload_bytes)(struct gr_backend *b);
    double (*offload_rate)(struct gr_backend *b);
    /* Scratch memory that a segment's nodes need on top of what is bound; addresses are not looked
     * at. The backend keeps one piece of the largest size it has met in segment_new. With opt, as
     * a session with these options needs; NULL: with those that it was opened with. */
    size_t (*segment_scratch)(struct gr_backend *b, const struct gr_segment *s,
                              const struct gr_device_opt *opt);
    /* Makes a segment ready (scratch memory, captured graph); *exec is freed by segment_free. *s
     * itself may be freed then. */
    int (*segment_new)(struct gr_backend *b, const struct gr_segment *s, void **exec);
    /* Moves a value (gr_ten.value) of a segment to other memory, `to`, from the next run on. NULL:
     * a backend that cannot. */
    void (*segment_move)(struct gr_backend *b, void *exec, uint32_t value, void *to);
    /* Runs it; with tap_fn set, node by node, calling it for each tap. */
    int (*segment_run)(struct gr_backend *b, void *exec, gr_tap_fn *tap_fn, void *user);
    void (*segment_free)(struct gr_backend *b, void **exec);
    /* From now on, times every node of every segment and tells fn after segment_run; NULL ends it.
     * Graphs are not used meanwhile. */
    int (*set_timer)(struct gr_backend *b, gr_time_fn *fn, void *user);
    /* A flag that another thread may set to end segment_run early with GR_E_CANCELLED; NULL = none.
     */
    void (*set_cancel)(struct gr_backend *b, const _Atomic int *flag);
    /* fn is told by the calling thread during segment_run of every node that has run: how many of
     * the segment have. NULL ends it. NULL: a backend that queues. */
    void (*set_progress)(struct gr_backend *b, void (*fn)(int32_t n_node, void *user), void *user);
    /* Begin and end of a range, for profilers: it holds the work that the calling thread queues
     * between the two. Ranges nest. NULL: the backend has none. */
    void (*range_begin)(struct gr_backend *b, enum gr_range range, uint64_t payload);
    void (*range_end)(struct gr_backend *b);
    /* Has a profiler that waits for it record from now on, or no longer; everything goes on when
     * that fails. NULL: nothing to do. */
    int (*profile)(struct gr_backend *b, bool on);
    /* Joins a transport with this backend's device. Returns when all members have, or the deadline
     * has passed. NULL: a backend without transports. */
    int (*transport_join)(struct gr_backend *b, const struct gr_transport_opt *opt,
                          struct gr_transport **out);
    void (*close)(struct gr_backend **b);
};

struct gr_backend {
    const struct gr_backend_api *api;
};

/* One device that gr_device_kind finds. */
struct gr_device_info {
    char name[16];         /* "CUDA0" */
    char description[128]; /* "NVIDIA H200" */
    char bus_id[32];       /* PCI address */
    uint64_t total_bytes, free_bytes;
    int cc; /* compute capability, 90 for 9.0 */
    int n_sm;
    uint64_t bytes_per_s; /* memory bandwidth as the clocks say, 0 = unknown */
    const char *unusable; /* why it cannot be used, or NULL; lives as long as the process */
};

/* Versions of a kind's driver, as CUDA counts them (12080 is 12.8); 0, "": none, or not known. */
struct gr_kind_versions {
    int driver, compiler,
        needed; /* the one installed; the one that made the kernels; the oldest driver */
    const char *needed_name; /* the vendor's number of that one ("580") */
};

/* Products of many tokens: by the table of shapes, by own kernels, by a library. */
enum gr_device_matmul { GR_DEVICE_MATMUL_AUTO, GR_DEVICE_MATMUL_OWN, GR_DEVICE_MATMUL_LIBRARY };

/* Options of a device in a session. */
struct gr_device_opt {
    enum gr_device_matmul matmul;

    bool no_graphs;      /* launch every kernel by itself */
    int nvtx;            /* 0 off, 1 steps, 2 layers */
    bool no_pdl;         /* no launch begins before the one in front of it is over */
    bool no_sm90;        /* no kernels of files called *_sm90: the general ones instead */
    bool no_fuse;        /* each node by launches of its own */
    bool check_counters; /* after each segment its counters are read back: GR_E_INTERNAL unless
                            zeros */
};

/* Devices of one kind. */
struct gr_device_kind {
    const char *name; /* "CUDA": devices are called CUDA0, CUDA1, .. */
    /* The devices there are. When there are none, *why says so in one line, and *broken whether
     * something is there that does not work (an old driver, no kernels in this build). */
    int (*count)(const char **why, bool *broken);
    /* Facts of device i. Free memory takes a context to ask for: the last one made stays until
     * another device is asked for, or until what is opened on this one next is closed. */
    int (*info)(int i, struct gr_device_info *info);
    /* Versions, with or without devices. NULL: a kind that has none. */
    void (*versions)(struct gr_kind_versions *v);
    int (*open)(struct gr_backend **out, int i, const struct gr_device_opt *opt);
    /* Returns whether GR_DEVICE_MATMUL_LIBRARY is possible in this process. *what: the library, or
     * why there is none, in one line; lives as long as the process. NULL: a kind that has none. */
    bool (*matmul_find)(const char **what);
    /* Returns whether this process can have transports of a kind. *what: what there is
     * ("NCCL 2.28.9"), or why there is none, in one line; lives as long as the process. Needs no
     * device. NULL, as transport_ticket: transports are nothing that this kind has. */
    bool (*transport_find)(enum gr_transport_kind kind, const char **what);
    /* A ticket for one transport; takes no device either. */
    int (*transport_ticket)(enum gr_transport_kind kind, struct gr_transport_ticket *t);
};
extern const struct gr_device_kind gr_cuda_devices;

#ifdef __cplusplus
}
#endif
#endif
