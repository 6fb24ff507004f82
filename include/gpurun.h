/* gpurun: inference of language models from GGUF files, on NVIDIA GPUs or on the CPU alone.
 *
 * Concepts. A *model* is weights and vocabulary: read-only, shared by any number of sessions. A
 * *session* is a KV cache and all that is needed to run batches through the model. A *batch* is a
 * list of tokens, each with a position and the sequences it belongs to; decoding it stores its keys
 * and values in *cells* of the cache and leaves logits. Sequences share cells: copying one is free,
 * and single tokens can be removed, and their positions moved or divided.
 *
 * Errors. Functions that can fail return int: 0 or a status (gr/status.h lists them);
 * gr_error_message() says in one line what was wrong and what helps. A failed call changes nothing
 * unless its comment says otherwise. The library never exits, aborts or prints.
 *
 * Ownership. _close and _free functions, and gr_free_ids, accept NULL and a pointer to NULL, and
 * set the caller's pointer to NULL.
 *
 * Threads. A session is used by one thread at a time; a model may be used by several. */
#ifndef GPURUN_H
#define GPURUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gr/answer.h"
#include "gr/api.h"
#include "gr/generate.h"
#include "gr/grammar.h"
#include "gr/model_params.h"
#include "gr/prompt.h"
#include "gr/sampling.h"
#include "gr/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status, log, version ---- */

GR_API const char *gr_version(void); /* "0.1.0" */
/* Message of the calling thread's last failure, valid until its next one. */
GR_API const char *gr_error_message(void);
GR_API const char *gr_status_text(int status); /* "bad model file" */
GR_API int gr_status_exit(int status);         /* exit code for a command line: 0 to 7 */

enum gr_log_level { GR_LOG_DEBUG, GR_LOG_INFO, GR_LOG_WARN, GR_LOG_ERROR };
typedef void gr_log_fn(enum gr_log_level level, const char *line, void *user);
/* Sets the receiver of the process's log lines; NULL (default): they are dropped. */
GR_API void gr_log_set(gr_log_fn *fn, void *user);

/* ---- what this version supports ---- */

/* Names as in model files: general.architecture, tensor types, tokenizer.ggml.model,
 * tokenizer.ggml.pre; the recipes of gr_quantize_params, with their aliases; the known chat
 * templates. */
enum gr_supported {
    GR_SUPPORTED_ARCH,
    GR_SUPPORTED_TYPE,
    GR_SUPPORTED_TOKENIZER,
    GR_SUPPORTED_PRE_TOKENIZER,
    GR_SUPPORTED_RECIPE,
    GR_SUPPORTED_TEMPLATE
};
/* The i-th name of a kind (static), NULL past the last one. `about` [n] receives a short
 * description, often empty, cut to n bytes. */
GR_API const char *gr_supported(enum gr_supported kind, int32_t i, char *about, size_t n);

/* ---- devices ---- */

/* The program may use CUDA too: every call of this library restores the calling thread's current
 * context. Callbacks (taps, timing) run with the device's primary context current. */

struct gr_device {
    char name[16];         /* "CUDA0" */
    char description[128]; /* "NVIDIA H200" */
    char bus_id[32];       /* PCI address */
    uint64_t total_bytes, free_bytes;
    uint64_t bytes_per_s; /* memory bandwidth by the device's clocks; 0: unknown */
    int32_t cc;           /* compute capability: 90 = 9.0 */
    int32_t n_sm;         /* streaming multiprocessors */
    const char *unusable; /* reason why it cannot be used (static), or NULL */
};
/* Number of GPUs, usable or not. *why (unless NULL): the reason when there are none. */
GR_API int32_t gr_device_count(const char **why);
GR_API int gr_device_get(int32_t i, struct gr_device *device);
/* Versions as CUDA has them: 12080 = 12.8, 0: none. This build runs here if driver >= needed. */
struct gr_device_versions {
    int32_t driver;          /* supported by the installed driver */
    int32_t compiler;        /* of the nvcc that compiled the kernels */
    int32_t needed;          /* lowest driver version that runs them */
    const char *needed_name; /* NVIDIA's number of that driver ("580"); "": unknown */
};
GR_API void gr_device_versions(struct gr_device_versions *v);
/* 1 when GPUs of several processes can communicate directly here, 0 when they go through host
 * memory. *what: the transport ("NCCL 2.28.9"), or why there is none. */
GR_API int gr_device_transport(const char **what);
/* 1 when GR_MATMUL_CUBLAS is possible here. *what: the library ("cuBLASLt 13.1.0"), or why there is
 * none. */
GR_API int gr_device_matmul(const char **what);

/* ---- model ---- */

struct gr_model;
struct gr_world; /* processes that run a model together (gr_world_open) */

/* Number of processors that threads with these parameters can use (NULL: any): those of `cpus` that
 * the process may run on, limited by its control group. */
GR_API int32_t gr_processors(const struct gr_thread_params *threads);

/* Instruction set that cpu_level (gr_model_params) selects on this processor: "avx512" for "auto",
 * for example. NULL when it is unknown or unavailable; gr_error_message says why. */
GR_API const char *gr_cpu_instructions(const char *cpu_level);

GR_API struct gr_model_params gr_model_params_default(void);

/* Returns whether the address lies in a mapped file of an open model or adapter; async-signal-safe.
 *
 * A mapped file (use_mmap) is read while the model is used: writes by others change results, and
 * when it is truncated or its disk fails, the reading thread gets SIGBUS. Open files that others
 * may write to with use_mmap = false. The library installs no signal handler; a program's handler
 * (SA_SIGINFO) can test si_addr with this function to end with a message of its own. It cannot
 * resume the call. */
