"""What stands in front of the numbers of a GGUF model of a real one's shapes: names, types and dimensions of its tensors, keys, and where
each tensor begins. Needs Python alone."""
import math
import os
import re
import struct
import sys

ALIGNMENT = 32
QUANTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "include", "gr", "quant.def")
with open(QUANTS) as f:  # {name: (id in a file, numbers of a block, bytes of a block)}
    STORAGE = {m[1].lower(): tuple(map(int, m.group(2, 3, 4)))
               for m in re.finditer(r'^QUANT\(\w+, "(\w+)", (\d+), (\d+), (\d+),', f.read(), re.M)}
MIXES = {"q4_k_m": ("q4_k", "q6_k"), "q5_k_m": ("q5_k", "q6_k")}  # most matrices, and those that such a file keeps better


def type_of(type_name, tensor, layer, n_layer):
    """The type of a matrix: of a mix, V and the second matrix of a feed-forward network are better in the first and last
    eighth of the layers and in every third one between, and so is the one that makes logits."""
    if type_name not in MIXES:
        return type_name
    plain, better = MIXES[type_name]
    eighth = n_layer // 8
    more = layer is not None and (layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2)
    return better if tensor == "output" or (more and tensor in ("attn_v", "ffn_down", "ffn_down_exps")) else plain


def tensors(s, type_name, n_vocab, n_layer):
    """(name, type or None for f32, dimensions with the longest stride first) in the order of the file."""
    def matrix(prefix, tensor, *dims, layer=None):
        return f"{prefix}{tensor}.weight", type_of(type_name, tensor, layer, n_layer), dims

    embd = "output" if s.tied else "token_embd"  # a tied one has the type of what makes logits
    yield "token_embd.weight", type_of(type_name, embd, None, n_layer), (n_vocab, s.n_embd)
    yield "output_norm.weight", None, (s.n_embd,)
    if not s.tied:
        yield matrix("", "output", n_vocab, s.n_embd)
    for i in range(n_layer):
        b, n_q, n_kv = f"blk.{i}.", s.n_head * s.d_head, s.n_head_kv * s.d_head
        yield b + "attn_norm.weight", None, (s.n_embd,)
        for tensor, rows, cols in (("attn_q", n_q, s.n_embd), ("attn_k", n_kv, s.n_embd), ("attn_v", n_kv, s.n_embd),
                                   ("attn_output", s.n_embd, n_q)):
            yield matrix(b, tensor, rows, cols, layer=i)
        yield b + "ffn_norm.weight", None, (s.n_embd,)
        if s.n_expert:
            yield b + "attn_q_norm.weight", None, (s.d_head,)
            yield b + "attn_k_norm.weight", None, (s.d_head,)
            yield b + "ffn_gate_inp.weight", None, (s.n_expert, s.n_embd)
        e, end = ((s.n_expert,), "_exps") if s.n_expert else ((), "")
        yield matrix(b, "ffn_gate" + end, *e, s.n_ff, s.n_embd, layer=i)
        yield matrix(b, "ffn_up" + end, *e, s.n_ff, s.n_embd, layer=i)
        yield matrix(b, "ffn_down" + end, *e, s.n_embd, s.n_ff, layer=i)


def bytes_of(type_name, dims):
    if type_name is None:
        return 4 * math.prod(dims)
    _, block, size = STORAGE[type_name]
    if dims[-1] % block:
        sys.exit(f"make_model: rows of {dims[-1]} numbers are no whole blocks of {type_name} ({block}); take another type")
    return math.prod(dims) // block * size


def total_bytes(s, type_name, n_vocab, n_layer):
    return sum(bytes_of(t, dims) for _, t, dims in tensors(s, type_name, n_vocab, n_layer))


def step_bytes(s, type_name, n_vocab, n_layer, n_tok=1):
    """Bytes of weights that a step of n_tok tokens has to read: all but the embedding, and of experts those that a token
    each may expect to use."""
    share = 1 - (1 - s.n_used / s.n_expert) ** n_tok if s.n_expert else 1
    return sum(bytes_of(t, dims) * (share if "_exps" in name else 1)
               for name, t, dims in tensors(s, type_name, n_vocab, n_layer) if s.tied or name != "token_embd.weight")


