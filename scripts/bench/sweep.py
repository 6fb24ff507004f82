"""Steps of few tokens of Llama-3-8B Q4_K_M on an H200 by their number: launches as the host chooses them, recorded on the emulated
device, and what each of them takes as scripts/bench/step predicts it. Nothing is run on a GPU.

The record (results/launches.json) has the launches of a step of four layers, two of which have V and down of Q6_K, by name and in
their order: `record` makes it from gpurun-emu, whose kernels do nothing then, and a file of zeros. A layer of either kind, 14 of
which a step of 32 layers has besides, is what stands between the attention of two of one kind. `s` is the module of scripts/bench/step,
whose constants and laws are used."""
import json
import math
import os
import subprocess
import sys
import tempfile

import model_file
import shapes

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RECORD = os.path.join(ROOT, "scripts", "bench", "results", "launches.json")
MOST = {"tokens": 128, "texts": 64}  # of a step
TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
TEXTS = (1, 2, 4, 8, 16, 32, 64)
SHOWN = {"tokens": TOKENS, "texts": TEXTS}
CELLS = 64   # behind each text
STEP_DOWN = 0.03
VOCAB = 512  # of the recorded model: the launch of its output matrix stands for that of the real one
# Not documented, so the middle of what is likely: a line that is brought in takes the place of any other.
L1 = 256 << 10               # a multiprocessor's, with shared memory
L1_RATE = 128                # bytes a cycle
CARVED = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)  # KB of shared memory that a multiprocessor can have
RING_SM90 = 128 << 10         # bytes of weights that a block of tiles on wgmma asks for at once (gr_sm90_smem)
X = 576 / 256                # bytes of packed x a column: codes, sums of units
BOUNDS = ("heads, tails", "memory", "L2, L1", "instructions", "tensor cores")


# ---- the record ----

def session(points):
    """A session of steps; each text has its cells in front of the first of several texts. Returns it and the number of steps before
    those of the points."""
    n_seq = max((n for kind, n in points if kind == "texts"), default=1)
    ops, at = [], [0] * n_seq

    def decode(seq, wanted):
        pos = []
        for x in seq:
            pos.append(at[x])
            at[x] += 1
        ops.append({"op": "decode", "tokens": [5 + i % 400 for i in range(len(seq))], "pos": pos, "seq": [[x] for x in seq], "logits": wanted})

    for text in range(n_seq if n_seq > 1 else 0):
        decode([text] * CELLS, [0] * CELLS)
    n_before = len(ops)
    for kind, n in points:
        decode(range(n) if kind == "texts" else [0] * n, [1] * n if kind == "texts" else [0] * (n - 1) + [1])
    size = {"n_ctx": 16384, "n_batch": 512, "n_ubatch": 512, "n_seq_max": n_seq, "type_k": "f16", "type_v": "f16"}
    return {"context": size, "ops": ops}, n_before


def launched(program, points):
    """[launch, ..] of each point's step."""
    with tempfile.TemporaryDirectory() as folder:
        model, path, out = (os.path.join(folder, name) for name in ("model.gguf", "session.json", "launches"))
        head, _, size = model_file.header(shapes.SHAPES["llama-3-8b"], "q4_k_m", VOCAB, 4, False)
        with open(model, "wb") as f:
            f.write(head)
            f.truncate(len(head) + size)
        ops, n_before = session(points)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(ops, f)
        device = f"quiet,plant=wrong:gr_,launches={out},memory=8G"
        subprocess.run([program, "replay", path, "-m", model, "-o", folder, "-q", "--device", "emu", "-ngl", "99"], check=True,
                       env={**os.environ, "GR_EMU_DEVICE": device}, stdout=subprocess.DEVNULL)
        with open(out, encoding="utf-8") as f:
            names = [line.split()[0].removeprefix("gr_") for line in f]
    steps = []
    for name in names:
        if name == "embed_rows":
            steps.append([])
        if steps:
            steps[-1].append(name)
    return steps[n_before:]


