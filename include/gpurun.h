/* gpurun: inference of language models from GGUF files, on NVIDIA GPUs and without any.
 *
 * How to think of it: a *model* is weights and vocabulary, read-only, shared by any number of
 * sessions. A *session* is a KV cache of cells plus what is needed to run batches through the
 * model. A batch is a list of tokens, each with a position and the sequences it belongs to;
 * decoding it stores its keys and values in cells and leaves logits. Sequences share cells: copying
 * one costs nothing, and single tokens can be removed, moved and divided.
 *
 * Errors: functions that can fail return int, 0 or a status (gr/status.h has the codes);
 * gr_error_message() says in one line what was wrong and what helps. A failed call changes nothing.
 * Nothing here exits, aborts or prints.
 *
 * What ends in _close or _free, and gr_free_ids, takes NULL and does nothing then, and so it does
 * for a pointer to NULL; a pointer to what was closed becomes NULL.
 *
 * Threads: one thread at a time for each session; a model may be used by several threads. */
#ifndef GPURUN_H
#define GPURUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gr/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GR_API __attribute__((visibility("default")))
#else
#define GR_API
#endif

/* ---- status, log, version ---- */

GR_API const char *gr_version(void); /* "0.1.0" */
/* Of this thread's last failure, valid until the next one. */
GR_API const char *gr_error_message(void);
GR_API const char *gr_status_text(int status); /* "bad model file" */
GR_API int gr_status_exit(int status);         /* exit code for a command line: 0 to 7 */

enum gr_log_level { GR_LOG_DEBUG, GR_LOG_INFO, GR_LOG_WARN, GR_LOG_ERROR };
typedef void gr_log_fn(enum gr_log_level level, const char *line, void *user);
/* Sets the sink of all log lines of the process; NULL (the default) = silence. */
GR_API void gr_log_set(gr_log_fn *fn, void *user);

/* Is told by the thread that makes a long call how far that has come: `done` of `total`, from 0 to
 * all of it, never less than before. false ends the call with GR_E_CANCELLED. The call's object
 * (model, session) is not to be used from inside. */
typedef bool gr_progress_fn(uint64_t done, uint64_t total, void *user);

/* ---- what this version knows ---- */

/* As model files name them: general.architecture, storage types of tensors, tokenizer.ggml.model
 * and tokenizer.ggml.pre. */
enum gr_known { GR_KNOWN_ARCH, GR_KNOWN_TYPE, GR_KNOWN_TOKENIZER, GR_KNOWN_PRE_TOKENIZER };
/* The i-th name of a kind, which lives as long as the process; NULL past the last one. about (of n
 * bytes, cut to them) receives a few words on it, often none. */
GR_API const char *gr_known(enum gr_known kind, int32_t i, char *about, size_t n);

/* ---- devices ---- */

/* A program may use CUDA itself: a call of this library leaves the calling thread with the current
 * context that it had. While functions that the program gave (taps, timing) are called from within
 * one, it is the device's primary context. */

/* A GPU. Bytes; bandwidth of its memory as the clocks say, 0 = unknown. */
struct gr_device {
    char name[16];         /* "CUDA0" */
    char description[128]; /* "NVIDIA H200" */
    char bus_id[32];       /* PCI address */
    uint64_t total_bytes, free_bytes, bytes_per_s;
    int32_t cc;           /* compute capability, 90 = 9.0 */
    int32_t n_sm;         /* multiprocessors */
    const char *unusable; /* why it cannot be used, or NULL; lives as long as the process */
};
/* How many there are, usable or not. *why (unless NULL): when there are none, the reason in one
 * line. */
GR_API int32_t gr_device_count(const char **why);
GR_API int gr_device_get(int32_t i, struct gr_device *device);
/* Versions that decide whether this build can use the GPUs here, as CUDA counts them (12080 is
 * 12.8); 0: none. */
struct gr_device_versions {
    int32_t driver;          /* the CUDA driver's */
    int32_t compiler;        /* of the compiler that made the kernels */
    int32_t needed;          /* of the oldest driver that they run with */
    const char *needed_name; /* the number of that NVIDIA driver ("580"), "" = not known */
};
GR_API void gr_device_versions(struct gr_device_versions *v);
/* Whether GPUs of several processes can pass values on to each other here (1, or 0: through memory
 * of the host). *what: by what ("NCCL 2.28.9"), or in one line why not. */
GR_API int gr_device_net(const char **what);

/* ---- model ---- */

struct gr_model;
struct gr_world; /* the processes that run a model together (gr_world_open) */

/* How several ranks (threads or processes, each with devices of its own) share a model: each has
 * some of the layers; one has all; or all those of a machine have a part of every layer. */
enum gr_split_mode { GR_SPLIT_MODE_LAYER, GR_SPLIT_MODE_NONE, GR_SPLIT_MODE_TENSOR };

/* Small matrices that change what a model computes (LoRA), from a GGUF file of their own. */
struct gr_adapter {
    const char *path;
    float scale; /* how much they count in sessions that do not say otherwise; 1 = as trained */
};
#define GR_MAX_ADAPTER 16

/* How threads on several nodes of memory (NUMA) and what they read are brought together: not at
 * all; threads spread over the nodes, with the weights that each of them reads most in its node's
 * memory; all threads on the node that opens the session; or as numactl has arranged it, which is
 * as not at all. */
enum gr_numa { GR_NUMA_NONE, GR_NUMA_DISTRIBUTE, GR_NUMA_ISOLATE, GR_NUMA_NUMACTL };

