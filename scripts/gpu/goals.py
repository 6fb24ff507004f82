"""The goals for one H200, what a run's figures say of each, and what was predicted.

A goal has parts; a part is one figure of gpurun, the peers that it is compared with and the limit that the hardware sets. A figure
counts with its error (rel_err), the megabytes that were rotated so that no cache held them (rotated_mb), and a peer's row of the
same session; `judge` says why one does not, and of several peers which was not there."""
import dataclasses
import importlib.machinery
import importlib.util
import json
import os
import re
import sys

from runner import ROOT

sys.path.insert(0, os.path.join(ROOT, "scripts", "bench"))
import sweep  # noqa: E402

HBM, TENSOR = 4.3e12, 788e12  # of an H200, where a file's own ceilings are not known
WEIGHTS = {"8b-bf16": 15.01e9, "8b-q8_0": 7.97e9, "8b-q4_k_m": 4.66e9, "7b-q4_0": 3.75e9}  # bytes that a token reads
EXPERTS = {1: 1.95e9, 8: 7.9e9, 64: 18e9}  # Qwen3-30B-A3B Q4_K_M, by texts
CELL = {"8b": 131072, "7b": 524288, "30b": 98304}  # bytes of K and V in f16
PARAMS = {"8b": 6.98e9, "30b": 2.7e9}  # that a token of a prompt is multiplied with
HEADS = {"8b": (32, 4096), "30b": (48, 4096)}  # layers, columns of Q
CACHE = {"f16": 1, "q8_0": 34 / 64}
LEAST_ROTATED = 300  # MB; what is smaller would be read from the cache
MOST_DRIFT = 0.02
# Errors above which a figure does not count, unless llama.cpp's own is as large: of products with bf16 activations, of attention
# over what the cache holds, of a K-shift that rounds again; of whole models' logits beside the CPU's, which rounds activations to
# 8 bits: over the layers of random weights that adds up to some hundredths, and what is wrong gives 1
LARGEST = {"matmul": 3e-3, "attn": 2e-3, "attn_decode": 2e-3, "attn_prefill": 2e-3, "kv_shift": 1e-3, "kv_copy": 0, "sample": 0,
           "model": 0.25, "load": 0.25}


@dataclasses.dataclass(frozen=True)
class Against:
    """A peer, or "limit": the share of it. Ratios of speed that a release needs, and that are aimed at."""
    impl: str
    floor: float
    goal: float


@dataclasses.dataclass(frozen=True)
class Part:
    goal: int
    what: str
    row: dict
    against: tuple


def model(goal, what, name, test, *against, cache="f16"):
    return Part(goal, what, {"op": "model", "model": name, "test": test, "cache": cache}, against)


def llama(floor, goal):
    return Against("llama.cpp", floor, goal)


def limit(floor, goal):
    return Against("limit", floor, goal)


def operations():
    for shape in ("14336x4096", "4096x14336", "128256x4096"):
        for n_tok in (1, 8):
            for kind in ("q4_0", "q4_K", "q6_K", "q8_0", "bf16"):
                more = (Against("cublas", 0.9, 1.0),) if kind == "bf16" else ()
                yield Part(14, f"{shape} {kind}, {n_tok} token{'s'[:n_tok > 1]}",
                           {"op": "matmul", "type": kind, "shape": shape, "n_tok": n_tok}, (limit(0.75, 0.88), llama(1.0, 2.5 if kind != "bf16" else 1.0), *more))
    for shape in ("14336x4096", "4096x14336"):
        for n_tok in (512, 2048, 8192):
            for kind in ("q4_0", "q4_K", "q6_K", "q8_0"):
                yield Part(15, f"{shape} {kind}, {n_tok} tokens", {"op": "matmul", "type": kind, "shape": shape, "n_tok": n_tok},
                           (Against("cublas", 0.8, 0.92), llama(1.0, 2.5)))
    for n in (4096, 16384, 32768):
        yield Part(16, f"prompt of {n}", {"op": "attn_prefill", "type": "f16", "n_tok": n},
                   (Against("sdpa", 0.8, 0.95), llama(1.5, 2.0)))
    for n_kv in (4096, 32768):
        for n_seq in (1, 8, 64):
            for kind in ("f16", "q8_0", "q4_0"):
                more = (llama(1.0, 2.0), Against("sdpa", 0.9, 1.0)) if kind == "f16" else (llama(1.0, 1.0),)
                yield Part(17, f"{n_seq} x {n_kv} cells {kind}",
                           {"op": "attn_decode", "type": kind, "shape": f"{n_kv} cells, 32/8 x 128", "n_tok": n_seq},
                           (limit(0.75, 0.88), *more))
        yield Part(17, f"4 tokens, {n_kv} cells q8_0",
                   {"op": "attn", "type": "q8_0", "shape": f"{n_kv} cells, 32/8 x 128", "n_tok": 4}, (limit(0.75, 0.88), llama(1.0, 2.5)))
    for kind, ratio in (("f16", 1.2), ("q8_0", 3.0)):
        yield Part(18, f"K-shift {kind}", {"op": "kv_shift", "type": kind}, (limit(0.85, 0.95), llama(1.0, ratio)))
        yield Part(18, f"cells copied, {kind}", {"op": "kv_copy", "type": kind}, (limit(0.85, 0.95),))
    for n, floor, goal in ((1, 5, 10), (64, 30, 60)):
        yield Part(19, f"{n} row{'s'[:n > 1]} of logits", {"op": "sample", "n_tok": n}, (llama(floor, goal),))


