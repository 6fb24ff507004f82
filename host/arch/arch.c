/* Weights of an architecture: names, dimensions, and the layers that have them. */
#include "arch/arch.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"

const char *gr_slot_name(enum gr_slot slot, int il, bool bias, char *buf, size_t n)
{
    static const char *const names[GR_N_SLOT] = {
#define SLOT(NAME, name) name,
#include "arch/slot.def"
#undef SLOT
    };
    const char *layer = strstr(names[slot], "%d"), *end = strstr(names[slot], ".weight");
    int len = bias && end ? (int)(end - names[slot]) : (int)strlen(names[slot]);
    const char *tail = bias ? end ? ".bias" : "?" : "";
    if (layer)
        snprintf(buf, n, "%.*s%d%.*s%s", (int)(layer - names[slot]), names[slot], il,
                 len - (int)(layer + 2 - names[slot]), layer + 2, tail);
    else
        snprintf(buf, n, "%.*s%s", len, names[slot], tail);
    return buf;
}

int64_t gr_dim_value(const struct gr_hparams *hp, enum gr_dim d, int il)
{
    int l = il < 0 ? 0 : il;
    int64_t q = (int64_t)hp->attn.n_head[l] * hp->attn.d_k;
    int64_t k = (int64_t)hp->attn.n_head_kv[l] * hp->attn.d_k;
    int64_t v = (int64_t)hp->attn.n_head_kv[l] * hp->attn.d_v;
    const int64_t value[GR_N_DIM] = {
        [GR_D_NONE] = 1,
        [GR_D_VOCAB] = hp->n_vocab,
        [GR_D_EMBD] = hp->n_embd,
        [GR_D_CTX] = hp->n_ctx_train,
        [GR_D_Q] = q,
        [GR_D_K] = k,
        [GR_D_V] = v,
        [GR_D_QKV] = q + k + v,
        [GR_D_QKV_3] = 3 * q,
        [GR_D_O] = v ? (int64_t)hp->attn.n_head[l] * hp->attn.d_v : hp->n_embd,
        [GR_D_HEAD] = hp->attn.d_k,
        [GR_D_HEADS] = hp->attn.n_head[l],
        [GR_D_HEADS_KV] = hp->attn.n_head_kv[l],
        [GR_D_ROT_2] = GR_MAX(hp->rope.n_rot, hp->rope.n_rot_swa) / 2,
        [GR_D_FF] = hp->ff.n_ff[l],
        [GR_D_FF_2] = 2 * (int64_t)hp->ff.n_ff[l],
        [GR_D_EXPERT] = hp->moe.n_expert,
        [GR_D_FF_EXP] = hp->moe.n_ff_exp,
        [GR_D_FF_EXP_2] = 2 * (int64_t)hp->moe.n_ff_exp,
        [GR_D_FF_SHEXP] = hp->moe.n_ff_shexp,
        [GR_D_FF_SHEXP_2] = 2 * (int64_t)hp->moe.n_ff_shexp,
        [GR_D_LATENT] = hp->moe.n_latent ? hp->moe.n_latent : hp->n_embd,
        [GR_D_ADJUGATE] = hp->moe.n_adjugate ? hp->moe.n_expert / hp->moe.n_adjugate : 0,
        [GR_D_FF_ADJ] = hp->moe.n_ff_adj,
        [GR_D_LORA_Q] = hp->mla.n_lora_q,
        [GR_D_LORA_KV] = hp->mla.n_lora_kv,
        [GR_D_KV_A] = hp->mla.n_lora_kv + hp->rope.n_rot,
        [GR_D_Q_MLA] = (int64_t)hp->attn.n_head[l] * hp->mla.d_k,
        [GR_D_O_MLA] = (int64_t)hp->attn.n_head[l] * hp->mla.d_v,
        [GR_D_NOPE] = hp->mla.d_k - hp->rope.n_rot,
        [GR_D_V_MLA] = hp->mla.d_v,
        [GR_D_KV_B] = (int64_t)hp->attn.n_head[l] * (hp->mla.d_k - hp->rope.n_rot + hp->mla.d_v),
        [GR_D_GATE] = (int64_t)hp->attn.n_head[l] * hp->attn.d_gate,
        [GR_D_ONE] = 1,
        [GR_D_BUCKET] = hp->attn.n_bucket,
        [GR_D_TYPES] = hp->embd.n_token_type,
        [GR_D_FF_UP] = hp->ff.n_ff_up,
        [GR_D_CLS] = hp->cls.n_cls,
        [GR_D_DENSE_2] = hp->pool.n_dense_2,
        [GR_D_DENSE_3] = hp->pool.n_dense_3,
        [GR_D_EMBD_3] = 3 * (int64_t)hp->n_embd,
        [GR_D_Q_2] = 2 * q,
        [GR_D_KERNEL] = hp->ssm.n_kernel,
        [GR_D_CHANNEL] = hp->ssm.n_channel,
        [GR_D_INNER] = hp->ssm.n_inner,
        [GR_D_INNER_2] = 2 * (int64_t)hp->ssm.n_inner,
        [GR_D_INNER_3] = 3 * (int64_t)hp->ssm.n_inner,
        [GR_D_STATE] = hp->ssm.n_state,
        [GR_D_RANK] = hp->ssm.n_rank,
        [GR_D_DT] = hp->ssm.n_dt,
        [GR_D_DT_BC] = hp->ssm.n_dt + 2 * (int64_t)hp->ssm.n_state,
        [GR_D_RANK_2] = 2 * (int64_t)hp->ssm.n_rank,
        [GR_D_RANK_BC] = hp->ssm.n_rank + 2 * (int64_t)hp->ssm.n_state,
        [GR_D_SSM_IN] = (int64_t)hp->ssm.n_inner + hp->ssm.n_channel + hp->ssm.n_rank,
        [GR_D_GROUP] = hp->ssm.n_group,
        [GR_D_IN_GROUP] = hp->ssm.n_group ? hp->ssm.n_inner / hp->ssm.n_group : 0,
        [GR_D_KV_INNER] = (int64_t)hp->ssm.n_group * hp->ssm.n_state,
        [GR_D_LERP] = hp->time_mix.n_lerp,
        [GR_D_MIX] = hp->time_mix.n_lora_mix,
        [GR_D_MIX_5] = 5 * (int64_t)hp->time_mix.n_lora_mix,
        [GR_D_MIX_DECAY] = hp->time_mix.n_lora_decay,
        [GR_D_MIX_RATE] = hp->time_mix.n_lora_rate,
        [GR_D_MIX_VALUE] = l > 0 ? hp->time_mix.n_lora_value : hp->time_mix.n_lora_rate,
        [GR_D_MIX_GATE] = hp->time_mix.n_lora_gate};
    return value[d];
}