/* Where and how threads of the CPU run. What the system refuses is said in the log. */
struct gr_thread_params {
    const char *cpus; /* "0-3,8,0xF0": on these processors (numbers, ranges, masks); NULL = any */
    bool strict;      /* each on one of its own */
    int32_t prio;     /* -1 low, 0 as it is (default), 1 to 3 real time */
    int32_t poll;     /* microseconds that a thread polls for others before it sleeps */
};
/* How many processors such threads may use (NULL: any): of `cpus` those that this process may run
 * on, and no more than its control group grants it. */
GR_API int32_t gr_processors(const struct gr_thread_params *threads);

/* What cpu_level (gr_model_params) stands for here: "avx512" for "auto" on such a processor. NULL
 * when it is none, or not possible here; gr_error says why. */
GR_API const char *gr_cpu_instructions(const char *cpu_level);

struct gr_model_params {
    int32_t n_gpu_layers; /* layers on the GPU, the output layer first, then from the last one
                             backwards; more than there are = all; -1 = as many as fit */
    int32_t main_gpu;     /* GR_SPLIT_MODE_NONE: number of the GPU to use; -1 = the first that can
                             be used */
    bool use_mmap;        /* map the file (default), or read all of it now; see gr_in_model_file */
    bool vocab_only;      /* no weights: tokenizer and metadata only */
    bool check_tensors;   /* refuse weights that are not finite */
    bool require_gpu;     /* GR_E_DEVICE rather than no layer on a GPU */
    const char *device; /* "auto" (or NULL): all GPUs that can be used, with GR_SPLIT_MODE_NONE the
                           main one; none when there is none; "cpu", "none"; "cuda": as auto, or
                           GR_E_DEVICE; "CUDA1", or several "CUDA0,CUDA1": these. One that is named
                           several times is as many, which share its memory (for tests). Case
                           does not matter */
    enum gr_split_mode split_mode;
    const char *tensor_split; /* shares of the layers, "3,1": one for each GPU in use, or for each
                                 rank without any; "auto": what evens out memory; NULL = in
                                 proportion to free memory */
    int32_t n_rank;  /* threads of this process that run the model; 0 = one for each GPU in use */
    int32_t n_shard; /* GR_SPLIT_MODE_TENSOR: ranks that share a layer; 0 = those of a machine */
    struct gr_world *world;            /* of processes; NULL = this one is alone */
    const struct gr_adapter *adapters; /* [n_adapter], all of which sessions use at once */
    int32_t n_adapter;
    const char *cpu_level; /* instructions that the CPU's part uses at most: "ref" (plain C),
                              "avx2", "avx512" (with BF16 where there is that too), "amx";
                              GR_E_INVALID when this processor, system or build lacks them; "auto"
                              (or NULL): the best there are here. The same ones compute the same
                              bits */
    enum gr_numa numa;
    struct gr_thread_params threads, threads_batch; /* of single tokens, and of prompts */
    gr_progress_fn *progress; /* NULL = nobody. Bytes of weights, in a pass (each begins with 0)
                                 while gr_model_open reads or checks them, which for a mapped file
                                 is none, and in another one while gr_model_load or the first
                                 gr_session_open brings them to GPUs: those of rank 0 */
    void *progress_user;
};
GR_API struct gr_model_params gr_model_params_default(void);

/* A mapped file (use_mmap) is read as the model is used: what others write to it changes results,
 * and when it is cut off or its disk fails, the thread that reads it gets SIGBUS, which ends the
 * program. A file that others may write to is opened with use_mmap = false; what becomes of it then
 * does not matter. The library installs no handlers. One that the program has (SA_SIGINFO, for any
 * of its threads) can tell by si_addr whether the cause is a model's file, and end with words of
 * its own: there is no way back into the call.
 *
 * Whether an address lies in a mapped file of a model or an adapter; for any handler. */
GR_API bool gr_in_model_file(const void *address);

/* Opens `path`, or the model built into the library when path is NULL. */
GR_API int gr_model_open(struct gr_model **out, const char *path,
                         const struct gr_model_params *params);
GR_API void gr_model_close(struct gr_model **model);

/* What a batch of a session of vectors leaves: a row for each wanted token, or one for each
 * sequence: the mean of its tokens', that of its first or its last one, or the scores that a
 * classifier gives it. MODEL: as the file says, NONE when it says nothing. */
enum gr_pooling {
    GR_POOLING_MODEL,
    GR_POOLING_NONE,
    GR_POOLING_MEAN,
    GR_POOLING_CLS,
    GR_POOLING_LAST,
    GR_POOLING_RANK
};

struct gr_model_info {
    const char *arch, *name; /* owned by the model */
    const char *file_type;   /* most common storage type of the matrices, for example "q4_K" */
    uint64_t n_params, n_bytes;
    int32_t n_vocab, n_ctx_train, n_layer, n_embd, n_head, n_head_kv;
    int32_t n_pos;        /* positions that it has learned, which gr_decode does not go beyond; 0:
                             its positions have no end */
    int32_t n_gpu_layers; /* placed on GPUs, the output layer counted (at most n_layer + 1); 0 until
                             the weights are where they belong (gr_model_load) */
    bool no_logits;       /* the model has no output's matrix: its sessions leave vectors */
    bool no_cache;        /* a token sees all of its sequence in a batch, and nothing is kept */
    bool has_encoder;     /* gr_encode runs texts through it, which gr_decode attends to */
    int32_t decoder_start;   /* with an encoder: the token that gr_decode begins with; else -1 */
    enum gr_pooling pooling; /* that the file asks for; NONE when it says nothing */
    int32_t n_label;         /* names of a classifier's scores (gr_model_label) */
    const char *where;       /* "layers 0-10 on CUDA0, 11-21 on CUDA1", when they are in several
                                places, which is known from then on; otherwise "" */
};
GR_API void gr_model_info(const struct gr_model *model, struct gr_model_info *info);
/* Name of score i, owned by the model; NULL when it has none. */
GR_API const char *gr_model_label(const struct gr_model *model, int32_t i);

