/* An open model: file, checked hyper-parameters, bound weights and vocabulary. Read-only once open,
 * except that the first session (or gr_model_load) uploads weights to the devices of a rank model.
 * Shared by sessions. */
#ifndef GR_MODEL_MODEL_H
#define GR_MODEL_MODEL_H

#include <pthread.h>

#include "arch/arch.h"
#include "base/alloc.h"
#include "base/progress.h"
#include "cpu/cpu.h"
#include "gguf/gguf.h"
#include "gpurun.h"
#include "grammar/token_trie.h"
#include "model/layer_split.h"
#include "model/lora.h"
#include "model/rank_model.h"
#include "text/vocab.h"

#define GR_MAX_RANK_MODEL 64 /* ranks of one process */

struct gr_model {
    struct gr_gguf *gguf;
    struct gr_budget budget; /* memory for the metadata and data derived from it */
    const struct gr_arch *arch;
    struct gr_hparams hp;
    struct gr_vocab *vocab;
    /* [n_layer + 1][GR_N_SLOT]: row 0 is outside the layers; absent ones are zero. scale: factors
     * of products with a matrix. */
    struct gr_ten *weight, *bias;
    float *scale;
    struct gr_vec owned;  /* void *: tensors that were read or converted into memory */
    struct gr_lora *lora; /* [n_lora] adapters */
    struct gr_lora_file *lora_file;
    int32_t n_lora, n_lora_cap;
    bool vocab_only;
    char *name, *file_type;
    char **label; /* [n_label] of a classifier's scores */
    int32_t n_label;
    uint64_t n_params, n_bytes;  /* of all tensors */
    struct gr_progress progress; /* of reading weights, or uploading them to devices */
    /* Weights apart from their layer (model/weight_homes.h): of [n_layer + 1][GR_N_SLOT] 1 + the
     * index of a device's name, 0: none named; NULL: no patterns. text: the patterns, by lines. */
    struct {
        uint8_t *of;
        char name[GR_MAX_DEVICE][16];
        int32_t n_name;
        struct gr_vec text;
    } homes;
    bool has_experts;
    int32_t n_cpu_experts; /* as wanted; -1: chosen */
    /* devices */
    int32_t n_gpu_wanted; /* layers on GPUs, -1 = all that fit */
    bool require_gpu, use_mlock;
    struct gr_cpu_use cpu; /* how threads run; `part` and `of` are set by sessions */
    enum gr_cpu_level cpu_level;
    struct gr_split_request split;
    int32_t n_rank;         /* that run it together: threads of this process, or ranks of `world` */
    struct gr_world *world; /* processes that run the model; NULL: only this one */
    gr_survey_fn *survey;   /* asks all ranks; called with survey_user, or the model */
    void *survey_user;
    struct gr_team *team; /* of the ranks that run it, NULL until there is one; under the lock */
    char where[192];      /* for gr_model_info; under the lock */
    pthread_mutex_t lock; /* protects what the rank models have on devices */
    struct gr_token_trie *trie; /* for grammars, NULL until there is one; under the lock */
    /* one for each rank of this process; [0]: of the rank that opened it */
    struct gr_rank_model *rank_model[GR_MAX_RANK_MODEL];
    int32_t n_rank_model;
};

/* Makes a model with the settings of p, which gr_model_read fills from a file. */
int gr_model_new(struct gr_model **out, const struct gr_model_params *p);
/* Reads the file at `path`, NULL: the built-in model, and binds its weights and adapters; or, with
 * p->vocab_only, the vocabulary alone. Rank models are added later (gr_rank_model_add). */
int gr_model_read(struct gr_model *m, const char *path, const struct gr_model_params *p);
/* Frees a model and its rank models; there is no team any more. */
void gr_model_free(struct gr_model **model);

/* Reads the thread parameters. */
int gr_model_threads(struct gr_cpu_use *out, const struct gr_model_params *p);

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

#endif