GR_API bool gr_in_model_file(const void *address);

/* Opens the file `path`, or with NULL the model that is built into the library. */
GR_API int gr_model_open(struct gr_model **out, const char *path,
                         const struct gr_model_params *params);
GR_API void gr_model_close(struct gr_model **model);

/* Pooling of embeddings: NONE: one row for each token whose output is wanted; otherwise one for
 * each sequence: the mean of its tokens, the first one (CLS), the last one, or a classifier's
 * scores (RANK). MODEL: as the file says, NONE if it says nothing. */
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
    const char *file_type;   /* most frequent type of its matrices, for example "q4_K" */
    uint64_t n_params, n_bytes;
    int32_t n_vocab, n_ctx_train, n_layer, n_embd, n_head, n_head_kv;
    int32_t n_learned_pos; /* learned positions, which gr_decode does not exceed; 0: unlimited */
    int32_t n_gpu_layers;  /* layers on GPUs, the output layer counted (at most n_layer + 1); 0
                              before gr_model_load */
    bool no_logits;        /* without output matrix: sessions give embeddings only */
    bool no_cache;         /* attention within the batch, in both directions; nothing is cached */
    bool has_encoder;      /* gr_encode runs texts through it; gr_decode attends to them */
    bool has_template;     /* the file has a chat template (tokenizer.chat_template) */
    int32_t decoder_start; /* first token of gr_decode, of a model with an encoder; otherwise -1 */
    enum gr_pooling pooling; /* of the file; NONE if it says nothing */
    int32_t n_label;         /* named scores of a classifier (gr_model_label) */
    const char *where;       /* "layers 0-10 on CUDA0, 11-21 on CUDA1" once layers are placed on
                                several devices, otherwise "" */
};
GR_API void gr_model_info(const struct gr_model *model, struct gr_model_info *info);
/* Name of the i-th score of a classifier, owned by the model; NULL: it has none. */
GR_API const char *gr_model_label(const struct gr_model *model, int32_t i);

/* ---- text ---- */

/* Tokenizes n bytes of text into *ids [*n_ids], to be freed by gr_free_ids. add_special: adds BOS
 * and EOS as the model wants; parse_special: control tokens in the text, such as "<|im_start|>",
 * are recognised. */
GR_API int gr_text_tokenize(const struct gr_model *model, const char *text, size_t n,
                            bool add_special, bool parse_special, int32_t **ids, size_t *n_ids);
GR_API void gr_free_ids(int32_t *ids);

/* Bytes of one token, owned by the model; control tokens are empty unless `special`. */
GR_API int gr_text_piece(const struct gr_model *model, int32_t id, bool special, const char **p,
                         size_t *n);
GR_API bool gr_text_is_eog(const struct gr_model *model, int32_t id); /* ends a generation */
GR_API int32_t gr_text_bos(const struct gr_model *model);             /* -1: none */
GR_API int32_t gr_text_eos(const struct gr_model *model);

/* Incremental detokenizer: holds back the bytes of an incomplete UTF-8 character. */
struct gr_detok;
GR_API int gr_detok_new(struct gr_detok **out, const struct gr_model *model, bool special);
/* Adds a token. *p [*n]: the text that is complete now, valid until the next call. */
GR_API int gr_detok_push(struct gr_detok *d, int32_t id, const char **p, size_t *n);
/* Returns bytes held back as U+FFFD and empties the detokenizer. */
GR_API int gr_detok_flush(struct gr_detok *d, const char **p, size_t *n);
GR_API void gr_detok_free(struct gr_detok **d);

/* Stop strings: finds the first of several strings in a text that arrives in pieces, cut anywhere.
 * What could be the beginning of one at the end of the text is held back until it is known. */
struct gr_stop;
#define GR_MAX_STOP 256         /* strings */
#define GR_MAX_STOP_BYTES 65536 /* of one string */
/* Copies n strings of UTF-8, so that no character is cut, with their lengths in bytes; lengths
 * NULL: they end with a zero. GR_E_INVALID: too many, too long, empty, or not UTF-8. */
GR_API int gr_stop_new(struct gr_stop **out, const char *const *strings, const size_t *lengths,
                       int32_t n);
/* Adds n bytes. *out [*n_out]: the text that is certain now, which ends before the first string;
 * valid until the next call. *found: the string that ends the text, or -1: the one that is complete
 * first, the longest of several. After one was found all text is dropped. */
GR_API int gr_stop_push(struct gr_stop *s, const char *p, size_t n, const char **out, size_t *n_out,
                        int32_t *found);
/* Returns at the end of a text what is held back, valid until the next call, and begins anew. */
GR_API void gr_stop_flush(struct gr_stop *s, const char **p, size_t *n);
GR_API void gr_stop_free(struct gr_stop **s);

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
enum gr_matmul { GR_MATMUL_AUTO, GR_MATMUL_OWN, GR_MATMUL_CUBLAS };

/* Types of K and V in a cache. */
#define GR_CACHE_TYPES "f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1|iq4_nl"

