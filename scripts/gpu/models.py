"""Stages that time whole models, made here of random weights (scripts/bench/make_model.py), beside llama.cpp on the same file:
gpurun, llama.cpp, gpurun, each in a process of its own. A row: op "model", impl, model, test (gpurun bench has the names), cache
(type of K and V), tok_s, runs of it, and of gpurun how far the logits lie from the CPU's (rel_err)."""
import array
import functools
import hashlib
import json
import math
import os
import shutil
import statistics
import sys
import tempfile

import goals
from runner import ROOT, lines

MODELS = {"8b-q4_k_m": ("llama-3-8b", "q4_k_m"), "7b-q4_0": ("llama-2-7b", "q4_0"), "8b-q8_0": ("llama-3-8b", "q8_0"),
          "8b-bf16": ("llama-3-8b", "bf16"), "30b-q4_k_m": ("qwen3-30b-a3b", "q4_k_m")}
UBATCHES, LONG_UBATCHES = "512,1024,2048,4096", "1024,2048"
PEER_SETTINGS = ({}, {"GGML_CUDA_PDL": "0"}, {"GGML_CUDA_GRAPH_OPT": "1"})  # llama.cpp as it is, and otherwise: the best counts
BUILT_IN = os.path.join(ROOT, "tools", "default-model.gguf")


# --- files ---

def make(r, name, *more):
    """The path of a model, written when it is not there; None when that failed. An emulated run has the built-in one."""
    if r.a.emulated:
        return BUILT_IN
    shape, kind = MODELS[name]
    path = os.path.join(r.a.models, "-".join([name, *(x.strip("-") for x in more)]) + ".gguf")
    if not os.path.exists(path):
        done = r.run(sys.executable, os.path.join(ROOT, "scripts", "bench", "make_model.py"), path, "--shape", shape, "--type", kind,
                     *more, limit=120)
        r.check(f"{os.path.basename(path)} is made", done.rc == 0, done)
        if done.rc != 0:
            return None
    return path


def drop(r):
    """Memory for the next one: /dev/shm holds two of the large ones, not all."""
    if not r.a.emulated and not r.a.keep:
        shutil.rmtree(r.a.models, ignore_errors=True)
        os.makedirs(r.a.models, exist_ok=True)


# --- sides ---

def name_of(t):
    name = (f"pp{t['n_prompt']}" if t["n_prompt"] else "") + (f"tg{t['n_gen']}" if t["n_gen"] else "")
    return name + (f"x{t['n_seq']}" if t.get("n_seq", 1) > 1 else "") + (f" @ d{t['n_depth']}" if t["n_depth"] else "")


def numbers(tests):
    """The flags of both programs for tests: (lengths of prompts, of generations, depths)."""
    tests = dict(tests)
    return ["-p", tests.get("p", "0"), "-n", tests.get("n", "0"), "-d", tests.get("d", "0")]


def ours(r, path, cache, tests, texts="1", reps="3"):
    """{test: rate of each measurement}."""
    done = r.run(r.program("gpurun"), "bench", "-m", path, *r.gpu, "-o", "jsonl", "-q", *numbers(tests), "-np",
                 texts, "-r", reps, "-ub", "2048", "-ctk", cache, "-ctv", cache, limit=150)
    found = lines(done.out)
    r.check(f"gpurun bench {os.path.basename(path)} {cache} {tests} x {texts}", done.rc == 0 and found, done)
    return {name_of(t): [(t["n_prompt"] + t["n_gen"] * t["n_seq"]) * 1e9 / ns for ns in t["samples_ns"]] for t in found}


def llama_bench(r, path, cache, tests, env, reps):
    ubatches = "512" if int(tests.get("p", "0").split(",")[-1]) <= 512 else UBATCHES if int(tests["p"].split(",")[-1]) < 16384 else LONG_UBATCHES
    done = r.run(r.peer("llama-bench"), "-m", path, "-ngl", "99", "-fa", "1", "-o", "jsonl", "-b", "4096", *numbers(tests), "-ub", ubatches, "-r",
                 reps, "-ctk", cache, "-ctv", cache, limit=200, env=env)
    found = lines(done.out)
    r.check(f"llama-bench {os.path.basename(path)} {cache} {tests} {env}", done.rc == 0 and found, done)
    return found


def best_setting(r, path):
    """Of the peer's, by a short generation; once for a build and device."""
    if "peer_setting" not in r.result:
        rates = [max([t["avg_ts"] for t in llama_bench(r, path, "f16", {"n": "32"}, env, "2")], default=0) for env in PEER_SETTINGS]
        r.result["peer_setting"] = PEER_SETTINGS[rates.index(max(rates))]
    return r.result["peer_setting"]


