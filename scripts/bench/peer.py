"""Times llama.cpp, through the ctypes table of llama-cpp-python, on tests of `gpurun bench`, and prints rows with the same
names, one JSON object a line (prompts of more than 512 tokens with the best of several micro-batches, -ub); or what passes
until a token's logits are there, the loading of the model included; or writes the logits of every token of a text as a NumPy array.

    peer.py MODEL.gguf --tests '[{"n_prompt": 512, "n_gen": 0, "n_seq": 1, "n_depth": 0, "n_depth_others": 0}, ..]' -t 2 [-r 2]
    peer.py MODEL.gguf --load -t 2
    peer.py MODEL.gguf --logits OUT.npy --tokens 1,2,3 -t 2
"""
import argparse
import ctypes
import json
import os
import random
import statistics
import sys
import time

import llama_cpp
import llama_cpp.llama_cpp as ll
import machine


def require_native():
    """A build for a lesser machine would be no comparison."""
    report = ll.llama_print_system_info().decode()
    lacks = machine.lacks(report)
    if lacks:
        sys.exit(f"peer: llama.cpp was built without {', '.join(lacks)}, which this machine has: {report}")
    return report


class Peer:
    def __init__(self, a):
        self.a = a
        params = ll.llama_model_default_params()
        params.n_gpu_layers = a.ngl
        self.model = ll.llama_model_load_from_file(a.model.encode(), params)
        if not self.model:
            sys.exit(f"peer: llama.cpp does not open {a.model}")
        self.n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.ctx, self.ubatch = None, a.ubatch[0]

    def open(self, n_ctx, n_seq):
        """Sequences have cells of their own: faster here than a pool in which each sees the others' cells."""
        params = ll.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, self.a.batch, self.ubatch
        params.n_seq_max, params.kv_unified = n_seq, False
        params.n_threads = params.n_threads_batch = self.a.t
        params.no_perf = True
        if self.ctx:
            ll.llama_free(self.ctx)
        self.ctx = ll.llama_init_from_model(self.model, params)
        if not self.ctx:
            sys.exit(f"peer: llama.cpp opens no context of {n_ctx} tokens for {self.a.model}")
        self.memory = ll.llama_get_memory(self.ctx)

    def decode(self, tokens, pos, seqs, wanted):
        """One batch, complete when this returns."""
        b = ll.llama_batch_init(len(tokens), 0, 1)
        b.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, pos[i], 1, seqs[i], wanted[i]
        if ll.llama_decode(self.ctx, b) != 0:
            sys.exit("peer: llama_decode failed")
        ll.llama_synchronize(self.ctx)
        ll.llama_batch_free(b)

    def prompt(self, tokens, seq, first=0):
        for i in range(0, len(tokens), self.a.batch):
            part = tokens[i : i + self.a.batch]
            n = len(part)
            self.decode(part, range(first + i, first + i + n), [seq] * n, [0] * (n - 1) + [1])

    def measure(self, test):
        """ns of each measurement, of each first token, of each step."""
        p, n, n_seq, depth, others = (test[k] for k in ("n_prompt", "n_gen", "n_seq", "n_depth", "n_depth_others"))
        n_all = n_seq + (others > 0)
        self.open(max(depth + p + n, others) * n_all, n_all)
        tokens = [random.randrange(self.n_vocab) for _ in range(max(p, depth, others, n) + n_seq + 1)]
        if others:
            self.prompt(tokens[:others], n_seq)
        if depth:
            self.prompt(tokens[:depth], 0)
        for s in range(1, n_seq if depth else 1):
            ll.llama_memory_seq_cp(self.memory, 0, s, -1, -1)
        all_ns, first_ns, steps = [], [], []
        for rep in range(-1, self.a.r):  # the first one is to warm up
            for s in range(n_seq):
                ll.llama_memory_seq_rm(self.memory, s, depth, -1)
            start = last = time.perf_counter_ns()
            if p:
                self.prompt(tokens[:p if rep >= 0 else min(p, 512)], 0, depth)
                last = time.perf_counter_ns()
            first, mine = last - start, []
            for i in range(n if rep >= 0 else min(n, 1)):
                self.decode([tokens[i + s] for s in range(n_seq)], [depth + p + i] * n_seq, range(n_seq), [1] * n_seq)
                now = time.perf_counter_ns()
                mine.append(now - last)
                last = now
            if rep >= 0:
                all_ns.append(last - start)
                first_ns.append(first)
                steps += mine
        return all_ns, first_ns, sorted(steps)

    def rows(self, tests, version):
        for test in tests:
            tried = []
            for self.ubatch in self.a.ubatch if test["n_prompt"] > 512 else self.a.ubatch[:1]:
                random.seed(1)
                tried.append((*self.measure(test), self.ubatch))
            ns, first, steps, ubatch = min(tried, key=lambda x: sum(x[0]))
            n = test["n_prompt"] + test["n_gen"] * test["n_seq"]
            at = lambda share: steps[max(0, -int(-share * len(steps) // 1) - 1)] if steps else 0
            yield {**test, "n_ubatch": ubatch, "avg_ts": round(statistics.mean(n * 1e9 / x for x in ns), 4), "samples_ns": ns,
                   "ttft_ns": round(statistics.mean(first)) if test["n_prompt"] else 0,
                   "itl_p50_ns": at(0.5), "itl_p90_ns": at(0.9), "itl_p99_ns": at(0.99), "version": version}

    def logits(self, tokens, out):
        import numpy as np

        n = len(tokens)
        self.open(n, 1)
        self.decode(tokens, range(n), [0] * n, [1] * n)
        rows = ctypes.cast(ll.llama_get_logits(self.ctx), ctypes.POINTER(ctypes.c_float))
        np.save(out, np.ctypeslib.as_array(rows, (n, self.n_vocab)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tests", type=json.loads, default=[])
    p.add_argument("--logits")
    p.add_argument("--tokens", default="")
    p.add_argument("-t", type=int, default=os.cpu_count())
    p.add_argument("-r", type=int, default=2)
    p.add_argument("-b", "--batch", type=int, default=2048)
    p.add_argument("-ub", "--ubatch", type=lambda x: [int(n) for n in x.split(",")], default=[512],
                   help="several: the best one, of prompts of more than 512 tokens")
    p.add_argument("--load", action="store_true")
    p.add_argument("-ngl", type=int, default=0)
    a = p.parse_args()
    ll.llama_backend_init()
    report = require_native()
    quiet = ll.llama_log_callback(lambda level, text, user: None)
    ll.llama_log_set(quiet, None)
    if a.ngl and not ll.llama_supports_gpu_offload():
        sys.exit("peer: this build of llama.cpp knows no GPU; -ngl needs one with CUDA")
    start = time.perf_counter_ns()
    peer = Peer(a)
    if a.load:
        peer.open(512, 1)
        peer.decode([1], [0], [0], [1])
        ns = time.perf_counter_ns() - start
        print(json.dumps({"load_ns": ns, "ttft_ns": 0, "version": f"llama-cpp-python {llama_cpp.__version__}"}), flush=True)
    for row in peer.rows(a.tests, f"llama-cpp-python {llama_cpp.__version__}"):
        print(json.dumps({**row, "system": report.strip()}), flush=True)
    if a.logits:
        peer.logits([int(x) for x in a.tokens.split(",")], a.logits)


main()
