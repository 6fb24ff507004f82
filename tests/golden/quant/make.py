#!/usr/bin/env python3
"""Writes quant.inc beside this file: what PyPI's gguf (quants.py) makes of deterministic input, and for types that it does not
know what the library in PyPI's llama-cpp-python makes of it.

    pip install gguf==0.19.0 llama-cpp-python==0.3.36 && tests/golden/quant/make.py

DEQUANT(type, seed, blocks, hash): `blocks` blocks of bytes from gr_rng_new(seed), dequantised.
BLOCK(type, "block in hex", bits of the expected f32 ...): one of them in clear.
QUANT_EXACT(type, seed, blocks, hash): that many blocks of gr_rng_normal values, quantised by the types with one rule.
PEER(type, normal, real): sqrt(sum w (x - x')^2 / sum w x^2) of llama.cpp's quantiser with importances w, on normal values and
on a matrix of the default model.
The generator is that of host/base/rng.h, the hash a mixed FNV-1a over 32-bit words with every NaN as 7fc00000."""
import ctypes
import glob
import importlib.util
import os
import warnings

import gguf
import numpy as np
from gguf import quants

warnings.filterwarnings("ignore")
M64 = 2**64 - 1


class Rng:
    def __init__(self, seed):
        self.state, self.inc = 0, (seed << 1 | 1) & M64
        self.u32()
        self.state = (self.state + (seed ^ 0x853C49E6748FEA9B)) & M64
        self.u32()

    def u32(self):
        s = self.state
        self.state = (s * 6364136223846793005 + self.inc) & M64
        x, rot = ((s >> 18 ^ s) >> 27) & 0xFFFFFFFF, s >> 59
        return (x >> rot | x << (-rot & 31)) & 0xFFFFFFFF

    def double(self):
        hi = self.u32()
        return float((hi << 32 | self.u32()) >> 11) * 2.0**-53

    def normal(self):
        s = -6.0
        for _ in range(12):
            s += self.double()
        return s


def fnv(words):
    h = 0xCBF29CE484222325
    for w in words.tolist():
        h = (h ^ w) * 0x100000001B3 & M64
        h ^= h >> 32
    return h


def words_of(floats):
    w = floats.astype(np.float32).ravel().view(np.uint32).copy()
    w[np.isnan(floats.ravel())] = 0x7FC00000
    return w


# Elements and bytes of blocks that gguf does not know, or knows wrongly.
SIZES = {"Q8_1": (32, 36), "Q2_0": (64, 18)}


def library():
    folder = os.path.dirname(importlib.util.find_spec("llama_cpp").origin)
    return ctypes.CDLL(glob.glob(os.path.join(folder, "lib", "libggml-base.so"))[0])


def c_name(name):
    return name[:-1].lower() + name[-1]  # q8_K, nvfp4


def dequantize(name, raw):
    """Rows of one block in bytes to rows of f32."""
    block = size_of(name)[0]
    if name == "Q8_1":
        d, q = raw[:, :2].copy().view(np.float16).astype(np.float32), raw[:, 4:].view(np.int8)
        return d * q.astype(np.float32)
    if name in ("Q8_K", "Q1_0", "Q2_0"):
        raw, out = np.ascontiguousarray(raw), np.empty((len(raw), block), np.float32)
        convert = getattr(library(), "dequantize_row_" + c_name(name))
        convert(raw.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(out.size))
        return out
    return quants.dequantize(raw, gguf.GGMLQuantizationType[name])


def quantize(name, x):
    """Rows of one block of f32 to bytes, by the rule without importances."""
    if name in ("NVFP4", "Q1_0", "Q2_0", "Q8_1", "Q8_K"):
        raw = np.zeros((len(x), size_of(name)[1]), np.uint8)
        convert = getattr(library(), "quantize_row_" + c_name(name) + "_ref")
        convert(x.ctypes.data_as(ctypes.c_void_p), raw.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(x.size))
        return raw
    return quants.quantize(x, gguf.GGMLQuantizationType[name])