def parts():
    q4 = "8b-q4_k_m"
    yield model(1, "tg128, 8B Q4_K_M", q4, "tg128", llama(2, 3), limit(0.5, 0.75))
    yield model(1, "tg128, 8B Q4_K_M, ctx 4k", q4, "tg128 @ d4096", llama(2, 3), limit(0.5, 0.75))
    yield model(2, "tg128, 7B Q4_0", "7b-q4_0", "tg128", llama(2, 2.8), limit(0.45, 0.7))
    yield model(3, "tg128, 8B Q8_0", "8b-q8_0", "tg128", llama(1.6, 2.2), limit(0.55, 0.8))
    yield model(4, "tg128, 8B BF16", "8b-bf16", "tg128", llama(1.25, 1.5), limit(0.7, 0.85), Against("transformers", 1.0, 1.0))
    yield model(5, "tg128, 30B-A3B Q4_K_M", "30b-q4_k_m", "tg128", llama(2, 3), limit(0.2, 0.35))
    for cache in ("f16", "q8_0"):
        yield model(6, f"tg64, 8B Q4_K_M, ctx 32k, {cache} cache", q4, "tg64 @ d32768", llama(2, 2.8), cache=cache)
    yield model(7, "8 texts, ctx 4k, 8B Q4_K_M", q4, "tg64x8 @ d4096", llama(2, 3), limit(0.45, 0.7))
    yield model(8, "64 texts, ctx 4k, 8B Q4_K_M", q4, "tg64x64 @ d4096", llama(2, 3), limit(0.4, 0.65))
    yield model(9, "64 texts, ctx 4k, 30B-A3B Q4_K_M", "30b-q4_k_m", "tg64x64 @ d4096", llama(2, 3))
    for name, text in ((q4, "Q4_K_M"), ("8b-q8_0", "Q8_0")):
        yield model(10, f"pp4096, 8B {text}", name, "pp4096", llama(2, 2.5), limit(0.5, 0.75))
    yield model(11, "pp4096, 8B BF16", "8b-bf16", "pp4096", llama(1.1, 1.3), Against("transformers", 1.1, 1.25))
    yield model(12, "pp32768, 8B Q4_K_M", q4, "pp32768", llama(2, 2.8))
    yield model(13, "pp4096, 30B-A3B Q4_K_M", "30b-q4_k_m", "pp4096", llama(2, 3.5))
    yield from operations()
    yield Part(20, "step of 8B Q4_K_M beyond its bytes", {"op": "model", "model": q4, "test": "tg128", "cache": "f16"},
               (Against("overhead", 1 / 350, 1 / 200),))  # microseconds, as a speed
    for shape, goal in (("mmap", 4), ("no mmap", 1.5)):
        yield Part(21, f"load to first token, {shape}", {"op": "load", "shape": shape}, (limit(0.7, 0.9), llama(1.0, goal)))
    yield Part(22, "KL to f32", {"op": "logits"}, (llama(1.0, 2.0),))  # half of its divergence: twice as good


# --- what the hardware allows ---

