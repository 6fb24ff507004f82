#include "support/tiny.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "arch/hparams.h"
#include "base/alloc.h"
#include "base/checked.h"
#include "base/rng.h"
#include "engine/session.h"
#include "engine/session_devices.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "graph/graph.h"
#include "quant/quant.h"

bool tiny_has(const struct gr_arch *a, enum gr_slot slot)
{
    for (int i = 0; i < a->n_spec; i++)
        if (a->spec[i].slot == slot)
            return true;
    return false;
}

bool tiny_can_be_split(const struct gr_arch *a)
{
    if (tiny_has(a, GR_W_ENC_ATTN_REL_B)) /* heads share a table of distances */
        return false;
    bool over_all = false;
    for (int i = 0; i < a->n_spec; i++)
        over_all |= a->spec[i].slot == GR_W_ATTN_SUB_NORM ||
                    (a->spec[i].slot == GR_W_ATTN_Q_NORM && a->spec[i].dim[0] == GR_D_Q);
    return !over_all && (tiny_has(a, GR_W_ATTN_OUT) || tiny_has(a, GR_W_FFN_GATE) ||
                         tiny_has(a, GR_W_CHANNEL_MIX_KEY));
}

bool tiny_needs_experts(const struct gr_arch *a)
{
    for (int i = 0; i < a->n_spec; i++)
        if (a->spec[i].slot == GR_W_FFN_GATE_INP)
            return !(a->spec[i].flags & GR_OPTIONAL);
    return false;
}

static bool flagged(const struct gr_arch *a, int flag)
{
    for (int i = 0; i < a->n_spec; i++)
        if (a->spec[i].flags & flag)
            return true;
    return false;
}

enum { TINY_LAYERS = 16 }; /* length of arrays with a value for each layer */

/* Layers with a state beside one with attention, and one of feed-forward where layers have one part
 * each. The last is recurrent, but where attention's result passes a gate after rows were cut. */
static void vary_states(struct tiny *t)
{
    static const int32_t kv_first[TINY_LAYERS] = {1}, kv_last[TINY_LAYERS] = {0, 1},
                         ffs[TINY_LAYERS] = {0, 0, 96};
    if (!flagged(t->arch, GR_IN_STATE))
        return;
    t->heads_kv = tiny_has(t->arch, GR_W_ATTN_GATE) ? kv_last : kv_first;
    if (flagged(t->arch, GR_IN_FF))
        t->n_layer = 3, t->ffs = ffs;
}

/* Gives layers what the table allows them to lack: attention, a matrix in its place, neither, other
 * heads, nothing at all, no feed-forward. OpenELM's only differ in size. */
static void vary_layers(struct tiny *t)
{
    static const int32_t heads[] = {4, 4, 0, 2, 0, 4}, heads_kv[] = {2, 0, 0, 1, 0, 2};
    static const int32_t ffs[] = {96, 96, 64, 96, 0, 0};
    static const int32_t sizes[] = {4, 2, 6}, sizes_kv[] = {2, 1, 2}, wide[] = {96, 64, 128};
    if (flagged(t->arch, GR_IN_HEADS))
        t->n_layer = 6, t->heads = heads, t->heads_kv = heads_kv, t->ffs = ffs;
    if (strcmp(t->arch->name, "openelm") == 0)
        t->n_layer = 3, t->heads = sizes, t->heads_kv = sizes_kv, t->ffs = wide;
}