/* ---- text ---- */

/* Token ids of n bytes of text. Returns 0 and an array of *n_ids (free with gr_free_ids).
 * add_special: BOS and EOS as the model wants them; parse_special: "<|im_start|>" in the text
 * becomes that control token. */
GR_API int gr_text_tokenize(const struct gr_model *model, const char *text, size_t n,
                            bool add_special, bool parse_special, int32_t **ids, size_t *n_ids);
GR_API void gr_free_ids(int32_t *ids);

/* Bytes of one token, owned by the model; control tokens give "" unless `special`. */
GR_API int gr_text_piece(const struct gr_model *model, int32_t id, bool special, const char **p,
                         size_t *n);
GR_API bool gr_text_is_eog(const struct gr_model *model, int32_t id); /* ends a generation */
GR_API int32_t gr_text_bos(const struct gr_model *model);             /* -1 = none */
GR_API int32_t gr_text_eos(const struct gr_model *model);

/* Turns ids into text piece by piece, holding back bytes of an unfinished UTF-8 character. */
struct gr_stream;
GR_API int gr_stream_new(struct gr_stream **out, const struct gr_model *model, bool special);
/* *p and *n: the text that is complete now; valid until the next call. */
GR_API int gr_stream_push(struct gr_stream *s, int32_t id, const char **p, size_t *n);
/* What was held back, as U+FFFD; the stream is empty again. */
GR_API int gr_stream_flush(struct gr_stream *s, const char **p, size_t *n);
GR_API void gr_stream_free(struct gr_stream **s);

/* ---- session ---- */

struct gr_session;

enum gr_rope_scaling {
    GR_SCALING_MODEL,
    GR_SCALING_NONE,
    GR_SCALING_LINEAR,
    GR_SCALING_YARN,
    GR_SCALING_LONGROPE
};

enum gr_nvtx { GR_NVTX_OFF, GR_NVTX_STEP, GR_NVTX_LAYER };

struct gr_session_params {
    uint32_t n_ctx;     /* cells of all sequences, rounded up to 256 (of each stream); 0 = as in
                           training */
    uint32_t n_batch;   /* most tokens in one gr_decode */
    uint32_t n_ubatch;  /* most tokens computed at once */
    uint32_t n_seq_max; /* sequences 0 .. n_seq_max - 1, at most 256 */
    bool kv_unified; /* one pool that all sequences share (default); false: n_ctx / n_seq_max cells
                        for each (a stream), where sharing is copying */
    bool swa_full;   /* layers with a sliding window keep all cells too, not just those that are
                        needed to go on: a sequence's end can then be removed without limit */
    uint32_t n_rollback; /* recurrent models: states kept from before each of the last tokens, so
                            that as many can be removed from a sequence's end */
    int32_t n_threads, n_threads_batch; /* 0 = processors at hand, with several processes on a
                                           machine their shares; for one token, and for more */
    const char *type_k, *type_v;        /* "f32" "f16" "bf16" "q8_0" "q4_0"; NULL = f16 */
    enum gr_rope_scaling rope_scaling;  /* and its parameters; NAN or 0 = what the model says */
    float rope_freq_base, rope_freq_scale;
    float yarn_ext_factor; /* NAN = what the model says, 0 = no extrapolation */
    float yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
    uint32_t yarn_orig_ctx;
    bool kv_contiguous; /* place each micro-batch in neighbouring cells only */
    /* Self-Extend with an exact neighbour window (Jin et al. 2024): tokens less than group_w apart
     * meet at their own positions, others at positions divided by group_n. K is kept for both, so
     * the cache takes K's size once more. group_n <= 1: off. */
    int32_t group_n, group_w;
    /* Batches leave vectors (gr_embeddings) instead of logits: what the output's matrix would be
     * given. Always so for models that have none. */
    bool embeddings;
    enum gr_pooling pooling; /* with embeddings */
    /* How much each of the model's adapters counts; NAN = as it was opened, 0 = not at all. Saved
     * states belong to the scales that they were made with. */
    float adapter_scale[GR_MAX_ADAPTER];
    /* GPUs */
    bool no_kv_offload; /* keys and values of all layers stay in host memory, and attention over
                           them runs on the CPU */
    /* Steps of so many tokens and more are computed on a GPU where their layers are on the CPU:
     * their weights are brought there each time, keys and values stay. 0: from where that should be
     * faster on; negative: never. Without the memory for it, it is not done, and a log line says
     * so. */
    int32_t offload_from;
    bool no_graphs;    /* launch every kernel by itself instead of a captured graph */
    enum gr_nvtx nvtx; /* what profilers are told: nothing, steps (default), layers too */
    /* To find a fault of a kernel: what is left out, and what is looked at. */
    bool no_pdl;         /* a launch begins when the one in front of it is over (no programmatic
                            dependent launch) */
    bool no_sm90;        /* devices of compute capability 9.0 run the kernels of earlier ones */
    bool no_fuse;        /* each operation has launches of its own */
    bool check_counters; /* after each part of a step on a device the kernels' counters are read
                            back, which is slow: GR_E_INTERNAL, with the counter and the operations,
                            unless all are zero */
};
GR_API struct gr_session_params gr_session_params_default(void);

