/* An open model: file, checked hyper-parameters, bound weights and vocabulary. Read-only once open,
 * except that the first session (or gr_model_load) uploads weights to the devices of a slice.
 * Shared by sessions. */
#ifndef GR_MODEL_MODEL_H
#define GR_MODEL_MODEL_H

#include <pthread.h>

#include "base/alloc.h"
#include "base/progress.h"
#include "cpu/cpu.h"
#include "gguf/gguf.h"
#include "gpurun.h"
#include "model/arch.h"
#include "model/lora.h"
#include "model/slice.h"
#include "model/split.h"
#include "text/vocab.h"

#define GR_MAX_SLICE 64 /* ranks of one process */

struct gr_model {
    struct gr_gguf *gguf;
    struct gr_budget budget; /* memory for the metadata and data derived from it */
    const struct gr_arch *arch;
    struct gr_hparams hp;
    struct gr_vocab *vocab;
    struct gr_ten *weight,
        *bias;    /* [n_layer + 1][GR_N_SLOT]: row 0 is outside the layers; absent ones are zero */
    float *scale; /* [n_layer + 1][GR_N_SLOT]: factors of products with a matrix */
    struct gr_vec owned;  /* void *: tensors that were read or converted into memory */
    struct gr_lora *lora; /* [n_lora] adapters */
    struct gr_lora_file *lora_file;
    int32_t n_lora, n_lora_room;
    bool vocab_only;
    char *name, *file_type;
    char **label; /* [n_label] of a classifier's scores */
    int32_t n_label;
    uint64_t n_params, n_bytes;  /* of all tensors */
    struct gr_progress progress; /* of reading weights, or uploading them to devices */
    /* devices */
    int32_t n_gpu_wanted; /* layers on GPUs, -1 = all that fit */
    bool require_gpu;
    struct gr_cpu_use cpu; /* how threads run; `part` and `of` are set by sessions */
    enum gr_cpu_level cpu_level;
    struct gr_split_wish split;
    int32_t n_rank;         /* ranks that run it together: threads of this process, or the ranks of
                               world */
    struct gr_world *world; /* processes that run the model; NULL: only this one */
    gr_survey_fn *survey;   /* asks all ranks; called with survey_user, or the model */
    void *survey_user;
    struct gr_team *team;                 /* ranks/team.h; NULL until there is one; under the
                                             lock */
    char where[192];                      /* for gr_model_info; under the lock */
    pthread_mutex_t lock;                 /* protects what the slices have on devices */
    struct gr_slice *slice[GR_MAX_SLICE]; /* of the ranks of this process; [0]: of the rank that
                                             opened it */
    int32_t n_slice;
};

/* Reads the thread parameters. */
int gr_model_threads(struct gr_cpu_use *out, const struct gr_model_params *p);

/* Reads and checks the hyper-parameters of `arch` from the file. */
int gr_hparams_read(struct gr_hparams *hp, const struct gr_gguf *g, const struct gr_arch *arch);

/* gr_arch_find returns the architecture called `name`, or NULL; gr_arch_nearest the known names
 * most similar to it; gr_arch_about a short description, derived from its table; gr_arch_at the
 * i-th architecture. */
#define GR_N_NEAREST 3
const struct gr_arch *gr_arch_find(struct gr_str name);
void gr_arch_nearest(struct gr_str name, const char *nearest[GR_N_NEAREST]);
void gr_arch_about(const struct gr_arch *a, char *about, size_t n);
const struct gr_arch *gr_arch_at(int i); /* NULL past the end */

/* Binds every tensor of the architecture's table: checks type and shape, and points into the
 * mapping or reads into memory. Norms, biases and other vectors become f32. GR_E_CORRUPT names
 * tensor, expected, found. */
int gr_model_bind(struct gr_model *m, bool check_finite);

/* Binds one tensor of a file, the model's or an adapter's; want: its shape, innermost dimension
 * first; f32: convert to f32 whatever its type. */
int gr_model_bind_tensor(struct gr_model *m, const struct gr_gguf *g,
                         const struct gr_gguf_tensor *t, const int64_t *want, int n_want, bool f32,
                         bool check_finite, struct gr_ten *w);
/* Returns whether the token embeddings serve as the output matrix. */
bool gr_model_is_tied(const struct gr_model *m);

/* Records a graph of one token, so that a tensor that only the graph needs is missed now and not at
 * the first decode; with adapters, also checks that all their matrices are used. hp, share, weight,
 * bias: as in struct gr_graph_env; lora: [m->n_lora] or NULL. */
int gr_model_try_graph(const struct gr_model *m, const struct gr_hparams *hp,
                       const struct gr_share *share, const struct gr_ten *weight,
                       const struct gr_ten *bias, const struct gr_lora *lora);

/* Parameters of a session that turn positions into angles: the caller's where given, otherwise the
 * model's. */
struct gr_rope_opt {
    enum gr_scaling scaling;
    float freq_base, freq_scale; /* of the full layers */
    float ext_factor, attn_factor, beta_fast, beta_slow;
    int32_t n_ctx_orig;
};
void gr_rope_resolve(struct gr_rope_opt *o, const struct gr_hparams *hp,
                     const struct gr_session_params *p);
/* Number of positions that stay within the model's training range: its training context, times the
 * factor by which the session's parameters stretch positions more than the file does. Another base
 * is not taken into account, because its reach is unknown. */
int32_t gr_rope_reach(const struct gr_hparams *hp, const struct gr_session_params *p);
/* Fills freq with the radians per position of each of the n_rot / 2 pairs, scaling included, and
 * *mag with the magnitudes. factors: [n_rot / 2] or NULL, the model's own divisors. */
void gr_rope_freqs(const struct gr_rope_opt *o, const struct gr_hparams *hp, bool swa,
                   const float *factors, double *freq, struct gr_rope_mag *mag);
/* M-RoPE: sets section [n_rot / 2], the position by which each pair rotates: 0 = t, 1 = y, 2 = x, 3
 * = none (position 0). Returns false and leaves section unchanged when tokens have a single
 * position. */
bool gr_rope_sections(const struct gr_hparams *hp, int32_t *section);

#endif
