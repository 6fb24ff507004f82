"""Stages that time single operations beside their peers: each row of gpurun has its error, its rotation and, from the same stage,
the peers' rows of the same op, type, shape and n_tok. Rows are those of tests/ops/bench_device.c."""
import importlib.util
import os
import sys

from runner import ROOT

TYPES = "q4_0,q4_K,q6_K,q8_0,bf16"


def ceilings(r):
    """What the device does at most: reading, copying, from the host, a launch; products of bf16 by cuBLAS."""
    emulated = [os.path.join(r.a.bin, "tests", "emu", "libcuda_emu_ceilings.so")] if r.a.emulated else []
    r.rows("reading, copying, launching", r.run(r.program("ceilings"), *(["1", "1"] if r.a.emulated else ["4096", "30"]), *emulated,
                                                limit=60))
    torch(r, "peak")


def each(r, what, op, types, n, command):
    """Rows of all types by one program, whose beginning takes longer than some of them; of types that it did not come to, because
    an earlier one ended it, by one for each."""
    def rows(some):
        return r.rows(f"{what}{op} {some}, {n}", r.run(*command(some), limit=150))

    found = {x["type"] for x in rows(types)}
    left = [kind for kind in types.split(",") if kind not in found]
    for kind in left if found or len(left) > 1 else ():
        rows(kind)


def ours(r, op, types, n):
    tiny = ["-tiny", "1", "-r", "1"] if r.a.emulated else ["-r", "30"]
    each(r, "", op, types, n, lambda some: [r.program("bench_ops"), "-d", "0", "-j", "1", "-t", os.cpu_count(), *tiny, "-n", n, op, some])


def peer(r, op, types, n):
    tiny = ["-tiny", "-r", "1"] if r.a.emulated else ["-r", "30"]
    if r.a.peer:
        each(r, "llama.cpp: ", op, types, n, lambda some: [r.peer("peer_ops"), *tiny, op, some, n])
    else:
        r.note("llama.cpp", "no --peer: scripts/gpu/build-peer makes one")


def torch(r, what, *arguments, limit=120):
    if not importlib.util.find_spec("torch"):
        r.note("PyTorch", "it is not installed here")
        return
    r.rows(f"PyTorch: {what} {' '.join(arguments)}", r.run(sys.executable, os.path.join(ROOT, "scripts", "gpu", "peers.py"), what, *arguments,
                                                           limit=limit))


def compare(r, op, types, n_tok, with_torch=None, n_peer=None):
    """gpurun, llama.cpp and, with arguments, PyTorch; of an emulated run two types and few tokens."""
    if r.a.emulated:
        types, n_tok = ",".join(types.split(",")[-2:]), n_tok if op == "attn_prefill" else n_tok.split(",")[0]
    ours(r, op, types, n_tok)
    peer(r, op, types, n_peer if n_peer and not r.a.emulated else n_tok)
    if with_torch:
        torch(r, *with_torch)


def gemv(r):
    """Goal 14: products of one token and of eight."""
    compare(r, "matmul", TYPES, "1,8", ("matmul", "1,8"))


def gemm(r):
    """Goal 15: products of many tokens."""
    compare(r, "matmul", TYPES, "16" if r.a.emulated else "512,2048,8192", ("matmul", "512,2048,8192"))


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