struct tiny tiny_default(const struct gr_arch *arch)
{
    /* a norm of all of K, as wide as the model, needs as many KV heads as heads */
    bool whole_k = false;
    for (int i = 0; i < arch->n_spec; i++)
        whole_k |= arch->spec[i].slot == GR_W_ATTN_K_NORM && arch->spec[i].dim[0] == GR_D_EMBD;
    struct tiny t = {.arch = arch,
                     .seed = 1,
                     .n_layer = 2,
                     .n_embd = 64,
                     .n_head = 4,
                     .n_head_kv = whole_k ? 4 : 2,
                     .d_head = 16,
                     .n_ff = 96,
                     .n_vocab = 96,
                     .n_ctx = 256,
                     .n_expert = 3,
                     .first_expert = 1,
                     .n_swa = 12,
                     .drop = -1,
                     .reshape = -1};
    if (arch->no_logits) /* rows of results are as long as others' */
        t.n_embd = t.n_vocab;
    if (tiny_has(arch, GR_W_LOW_INIT))
        t.n_layer = 4;
    vary_layers(&t);
    vary_states(&t);
    return t;
}

void tiny_set_layers(struct tiny *t, int n)
{
    cr_assert_leq(n, TINY_LAYERS);
    t->n_layer = n < 2 && tiny_has(t->arch, GR_W_LOW_INIT) ? 2 : n;
}

struct item {
    const struct gr_tensor_spec *spec;
    int il;
    bool bias, scale;
};

/* One kind of rope factors; no norm of all of Q beside a fused matrix (the other implementation
 * cannot compute it); experts only where the table requires them, or from first_expert on. */
static bool may_lack(const struct tiny *t, const struct gr_tensor_spec *s, int il)
{
    int first = s->flags & GR_IN_DEC ? t->n_layer : 0; /* behind as many layers of an encoder */
    return s->flags & GR_OPTIONAL || (s->flags & GR_BUT_FIRST && il == first) ||
           (s->flags & GR_FIRST && il > first);
}

static bool wanted(const struct tiny *t, const struct gr_tensor_spec *s, int il)
{
    bool optional = may_lack(t, s, il);
    bool experts = s->slot >= GR_W_FFN_GATE_INP && s->slot <= GR_W_FFN_DOWN_SHEXP;
    bool one_of_two = s->slot == GR_W_FFN_GATE_EXPS || s->slot == GR_W_FFN_UP_EXPS;
    bool dense = s->slot >= GR_W_FFN_GATE && s->slot <= GR_W_FFN_DOWN;
    if (experts && !t->n_expert)
        return false;
    if (s->slot == GR_W_FFN_GATE_UP_EXPS && !t->fused)
        return false;
    if (one_of_two && t->fused && tiny_has(t->arch, GR_W_FFN_GATE_UP_EXPS))
        return false;
    if (s->slot == GR_W_ATTN_KV_B && tiny_has(t->arch, GR_W_ATTN_K_B))
        return false; /* of older files, which have it instead of the next two */
    if (s->slot == GR_W_ATTN_K_B || s->slot == GR_W_ATTN_V_B)
        return true;
    if (s->slot == GR_W_ROPE_LONG || s->slot == GR_W_ROPE_SHORT)
        return !t->no_optional && !tiny_has(t->arch, GR_W_ROPE_FREQS);
    bool qk_norm = s->slot == GR_W_ATTN_Q_NORM || s->slot == GR_W_ATTN_K_NORM;
    if (t->fused && qk_norm && s->dim[0] == GR_D_EMBD)
        return false;
    if (s->slot == GR_W_TIME_MIX_LERP_FUSED)
        return !t->fused || !optional;
    if (s->slot >= GR_W_TIME_MIX_LERP_W && s->slot <= GR_W_TIME_MIX_LERP_G)
        return t->fused;
    if (s->slot == GR_W_ATTN_QKV)
        return t->fused || !optional;
    if (s->slot >= GR_W_ATTN_Q && s->slot <= GR_W_ATTN_V)
        return !t->fused || !optional;
    if (optional && (experts || dense))
        return experts == ((il >= t->first_expert || tiny_needs_experts(t->arch)) && t->n_expert);
    return !optional || !t->no_optional;
}

static bool layered(enum gr_slot slot)
{
    char a[96], b[96];
    return strcmp(gr_slot_name(slot, 0, false, a, sizeof a),
                  gr_slot_name(slot, 1, false, b, sizeof b)) != 0;
}

