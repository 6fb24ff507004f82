"""Writes a llama model of a larger shape that computes the same logits as a small one: a model of real size whose texts mean
something, so that drafts of its text, or of a small model, are right as often as drafts are.

    pad_model.py SMALL.gguf OUT.gguf [--shape llama-3.2-1b] [--only-vocab]

The small model's numbers fill the first columns, rows, heads and layers of the larger matrices, zeros the rest of its layers. The other
layers are random, but what they add to the sum of layers is multiplied by zeros. The mean square of a row is that of fewer columns, so norms
are scaled and epsilon too. Heads must have as many numbers in both, and a KV head no fewer heads of Q. Tokens beyond the small
vocabulary are unused, their logits are 0. --only-vocab: the small model with those tokens, as its draft model: vocabularies must be equal.
Matrices are f16. Needs gguf and numpy (PyPI)."""
import argparse
import dataclasses

import gguf
import numpy as np
from shapes import SHAPES

STD = 0.02


def read(path):
    """Metadata {key: value} and tensors {name: f32}, matrices as [rows, columns]."""
    file = gguf.GGUFReader(path)
    tensors = {t.name: np.asarray(t.data, np.float32).reshape(tuple(reversed([int(n) for n in t.shape]))) for t in file.tensors}
    return {name: field.contents() for name, field in file.fields.items()}, tensors


def shape_of(meta):
    """That of the small model."""
    m = lambda key: meta[f"llama.{key}"]
    tokens = len(meta["tokenizer.ggml.tokens"])
    return dataclasses.replace(SHAPES["llama-3.2-1b"], n_embd=m("embedding_length"), n_layer=m("block_count"), n_ff=m("feed_forward_length"),
                               n_head=m("attention.head_count"), n_head_kv=m("attention.head_count_kv"), d_head=m("rope.dimension_count"),
                               n_vocab=tokens)


def corner(small, rows, cols):
    out = np.zeros((rows, cols), np.float16)
    out[:small.shape[0], :small.shape[1]] = small
    return out


def head_rows(small, large):
    """Where each row of the small model's Q lies: its heads begin with those of the KV head that they had."""
    per, wide = small.n_head // small.n_head_kv, large.n_head // large.n_head_kv
    heads = [h // per * wide + h % per for h in range(small.n_head)]
    return np.concatenate([np.arange(small.d_head) + large.d_head * h for h in heads])


def tensors(t, small, large, rng):
    """(name, array) of the large model."""
    scale = np.sqrt(small.n_embd / large.n_embd)
    q_rows, n_q, n_kv = head_rows(small, large), large.n_head * large.d_head, large.n_head_kv * large.d_head
    dims = {"attn_q": (n_q, large.n_embd), "attn_k": (n_kv, large.n_embd), "attn_v": (n_kv, large.n_embd), "attn_output": (large.n_embd, n_q),
            "ffn_gate": (large.n_ff, large.n_embd), "ffn_up": (large.n_ff, large.n_embd), "ffn_down": (large.n_embd, large.n_ff)}
    drawn = {name: (STD * rng.standard_normal(d, np.float32)).astype(np.float16) for name, d in dims.items()}

    def norm(x):
        out = np.ones(large.n_embd, np.float32)
        out[:small.n_embd] = x * scale
        return out

    yield "token_embd.weight", corner(t["token_embd.weight"], large.n_vocab, large.n_embd)
    for i in range(large.n_layer):
        name = f"blk.{i}.{{}}.weight".format
        there = i < small.n_layer
        for kind in ("attn_norm", "ffn_norm"):
            yield name(kind), norm(t[name(kind)] if there else 1)
        for kind, d in dims.items():
            out = np.zeros(d, np.float16) if there or kind in ("attn_output", "ffn_down") else drawn[kind]
            if there:
                x = t[name(kind)]
                if kind == "attn_q":
                    out[q_rows, :x.shape[1]] = x
                elif kind == "attn_output":
                    out[:x.shape[0], q_rows] = x
                else:
                    out = corner(x, *d)
            yield name(kind), out
    yield "output_norm.weight", norm(t["output_norm.weight"])


def write(path, meta, small, large, arrays):
    w = gguf.GGUFWriter(path, "llama")
    w.add_name(f"built-in model in the shape of {large.name}" if large.n_embd != small.n_embd else "built-in model, more tokens")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    w.add_vocab_size(large.n_vocab)
    w.add_context_length(meta["llama.context_length"])
    w.add_embedding_length(large.n_embd)
    w.add_block_count(large.n_layer)
    w.add_feed_forward_length(large.n_ff)
    w.add_head_count(large.n_head)
    w.add_head_count_kv(large.n_head_kv)
    w.add_layer_norm_rms_eps(meta["llama.attention.layer_norm_rms_epsilon"] * small.n_embd / large.n_embd)
    w.add_rope_dimension_count(large.d_head)
    w.add_rope_freq_base(meta["llama.rope.freq_base"])
    more = range(large.n_vocab - small.n_vocab)
    w.add_tokenizer_model(meta["tokenizer.ggml.model"])
    w.add_tokenizer_pre(meta["tokenizer.ggml.pre"])
    w.add_token_list(list(meta["tokenizer.ggml.tokens"]) + [f"<unused{i}>" for i in more])
    w.add_token_types(list(meta["tokenizer.ggml.token_type"]) + [gguf.TokenType.UNUSED for _ in more])
    w.add_token_merges(meta["tokenizer.ggml.merges"])
    w.add_bos_token_id(meta["tokenizer.ggml.bos_token_id"])
    w.add_eos_token_id(meta["tokenizer.ggml.eos_token_id"])
    w.add_add_bos_token(True)
    for name, x in arrays:
        w.add_tensor(name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def pad(source, path, shape, only_vocab):
    meta, t = read(source)
    small, large = shape_of(meta), SHAPES[shape]
    if only_vocab:
        large = dataclasses.replace(small, n_vocab=large.n_vocab)
    if large.d_head != small.d_head or large.n_head // large.n_head_kv < small.n_head // small.n_head_kv or "output.weight" in t:
        raise SystemExit(f"pad_model: {source} does not fit into {large.name}: heads differ, or its logits have a matrix of their own")
    write(path, meta, small, large, tensors(t, small, large, np.random.default_rng(1)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("small")
    p.add_argument("out")
    p.add_argument("--shape", default="llama-3.2-1b", choices=SHAPES)
    p.add_argument("--only-vocab", action="store_true")
    a = p.parse_args()
    pad(a.small, a.out, a.shape, a.only_vocab)


if __name__ == "__main__":
    main()
