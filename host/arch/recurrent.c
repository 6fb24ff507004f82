/* Hyper-parameters of recurrent layers. */
#include "arch/arch.h"
#include "base/checked.h"
#include "gr/status.h"

static int check_divides(const char *what, int32_t part, const char *of, int32_t whole)
{
    return whole % part == 0
               ? 0
               : gr_fail(GR_E_CORRUPT, "key ssm.%s: a divisor of ssm.%s, %d, expected, %d found",
                         what, of, whole, part);
}

/* Checks that n_rank heads divide the columns, and groups the heads. */
static int check_heads(const struct gr_hparams *hp, enum gr_recurrence kind)
{
    int rc = check_divides("time_step_rank", hp->ssm.n_rank, "inner_size", hp->ssm.n_inner);
    if (!rc)
        rc = check_divides("group_count", hp->ssm.n_group, "time_step_rank", hp->ssm.n_rank);
    if (!rc && kind == GR_DELTA && hp->ssm.n_inner != (int64_t)hp->ssm.n_rank * hp->ssm.n_state)
        rc = gr_fail(GR_E_CORRUPT,
                     "key ssm.inner_size: ssm.time_step_rank * ssm.state_size = %lld expected, %d "
                     "found",
                     (long long)hp->ssm.n_rank * hp->ssm.n_state, hp->ssm.n_inner);
    return rc;
}

int gr_hp_recurrence(struct gr_hp_source *s, struct gr_hparams *hp, enum gr_recurrence kind)
{
    hp->ssm.n_group = 0;
    int rc = gr_hp_need_i32(s, "ssm.conv_kernel", 2, 64, &hp->ssm.n_kernel);
    if (!rc)
        rc = gr_hp_need_i32(s, "ssm.inner_size", 1, 1 << 20, &hp->ssm.n_inner);
    if (!rc)
        rc = gr_hp_need_i32(s, "ssm.state_size", 1, 4096, &hp->ssm.n_state);
    if (!rc)
        rc = gr_hp_need_i32(s, "ssm.time_step_rank", 1, 65536, &hp->ssm.n_rank);
    if (!rc)
        rc = gr_hp_i32(s, "ssm.group_count", 0, 65536, &hp->ssm.n_group);
    bool alone = kind == GR_MAMBA || kind == GR_MAMBA_HEADS; /* B and C are not convolved */
    if (alone || hp->ssm.n_group == 0)                       /* some files have 0 for no groups */
        hp->ssm.n_group = 1;
    if (!rc && kind != GR_MAMBA)
        rc = check_heads(hp, kind);
    if (rc)
        return rc;
    int64_t beside = alone ? 0 : 2 * (int64_t)hp->ssm.n_group * hp->ssm.n_state;
    int64_t conv = (hp->ssm.n_kernel - 1) * (hp->ssm.n_inner + beside);
    int64_t ssm = (int64_t)hp->ssm.n_inner * hp->ssm.n_state;
    if (conv > INT32_MAX || ssm > INT32_MAX)
        return gr_fail(GR_E_CORRUPT,
                       "keys ssm.inner_size, ssm.state_size, ssm.group_count: a state of %lld "
                       "numbers is too large",
                       (long long)(conv + ssm));
    hp->ssm.n_channel = hp->ssm.n_inner + (int32_t)beside;
    hp->ssm.n_conv_state = (int32_t)conv, hp->ssm.n_ssm_state = (int32_t)ssm;
    return 0;
}

static int state_too_large(int64_t n)
{
    return gr_fail(GR_E_CORRUPT,
                   "keys embedding_length, attention.head_count, kda.head_dim, wkv.head_size: a "
                   "state of %lld numbers is too large",
                   (long long)n);
}

/* Sets state sizes for n_rank heads with n_state columns of both K and V. */
static int set_square_heads(struct gr_hparams *hp, int64_t n_conv)
{
    int64_t inner = (int64_t)hp->ssm.n_rank * hp->ssm.n_state, ssm = inner * hp->ssm.n_state;
    if (inner > INT32_MAX || ssm > INT32_MAX || n_conv > INT32_MAX)
        return state_too_large(ssm + n_conv);
    hp->ssm.n_inner = (int32_t)inner, hp->ssm.n_conv_state = (int32_t)n_conv;
    hp->ssm.n_ssm_state = (int32_t)ssm;
    return 0;
}