class Bound:
    """Speeds that the ceilings of these figures leave."""

    def __init__(self, figures):
        def rate(ops, what, otherwise, **more):
            found = [x[what] / x["median_us"] * 1e6 for x in figures if x.get("op") in ops and x.get(what) and
                     all(x.get(k) == v for k, v in more.items())]
            return max(found, default=otherwise)

        self.hbm, self.tensor = rate(("read", "copy"), "bytes", HBM), rate(("peak",), "flops", TENSOR)
        self.h2d = rate(("h2d",), "bytes", None, shape="pinned")
        self.gap_us = next((x["median_us"] for x in figures if x.get("op") == "launch" and x["shape"] == "early"), None)

    def step_us(self, name, test, cache):
        """Of a step of generation: weights once, K and V of each text."""
        m = re.fullmatch(r"tg(\d+)(?:x(\d+))?(?: @ d(\d+))?", test)
        if not m:
            return None
        n_seq, cells = int(m[2] or 1), int(m[3] or 0) + int(m[1]) / 2
        weights = EXPERTS.get(n_seq) if name.startswith("30b") else WEIGHTS.get(name)
        return weights and (weights + n_seq * cells * CELL[name.split("-")[0]] * CACHE[cache]) / self.hbm * 1e6

    def speed(self, x):
        """The most a row could have, in its own unit; None where nothing is known."""
        if x["op"] == "model" and x["test"].startswith("tg"):
            us, n_seq = self.step_us(x["model"], x["test"], x["cache"]), int((re.search(r"x(\d+)", x["test"]) or [0, 1])[1])
            return us and n_seq * 1e6 / us
        if x["op"] == "model":
            n, size = int(x["test"].split(" ")[0][2:]), x["model"].split("-")[0]
            if size not in PARAMS:
                return None
            n_layer, width = HEADS[size]
            return self.tensor / (2 * PARAMS[size] + 2 * n * width * n_layer)
        if x["op"] == "load":
            return self.h2d and self.h2d / x["bytes"] / 1e6
        if not x.get("bytes"):
            return None
        return 1 / max(x["bytes"] / self.hbm * 1e6, x.get("flops", 0) / self.tensor * 1e6)

    def share(self, x):
        most = self.speed(x)
        return speed(x) / most if most and speed(x) else None


def speed(x):
    """Tokens a second, or launches a microsecond, or 1 / divergence: more is better."""
    if x["op"] == "model":
        return x["tok_s"]
    if x["op"] == "logits":
        return 1 / max(x["kl"], 1e-15)
    return 1 / x["median_us"] if x.get("median_us") else None


# --- what a file says ---

@dataclasses.dataclass
class Verdict:
    part: Part
    status: str  # "met", "floor", "missed", "not measured"
    why: str = ""
    mine: dict = None
    peer: dict = None
    ratio: float = None
    share: float = None


def matches(x, want):
    return all(x.get(k) == v for k, v in want.items())


def find(figures, want, session=None):
    """The best such row, of the newest session or of that one."""
    found = [x for x in figures if matches(x, want) and speed(x) and (session is None or x["session"] == session)]
    newest = max((x["session"] for x in found), default=None)
    return max((x for x in found if x["session"] == newest), key=speed, default=None)


def refused(x, peer_error=0):
    """Why a row of gpurun does not count, beside a peer with this error; None when it does."""
    if x.get("rel_err") is None or x["rel_err"] != x["rel_err"]:
        return "no error"
    if x["rel_err"] > max(LARGEST.get(x["op"], float("inf")), peer_error):
        return f"an error of {x['rel_err']:.0e}"
    if x.get("rotated_mb") is None:
        return "no rotation"
    if x["op"] in ("matmul", "attn", "attn_decode", "attn_prefill", "kv_shift", "kv_copy") and x["rotated_mb"] < LEAST_ROTATED:
        return f"only {x['rotated_mb']:.0f} MB rotated"
    if x.get("same") is False:
        return "runs differ"
    if x.get("runs") and max(x["runs"]) / min(x["runs"]) - 1 > MOST_DRIFT:
        return f"runs lie {100 * (max(x['runs']) / min(x['runs']) - 1):.0f} % apart"
    return None


def ratio_to(part, against, x, figures, bound):
    """(ratio, the peer's row): None where it was not measured."""
    if against.impl == "limit":
        return bound.share(x), None
    if against.impl == "overhead":
        beyond = 1e6 / x["tok_s"] - bound.step_us(x["model"], x["test"], x["cache"])
        return 1 / max(beyond, 1e-3), None
    want = {**part.row, "impl": against.impl}
    if against.impl in ("cublas", "sdpa"):
        want.pop("type", None)  # of bf16, whatever ours is
    if against.impl == "transformers":
        want.pop("cache")
    if against.impl == "sdpa":
        found = [find(figures, {**want, "impl": impl}, x["session"]) for impl in ("sdpa_cudnn", "sdpa_flash")]
        peer = max((p for p in found if p), key=speed, default=None)
    else:
        peer = find(figures, want, x["session"])
    return (speed(x) / speed(peer), peer) if peer else (None, None)