struct gr_session_params {
    uint32_t n_ctx;    /* cells in all, rounded up to 256 (in each pool); 0: the training context */
    uint32_t n_batch;  /* most tokens in one gr_decode */
    uint32_t n_ubatch; /* most tokens computed at once (micro-batch) */
    uint32_t n_seq_max; /* sequences 0 .. n_seq_max - 1, at most 256 */
    bool kv_unified;    /* true (default): one pool of cells for all sequences; false: a pool of
                           n_ctx / n_seq_max cells for each, where copying a sequence copies data */
    bool swa_full;      /* keep all cells in layers with a sliding window too, so that any part of a
                           sequence's end can be removed */
    uint32_t n_rollback; /* recurrent models: tokens that can be removed from a sequence's end; a
                            state is kept for each */
    int32_t n_threads, n_threads_batch; /* for single tokens; for prompts. 0: all processors, or
                                           this process's share of the machine's */
    const char *type_k, *type_v;        /* of GR_CACHE_TYPES; NULL: f16 */
    enum gr_rope_scaling rope_scaling;  /* the model's by default, as its parameters: NAN or 0 */
    float rope_freq_base, rope_freq_scale;
    float yarn_ext_factor; /* NAN: the model's; 0: no extrapolation */
    float yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
    uint32_t yarn_orig_ctx;
    bool kv_contiguous; /* place each micro-batch in adjacent cells */
    /* Self-Extend with an exact neighbour window (Jin et al. 2024): keys less than self_extend_w
     * tokens away are rotated by their positions, others by positions divided by self_extend_n. K
     * is stored for both, which doubles its size. self_extend_n <= 1: off. */
    int32_t self_extend_n, self_extend_w;
    /* Batches give embeddings (gr_embeddings), the input of the output matrix, instead of logits.
     * Implied for models without an output matrix. */
    bool embeddings;
    enum gr_pooling pooling; /* of embeddings */
    /* Strength of each adapter of the model; NAN: that of gr_adapter, 0: off. A saved state can be
     * restored with the same strengths only. */
    float adapter_scale[GR_MAX_ADAPTER];
    /* GPUs */
    bool no_kv_offload; /* keep all K and V in host memory and compute attention on the CPU */
    /* Minimum tokens of a micro-batch for op offload: layers on the CPU are computed on a GPU, with
     * their weights copied there each time; K and V stay. 0: automatic, negative: never. When
     * memory does not suffice it is off, and logged. */
    int32_t offload_from;
    bool no_graphs;    /* launch kernels one by one instead of a captured graph */
    enum gr_nvtx nvtx; /* ranges for profilers: none, steps (default), or layers too */
    /* Products of many tokens on a GPU: by cuBLASLt for the shapes that it was measured to be
     * faster at (default; none yet), by own kernels, or by cuBLASLt, without which a session is
     * then GR_E_UNSUPPORTED. */
    enum gr_matmul matmul;
    /* Debugging of kernels */
    bool no_pdl;         /* no programmatic dependent launch */
    bool no_sm90;        /* devices of compute capability 9.0 run the kernels of 8.0 */
    bool no_fuse;        /* no fused operations: each has launches of its own */
    bool check_counters; /* after each segment, read back the kernels' counters and fail with
                            GR_E_INTERNAL unless all are zero; slow */
    /* On the CPU: the bits of a token's logits, and of its K and V, do not depend on the other
     * tokens of a step or their number, on how a prompt is cut into batches, on the order of
     * sequences, on cells or pools, or on the number of threads; they do on the CPU's level and on
     * the other parameters. Without it they do not depend on what neighbours' tokens are, but may
     * on how many there are. Slower: on the CPU for few tokens (host/engine/README.md); with layers
     * on a GPU n_ubatch is 1, so that a step takes the time of as many single tokens. Where
     * texts are computed whole (encoders, GR_POOLING_MEAN) all layers are on the CPU if this is the
     * model's first session and n_gpu_layers is -1; else GR_E_UNSUPPORTED with layers on a GPU.
     * GR_E_INVALID with offload_from above 0 or matmul of GR_MATMUL_CUBLAS. */
    bool deterministic;
};
GR_API struct gr_session_params gr_session_params_default(void);

/* Places the weights on the model's devices and reserves memory there for one session with these
 * parameters; otherwise the first gr_session_open does so. With n_gpu_layers -1 as many layers as
 * fit are placed on GPUs, and logged; a number that does not fit is GR_E_NOMEM_DEV, with a message
 * of what would. Has no effect after it has succeeded once. */
GR_API int gr_model_load(struct gr_model *model, const struct gr_session_params *params);

/* Memory of a model and one session on a device, computed without loading anything. */
struct gr_fit_device {
    char name[16]; /* "CPU" of rank 0 comes first */
    char description[128];
    int32_t rank;
    int32_t first, n_layer;           /* its layers, consecutive; the output layer is the last */
    uint64_t weights;                 /* bytes */
    uint64_t cache;                   /* bytes of K, V and recurrent states */
    uint64_t work;                    /* bytes of intermediate results, scratch and step inputs */
    uint64_t free_bytes, total_bytes; /* 0 for a CPU */
};
#define GR_FIT_MAX 65 /* devices reported at most */
struct gr_fit {
    int32_t n_layer, n_gpu_layers; /* the output layer counted */
    int32_t n_cpu_experts;         /* layers, from the first one, whose experts are on the CPU */
    uint64_t host_free; /* bytes usable now in the memory of rank 0's machine; 0: unknown */
    int32_t n_device;
    struct gr_fit_device device[GR_FIT_MAX];
};
/* GR_E_NOMEM_DEV, with *fit filled in, when the parameters do not fit. */
GR_API int gr_model_fit(struct gr_model *model, const struct gr_session_params *params,
                        struct gr_fit *fit);

