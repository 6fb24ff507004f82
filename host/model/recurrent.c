/* Hyper-parameters of recurrent layers. */
#include "base/checked.h"
#include "gr/status.h"
#include "model/model.h"

static int check_divides(const char *what, int32_t part, const char *of, int32_t whole)
{
    return whole % part == 0
               ? 0
               : gr_fail(GR_E_CORRUPT, "key ssm.%s: a divisor of ssm.%s, %d, expected, %d found",
                         what, of, whole, part);
}

/* Heads (n_rank of them) share the columns, groups share the heads. */
static int check_heads(const struct gr_hparams *hp, enum gr_recurrence kind)
{
    int rc = check_divides("time_step_rank", hp->n_rank, "inner_size", hp->n_inner);
    if (!rc)
        rc = check_divides("group_count", hp->n_group, "time_step_rank", hp->n_rank);
    if (!rc && kind == GR_DELTA && hp->n_inner != (int64_t)hp->n_rank * hp->n_state)
        rc = gr_fail(GR_E_CORRUPT,
                     "key ssm.inner_size: ssm.time_step_rank * ssm.state_size = %lld expected, %d "
                     "found",
                     (long long)hp->n_rank * hp->n_state, hp->n_inner);
    return rc;
}

int gr_hp_recurrence(struct gr_hp_source *s, struct gr_hparams *hp, enum gr_recurrence kind)
{
    hp->n_group = 0;
    int rc = gr_hp_need_i32(s, "ssm.conv_kernel", 2, 64, &hp->n_kernel);
    if (!rc)
        rc = gr_hp_need_i32(s, "ssm.inner_size", 1, 1 << 20, &hp->n_inner);
    if (!rc)
        rc = gr_hp_need_i32(s, "ssm.state_size", 1, 4096, &hp->n_state);
    if (!rc)
        rc = gr_hp_need_i32(s, "ssm.time_step_rank", 1, 65536, &hp->n_rank);
    if (!rc)
        rc = gr_hp_i32(s, "ssm.group_count", 0, 65536, &hp->n_group);
    bool alone = kind == GR_MAMBA || kind == GR_MAMBA_HEADS; /* B and C are not convolved */
    if (alone || hp->n_group == 0)                           /* 0 is written where there are none */
        hp->n_group = 1;
    if (!rc && kind != GR_MAMBA)
        rc = check_heads(hp, kind);
    if (rc)
        return rc;
    int64_t beside = alone ? 0 : 2 * (int64_t)hp->n_group * hp->n_state;
    int64_t conv = (hp->n_kernel - 1) * (hp->n_inner + beside);
    int64_t ssm = (int64_t)hp->n_inner * hp->n_state;
    if (conv > INT32_MAX || ssm > INT32_MAX)
        return gr_fail(GR_E_CORRUPT,
                       "keys ssm.inner_size, ssm.state_size, ssm.group_count: a state of %lld "
                       "numbers is too large",
                       (long long)(conv + ssm));
    hp->n_channel = hp->n_inner + (int32_t)beside;
    hp->n_conv_state = (int32_t)conv, hp->n_ssm_state = (int32_t)ssm;
    return 0;
}

int gr_hp_kda(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->n_rank = hp->n_group = hp->n_head[0];
    int rc = gr_hp_need_i32(s, "ssm.conv_kernel", 2, 64, &hp->n_kernel);
    if (!rc)
        rc = gr_hp_need_i32(s, "kda.head_dim", 1, 4096, &hp->n_state);
    if (!rc && hp->n_rank < 1)
        rc = gr_fail(GR_E_CORRUPT, "key attention.head_count: the recurrent layers have as many "
                                   "heads as the first layer, which has none");
    int64_t inner = (int64_t)hp->n_rank * hp->n_state, conv = 3 * (hp->n_kernel - 1) * inner;
    if (!rc && (conv > INT32_MAX || inner * hp->n_state > INT32_MAX))
        rc = gr_fail(GR_E_CORRUPT,
                     "keys attention.head_count, kda.head_dim: a state of %lld "
                     "numbers is too large",
                     (long long)(conv + inner * hp->n_state));
    if (rc)
        return rc;
    hp->n_inner = (int32_t)inner, hp->n_conv_state = (int32_t)conv;
    hp->n_ssm_state = (int32_t)(inner * hp->n_state);
    return 0;
}

int gr_hp_decay_bound(struct gr_hp_source *s, struct gr_hparams *hp, float slope)
{
    int rc = gr_hp_need_f32(s, "kda.gate_lower_bound", &hp->decay_bound);
    if (!rc && hp->decay_bound >= 0)
        rc = gr_fail(GR_E_CORRUPT, "key kda.gate_lower_bound: a number below 0 expected, %g found",
                     (double)hp->decay_bound);
    hp->decay_slope = slope;
    return rc;
}

void gr_hp_set_recurrent(struct gr_hparams *hp, int32_t il)
{
    hp->recurrent[il] = true;
    hp->n_head_kv[il] = 0;
}

void gr_hp_recurrent_without_kv(struct gr_hparams *hp)
{
    for (int32_t il = 0; il < hp->n_layer; il++)
        hp->recurrent[il] = hp->n_head_kv[il] == 0;
}

int gr_hp_short_conv(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_need_i32(s, "shortconv.l_cache", 2, 64, &hp->n_kernel);
    hp->n_channel = hp->n_embd;
    hp->n_conv_state = (hp->n_kernel - 1) * hp->n_embd; /* below 2^26 */
    return rc;
}