def step_params(s, n_vocab, n_layer):
    """Weights that a token is multiplied with."""
    return sum(math.prod(dims) * (s.n_used / s.n_expert if "_exps" in name else 1)
               for name, t, dims in tensors(s, "f16", n_vocab, n_layer) if t and (s.tied or name != "token_embd.weight"))


def kv_bytes(s, n_layer, bytes_each=2):
    """Of one cell: K and V of all layers."""
    return 2 * n_layer * s.n_head_kv * s.d_head * bytes_each


def words(n_vocab):
    """A SentencePiece vocabulary: special tokens, bytes, words of four letters each."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    texts += ["\u2581" + "".join(chr(ord("a") + i // 26**k % 26) for k in range(4)) for i in range(n_vocab - len(texts))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (n_vocab - 259)
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": texts, "tokenizer.ggml.scores": [-float(i) for i in range(n_vocab)],
            "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": False}


def keys(s, type_name, n_vocab, n_layer, with_words):
    """Of the file, by name."""
    found = {"general.architecture": s.arch, "general.name": f"synthetic {s.name} {type_name}", "general.alignment": ALIGNMENT}
    found |= {f"{s.arch}.{name}": value for name, value in (
        ("vocab_size", n_vocab), ("context_length", 131072), ("embedding_length", s.n_embd), ("block_count", n_layer),
        ("feed_forward_length", s.n_ff * max(1, s.n_used)), ("attention.head_count", s.n_head),
        ("attention.head_count_kv", s.n_head_kv), ("attention.key_length", s.d_head), ("attention.value_length", s.d_head),
        ("rope.dimension_count", s.d_head), ("rope.freq_base", float(s.rope_base)),
        ("attention.layer_norm_rms_epsilon", 1e-5))}
    if s.n_expert:
        found |= {f"{s.arch}.expert_count": s.n_expert, f"{s.arch}.expert_used_count": s.n_used,
                  f"{s.arch}.expert_feed_forward_length": s.n_ff}
    return found | (words(n_vocab) if with_words else {"tokenizer.ggml.model": "none", "tokenizer.ggml.add_bos_token": False})


def text(x):
    return struct.pack("<Q", len(x.encode())) + x.encode()


def value(x):
    """With its type: bool, u32, f32, string, or a list of strings, f32, or numbers that are i32 there."""
    if isinstance(x, list) and isinstance(x[0], int):
        return struct.pack(f"<IIQ{len(x)}i", 9, 5, len(x), *x)
    if isinstance(x, list):
        of = [value(y) for y in x]
        return struct.pack("<I", 9) + of[0][:4] + struct.pack("<Q", len(x)) + b"".join(y[4:] for y in of)
    if isinstance(x, bool):
        return struct.pack("<IB", 7, x)
    if isinstance(x, int):
        return struct.pack("<II", 4, x)
    return struct.pack("<If", 6, x) if isinstance(x, float) else struct.pack("<I", 8) + text(x)


def aligned(n):
    return -(-n // ALIGNMENT) * ALIGNMENT


def header(s, type_name, n_vocab, n_layer, with_words):
    """Bytes in front of the tensors, and where each of them begins behind these."""
    all_, kv = list(tensors(s, type_name, n_vocab, n_layer)), keys(s, type_name, n_vocab, n_layer, with_words)
    out = b"GGUF" + struct.pack("<IQQ", 3, len(all_), len(kv)) + b"".join(text(k) + value(v) for k, v in kv.items())
    at, starts = 0, []
    for name, t, dims in all_:
        starts.append(at)
        out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *reversed(dims), STORAGE[t or "f32"][0], at)
        at = aligned(at + bytes_of(t, dims))
    return out + bytes(aligned(len(out)) - len(out)), starts, at