/* The same for an open session, with the memory that is free now. */
GR_API int gr_session_fit(const struct gr_session *s, struct gr_fit *fit);

/* The model must outlive the session. */
GR_API int gr_session_open(struct gr_session **out, struct gr_model *model,
                           const struct gr_session_params *params);
GR_API void gr_session_close(struct gr_session **session);
/* Changes the number of cells (n_ctx of gr_session_params), keeping what is stored. GR_E_KV_FULL
 * when that does not fit, GR_E_INVALID when LongRoPE rotates differently at the new length. Needs
 * memory for the old and the new cache and a copy of what is stored at the same time. Invalidates
 * the last logits; n_batch never grows. */
GR_API int gr_session_resize(struct gr_session *s, uint32_t n_ctx);
/* Changes the strength of each adapter (adapter_scale of gr_session_params) for the batches, saved
 * and restored states from now on; cells keep what they were computed with. Those in use are cheap
 * to come back to. With a strength that was 0 until now memory may be needed: op offload ends where
 * it is too little for that, otherwise GR_E_NOMEM_*, with nothing changed. GR_E_INVALID: a number
 * that is not finite, in a tap, or memory is needed while batches are pending; GR_E_UNSUPPORTED:
 * with several ranks. */
GR_API int gr_session_set_adapters(struct gr_session *s, const float scale[GR_MAX_ADAPTER]);
/* Cells in all, and of one sequence (equal in one pool). */
GR_API uint32_t gr_session_n_ctx(const struct gr_session *s);
GR_API uint32_t gr_session_n_ctx_seq(const struct gr_session *s);
/* Most tokens in one gr_decode. */
GR_API uint32_t gr_session_n_batch(const struct gr_session *s);
GR_API struct gr_model *gr_session_model(const struct gr_session *s);

/* Size of a session's cache, computed without allocating. Bytes: K (with the grouped copy), V,
 * recurrent states, and all. */
struct gr_session_size {
    uint64_t k, v, state, total;
    uint32_t n_cell, n_cell_swa; /* cells of layers with full attention, with a sliding window */
    uint32_t n_kv_pool;          /* pools */
};
GR_API int gr_session_size(const struct gr_model *model, const struct gr_session_params *params,
                           struct gr_session_size *size);

/* Context lengths that such a session supports, and ways to go beyond; computed without opening
 * one. An operation that is possible here may still be refused for the state of a sequence. */
struct gr_context_limits {
    int32_t n_good;     /* training context, stretched by the rope parameters in effect */
    bool can_shift;     /* gr_context_shift */
    bool can_extend[2]; /* Self-Extend, by enum gr_self_extend_mode */
};
GR_API int gr_context_limits(const struct gr_model *model, const struct gr_session_params *params,
                             struct gr_context_limits *limits);

/* Tokens to run. Arrays stay the caller's. */
struct gr_batch {
    int32_t n_tok;
    const int32_t *token;  /* [n_tok] */
    const int32_t *pos;    /* [n_tok]; NULL: each sequence continues at its end */
    const int32_t *n_seq;  /* [n_tok] sequences of each token; NULL: one each */
    const int32_t *seq;    /* [sum of n_seq] their ids; NULL: sequence 0 */
    const int8_t *logits;  /* [n_tok] 1: logits wanted; NULL: for the last token only */
    const int32_t *pos_yx; /* [2, n_tok] rows, then columns, of image tokens (M-RoPE), besides pos;
                              NULL: text, where both equal pos */
    const float *embd;     /* [n_tok, n_embd] with token NULL: finite vectors that take the place of
                              the token embeddings, from an encoder of images or sound for example.
                              Scaled, normalised and given learned positions likewise, except for
                              Gemma 3's scale. Inputs to later layers (deepstack): not supported */
};
/* Runs a batch. Positions beyond a model's learned ones (n_learned_pos of gr_model_info) are
 * GR_E_INVALID. A refused batch (GR_E_INVALID, GR_E_KV_FULL) leaves the cache unchanged; so does
 * one that fails while it runs (GR_E_CANCELLED, GR_E_NOMEM_*, GR_E_DEVICE), except for sequences of
 * the batch whose recurrent state or sliding window was overwritten: those are emptied, and the
 * message names them. */
GR_API int gr_decode(struct gr_session *s, const struct gr_batch *batch);

/* Runs a batch of whole texts, one for each of its sequences, through a model's encoder; gr_decode
 * of these sequences attends to them from then on. Gives no logits. Positions start at 0 in each
 * text; a batch is computed at once (at most n_ubatch tokens). Replaces the text and removes the
 * tokens that its sequences had, also on failure, except GR_E_INVALID and GR_E_UNSUPPORTED (a model
 * without an encoder: has_encoder of gr_model_info), which change nothing.
 *
 * The text belongs to its sequence: gr_kv_seq_cp copies it whole, whatever the range (GR_E_INVALID
 * when the other sequence has a different one); saved states contain it; it is removed when the
 * whole sequence is. gr_kv_used does not count it. Sequences without a text attend to none. */
GR_API int gr_encode(struct gr_session *s, const struct gr_batch *batch);

/* gr_decode in two steps, for models whose layers are divided among ranks (pipeline):
 * gr_decode_begin returns when the first stage has computed its layers, and the other stages
 * continue while the next batch begins. Batches end in the order they began; at most GR_MAX_PENDING
 * are pending. Meanwhile all other calls, sequence operations included, act as if the pending
 * batches had ended; gr_decode and gr_session_resize need that none is pending. gr_decode_begin
 * fails as gr_decode does, and its batch is not pending then. With one rank a batch is complete
 * when gr_decode_begin returns. */
