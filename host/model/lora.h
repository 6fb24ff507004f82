/* Adapters: small matrices that change the products with a model's weights without modifying these
 * (LoRA, Hu et al. 2021, arXiv 2106.09685). A file has A and B for some of the weights; where a
 * graph multiplies with W it adds scale * alpha / rank * B (A x). */
#ifndef GR_MODEL_LORA_H
#define GR_MODEL_LORA_H

#include "arch/arch.h"
#include "gpurun.h"

struct gr_gguf;
struct gr_model;

struct gr_lora_file {
    struct gr_gguf *gguf; /* its matrices may point into the mapping */
    float scale;          /* default scale in sessions */
};

/* Allocates n adapters, each with (n_layer + 1) * GR_N_SLOT absent pairs. NULL: out of memory. */
struct gr_lora *gr_lora_new(int32_t n, int32_t n_layer);
void gr_lora_free(struct gr_lora **lora, int32_t n);

/* Opens the adapter files in p and binds their matrices to the model's weights, which must be
 * bound. GR_E_UNSUPPORTED or GR_E_CORRUPT names file and tensor: another architecture or shape,
 * half of a pair, a weight that the model does not have or that its graph does not multiply
 * with. */
int gr_lora_open(struct gr_model *m, const struct gr_model_params *p);
/* Closes the adapter files of a model and frees the adapters. */
void gr_lora_close(struct gr_model *m);

#endif
