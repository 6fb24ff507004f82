/* The GPUs that a model may use: which kinds there are, what a user's choice means, and why there
 * is none. Nothing is opened here. */
#ifndef GR_MODEL_DEVICES_H
#define GR_MODEL_DEVICES_H

#include "gpurun.h"
#include "gr/backend.h"
#include "graph/plan.h"

/* A device of a kind. */
struct gr_found {
    const struct gr_device_kind *kind;
    int index;
    struct gr_device_info info;
};

/* Those that a model is placed on beside the CPU, in this order. */
struct gr_devices {
    struct gr_found found[GR_MAX_DEVICE - 1];
    int32_t n;
};

/* What the parameters of a model ask for: a name that stands for several GPUs is all of them that
 * can be used, or with GR_SPLIT_MODE_NONE the main one. GR_E_DEVICE when it cannot be had: a device
 * was named that is not there or cannot be used, require_gpu and there is none, or there are GPUs
 * and every one of them is unusable. GR_E_INVALID when it cannot be understood. Says in the log
 * when a GPU was asked for and there is none. */
int gr_devices_choose(struct gr_devices *d, const struct gr_model_params *p);

/* Puts other kinds in the place of those built in, for tests; NULL brings them back. */
void gr_device_kinds_set(const struct gr_device_kind *const *kinds, int n);

#endif