def duel(r, name, path, tests, cache="f16", env=None, reps="3"):
    """A-B-A, and once more when the two A lie too far apart and a minute is left; the peer's best micro-batch counts."""
    if path:
        with r.step(f"{name} {cache} {tests}") as go:
            if go:
                a_b_a(r, name, path, tests, cache, env, reps)


def a_b_a(r, name, path, tests, cache, env, reps):
    reps = "1" if r.a.emulated else reps
    runs, theirs = [ours(r, path, cache, tests, reps=reps)], []
    while len(runs) < 2 or (len(runs) < 3 and drift(runs) > goals.MOST_DRIFT and not r.a.emulated and r.left() > 60):
        theirs = llama_bench(r, path, cache, tests, env or {}, reps) if r.a.peer else []
        runs.append(ours(r, path, cache, tests, reps=reps))
    for t in theirs:
        r.figure(op="model", impl="llama.cpp", model=name, test=name_of({**t, "n_seq": 1}), cache=cache, tok_s=t["avg_ts"],
                 runs=[t["avg_ts"]], ubatch=t["n_ubatch"], env=env or {})
    keep(r, name, path, cache, runs[-2:])


def drift(runs):
    """How far two runs lie apart, in the test where that is most."""
    means = [{test: statistics.mean(rates) for test, rates in run.items()} for run in runs[-2:]]
    return max((abs(means[0][test] / means[1][test] - 1) for test in means[0] if test in means[1]), default=0)


def keep(r, name, path, cache, runs):
    """A row of each test that gpurun's runs have."""
    error = model_error(r, path) if runs[0] else None
    for test in runs[0]:
        all_ = [run[test] for run in runs if test in run]
        r.figure(op="model", impl="gpurun", model=name, test=test, cache=cache, tok_s=statistics.median(x for run in all_ for x in run),
                 runs=[statistics.mean(run) for run in all_], rel_err=error, rotated_mb=os.path.getsize(path) / 1e6)
    r.save()


def batched(r, name, path, texts, depth, n_gen):
    """Several texts side by side, each with a prompt of its own in the cache; llama-batched-bench copies one to all."""
    if path:
        with r.step(f"{name} x {texts}") as go:
            if go:
                side_beside_side(r, name, path, texts, depth, n_gen)


def side_beside_side(r, name, path, texts, depth, n_gen):
    runs, found = [ours(r, path, "f16", {"n": str(n_gen), "d": str(depth)}, texts, "2")], []
    if r.a.peer:
        most = max(int(x) for x in texts.split(","))
        done = r.run(r.peer("llama-batched-bench"), "-m", path, "-ngl", "99", "-fa", "on", "-c", str(most * (depth + n_gen + 64)), "-b", "2048",
                     "-ub", "2048", "-npp", str(depth), "-ntg", str(n_gen), "-npl", texts, "-pps", "--output-format", "jsonl", limit=200)
        found = lines(done.out + done.err)
        r.check(f"llama-batched-bench {os.path.basename(path)} {texts}", done.rc == 0 and found, done)
    runs.append(ours(r, path, "f16", {"n": str(n_gen), "d": str(depth)}, texts, "2"))
    for t in found:
        test = name_of({"n_prompt": 0, "n_gen": t["tg"], "n_seq": t["pl"], "n_depth": t["pp"]})
        r.figure(op="model", impl="llama.cpp", model=name, test=test, cache="f16", tok_s=t["speed_tg"], runs=[t["speed_tg"]])
    keep(r, name, path, "f16", runs)


# --- logits ---

def floats(path, skip_header=False):
    with open(path, "rb") as f:
        data = f.read()
    return array.array("f", data[10 + int.from_bytes(data[8:10], "little"):] if skip_header else data)


def logits(r, path, tokens, *flags):
    """gpurun's of each token, one row after the other; None when that failed."""
    n = len(tokens)
    with tempfile.TemporaryDirectory() as folder:
        session = os.path.join(folder, "session.json")
        with open(session, "w") as f:
            json.dump({"context": {"n_ctx": max(256, n), "n_batch": n, "n_seq_max": 1, "type_k": "f16", "type_v": "f16"},
                       "ops": [{"op": "decode", "tokens": tokens, "pos": list(range(n)), "seq": [[0]] * n, "logits": [1] * n}]}, f)
        done = r.run(r.program("gpurun"), "replay", session, "-m", path, "-o", folder, "-q", *flags, limit=120)
        if done.rc:
            r.check(f"logits of {os.path.basename(path)} {' '.join(flags)}", False, done)
            return None
        return floats(os.path.join(folder, "logits_0.npy"), True)