#define GR_MAX_PENDING 128
GR_API int gr_decode_begin(struct gr_session *s, const struct gr_batch *batch);
/* Waits for the oldest pending batch, which becomes the last batch of gr_logits and
 * gr_sampled_token. */
GR_API int gr_decode_end(struct gr_session *s);

/* Sets a callback (NULL: none) that receives the progress of each batch (gr_decode,
 * gr_decode_begin, gr_encode) in thousandths of a token: on the CPU after each operation, as if all
 * took the same time; on GPUs after each micro-batch; in a pipeline, of the first stage only. */
GR_API void gr_session_progress(struct gr_session *s, gr_progress_fn *fn, void *user);

/* Logits [n_vocab] of the i-th token of the last batch (negative: from its end), valid until the
 * next gr_decode or gr_decode_end. NULL if they were not wanted, and in a session of embeddings. */
GR_API const float *gr_logits(const struct gr_session *s, int32_t i);

/* Embeddings [gr_session_n_embd], not normalised, valid as long as logits are; NULL if there is
 * none. gr_embeddings: of the i-th token of the last batch, with pooling NONE, if wanted
 * (gr_batch.logits). gr_embeddings_seq: of a sequence with tokens in the last batch, with other
 * pooling than NONE.
 *
 * MEAN and CLS need whole sequences in one batch of at most n_ubatch tokens; so does every model
 * without a cache. RANK needs a model with a classifier and gives one number for each label. */
GR_API const float *gr_embeddings(const struct gr_session *s, int32_t i);
GR_API const float *gr_embeddings_seq(const struct gr_session *s, int32_t seq);
/* Length of an embedding, or number of scores (RANK); 0 in a session of logits. */
GR_API int32_t gr_session_n_embd(const struct gr_session *s);
/* Pooling in effect, never MODEL. */
GR_API enum gr_pooling gr_session_pooling(const struct gr_session *s);
GR_API const char *gr_pooling_name(enum gr_pooling pooling); /* "mean" */

struct gr_sampler;

/* Samples tokens of a sequence on the GPU that has the logits (NULL: no longer), so that an id is
 * copied back instead of a row of logits. Takes effect with the next batch whose wanted rows all
 * belong to such sequences (by the first sequence of a token): gr_sampled_token then gives the ids,
 * and gr_logits NULL. Advances the sampler as gr_sampler_pick does; penalties count
 * the tokens that were accepted before the batch, so a batch in which a sampler with penalties has
 * several wanted rows gives logits. The caller keeps ownership of the sampler, which must live as
 * long as it is set. GR_E_UNSUPPORTED: other samplers than penalties,
 * top-k, top-p, min-p and temperature, or another order of these. */
GR_API int gr_session_set_sampler(struct gr_session *s, int32_t seq, struct gr_sampler *sampler);
/* Id sampled for the i-th token of the last batch (negative: from its end). GR_E_CHECK: its logits
 * were not finite, or left no token to draw; GR_E_INVALID: none was sampled. */
GR_API int gr_sampled_token(const struct gr_session *s, int32_t i, int32_t *id);

/* Cancels a gr_decode that runs in another thread or under a signal handler: it returns
 * GR_E_CANCELLED. In a pipeline, batches that the first stage has finished still complete. */
GR_API void gr_session_cancel(struct gr_session *s);

/* ---- sequences in the cache ---- */

/* Ranges of positions are [p0, p1); p0 < 0: from 0, p1 < 0: to the end. seq < 0: all sequences
 * (gr_kv_seq_rm only). GR_E_UNSUPPORTED, with nothing changed, where the cache cannot do it: cells
 * that a sliding window has dropped would be needed, recurrent states cannot be cut or moved, and
 * learned positions are part of K and V. */

GR_API int gr_kv_seq_rm(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1);
/* Adds src's cells to dst: shared in one pool, copied between pools. */
GR_API int gr_kv_seq_cp(struct gr_session *s, int32_t src, int32_t dst, int32_t p0, int32_t p1);
/* Copies src's cells to cells of dst's own, so that either can be moved without the other. */
GR_API int gr_kv_seq_dup(struct gr_session *s, int32_t src, int32_t dst, int32_t p0, int32_t p1);
/* Removes all other sequences. */
GR_API int gr_kv_seq_keep(struct gr_session *s, int32_t seq);
/* Adds delta to positions; cells whose position becomes negative are freed. K is rotated before the
 * next decode. A cell shared by sequences moves in all of them (see gr_kv_seq_dup). */
GR_API int gr_kv_seq_add(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t delta);
/* Divides positions by d > 0, rounding down. */
GR_API int gr_kv_seq_div(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t d);
GR_API void gr_kv_clear(struct gr_session *s);
/* Compacts the cache: moves used cells to the front. */
GR_API int gr_kv_defrag(struct gr_session *s);
/* Smallest and largest position of a sequence, -1 if it is empty. */
GR_API int32_t gr_kv_seq_pos_min(const struct gr_session *s, int32_t seq);
GR_API int32_t gr_kv_seq_pos_max(const struct gr_session *s, int32_t seq);
/* The lowest position from which on gr_kv_seq_rm can cut the end of a sequence off anywhere; 0 for
 * an empty one. (All of a sequence can always be removed.) */
