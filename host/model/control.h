/* Control vectors: directions that are added to the results of layers (Zou et al. 2023, arXiv
 * 2310.01405). A file has a vector direction.N for layer N, counted from 0, which has none. */
#ifndef GR_MODEL_CONTROL_H
#define GR_MODEL_CONTROL_H

#include "gpurun.h"

struct gr_model;

/* Adds up the vectors of all files, each times its scale, as weights of slot DIRECTION, in layers
 * control_first to control_last. The model's weights must be bound. GR_E_UNSUPPORTED or
 * GR_E_CORRUPT names file and tensor. */
int gr_control_open(struct gr_model *m, const struct gr_model_params *p);

#endif
