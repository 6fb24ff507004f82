#!/usr/bin/env python3
"""Makes small random RWKV models and what llama.cpp computes with them.

    rwkv.py SESSION.json DIR [N]

SESSION.json: zoo/golden/basic.json. Writes N (default 4) models of each of rwkv6, rwkv7, rwkv6qwen2 and arwkv7 to DIR, as
llama.cpp's converters lay them out, of other widths, ranks and layers each, with what is optional or not, and the logits to
DIR/golden: `scripts/compare/golden --zoo DIR` compares. llama.cpp makes no such models by itself, so there are no fixtures
of them. Heads have 64 columns: with AVX-512 its products read 64 at a time, whatever a head has.

needs: pip install numpy gguf llama-cpp-python==0.3.36
"""
import ctypes
import json
import os
import random
import shutil
import sys

import fixture
import gguf
import llama_cpp as L
import numpy as np

HEAD, VOCAB = 64, 128


class Model:
    def __init__(self, arch, seed, path):
        self.arch, self.seed = arch, seed
        self.r, self.rng = random.Random(f"{arch} {seed}"), np.random.default_rng(seed)
        self.n_head = self.r.choice([1, 2, 3])
        self.n = HEAD * self.n_head
        self.n_layer, self.n_ff = self.r.choice([2, 3, 4]), self.r.choice([48, 96, 160])
        self.mix, self.decay, self.rate, self.value, self.gate = (self.r.choice(c) for c in
                                                                  ([8, 16], [12, 20], [8, 24], [8, 12], [16, 24]))
        self.of_qwen = arch in ("rwkv6qwen2", "arwkv7")
        if arch == "arwkv7" and seed % 2:
            self.gate = 0
        self.n_kv = self.n_head // 2 if arch == "rwkv6qwen2" and self.n_head % 2 == 0 else self.n_head
        self.w = gguf.GGUFWriter(path, arch)

    def tensor(self, name, *ne, scale=None, mean=0.0):
        scale = scale if scale is not None else ne[0] ** -0.5
        x = mean + scale * self.rng.standard_normal(tuple(reversed(ne)))
        self.w.add_tensor(name + ".weight" if "bias" not in name else name, x.astype(np.float32))

    def norm(self, name, bias):
        self.tensor(name, self.n, scale=0.1, mean=1)
        if bias:
            self.tensor(name + ".bias", self.n, scale=0.1)

    def keys(self):
        w = self.w
        w.add_tokenizer_model("none")
        w.add_vocab_size(VOCAB)
        w.add_context_length(1 << 20)
        w.add_embedding_length(self.n)
        w.add_block_count(self.n_layer)
        w.add_feed_forward_length(self.n_ff)
        w.add_wkv_head_size(HEAD)
        w.add_head_count(0)
        if self.of_qwen:
            w.add_layer_norm_rms_eps(1e-5)
            w.add_token_shift_count(1)
        else:
            w.add_layer_norm_eps(1e-5)
        if self.arch.startswith("rwkv6"):
            w.add_time_mix_extra_dim(self.mix)
            w.add_time_decay_extra_dim(self.decay)
            if self.of_qwen:
                w.add_head_count_kv(self.n_kv)
            else:
                w.add_rescale_every_n_layers(self.r.choice([0, 2]))
        else:
            w.add_decay_lora_rank(self.decay)
            w.add_iclr_lora_rank(self.rate)
            w.add_value_residual_mix_lora_rank(self.value)
            w.add_gate_lora_rank(self.gate)

    def time_mix_6(self, t):
        n = self.n
        self.tensor(t + "w1", n, 5 * self.mix)
        self.tensor(t + "w2", self.mix, n, 5)
        self.tensor(t + "lerp_x", n, scale=0.5)
        if not self.of_qwen and self.seed % 3 == 2:
            for c in "wkvrg":
                self.tensor(t + "lerp_" + c, n, scale=0.5)
        else:
            self.tensor(t + "lerp_fused", n, 1, 1, 5, scale=0.5)
        self.tensor(t + "decay", n, scale=0.5)
        self.tensor(t + "decay_w1", n, self.decay)
        self.tensor(t + "decay_w2", self.decay, n)
        self.tensor(t + "gate", n, n)
        for name, cols in (("key", self.n_kv * HEAD), ("value", self.n_kv * HEAD), ("receptance", n)):
            self.tensor(t + name, n, cols)
            if self.of_qwen and self.seed % 2:
                self.tensor(t + name + ".bias", cols, scale=0.3)
        if not self.of_qwen:
            self.tensor(t + "first", HEAD, self.n_head, scale=0.5)
            self.norm(t + "ln", True)

    def time_mix_7(self, t, il):
        n = self.n
        for c, rank in (("w", self.decay), ("a", self.rate), ("v", self.value if il else self.rate)):
            self.tensor(t + c + "0", n, scale=0.5)
            self.tensor(t + c + "1", n, rank)
            self.tensor(t + c + "2", rank, n)
        if self.gate:
            self.tensor(t + "g1", n, self.gate)
            self.tensor(t + "g2", self.gate, n)
        self.tensor(t + "lerp_fused", n, 1, 1, 6 if self.gate else 5, scale=0.5)
        self.tensor(t + "k_k", n, scale=0.2, mean=0.8)
        self.tensor(t + "k_a", n, scale=0.2, mean=1)
        self.tensor(t + "r_k", n, scale=0.3)
        for name in ("key", "value", "receptance"):
            self.tensor(t + name, n, n)
        if not self.of_qwen or self.seed % 4 < 2:
            self.norm(t + "ln", True)

    def feed_forward(self, b):
        if self.of_qwen:
            self.norm(b + "ffn_norm", False)
            self.tensor(b + "ffn_gate", self.n, self.n_ff)
            self.tensor(b + "ffn_up", self.n, self.n_ff)
            self.tensor(b + "ffn_down", self.n_ff, self.n)
            return
        self.norm(b + "attn_norm_2", True)
        for c in "kr" if self.arch == "rwkv6" else "k":
            self.tensor(b + "channel_mix_lerp_" + c, self.n, scale=0.5)
        self.tensor(b + "channel_mix_key", self.n, self.n_ff)
        self.tensor(b + "channel_mix_value", self.n_ff, self.n)
        if self.arch == "rwkv6":
            self.tensor(b + "channel_mix_receptance", self.n, self.n)

    def write(self):
        self.keys()
        self.tensor("token_embd", self.n, VOCAB, scale=1)
        self.tensor("output", self.n, VOCAB)
        self.norm("output_norm", not self.of_qwen)
        if not self.of_qwen:
            self.norm("token_embd_norm", True)
        for il in range(self.n_layer):
            b = f"blk.{il}."
            self.norm(b + "attn_norm", not self.of_qwen)
            if self.arch.startswith("rwkv6"):
                self.time_mix_6(b + "time_mix_")
            else:
                self.time_mix_7(b + "time_mix_", il)
            self.tensor(b + "time_mix_output", self.n, self.n)
            self.feed_forward(b)
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    L.llama_log_set(fixture.quiet, ctypes.c_void_p(0))
    source, folder, n = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 4
    golden = os.path.join(folder, "golden")
    os.makedirs(golden, exist_ok=True)
    shutil.copyfile(source, os.path.join(golden, "basic.json"))
    with open(source) as f:
        session = json.load(f)
    for arch in ("rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"):
        for seed in range(n):
            path = os.path.join(folder, f"{arch}-{seed}.gguf")
            Model(arch, seed, path).write()
            rows = fixture.run(path, session)
            np.savez(os.path.join(golden, f"{arch}-{seed}.basic.npz"), **rows)
            print(f"{arch}-{seed}", flush=True)
    os._exit(0)  # llama.cpp's own end takes longer than all of this


if __name__ == "__main__":
    main()