static void set_i(struct gr_gguf_writer *w, const struct tiny *t, const char *key, int v)
{
    char k[128];
    snprintf(k, sizeof k, "%s.%s", t->arch->name, key);
    cr_assert_eq(gr_gguf_set_u32(w, k, (uint32_t)v), 0);
}

static void set_flag(struct gr_gguf_writer *w, const struct tiny *t, const char *key)
{
    char k[128];
    snprintf(k, sizeof k, "%s.%s", t->arch->name, key);
    cr_assert_eq(gr_gguf_set_bool(w, k, true), 0);
}

static void set_f(struct gr_gguf_writer *w, const struct tiny *t, const char *key, float v)
{
    char k[128];
    snprintf(k, sizeof k, "%s.%s", t->arch->name, key);
    cr_assert_eq(gr_gguf_set_f32(w, k, v), 0);
}

/* A latent of d_head columns, and about half as many that are roped. */
static void write_latent(struct gr_gguf_writer *w, const struct tiny *t)
{
    int n_rot = t->d_head < 4 ? 2 : t->d_head / 4 * 2;
    if (!t->heads_kv) /* otherwise as there, 1 or 0 */
        set_i(w, t, "attention.head_count_kv", 1);
    set_i(w, t, "attention.key_length", n_rot + t->d_head);
    set_i(w, t, "attention.value_length", t->d_head);
    set_i(w, t, "rope.dimension_count", n_rot);
    set_i(w, t, "attention.kv_lora_rank", t->d_head);
    set_i(w, t, "attention.q_lora_rank", 40);
    set_i(w, t, "attention.key_length_mla", n_rot + 24);
    set_i(w, t, "attention.value_length_mla", 20);
}

/* The same where every head's keys and values are kept. */
static void write_expanded(struct gr_gguf_writer *w, const struct tiny *t)
{
    set_i(w, t, "attention.head_count_kv", t->n_head);
    set_i(w, t, "rope.dimension_count", t->d_head < 4 ? 2 : t->d_head / 4 * 2);
    set_i(w, t, "attention.kv_lora_rank", 24);
    set_i(w, t, "attention.q_lora_rank", 40);
}

/* One adjugate expert for all; experts of fewer columns than the model has. */
static void write_kinds_of_experts(struct gr_gguf_writer *w, const struct tiny *t)
{
    set_i(w, t, "experts_per_group", t->n_expert ? t->n_expert : 1);
    set_i(w, t, "expert_chunk_feed_forward_length", 24);
    set_f(w, t, "expert_group_scale", 0.7f);
    set_i(w, t, "moe_latent_size", 32);
}

static void write_experts(struct gr_gguf_writer *w, const struct tiny *t)
{
    set_flag(w, t, "expert_weights_norm");
    set_i(w, t, "leading_dense_block_count", t->first_expert);
    set_i(w, t, "expert_shared_count", 1);
    set_i(w, t, "expert_gating_func", tiny_has(t->arch, GR_W_FFN_EXP_BIAS) ? 2 : 1);
    set_f(w, t, "expert_weights_scale", 2.5f);
}

static void set_each(struct gr_gguf_writer *w, const struct tiny *t, const char *key,
                     const int32_t *each, int all)
{
    char k[128];
    if (!each) {
        set_i(w, t, key, all);
        return;
    }
    snprintf(k, sizeof k, "%s.%s", t->arch->name, key);
    cr_assert_eq(gr_gguf_set_array(w, k, GR_GGUF_I32, each, (uint64_t)t->n_layer), 0);
}

/* M-RoPE: the pairs in three parts. */
static void write_sections(struct gr_gguf_writer *w, const struct tiny *t)
{
    char k[128];
    int n = (t->n_rot ? t->n_rot : t->d_head) / 2;
    int32_t section[4] = {(n + 2) / 3, (n + 1) / 3, n / 3, 0};
    snprintf(k, sizeof k, "%s.rope.dimension_sections", t->arch->name);
    cr_assert_eq(gr_gguf_set_array(w, k, GR_GGUF_I32, section, 4), 0);
}

