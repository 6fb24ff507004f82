"""Stages that time single operations beside their peers: each row of gpurun has its error, its rotation and, from the same stage,
the peers' rows of the same op, type, shape and n_tok. Rows are those of tests/ops/bench_device.c. What the checks found wrong is
not timed."""
import importlib.util
import os
import sys

import cases
import debug
from runner import ROOT

TYPES = "q4_0,q4_K,q6_K,q8_0,bf16"
# Test suite of tests/ops for each timed operation, and whether the names of its cases have the types of bench_ops.
TESTS = {"matmul": ("matmul/", True), "attn": ("attn/", True), "attn_decode": ("attn/", True), "attn_prefill": ("attn/", True),
         "kv_shift": ("kv_shift/", False), "kv_copy": ("kv_copy/", False), "sample": ("sample/", False)}


def ceilings(r):
    """What the device does at most: reading, copying, from the host, a launch; products of bf16 by cuBLAS."""
    with r.step("device") as go:
        if go:
            r.rows("reading, copying, launching", r.run(r.program("ceilings"), *(["1", "1"] if r.a.emulated else ["4096", "30"]),
                                                        *r.library("ceilings"), limit=60))
    torch(r, "peak")


def right(r, op, kind):
    """Whether no case of the operation, with that type where names tell it, has failed so far."""
    suite, typed = TESTS[op]
    outcomes = [found.get("t_ops", {}) for found in r.result["cases"].values()]
    return not any(why is not None and name.startswith(suite) and (not typed or kind.lower() in name.lower())
                   for found in outcomes for name, why in found.items())


def ours(r, op, types, n, more=()):
    """One process for all types, with more arguments; a row that hangs costs itself only."""
    wrong = [kind for kind in types.split(",") if not right(r, op, kind)]
    if wrong:
        r.note(f"{op} {','.join(wrong)}", "not timed: cases of it have failed")
    types = [kind for kind in types.split(",") if kind not in wrong]
    if not types:
        return
    what = f"{op} {','.join(types)}, {n}"
    tiny = ["-tiny", "1", "-r", "1"] if r.a.emulated else ["-r", "30"]
    command = [r.program("bench_ops"), "-d", "0", "-j", "1", "-t", os.cpu_count(), *tiny, *more, "-n", n, op, ",".join(types)]
    cases.run(r, what, [command], fails=lambda name, *again: debug.of_case(r, name, *again))


def peer(r, op, types, n):
    tiny = ["-tiny", "-r", "1"] if r.a.emulated else ["-r", "30"]
    if not r.a.peer:
        r.note("llama.cpp", "no --peer: scripts/gpu/build-peer makes one")
        return
    for kind in types.split(","):
        with r.step(f"llama.cpp: {op} {kind}, {n}") as go:
            if go:
                r.rows(f"llama.cpp: {op} {kind}, {n}", r.run(r.peer("peer_ops"), *tiny, op, kind, n, limit=60, quiet=r.a.case_seconds))


def torch(r, what, *arguments, limit=120):
    if not importlib.util.find_spec("torch"):
        r.note("PyTorch", "it is not installed here")
        return
    name = f"PyTorch: {what} {' '.join(arguments)}"
    with r.step(name) as go:
        if go:
            r.rows(name, r.run(sys.executable, os.path.join(ROOT, "scripts", "gpu", "peers.py"), what, *arguments, limit=limit))


def compare(r, op, types, n_tok, with_torch=None, n_peer=None, more=()):
    """gpurun, llama.cpp and, with arguments, PyTorch; of an emulated run two types and few tokens."""
    if r.a.emulated:
        types, n_tok = ",".join(types.split(",")[-2:]), n_tok if op == "attn_prefill" else n_tok.split(",")[0]
    ours(r, op, types, n_tok, more)
    peer(r, op, types, n_peer if n_peer and not r.a.emulated else n_tok)
    if with_torch:
        torch(r, *with_torch)


def gemv(r):
    """Goal 14: products of one token and of eight."""
    compare(r, "matmul", TYPES, "1,8", ("matmul", "1,8"))


def gemm(r):
    """Goal 15: products of many tokens, by own kernels and by cuBLASLt; from which number of tokens on the latter is faster."""
    table = os.path.join(r.folder(), "matmul_shapes.def")
    compare(r, "matmul", TYPES, "16" if r.a.emulated else "512,2048,8192", ("matmul", "512,2048,8192"), more=["-matmul-shapes", table])


def prefill(r):
    """Goal 16: attention of a whole text."""
    n = "64" if r.a.emulated else "4096,16384,32768"
    compare(r, "attn_prefill", "f16", n, ("attn_prefill", n))


def decode(r):
    """Goal 17: attention of one token of each text, and of four tokens of one."""
    compare(r, "attn_decode", "q4_0,q8_0,f16", "1,8,64", ("attn_decode", "1,8,64"))
    compare(r, "attn", "q8_0", "4")


def cache(r):
    """Goal 18: cells that turn, and cells that are copied."""
    compare(r, "kv_shift", "f16,q8_0", "64", n_peer="32768")
    ours(r, "kv_copy", "f16,q8_0", "1")


def sample(r):
    """Goal 19: top-k, top-p and min-p over a vocabulary of 128,256."""
    compare(r, "sample", "f32", "1,64")
