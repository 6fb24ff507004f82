#!/usr/bin/env python3
"""Makes a folder for `scripts/compare/zoo --shapes N --zoo DIR` of architectures that there are no fixtures of.

    relatives.py ZOO DIR

Each begins with the keys of a fixture in ZOO that is like it, under its own name and with what it has of its own: what
tensors it has, how large they are and what comes of them is llama.cpp's word then (fixture.py)."""
import os
import shutil
import sys

import fixture
import gguf
from gguf import GGUFValueType as V

U, B, F = V.UINT32, V.BOOL, V.FLOAT32
RELATIVES = {
    "apertus": ("qwen3-dense", {"xielu.alpha_p": (F, [0.3, 1.0]), "xielu.alpha_n": (F, [-0.2, 30.0]),
                                "xielu.beta": (F, [0.5, 0.25]), "xielu.eps": (F, [-1e-6, -0.1])}),
    "plm": ("minicpm3-dense", {"rope.dimension_count": (U, 16), "attention.kv_lora_rank": (U, 24)}),
    "step35": ("laguna-moe", {"block_count": (U, 4), "attention.sliding_window_pattern": (B, [False, True, True, False]),
                              "attention.sliding_window": (U, 9), "expert_used_count": (U, 1),
                              "attention.head_count": (U, [2, 4, 4, 2]), "attention.head_count_kv": (U, [1, 2, 2, 1]),
                              "swiglu_clamp_exp": (F, [0.0, 0.0, 0.3, 0.5]),
                              "swiglu_clamp_shexp": (F, [0.4, 0.0, 0.0, 0.2])}),
}


def write(arch, source, own, path):
    reader = gguf.GGUFReader(source)
    k = fixture.Keys(reader)
    for kept in (k.values, k.types):
        for name in [n for n in kept if n.startswith(k.arch + ".")]:
            kept[name.replace(k.arch, arch, 1)] = kept.pop(name)
    k.arch = arch
    for key, (type_, value) in own.items():
        k.own(key, type_, value)
        if key.startswith("xielu."):  # without an architecture in front
            k.values[key], k.types[key] = k.values.pop(f"{arch}.{key}"), k.types.pop(f"{arch}.{key}")
    fixture.write(k, {t.name: t.data for t in reader.tensors}, path)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    zoo, folder = sys.argv[1:]
    os.makedirs(os.path.join(folder, "golden"), exist_ok=True)
    shutil.copyfile(os.path.join(zoo, "golden", "basic.json"), os.path.join(folder, "golden", "basic.json"))
    for arch, (source, own) in RELATIVES.items():
        write(arch, os.path.join(zoo, source + ".gguf"), own, os.path.join(folder, arch + ".gguf"))


if __name__ == "__main__":
    main()
