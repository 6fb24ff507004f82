"""Ceilings and peers on this GPU through PyTorch, one JSON object a line, in the form of bench_ops -j 1: a device copy,
cuBLAS products in bf16, scaled dot product attention. Inputs are random and rotated so that no cache holds them.

    peers.py [copy]     all, or the copy alone
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as F

ROTATED = 320 << 20


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


def matmul(n_tok, n_out, n_in):
    copies = min(64, max(1, ROTATED // (n_out * n_in * 2) + 1))
    w = [torch.randn(n_out, n_in, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
    x = torch.randn(n_tok, n_in, device="cuda", dtype=torch.bfloat16)
    times = measure(lambda i: x @ w[i].T, copies)
    row("matmul", f"{n_out}x{n_in}", n_tok, "cublas", times, n_out * n_in * 2, 2 * n_tok * n_out * n_in,
        error(x @ w[0].T, x.double() @ w[0].T.double()))


def attention(n_tok, n_kv, n_head, n_head_kv, d):
    copies = min(64, max(1, ROTATED // (2 * n_kv * n_head_kv * d * 2) + 1))
    q = torch.randn(1, n_head, n_tok, d, device="cuda", dtype=torch.bfloat16)
    k, v = ([torch.randn(1, n_head_kv, n_kv, d, device="cuda", dtype=torch.bfloat16) for _ in range(copies)] for _ in range(2))
    mask = torch.ones(n_tok, n_kv, dtype=torch.bool, device="cuda").tril(n_kv - n_tok) if n_tok > 1 and n_kv > n_tok else None
    causal = n_tok > 1 and mask is None

    def run(i):
        return F.scaled_dot_product_attention(q, k[i], v[i], attn_mask=mask, is_causal=causal, enable_gqa=True)

    times = measure(run, copies)
    seen = sum(min(n_kv, n_kv - n_tok + t + 1) for t in range(n_tok))
    want = F.scaled_dot_product_attention(q.double(), k[0].double(), v[0].double(), attn_mask=mask, is_causal=causal,
                                          enable_gqa=True) if n_kv <= 4096 else run(0).double()
    row("attn", f"{n_kv} cells, {n_head}/{n_head_kv} x {d}", n_tok, "sdpa", times, 2 * n_kv * n_head_kv * d * 2,
        4 * seen * n_head * d, error(run(0), want))


def main():
    torch.manual_seed(1)
    copy()
    if sys.argv[1:] == ["copy"]:
        return
    for n_tok in (1, 8, 512):
        for n_out, n_in in ((4096, 4096), (14336, 4096), (4096, 14336)):
            matmul(n_tok, n_out, n_in)
        for n_kv in (4096, 32768):
            attention(n_tok, n_kv, 32, 8, 128)


if __name__ == "__main__":
    main()