def peer_error(name, x, w):
    """The peer's error for rows x [n, 256] with importances w [256]."""
    lib, block = library(), size_of(name)
    number = 42 if name == "Q2_0" else int(gguf.GGMLQuantizationType[name])
    pointer = lambda a: a.ctypes.data_as(ctypes.c_void_p)
    raw = np.zeros(x.size // block[0] * block[1], np.uint8)
    lib.ggml_quantize_init(ctypes.c_int(number))
    lib.ggml_quantize_chunk(ctypes.c_int(number), pointer(x), pointer(raw), ctypes.c_int64(0), ctypes.c_int64(len(x)),
                            ctypes.c_int64(256), pointer(w))
    y = dequantize(name, raw.reshape(-1, block[1])).reshape(x.shape).astype(np.float64)
    return np.sqrt((w * (x - y) ** 2).sum() / (w * x.astype(np.float64) ** 2).sum())


def real_data():
    """blk.0.attn_q.weight of the default model, and the mean squares of what it is multiplied with for all tokens."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
    tensors = {t.name: t for t in gguf.GGUFReader(os.path.join(root, "tools", "default-model.gguf")).tensors}
    read = lambda name: quants.dequantize(tensors[name].data, tensors[name].tensor_type).astype(np.float32)
    embd, norm = read("token_embd.weight").astype(np.float64), read("blk.0.attn_norm.weight")
    embd *= norm / np.sqrt((embd**2).mean(axis=1, keepdims=True) + 1e-5)
    return np.ascontiguousarray(read("blk.0.attn_q.weight")), (embd**2).mean(axis=0).astype(np.float32)


def size_of(name):
    return SIZES[name] if name in SIZES else gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def main():
    out = ["/* Made by make.py from gguf %s; see there. */" % gguf.__dict__.get("__version__", "0.19.0")]
    types = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
    types += "Q8_1 Q8_K Q1_0 Q2_0 TQ1_0 TQ2_0 MXFP4 NVFP4 IQ4_NL IQ4_XS IQ3_S IQ3_XXS IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S".split()
    for seed, name in enumerate(types, 1):
        block, size = size_of(name)
        n = (1 << 17) // block
        rng = Rng(seed)
        raw = np.array([rng.u32() for _ in range((n * size + 3) // 4)], np.uint32).view(np.uint8)[: n * size]
        want = words_of(dequantize(name, raw.reshape(n, size))).reshape(n, block)
        out.append(f"DEQUANT({name}, {seed}, {n}, 0x{fnv(want.ravel()):016x})")
        if block > 1:
            clear = next(i for i in range(n) if np.isfinite(want[i].view(np.float32)).all())
            bits = ", ".join(f"0x{w:08x}" for w in want[clear])
            out.append(f'BLOCK({name}, "{raw.reshape(n, size)[clear].tobytes().hex()}", {bits})')
    for seed, name in enumerate("Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0 Q8_1 Q8_K".split(), 101):
        block, size = size_of(name)
        n = 512 if block == 32 else 64
        rng = Rng(seed)
        x = np.array([rng.normal() for _ in range(n * block)], np.float64).astype(np.float32).reshape(n, block)
        raw = quantize(name, x).ravel().view(np.uint32)
        out.append(f"QUANT_EXACT({name}, {seed}, {n}, 0x{fnv(raw):016x})")
    rng = Rng(21)
    normal = np.array([rng.normal() for _ in range(256 * 257)]).astype(np.float32)
    normal = np.ascontiguousarray(normal[256:].reshape(256, 256)), normal[:256] ** 2
    real = real_data()
    for name in types[3:]:
        if name not in ("Q8_1", "Q8_K"):
            out.append(f"PEER({name}, {peer_error(name, *normal):.6f}, {peer_error(name, *real):.6f})")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "quant.inc"), "w") as f:
        f.write("\n".join(out) + "\n")


main()