/* 4 heads of 8 columns with 8 numbers each, on 2 groups. */
static void write_states(struct gr_gguf_writer *w, const struct tiny *t)
{
    set_i(w, t, "ssm.conv_kernel", 4);
    set_i(w, t, "ssm.inner_size", 32);
    set_i(w, t, "ssm.state_size", 8);
    set_i(w, t, "ssm.time_step_rank", 4);
    set_i(w, t, "ssm.group_count", 2);
    set_i(w, t, "shortconv.l_cache", 3);
}

/* Heads of 8 columns. */
static void write_kda(struct gr_gguf_writer *w, const struct tiny *t)
{
    set_i(w, t, "ssm.conv_kernel", 4);
    set_i(w, t, "kda.head_dim", 8);
    set_f(w, t, "kda.gate_lower_bound", -4);
}

/* Layers that run more than once: all of them twice, or as many runs of two stacks as there are
 * layers to be counted. */
static void write_rounds(struct gr_gguf_writer *w, const struct tiny *t)
{
    bool even = t->n_layer % 2 == 0;
    if (tiny_has(t->arch, GR_W_LOOP_NORM))
        set_i(w, t, "num_loops", t->n_layer > 1 ? 2 : 1);
    if (!tiny_has(t->arch, GR_W_LOW_INIT))
        return;
    set_i(w, t, "hrm.layers_per_stack", 1);
    set_i(w, t, "hrm.h_cycles", even ? t->n_layer / 2 : 1);
    set_i(w, t, "hrm.l_cycles", even ? 1 : t->n_layer - 1);
}

/* Heads of at most 16 columns, small matrices of ranks that differ; two rows are kept where the
 * feed-forward part sees the token before as well. */
static void write_wkv(struct gr_gguf_writer *w, const struct tiny *t)
{
    int d = 16;
    while (t->n_embd % d)
        d--;
    int n_head = t->n_embd / d;
    set_i(w, t, "wkv.head_size", d);
    set_i(w, t, "attention.head_count_kv", n_head % 2 ? n_head : n_head / 2);
    set_i(w, t, "token_shift_count", tiny_has(t->arch, GR_W_CHANNEL_MIX_KEY) ? 2 : 1);
    set_i(w, t, "time_mix_extra_dim", 12);
    set_i(w, t, "time_decay_extra_dim", 20);
    set_i(w, t, "rescale_every_n_layers", 2);
    set_i(w, t, "attention.decay_lora_rank", 20);
    set_i(w, t, "attention.iclr_lora_rank", 8);
    set_i(w, t, "attention.value_residual_mix_lora_rank", 12);
    bool gate = !t->no_optional || tiny_has(t->arch, GR_W_CHANNEL_MIX_KEY);
    set_i(w, t, "attention.gate_lora_rank", gate ? 24 : 0);
}

/* Writes which layers are recurrent, for architectures that read it from the file. */
static void write_recurrent(struct gr_gguf_writer *w, const struct tiny *t)
{
    char k[128];
    int32_t recurrent[GR_MAX_LAYER];
    for (int il = 0; il < t->n_layer; il++)
        recurrent[il] = !t->heads_kv || !t->heads_kv[il];
    snprintf(k, sizeof k, "%s.attention.recurrent_layers", t->arch->name);
    cr_assert_eq(gr_gguf_set_array(w, k, GR_GGUF_I32, recurrent, (uint64_t)t->n_layer), 0);
}

/* Coefficients of all layers, which no two functions share. */
static void write_xielu(struct gr_gguf_writer *w)
{
    cr_assert_eq(gr_gguf_set_f32(w, "xielu.alpha_p", 0.3f), 0);
    cr_assert_eq(gr_gguf_set_f32(w, "xielu.alpha_n", -0.2f), 0);
    cr_assert_eq(gr_gguf_set_f32(w, "xielu.beta", 0.5f), 0);
    cr_assert_eq(gr_gguf_set_f32(w, "xielu.eps", -1e-6f), 0);
}