/* Brings the weights to the devices that the model's parameters ask for, leaving room for one such
 * session; the first gr_session_open does so by itself. With n_gpu_layers -1 as many layers as fit
 * go to the GPU, and a log line says so; GR_E_NOMEM_DEV, with what would fit, when those asked for
 * do not. Once it has worked it changes nothing any more. */
GR_API int gr_model_load(struct gr_model *model, const struct gr_session_params *params);

/* What a model and such a session take on a device, worked out without loading: bytes of weights,
 * of keys, values and states, and of everything else (intermediate results, kernels' scratch, what
 * changes from step to step). */
struct gr_fit_device {
    char name[16],
        description[128]; /* "CPU" of rank 0 is the first one, with what is nowhere else */
    int32_t rank;
    int32_t first, n_layer; /* its layers follow each other; the output counts as the last one */
    uint64_t weights, cache, work;
    uint64_t free_bytes, total_bytes; /* 0 for a CPU */
};
#define GR_FIT_MAX 65 /* the first ones, when there are more */
struct gr_fit {
    int32_t n_layer, n_gpu_layers; /* of n_layer, the output layer counted */
    int32_t n_device;
    struct gr_fit_device device[GR_FIT_MAX];
};
/* GR_E_NOMEM_DEV, with *fit filled in, when what was asked for does not fit. */
GR_API int gr_model_fit(struct gr_model *model, const struct gr_session_params *params,
                        struct gr_fit *fit);

/* The same of a session that is open, with the memory that is free now. */
GR_API int gr_session_fit(const struct gr_session *s, struct gr_fit *fit);

/* The model must stay open as long as the session. */
GR_API int gr_session_open(struct gr_session **out, struct gr_model *model,
                           const struct gr_session_params *params);
GR_API void gr_session_close(struct gr_session **session);
/* Another number of cells (as n_ctx in gr_session_params), with everything that is stored:
 * GR_E_KV_FULL when it does not fit, GR_E_INVALID when LongRoPE turns positions otherwise at that
 * length. For a moment there is memory for the old, the new and a copy of what is stored. The
 * logits of the last batch are gone; n_batch never grows. */
GR_API int gr_session_resize(struct gr_session *s, uint32_t n_ctx);
/* Cells in all, and for one sequence: the same in one pool. */
GR_API uint32_t gr_session_n_ctx(const struct gr_session *s);
GR_API uint32_t gr_session_n_ctx_seq(const struct gr_session *s);

/* Memory that a session keeps, worked out without taking any. Bytes of keys and values (k with the
 * grouped ones), of recurrent states, and of all. */
struct gr_session_size {
    uint64_t k, v, state, total;
    uint32_t n_cell, n_cell_swa; /* of layers that see everything, of those with a window */
    uint32_t n_stream;
};
GR_API int gr_session_size(const struct gr_model *model, const struct gr_session_params *params,
                           struct gr_session_size *size);

/* Tokens to run. Arrays belong to the caller. */
struct gr_batch {
    int32_t n_tok;
    const int32_t *token;
    const int32_t *pos;    /* NULL: each sequence goes on where it ends */
    const int32_t *n_seq;  /* sequences of each token; NULL: one each */
    const int32_t *seq;    /* their ids, one token's after another's; NULL: sequence 0 */
    const int8_t *logits;  /* 1 where logits are wanted; NULL: for the last token only */
    const int32_t *pos_yx; /* [2][n_tok] rows, then columns, of tokens that have them (M-RoPE
                              images), besides pos; NULL = text: both are pos */
};
/* Runs a batch. When it is refused (GR_E_INVALID, GR_E_KV_FULL) the cache is as before; positions
 * beyond the learned ones of a model (n_pos of gr_model_info) are GR_E_INVALID. When it fails on
 * the way (GR_E_CANCELLED, GR_E_NOMEM_*, GR_E_DEVICE) too, but for sequences of the batch whose
 * recurrent state or window was overwritten meanwhile: those are empty then, and the message names
 * them. */
GR_API int gr_decode(struct gr_session *s, const struct gr_batch *batch);

/* Runs a batch of whole texts, one for each of its sequences, through a model's encoder: from then
 * on what gr_decode gives these sequences attends to them. Leaves no logits; positions go from 0 in
 * each text, and all texts of a batch are computed at once (at most n_ubatch tokens). What the
 * sequences had, texts and tokens, is gone, also when this fails, but for GR_E_INVALID and
 * GR_E_UNSUPPORTED (a model without an encoder: gr_model_info.has_encoder), which change nothing.
 *
 * A text goes with its sequence: it is copied whole by gr_kv_seq_cp whatever the range
 * (GR_E_INVALID when the other sequence has another one), is part of states, and is removed when
 * all of the sequence is; gr_kv_used does not count it. A sequence without one attends to nothing
 * there. */
GR_API int gr_encode(struct gr_session *s, const struct gr_batch *batch);

/* The same in two steps, for a model whose layers several ranks share: a batch has begun when the
 * first of them has computed its part, and the others go on while the next one begins. Batches end
 * in the order in which they began, at most GR_MAX_FLIGHT of them are in flight, and everything
 * else (sequence operations too) may be done meanwhile, as if all of them had ended. What
 * gr_decode_begin refuses or fails with is as gr_decode; the one that failed is not in flight. With
 * one rank a batch is complete when it has begun. gr_decode, which is both, and gr_session_resize
 * are for when none is in flight. */
