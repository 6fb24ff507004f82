#!/usr/bin/env python3
"""The output of gpurun perplexity, computed again in f64 from the logits of gpurun replay: perplexity.py GPURUN SOURCE_DIR

Files of log-probabilities are read here by their format (tools/commands/base_file.h), Self-Extend's positions come from what it is: after
each window of w tokens, those that the windows have are at their number divided by n. Files and figures of llama.cpp are those
in tests/golden/perplexity."""

import array
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import threading

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
TEXT = SOURCE / "tests/golden/default-model/perplexity.txt"
GOLDEN = SOURCE / "tests/golden/perplexity"
F32 = ["-ctk", "f32", "-ctv", "f32", "-t", "1"]
LIMIT = 120  # seconds of a run
bad = []


def expect(holds, what):
    if not holds:
        bad.append(what)


def near(got, want, what, relative=2e-5, absolute=1e-6):
    expect(got is not None and abs(got - want) <= absolute + relative * abs(want), f"{what}: {want!r} expected, {got!r} found")


def gpurun(*words, code=0, **how):
    done = subprocess.run([PROGRAM] + [str(w) for w in words], stdin=how.pop("stdin", subprocess.DEVNULL), capture_output=True, text=True, timeout=LIMIT, **how)
    expect(done.returncode == code, f"{' '.join(map(str, words))}: exit code {code} expected, {done.returncode} found: {done.stderr}")
    return done


def perplexity(*words, code=0, **how):
    return json.loads(gpurun("perplexity", *words, "--json", "-q", *F32, code=code, **how).stdout or "null")


# ---- logits of a session of its own ----


def read_npy(path):
    data = path.read_bytes()
    start = 10 + struct.unpack("<H", data[8:10])[0]
    shape = [int(x) for x in re.search(rb"'shape': \(([^)]*)\)", data).group(1).replace(b" ", b"").split(b",") if x]
    numbers = array.array("f" if b"<f4" in data[:start] else "i", data[start:])
    return [numbers[i * shape[1]:(i + 1) * shape[1]] for i in range(shape[0])]


def replay(model, ops, folder, **context):
    """The rows of logits of all operations in order, and the positions that the last operation on them left."""
    session = folder / "session.json"
    session.write_text(json.dumps({"context": {"type_k": "f32", "type_v": "f32", **context}, "ops": ops}))
    out = folder / "arrays"
    gpurun("replay", session, "-m", model, "-o", out, "-q", "-t", "1")
    rows, last = [], None
    for i in range(len(ops)):
        if (out / f"logits_{i}.npy").exists():
            rows += read_npy(out / f"logits_{i}.npy")
        if (out / f"pos_{i}.npy").exists():
            last = read_npy(out / f"pos_{i}.npy")[0]
    for path in out.iterdir():
        path.unlink()
    return rows, last


def decode(tokens, pos, wanted):
    return {"op": "decode", "tokens": tokens, "pos": pos, "seq": [[0]] * len(tokens), "logits": wanted}