def record(program):
    """{"tokens": [(first number, last, [launch, ..]), ..], "texts": ..}: numbers that have the same launches together."""
    found = {}
    for kind, most in MOST.items():
        steps, runs = launched(program, [(kind, n) for n in range(1, most + 1)]), []
        if len(steps) != most:
            sys.exit(f"sweep: {most} steps of {kind} are expected, {len(steps)} are found")
        for n, names in enumerate(steps, 1):
            if runs and runs[-1][2] == names:
                runs[-1][1] = n
            else:
                runs.append([n, n, names])
        found[kind] = runs
    return found


def write(found):
    with open(RECORD, "w", encoding="utf-8") as f:
        f.write("{" + ",\n ".join(f'"{kind}": [\n  ' + ",\n  ".join(map(json.dumps, runs)) + "]" for kind, runs in found.items()) + "}\n")


def read():
    with open(RECORD, encoding="utf-8") as f:
        return json.load(f)


# ---- what a launch takes ----

ROLES = {4: ("output", "gate, up", "down", "Q, K, V"), 5: ("output", "gate, up", "down", "Q, K", "V")}


def shape(s, role):
    """Rows and columns of a product."""
    kv = s.N_HEAD_KV * s.D
    return {"Q, K, V": (s.N_EMBD + 2 * kv, s.N_EMBD), "Q, K": (s.N_EMBD + kv, s.N_EMBD), "V": (kv, s.N_EMBD),
            "output": (s.N_EMBD, s.N_EMBD), "gate, up": (2 * s.N_FF, s.N_EMBD), "down": (s.N_EMBD, s.N_FF),
            "logits": (s.N_VOCAB, s.N_EMBD)}[role]


def moved(s, n_bytes):
    return n_bytes / (s.N_SM * s.L2_RATE) * s.US


def missed(n_bytes, room):
    """Share of reads, over and over through n_bytes, that an L1 with this much room has not: any of its lines is replaced by a miss
    with the same chance, so hits = exp(-misses * n_bytes / room)."""
    misses = 0.0 if n_bytes <= room else 1.0
    for _ in range(100 if misses else 0):
        misses = 1 - math.exp(-misses * n_bytes / room)
    return misses


def few(s, row, size, rows, cols, n):
    """{bound: microseconds} of a stream of weights, `size` bytes of which are still to come, through tensor cores: tiles of 16 rows, each
    with all of x."""
    groups, pieces, x_bytes = 3 if "mv3" in row["kernel"] else 1, rows * cols / 4096, n * cols * X
    shared = next(k for k in CARVED if k << 10 >= row["blocks"] * (row["shared"] + 1024)) << 10
    miss = missed(x_bytes, L1 - shared)
    from_l2 = size + miss * pieces * n * 256 * X + (1 - miss) * s.N_SM * x_bytes
    from_l1 = pieces * 8 * groups * 256 * X / (s.N_SM * L1_RATE * s.CLOCK) * s.US
    return {"instructions": rows * cols * row["bound"] / s.SLOTS * s.US, "L2, L1": max(moved(s, from_l2), from_l1)}


def tail(s, role, n, fused):
    """Of a product of few tokens; fused: small operations behind it that have no launch of their own."""
    if role in ("Q, K, V", "V"):
        return s.SUMS + (s.COUNT + s.L2 + s.STEP if fused else 0)
    if role == "gate, up":
        return s.SUMS + (s.COUNT + s.L2 + s.STEP + (s.L2 + s.STEP if n == 1 else 0) if fused else 0)
    if role in ("output", "down"):
        return s.SUMS + (s.COUNT + n * (s.L2 + s.NORM) + s.L2 + s.STEP if fused else 0)
    return s.SUMS