#define GR_MAX_FLIGHT 128
GR_API int gr_decode_begin(struct gr_session *s, const struct gr_batch *batch);
/* The oldest batch in flight becomes the last batch of gr_logits and gr_drawn. */
GR_API int gr_decode_end(struct gr_session *s);

/* From now on fn is told of the tokens of each batch (gr_decode, gr_decode_begin, gr_encode) as
 * they are computed: on the CPU after each operation, as the part of its micro-batch that is done;
 * elsewhere after each micro-batch. Of several stages those of the first one count. NULL ends it.
 */
GR_API void gr_session_progress(struct gr_session *s, gr_progress_fn *fn, void *user);

/* Logits [n_vocab] of the i-th token of the last batch (negative: from its end), valid until the
 * next gr_decode or gr_decode_end; NULL when that token had none, and in a session of vectors. */
GR_API const float *gr_logits(const struct gr_session *s, int32_t i);

/* Vectors of a session with `embeddings`, [gr_session_n_embd], valid as long as logits are; not
 * normalised. Without pooling gr_embeddings has that of the i-th token of the last batch, where it
 * was wanted (`logits` of the batch); with pooling gr_embeddings_seq has that of a sequence that
 * the last batch has tokens of, whichever were wanted. NULL when there is none.
 *
 * MEAN takes all tokens of the batch, at most n_ubatch, and like CLS only sequences that begin with
 * the batch. A model without a cache takes whole texts in one batch of at most n_ubatch tokens.
 * RANK is for models with a classifier; a label for each number, where the file names them. */
GR_API const float *gr_embeddings(const struct gr_session *s, int32_t i);
GR_API const float *gr_embeddings_seq(const struct gr_session *s, int32_t seq);
/* Numbers of a vector: scores with RANK; 0 in a session of logits. */
GR_API int32_t gr_session_n_embd(const struct gr_session *s);
/* How it pools: never MODEL. */
GR_API enum gr_pooling gr_session_pooling(const struct gr_session *s);
GR_API const char *gr_pooling_name(enum gr_pooling pooling); /* "mean" */

struct gr_sampler;

/* From the next batch on, the device that has the logits draws the tokens of a sequence by a
 * sampler (NULL: no longer), so that an id comes back instead of a row of logits: where every token
 * of a batch whose logits are wanted belongs to such a sequence (its first one counts), gr_drawn
 * has its id and gr_logits nothing. A draw is a pick of the sampler: picking goes on behind it. The
 * sampler stays the caller's, and must live as long as it is set here. GR_E_UNSUPPORTED for one
 * with penalties, a logit bias, typical sampling or mirostat. */
GR_API int gr_session_draw(struct gr_session *s, int32_t seq, struct gr_sampler *sampler);
/* The id drawn for the i-th token of the last batch (negative: from its end). GR_E_CHECK when its
 * logits were not finite, GR_E_INVALID when none was drawn. */
GR_API int gr_drawn(const struct gr_session *s, int32_t i, int32_t *id);

/* Stops a gr_decode under way in another thread or signal handler: it returns GR_E_CANCELLED. What
 * the first of several stages has done with is completed all the same. */
GR_API void gr_session_cancel(struct gr_session *s);

/* ---- sequences in the cache ---- */

/* Positions are a range [p0, p1): p0 < 0 = 0, p1 < 0 = no end. seq < 0 = all (seq_rm only).
 * GR_E_UNSUPPORTED, and nothing changed, where a cache cannot: cells that a window has given up
 * would be missed, a recurrent state cannot be cut or moved, positions that are part of what is
 * stored cannot be changed. */

GR_API int gr_kv_seq_rm(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1);
/* dst also gets src's cells: shared in one pool, copied between streams. */
GR_API int gr_kv_seq_cp(struct gr_session *s, int32_t src, int32_t dst, int32_t p0, int32_t p1);
/* dst gets cells of its own with copies of src's, so that either can be moved without the other. */
GR_API int gr_kv_seq_dup(struct gr_session *s, int32_t src, int32_t dst, int32_t p0, int32_t p1);
GR_API int gr_kv_seq_keep(struct gr_session *s, int32_t seq);
/* Positions += delta; cells whose position turns negative are freed. K is rotated before the next
 * decode. A cell that two sequences share moves for both; gr_kv_seq_dup makes one its own. */
GR_API int gr_kv_seq_add(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t delta);
/* Positions = floor(pos / d), d > 0. */
GR_API int gr_kv_seq_div(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t d);
GR_API void gr_kv_clear(struct gr_session *s);
/* Moves cells into the holes between others until the used ones are the first ones. */
GR_API int gr_kv_defrag(struct gr_session *s);
/* Smallest and largest position of a sequence, -1 when it has none. */
GR_API int32_t gr_kv_seq_pos_min(const struct gr_session *s, int32_t seq);
GR_API int32_t gr_kv_seq_pos_max(const struct gr_session *s, int32_t seq);
/* Cells in use. */
GR_API uint32_t gr_kv_used(const struct gr_session *s);
/* A map of the cells, for people. */
GR_API void gr_kv_dump(const struct gr_session *s, FILE *out);

