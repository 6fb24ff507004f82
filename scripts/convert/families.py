"""What each kind of checkpoint is called in a GGUF file: keys, names of tensors, and what is done to them."""

import math
import re

import numpy as np
from checkpoint import BadCheckpoint
from gguf import PoolingType, RopeScalingType

# Names below "model." of a decoder, * standing for a number: layer, then expert.
DECODER = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    "layers.*.input_layernorm": "blk.*.attn_norm", "layers.*.post_attention_layernorm": "blk.*.ffn_norm",
    "layers.*.self_attn.q_proj": "blk.*.attn_q", "layers.*.self_attn.k_proj": "blk.*.attn_k",
    "layers.*.self_attn.v_proj": "blk.*.attn_v", "layers.*.self_attn.o_proj": "blk.*.attn_output",
    "layers.*.self_attn.q_norm": "blk.*.attn_q_norm", "layers.*.self_attn.k_norm": "blk.*.attn_k_norm",
    "layers.*.mlp.gate_proj": "blk.*.ffn_gate", "layers.*.mlp.up_proj": "blk.*.ffn_up",
    "layers.*.mlp.down_proj": "blk.*.ffn_down",
    "layers.*.block_sparse_moe.gate": "blk.*.ffn_gate_inp",
    "layers.*.block_sparse_moe.experts.*.w1": "blk.*.ffn_gate_exps.*",
    "layers.*.block_sparse_moe.experts.*.w3": "blk.*.ffn_up_exps.*",
    "layers.*.block_sparse_moe.experts.*.w2": "blk.*.ffn_down_exps.*",
}
BERT = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "encoder.layer.*.attention.self.query": "blk.*.attn_q", "encoder.layer.*.attention.self.key": "blk.*.attn_k",
    "encoder.layer.*.attention.self.value": "blk.*.attn_v",
    "encoder.layer.*.attention.output.dense": "blk.*.attn_output",
    "encoder.layer.*.attention.output.LayerNorm": "blk.*.attn_output_norm",
    "encoder.layer.*.intermediate.dense": "blk.*.ffn_up", "encoder.layer.*.output.dense": "blk.*.ffn_down",
    "encoder.layer.*.output.LayerNorm": "blk.*.layer_output_norm",
}
DISTILBERT = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "transformer.layer.*.attention.q_lin": "blk.*.attn_q", "transformer.layer.*.attention.k_lin": "blk.*.attn_k",
    "transformer.layer.*.attention.v_lin": "blk.*.attn_v", "transformer.layer.*.attention.out_lin": "blk.*.attn_output",
    "transformer.layer.*.sa_layer_norm": "blk.*.attn_output_norm", "transformer.layer.*.ffn.lin1": "blk.*.ffn_up",
    "transformer.layer.*.ffn.lin2": "blk.*.ffn_down", "transformer.layer.*.output_layer_norm": "blk.*.layer_output_norm",
}
# Of BERT: the parts that only pre-training uses, and the pooler, which sentence embeddings do without.
BERT_UNUSED = r"embeddings\.position_ids|pooler\..*|cls\.(predictions|seq_relationship)\..*|lm_head\..*|vocab_.*"
DECODER_UNUSED = r".*\.rotary_emb\.inv_freq|.*\.masked_bias"
KEPT_F32 = ("position_embd", "token_types", "ffn_gate_inp")