int gr_file_layer(const struct gr_hparams *hp, int il)
{
    return il < 0 ? il : hp->weights_of[il];
}

bool gr_spec_applies(const struct gr_hparams *hp, const struct gr_tensor_spec *s, int il)
{
    if (s->flags & (GR_IN_ENC | GR_IN_DEC | GR_IN_CROSS))
        return s->flags & (il < hp->enc.n_layer  ? GR_IN_ENC
                           : gr_is_cross(hp, il) ? GR_IN_CROSS
                                                 : GR_IN_DEC);
    if (s->flags & GR_IN_STATE && !hp->ssm.layer[il])
        return false;
    if (s->flags & GR_IN_HEADS && hp->attn.n_head[il] == 0)
        return false;
    if (s->flags & GR_IN_FF && hp->ff.n_ff[il] == 0)
        return false;
    return !(s->flags & GR_IN_KV) || hp->attn.n_head_kv[il] > 0;
}

/* Slots with scales as in llama.cpp (src/llama-model.cpp); ".scale" of other tensors has another
 * meaning. */
enum gr_slot gr_scale_slot(enum gr_slot slot)
{
    switch (slot) {
    case GR_W_FFN_GATE_EXPS:
        return GR_W_FFN_GATE_EXPS_SCALE;
    case GR_W_FFN_UP_EXPS:
        return GR_W_FFN_UP_EXPS_SCALE;
    case GR_W_FFN_DOWN_EXPS:
        return GR_W_FFN_DOWN_EXPS_SCALE;
    case GR_W_ATTN_Q:
    case GR_W_ATTN_K:
    case GR_W_ATTN_V:
    case GR_W_ATTN_QKV:
    case GR_W_ATTN_OUT:
    case GR_W_ATTN_GATE:
    case GR_W_FFN_GATE:
    case GR_W_FFN_UP:
    case GR_W_FFN_DOWN:
    case GR_W_FFN_GATE_SHEXP:
    case GR_W_FFN_UP_SHEXP:
    case GR_W_FFN_DOWN_SHEXP:
    case GR_W_SSM_IN:
    case GR_W_SSM_OUT:
    case GR_W_SSM_ALPHA:
    case GR_W_SSM_BETA:
    case GR_W_OUTPUT:
        return slot;
    default:
        return GR_N_SLOT;
    }
}
