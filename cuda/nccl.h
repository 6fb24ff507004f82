/* NCCL as one table of functions, opened at run time: nothing is linked, and a program starts
 * without it. The declarations follow its binary interface (NCCL's user guide, nccl.h 2.28). */
#ifndef CUDA_NCCL_H
#define CUDA_NCCL_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/driver.h"

typedef struct nccl_comm_st *nccl_comm;

struct nccl_id {
    char bytes[128];
};

enum { /* ncclResult_t */
       NCCL_OK = 0,
       NCCL_UNHANDLED_CUDA = 1,
       NCCL_SYSTEM = 2,
       NCCL_INTERNAL = 3,
       NCCL_INVALID_ARGUMENT = 4,
       NCCL_INVALID_USAGE = 5,
       NCCL_REMOTE = 6,
       NCCL_IN_PROGRESS = 7
};
enum { NCCL_BYTES = 1 }; /* ncclDataType_t: ncclUint8 */

/* ncclConfig_t as of 2.27; older versions know a part of it, and `size` and `version` say which. A
 * field that is not set is NCCL_UNSET or NULL. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
    int traffic_class; /* from here on 2.27 */
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas;
};
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_UNSET (-2147483647 - 1)

struct gr_nccl {
#define FN(type, name, symbol, since, params) type(*name) params;
#include "cuda/nccl.def"
#undef FN
};

enum gr_nccl_call {
#define FN(type, name, symbol, since, params) GR_NCCL_##name,
#include "cuda/nccl.def"
#undef FN
    GR_N_NCCL
};

#define GR_NCCL_NEEDED                                                                             \
    21800 /* 2.18: minCTAs, maxCTAs and splitShare, and non-blocking destruction */

/* Opens `library` (which stays open) and fills *nccl; *version as NCCL counts. On failure the
 * message is one line. */
int gr_nccl_load(struct gr_nccl *nccl, const char *library, int *version);

/* The library of this build (gr_cuda_build), loaded once in a process, by any thread. */
struct gr_nccl_state {
    struct gr_nccl nccl;
    int version;    /* 0: it cannot be used */
    char what[512]; /* "NCCL 2.28.9", or why not, in one line */
};
const struct gr_nccl_state *gr_nccl_state(void);

/* The configuration of a rank of a communicator that does not block, with this name (at most 63
 * bytes are used). */
struct nccl_config gr_nccl_config(int version, const char *name);

/* 0 for a call that succeeded or is in progress; otherwise GR_E_PEER_LOST when NCCL says that it
 * was another rank, GR_E_DEVICE for the rest, with the message "object: ncclSend: text; remedy".
 * `comm` may be NULL. */
int gr_nccl_said(const struct gr_nccl *nccl, nccl_comm comm, const char *object,
                 enum gr_nccl_call call, int result);

#endif