class Family:
    """A kind of checkpoint: `arch` is what the file is called, `names` its tensors, `unused` a pattern of what is left."""

    def __init__(self, arch, names, unused, prefix, set_keys, change=None, extra=None):
        self.arch, self.names, self.unused, self.prefix = arch, names, unused, prefix
        self.set_keys = set_keys
        self.change = change or (lambda c, name, data: data)  # a tensor's elements, by its new name
        self.extra = extra or (lambda c: {})                  # {name: elements} of tensors that no file has

    def rename(self, name):
        """(new name, expert) of a tensor; expert is None but for those that are stacked. (None, None): left out."""
        short = re.sub(self.prefix, "", name)
        short = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", short))
        if re.fullmatch(self.unused, short):
            return None, None
        stem, _, tail = short.rpartition(".")
        numbers = re.findall(r"(?<=\.)\d+(?=\.|$)", stem)
        new = self.names.get(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", stem))
        if new is None or tail not in ("weight", "bias"):
            raise BadCheckpoint(f"tensor {name} has no place in a {self.arch} model")
        for n in numbers[:1]:
            new = new.replace("*", n, 1)
        expert = int(numbers[1]) if len(numbers) > 1 else None
        return f"{new.removesuffix('.*')}.{tail}", expert


def rope_parameters(c):
    """Both forms that configurations have: rope_parameters, or rope_theta beside rope_scaling."""
    rope = dict(c.get("rope_parameters", "rope_scaling", default={}))
    rope.setdefault("rope_theta", c.get("rope_theta", default=10000.0))
    rope.setdefault("rope_type", rope.get("type", "default"))
    return rope


def set_rope(c, w):
    rope = rope_parameters(c)
    kind = rope["rope_type"]
    w.add_rope_freq_base(rope["rope_theta"])
    if kind == "linear":
        w.add_rope_scaling_type(RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        w.add_rope_scaling_type(RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(
            rope.get("original_max_position_embeddings", c.require("max_position_embeddings")))
        for key, add in (("extrapolation_factor", w.add_rope_scaling_yarn_ext_factor),
                         ("attention_factor", w.add_rope_scaling_yarn_attn_factor),
                         ("beta_fast", w.add_rope_scaling_yarn_beta_fast),
                         ("beta_slow", w.add_rope_scaling_yarn_beta_slow)):
            if rope.get(key) is not None:
                add(rope[key])
    elif kind not in ("default", "llama3"):
        raise BadCheckpoint(f"config.json: rope of type {kind} is not converted; default, linear, yarn and llama3 are")


def head_size(c):
    return c.get("head_dim", default=c.require("hidden_size") // c.require("num_attention_heads"))


def set_sizes(c, w, n_skipped=0):
    w.add_vocab_size(c.require("vocab_size"))
    w.add_context_length(c.require("max_position_embeddings") - n_skipped)
    w.add_embedding_length(c.require("hidden_size", "dim"))
    w.add_block_count(c.require("num_hidden_layers", "n_layers"))
    w.add_feed_forward_length(c.require("intermediate_size", "hidden_dim"))
    w.add_head_count(c.require("num_attention_heads", "n_heads"))


def set_decoder(c, w):
    set_sizes(c, w)
    if c.get("hidden_act", default="silu") != "silu":
        raise BadCheckpoint(f"config.json: hidden_act is {c.get('hidden_act')}, expected silu")
    if c.get("sliding_window") and c.get("use_sliding_window", default=c.config.get("model_type") == "mistral"):
        raise BadCheckpoint("config.json: layers with a sliding window are not converted")
    w.add_head_count_kv(c.get("num_key_value_heads", default=c.require("num_attention_heads")))
    w.add_layer_norm_rms_eps(c.require("rms_norm_eps"))
    w.add_rope_dimension_count(head_size(c))
    if c.get("head_dim"):
        w.add_key_length(head_size(c))
        w.add_value_length(head_size(c))
    if c.get("num_local_experts"):
        w.add_expert_count(c.require("num_local_experts"))
        w.add_expert_used_count(c.require("num_experts_per_tok"))
    set_rope(c, w)


def llama3_factors(c):
    """What each frequency is divided by: 1 for short waves, `factor` for long ones, and between them in between."""
    rope = rope_parameters(c)
    if rope["rope_type"] != "llama3":
        return {}
    d = head_size(c)
    n_old, low, high = (rope.get(k, default) for k, default in (
        ("original_max_position_embeddings", 8192), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0)))
    waves = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, d, 2, dtype=np.float64) / d)
    share = np.clip((n_old / waves - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - share) / rope.get("factor", 8.0) + share)).astype(np.float32)}


