"""Tiny models with random weights, as GGUF files: encoders (BERT), and one of learned positions (GPT-2)."""

import random
import struct

N_VOCAB, N_CTX, N_EMBD, N_HEAD, N_FF, N_LAYER = 3 + 256 + 26, 128, 32, 4, 64, 2
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
FORMAT = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(kind, v):
    return text(v) if kind == STRING else struct.pack(FORMAT[kind], v)


def field(name, kind, v):
    if isinstance(v, list):
        return text(name) + struct.pack("<IIQ", ARRAY, kind, len(v)) + b"".join(value(kind, x) for x in v)
    return text(name) + struct.pack("<I", kind) + value(kind, v)


def vocabulary():
    """Bytes and letters."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + [chr(ord("a") + i) for i in range(26)]
    kinds = [2, 3, 3] + [6] * 256 + [1] * 26
    return {"tokenizer.ggml.model": (STRING, "llama"), "tokenizer.ggml.tokens": (STRING, tokens),
            "tokenizer.ggml.scores": (F32, [0.0] * 259 + [-float(i) for i in range(26)]), "tokenizer.ggml.token_type": (I32, kinds),
            "tokenizer.ggml.add_space_prefix": (BOOL, False), "tokenizer.ggml.unknown_token_id": (U32, 0),
            "tokenizer.ggml.bos_token_id": (U32, 1), "tokenizer.ggml.eos_token_id": (U32, 2)}


def write(path, meta, tensors, seed=7):
    rng = random.Random(seed)
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    out += b"".join(field(name, *v) for name, v in meta.items())
    data = b""
    for name, shape in tensors:
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = [rng.gauss(0, 0.5) for _ in range(n)] if len(shape) > 1 else [1.0] * n
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += struct.pack(f"<{n}f", *numbers)
        data += bytes(-len(data) % 32)
    path.write_bytes(out + bytes(-len(out) % 32) + data)


def encoder_tensors():
    yield "token_embd.weight", (N_EMBD, N_VOCAB)
    yield "position_embd.weight", (N_EMBD, N_CTX)
    yield "token_embd_norm.weight", (N_EMBD,)
    yield "token_embd_norm.bias", (N_EMBD,)
    yield "cls.output.weight", (N_EMBD, 2)
    for i in range(N_LAYER):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{i}.{name}.weight", (N_EMBD, N_EMBD)
        yield f"blk.{i}.ffn_up.weight", (N_EMBD, N_FF)
        yield f"blk.{i}.ffn_down.weight", (N_FF, N_EMBD)
        for name in ("attn_output_norm", "layer_output_norm"):
            yield f"blk.{i}.{name}.weight", (N_EMBD,)
            yield f"blk.{i}.{name}.bias", (N_EMBD,)


def decoder_tensors():
    yield "token_embd.weight", (N_EMBD, N_VOCAB)
    yield "position_embd.weight", (N_EMBD, N_CTX)
    yield "output_norm.weight", (N_EMBD,)
    yield "output_norm.bias", (N_EMBD,)
    for i in range(N_LAYER):
        for name, n_in, n_out in (("attn_qkv", N_EMBD, 3 * N_EMBD), ("attn_output", N_EMBD, N_EMBD), ("ffn_up", N_EMBD, N_FF), ("ffn_down", N_FF, N_EMBD)):
            yield f"blk.{i}.{name}.weight", (n_in, n_out)
            yield f"blk.{i}.{name}.bias", (n_out,)
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{i}.{name}.weight", (N_EMBD,)
            yield f"blk.{i}.{name}.bias", (N_EMBD,)


def write_decoder(path, seed=7):
    """A model of the same vocabulary, which has learned N_CTX positions."""
    meta = {"general.architecture": (STRING, "gpt2"), "general.name": (STRING, "tiny"), "gpt2.context_length": (U32, N_CTX),
            "gpt2.embedding_length": (U32, N_EMBD), "gpt2.block_count": (U32, N_LAYER), "gpt2.feed_forward_length": (U32, N_FF),
            "gpt2.attention.head_count": (U32, N_HEAD), "gpt2.attention.layer_norm_epsilon": (F32, 1e-5)}
    write(path, meta | vocabulary(), list(decoder_tensors()), seed)


def write_slow_decoder(path, n_layer=100, n_embd=1024):
    """A model of zeros in Q4_0, with holes in its file, whose steps take seconds."""
    names = {"gpt2.context_length": N_CTX, "gpt2.embedding_length": n_embd, "gpt2.block_count": n_layer, "gpt2.feed_forward_length": 4 * n_embd,
             "gpt2.attention.head_count": 8}
    meta = {"general.architecture": (STRING, "gpt2"), "gpt2.attention.layer_norm_epsilon": (F32, 1e-5)} | {k: (U32, v) for k, v in names.items()} | vocabulary()
    of = {N_EMBD: n_embd, 3 * N_EMBD: 3 * n_embd, N_FF: 4 * n_embd}
    tensors = [(name, shape) for name, shape in decoder_tensors() if not name.startswith("blk.1.")]
    tensors = [t for t in tensors if not t[0].startswith("blk.")] + [(name.replace("blk.0", f"blk.{i}"), shape)
               for i in range(n_layer) for name, shape in tensors if name.startswith("blk.")]
    out, at = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(field(name, *v) for name, v in meta.items()), 0
    for name, shape in tensors:
        shape = tuple(of.get(n, n) for n in shape)
        matrix = len(shape) > 1 and name != "position_embd.weight"
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 2 if matrix else 0, at)
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        at += -(-(n // 32 * 18 if matrix else 4 * n) // 32) * 32
    with open(path, "wb") as f:
        f.write(out)
        f.truncate(len(out) + -len(out) % 32 + at)


def write_encoder(path, **fields):
    """An encoder of bytes and letters, which has learned N_CTX positions and knows the labels no and yes; fields: more metadata,
    names with __ for points."""
    meta = {"general.architecture": (STRING, "bert"), "general.name": (STRING, "tiny"), "bert.context_length": (U32, N_CTX),
            "bert.embedding_length": (U32, N_EMBD), "bert.block_count": (U32, N_LAYER), "bert.feed_forward_length": (U32, N_FF),
            "bert.attention.head_count": (U32, N_HEAD), "bert.attention.layer_norm_epsilon": (F32, 1e-5), "bert.pooling_type": (U32, 1),
            "bert.classifier.output_labels": (STRING, ["no", "yes"]), "tokenizer.ggml.token_type_count": (U32, 1)}
    write(path, meta | vocabulary() | {name.replace("__", "."): v for name, v in fields.items()}, list(encoder_tensors()))
