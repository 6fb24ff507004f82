"""Measures gpurun on the built-in model beyond its training length: pass keys and loss by length,
plain, with Self-Extend in both modes and with context shift; writes results/lengths.json, results/lengths.png and
the table of README.md.

    python3 lengths.py ../../build/gpurun [--peer PYTHON]
    python3 lengths.py --show        # from results/lengths.json: picture and table alone

Pass keys: `gpurun run` continues the prompt greedily and the first five characters must be the key.
Loss: `gpurun replay` gives the logits of texts of documents, for each mode the operations that run
does. PYTHON is an interpreter that has llama-cpp-python: peer.py asks it the same 40 questions.
"""

import argparse
import collections
import datetime
import json
import pathlib
import platform
import random
import subprocess
import tempfile

import numpy as np
from golden import BLOCK_TOKENS, FRAME_TOKENS, passkey_prompt
from grammar import KEY_DIGITS, document

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
MODEL = ROOT / "tools/default-model.gguf"
PROMPTS = ROOT / "tests/golden/default-model/passkey.json"
RESULT = HERE / "results/lengths.json"
SEED = 2_000_000_011
TRAINED = 256
CONTEXT = 1280
LENGTHS = [FRAME_TOKENS + k * BLOCK_TOKENS for k in range(3, 46, 3)]  # 138 to 1146
N_PROMPT = 20
MODES = {
    "plain": "-c 1280",
    "classic 8 / 128": "-c 1280 -gan 8 -gaw 128",
    "classic auto": "-c 1280 -gan auto",
    "window 8 / 128": "-c 1280 -gan 8 -gaw 128 --grp-attn-mode window",
    "window auto": "-c 1280 -gan auto --grp-attn-mode window",
    "context shift": "-c 256 --context-shift",
}
# Prompts of every length modulo the window, around 714 and 930 tokens; part of their filler is
# random sentences, as all of it is in prompts of IN_CONTEXT tokens.
WINDOW = 128
REMAINDERS = [  # mode, flags, first length, prompts of each length
    ("classic 4 / 128", "-c 1024 -gan 4 -gaw 128", 641, 5),
    ("classic 8 / 128", "-c 1280 -gan 8 -gaw 128", 897, 5),
    ("window 8 / 128", "-c 1280 -gan 8 -gaw 128 --grp-attn-mode window", 641, 25),
    ("window 8 / 128", "-c 1280 -gan 8 -gaw 128 --grp-attn-mode window", 897, 25),
]
IN_CONTEXT = [FRAME_TOKENS + k * (BLOCK_TOKENS + 1) for k in range(3, 8)]  # 141 to 241
PEER = [(714, 4, WINDOW), (930, 8, WINDOW)]
ROW = 1152  # tokens of a text whose loss is measured
N_ROW = 24
BIN = 64


def finds(gpurun, flags, prompt, answer):
    command = [gpurun, *flags.split(), *"-n 5 --temp 0 -t 1 --no-warmup -q --no-escape -p".split()]
    run = subprocess.run([*command, prompt], check=True, capture_output=True, text=True)
    return run.stdout[:KEY_DIGITS] == answer


def passkeys_by_length(gpurun):
    rng, rows = random.Random(SEED), []
    for n_tokens in LENGTHS:
        prompts = [passkey_prompt(rng, n_tokens) for _ in range(N_PROMPT)]
        found = {
            mode: sum(finds(gpurun, flags, *prompt) for prompt in prompts)
            for mode, flags in MODES.items()
        }
        rows.append({"n_tokens": n_tokens, "of": N_PROMPT, "found": found})
        print(rows[-1], flush=True)
    return rows