static void write_keys(struct gr_gguf_writer *w, const struct tiny *t)
{
    cr_assert_eq(gr_gguf_set_str(w, "general.architecture", t->arch->name), 0);
    cr_assert_eq(gr_gguf_set_str(w, "tokenizer.ggml.model", "none"), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "tokenizer.ggml.token_type_count", 2), 0);
    set_i(w, t, "vocab_size", t->n_vocab);
    set_i(w, t, "context_length", t->n_ctx);
    set_i(w, t, "embedding_length", t->n_embd);
    set_i(w, t, "block_count", t->n_layer);
    set_each(w, t, "feed_forward_length", t->ffs, t->n_ff);
    set_each(w, t, "attention.head_count", t->heads, t->n_head);
    set_each(w, t, "attention.head_count_kv", t->heads_kv, t->n_head_kv);
    set_i(w, t, "attention.key_length", t->d_head);
    set_i(w, t, "attention.value_length", t->d_v ? t->d_v : t->d_head);
    if (t->n_rot)
        set_i(w, t, "rope.dimension_count", t->n_rot);
    set_i(w, t, "attention.sliding_window", t->n_swa);
    set_i(w, t, "attention.sliding_window_pattern", 2);
    set_i(w, t, "moe_every_n_layers", 2);
    set_i(w, t, "attention.relative_buckets_count", 10);
    set_i(w, t, "decoder_block_count", t->n_layer > 3 ? t->n_layer - 1 : 2);
    set_i(w, t, "decoder_start_token_id", 7 % t->n_vocab);
    set_i(w, t, "dense_2_feat_out", 40);
    set_i(w, t, "dense_3_feat_in", 40);
    set_i(w, t, "expert_count", t->n_expert);
    set_i(w, t, "expert_used_count", t->n_expert ? 2 : 0);
    set_i(w, t, "expert_feed_forward_length", t->n_ff);
    set_f(w, t, "attention.layer_norm_rms_epsilon", 1e-5f);
    set_f(w, t, "attention.layer_norm_epsilon", 1e-5f);
    set_f(w, t, "attention.max_alibi_bias", 8);
    set_f(w, t, "attention.clamp_kqv", 2);
    set_f(w, t, "embedding_scale", 3);
    set_f(w, t, "residual_scale", 0.7f);
    set_f(w, t, "logit_scale", 1.5f);
    set_flag(w, t, "use_parallel_residual");
    write_sections(w, t);
    write_rounds(w, t);
    write_xielu(w);
    if (tiny_has(t->arch, GR_W_ATTN_K_B))
        write_latent(w, t);
    else if (tiny_has(t->arch, GR_W_ATTN_KV_B))
        write_expanded(w, t);
    if (tiny_has(t->arch, GR_W_FFN_DOWN_SHEXP))
        write_experts(w, t);
    if (tiny_has(t->arch, GR_W_FFN_DOWN_SHEXP) && !tiny_has(t->arch, GR_W_FFN_GATE_SHEXP))
        set_i(w, t, "expert_shared_feed_forward_length", 40);
    if (tiny_has(t->arch, GR_W_FFN_UP_ADJ) || tiny_has(t->arch, GR_W_FFN_LATENT_UP))
        write_kinds_of_experts(w, t);
    if (tiny_has(t->arch, GR_W_SSM_CONV) || tiny_has(t->arch, GR_W_SHORTCONV))
        write_states(w, t);
    if (flagged(t->arch, GR_IN_STATE))
        write_recurrent(w, t);
    if (tiny_has(t->arch, GR_W_SSM_F_A))
        write_kda(w, t);
    if (tiny_has(t->arch, GR_W_TIME_MIX_KEY))
        write_wkv(w, t);
    if (tiny_has(t->arch, GR_W_FFN_ROUTED_UP)) {
        set_i(w, t, "expert_latent_length", 24);
        set_i(w, t, "attn_res.block_size", t->no_optional ? 0 : 1);
        set_f(w, t, "activation.situ_beta", 3);
        set_f(w, t, "activation.situ_linear_beta", 5);
    }
    set_i(w, t, "attention.indexer.block_size", 16);
    set_i(w, t, "attention.indexer.top_k", 64);
}