/* Goes on in a full context: of sequence `seq` the positions [n_keep, n_keep + n_discard) are
 * removed and the later ones move down. n_keep (the BOS token counted) is at most the sequence's
 * cells - 4; n_discard <= 0 is half of what is not kept, and one token behind it stays. *n_past,
 * unless NULL, receives where the sequence goes on. All of it happens or nothing:
 * GR_E_INVALID when there is nothing to discard, GR_E_UNSUPPORTED where positions cannot change
 * (recurrent states, learned positions, cells given up by a window that would be missed) or where
 * cells that move are shared with another sequence (gr_kv_seq_dup makes them its own). Not for a
 * sequence with gr_self_extend: its windows would no longer begin where they should.
 *
 * Each shift rounds K once more. A number changes by at most 2^-11 (f16), 2^-8 (bf16) of itself,
 * 1/250 (q8_0) or 1/7.9 (q4_0) of the largest of its block of 32, and the mean square error grows
 * by about 5e-8, 3e-6, 3e-5 and 1e-2 of that of K: q4_0 does not stand ten shifts. A token is moved
 * by every shift that it survives; with n_discard <= 0 that is one, or two. */
GR_API int gr_context_shift(struct gr_session *s, int32_t seq, int32_t n_keep, int32_t n_discard,
                            int32_t *n_past);

/* ---- Self-Extend (Jin et al. 2024) ---- */

/* CLASSIC moves and divides positions of the cache window by window (gr_self_extend): no memory,
 * but right after a division the newest tokens are grouped too. WINDOW is exact for the last w
 * tokens always, as in the paper (group_n and group_w of the session): the cache takes K's size
 * once more, a step reads as much as without. */
enum gr_group_mode { GR_GROUP_CLASSIC, GR_GROUP_WINDOW };
/* Tokens that fit when the model was trained on n_train positions: none is at a position (CLASSIC)
 * or sees a distance (WINDOW) of n_train or more. 0 when n does not divide w. */
GR_API int64_t gr_self_extend_capacity(enum gr_group_mode mode, int32_t n_train, int32_t n,
                                       int32_t w);
/* The smallest factor *n for n_ctx tokens, with the largest window *w that it divides and that is
 * neither more than n_train / 4 nor than *w before. *n = 1: not needed. GR_E_INVALID: there is
 * none. */
GR_API int gr_self_extend_choose(enum gr_group_mode mode, int32_t n_train, int32_t n_ctx,
                                 int32_t *n, int32_t *w);

/* CLASSIC: when sequence 0 holds n_past >= i + w positions, groups of n neighbours are merged to
 * one position, window by window. */
struct gr_self_extend {
    int32_t n, w; /* group factor, window; n divides w */
    int32_t i;    /* state: start of the window that comes next, 0 at first */
};
/* Call before each decode; lowers *n_past by what was merged. Logs what it does. */
GR_API int gr_self_extend(struct gr_session *s, struct gr_self_extend *se, int32_t *n_past);
/* Tokens to decode at most until the next call, so that no position goes beyond the window that is
 * filling and a prompt in pieces gives what it gives token by token. */
GR_API int32_t gr_self_extend_room(const struct gr_self_extend *se, int32_t n_past);

/* ---- saving and restoring ---- */

/* A state is all that a session keeps (seq -1) or what it keeps of one sequence: cells with their
 * positions, keys, values, recurrent states. With it travel n_note bytes of the caller's (the
 * tokens of the text, counters of Self-Extend): note NULL = none.
 *
 * It belongs to a model and to the parameters that give stored numbers their meaning: types of
 * K and V, rope, group_n and group_w. Everything else may differ: n_ctx (as long as the cells
 * fit), kv_unified, n_seq_max (of a whole state: enough for its sequences), swa_full,
 * n_rollback (the older snapshots are left out), devices. What a session gives after a restore
 * is bit for bit what it would have given without, on the same kind of device. In one pool
 * sequences share again the cells that they shared; with streams each gets copies.
 *
 * Saving applies pending shifts, and changes nothing else. The memory of *data and *note is freed
 * by gr_state_free. A file is written beside its name, synced and renamed: whatever happens, the
 * name has what it had or the whole state. Files are readable by their owner only, as they hold
 * what was said; checksums find damage, not malice. */
GR_API int gr_state_save(struct gr_session *s, int32_t seq, const void *note, size_t n_note,
                         void **data, size_t *n);
GR_API int gr_state_save_file(struct gr_session *s, int32_t seq, const void *note, size_t n_note,
                              const char *path);
/* A state takes the place of all that the session has (seq -1), or of what sequence seq has (a
 * state of one sequence, whichever it was). Everything is checked before anything changes:
 * GR_E_CORRUPT (damaged or cut off), GR_E_UNSUPPORTED (another version of the format), GR_E_INVALID
 * (another model, other parameters, a sequence that is not there), GR_E_KV_FULL, GR_E_IO,
 * GR_E_NOMEM_*. When reading or copying fails after that, what was to be filled is empty, and the
 * message says so. note and n_note receive the caller's bytes; note NULL: they are not wanted. */
GR_API int gr_state_load(struct gr_session *s, int32_t seq, const void *data, size_t n, void **note,
                         size_t *n_note);
GR_API int gr_state_load_file(struct gr_session *s, int32_t seq, const char *path, void **note,
                              size_t *n_note);
GR_API void gr_state_free(void *data);

/* ---- taps: intermediate results by name ---- */

/* fn gets [rows, cols] f32 of every tensor named `name` ("" = all of them) as it is computed; NULL
 * fn switches off, also from inside fn. There gr_decode and the sequence operations are refused.
 * GR_E_UNSUPPORTED with several ranks, of which this one computes a part only. */
typedef void gr_tensor_fn(const char *name, int layer, const float *data, int64_t rows,
                          int64_t cols, void *user);
GR_API int gr_session_tap(struct gr_session *s, const char *name, gr_tensor_fn *fn, void *user);

/* ---- times ---- */

