/* Contiguous ranges of layers for spots, the places where layers can be: in proportion to shares,
 * as in llama.cpp, or the best that there are by what each range would take.
 *
 * Ranges are said by their ends: of n spots, spot k has the layers [cut[k], cut[k + 1]), which may
 * be none. The output counts as a layer, the last one. */
#ifndef GR_MODEL_SPLIT_H
#define GR_MODEL_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "gpurun.h"

#define GR_MAX_SPOT 127

/* Shares from text: numbers from 0 on with commas or slashes between them, "3,1" or "24.5/16", not
 * all 0. What is not named has the share 0. GR_E_INVALID says what is wrong. */
int gr_split_parse(const char *text, float share[GR_MAX_SPOT], int32_t *n);

/* How a user wants layers divided. */
struct gr_split_wish {
    enum gr_split_mode mode;
    bool even_memory; /* by what each range takes */
    int32_t n_share;  /* 0: in proportion to free memory */
    float share[GR_MAX_SPOT];
};
/* From split_mode and tensor_split. GR_E_INVALID. */
int gr_split_read(struct gr_split_wish *w, const struct gr_model_params *p);

/* The last n_gpu of n_layer + 1 layers for n_spot spots: those before cut[0] are for none of them.
 * Layer il is at (il - cut[0]) / n_gpu of the way, and belongs to the first spot whose share ends
 * beyond it, all in float32. cut: [n_spot + 1]. */
void gr_split_shares(int32_t n_layer, int32_t n_gpu, const float *share, int32_t n_spot,
                     int32_t *cut);

/* Layers [lo, hi) for n_spot spots. */
struct gr_split_problem {
    int32_t n_spot, lo, hi;
    /* What spot k uses of all that it has with the layers [lo, hi), at least one. */
    double (*used)(void *user, int32_t k, int32_t lo, int32_t hi);
    /* Whether spot k, not the first, may begin with layer `at`. */
    bool (*may_cut)(void *user, int32_t k, int32_t at);
    /* Bytes that spot k, not the first, is sent for each step when it begins with layer `at`. */
    uint64_t (*moved)(void *user, int32_t k, int32_t at);
    void *user;
};
/* Of all splits those with the smallest largest part in use; of these those that move the fewest
 * bytes; of these the one with the first cut as late as can be, then the second, and so on. Exact.
 * *most: that largest part; cut: [n_spot + 1]. GR_E_INVALID when no cut is allowed. */
int gr_split_best(const struct gr_split_problem *p, int32_t *cut, double *most);

#endif
