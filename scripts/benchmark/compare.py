"""What scripts/bench runs: gpurun and llama.cpp in turn (A-B-A, once for each round), each in a process of its own, and
the table of both. Prints JSON lines, then the table."""
import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = HERE / "results.jsonl"
BEGIN, END = "<!-- bench: begin (scripts/bench --record writes this) -->", "<!-- bench: end -->"


def run_json(command):
    """The JSON lines a command prints, as {test: object}."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"bench: exit {done.returncode} of: {' '.join(map(str, command))}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["test"]: row for row in rows if "test" in row}


def model_file(kind, n_vocab):
    path = ROOT / "build" / "bench" / f"1b-{kind}-{n_vocab}.gguf"
    if not path.exists():
        print(f"bench: writing {path}", file=sys.stderr)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        subprocess.run([sys.executable, HERE / "make_model.py", part, "--type", kind, "--vocab", str(n_vocab)], check=True)
        part.rename(path)
    return path


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], stdout=subprocess.PIPE, text=True).stdout.strip()


def machine():
    with open("/proc/cpuinfo") as f:
        fields = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in f.read().strip().split("\n\n")[0].splitlines())
    notable = [x for x in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if x in fields["flags"].split()]
    return {"cpu": f"{fields['model name'].strip()} (family {fields['cpu family']}, model {fields['model']})",
            "cores": os.cpu_count(), "isa": " ".join(notable)}


def compare(kind, a):
    """One row a test: both figures (medians over the rounds), their ratio, and how far gpurun's own runs lie apart."""
    path = model_file(kind, a.vocab)
    size = ["-p", str(a.p), "-n", str(a.n), "-t", str(a.t), "-r", str(a.r)]
    ours = [ROOT / "build" / "gpurun", "bench", "-m", path, *size, "--json"]
    peer = [sys.executable, HERE / "peer.py", path, *size]
    runs = {"gpurun": [run_json(ours)], "peer": []}
    for _ in range(a.rounds):
        runs["peer"].append(run_json(peer))
        runs["gpurun"].append(run_json(ours))
    for test in (f"pp{a.p}", f"tg{a.n}"):
        figures = {who: [run[test]["avg_ts"] for run in of] for who, of in runs.items()}
        mid = {who: statistics.median(x) for who, x in figures.items()}
        mine = figures["gpurun"]
        yield {"test": test, "type": kind, "gpurun_tok_s": round(mid["gpurun"], 2), "peer_tok_s": round(mid["peer"], 2),
               "ratio": round(mid["gpurun"] / mid["peer"], 3), "spread": round(max(mine) / min(mine) - 1, 3),
               "runs": figures, "peer": runs["peer"][0][test]["version"]}


def table(rows):
    lines = ["| model | test | gpurun, tok/s | llama.cpp, tok/s | ratio |", "|---|---|---:|---:|---:|"]
    for r in rows:
        lines.append(f"| 1B {r['type'].upper()} | {r['test']} | {r['gpurun_tok_s']:.1f} | {r['peer_tok_s']:.1f} | {r['ratio']:.2f} |")
    r = rows[0]
    lines += ["", f"{r['date']}, commit {r['commit']}, {r['cpu']}, {r['cores']} cores, {r['threads']} threads, {r['isa']}; "
              f"{r['peer']} built for this processor, both in turn in one run."]
    return "\n".join(lines)


def record(rows):
    with open(RESULTS, "a") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.split(END)[1]}")


def main():
    p = argparse.ArgumentParser(prog="scripts/bench")
    p.add_argument("--types", default="q8_0,q4_k")
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=64)
    p.add_argument("-t", type=int, default=2)
    p.add_argument("-r", type=int, default=2, help="measurements in each run")
    p.add_argument("--rounds", type=int, default=2, help="runs of the peer; gpurun runs before, between and after")
    p.add_argument("--vocab", type=int, default=128256)
    p.add_argument("--record", action="store_true")
    a = p.parse_args()
    load = os.getloadavg()[0]
    if load > 0.3:
        print(f"bench: the machine is not idle (load {load:.1f}): figures of both sides suffer", file=sys.stderr)
    common = {"date": datetime.date.today().isoformat(), "commit": git("rev-parse", "--short", "HEAD"),
              "dirty": bool(git("status", "--porcelain", "--untracked-files=no")), **machine(), "threads": a.t,
              "load_before": round(load, 2)}
    rows = []
    for kind in a.types.split(","):
        for row in compare(kind, a):
            rows.append({**common, **row})
            print(json.dumps(rows[-1]), flush=True)
    print("\n" + table(rows))
    if a.record:
        record(rows)


main()
