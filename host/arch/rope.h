/* Rotary frequencies: from hyper-parameters and the parameters of a session. */
#ifndef GR_ARCH_ROPE_H
#define GR_ARCH_ROPE_H

#include "arch/arch.h"

/* A session's parameters that turn positions into angles: the caller's, otherwise the model's. */
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
int32_t gr_rope_max_positions(const struct gr_hparams *hp, const struct gr_session_params *p);
/* Fills freq with the radians per position of each of the n_rot / 2 pairs, scaling included, and
 * *mag with the magnitudes. factors: [n_rot / 2] or NULL, the model's own divisors. */
void gr_rope_freqs(const struct gr_rope_opt *o, const struct gr_hparams *hp, bool swa,
                   const float *factors, double *freq, struct gr_rope_mag *mag);
/* M-RoPE: sets section [n_rot / 2], the position by which each pair rotates: 0 = t, 1 = y, 2 = x, 3
 * = none (position 0). Returns false and leaves section unchanged when tokens have a single
 * position. */
bool gr_rope_sections(const struct gr_hparams *hp, int32_t *section);

#endif