static void path_of(const struct tiny *t, char path[512])
{
    /* In memory: syncing a disk for each of hundreds of files takes seconds. */
    const char *usual = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(path, 512, "%s/gpurun-tiny-%d.gguf", t->dir ? t->dir : usual, (int)getpid());
}

static void read_back(const struct tiny *t, struct gr_hparams *hp)
{
    char path[512];
    struct gr_gguf_writer *w;
    struct gr_gguf *g;
    path_of(t, path);
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    write_keys(w, t);
    cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
    cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
    cr_assert_eq(gr_gguf_open(&g, path, false), 0, "%s", gr_error());
    cr_assert_eq(gr_hparams_read(hp, g, t->arch), 0, "%s: %s", t->arch->name, gr_error());
    gr_gguf_close(&g);
    unlink(path);
    hp->n_vocab = t->n_vocab;
}

/* True when an earlier layer or row of the table has the same tensor. */
static bool is_again(const struct gr_arch *a, const struct gr_hparams *hp, int i, int il)
{
    char name[96], other[96];
    for (int j = 0; j < il; j++)
        if (hp->weights_of[j] == hp->weights_of[il] && gr_spec_applies(hp, &a->spec[i], j))
            return true;
    gr_slot_name(a->spec[i].slot, gr_file_layer(hp, il), false, name, sizeof name);
    for (int j = 0; a->spec[i].flags & GR_EACH && j < i; j++)
        if (strcmp(name, gr_slot_name(a->spec[j].slot, il, false, other, sizeof other)) == 0)
            return true;
    return false;
}

/* The tensors of t; *hp receives the hyper-parameters that the keys say, before an edit: shapes
 * follow from them. */
static int list(const struct tiny *t, struct gr_hparams *hp, struct item *items)
{
    int n = 0;
    read_back(t, hp);
    for (int i = 0; i < t->arch->n_spec; i++) {
        const struct gr_tensor_spec *s = &t->arch->spec[i];
        int lo = layered(s->slot) ? 0 : -1;
        int hi = layered(s->slot) ? hp->enc.n_layer ? hp->n_layer : t->n_layer : 0;
        for (int il = lo; il < hi; il++) {
            if (!wanted(t, s, il) || (il >= 0 && !gr_spec_applies(hp, s, il)) ||
                is_again(t->arch, hp, i, il))
                continue;
            items[n++] = (struct item){s, il, false, false};
            /* the other implementation has them beside the output only for NVFP4 */
            if (t->scaled && s->slot != GR_W_OUTPUT && gr_scale_slot(s->slot) != GR_N_SLOT)
                items[n++] = (struct item){s, il, false, true};
            if (s->flags & GR_BIAS || (s->flags & GR_BIAS_MAYBE && !t->no_optional))
                items[n++] = (struct item){s, il, true, false};
        }
    }
    return n;
}

static void name_of(const struct gr_hparams *hp, const struct item *it, char name[96])
{
    gr_slot_name(it->spec->slot, gr_file_layer(hp, it->il), it->bias, name, 96);
    if (it->scale)
        strcpy(strstr(name, ".weight"), ".scale");
}

int tiny_n_tensor(const struct tiny *t)
{
    struct item items[512];
    struct gr_hparams hp;
    return list(t, &hp, items);
}

bool tiny_required(const struct tiny *t, int i)
{
    struct item items[512];
    struct gr_hparams hp;
    list(t, &hp, items);
    int f = items[i].spec->flags;
    if (items[i].scale)
        return false;
    return items[i].bias ? f & GR_BIAS : !may_lack(t, items[i].spec, items[i].il);
}

