#!/usr/bin/env python3
"""Writes tiny.gguf, session.json and expected/*.npy beside this file: a session and what llama.cpp computes for it.

    pip install gguf llama-cpp-python && tests/golden/replay/make.py ORACLE

ORACLE is a program `ORACLE SESSION.json OUT.npz --model FILE.gguf` that runs a session (tools/commands/session.h) on llama.cpp.
The model is a llama of two layers with random weights and no tokenizer. The session has four sequences in one cache,
sharing, removal, moves and an eviction; no division, which llama.cpp shifts the wrong way, and no YaRN."""
import json
import os
import shutil
import subprocess
import sys

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
N_VOCAB, N_EMBD, N_HEAD, N_HEAD_KV, D_HEAD, N_FF, N_LAYER = 48, 32, 2, 1, 16, 32, 2


def write_model(path):
    rng = np.random.default_rng(1)
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("tiny")
    w.add_context_length(256)
    w.add_embedding_length(N_EMBD)
    w.add_block_count(N_LAYER)
    w.add_feed_forward_length(N_FF)
    w.add_head_count(N_HEAD)
    w.add_head_count_kv(N_HEAD_KV)
    w.add_rope_dimension_count(D_HEAD)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(N_VOCAB)
    w.add_tokenizer_model("none")

    def matrix(name, rows, cols):
        w.add_tensor(name + ".weight", (rng.standard_normal((rows, cols)) * 1.5 / cols**0.5).astype(np.float32))

    def norm(name):
        w.add_tensor(name + ".weight", (1 + 0.2 * rng.standard_normal(N_EMBD)).astype(np.float32))

    matrix("token_embd", N_VOCAB, N_EMBD)
    norm("output_norm")
    for i in range(N_LAYER):
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


class Session:
    """Operations, with the position at which each sequence goes on."""

    def __init__(self):
        self.rng, self.ops, self.next = np.random.default_rng(2), [], [0] * 4

    def decode(self, *runs, logits="last"):
        """runs: (sequence, number of tokens) in batch order; every third position also gives logits for "some"."""
        op = {"op": "decode", "tokens": [], "pos": [], "seq": [], "logits": []}
        for seq, n in runs:
            for i in range(n):
                op["tokens"].append(int(self.rng.integers(N_VOCAB)))
                op["pos"].append(self.next[seq])
                op["seq"].append([seq])
                op["logits"].append(int(i == n - 1 or (logits == "some" and i % 3 == 0)))
                self.next[seq] += 1
        self.ops.append(op)

    def op(self, name, **fields):
        self.ops.append({"op": name, **fields})


def make_session():
    s = Session()
    s.decode((0, 11), logits="some")
    s.decode((1, 4), (0, 1))
    s.op("seq_cp", src=0, dst=2, p0=-1, p1=8)
    s.next[2] = 8
    s.decode((2, 3), (1, 2), logits="some")
    s.op("seq_rm", seq=0, p0=3, p1=6)
    s.op("seq_add", seq=1, p0=2, p1=-1, delta=5)
    s.next[1] += 5
    s.decode((0, 2), (1, 2), (2, 1))
    s.op("seq_cp", src=1, dst=3, p0=-1, p1=-1)
    s.op("seq_rm", seq=1, p0=7, p1=-1)
    s.next[3], s.next[1] = s.next[1], 2
    s.decode((3, 1), (1, 1))
    s.op("seq_rm", seq=3, p0=0, p1=2)
    s.op("seq_add", seq=3, p0=0, p1=-1, delta=-7)
    s.next[3] -= 7
    s.decode((3, 2), (2, 2))
    s.decode((0, 1))
    s.ops[-1]["pos"][0] += 1  # a gap: refused
    s.next[0] -= 1
    s.op("seq_keep", seq=2)
    s.next = [0, 0, s.next[2], 0]
    s.decode((1, 9), (2, 1), logits="some")
    s.op("clear")
    s.next = [0] * 4
    s.decode((3, 3))
    context = {"n_ctx": 256, "n_batch": 32, "n_ubatch": 8, "n_seq_max": 4, "type_k": "f32", "type_v": "f32"}
    context |= {"flash_attn": 0, "kv_unified": 1, "swa_full": 1}
    return {"model": "tiny.gguf", "context": context, "ops": s.ops}


def main():
    model, session, npz = (os.path.join(HERE, x) for x in ("tiny.gguf", "session.json", "expected.npz"))
    write_model(model)
    with open(session, "w") as f:
        s = make_session()
        head = json.dumps({k: s[k] for k in ("model", "context")})[:-1]
        f.write(head + ', "ops": [\n' + ",\n".join(json.dumps(op) for op in s["ops"]) + "\n]}\n")
    subprocess.run([sys.executable, sys.argv[1], session, npz, "--model", model], check=True)
    folder = os.path.join(HERE, "expected")
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    for name, array in np.load(npz).items():
        np.save(os.path.join(folder, name + ".npy"), array)
    os.remove(npz)


if __name__ == "__main__":
    main()