def passkeys_by_remainder(gpurun):
    """A record for each mode: keys found at first, first + 1, .., first + 127 tokens."""
    records = []
    for mode, flags, first, of in REMAINDERS:
        rng = random.Random(SEED + first)
        found = []
        for n_tokens in range(first, first + WINDOW):
            prompts = [passkey_prompt(rng, n_tokens) for _ in range(of)]
            found.append(sum(finds(gpurun, flags, *prompt) for prompt in prompts))
        records.append({"mode": mode, "first": first, "of": of, "found": found})
        print(mode, first, "least", min(found), "of", of, "mean", np.mean(found) / of, flush=True)
    return records


def passkeys_in_context(gpurun, of=100):
    rng = random.Random(SEED)
    prompts = [passkey_prompt(rng, n_tokens) for n_tokens in IN_CONTEXT for _ in range(of)]
    found = sum(finds(gpurun, f"-c {TRAINED}", *prompt) for prompt in prompts)
    return {"of": len(prompts), "found": found}


def tokenize(gpurun, text):
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        command = [gpurun, "tokenize", MODEL, "-f", file.name, "--ids", "-q"]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


def decode(tokens, start):
    n = len(tokens)
    positions = list(range(start, start + n))
    return {"op": "decode", "tokens": tokens, "pos": positions, "seq": [[0]] * n, "logits": [1] * n}


def plain_operations(tokens):
    yield decode(tokens, 0)


def classic_operations(tokens, n=8, w=128):
    """What gr_self_extend does before each piece, and pieces that end where a window does."""
    i = n_past = at = 0
    while at < len(tokens):
        while n_past >= i + w:
            ib, bd = n * i // w, w // n * (n - 1)
            lo, dd = i + ib * bd, w // n - ib * bd - w
            yield {"op": "seq_add", "seq": 0, "p0": i, "p1": n_past, "delta": ib * bd}
            yield {"op": "seq_div", "seq": 0, "p0": lo, "p1": lo + w, "d": n}
            yield {"op": "seq_add", "seq": 0, "p0": lo + w, "p1": n_past + ib * bd, "delta": dd}
            n_past -= bd
            i += w // n
        piece = tokens[at : at + i + w - n_past]
        yield decode(piece, n_past)
        at, n_past = at + len(piece), n_past + len(piece)


def shift_operations(tokens, n_ctx=TRAINED, keep=1):
    """What gr_context_shift does when all cells are used."""
    n_past = at = 0
    while at < len(tokens):
        if n_past == n_ctx:
            drop = (n_past - keep) // 2
            yield {"op": "seq_rm", "seq": 0, "p0": keep, "p1": keep + drop}
            yield {"op": "seq_add", "seq": 0, "p0": keep + drop, "p1": n_past, "delta": -drop}
            n_past -= drop
        piece = tokens[at : at + n_ctx - n_past]
        yield decode(piece, n_past)
        at, n_past = at + len(piece), n_past + len(piece)


LOSS_MODES = {
    "plain": (plain_operations, {}),
    "classic 8 / 128": (classic_operations, {}),
    "window 8 / 128": (plain_operations, {"self_extend_n": 8, "self_extend_w": 128}),
    "context shift": (shift_operations, {"n_ctx": TRAINED}),
}


def token_losses(gpurun, operations, context, tokens):
    """-log p of tokens[1:] as the model sees them in this mode."""
    context = {"n_ctx": CONTEXT, "n_batch": 2048, **context}
    session = {"context": context, "ops": [*operations(tokens)]}
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "session.json"
        file.write_text(json.dumps(session))
        command = [gpurun, "replay", file, "-m", MODEL, "-o", folder, "-t", "1", "-q"]
        subprocess.run(command, check=True)
        decoded = [k for k, op in enumerate(session["ops"]) if op["op"] == "decode"]
        logits = [np.load(f"{folder}/logits_{k}.npy") for k in decoded]
    x = np.concatenate(logits).astype(np.float64)[:-1]
    x -= x.max(-1, keepdims=True)
    return np.log(np.exp(x).sum(-1)) - x[np.arange(len(x)), tokens[1:]]