def interleave_heads(c, name, data):
    """Q and K of a llama: the two numbers that are turned together lie half a head apart, and side by side in GGUF."""
    n_head = c.require("num_attention_heads")
    n = {"attn_q": n_head, "attn_k": c.get("num_key_value_heads", default=n_head)}.get(name.split(".")[-2])
    if not n:
        return data
    if data.shape[0] % (2 * n):
        raise BadCheckpoint(f"tensor {name}: {data.shape[0]} rows are not pairs of {n} heads")
    return data.reshape(n, 2, -1, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)


def set_bert(c, w, n_skipped=0):
    set_sizes(c, w, n_skipped)
    if c.get("position_embedding_type", default="absolute") != "absolute":
        raise BadCheckpoint("config.json: position_embedding_type is not absolute")
    if c.get("hidden_act", "activation", default="gelu") != "gelu":
        raise BadCheckpoint("config.json: an activation other than gelu is not converted")
    w.add_layer_norm_eps(c.get("layer_norm_eps", default=1e-12))
    w.add_causal_attention(False)
    w.add_token_type_count(c.get("type_vocab_size", default=1))
    pooling = find_pooling(c)
    if pooling is not None:
        w.add_pooling_type(pooling)


def find_pooling(c):
    """How sentence-transformers makes one vector of a text's tokens, where the folder is one of its models."""
    modules = c.json("modules.json", [])
    path = next((m.get("path", "") for m in modules if m.get("type", "").endswith("Pooling")), None)
    if path is None:
        return None
    modes = c.json(f"{path}/config.json")
    for key, pooling in (("mean_tokens", PoolingType.MEAN), ("cls_token", PoolingType.CLS), ("lasttoken", PoolingType.LAST)):
        if modes.get(f"pooling_mode_{key}") or modes.get("pooling_mode") == key.split("_")[0]:
            return pooling
    raise BadCheckpoint(f"{path}/config.json: a pooling other than mean, cls and lasttoken")


def unused_positions(c):
    """RoBERTa counts positions from pad_token_id + 1 on; the rows before are never used."""
    return c.get("pad_token_id", default=-1) + 1


def skip_padding(c, name, data):
    return data[unused_positions(c):] if name.startswith("position_embd") else data


def set_roberta(c, w):
    set_bert(c, w, unused_positions(c))


LLAMA = Family("llama", DECODER, DECODER_UNUSED, r"^model\.", set_decoder, interleave_heads, llama3_factors)
QWEN2 = Family("qwen2", DECODER, DECODER_UNUSED, r"^model\.", set_decoder)
QWEN3 = Family("qwen3", DECODER, DECODER_UNUSED, r"^model\.", set_decoder)
BERT_FAMILY = Family("bert", BERT, BERT_UNUSED, r"^bert\.", set_bert)
ROBERTA = Family("bert", BERT, BERT_UNUSED, r"^roberta\.", set_roberta, skip_padding)
DISTIL = Family("bert", DISTILBERT, BERT_UNUSED, r"^distilbert\.", set_bert)

FAMILIES = {
    "LlamaForCausalLM": LLAMA, "MistralForCausalLM": LLAMA, "MixtralForCausalLM": LLAMA,
    "Qwen2ForCausalLM": QWEN2, "Qwen3ForCausalLM": QWEN3,
    "BertModel": BERT_FAMILY, "BertForMaskedLM": BERT_FAMILY, "RobertaModel": ROBERTA,
    "DistilBertModel": DISTIL, "DistilBertForMaskedLM": DISTIL,
}


def find(c):
    name = (c.get("architectures") or ["(none)"])[0]
    if name not in FAMILIES:
        raise BadCheckpoint(f"{c.folder / 'config.json'}: architecture {name} is not converted; these are: " +
                            ", ".join(FAMILIES))
    return FAMILIES[name]