/* One operation as it ran. */
struct gr_op_sample {
    const char *device, *op; /* "CUDA0", "matmul" */
    const char *kernel;      /* NULL on the CPU, and when the one before does this too */
    int32_t layer;           /* -1 outside the layers */
    int64_t start_ns, ns;    /* since gr_session_time; how long it took */
    int64_t bytes;           /* that it had to move */
};
typedef void gr_sample_fn(const struct gr_op_sample *sample, void *user);
/* From now on fn is told of every operation after it has run; NULL ends it. Each one is timed by
 * itself meanwhile, which takes longer. GR_E_UNSUPPORTED with several ranks. */
GR_API int gr_session_time(struct gr_session *s, gr_sample_fn *fn, void *user);
/* What the time of a rank went into, since the session was opened: computing its layers (copies
 * between its devices too), waiting for the stage before, and passing values on to the next. Ranks
 * that share layers have the same ones. */
struct gr_stage {
    int32_t rank;
    int32_t first_layer, n_layer; /* the output counted, as the last */
    char device[16], host[64];    /* its last device; "" = this machine, of a model that is alone */
    int64_t busy_ns, wait_ns, transfer_ns;
    uint64_t n_ubatch;
};
/* Fills in at most n of the model's ranks; returns how many, 0 after a failure. */
GR_API int32_t gr_session_stages(struct gr_session *s, struct gr_stage *stage, int32_t n);

/* What a rank was at, for a micro-batch (numbers count from 0 on each rank). */
enum gr_span { GR_SPAN_WAIT, GR_SPAN_BUSY, GR_SPAN_TRANSFER };
struct gr_stage_span {
    int32_t rank;
    uint64_t ubatch;
    enum gr_span what;
    int64_t start_ns, ns; /* on the monotonic clock of rank 0 */
};
typedef void gr_span_fn(const struct gr_stage_span *span, void *user);
/* Tells fn what every rank was at since the last call, of each the newest 4,096; rank by rank, in
 * the order of time. Of a model that is alone there is nothing. */
GR_API int gr_session_spans(struct gr_session *s, gr_span_fn *fn, void *user);

/* Has a profiler that waits for it (nsys --capture-range=cudaProfilerApi) record from now on, or no
 * longer. */
GR_API int gr_session_profile(struct gr_session *s, bool on);

/* ---- sampling ---- */

struct gr_logit_bias {
    int32_t id;
    float bias; /* -INFINITY bans the token */
};

struct gr_sampler_params {
    uint64_t seed;
    float temp;             /* <= 0: greedy, always the largest logit, ties to the lower id */
    int32_t top_k;          /* <= 0: all */
    float top_p;            /* >= 1: off */
    float min_p;            /* 0: off */
    float typical_p;        /* >= 1: off */
    int32_t penalty_last_n; /* tokens looked back at; 0 = off, -1 = context size */
    float penalty_repeat;   /* 1: off */
    float penalty_freq, penalty_present; /* 0: off */
    int32_t mirostat;                    /* 0 or 2 */
    float mirostat_tau, mirostat_eta;
    const struct gr_logit_bias *logit_bias;
    int32_t n_logit_bias;
    int32_t n_vocab, n_ctx; /* of the model and session it is used with */
};
/* 0.8, top-k 40, top-p 0.95, min-p 0.05, no penalties over the last 64. */
GR_API struct gr_sampler_params gr_sampler_params_default(void);
GR_API int gr_sampler_new(struct gr_sampler **out, const struct gr_sampler_params *params);
/* Picks an id from logits [n_vocab], which are not changed. GR_E_CHECK when a logit is NaN or all
 * are -inf. */
GR_API int gr_sampler_pick(struct gr_sampler *s, const float *logits, int32_t *id);
/* Tells the sampler of a token of the text (prompt tokens too): penalties count it. */
GR_API int gr_sampler_accept(struct gr_sampler *s, int32_t id);
GR_API void gr_sampler_free(struct gr_sampler **s);

/* ---- several processes ---- */

/* A world: the processes that mpirun or srun has started, which run models together. Each is a
 * *rank*. All make the same calls up to gr_model_open, with the same parameters; then rank 0 goes
 * on like a program that is alone, and the others serve it.
 *
 * When a rank is lost (it ended, hangs, or cannot be reached) every call that needs it fails with
 * GR_E_PEER_LOST and a message that names it, on every other rank; nothing can be done with the
 * world any more but to close what is open. */

/* *out NULL and 0 when nobody has started several processes. */
GR_API int gr_world_open(struct gr_world **out);
GR_API int32_t gr_world_rank(const struct gr_world *world);
GR_API int32_t gr_world_size(const struct gr_world *world);
/* "rank 2 (host, pid 17)". Returns buf. */
GR_API const char *gr_world_name(const struct gr_world *world, int32_t rank, char *buf, size_t n);
/* Ranks > 0: does what rank 0 does with the model, until it has closed it. */
GR_API int gr_world_serve(struct gr_world *world, struct gr_model *model);
/* fn is called once, from a thread of its own, after a rank was lost: `line` says which and why. A
 * call that is stuck (in a driver, in MPI) may never come back: fn is where a program sees to it
 * that it ends all the same. */
typedef void gr_lost_fn(int32_t rank, const char *line, void *user);
GR_API void gr_world_on_lost(struct gr_world *world, gr_lost_fn *fn, void *user);
/* Leaves, and waits some seconds for the others to leave too. A rank that leaves while others go on
 * is lost to them. Returns the exit code that all ranks end with: `code` on rank 0, that of rank 0
 * on others as far as they learn it; `code` where there is no world. */
GR_API int gr_world_close(struct gr_world **world, int code);

/* ---- names ---- */

