"""Times llama.cpp, through the ctypes table of llama-cpp-python, on the workload of `gpurun bench`: a prompt of P tokens
in one batch into an empty cache, then N single tokens. One JSON object a line: {"test": "pp512", "avg_ts": ...}.

    peer.py MODEL.gguf -p 512 -n 64 -t 2 [-r 2]
"""
import argparse
import json
import os
import random
import statistics
import sys
import time

import llama_cpp
import llama_cpp.llama_cpp as ll

# Instruction sets that this peer uses when it was built for them, by their names in /proc/cpuinfo and in its own report.
ISA = {"avx2": "AVX2", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16", "amx_int8": "AMX_INT8"}


def require_native():
    """A build for a lesser machine would be no comparison."""
    with open("/proc/cpuinfo") as f:
        cpu = next(line for line in f if line.startswith("flags")).split()
    report = ll.llama_print_system_info().decode()
    built = {part.split("=")[0].split(":")[-1].strip() for part in report.split("|") if part.strip().endswith("= 1")}
    lacks = [name for flag, name in ISA.items() if flag in cpu and name not in built]
    if lacks:
        sys.exit(f"peer: llama.cpp was built without {', '.join(lacks)}, which this machine has: {report}")
    return report


def timed(ctx, tokens, n_batch):
    """Seconds to run the tokens in batches of n_batch."""
    start = time.perf_counter()
    for i in range(0, len(tokens), n_batch):
        part = tokens[i : i + n_batch]
        ids = (ll.llama_token * len(part))(*part)  # the batch points into it
        if ll.llama_decode(ctx, ll.llama_batch_get_one(ids, len(part))) != 0:
            sys.exit("peer: llama_decode failed")
    ll.llama_synchronize(ctx)
    return time.perf_counter() - start


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model")
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=64)
    p.add_argument("-t", type=int, default=os.cpu_count())
    p.add_argument("-r", type=int, default=2)
    a = p.parse_args()
    ll.llama_backend_init()
    report = require_native()
    quiet = ll.llama_log_callback(lambda level, text, user: None)
    ll.llama_log_set(quiet, None)

    model = ll.llama_model_load_from_file(a.model.encode(), ll.llama_model_default_params())
    params = ll.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = a.p + a.n, max(a.p, 1), max(a.p, 1)
    params.n_threads = params.n_threads_batch = a.t
    params.no_perf = True
    ctx = ll.llama_init_from_model(model, params) if model else None
    if not ctx:
        sys.exit(f"peer: llama.cpp does not open {a.model}")
    memory = ll.llama_get_memory(ctx)
    n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    random.seed(1)
    tokens = [random.randrange(n_vocab) for _ in range(a.p + a.n)]

    timed(ctx, tokens[: a.p], a.p)  # warm-up, of both shapes
    timed(ctx, tokens[:1], 1)
    seconds = {"pp": [], "tg": []}
    for _ in range(a.r):
        ll.llama_memory_clear(memory, True)
        seconds["pp"].append(timed(ctx, tokens[: a.p], a.p))
        ll.llama_memory_clear(memory, True)
        seconds["tg"].append(timed(ctx, tokens[a.p :], 1))
    for test, count in (("pp", a.p), ("tg", a.n)):
        tok_s = count / statistics.median(seconds[test])
        print(json.dumps({"test": f"{test}{count}", "avg_ts": round(tok_s, 3), "impl": "llama.cpp",
                          "version": "llama-cpp-python " + llama_cpp.__version__, "system": report.strip()}))


main()
