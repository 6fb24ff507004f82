/* Rotary frequencies. Every scaling becomes a table of frequencies and one magnitude, so kernels
 * need not know about it. Linear: Chen et al. 2023; YaRN: Peng et al. 2023 (arXiv 2309.00071);
 * LongRoPE: Ding et al. 2024 (arXiv 2402.13753). */
#include "arch/rope.h"

#include <math.h>

#include "base/checked.h"
#include "gpurun.h"

/* The value asked for; NAN and 0: the model's. */
static float given(float asked, float otherwise)
{
    return isnan(asked) || asked == 0 ? otherwise : asked;
}

void gr_rope_resolve(struct gr_rope_opt *o, const struct gr_hparams *hp,
                     const struct gr_session_params *p)
{
    static const enum gr_scaling asked[] = {[GR_SCALING_NONE] = GR_SCALE_NONE,
                                            [GR_SCALING_LINEAR] = GR_SCALE_LINEAR,
                                            [GR_SCALING_YARN] = GR_SCALE_YARN,
                                            [GR_SCALING_LONGROPE] = GR_SCALE_LONGROPE};
    o->scaling = p->rope_scaling == GR_SCALING_MODEL ? hp->rope.scaling : asked[p->rope_scaling];
    o->freq_base = given(p->rope_freq_base, hp->rope.freq_base);
    o->freq_scale = given(p->rope_freq_scale, hp->rope.freq_scale);
    if (o->scaling == GR_SCALE_NONE)
        o->freq_scale = 1;
    o->ext_factor = isnan(p->yarn_ext_factor) ? hp->rope.yarn_ext_factor : p->yarn_ext_factor;
    if (o->ext_factor < 0)
        o->ext_factor = o->scaling == GR_SCALE_YARN ? 1 : 0;
    o->attn_factor = given(p->yarn_attn_factor, hp->rope.yarn_attn_factor) * hp->rope.attn_factor;
    o->beta_fast = given(p->yarn_beta_fast, hp->rope.yarn_beta_fast);
    o->beta_slow = given(p->yarn_beta_slow, hp->rope.yarn_beta_slow);
    o->n_ctx_orig = p->yarn_orig_ctx ? (int32_t)p->yarn_orig_ctx : hp->rope.n_ctx_orig;
}

int32_t gr_rope_max_positions(const struct gr_hparams *hp, const struct gr_session_params *p)
{
    struct gr_rope_opt o;
    double own = hp->rope.scaling == GR_SCALE_NONE ? 1 : (double)hp->rope.freq_scale;
    double n = hp->n_ctx_train;
    if (hp->rope.kind == GR_ROPE_NONE)
        return hp->n_ctx_train;
    if (hp->rope.scaling == GR_SCALE_YARN) /* some files give the original context length as the
                                         training length */
        n = GR_MAX(n, hp->rope.n_ctx_orig / own);
    gr_rope_resolve(&o, hp, p);
    return (int32_t)GR_MIN(round(n * own / (double)o.freq_scale), INT32_MAX);
}

/* The pair that makes `turns` full rotations within the original context, as a real number (YaRN,
 * eq. 17). */
static double pair_of_turns(const struct gr_rope_opt *o, double base, int32_t n_rot, double turns)
{
    const double two_pi = 6.283185307179586;
    return n_rot * log(o->n_ctx_orig / (turns * two_pi)) / (2 * log(base));
}

static int32_t count_sections(const struct gr_hparams *hp)
{
    const int32_t *n = hp->rope.section;
    return n[0] + n[1] + n[2] + n[3];
}

/* The section of pair i, given sections of `all` > 0 pairs in total, which repeat beyond them. */
static int32_t section_of(const struct gr_hparams *hp, int32_t all, int32_t i)
{
    const int32_t *n = hp->rope.section;
    int32_t k = i % all;
    if (hp->rope.interleaved)
        return k < 3 * n[k % 3] ? k % 3 : 3;
    return k < n[0] ? 0 : k < n[0] + n[1] ? 1 : k < n[0] + n[1] + n[2] ? 2 : 3;
}

bool gr_rope_sections(const struct gr_hparams *hp, int32_t *section)
{
    int32_t all = count_sections(hp);
    for (int32_t i = 0; i < hp->rope.n_rot / 2 && all > 0; i++)
        section[i] = section_of(hp, all, i);
    return all > 0;
}

/* YaRN multiplies Q and K by 1 + ln(factor) / 10; a file may specify a divisor of that (Mistral).
 * DeepSeek puts it, squared, into the attention scale, because there the columns without rope need
 * it too. */
static struct gr_rope_mag magnitudes(const struct gr_rope_opt *o, const struct gr_hparams *hp,
                                     double log_factor)
{
    float grown = o->attn_factor * (float)(1 + 0.1 * log_factor);
    bool yarn = o->ext_factor != 0, own = hp->rope.yarn_log_mul != 0;
    struct gr_rope_mag mag = {.rope = yarn && !own ? grown : o->attn_factor, .attn = 1};
    if (hp->rope.yarn_scales_attn) {
        double m =
            (double)(yarn ? mag.rope : grown) * (1 + (double)hp->rope.yarn_log_mul * log_factor);
        mag.attn = (float)(m * m);
    } else if (yarn && own) {
        mag.rope = (float)((double)grown / (1 + (double)hp->rope.yarn_log_mul * log_factor));
    }
    if (hp->attn.norm_roped)
        mag.rope = 1; /* a norm after the rotation would undo it */
    return mag;
}

void gr_rope_freqs(const struct gr_rope_opt *opt, const struct gr_hparams *hp, bool swa,
                   const float *factors, double *freq, struct gr_rope_mag *mag)
{
    struct gr_rope_opt plain = *opt, *o = &plain;
    bool unscaled = swa && hp->rope.plain_swa;
    if (unscaled)
        plain.ext_factor = 0, plain.attn_factor = 1;
    if (swa && hp->rope.rot_by_kind)
        factors = NULL; /* they are for the columns that full layers rotate */
    double base = (double)(swa ? hp->rope.freq_base_swa : o->freq_base);
    double scale = unscaled ? 1 : (double)(swa ? hp->rope.freq_scale_swa : o->freq_scale);
    int32_t n = swa ? hp->rope.n_rot_swa : hp->rope.n_rot;
    double lo = floor(pair_of_turns(o, base, n, (double)o->beta_fast));
    double hi = ceil(pair_of_turns(o, base, n, (double)o->beta_slow));
    int32_t all = count_sections(hp);
    lo = GR_MAX(0, lo), hi = GR_MIN(n - 1, hi);
    for (int32_t i = 0; i < n / 2; i++) {
        double f = pow(base, -2.0 * i / n) / (factors ? (double)factors[i] : 1);
        double ramp = 1 - GR_MIN(1, GR_MAX(0, (i - lo) / GR_MAX(0.001, hi - lo)));
        double mix = ramp * (double)o->ext_factor;
        freq[i] = f * scale * (1 - mix) + f * mix;
        if (all && section_of(hp, all, i) == 3)
            freq[i] = 0; /* such a pair never rotates, not even in a K-shift */
    }
    *mag = magnitudes(o, hp, scale < 1 ? log(1 / scale) : 0);
}
