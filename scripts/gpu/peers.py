"""Ceilings and peers on this GPU through PyTorch, one JSON object a line, in the form of bench_ops -j 1. Inputs are random and
rotated so that no cache holds them.

    peers.py copy                       from device memory to device memory
    peers.py peak                       a product of 8192 x 8192 x 8192 in bf16: the tensor cores
    peers.py matmul N,..                cuBLAS in bf16: products of N tokens
    peers.py attn_prefill|attn_decode N,..    scaled dot product attention by cuDNN and as FlashAttention: of all N tokens of a text, or
                                        of one token of each of N texts
    peers.py model --shape llama-3-8b [--layers N] --tests '[{"n_prompt": 512, "n_gen": 0, "n_seq": 1, "n_depth": 0,
                   "n_depth_others": 0}, ..]' [-r 3]
                        transformers (random bf16 weights, SDPA, a static cache, compiled steps) on tests of gpurun bench
                        without n_depth_others, rows in its names; without a GPU on the CPU
"""
import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROTATED = 320 << 20
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def measure(fn, copies, reps=30):
    """Microseconds a call, over all copies, from events around graph replays."""
    for i in range(copies):
        fn(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(copies):
            fn(i)
    times = []
    for rep in range(-3, reps):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if rep >= 0:
            times.append(start.elapsed_time(end) * 1000 / copies)
    return sorted(times)


def row(op, shape, n_tok, impl, times, n_bytes, flops, rel_err):
    print(json.dumps({"op": op, "type": "bf16", "shape": shape, "n_tok": n_tok, "impl": impl,
                      "median_us": statistics.median(times), "p10_us": times[len(times) // 10],
                      "p90_us": times[len(times) * 9 // 10], "bytes": n_bytes, "flops": flops, "rel_err": rel_err,
                      "rotated_mb": ROTATED / 1e6}), flush=True)


def error(got, want):
    return float((got.double() - want).norm() / want.norm())


def copy():
    n = 1 << 30
    a, b = (torch.randint(0, 255, (n,), dtype=torch.uint8, device="cuda") for _ in range(2))
    row("copy", "1 GiB", 0, "torch", measure(lambda i: b.copy_(a), 1), 2 * n, 0, float((a != b).any()))


def peak():
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = measure(lambda i: a @ b, 1)
    row("peak", f"{n}x{n}", n, "cublas", times, 6 * n * n, 2 * n**3, error((a @ b)[:64], a[:64].double() @ b.double()))


def copies_of(n_bytes):
    return min(128, max(1, -(-ROTATED // n_bytes)))


def matmul(n_tok, n_out, n_in):
    w = [torch.randn(n_out, n_in, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(copies_of(n_out * n_in * 2))]
    x = torch.randn(n_tok, n_in, device="cuda", dtype=torch.bfloat16)
    times = measure(lambda i: x @ w[i].T, len(w))
    picked = torch.randint(0, n_out, (64,), device="cuda")
    row("matmul", f"{n_out}x{n_in}", n_tok, "cublas", times, n_out * n_in * 2, 2 * n_tok * n_out * n_in,
        error((x @ w[0].T)[:, picked], x.double() @ w[0][picked].T.double()))


def attention_error(y, q, k, v, causal):
    """Of 64 tokens that are drawn (of one, if there is but one), in f64."""
    n_tok, group = q.shape[2], q.shape[1] // k.shape[1]
    at = torch.randint(0, n_tok, (min(64, n_tok),), device="cuda")
    k, v = (x[:1].double().repeat_interleave(group, 1) for x in (k, v))
    score = q[:1, :, at].double() @ k.transpose(2, 3) / q.shape[3] ** 0.5
    if causal:
        score.masked_fill_(torch.arange(k.shape[2], device="cuda")[None] > at[:, None], float("-inf"))
    return error(y[:1, :, at], score.softmax(-1) @ v)


def attention(op, backend, n_seq, n_tok, n_kv, n_head=32, n_head_kv=8, d=128):
    n_bytes = 2 * n_seq * n_kv * n_head_kv * d * 2
    q = torch.randn(n_seq, n_head, n_tok, d, device="cuda", dtype=torch.bfloat16)
    k, v = ([torch.randn(n_seq, n_head_kv, n_kv, d, device="cuda", dtype=torch.bfloat16) for _ in range(copies_of(n_bytes))]
            for _ in range(2))
    causal = n_tok > 1

    def run(i):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if backend == "sdpa_cudnn" else SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k[i], v[i], is_causal=causal, enable_gqa=True)

    times = measure(run, len(k))
    seen = n_tok * (n_tok + 1) // 2 if causal else n_kv
    row(op, f"{n_kv} cells, {n_head}/{n_head_kv} x {d}", n_seq * n_tok, backend, times, n_bytes, 4 * n_seq * seen * n_head * d,
        attention_error(run(0), q, k[0], v[0], causal))


def attentions(op, counts):
    """A backend that refuses a shape is left out, and that is said."""
    for n in counts:
        for backend in ("sdpa_cudnn", "sdpa_flash"):
            for n_kv in (4096, 32768) if op == "attn_decode" else (n,):
                try:
                    attention(op, backend, *((n, 1, n_kv) if op == "attn_decode" else (1, n, n)))
                except RuntimeError as e:
                    print(f"peers: {op} {n}, {n_kv} cells, {backend}: {str(e).splitlines()[0]}", file=sys.stderr)
                torch.cuda.empty_cache()


def causal_model(shape, n_layer):
    """A model of the shape on this device, and its configuration."""
    import transformers

    common = dict(hidden_size=shape.n_embd, num_hidden_layers=n_layer or shape.n_layer, num_attention_heads=shape.n_head,
                  num_key_value_heads=shape.n_head_kv, head_dim=shape.d_head, vocab_size=shape.n_vocab,
                  tie_word_embeddings=shape.tied, max_position_embeddings=131072,
                  rope_parameters={"rope_type": "default", "rope_theta": shape.rope_base})
    if shape.n_expert:
        config = transformers.Qwen3MoeConfig(**common, num_experts=shape.n_expert, num_experts_per_tok=shape.n_used,
                                             moe_intermediate_size=shape.n_ff, norm_topk_prob=True)
    else:
        config = transformers.LlamaConfig(**common, intermediate_size=shape.n_ff)
    config._attn_implementation = "sdpa"
    with torch.device(DEVICE):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        torch.set_default_dtype(torch.float32)
    return model, config


def now():
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter_ns()


class Steps:
    """A model with a cache of its own for each test."""

    def __init__(self, shape, n_layer):
        self.model, self.config = causal_model(shape, n_layer)
        self.step = torch.compile(self.model, mode="reduce-overhead") if DEVICE == "cuda" else self.model

    def run(self, ids, at, fn):
        """Logits of the last token of each text."""
        positions = torch.arange(at, at + ids.shape[1], device=DEVICE)
        return fn(input_ids=ids, position_ids=positions[None].expand(ids.shape[0], -1), cache_position=positions,
                  past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits

    def once(self, test):
        """ns of all, until the prompt's logits, and of each step."""
        import transformers

        p, n, n_seq, depth = (test[k] for k in ("n_prompt", "n_gen", "n_seq", "n_depth"))
        ids = torch.randint(0, self.config.vocab_size, (n_seq, depth + p + n), device=DEVICE)
        self.cache = transformers.StaticCache(config=self.config, max_cache_len=depth + p + n)
        if depth:
            self.run(ids[:, :depth], 0, self.model)
        start = last = now()
        if p:
            self.run(ids[:, depth:depth + p], depth, self.model)
            last = now()
        first, steps = last - start, []
        for i in range(depth + p, depth + p + n):
            self.run(ids[:, i:i + 1], i, self.step)
            steps.append(now() - last)
            last += steps[-1]
        return last - start, first, steps

    def row(self, test, reps):
        import transformers

        self.once(test)  # to warm up, and to compile
        done = [self.once(test) for _ in range(reps)]
        steps = sorted(x for _, _, mine in done for x in mine)
        n = test["n_prompt"] + test["n_gen"] * test["n_seq"]
        at = {f"itl_p{p}_ns": steps[min(len(steps) - 1, len(steps) * p // 100)] if steps else 0 for p in (50, 90, 99)}
        return {"op": "model", "impl": "transformers", **test, "avg_ts": statistics.mean(n * 1e9 / ns for ns, _, _ in done),
                "samples_ns": [ns for ns, _, _ in done],
                "ttft_ns": round(statistics.mean(first for _, first, _ in done)) if test["n_prompt"] else 0, **at,
                "version": f"transformers {transformers.__version__}, torch {torch.__version__}"}


def model():
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
    from shapes import SHAPES

    p = argparse.ArgumentParser(prog="peers.py model")
    p.add_argument("--shape", choices=SHAPES, required=True)
    p.add_argument("--layers", type=int, default=0)
    p.add_argument("--tests", type=json.loads, required=True)
    p.add_argument("-t", type=int, default=0)
    p.add_argument("-r", type=int, default=3)
    a = p.parse_args(sys.argv[2:])
    if a.t:
        torch.set_num_threads(a.t)
    steps = Steps(SHAPES[a.shape], a.layers)
    for test in a.tests:
        with torch.inference_mode():
            print(json.dumps(steps.row(test, a.r)), flush=True)


def main():
    torch.manual_seed(1)
    what, rest = (sys.argv[1:] + [""])[0], sys.argv[2:]
    counts = [int(n) for n in rest[0].split(",")] if rest and rest[0][:1].isdigit() else []
    if what == "model":
        model()
    elif what in ("copy", "peak"):
        {"copy": copy, "peak": peak}[what]()
    elif what == "matmul" and counts:
        for n_tok in counts:
            for n_out, n_in in ((14336, 4096), (4096, 14336)) + ((4096, 4096), (128256, 4096)) * (n_tok < 64):
                matmul(n_tok, n_out, n_in)
    elif what in ("attn_prefill", "attn_decode") and counts:
        attentions(what, counts)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
