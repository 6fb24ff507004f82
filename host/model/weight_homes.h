/* Weights apart from their layer: on a device that the user names for tensors whose names match a
 * regular expression, or experts on the CPU. Only matrices are; vectors stay with their layer, and
 * biases and scales with their matrix. */
#ifndef GR_MODEL_WEIGHT_HOMES_H
#define GR_MODEL_WEIGHT_HOMES_H

#include "arch/arch.h"
#include "gpurun.h"

struct gr_gguf;
struct gr_model;
struct gr_rank_model;

/* Device of a weight that lies with its layer, and of one whose device the rank does not have. */
enum { GR_HOME_LAYER = -1, GR_HOME_MISSING = -2 };

/* Reads weight_homes and n_cpu_experts of the parameters for the weights of a model, which must be
 * bound. Logs a warning for patterns that match nothing. GR_E_INVALID, GR_E_DEVICE. */
int gr_weight_homes_read(struct gr_model *m, const struct gr_model_params *p);
void gr_weight_homes_free(struct gr_model *m);

/* Returns whether a device other than the CPU is named. */
bool gr_weight_homes_name_gpu(const struct gr_model_params *p);
/* Returns whether some weight may be apart from its layer when the first n_cpu_experts layers have
 * their experts on the CPU. */
bool gr_weight_homes_any(const struct gr_model *m, int32_t n_cpu_experts);

/* The weight that decides where a slot's weight lies: the matrix that a scale belongs to, the
 * embeddings of tokens for those of positions; otherwise the slot itself. */
enum gr_slot gr_weight_leader(int slot);
/* Returns whether a slot is a matrix of routed experts. */
bool gr_is_expert(int slot);
/* The device of a rank model's weight, its number there; GR_HOME_LAYER or GR_HOME_MISSING. il: -1
 * outside the layers. */
int32_t gr_weight_home(const struct gr_rank_model *rm, int32_t il, int slot, int32_t n_cpu_experts);
/* Sets the message for a weight of the rank model with GR_HOME_MISSING; returns GR_E_DEVICE. */
int gr_weight_home_missing(const struct gr_rank_model *rm, int32_t il, int slot);

#endif