def judge(part, figures, bound):
    x = find(figures, {**part.row, "impl": "gpurun"})
    if not x:
        return Verdict(part, "not measured", "no row")
    peer = find(figures, {**part.row, "impl": "llama.cpp"}, x["session"])
    why = refused(x, (peer or {}).get("rel_err") or 0)
    if why:
        return Verdict(part, "not measured", why, x)
    v, kept, lacking, closest = Verdict(part, "not measured", mine=x, share=bound.share(x)), [], [], float("inf")
    for against in part.against:
        ratio, peer = ratio_to(part, against, x, figures, bound)
        if ratio is None:
            lacking.append("the limit is not known" if against.impl == "limit" else f"no row of {against.impl} from the same session")
            continue
        kept.append("met" if ratio >= against.goal else "floor" if ratio >= against.floor else "missed")
        if peer and ratio / against.goal < closest:
            v.ratio, v.peer, closest = ratio, peer, ratio / against.goal
    v.why = ", ".join(lacking)
    if kept and (v.peer or all(against.impl in ("limit", "overhead") for against in part.against)):
        v.status = next(s for s in ("missed", "floor", "met") if s in kept)
    return v


def verdicts(figures):
    bound = Bound(figures)
    return [judge(part, figures, bound) for part in parts()]


# --- what was predicted ---

def launches():
    """Of a layer, as the tests hold them (tests/emu/session/launches.c), by architecture."""
    with open(os.path.join(ROOT, "tests", "emu", "session", "launches.c")) as f:
        return {m[1]: int(m[3]) / int(m[2]) for m in re.finditer(r'\{"(\w+)", (\d+), (\d+)\}', f.read())}


def predictions(figures):
    """(what, predicted, measured, unit): products of one token from what their machine code allows (scripts/bench/results/sass.json), generation from
    bytes at the bandwidth that was measured and launches at their gap (0.6 us where that was not)."""
    bound = Bound(figures)
    with open(os.path.join(ROOT, "scripts", "bench", "results", "sass.json")) as f:
        code = {x["type"]: x["share"] for x in json.load(f)["rows"] if x["impl"] == "gpurun" and x["form"] == "decode"}
    for part in parts():
        v = judge(part, figures, bound)
        if v.status == "not measured":
            continue
        x = v.mine
        if part.goal == 14 and x["n_tok"] == 1 and x["type"] in code:
            yield part.what, x["bytes"] / (bound.hbm * code[x["type"]]) * 1e6, x["median_us"], "µs"
        if part.goal in (1, 2, 3, 4, 5):
            arch, n_layer = ("qwen3moe", 48) if x["model"].startswith("30b") else ("llama", 32)
            us = bound.step_us(x["model"], x["test"], x["cache"]) + launches().get(arch, 0) * n_layer * (bound.gap_us or 0.6)
            yield part.what, 1e6 / us, x["tok_s"], "tok/s"


def steps(figures):
    """{"tokens" or "texts": [(number, predicted tokens a second, measured)]} of scripts/bench/step's sweep, of the newest session."""
    path = os.path.join(ROOT, "scripts", "bench", "step")
    loader = importlib.machinery.SourceFileLoader("bench_step", path)
    law = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_step", loader))
    loader.exec_module(law)
    with open(os.path.join(ROOT, "scripts", "bench", "results", "sass.json"), encoding="utf-8") as f:
        predicted = sweep.predict(law, json.load(f), sweep.read())
    found = {}
    for kind, numbers in sweep.SHOWN.items():
        for n in numbers:
            test = f"pp{n}" if kind == "tokens" else f"tg16{f'x{n}' if n > 1 else ''} @ d{sweep.CELLS}"
            x = find(figures, {"op": "model", "impl": "gpurun", "model": "8b-q4_k_m", "test": test, "stage": "steps"})
            if x and not refused(x):
                found.setdefault(kind, []).append((n, sweep.rates(law, predicted[kind])[n], x["tok_s"]))
    return found