def document_text(gpurun, rng):
    """The ids of documents, one after the other, cut to ROW tokens."""
    text, tokens = "", []
    while len(tokens) < ROW:
        text += "".join(document(rng)[1] for _ in range(4))
        tokens = tokenize(gpurun, text)
    return tokens[:ROW]


def losses_by_position(gpurun):
    rng, losses = random.Random(SEED + 1), collections.defaultdict(list)
    for _ in range(N_ROW):
        tokens = document_text(gpurun, rng)
        for mode, (operations, context) in LOSS_MODES.items():
            losses[mode].append(token_losses(gpurun, operations, context, tokens))
    bins = range(0, ROW - 1, BIN)
    return {
        "bin": BIN,
        "rows": N_ROW,
        "nats": {
            mode: [round(float(np.mean([row[b : b + BIN] for row in rows])), 4) for b in bins]
            for mode, rows in losses.items()
        },
    }


def beside_peer(gpurun, python):
    """Keys found by gpurun and by llama.cpp's library in committed prompts of PEER's lengths."""
    records = json.loads(PROMPTS.read_text())
    rows = []
    for n_tokens, n, w in PEER:
        prompts = [p for p in records if p["set"] == "beyond" and p["n_tokens"] == n_tokens]
        flags = f"-c {CONTEXT} -gan {n} -gaw {w}"
        found = sum(finds(gpurun, flags, p["prompt"], p["answer"]) for p in prompts)
        row = {"n_tokens": n_tokens, "n": n, "w": w, "of": len(prompts), "gpurun": found}
        if python:
            command = [python, HERE / "peer.py", MODEL, PROMPTS, *map(str, (n_tokens, n, w))]
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            row.update(json.loads(run.stdout))
        rows.append(row)
        print(row, flush=True)
    return rows


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def measure(gpurun, peer):
    command = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, check=True, capture_output=True, text=True)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": processor(),
        "modes": MODES,
        "beside_peer": beside_peer(gpurun, peer),
        "loss": losses_by_position(gpurun),
        "in_context": passkeys_in_context(gpurun),
        "passkey": passkeys_by_length(gpurun),
        "remainder": passkeys_by_remainder(gpurun),
    }


COLOURS = {"plain": "#777777", "classic": "#d95f02", "window": "#1b6ca8", "context": "#3c8d40"}
STYLES = {"auto": "--"}


def line_style(mode):
    words = mode.split()
    return {"color": COLOURS[words[0]], "linestyle": STYLES.get(words[-1], "-"), "label": mode}


def draw(result):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (keys, loss, rest) = pyplot.subplots(3, 1, figsize=(8, 9.6), layout="constrained")
    lengths = [row["n_tokens"] for row in result["passkey"]]
    for mode in result["passkey"][0]["found"]:
        share = [100 * row["found"][mode] / row["of"] for row in result["passkey"]]
        keys.plot(lengths, share, marker=".", **line_style(mode))
    keys.set(title="Pass keys found, %", xlabel="tokens of the prompt", ylim=(-3, 103))
    keys.axvline(TRAINED, color="#bbbbbb", linewidth=1)
    keys.annotate("trained on 256", (TRAINED + 8, 3), color="#777777")
    size = result["loss"]["bin"]
    for mode, nats in result["loss"]["nats"].items():
        middle = [size * (k + 0.5) for k in range(len(nats))]
        loss.plot(middle, nats, marker=".", **line_style(mode))
    loss.set(title="Loss, nats a token", xlabel="position in the text", ylim=(0, None))
    loss.axvline(TRAINED, color="#bbbbbb", linewidth=1)
    for record in result["remainder"]:
        style = line_style(record["mode"])
        style["label"] += f", {record['first']} to {record['first'] + WINDOW - 1} tokens"
        style["linestyle"] = ":" if record["first"] < 800 else "-"
        at = [(record["first"] + k) % WINDOW for k in range(WINDOW)]
        share = [100 * f / record["of"] for f in record["found"]]
        rest.plot(*zip(*sorted(zip(at, share))), **style)
    title = f"Pass keys found, %, by length modulo {WINDOW}"
    rest.set(title=title, xlabel=f"tokens of the prompt modulo {WINDOW}", ylim=(-3, 103))
    for axes in (keys, loss, rest):
        axes.grid(axis="y", color="#eeeeee")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(HERE / "results/lengths.png", dpi=100)