GR_API int32_t gr_kv_seq_cut_min(const struct gr_session *s, int32_t seq);
/* Number of used cells. */
GR_API uint32_t gr_kv_used(const struct gr_session *s);
/* Cells of a sequence: all, those that other sequences share, those whose K waits to be rotated. Of
 * the layers without a window, where there are such. */
struct gr_kv_count {
    uint32_t n_cell, n_shared, n_shift;
};
GR_API struct gr_kv_count gr_kv_seq_count(const struct gr_session *s, int32_t seq);
/* Prints a map of the cells. */
GR_API void gr_kv_dump(const struct gr_session *s, FILE *out);

/* Context shift, to continue in a full context: removes the positions [n_keep, n_keep + n_discard)
 * of sequence `seq` and moves the later ones down. n_keep (BOS counted) is at most the sequence's
 * cells - 4. n_discard <= 0: half of what is not kept, leaving at least one token. *n_past (unless
 * NULL) receives the next position. On failure nothing has changed: GR_E_INVALID: nothing to
 * discard; GR_E_UNSUPPORTED: positions cannot change (recurrent states, learned positions, cells
 * dropped by a sliding window) or cells to be moved are shared with another sequence (see
 * gr_kv_seq_dup). Not for a sequence with gr_self_extend, whose windows it would displace.
 *
 * Each shift rounds K again. A number changes by at most 2^-11 (f16) or 2^-8 (bf16) of itself,
 * 1/250 (q8_0) or 1/7.9 (q4_0) of the largest in its block of 32; the mean square error grows by
 * about 5e-8, 3e-6, 3e-5 and 1e-2 of that of K, so q4_0 does not survive ten shifts; nor do q4_1
 * and iq4_nl, and q5_0 and q5_1 lose a quarter as much. A token is
 * moved by each shift that it survives; with n_discard <= 0 by one or two. */
GR_API int gr_context_shift(struct gr_session *s, int32_t seq, int32_t n_keep, int32_t n_discard,
                            int32_t *n_past);
/* Checks in advance whether gr_context_shift with n_discard <= 0 will be possible when the context
 * is full; GR_E_UNSUPPORTED: no. */
GR_API int gr_context_can_shift(struct gr_session *s, int32_t seq, int32_t n_keep);

/* ---- Self-Extend (Jin et al. 2024) ---- */

/* CLASSIC moves and divides positions in the cache, window by window (gr_self_extend): it needs no
 * memory, but just after a division the newest tokens are grouped too. WINDOW keeps the last w
 * tokens exact at all times, as published (self_extend_n and self_extend_w of the session): K takes
 * twice the memory, a step reads no more. */
enum gr_self_extend_mode { GR_SELF_EXTEND_CLASSIC, GR_SELF_EXTEND_WINDOW };
/* Number of tokens for which no position (CLASSIC) or distance (WINDOW) reaches n_train, the
 * training context. 0 if n does not divide w. */
GR_API int64_t gr_self_extend_capacity(enum gr_self_extend_mode mode, int32_t n_train, int32_t n,
                                       int32_t w);
/* Chooses the smallest factor *n for n_ctx tokens, and the largest window *w that it divides, at
 * most n_train / 4 and *w on entry. *n = 1: not needed. GR_E_INVALID: impossible. */
GR_API int gr_self_extend_choose(enum gr_self_extend_mode mode, int32_t n_train, int32_t n_ctx,
                                 int32_t *n, int32_t *w);

/* State of CLASSIC for sequence 0: once it holds n_past >= i + w positions, n neighbours are merged
 * to one position, window by window. */
struct gr_self_extend {
    int32_t n, w; /* group factor; window, a multiple of n */
    int32_t i;    /* start of the next window; initially 0 */
};
/* Merges full windows; call before each decode. Lowers *n_past by the positions merged. Logs each
 * step at level DEBUG. */
GR_API int gr_self_extend(struct gr_session *s, struct gr_self_extend *se, int32_t *n_past);
/* Maximum tokens to decode before the next gr_self_extend, so that a prompt in pieces gives the
 * same result as token by token. */
GR_API int32_t gr_self_extend_remaining(const struct gr_self_extend *se, int32_t n_past);

/* ---- saving and restoring ---- */

/* A state holds everything that a session keeps (seq -1) or keeps of one sequence: cells with their
 * positions, K, V and recurrent states; and n_note bytes of the caller's, such as the tokens of the
 * text (NULL: none).
 *
 * It can be restored with the same model and the parameters that give stored numbers their meaning:
 * types of K and V, rope, self_extend_n and self_extend_w, adapter strengths. All others may
 * differ: n_ctx (if the cells fit), kv_unified, n_seq_max (if it covers the sequences of a whole
 * state), swa_full, n_rollback (older states are dropped), devices. Results after a restore equal
 * those without it to the bit, on the same kind of device. In one pool sequences share again the
 * cells that they shared; in separate pools each gets copies.
 *
 * Saving applies pending shifts and changes nothing else. *data and *note are freed by
 * gr_state_free. Files are written to a temporary name, synced and renamed, so that the name always
 * has the old or the new state; they are readable by their owner only. Checksums detect damage, not
 * manipulation. */
GR_API int gr_state_save(struct gr_session *s, int32_t seq, const void *note, size_t n_note,
                         void **data, size_t *n);
GR_API int gr_state_save_file(struct gr_session *s, int32_t seq, const void *note, size_t n_note,
                              const char *path);
