/* Divides layers into contiguous ranges for devices: in proportion to shares, as llama.cpp does, or
 * optimally by the memory that each range would take.
 *
 * Ranges are given by cuts: of n devices, device k has the layers [cut[k], cut[k + 1]), possibly
 * none. The output counts as the last layer. */
#ifndef GR_MODEL_LAYER_SPLIT_H
#define GR_MODEL_LAYER_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "gpurun.h"

#define GR_MAX_RANK_DEVICE 127

/* Parses shares: numbers >= 0 separated by commas or slashes, "3,1" or "24.5/16", not all 0.
 * Devices without a number have the share 0. GR_E_INVALID says what is wrong. */
int gr_split_parse(const char *text, float share[GR_MAX_RANK_DEVICE], int32_t *n);

/* The user's choice of how layers are divided. */
struct gr_split_request {
    enum gr_split_mode mode;
    bool even_memory; /* balance the memory that ranges take */
    int32_t n_share;  /* 0: in proportion to free memory */
    float share[GR_MAX_RANK_DEVICE];
};
/* Reads split_mode and tensor_split. GR_E_INVALID. */
int gr_split_read(struct gr_split_request *w, const struct gr_model_params *p);

/* Divides the last n_gpu of n_layer + 1 layers among n_device devices; layers before cut[0] belong
 * to none. Layer il is at fraction (il - cut[0]) / n_gpu and belongs to the first device whose
 * cumulative share ends beyond it, all in float32. cut: [n_device + 1]. */
void gr_split_shares(int32_t n_layer, int32_t n_gpu, const float *share, int32_t n_device,
                     int32_t *cut);

/* The problem of dividing layers [lo, hi) among n_device devices. */
struct gr_split_problem {
    int32_t n_device, lo, hi;
    /* The fraction of its memory that device k uses with layers [lo, hi), at least one layer. */
    double (*used)(void *user, int32_t k, int32_t lo, int32_t hi);
    /* Returns whether device k > 0 may begin with layer `at`. */
    bool (*may_cut)(void *user, int32_t k, int32_t at);
    /* Bytes that are sent to device k > 0 in each step if it begins with layer `at`. */
    uint64_t (*moved)(void *user, int32_t k, int32_t at);
    void *user;
};
/* Finds the split with the smallest maximum fraction in use; among those the one that moves the
 * fewest bytes; among those the one with the latest first cut, then the latest second one, and so
 * on. Exact. *most: that maximum; cut: [n_device + 1]. GR_E_INVALID when no cut is allowed. */
int gr_split_best(const struct gr_split_problem *p, int32_t *cut, double *most);

#endif