def peer_logits(r, path, tokens):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "logits.f32")
        done = r.run(r.peer("peer_model"), "logits", path, out, ",".join(map(str, tokens)), limit=120)
        r.check(f"llama.cpp's logits of {os.path.basename(path)}", done.rc == 0, done)
        return floats(out) if done.rc == 0 else None


def distance(x, y):
    """Relative L2; None where it is not finite."""
    d = math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y)) / (sum(b * b for b in y) or 1))
    return d if math.isfinite(d) else None


@functools.cache
def model_error(r, path):
    """How far a few logits on the GPU lie from those on the CPU."""
    tokens = [100 + 7 * i for i in range(8)]
    found = [logits(r, path, tokens, *flags) for flags in (r.gpu, ["--device", "none"])]
    return distance(*found) if None not in found else None


def divergence(reference, x, n):
    """Mean KL(reference || x) and share of equal first choices of n rows."""
    width, kl, same = len(x) // n, 0.0, 0
    for i in range(0, n * width, width):
        p, q = reference[i:i + width], x[i:i + width]
        top_p, top_q = max(p), max(q)
        p_all, q_all = (math.log(math.fsum(math.exp(v - top) for v in row)) + top for row, top in ((p, top_p), (q, top_q)))
        kl += math.fsum(math.exp(a - p_all) * ((a - p_all) - (b - q_all)) for a, b in zip(p, q))
        same += p.index(top_p) == q.index(top_q)
    return kl / n, same / n


def beside_f32(r):
    n, name = (4, "built-in") if r.a.emulated else (256, "8b-q4_k_m, 4 layers")
    part = make(r, "8b-q4_k_m", "--layers", "4", "--vocab", "4096")
    if not part:
        return
    with tempfile.TemporaryDirectory(dir=None if r.a.emulated else r.a.models) as folder:
        exact = os.path.join(folder, "f32.gguf")
        done = r.run(r.program("gpurun"), "quantize", part, exact, "F32", "--allow-requantize", "-q", limit=120)
        r.check("the same weights in f32", done.rc == 0, done)
        tokens = [(7 + 31 * i) % 300 + 20 for i in range(n)]
        want = logits(r, exact, tokens, "--device", "none") if done.rc == 0 else None
    if want is None:
        return
    mine = [logits(r, part, tokens, *r.gpu) for _ in range(2 if r.a.emulated else 10)]
    found = {"gpurun": mine[0]} | ({"llama.cpp": peer_logits(r, part, tokens)} if r.a.peer else {})
    for impl, x in found.items():
        if x is not None:
            kl, top1 = divergence(want, x, n)
            same = {"hash": hashlib.sha256(x.tobytes()).hexdigest()[:16], "same": all(y == x for y in mine)} if impl == "gpurun" else {}
            r.figure(op="logits", impl=impl, model=name, n_tok=n, kl=kl, top1=top1, rel_err=distance(x, want),
                     rotated_mb=os.path.getsize(part) / 1e6, **same)


# --- loading ---

def load(r, path, flags):
    size, shape = os.path.getsize(path), "no mmap" if flags else "mmap"
    us = []
    for _ in range(1 if r.a.emulated else 3):
        done = r.run(r.program("gpurun"), "bench", "-m", path, *r.gpu, "-p", "1", "-n", "0", "-r", "1", "--no-warmup", "-o", "jsonl", "-q",
                     *flags, limit=60)
        us += [(t["load_ns"] + t["ttft_ns"]) / 1e3 for t in lines(done.out)]
        r.check(f"loading, {shape}", done.rc == 0, done)
    if us:
        r.figure(op="load", impl="gpurun", type="", shape=shape, n_tok=1, median_us=statistics.median(us), p10_us=min(us), p90_us=max(us),
                 bytes=size, flops=0, rel_err=model_error(r, path), rotated_mb=size / 1e6)
    if r.a.peer:
        r.rows(f"llama.cpp: loading, {shape}", r.run(r.peer("peer_model"), "load", path, "none" if flags else "mmap", limit=60))


# --- stages: none is timed while the built-in model's text is wrong ---

def when_right(fn):
    @functools.wraps(fn)
    def stage(r):
        if r.failed("built_in"):
            r.note("models", "not timed: the built-in model's text is wrong")
        else:
            fn(r)
    return stage