/* Replaces everything in the session (seq -1), or sequence seq by a state of one sequence. All
 * checks precede any change: GR_E_CORRUPT (damaged or truncated), GR_E_UNSUPPORTED (another version
 * of the format), GR_E_INVALID (another model, other parameters, no such sequence), GR_E_KV_FULL,
 * GR_E_IO, GR_E_NOMEM_*. When reading or copying fails after that, the destination is emptied, and
 * the message says so. note NULL: not wanted. */
GR_API int gr_state_load(struct gr_session *s, int32_t seq, const void *data, size_t n, void **note,
                         size_t *n_note);
GR_API int gr_state_load_file(struct gr_session *s, int32_t seq, const char *path, void **note,
                              size_t *n_note);
GR_API void gr_state_free(void *data);

/* ---- taps: intermediate results by name ---- */

/* Calls fn with every tensor named `name` ("": all) as it is computed, as f32 [rows, cols]. NULL fn
 * ends it, also from within fn, where gr_decode and sequence operations are refused.
 * GR_E_INVALID with several ranks. */
typedef void gr_tensor_fn(const char *name, int layer, const float *data, int64_t rows,
                          int64_t cols, void *user);
GR_API int gr_session_tap(struct gr_session *s, const char *name, gr_tensor_fn *fn, void *user);

/* ---- plans ---- */

/* Prints the plans that have run since the last call, of the 12 used last: the shape of the
 * micro-batch; bytes of intermediate results on each device, and of the step's inputs; and segment
 * by segment, each on one device, what is copied to it and its operations with layer and tensors:
 * TYPE [rows, columns], of an intermediate result with its number and its offset in bytes. A text
 * to read, which may change. With several ranks: the part of rank 0. */
GR_API void gr_session_plans(struct gr_session *s, FILE *out);

/* ---- times ---- */

/* Time of one operation. */
struct gr_op_sample {
    const char *device, *op; /* "CUDA0", "matmul" */
    const char *kernel;      /* NULL on the CPU, and when it is part of the previous kernel */
    int32_t layer;           /* -1: outside the layers */
    int64_t start_ns, ns;    /* start, since gr_session_time; duration */
    int64_t bytes;           /* minimum memory traffic */
};
typedef void gr_sample_fn(const struct gr_op_sample *sample, void *user);
/* Calls fn after every operation (NULL: ends it). Operations are timed one by one meanwhile, which
 * is slower. GR_E_INVALID with several ranks. */
GR_API int gr_session_time(struct gr_session *s, gr_sample_fn *fn, void *user);
/* Time of a rank since its session was opened: computing its layers (with copies between its
 * devices), waiting for the previous stage, sending to the next one. Ranks that share layers list
 * the same ones. */
struct gr_stage {
    int32_t rank;
    int32_t first_layer, n_layer; /* the output layer counts as the last */
    char device[16];              /* its last device */
    char host[64];                /* "": this machine, when the model is not divided */
    int64_t busy_ns, wait_ns, transfer_ns;
    uint64_t n_ubatch;
};
/* Fills in at most n ranks; returns their number, 0 on failure. */
GR_API int32_t gr_session_stages(struct gr_session *s, struct gr_stage *stage, int32_t n);

/* Activity of a rank during a micro-batch; each rank numbers them from 0. */
enum gr_span { GR_SPAN_WAIT, GR_SPAN_BUSY, GR_SPAN_TRANSFER };
struct gr_stage_span {
    int32_t rank;
    uint64_t ubatch;
    enum gr_span what;
    int64_t start_ns, ns; /* monotonic clock of rank 0 */
};
typedef void gr_span_fn(const struct gr_stage_span *span, void *user);
/* Calls fn with the activities of every rank since the last call (the newest 4,096 of each), rank
 * by rank, in order of time. There are none with one rank. */
GR_API int gr_session_spans(struct gr_session *s, gr_span_fn *fn, void *user);

/* Starts or ends the recording of a waiting profiler (nsys --capture-range=cudaProfilerApi). */
GR_API int gr_session_profile(struct gr_session *s, bool on);

/* ---- several processes ---- */

/* A world is the set of processes started by mpirun or srun that run models together; each is a
 * *rank*. All make the same calls up to gr_model_open, with the same parameters. Then rank 0
 * continues as a program with one process does, and the others call gr_world_serve.
 *
 * When a rank is lost (ended, hung or unreachable), every call on the other ranks that needs it
 * fails with GR_E_PEER_LOST and a message that names it; what is open can only be closed then. */

/* *out is NULL, with status 0, when the process was not started as one of several. */
GR_API int gr_world_open(struct gr_world **out);
GR_API int32_t gr_world_rank(const struct gr_world *world);
GR_API int32_t gr_world_size(const struct gr_world *world);
/* Writes "rank 2 (host, pid 17)" to buf [n] and returns it. */
GR_API const char *gr_world_name(const struct gr_world *world, int32_t rank, char *buf, size_t n);
/* Ranks > 0: takes part in what rank 0 does with the model until rank 0 closes it. */
GR_API int gr_world_serve(struct gr_world *world, struct gr_model *model);
/* Sets a callback that is called once, from its own thread, after a rank was lost; `line` says
 * which and why. Calls stuck in a driver or in MPI may never return: the callback can end the
 * program. */
typedef void gr_lost_fn(int32_t rank, const char *line, void *user);
GR_API void gr_world_on_lost(struct gr_world *world, gr_lost_fn *fn, void *user);
/* Leaves the world and waits a few seconds for the other ranks to leave; to ranks that continue it
 * is lost. Returns the exit code for this process: `code` on rank 0 and without a world, otherwise
 * that of rank 0 if it is known. */