/* The shape, innermost first; returns the number of dimensions. Files store one row as a vector. */
static uint32_t shape_of(const struct gr_hparams *hp, const struct item *it, uint64_t *ne)
{
    uint32_t n = 0;
    if (it->bias && it->spec->dim[1] == GR_D_ONE)
        return ne[0] = 1;
    if (it->scale)
        ne[0] = gr_scale_slot(it->spec->slot) == it->spec->slot ? 1 : (uint64_t)hp->moe.n_expert;
    if (it->scale)
        return 1;
    for (; n < 3 && it->spec->dim[n] && (n == 0 || it->spec->dim[n] != GR_D_ONE); n++)
        ne[n] = (uint64_t)gr_dim_value(hp, it->spec->dim[n], it->il);
    if (it->spec->flags & GR_REPEAT)
        ne[0] = 1;
    if (it->bias && n > 1) {
        n--;
        ne[0] = ne[1], ne[1] = ne[2];
    }
    return n;
}

/* Vectors, routers and matrices whose rows are no whole blocks are not stored with fewer bits. */
static uint32_t type_of(const struct tiny *t, const struct item *it, uint32_t n_dim, uint64_t ne0)
{
    uint32_t type = t->dtype ? gr_dtype_find_name(t->dtype)->id : (uint32_t)GR_F32;
    bool router = it->spec->slot == GR_W_FFN_GATE_INP || it->spec->slot == GR_W_FFN_GATE_INP_SHEXP;
    bool small = n_dim < 2 || router || it->spec->flags & GR_AS_F32;
    return small || !gr_row_bytes(type, ne0) ? (uint32_t)GR_F32 : type;
}

/* The first n normal numbers of a seed. Models of one seed share them tensor by tensor, so they are
 * drawn once in a process. */
static const float *normals(uint64_t seed, size_t n)
{
    static struct stream {
        uint64_t seed;
        struct gr_rng rng;
        size_t n;
        float *x;
    } streams[1024];
    struct stream *s = &streams[seed % 1024];
    if (!s->x || s->seed != seed) {
        free(s->x);
        *s = (struct stream){seed, gr_rng_new(seed), 0, NULL};
    }
    if (s->n < n)
        cr_assert_not_null(s->x = realloc(s->x, n * sizeof *s->x));
    for (; s->n < n; s->n++)
        s->x[s->n] = gr_rng_normal(&s->rng);
    return s->x;
}

/* Matrices keep the variance of what goes through them; norms are near 1, divisors near 1, biases
 * near 0; rates of decay are negative. */
static void draw(uint64_t seed, const struct item *it, uint32_t n_dim, uint64_t ne0, float *x,
                 size_t n)
{
    bool one = n_dim == 1 && !it->bias;
    float scale = it->scale ? 0.5f : n_dim > 1 ? 1 / sqrtf((float)ne0) : 0.1f;
    const float *z = normals(seed, n);
    for (size_t i = 0; i < n; i++)
        x[i] = (one ? 1 : 0) + scale * z[i];
    for (size_t i = 0; i < n && it->spec->slot == GR_W_SSM_A; i++)
        x[i] = -expf(x[i]);
}