/* Insertions, deletions, substitutions and swaps of neighbours that turn a into b, letter case
 * aside: what a front end needs to suggest the name that was meant. Names are cut at 64 bytes. */
GR_API size_t gr_edit_distance(const char *a, size_t n_a, const char *b, size_t n_b);

/* ---- files ---- */

/* A file being written. What is under its name decides how:
 * - nothing, or a file: the new one appears complete or not at all, and takes the old one's place;
 * - a device, a FIFO, or the file that stdout or stderr goes to: written as it is, from front to
 *   back, and never replaced;
 * - a symbolic link: all this of what it points to, which need not be there yet; the link stays;
 * - a folder or a socket: refused. */
struct gr_output;
enum gr_output_how {
    GR_OUTPUT_KEEP = 1,    /* a file or a disk that is there is refused */
    GR_OUTPUT_SEEKS = 2,   /* not written from front to back: a device or a FIFO is refused */
    GR_OUTPUT_PRIVATE = 4, /* for the user alone */
    GR_OUTPUT_LIVE = 8,    /* a file too is written as it is, emptied first, so that it can be read
                              meanwhile */
    GR_OUTPUT_QUICK = 16,  /* does not wait for the disk */
};
/* Whether such a file can be begun; changes nothing. `how` is a sum of the above. GR_E_INVALID: it
 * is refused for what is there; GR_E_IO: nothing can be written there. */
GR_API int gr_output_check(const char *path, unsigned how);
GR_API int gr_output_open(struct gr_output **out, const char *path, unsigned how);
/* Appends n bytes. After an error the same one comes from every call. */
GR_API int gr_output_put(struct gr_output *o, const void *data, size_t n);
/* Has the bytes so far leave this process. */
GR_API int gr_output_flush(struct gr_output *o);
/* Completes the file and frees *o. After an error what had the name is untouched. */
GR_API int gr_output_commit(struct gr_output **o);
/* Throws away what was written, as far as it can be, and frees *o. NULL is fine. */
GR_API void gr_output_abort(struct gr_output **o);
/* Makes a folder for files, unless it is there; at the end of a symbolic link too. GR_E_IO: nothing
 * can be written there. */
GR_API int gr_output_folder(const char *path);

/* Prints metadata, tensors and sizes of a GGUF file. */
GR_API int gr_inspect(const char *path, FILE *out, bool json);
/* Model files are outputs as above, and one that exists is left as it is (GR_E_INVALID) unless
 * `overwrite`, with which a file may also take the place of what it was made of. All of this is
 * looked at before any work. Log lines tell progress. */

/* How much each column of a matrix matters: the mean square of what it is multiplied with. */
struct gr_imatrix;
GR_API int gr_imatrix_new(struct gr_imatrix **out);
GR_API void gr_imatrix_free(struct gr_imatrix **m);
/* From now on all that the session computes is added to m; NULL ends it. m outlives the session or
 * the next call. `output`: of the matrix that makes logits too. GR_E_UNSUPPORTED with several
 * ranks, of which this one computes a part only. */
GR_API int gr_session_imatrix(struct gr_session *s, struct gr_imatrix *m, bool output);
/* What the file says of where the numbers come from: n more chunks of `size` tokens, of a text. */
GR_API void gr_imatrix_chunks(struct gr_imatrix *m, uint32_t n, uint32_t size);
GR_API int gr_imatrix_add_dataset(struct gr_imatrix *m, const char *name);
/* Adds what a file has: GGUF as llama.cpp writes it, or its older form. */
GR_API int gr_imatrix_load(struct gr_imatrix *m, const char *path);
/* GGUF. */
GR_API int gr_imatrix_save(const struct gr_imatrix *m, const char *path, bool overwrite);

struct gr_quantize_params {
    const char *type;    /* a recipe: "Q4_K_M", "IQ2_XS" .., as llama.cpp names and mixes them, or
                            "COPY": every tensor as it is */
    const char *imatrix; /* file of importances (gr_imatrix_save, or llama.cpp's), or NULL */
    const char *output_type; /* of the matrix that makes logits, "q8_0"; NULL: as the recipe says */
    const char *embedding_type;
    const char *const *tensor_types; /* "PATTERN=TYPE", NULL at the end: of tensors in whose names
                                        the regular expression occurs, the first one that does; or
                                        NULL */
    bool pure;                       /* one type for all, no mix */
    bool leave_output;               /* output.weight stays as it is */
    bool allow_requantize;           /* tensors that are quantised already too; they lose twice */
    bool keep_split;                 /* as many files as the model has, named as it is */
    bool dry_run;                    /* write nothing: the log says what would be written */
    bool overwrite;
    int32_t n_threads;        /* 0 = processors at hand */
    gr_progress_fn *progress; /* told of bytes of the tensors that are read; NULL = nobody */
    void *progress_user;
};
/* Writes `in` with its matrices stored as params say to `out` (with keep_split: out-00001-of-0000N
 * and so on). */
GR_API int gr_quantize_file(const char *in, const char *out,
                            const struct gr_quantize_params *params);

/* Cuts a model file into prefix-00001-of-0000N.gguf and so on, each with at most max_tensors
 * tensors and max_bytes of their data (0: any number; one tensor at least). */
struct gr_split_params {
    uint32_t max_tensors;
    uint64_t max_bytes;
    bool dry_run, overwrite;
};
GR_API int gr_split_file(const char *in, const char *prefix, const struct gr_split_params *params);
/* The reverse: `in` is the first part. */
GR_API int gr_merge_file(const char *in, const char *out, bool overwrite);

#ifdef __cplusplus
}
#endif
#endif