GR_API int gr_world_close(struct gr_world **world, int code);

/* ---- names ---- */

/* Edit distance, ignoring case: insertions, deletions, substitutions and swaps of neighbours. For
 * suggestions of the name that was meant; names are cut to 64 bytes. */
GR_API size_t gr_edit_distance(const char *a, size_t n_a, const char *b, size_t n_b);

/* ---- files ---- */

/* A file being written. How depends on what the name refers to:
 * - nothing, or a regular file: the new file replaces it when it is complete, or not at all;
 * - a device, a FIFO, the file of stdout or stderr: written in place, sequentially, not replaced;
 * - a symbolic link: as its target, which may not exist yet; the link stays;
 * - a folder or a socket: refused. */
struct gr_output;
enum gr_output_flag {
    GR_OUTPUT_KEEP = 1,    /* refuse to replace a file or to write to a block device */
    GR_OUTPUT_SEEKS = 2,   /* not written sequentially: refuse devices and FIFOs */
    GR_OUTPUT_PRIVATE = 4, /* readable by the owner only */
    GR_OUTPUT_LIVE = 8,    /* truncate and write regular files in place, to be read meanwhile */
    GR_OUTPUT_QUICK = 16,  /* do not wait for the disk */
};
/* Checks whether gr_output_open would succeed; changes nothing. `flags`: sum of the above.
 * GR_E_INVALID: refused for what the name refers to; GR_E_IO: not writable. */
GR_API int gr_output_check(const char *path, unsigned flags);
GR_API int gr_output_open(struct gr_output **out, const char *path, unsigned flags);
/* Appends n bytes. After a failure every call fails with the same status. */
GR_API int gr_output_put(struct gr_output *o, const void *data, size_t n);
/* Passes buffered bytes to the operating system. */
GR_API int gr_output_flush(struct gr_output *o);
/* Completes the file and frees *o. On failure the name refers to what it did before. */
GR_API int gr_output_commit(struct gr_output **o);
/* Discards what was written, where possible, and frees *o. */
GR_API void gr_output_abort(struct gr_output **o);
/* Creates a folder if it is missing, also as target of a symbolic link. GR_E_IO: not writable. */
GR_API int gr_output_folder(const char *path);

/* Prints metadata, tensors and sizes of a GGUF file. */
GR_API int gr_inspect(const char *path, FILE *out, bool json);

/* The functions below write model files by the rules of gr_output. An existing file is refused
 * (GR_E_INVALID) unless `overwrite`, which may replace an input too. All checks precede the work,
 * and log lines report progress. */

/* Importance matrix: mean square of the input of each column of each matrix. */
struct gr_imatrix;
GR_API int gr_imatrix_new(struct gr_imatrix **out);
GR_API void gr_imatrix_free(struct gr_imatrix **m);
/* Adds all that the session computes to m (NULL: ends it). m must live until then, or longer than
 * the session. `output`: include the output matrix. GR_E_INVALID with several ranks. */
GR_API int gr_session_imatrix(struct gr_session *s, struct gr_imatrix *m, bool output);
/* Metadata of the file: n more chunks of `size` tokens; the name of the text. */
GR_API void gr_imatrix_chunks(struct gr_imatrix *m, uint32_t n, uint32_t size);
GR_API int gr_imatrix_add_dataset(struct gr_imatrix *m, const char *name);
/* Adds the contents of a file, GGUF or llama.cpp's earlier format. */
GR_API int gr_imatrix_load(struct gr_imatrix *m, const char *path);
/* Writes GGUF. */
GR_API int gr_imatrix_save(const struct gr_imatrix *m, const char *path, bool overwrite);

struct gr_quantize_params {
    const char *type; /* recipe, with llama.cpp's name and mix ("Q4_K_M"); "COPY": keep all types */
    const char *imatrix;     /* file of gr_imatrix_save or llama.cpp; NULL: none */
    const char *output_type; /* type of the output matrix, "q8_0"; NULL: as the recipe says */
    const char *embedding_type;
    const char *const *tensor_types; /* "PATTERN=TYPE", NULL-terminated: type of tensors whose name
                                        contains a match of the regular expression, by the first
                                        that matches, GR_E_INVALID if a pattern matches none; NULL:
                                        none */
    bool pure;                       /* one type for all matrices */
    bool leave_output;               /* keep the type of output.weight */
    bool allow_requantize;           /* convert quantised tensors too, at a second loss */
    bool keep_split;                 /* write as many files as the input has */
    bool dry_run;                    /* write nothing; log what would be written */
    bool overwrite;
    int32_t n_threads;        /* 0: all processors */
    gr_progress_fn *progress; /* reports bytes of tensors read; NULL: none */
    void *progress_user;
};
/* Writes the model `in` with its matrices converted to `out` (keep_split: to
 * out-00001-of-0000N.gguf and so on). */
GR_API int gr_quantize_file(const char *in, const char *out,
                            const struct gr_quantize_params *params);

/* Splits a model file into prefix-00001-of-0000N.gguf and so on, each with at least one tensor, at
 * most max_tensors tensors and max_bytes bytes of them (0: any). */
struct gr_split_params {
    uint32_t max_tensors;
    uint64_t max_bytes;
    bool dry_run, overwrite;
};
GR_API int gr_split_file(const char *in, const char *prefix, const struct gr_split_params *params);
/* Merges the parts of a model, of which `in` is the first. */
GR_API int gr_merge_file(const char *in, const char *out, bool overwrite);

#ifdef __cplusplus
}
#endif

#endif