def attention(s, kind, n):
    """{bound: microseconds}, tail of attention by single tokens: blocks of a token and a KV head, three on a multiprocessor."""
    cells = CELLS if kind == "texts" else n / 2
    read = n * cells * s.N_HEAD_KV * s.D * 4
    rounds = -(-n * s.N_HEAD_KV // (3 * s.N_SM))
    most = CELLS if kind == "texts" else n
    alone = 2 * s.L2 + most * s.D * 4 / (s.L2_RATE / min(3, max(1, n * s.N_HEAD_KV / s.N_SM))) * s.US  # keys, then values
    memory = read / s.BANDWIDTH * s.US if kind == "texts" else 0
    return {"memory": memory, "L2, L1": max(moved(s, read), rounds * alone)}, s.JOIN + s.L2 + s.STEP


def small(s, name, n, cols):
    """Bytes that a small launch moves, of n rows of cols columns; the names begin so."""
    qkv = s.N_EMBD + 2 * s.N_HEAD_KV * s.D
    return next(v for k, v in (
        ("embed_rows", s.N_EMBD * 5 * n), ("embed_gather", s.N_EMBD * 8), ("norm_packed_x", s.N_EMBD * 6 * n), ("norm", s.N_EMBD * 8 * n),
        ("rope_table", s.D * 4 * n), ("kv_store_rope", qkv * 7 * n), ("kv_store", 2 * s.N_HEAD_KV * s.D * 6 * n), ("rope_heads", s.N_EMBD * 8 * n),
        ("matmul_x_level", cols // 64 * n), ("matmul_x", cols * 6 * n), ("elementwise_glu_packed_x", s.N_FF * 10 * n),
        ("elementwise_glu", s.N_FF * 12 * n), ("attn_decode", 0)) if name.startswith(k))


def pieces(names):
    """A step's launches cut in front of the first launch of attention of each layer."""
    cuts = [i for i, name in enumerate(names) if name.startswith("attn") and not names[i - 1].startswith("attn")]
    return [names[a:b] for a, b in zip([0] + cuts, cuts + [len(names)])]


def roles(names, first, last):
    """What each product of a piece is."""
    n = sum(name.startswith("matmul_") and not name.startswith("matmul_x") for name in names)
    if first:
        return ("Q, K, V",) if n == 1 else ("Q, K", "V")
    return ("output", "gate, up", "down", "logits") if last else ROLES[n]


class Step:
    """A step of n tokens of one text, or of n texts: bounds, {bound: microseconds}, of all launches, and their number."""

    def __init__(self, s, sass, names, kind, n):
        self.s, self.sass, self.kind, self.n = s, sass, kind, n
        self.kernels = {r["kernel"]: r for r in sass["rows"] if r["impl"] == "gpurun"}
        self.bounds, self.n_launch, self.before = dict.fromkeys(BOUNDS, 0.0), 0, 0.0
        cut = pieces(names)
        if len(cut) != 5:
            raise ValueError(f"{kind} {n}: four layers are expected, {len(cut) - 1} are found")
        for i, part in enumerate(cut):
            self.piece(part, i == 0, i == 4, 1 + 14 * (i in (1, 3)))

    def us(self):
        return sum(self.bounds.values())

    def add(self, times, stream, end, behind):
        """A launch, so many times: the longest bound of its stream between head and tail; behind: one that runs beside it and so has
        neither."""
        bound = max(stream, key=stream.get)
        self.bounds[bound] += times * stream[bound]
        self.bounds["heads, tails"] += 0 if behind else times * (self.s.END + self.s.L2 + end)
        self.n_launch += times
        self.before = end

    def piece(self, names, first, last, times):
        s, role = self.s, iter(roles(names, first, last))
        cols, n = s.N_EMBD, self.n  # of what the next small launch reads
        for i, name in enumerate(names):
            if last and name.startswith("embed_gather"):
                n = 1
            if name.startswith("matmul_") and not name.startswith("matmul_x"):
                r = next(role)
                cols = s.N_FF if r == "gate, up" else s.N_EMBD
                if "tile" in name:
                    kept = not any(name.startswith("kv_store") for name in names)
                    self.tiles(times, r, name, n, i and names[i - 1].startswith("matmul_tile") and r == "V", kept)
                else:
                    self.few(times, r, name, n, names[i + 1] if i + 1 < len(names) else "")
            elif name.startswith("attn_prefill"):
                self.add(times, {"tensor cores": s.attention(n, 0)}, 0, False)
            elif name.startswith("attn_decode_1") and not names[i - 1 if i else 0].startswith("attn_prefill"):
                self.add(times, *attention(s, self.kind, n), False)
            else:
                self.add(times, {"L2, L1": moved(s, small(s, name, n, cols)) + s.L2}, 0, False)

    def weights(self, role, name):
        rows, cols = shape(self.s, role)
        dtype = name[name.index("_q") + 1:]
        return rows, cols, dtype, rows * cols * self.s.BITS[dtype] / 8

    def early(self, size, asked):
        """Bytes, of those asked for, that come while the launch in front comes to its end."""
        s = self.s
        return min(size, asked, max(0, self.before + s.END - s.HBM) * s.BANDWIDTH / s.US)

    def few(self, times, role, name, n, behind):
        s, row = self.s, self.kernels["gr_" + name]
        rows, cols, _, size = self.weights(role, name)
        own = {"Q, K, V": ("kv_store", "rope"), "V": ("kv_store", "rope"), "gate, up": ("elementwise",), "output": ("norm",), "down": ("norm",)}
        fused = role in own and not behind.startswith(own[role])
        size -= self.early(size, s.N_SM * row["in_flight"])
        self.add(times, few(s, row, size, rows, cols, n) | {"memory": size / s.BANDWIDTH * s.US}, tail(s, role, n, fused), False)

    def tiles(self, times, role, name, n, beside, kept):
        s = self.s
        rows, cols, dtype, size = self.weights(role, name)
        last = s.KEPT if kept and role in ("Q, K, V", "Q, K", "V") else None
        us, bound = s.tiles([(rows, dtype)], n, cols, self.sass, 0.25 if role == "gate, up" else 1.0, int(role in ("output", "down")), last)
        memory = (size - self.early(size, s.N_SM * RING_SM90)) / s.BANDWIDTH * s.US
        self.add(times, {bound: us, "memory": memory} if memory > us else {bound: us}, 0, beside)


def predict(s, sass, found):
    """{kind: {number: Step}}"""
    return {kind: {n: Step(s, sass, names, kind, n) for first, last, names in runs for n in range(first, last + 1)}
            for kind, runs in found.items()}


def steps_down(rates):
    """[(number, a smaller one, share of its tokens a second that is lost)] where that is more than STEP_DOWN; rates: {number: tokens a
    second}, in order."""
    found, best = [], None
    for n, rate in rates.items():
        if best and rate < (1 - STEP_DOWN) * rates[best]:
            found.append((n, best, 1 - rate / rates[best]))
        if not best or rate > rates[best]:
            best = n
    return found


def rates(s, steps):
    return {n: n / step.us() * s.US for n, step in steps.items()}


def down_text(found, kind):
    """Numbers that follow each other together, with the largest loss of them."""
    runs = []
    for n, best, lost in found:
        if runs and runs[-1][1] == n - 1 and runs[-1][2] == best:
            runs[-1][1], runs[-1][3] = n, max(runs[-1][3], lost)
        else:
            runs.append([n, n, best, lost])
    return "; ".join(f"{f'{a} to {b}' if b > a else a} {kind} up to {100 * lost:.0f} % below {best}" for a, b, best, lost in runs) or f"of {kind} none"


def table(s, steps, kind):
    yield f"| {kind} | launches | µs | {' | '.join(BOUNDS)} | tokens a second |"
    yield "|---:|" + "---:|" * (3 + len(BOUNDS))
    for n in SHOWN[kind]:
        step = steps[n]
        yield f"| {n} | {step.n_launch} | {step.us():,.0f} | {' | '.join(f'{step.bounds[b]:,.0f}' for b in BOUNDS)} | {n / step.us() * s.US:,.0f} |"


def section(s, sass):
    found = predict(s, sass, read())
    down = {kind: steps_down(rates(s, steps)) for kind, steps in found.items()}
    shown = [f"{n} {kind}" for kind in found for n, _, _ in down[kind] if n in SHOWN[kind]]
    lines = ["Steps of few tokens of one text, behind none, and of one token each of several texts, behind "
             f"{CELLS} cells each: the launches are those that the host", "notes on the emulated device (`results/launches.json`), µs of each by what bounds "
             "it, and of all of them their heads and tails.", ""]
    for kind, steps in found.items():
        lines += [*table(s, steps, kind), ""]
    lines += [f"Fewer tokens a second than with a smaller number, by more than {100 * STEP_DOWN:.0f} %: of these numbers {', '.join(shown) or 'none'}; of all up to "
              f"{' and '.join(f'{MOST[kind]} {kind}' for kind in found)}:", "; ".join(down_text(down[kind], kind) for kind in found) + "."]
    return "\n".join(lines)
