"""Runs gpurun, llama.cpp and, with --ik, ik_llama.cpp in turn (A-B-A, once for each round), each in a process of its own, on the same file,
for scripts/bench/speed; measures how fast the machine reads memory and how far the logits of gpurun and llama.cpp lie apart. Prints JSON lines
(rows.py says what is in them), then the table, and draws plots."""
import argparse
import contextlib
import datetime
import functools
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

import make_model
import model_file
import numpy as np
import rows
from machine import machine, tree

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEYS = ("n_prompt", "n_gen", "n_seq", "n_depth", "n_depth_others")
N_JUDGED = 64  # tokens whose logits are compared


def fail(why):
    sys.exit(f"bench: {why}")


def run(command, **more):
    command = [str(x) for x in command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **more)
    if done.returncode != 0:
        fail(f"exit {done.returncode} of: {shlex.join(command)}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test(n_prompt=0, n_gen=0, n_seq=1, n_depth=0, n_depth_others=0):
    return dict(zip(KEYS, (n_prompt, n_gen, n_seq, n_depth, n_depth_others)))


def key(row):
    return tuple(row[k] for k in KEYS)


# --- what is measured: each sweep is one run of each side, in turn ---

def sweep_tests(name, a):
    if name == "table":
        return [test(n_prompt=a.p)] * (a.p > 0) + [test(n_gen=a.n)] * (a.n > 0)
    if name == "prompt":
        return [test(n_prompt=n) for n in a.prompts]
    if name == "few":
        return [test(n_prompt=n) for n in a.few]
    if name == "context":
        return [test(n_gen=a.n, n_depth=n) for n in a.depths]
    if name == "others":
        return [test(n_gen=a.n, n_depth=a.depths[len(a.depths) // 2], n_depth_others=n) for n in a.depths]
    return [test(n_gen=a.n, n_seq=n, n_depth=a.behind) for n in a.parallel]


def flags_of(name, a):
    """The same tests in gpurun's flags."""
    lists = {k: sorted({t[k] for t in sweep_tests(name, a)}) for k in KEYS}
    if name == "table":
        lists["n_prompt"], lists["n_gen"] = [a.p], [a.n]
    names = {"n_prompt": "-p", "n_gen": "-n", "n_seq": "-np", "n_depth": "-d", "n_depth_others": "-do"}
    return [word for k in KEYS for word in (names[k], ",".join(map(str, lists[k])))]


def forget(path):
    """Drops a file from the page cache. It is then read anew, in huge pages where Linux and the file system have them, and not
    from whatever small pages it was written to."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Model:
    def __init__(self, a, kind):
        self.a, self.kind, self.shape = a, kind, make_model.SHAPES[a.shape]
        self.n_layer, self.n_vocab = a.layers or self.shape.n_layer, a.vocab or self.shape.n_vocab
        cut = "" if self.n_layer == self.shape.n_layer else f"-{self.n_layer}l"
        words = "" if self.n_vocab == self.shape.n_vocab else f"-{self.n_vocab}v"
        self.path = pathlib.Path(a.dir) / f"{a.shape}-{kind}{cut}{words}.gguf"
        self.name = self.shape.name + (f", {self.n_layer} layers" if cut else "") + (f", {self.n_vocab} tokens" if words else "")

    def make(self):
        make_model.make(str(self.path), self.a.shape, self.kind, self.n_vocab, self.n_layer)
        forget(self.path)

    def cost(self, t):
        """Bytes that a pass over these tokens reads of weights and, of keys and values, on average; and its flops. A prompt
        reads weights once for each 512 tokens."""
        s, n = self.shape, (self.n_vocab, self.n_layer)
        step = t["n_seq"] if t["n_gen"] else min(t["n_prompt"], 512)
        cells = t["n_depth"] + (t["n_gen"] or t["n_prompt"]) / 2
        n_step = t["n_gen"] or -(-t["n_prompt"] // 512)
        kv = model_file.kv_bytes(s, self.n_layer) * cells * (t["n_seq"] if t["n_gen"] else 1)
        n_tok = t["n_gen"] * t["n_seq"] or t["n_prompt"]
        flops = 2 * model_file.step_params(s, *n) * n_tok + 4 * n_tok * cells * s.n_head * s.d_head * self.n_layer
        return n_step * (model_file.step_bytes(s, self.kind, *n, step) + kv), flops


def sides(a, model, name):
    """The command of each side for a sweep."""
    common = ["-t", a.t, "-r", a.r, "-ngl", a.ngl]
    more = ["-ub", ",".join(map(str, a.peer_ubatch))]
    ours = [a.gpurun, "bench", "-m", model.path, "-o", "jsonl", "-q", *flags_of(name, a), *common]
    peer = [sys.executable, HERE / "peer.py", model.path, "--tests", json.dumps(sweep_tests(name, a)), *common, *more]
    ik = [sys.executable, HERE / "ik.py", a.ik, model.path, "--tests", json.dumps(sweep_tests(name, a)), "-t", a.t, "-r", a.r, *more]
    return [("gpurun", ours), ("llama.cpp", peer)] + [("ik", ik)] * (a.ik is not None)


def measure(a, model, name):
    """A-B-A: gpurun, then for each round each peer and gpurun; between them, how fast the machine reads at that time: each row
    has the mean of what was read before and after it (read_gb_s). {impl: {test: [rows]}}."""
    ours, *peers = sides(a, model, name)
    order = [ours] + [*peers, ours] * a.rounds
    found = {impl: {} for impl, _ in order}
    before = ceiling(a)["gb_s"]
    for impl, command in order:
        of = run(command)
        after = ceiling(a)["gb_s"]
        for row in of:
            found[impl].setdefault(key(row), []).append(row | {"read_gb_s": (before + after) / 2})
        before = after
    return found


# --- how far the logits lie apart ---

class Judge:
    """Logits of N_JUDGED tokens, of each side."""

    def __init__(self, a, folder, n_vocab):
        self.a, self.folder = a, folder
        self.tokens = np.random.default_rng(3).integers(0, n_vocab, N_JUDGED).tolist()
        self.session = os.path.join(folder, "session.json")
        with open(self.session, "w") as f:
            json.dump({"context": {"n_ctx": 256, "n_batch": N_JUDGED, "n_seq_max": 1, "type_k": "f16", "type_v": "f16"},
                       "ops": [{"op": "decode", "tokens": self.tokens, "pos": list(range(N_JUDGED)), "seq": [[0]] * N_JUDGED,
                                "logits": [1] * N_JUDGED}]}, f)

    def gpurun(self, path):
        run([self.a.gpurun, "replay", self.session, "-m", path, "-o", self.folder, "-t", self.a.t, "-ngl", self.a.ngl, "-q"])
        return np.load(os.path.join(self.folder, "logits_0.npy")).astype(np.float64)

    def peer(self, path):
        out = os.path.join(self.folder, "peer.npy")
        run([sys.executable, HERE / "peer.py", path, "--logits", out, "--tokens", ",".join(map(str, self.tokens)),
             "-t", self.a.t, "-ngl", self.a.ngl])
        return np.load(out).astype(np.float64)


def distance(x, y):
    return float(f"{np.linalg.norm(x - y) / np.linalg.norm(y):.4g}")


def probabilities(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def error(a, model):
    """Of the logits beside the peer's: relative L2, mean KL divergence, share of equal first choices."""
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(a, folder, model.n_vocab)
        x, y = judge.gpurun(model.path), judge.peer(model.path)
        p, q = probabilities(y), probabilities(x)
        found = {"rel_err": distance(x, y), "kl": float(f"{(p * (np.log(p + 1e-300) - np.log(q + 1e-300))).sum(axis=1).mean():.4g}"),
                 "top1": float((x.argmax(axis=1) == y.argmax(axis=1)).mean())}
        return found | (reference(a, model, folder) if a.reference else {})


def reference(a, model, folder):
    """How far each side lies from llama.cpp on the same weights stored as f32: of two layers and few tokens."""
    path, exact = os.path.join(a.dir, "part.gguf"), os.path.join(a.dir, "part-f32.gguf")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        make_model.make(path, a.shape, model.kind, n_vocab=4096, n_layer=2)
        make_model.require_room(exact, 8 * model_file.step_params(model.shape, 4096, 2))
        run([a.gpurun, "quantize", path, exact, "F32", "--allow-requantize", "--overwrite", "-q"])
        judge = Judge(a, folder, 4096)
        y = judge.peer(exact)
        return {"err_f32": distance(judge.gpurun(path), y), "peer_err_f32": distance(judge.peer(path), y)}
    finally:
        for x in (path, exact):
            with contextlib.suppress(FileNotFoundError):
                os.remove(x)


# --- rows ---

def figures(of, t, model):
    """What is the same for both sides: the median of all measurements, and what follows from it; the share of the limit is the
    median of the runs' shares, each of what was read around it."""
    ns = sorted(x for r in of for x in r["samples_ns"])
    n_bytes, flops = model.cost(t)
    median = statistics.median(ns)
    row = {"tok_s": (t["n_prompt"] + t["n_gen"] * t["n_seq"]) * 1e9 / median, "median_us": median / 1e3, "best_us": ns[0] / 1e3,
           "p10_us": ns[len(ns) // 10] / 1e3, "p90_us": ns[min(len(ns) - 1, len(ns) * 9 // 10)] / 1e3,
           "runs": [round(r["avg_ts"], 3) for r in of], "bytes": round(n_bytes), "flops": round(flops),
           "gb_s": n_bytes / median, "gflop_s": flops / median,
           "ttft_ms": statistics.median(r["ttft_ns"] for r in of) / 1e6, "n_ubatch": of[0]["n_ubatch"]}
    row |= {f"itl_{p}_ms": statistics.median(r[f"itl_{p}_ns"] for r in of) / 1e6 for p in ("p50", "p90", "p99")}
    if t["n_gen"]:
        shares = [n_bytes / statistics.median(r["samples_ns"]) / r["read_gb_s"] for r in of]
        row |= {"limit_gb_s": statistics.median(r["read_gb_s"] for r in of), "frac_limit": statistics.median(shares)}
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()}


def rows_of(a, model, name, wrong, common):
    found = measure(a, model, name)
    for t in sweep_tests(name, a):
        ours, peers, iks = (found.get(impl, {}).get(key(t), []) for impl in ("gpurun", "llama.cpp", "ik"))
        base = {**common, "op": "model", "sweep": name, "model": model.name, "type": model.kind, "test": rows.name_of(t), **t}
        theirs = figures(peers, t, model)
        yield {**base, "impl": "llama.cpp", "impl_rev": peers[0]["version"], **theirs}
        if iks:
            yield {**base, "impl": "ik", "impl_rev": iks[0]["version"], **figures(iks, t, model)}
        mine = figures(ours, t, model)
        yield {**base, "impl": "gpurun", "impl_rev": common["commit"], **mine, **wrong,
               "ratio": rows.paired(mine["runs"], theirs["runs"])}


def load_rows(a, model, common):
    """From opening the file, which is mapped and in the page cache, to the logits of one token; a process each."""
    subprocess.run(["cat", model.path], stdout=subprocess.DEVNULL, check=True)
    ours = [a.gpurun, "bench", "-m", model.path, "-o", "jsonl", "-q", "-p", "1", "-n", "0", "-r", "1", "--no-warmup", "-t", a.t,
            "-ngl", a.ngl]
    peer = [sys.executable, HERE / "peer.py", model.path, "--load", "-t", a.t, "-ngl", a.ngl]
    found = {"gpurun": [], "llama.cpp": []}
    for impl, command in [("gpurun", ours)] + [("llama.cpp", peer), ("gpurun", ours)] * max(a.rounds, 2):
        found[impl] += run(command)
    ms = {impl: [round((r["load_ns"] + r["ttft_ns"]) / 1e6, 3) for r in of] for impl, of in found.items()}
    base = {**common, "op": "load", "model": model.name, "type": model.kind, "bytes": os.path.getsize(model.path)}
    middle = {impl: statistics.median(x) for impl, x in ms.items()}
    yield {**base, "impl": "llama.cpp", "impl_rev": found["llama.cpp"][0]["version"], "ms": middle["llama.cpp"], "runs": ms["llama.cpp"]}
    yield {**base, "impl": "gpurun", "impl_rev": common["commit"], "ms": middle["gpurun"], "runs": ms["gpurun"],
           "ratio": round(middle["llama.cpp"] / middle["gpurun"], 4)}


def third(a, model, common):
    """transformers on the same tests, with weights of its own: only BF16 is comparable."""
    tests, read = sweep_tests("table", a), ceiling(a)["gb_s"]
    for row in run([a.transformers, ROOT / "scripts" / "gpu" / "peers.py", "model", "--shape", a.shape, "--layers", model.n_layer,
                    "--tests", json.dumps(tests), "-t", a.t, "-r", a.r]):
        t = {k: row[k] for k in KEYS}
        yield {**common, "op": "model", "sweep": "table", "model": model.name, "type": model.kind, "test": rows.name_of(t), **t,
               "impl": "transformers", "impl_rev": row["version"], **figures([row | {"read_gb_s": read}], t, model)}


@functools.lru_cache
def copy_ceiling():
    """Of a GPU the copy of PyTorch's peers, read and written."""
    seen = run([sys.executable, ROOT / "scripts" / "gpu" / "peers.py", "copy"])
    return {"op": "read", "gb_s": max(r["bytes"] / r["median_us"] / 1e3 for r in seen), "of": "device copy, read and written"}


@functools.lru_cache
def reader():
    program = ROOT / "build" / "bench" / "ceiling"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O3", "-march=native", "-pthread", HERE / "ceiling.c", "-o", program], check=True)
    return program


def ceiling(a):
    """How many GB/s this machine reads now."""
    return copy_ceiling() if a.ngl else run([reader(), a.t])[0]


def host_cost(a, common):
    """The program's own work in a step of one text, beside a device that does nothing (tests/ranks/pipeline)."""
    program = a.gpurun.parent / "tests" / "bench_host"
    if not program.exists():
        print(f"bench: no row of host overhead: there is no {program}", file=sys.stderr)
        return
    for row in run([program]):
        yield {**common, "op": "host", "impl": "gpurun", **row}


def numbers(text):
    return [int(x) for x in text.split(",")]


def options():
    p = argparse.ArgumentParser(prog="scripts/bench/speed", description=__doc__)
    p.add_argument("--shape", choices=make_model.SHAPES, default="llama-3.2-1b")
    p.add_argument("--layers", type=int, default=0, help="fewer than the real model has")
    p.add_argument("--types", default="q8_0,q4_k", help=" ".join(make_model.TYPES))
    p.add_argument("--vocab", type=int, default=0)
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=64)
    p.add_argument("-t", type=int, default=2)
    p.add_argument("-r", type=int, default=2, help="measurements in each run")
    p.add_argument("-ngl", type=int, default=0, help="layers on the GPU, of both sides")
    p.add_argument("--rounds", type=int, default=2, help="runs of the peer; gpurun runs before, between and after")
    p.add_argument("--sweeps", default="", help="also, of the first type: prompt,context,others; of each type: few,texts; or all")
    p.add_argument("--prompts", type=numbers, default=[512, 1024, 2048, 4096, 8192])
    p.add_argument("--few", type=numbers, default=[1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64, 96, 128])
    p.add_argument("--depths", type=numbers, default=[0, 1024, 2048, 4096, 8192])
    p.add_argument("--parallel", type=numbers, default=[1, 2, 4, 8, 16, 32, 64], help="texts side by side")
    p.add_argument("--behind", type=int, default=64, help="tokens before each of them")
    p.add_argument("--ik", type=pathlib.Path, metavar="BUILD", help="a build folder of ik_llama.cpp, a second peer on the CPU")
    p.add_argument("--peer-ubatch", type=numbers, default=[512, 1024, 2048],
                   help="micro-batches of the peer; of prompts of more than 512 tokens the best one counts")
    p.add_argument("--load", action="store_true", help="also, of the first type: how long it takes from the file to a token")
    p.add_argument("--reference", action="store_true", help="also the errors of both sides beside the same weights in f32")
    p.add_argument("--transformers", metavar="PYTHON", help="an interpreter with PyTorch and transformers, a third side for bf16")
    p.add_argument("--dir", default=ROOT / "build" / "bench", help="where models are kept")
    p.add_argument("--out", default=ROOT / "build" / "bench" / "last", help="where rows.jsonl and plots go")
    p.add_argument("--gpurun", type=pathlib.Path, default=ROOT / "build" / "gpurun", help="instead of building one")
    p.add_argument("--record", action="store_true", help="keep the rows, and write the sections of the READMEs")
    a = p.parse_args()
    a.sweeps = list(rows.SWEEPS) if a.sweeps == "all" else [x for x in a.sweeps.split(",") if x]
    if set(a.sweeps) - set(rows.SWEEPS):
        p.error(f"--sweeps are {', '.join(rows.SWEEPS)}")
    for kind in set(a.types.split(",")) - set(make_model.TYPES):
        p.error(f"--types: {kind} is none of {' '.join(make_model.TYPES)}")
    if a.ik and a.ngl:
        p.error("--ik is a peer on the CPU, without -ngl")
    if a.ik and a.behind < 1:
        p.error("--ik needs at least one token before texts side by side (--behind)")
    return a


def command():
    """As given, but for flags that say where files are and change no figure."""
    words, skip = ["scripts/bench/speed"], False
    for word in sys.argv[1:]:
        if not skip and word not in ("--record", "--dir", "--out", "--gpurun"):
            words.append({"--transformers": "PYTHON", "--ik": "BUILD"}.get(words[-1], word))
        skip = word in ("--dir", "--out", "--gpurun")
    return shlex.join(words)


def main():
    a = options()
    load = os.getloadavg()[0]
    if load > 0.3:
        print(f"bench: the machine is not idle (load {load:.1f}): figures of both sides suffer", file=sys.stderr)
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    read = ceiling(a)
    common = {"run": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "date": datetime.date.today().isoformat(), **tree(), **machine(), "threads": a.t,
              "load_before": round(load, 2), "limit_gb_s": read["gb_s"],
              "command": command()}
    all_ = []

    def keep(row):
        all_.append(row)
        print(json.dumps(row), flush=True)
        with open(out / "rows.jsonl", "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in all_)

    keep({**common, **read, "impl": "machine"})
    for row in host_cost(a, common):
        keep(row)
    for i, kind in enumerate(a.types.split(",")):
        model = Model(a, kind)
        model.make()
        wrong = error(a, model)
        for name in ["table"] * (a.p + a.n > 0) + [x for x in a.sweeps if i == 0 or x in rows.OF_EACH_TYPE]:
            for row in rows_of(a, model, name, wrong, common):
                keep(row)
        for row in load_rows(a, model, common) if a.load and i == 0 else ():
            keep(row)
        for row in third(a, model, common) if a.transformers and kind == "bf16" else ():
            keep(row)
    for row in [*rows.growth(all_), *rows.laws(all_), *rows.steps(all_), *rows.checks(all_)]:
        keep({**common, **row})
    print("\n" + rows.text(all_, plots=False) + "\n" + rows.checked(all_))
    try:
        import plot
    except ImportError:
        print("bench: no plots: matplotlib is not installed", file=sys.stderr)
    else:
        for path in plot.draw(all_, out):
            print(f"bench: {path}", file=sys.stderr)
            if a.record and path.name in (f"{sweep}.png" for sweep in rows.PLOTS):
                shutil.copy(path, rows.plot(path.stem))
    if a.record:
        rows.record(all_)


main()