def worst(record):
    """ "24 of 25" and the remainders that have it."""
    least = min(record["found"])
    at = [(record["first"] + k) % WINDOW for k, f in enumerate(record["found"]) if f == least]
    where = f"at {len(at)} remainders" if len(at) > 3 else "at " + ", ".join(map(str, sorted(at)))
    return f"{least} of {record['of']} {where}"


def table(result):
    shown = [row for row in result["passkey"] if row["n_tokens"] in (210, 282, 498, 714, 930, 1146)]
    lines = ["| keys found | " + " | ".join(f"{row['n_tokens']} tokens" for row in shown) + " |"]
    lines.append("|---|" + "---:|" * len(shown))
    for mode, flags in result["modes"].items():
        cells = [f"{row['found'][mode]} of {row['of']}" for row in shown]
        lines.append(f"| {mode}: `{flags}` | " + " | ".join(cells) + " |")
    size, nats = result["loss"]["bin"], result["loss"]["nats"]
    bins = [k for k in range(0, ROW // size) if k in (1, 3, 5, 8, 11, 14, 17)]
    head = [f"{k * size} to {(k + 1) * size - 1}" for k in bins]
    lines += ["", "| loss at positions | " + " | ".join(head) + " |", "|---|" + "---:|" * len(bins)]
    for mode in nats:
        lines.append(f"| {mode} | " + " | ".join(f"{nats[mode][k]:.3f}" for k in bins) + " |")
    lines += ["", "| keys found at every remainder modulo 128 | least | all |", "|---|---|---:|"]
    for record in result["remainder"]:
        where = f"{record['mode']}, {record['first']} to {record['first'] + WINDOW - 1} tokens"
        share = sum(record["found"]) / (WINDOW * record["of"])
        lines.append(f"| {where} | {worst(record)} | {share:.1%} |")
    within = f"plain within the context, {IN_CONTEXT[0]} to {IN_CONTEXT[-1]} tokens"
    share = result["in_context"]["found"] / result["in_context"]["of"]
    lines.append(f"| {within}, for comparison | | {share:.1%} |")
    lines += ["", "| the same 20 prompts | gpurun | llama.cpp |", "|---|---|---|"]
    for row in result["beside_peer"]:
        peer = f"{row['found']} of {row['of']}" if "found" in row else "not asked"
        flags = f"{row['n_tokens']} tokens, `-gan {row['n']} -gaw {row['w']}`"
        lines.append(f"| {flags} | {row['gpurun']} of {row['of']} | {peer} |")
    by = next((f"; llama.cpp: {row['by']}" for row in result["beside_peer"] if "by" in row), "")
    where = f"{result['date']}, commit {result['commit']}, {result['machine']}"
    lines += ["", f"{where}, one thread{by}."]
    return "\n".join(lines) + "\n"


def write_readme(result):
    readme = pathlib.Path(__file__).parent / "README.md"
    begin, end = "<!-- lengths: begin", "<!-- lengths: end -->"
    text = readme.read_text()
    start = text.index("\n", text.index(begin)) + 1
    readme.write_text(text[:start] + table(result) + text[text.index(end) :])


def main():
    parser = argparse.ArgumentParser(description="pass keys and loss beyond the training length")
    parser.add_argument("gpurun", nargs="?", type=pathlib.Path)
    parser.add_argument("--peer", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--show", action="store_true", help="draw results/lengths.json again")
    args = parser.parse_args()
    if not args.show:
        result = measure(args.gpurun.resolve(), args.peer)
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()]
        RESULT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    result = json.loads(RESULT.read_text())
    draw(result)
    write_readme(result)


if __name__ == "__main__":
    main()
