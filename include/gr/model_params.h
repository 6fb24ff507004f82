/* Parameters of a model: a part of gpurun.h, which includes it. */
#ifndef GR_MODEL_PARAMS_H
#define GR_MODEL_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gr_world;

/* Progress of a long call, reported by the calling thread: `done` of `total`, never decreasing.
 * Returning false cancels the call, which fails with GR_E_CANCELLED. It must not use the model or
 * session of the call. */
typedef bool gr_progress_fn(uint64_t done, uint64_t total, void *user);

/* How ranks (threads or processes, each with its own devices) divide a model: by layers; not at
 * all, one rank has everything; or within each layer, among the ranks of a machine (tensor
 * parallel). */
enum gr_split_mode { GR_SPLIT_MODE_LAYER, GR_SPLIT_MODE_NONE, GR_SPLIT_MODE_TENSOR };

/* LoRA adapter, from a GGUF file of its own. */
struct gr_adapter {
    const char *path;
    float scale; /* default strength in sessions; 1: as trained */
};
#define GR_MAX_ADAPTER 16

/* NUMA placement: none; threads distributed over all nodes, weights moved to the node of the
 * threads that read them; all threads on the node that opens the session; by numactl (as none). */
enum gr_numa { GR_NUMA_NONE, GR_NUMA_DISTRIBUTE, GR_NUMA_ISOLATE, GR_NUMA_NUMACTL };

/* CPU threads. Settings that the system refuses are logged. */
struct gr_thread_params {
    const char *cpus; /* processors as numbers, ranges and masks ("0-3,8,0xF0"); NULL: any */
    bool strict;      /* pin each thread to a processor of its own */
    int32_t prio;     /* -1: low, 0: unchanged (default), 1 to 3: real time */
    int32_t poll;     /* microseconds to poll for other threads before sleeping */
};

/* Matrices kept on a device of their own, apart from their layer: those in whose names the regular
 * expression `pattern` (PCRE2) occurs. The first pattern that matches a name counts. */
struct gr_weight_home {
    const char *pattern;
    const char *device; /* "CPU", or a GPU's name, "CUDA0" */
};
#define GR_MAX_WEIGHT_HOME 4096

struct gr_model_params {
    int32_t n_gpu_layers; /* layers on GPUs: the output layer first, then from the last one
                             backwards; more than the model has: all; -1: as many as fit */
    int32_t main_gpu;     /* GPU of GR_SPLIT_MODE_NONE; -1: the first usable one */
    bool use_mmap;        /* map the file (default), or read all of it now; see gr_in_model_file */
    bool vocab_only;      /* load tokenizer and metadata, no weights */
    bool check_tensors;   /* refuse weights that are not finite */
    bool use_mlock;       /* lock the weights that the CPU reads in memory; a warning is logged
                             where the system does not allow it */
    const char *const *override_kv; /* NULL, or metadata that counts in place of the file's, ending
                                       with NULL: "KEY=TYPE:VALUE", TYPE int, float, bool, str */
    bool require_gpu;               /* fail with GR_E_DEVICE rather than run on the CPU alone */
    const char *device; /* "auto" (or NULL): all usable GPUs (with GR_SPLIT_MODE_NONE: main_gpu), or
                           the CPU without any; "cpu", "none"; "cuda": as auto, but GR_E_DEVICE
                           without a GPU; "CUDA1" or "CUDA0,CUDA1": these, where a repeated name
                           counts as several GPUs that share its memory (for tests). Case is
                           ignored */
    enum gr_split_mode split_mode;
    const char *tensor_split; /* share of the layers of each GPU (or of each rank, without GPUs),
                                 "3,1"; "auto": balance memory; NULL: by free memory */
    int32_t n_rank;  /* threads of this process that are ranks; 0: one for each GPU in use */
    int32_t n_shard; /* ranks that share a layer (GR_SPLIT_MODE_TENSOR); 0: those of a machine */
    struct gr_world *world;            /* NULL: this process alone */
    const struct gr_adapter *adapters; /* [n_adapter], all applied in every session */
    int32_t n_adapter;
    const struct gr_adapter *control_vectors; /* [n_control_vector], at most GR_MAX_ADAPTER: GGUF
                                                 files with vectors direction.N, N from 1 on, which
                                                 are added to the results of layer N, counted from
                                                 0, times the scale */
    int32_t n_control_vector;
    int32_t control_first, control_last;       /* layers in which they count; 0, 0: all */
    const struct gr_weight_home *weight_homes; /* [n_weight_home] */
    int32_t n_weight_home;
    int32_t n_cpu_experts; /* layers, from the first one, whose experts' matrices are on the CPU
                              wherever the layers are; more than the model has: all; -1: with
                              n_gpu_layers = -1 as few as let all layers fit, otherwise 0 */
    const char *cpu_level; /* highest instruction set that the CPU backend uses: "ref" (plain C),
                              "avx2", "avx512" (with BF16 where available), "amx"; GR_E_INVALID
                              where unavailable; "auto" (or NULL): the best available. Results are
                              the same to the bit on all processors with the same level */
    enum gr_numa numa;
    struct gr_thread_params threads, threads_batch; /* for single tokens; for prompts */
    gr_progress_fn *progress; /* NULL: none. Reports bytes of weights, in two passes that each start
                                 at 0: reading or checking in gr_model_open (none for mapped files),
                                 uploading to GPUs in gr_model_load or the first gr_session_open,
                                 for rank 0 */
    void *progress_user;
};

#ifdef __cplusplus
}
#endif

#endif
