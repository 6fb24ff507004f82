/* Sizes of a session's caches: cells, rows and bytes. Worked out here and nowhere else, for the
 * allocation, for the sizes that are shown, and for questions without an allocation. */
#ifndef GR_ENGINE_MEMORY_H
#define GR_ENGINE_MEMORY_H

#include "arch/arch.h"
#include "gpurun.h"
#include "kv/cache.h"

enum gr_cache_tensor { GR_T_K, GR_T_V, GR_T_K_FAR, GR_T_CONV, GR_T_SSM, GR_N_CACHE_TENSOR };

struct gr_memory {
    struct gr_cache_params cache;
    uint32_t n_ctx_seq; /* cells a sequence may have */
    uint32_t n_row;     /* rows of each state tensor */
    uint32_t type_k, type_v;
    int32_t n_layer[GR_N_CACHE_KIND], n_recurrent;      /* layers with a cache of each kind */
    uint64_t bytes[GR_N_CACHE_KIND][GR_N_CACHE_TENSOR]; /* K, V, K_FAR of each kind */
    uint64_t state_bytes, total;
};

/* Bytes in MiB, for messages. */
static inline double gr_to_mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

/* Cells that a sequence may have: its share of n_ctx, rounded up to whole blocks of 256. */
uint32_t gr_memory_ctx_seq(const struct gr_session_params *p);

/* GR_E_INVALID when a parameter is out of range or a head does not hold whole blocks of a type,
 * GR_E_UNSUPPORTED when the model cannot do what is asked, GR_E_TOO_LARGE when the sum overflows.
 * p: with defaults filled in (gr_session_fill). */
int gr_memory_plan(struct gr_memory *m, const struct gr_hparams *hp,
                   const struct gr_session_params *p);

/* Returns whether a layer keeps this tensor; *shape: its rows, columns and type, or zeros. */
bool gr_memory_tensor(const struct gr_memory *m, const struct gr_hparams *hp, int il,
                      enum gr_cache_tensor which, struct gr_ten *shape);

/* Log the sizes of the caches: of all of them, or of the part on one device. */
void gr_memory_log(const struct gr_memory *m);
void gr_memory_log_part(const struct gr_memory *part, const char *where);

#endif
