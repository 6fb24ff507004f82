#!/usr/bin/env python3
"""Makes a folder for `scripts/compare/zoo --shapes N --zoo DIR` of models that give vectors: llama.cpp makes no fixtures of them.

    encoders.py BUILD DIR

BUILD/tests/write_tiny writes one model of each such architecture to DIR; DIR/golden/basic.json is the session of vectors
that is compared: every token's of three texts."""
import json
import os
import subprocess
import sys

LENGTHS = [9, 23, 14]  # of the texts, of which one is longer than a window


def decode(lengths):
    at = [(p, s) for s, n in enumerate(lengths) for p in range(n)]
    return {"op": "decode", "tokens": [(5 + 37 * i) % 96 for i in range(len(at))], "pos": [p for p, _ in at],
            "seq": [[s] for _, s in at], "logits": [1] * len(at)}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, folder = sys.argv[1:]
    os.makedirs(os.path.join(folder, "golden"), exist_ok=True)
    subprocess.run([os.path.join(build, "tests", "write_tiny"), folder, "encoders"], check=True)
    context = {"n_ctx": 128, "n_batch": 64, "n_seq_max": len(LENGTHS), "flash_attn": 0, "type_k": "f32", "type_v": "f32",
               "embeddings": 1, "pooling": "none"}
    with open(os.path.join(folder, "golden", "basic.json"), "w") as f:
        json.dump({"context": context, "ops": [decode(LENGTHS)]}, f)


if __name__ == "__main__":
    main()