def chunk_rows(model, tokens, folder, **context):
    """Logits of the tokens of a chunk that are judged, all in one batch."""
    n = len(tokens)
    ops = [decode(tokens, list(range(n)), [int(n // 2 <= i < n - 1) for i in range(n)])]
    return replay(model, ops, folder, n_ctx=n, n_batch=n, **context)[0]


def extended_rows(model, tokens, group, window, folder):
    """The same token by token, with the positions of each window divided when it is full."""
    n, ops = len(tokens), []
    for t in range(n):
        merged = t // window * window
        if t and t == merged:  # the window in front of t: to where its tokens are in the text, then together
            first = t - window
            at = first // group
            ops.append({"op": "seq_add", "seq": 0, "p0": at, "p1": at + window, "delta": first - at})
            ops.append({"op": "seq_div", "seq": 0, "p0": first, "p1": t, "d": group})
        ops.append(decode([tokens[t]], [merged // group + t - merged], [int(n // 2 <= t < n - 1)]))
    rows, last = replay(model, ops, folder, n_ctx=n)
    expect(list(last) == [0, (n - 1) // window * window // group - 1], f"positions after the last window: {list(last)}")
    return rows


def log_softmax(row):
    most = max(row)
    total = most + math.log(math.fsum(math.exp(x - most) for x in row))
    return [x - total for x in row]


# ---- files of log-probabilities ----


def read_base(path):
    data = path.read_bytes()
    magic, n_ctx, n_vocab, n_chunk = struct.unpack("<8s3i", data[:20])
    tokens = array.array("i", data[20:20 + 4 * n_ctx * n_chunk])
    expect(magic == b"_logits_", f"{path}: {magic}")
    at, rows = 20 + 4 * n_ctx * n_chunk, []
    n_row = 8 + (n_vocab + 1) // 2 * 4
    while at + n_row <= len(data):
        scale, least = struct.unpack("<2f", data[at:at + 8])
        q = array.array("H", data[at + 8:at + 8 + 2 * n_vocab])
        rows.append([scale * x + least for x in q])
        at += n_row
    expect(at == len(data) and len(rows) == n_chunk * (n_ctx - 1 - n_ctx // 2), f"{path}: {len(rows)} rows, {len(data) - at} bytes left")
    return n_ctx, [list(tokens[i * n_ctx:(i + 1) * n_ctx]) for i in range(n_chunk)], rows


# ---- figures ----


def mean(x):
    return math.fsum(x) / len(x)


def error(x):
    m = mean(x)
    return math.sqrt(math.fsum((v - m) ** 2 for v in x) / len(x) / (len(x) - 1))


def quantile(x, at):
    x = sorted(x)
    i = at * (len(x) - 1)
    low = min(int(i), len(x) - 2)
    return x[low] + (i - low) * (x[low + 1] - x[low])


QUANTILES = {"max": 1, "p99.9": .999, "p99": .99, "p95": .95, "p90": .9, "p75": .75, "median": .5, "p25": .25, "p10": .1, "p5": .05,
             "p1": .01, "p0.1": .001, "min": 0}


def figures(base, logs, came):
    """base and logs: log-probabilities of each token; came: the tokens that came."""
    nll, nll_base = [-row[t] for row, t in zip(logs, came)], [-row[t] for row, t in zip(base, came)]
    kld = [math.fsum(math.exp(b) * (b - x) for b, x in zip(p, q) if b > -16) for p, q in zip(base, logs)]
    dp = [math.exp(-x) - math.exp(-b) for x, b in zip(nll, nll_base)]
    ratio = [x - b for x, b in zip(nll, nll_base)]
    same = [float(p.index(max(p)) == q.index(max(q))) for p, q in zip(base, logs)]
    covariance = mean([(x - mean(nll)) * (b - mean(nll_base)) for x, b in zip(nll, nll_base)]) / (len(nll) - 1)
    ppl, ppl_base = math.exp(mean(nll)), math.exp(mean(nll_base))
    e, e_base = ppl * error(nll), ppl_base * error(nll_base)
    rms = math.sqrt(mean([x * x for x in dp]))
    want = {"perplexity": ppl, "error": e, "base_perplexity": ppl_base, "base_perplexity_error": e_base,
            "correlation": covariance / error(nll) / error(nll_base),
            "ln_ratio": mean(ratio), "ln_ratio_error": error(ratio),
            "ratio": math.exp(mean(ratio)), "ratio_error": math.exp(mean(ratio)) * error(ratio),
            "difference": ppl - ppl_base, "difference_error": math.sqrt(e * e + e_base * e_base - 2 * ppl * ppl_base * covariance),
            "p_diff_rms": rms, "p_diff_rms_error": error([x * x for x in dp]) / 2 / rms,
            "same_top": mean(same), "same_top_error": math.sqrt(mean(same) * (1 - mean(same)) / (len(same) - 1))}
    for name, x in ("kld", kld), ("p_diff", dp):
        want[name] = {"mean": mean(x), "error": error(x), **{k: quantile(x, at) for k, at in QUANTILES.items()}}
    return want


def compare(got, want, what, absolute):
    for key, value in want.items():
        if isinstance(value, dict):
            compare(got[key], value, f"{what}: {key}", absolute)
        else:
            near(got.get(key), value, f"{what}: {key}", 1e-4, absolute)


# ---- what is looked at ----


def nll_of(logs, came):
    return [-row[t] for row, t in zip(logs, came)]


def came_in(chunks, n_ctx):
    return [t for chunk in chunks for t in chunk[n_ctx // 2 + 1:]]


def the_text(folder, model):
    return json.loads(gpurun("tokenize", model, "-f", TEXT, "--ids", "-q", "--no-parse-special").stdout)


def chunks_of(ids, n_ctx, n):
    chunks = [ids[i * n_ctx:(i + 1) * n_ctx] for i in range(n)]
    return chunks, [ids[:1] + chunk[1:] for chunk in chunks]  # the model wants a BOS, with which the text begins too


def check_files(folder, model, other, ids):
    """The file that is written, and what is then said of another model: all from the logits of both."""
    n_ctx, n_chunk, path = 64, 4, folder / "base"
    chunks, run = chunks_of(ids, n_ctx, n_chunk)
    got = perplexity(model, "-f", TEXT, "-c", n_ctx, "--chunks", n_chunk, "--kl-divergence-base", path)
    written, tokens, base = read_base(path)
    came = came_in(chunks, n_ctx)
    logs = [log_softmax(row) for chunk in run for row in chunk_rows(model, chunk, folder)]
    expect(written == n_ctx and tokens == chunks, "the file has other tokens than the text")
    near(got["perplexity"], math.exp(mean(nll_of(logs, came))), "perplexity beside a file")
    for i, (row, want) in enumerate(zip(base, logs)):
        least = max(min(want), max(want) - 16)
        step = (max(want) - least) / 65535
        worst = max(abs(x - max(w, least)) for x, w in zip(row, want))
        expect(worst <= step * .51 + 4e-6, f"row {i} of the file: off by {worst} with steps of {step}")
    logs = [log_softmax(row) for chunk in run for row in chunk_rows(other, chunk, folder)]
    want = figures(base, logs, came)
    got = perplexity(other, "--kl-divergence", "--kl-divergence-base", path)
    compare(got, want, "another model", 4e-6)
    expect(len(got["chunks"]) == n_chunk and got["n_tokens"] == len(came) and got["stop"] == "end", f"chunks: {got['n_chunk']}")
    near(got["chunks"][-1]["kld"], want["kld"]["mean"], "KLD of the last chunk", 1e-4)
    # from the second chunk on, two of them; from a pipe too, where nothing can be left out
    half = (n_ctx - 1 - n_ctx // 2)
    want = figures(base[half:3 * half], logs[half:3 * half], came[half:3 * half])
    part = ["--kl-divergence", "--from-chunk", "1", "--chunks", "2", "--kl-divergence-base"]
    compare(perplexity(other, *part, path), want, "two chunks", 4e-6)
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()[:-100]), daemon=True)
    reader.start()
    compare(perplexity(other, *part, pipe), want, "two chunks from a pipe", 4e-6)
    cut_off(folder, other, path, half, n_chunk)


def cut_off(folder, model, path, rows, n_chunk):
    """A pipe that ends in the last chunk: what was complete is told."""
    pipe = folder / "short"
    os.mkfifo(pipe)
    data = path.read_bytes()[:-100]
    threading.Thread(target=lambda: pipe.write_bytes(data), daemon=True).start()
    words = ["perplexity", model, "--kl-divergence", "--kl-divergence-base", pipe, "--json", "-b", "64", *F32]
    done = gpurun(*words, code=3)
    got = json.loads(done.stdout)
    expect(got["stop"] == "error" and got["n_chunk"] == n_chunk - 1 and got["n_tokens"] == rows * (n_chunk - 1) and len(got["chunks"]) == n_chunk - 1
           and "ends in its log-probabilities" in done.stderr and "--from-chunk 3 measures the others" in done.stderr, f"a short pipe: {got}: {done.stderr}")


def figures_of(text):
    """The first words and the numbers, as they are written, of each line that has numbers."""
    lines = [re.fullmatch(r" *(\d+|.*?) *(?: {4}|: *)(-?\d+\.\d.*)", line) for line in text.splitlines()]
    return {m[1]: re.findall(r"-?\d+\.\d+", m[2]) for m in lines if m}


def check_llama_cpp(folder, model):
    """A file of llama.cpp's, and all that it prints of it, to two units of the last digit."""
    got = figures_of(gpurun("perplexity", model, "--kl-divergence", "--kl-divergence-base", GOLDEN / "base.bin", "-q", *F32).stdout)
    want = figures_of((GOLDEN / "base.txt").read_text())
    expect(len(want) == 15 + 6 + 12 + 16, f"{len(want)} lines of llama.cpp's")
    for label, numbers in want.items():
        found = got.get(label, [])
        holds = [abs(float(x) - float(w)) <= 2.1 * 10.0 ** -len(w.split(".")[1]) + 5e-6 * abs(float(w)) for x, w in zip(found, numbers)]
        expect(len(found) == len(numbers) and all(holds), f"llama.cpp's {label}: {numbers} expected, {found} found")


def check_positions(folder, model, ids):
    """Chunks beyond the 256 tokens of the training."""
    n_ctx, n = 512, 1
    chunks, run = chunks_of(ids, n_ctx, n)
    came = came_in(chunks, n_ctx)
    words = [model, "-f", TEXT, "-c", n_ctx, "--chunks", n]
    plain = gpurun("perplexity", *words, *F32)
    expect("-c 512 exceeds the 256 tokens the model was trained for" in plain.stderr, f"no warning: {plain.stderr}")
    off = gpurun("perplexity", *words, "-gan", "1", *F32)
    expect(off.stdout == plain.stdout, "-gan 1 is not the same")

    def same(rows, got, what):
        near(got["perplexity"], math.exp(mean(nll_of([log_softmax(row) for row in rows], came))), what)
        return got["perplexity"]

    bare = same([r for chunk in run for r in chunk_rows(model, chunk, folder)], perplexity(*words), "beyond the training")
    for batch in "2048", "24":
        got = perplexity(*words, "-gan", "2", "-gaw", "64", "-b", batch)
        extended = same([r for chunk in run for r in extended_rows(model, chunk, 2, 64, folder)], got, f"-gan 2 -gaw 64 -b {batch}")
    got = perplexity(*words, "-gan", "2", "-gaw", "64", "--grp-attn-mode", "window")
    window = same([r for chunk in run for r in chunk_rows(model, chunk, folder, self_extend_n=2, self_extend_w=64)], got, "window")
    expect(extended < .9 * bare and window < .9 * bare, f"Self-Extend is worth nothing: {bare}, {extended}, {window}")
    auto = gpurun("perplexity", *words, "-gan", "auto", "-gaw", "64", *F32)
    chosen = re.search(r"Self-Extend (\d+) / (\d+) \(classic\)", auto.stderr).groups()
    expect(auto.stdout == gpurun("perplexity", *words, "-gan", chosen[0], "-gaw", chosen[1], *F32).stdout, f"-gan auto is not {chosen}")
    said = gpurun("imatrix", *words, "-gan", "2", "-gaw", "64", "-o", folder / "im.gguf", *F32).stderr
    near(float(re.search(r"perplexity of the text ([\d.]+)", said)[1]), extended, "imatrix -gan 2", 1e-4)
    got = perplexity(*words, "--rope-scaling", "linear", "--rope-scale", "2")
    same([r for chunk in run for r in chunk_rows(model, chunk, folder, rope_scaling="linear", rope_freq_scale=.5)], got, "linear")
    got = perplexity(*words, "--rope-scaling", "yarn", "--rope-scale", "2", "--yarn-orig-ctx", "256", "--yarn-beta-fast", "16")
    same([r for chunk in run for r in chunk_rows(model, chunk, folder, rope_scaling="yarn", rope_freq_scale=.5, yarn_orig_ctx=256, yarn_beta_fast=16)],
         got, "yarn")


def main():
    with tempfile.TemporaryDirectory() as top:
        folder = pathlib.Path(top)
        model, other = folder / "f32.gguf", folder / "q4.gguf"
        gpurun("quantize", SOURCE / "tools/default-model.gguf", model, "F32", "-q")
        gpurun("quantize", SOURCE / "tools/default-model.gguf", other, "Q4_0", "-q")
        ids = the_text(folder, model)
        check_llama_cpp(folder, model)
        check_files(folder, model, other, ids)
        check_positions(folder, model, ids)
    print("\n".join(bad))
    print(f"{len(bad)} faults")
    return 1 if bad else 0


sys.exit(main())