const char *tiny_write(const struct tiny *t, char *broken)
{
    static char path[512];
    struct item items[512];
    struct gr_hparams hp;
    int n = list(t, &hp, items);
    struct gr_gguf_writer *w;
    char name[96];
    path_of(t, path);
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    write_keys(w, t);
    if (t->edit)
        t->edit(w, t);
    for (int i = 0; i < n; i++) {
        uint64_t ne[4];
        uint32_t n_dim = shape_of(&hp, &items[i], ne);
        name_of(&hp, &items[i], name);
        if (broken && (i == t->drop || i == t->reshape))
            strcpy(broken, name);
        if (i == t->reshape)
            ne[n_dim - 1] += 1;
        struct gr_str s = {name, strlen(name)};
        if (i != t->drop)
            cr_assert_eq(
                gr_gguf_add_tensor(w, s, t->as_f32 ? GR_F32 : type_of(t, &items[i], n_dim, ne[0]),
                                   n_dim, ne),
                0, "%s", gr_error());
    }
    cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
    for (int i = 0; i < n; i++) {
        uint64_t ne[4] = {1, 1, 1, 1};
        uint32_t n_dim = shape_of(&hp, &items[i], ne), type = type_of(t, &items[i], n_dim, ne[0]);
        uint32_t dtype = t->as_f32 ? (uint32_t)GR_F32 : type;
        if (i == t->reshape)
            ne[n_dim - 1] += 1;
        if (n_dim < 3)
            ne[2] = 1;
        if (n_dim < 2)
            ne[1] = 1;
        size_t count = ne[0] * ne[1] * ne[2], bytes = gr_row_bytes(dtype, ne[0]) * ne[1] * ne[2];
        const struct gr_quant *codec = gr_quant_find(type);
        /* each tensor has its own numbers, so that dropping one does not change the others */
        float *x = gr_calloc(count, sizeof *x);
        void *q = gr_calloc(bytes, 1);
        if (!t->zeros) {
            draw(t->seed * 1000 + (uint64_t)i, &items[i], n_dim, ne[0], x, count);
            codec->quantize(x, q, count, NULL);
        }
        if (t->as_f32) {
            codec->dequantize(q, x, count);
            memcpy(q, x, bytes);
        }
        if (i != t->drop)
            cr_assert_eq(gr_gguf_write(w, q, bytes), 0, "%s", gr_error());
        gr_free(x);
        gr_free(q);
    }
    cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
    return path;
}

struct gr_model *tiny_open(const struct tiny *t)
{
    struct gr_model *m;
    const char *path = tiny_write(t, NULL);
    cr_assert_eq(gr_model_open(&m, path, NULL), 0, "%s: %s", t->arch->name, gr_error());
    unlink(path);
    return m;
}

int tiny_try_encode(struct gr_session *s)
{
    int32_t n_vocab = s->model->hp.n_vocab, token[] = {11 % n_vocab, 42 % n_vocab, 7 % n_vocab, 1};
    struct gr_batch text = {.n_tok = GR_MIN(4, (int32_t)s->params.n_ubatch), .token = token};
    return s->cache.encodes ? gr_encode(s, &text) : 0;
}

void tiny_encode(struct gr_session *s)
{
    cr_assert_eq(tiny_try_encode(s), 0, "%s: %s", s->model->arch->name, gr_error());
}

struct gr_session *tiny_session(struct gr_model *m, const struct gr_session_params *p)
{
    struct gr_session *s;
    cr_assert_eq(gr_session_open(&s, m, p), 0, "%s: %s", m->arch->name, gr_error());
    tiny_encode(s);
    return s;
}

struct gr_session *tiny_session_at(struct gr_model *m, enum gr_cpu_level level,
                                   const struct gr_session_params *p)
{
    struct gr_session *s = tiny_session(m, p);
    gr_plan_drop_all(s);
    s->device[0].backend->api->close(&s->device[0].backend);
    cr_assert_eq(gr_cpu_open(&s->device[0].backend, 1, 1, level), 0, "%s", gr_error());
    s->pin = s->device[0].backend;
    gr_session_cancellable(s, true);
    tiny_encode(s);
    return s;
}

const float *tiny_row(const struct gr_session *s, int32_t i)
{
    return gr_session_n_embd(s) ? gr_embeddings(s, i) : gr_logits(s, i);
}

bool tiny_keeps_states(const struct gr_model *m)
{
    for (int il = 0; il < m->hp.n_layer; il++)
        if (m->hp.ssm.layer[il])
            return true;
    return false;
}

double tiny_nmse(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)a[i] * (double)a[i];
    }
    return s > 0 ? d / s : d;
}

bool tiny_learned_positions(const struct gr_model *m)
{
    return gr_ten_is(&m->weight[GR_W_POS_EMBD]);
}
