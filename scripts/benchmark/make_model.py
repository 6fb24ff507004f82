"""Writes a GGUF model of Llama-3.2-1B's shapes with random weights of sane scale (dequantised standard deviation 0.02,
norms 1), its matrices stored as one type. Speed depends on shapes and types alone, so this stands for the real model.

    make_model.py OUT.gguf --type q8_0|q4_k|iq4_xs|.. [--vocab 128256] [--layers 16]
"""
import argparse

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

N_EMBD, N_HEAD, N_HEAD_KV, D_HEAD, N_FF = 2048, 32, 8, 64, 8192
STD = 0.02


def q8_0(rng, rows, cols):
    """[rows, cols / 32 * 34] bytes: a half scale, 32 int8."""
    b = np.empty((rows, cols // 32, 34), np.uint8)
    q = rng.integers(-127, 128, (rows, cols // 32, 32), np.int8)
    scale = STD / np.sqrt(127 * 128 / 3) * rng.uniform(0.8, 1.2, (rows, cols // 32, 1))
    b[:, :, :2] = scale.astype(np.float16).view(np.uint8)
    b[:, :, 2:] = q.view(np.uint8)
    return b.reshape(rows, -1)


def q4_k(rng, rows, cols):
    """[rows, cols / 256 * 144] bytes: half d, half dmin, 8 six-bit scales and mins in 12 bytes, 256 nibbles. With each
    min equal to its scale and dmin = 7.5 d a weight is d * scale * (q - 7.5)."""
    n = cols // 256
    b = np.empty((rows, n, 144), np.uint8)
    scale = rng.integers(32, 64, (rows, n, 8), np.uint8)
    d = np.full((rows, n, 1), STD / (np.sqrt(np.mean(np.arange(32, 64) ** 2.0)) * np.sqrt((16**2 - 1) / 12)))
    b[:, :, 0:2] = d.astype(np.float16).view(np.uint8)
    b[:, :, 2:4] = (7.5 * d).astype(np.float16).view(np.uint8)
    low, high = scale[:, :, :4], scale[:, :, 4:]
    b[:, :, 4:8] = b[:, :, 8:12] = low | (high >> 4) << 6
    b[:, :, 12:16] = (high & 15) * 17
    b[:, :, 16:] = rng.integers(0, 256, (rows, n, 128), np.uint8)
    return b.reshape(rows, -1)


def any_bytes(storage, at, magnitude):
    """Random blocks whose half scale is at byte `at`; with a scale of 1 weights have about this magnitude."""
    block, size = GGML_QUANT_SIZES[storage]

    def make(rng, rows, cols):
        b = rng.integers(0, 256, (rows, cols // block, size), np.uint8)
        b[:, :, at : at + 2] = np.array([STD / magnitude], np.float16).view(np.uint8)
        return b.reshape(rows, -1)

    return make, storage


def mxfp4(rng, rows, cols):
    """[rows, cols / 32 * 17] bytes: an exponent, 2^(e - 128) of what is twice a value, and 32 nibbles."""
    b = rng.integers(0, 256, (rows, cols // 32, 17), np.uint8)
    b[:, :, 0] = 128 + round(np.log2(STD / 6))
    return b.reshape(rows, -1)


BLOCKS = {"q8_0": (q8_0, Type.Q8_0), "q4_k": (q4_k, Type.Q4_K), "mxfp4": (mxfp4, Type.MXFP4),
          "iq4_nl": any_bytes(Type.IQ4_NL, 0, 68), "iq4_xs": any_bytes(Type.IQ4_XS, 0, 68 * 18),
          "iq3_s": any_bytes(Type.IQ3_S, 0, 9 * 18), "iq3_xxs": any_bytes(Type.IQ3_XXS, 0, 35 * 4.6),
          "iq2_s": any_bytes(Type.IQ2_S, 0, 28 * 2.3), "iq2_xs": any_bytes(Type.IQ2_XS, 0, 28 * 2.3),
          "iq2_xxs": any_bytes(Type.IQ2_XXS, 0, 28 * 2.3), "iq1_s": any_bytes(Type.IQ1_S, 0, 0.8 * 9),
          "tq1_0": any_bytes(Type.TQ1_0, 52, 0.8), "tq2_0": any_bytes(Type.TQ2_0, 64, 0.8)}


def write(path, type_name, n_vocab, n_layer):
    make, storage = BLOCKS[type_name]
    rng = np.random.default_rng(1)
    w = GGUFWriter(path, "llama")
    w.add_name(f"synthetic 1B {type_name}")
    w.add_vocab_size(n_vocab)
    w.add_context_length(8192)
    w.add_embedding_length(N_EMBD)
    w.add_block_count(n_layer)
    w.add_feed_forward_length(N_FF)
    w.add_head_count(N_HEAD)
    w.add_head_count_kv(N_HEAD_KV)
    w.add_rope_dimension_count(D_HEAD)
    w.add_rope_freq_base(500000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("none")
    w.add_add_bos_token(False)

    def matrix(name, rows, cols):
        w.add_tensor(name + ".weight", make(rng, rows, cols), raw_dtype=storage)

    def norm(name):
        w.add_tensor(name + ".weight", np.ones(N_EMBD, np.float32))

    matrix("token_embd", n_vocab, N_EMBD)
    norm("output_norm")
    for i in range(n_layer):
        norm(f"blk.{i}.attn_norm")
        matrix(f"blk.{i}.attn_q", N_HEAD * D_HEAD, N_EMBD)
        matrix(f"blk.{i}.attn_k", N_HEAD_KV * D_HEAD, N_EMBD)
        matrix(f"blk.{i}.attn_v", N_HEAD_KV * D_HEAD, N_EMBD)
        matrix(f"blk.{i}.attn_output", N_EMBD, N_HEAD * D_HEAD)
        norm(f"blk.{i}.ffn_norm")
        matrix(f"blk.{i}.ffn_gate", N_FF, N_EMBD)
        matrix(f"blk.{i}.ffn_up", N_FF, N_EMBD)
        matrix(f"blk.{i}.ffn_down", N_EMBD, N_FF)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out")
    p.add_argument("--type", choices=BLOCKS, required=True)
    p.add_argument("--vocab", type=int, default=128256)
    p.add_argument("--layers", type=int, default=16)
    a = p.parse_args()
    write(a.out, a.type, a.vocab, a.layers)