int gr_hp_linear_attn(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->ssm.n_rank = hp->ssm.n_group = hp->attn.n_head[0], hp->ssm.n_state = hp->attn.d_k;
    int rc = gr_hp_equal_heads(s, hp);
    if (!rc && hp->ssm.n_rank < 1)
        rc = gr_fail(GR_E_CORRUPT, "key attention.head_count: the recurrent layers have as many "
                                   "heads as the first layer, which has none");
    return rc ? rc : set_square_heads(hp, 0);
}

int gr_hp_wkv(struct gr_hp_source *s, struct gr_hparams *hp, int32_t n_shift)
{
    int32_t n_found = 2, n_kv = hp->attn.n_head_kv[0];
    int rc = gr_hp_need_i32(s, "wkv.head_size", 1, 4096, &hp->ssm.n_state);
    if (!rc)
        rc = gr_hp_i32(s, "token_shift_count", 1, 2, &n_found);
    if (!rc && n_found != n_shift)
        rc =
            gr_fail(GR_E_CORRUPT, "key token_shift_count: %d expected, %d found", n_shift, n_found);
    if (!rc && hp->n_embd % hp->ssm.n_state)
        rc = gr_fail(GR_E_CORRUPT, "key wkv.head_size: a divisor of %d expected, %d found",
                     hp->n_embd, hp->ssm.n_state);
    if (rc)
        return rc;
    hp->ssm.n_rank = hp->n_embd / hp->ssm.n_state, hp->ssm.n_group = n_kv ? n_kv : hp->ssm.n_rank;
    for (int32_t il = 0; il < hp->n_layer; il++)
        gr_hp_set_recurrent(hp, il);
    if (hp->ssm.n_group > hp->ssm.n_rank || hp->ssm.n_rank % hp->ssm.n_group)
        return gr_fail(GR_E_CORRUPT,
                       "key attention.head_count_kv: a divisor of %d expected, %d found",
                       hp->ssm.n_rank, hp->ssm.n_group);
    return set_square_heads(hp, (int64_t)n_shift * hp->n_embd);
}

int gr_hp_find_recurrent(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period)
{
    int32_t list[GR_MAX_LAYER];
    int rc = gr_hp_i32(s, "full_attention_interval", 1, GR_MAX_LAYER, &period);
    for (int32_t il = 0; il < hp->n_layer; il++)
        list[il] = (il + 1) % period != 0;
    if (!rc && gr_hp_has(s, "attention.recurrent_layers"))
        rc = gr_hp_each(s, "attention.recurrent_layers", 0, 1, hp->n_layer, list);
    for (int32_t il = 0; il < hp->n_layer && !rc; il++)
        if (list[il])
            gr_hp_set_recurrent(hp, il);
    return rc;
}

int gr_hp_kda(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->ssm.n_rank = hp->ssm.n_group = hp->attn.n_head[0];
    int rc = gr_hp_need_i32(s, "ssm.conv_kernel", 2, 64, &hp->ssm.n_kernel);
    if (!rc)
        rc = gr_hp_need_i32(s, "kda.head_dim", 1, 4096, &hp->ssm.n_state);
    if (!rc && hp->ssm.n_rank < 1)
        rc = gr_fail(GR_E_CORRUPT, "key attention.head_count: the recurrent layers have as many "
                                   "heads as the first layer, which has none");
    return rc ? rc
              : set_square_heads(hp, 3 * (hp->ssm.n_kernel - 1) * (int64_t)hp->ssm.n_rank *
                                         hp->ssm.n_state);
}

void gr_hp_set_recurrent(struct gr_hparams *hp, int32_t il)
{
    hp->ssm.layer[il] = true;
    hp->attn.n_head_kv[il] = 0;
}

void gr_hp_recurrent_without_kv(struct gr_hparams *hp)
{
    for (int32_t il = 0; il < hp->n_layer; il++)
        hp->ssm.layer[il] = hp->attn.n_head_kv[il] == 0;
}

int gr_hp_short_conv(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_need_i32(s, "shortconv.l_cache", 2, 64, &hp->ssm.n_kernel);
    hp->ssm.n_channel = hp->n_embd;
    hp->ssm.n_conv_state = (hp->ssm.n_kernel - 1) * hp->n_embd; /* below 2^26 */
    return rc;
}