def tiny(r, tests):
    return {k: {"p": "8", "n": "2", "d": "0"}[k] for k in tests} if r.a.emulated else tests


@when_right
def small(r):
    """Goals 1, 20: 8B Q4_K_M, single tokens behind none and 4,096."""
    path = make(r, "8b-q4_k_m")
    if path:
        env = best_setting(r, path) if r.a.peer else {}
        duel(r, "8b-q4_k_m", path, tiny(r, {"n": "128", "d": "0,4096"}), env=env)


@when_right
def prompts(r):
    """Goals 10, 21: 8B Q4_K_M, prompts of 512 and 4,096 tokens, and loading: from nothing to the logits of one token, the file in the
    page cache."""
    path = make(r, "8b-q4_k_m")
    if path:
        env = best_setting(r, path) if r.a.peer else {}
        duel(r, "8b-q4_k_m", path, tiny(r, {"p": "512,4096"}), env=env)
        for flags in ([], ["--no-mmap"]):
            with r.step("loading" + "".join(flags)) as go:
                if go:
                    load(r, path, flags)


@when_right
def long(r):
    """Goals 6, 12: the same with 32,768 tokens in the cache, of f16 and of q8_0, and a prompt of as many."""
    path = make(r, "8b-q4_k_m")
    for cache in ("f16", "q8_0"):
        duel(r, "8b-q4_k_m", path, tiny(r, {"n": "64", "d": "32768"}), cache, reps="2")
    duel(r, "8b-q4_k_m", path, tiny(r, {"p": "32768"}), reps="2")


def alone(r, model):
    """128 tokens of one text, and a prompt of 4096; the model's path."""
    path = make(r, model)
    duel(r, model, path, tiny(r, {"n": "128"}))
    duel(r, model, path, tiny(r, {"p": "4096"}))
    return path


@when_right
def older(r):
    """Goal 2: 7B Q4_0."""
    duel(r, "7b-q4_0", make(r, "7b-q4_0"), tiny(r, {"n": "128"}))
    drop(r)


@when_right
def eight(r):
    """Goals 3, 10: 8B Q8_0."""
    alone(r, "8b-q8_0")
    drop(r)


@when_right
def side_by_side(r):
    """Goals 7, 8: 8B Q4_K_M, 1, 8 and 64 texts of 4096 tokens."""
    path = make(r, "8b-q4_k_m")
    batched(r, "8b-q4_k_m", path, *(("2", 4, 2) if r.a.emulated else ("1,8,64", 4096, 64)))
    drop(r)


@when_right
def steps(r):
    """8B Q4_K_M, steps of 1 to 128 tokens of one text and of 1 to 64 texts behind 64 cells, beside what scripts/bench/step predicts."""
    path = make(r, "8b-q4_k_m")
    env = best_setting(r, path) if path and r.a.peer else {}
    duel(r, "8b-q4_k_m", path, tiny(r, {"p": ",".join(map(str, goals.sweep.TOKENS))}), env=env, reps="5")
    batched(r, "8b-q4_k_m", path, *(("2", 4, 2) if r.a.emulated else (",".join(map(str, goals.sweep.TEXTS)), goals.sweep.CELLS, 16)))


@when_right
def experts(r):
    """Goals 5, 9, 13: Qwen3-30B-A3B Q4_K_M."""
    path = alone(r, "30b-q4_k_m")
    batched(r, "30b-q4_k_m", path, *(("2", 4, 2) if r.a.emulated else ("64", 4096, 64)))
    drop(r)


@when_right
def floating(r):
    """Goals 4, 11: 8B BF16, beside transformers as well."""
    alone(r, "8b-bf16")
    drop(r)
    from operations import torch

    tests = [{"n_prompt": p, "n_gen": n, "n_seq": 1, "n_depth": 0, "n_depth_others": 0} for p, n in ((0, 128), (4096, 0))]
    before = len(r.result["figures"])
    torch(r, "model", "--shape", "llama-3-8b", "--tests", json.dumps(tests), limit=200)
    for t in r.result["figures"][before:]:
        t.update(model="8b-bf16", test=name_of(t), cache="bf16", tok_s=t["avg_ts"], runs=[t["avg_ts"]])
    r.save()


@when_right
def numerics(r):
    """Goal 22: logits beside those of the same weights in f32 on the CPU; ten runs are to give the same bytes."""
    with r.step("logits") as go:
        if go:
            beside_f32(r)
