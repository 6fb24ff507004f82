/* The GPUs that a model may use: the kinds of devices, the choice by a user's parameters, and the
 * reason when there are none. Nothing is opened here. */
#ifndef GR_MODEL_DEVICES_H
#define GR_MODEL_DEVICES_H

#include "gpurun.h"
#include "gr/backend.h"
#include "graph/plan.h"

/* A device of a kind. */
struct gr_device_ref {
    const struct gr_device_kind *kind;
    int index;
    struct gr_device_info info;
};

/* The devices that a model is placed on besides the CPU, in order. */
struct gr_devices {
    struct gr_device_ref found[GR_MAX_DEVICE - 1];
    int32_t n;
};

/* Chooses the devices that the parameters of a model ask for. A name of a kind means all of its
 * usable GPUs, or with GR_SPLIT_MODE_NONE the main one. GR_E_DEVICE: a named device does not exist
 * or is unusable, require_gpu is set and there is no GPU, or all GPUs are unusable. GR_E_INVALID: a
 * name cannot be understood. Logs when a GPU was asked for and there is none. */
int gr_devices_choose(struct gr_devices *d, const struct gr_model_params *p);

/* Replaces the built-in kinds of devices, for tests; NULL restores them. */
void gr_device_kinds_set(const struct gr_device_kind *const *kinds, int n);

#endif
